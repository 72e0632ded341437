"""`dsv41 make-checkpoint`: seeded random weights in the released layout, to run real sizes without a download.

::

    DIR/config.json                           the geometry, up to the last layer that was asked for
    DIR/model-00001-of-00004.safetensors      one shard a layer: about 150 MB in the released geometry
    DIR/model.safetensors.index.json          which shard holds which tensor

The six large projections (`FP8`) are fp8 e4m3 codes with one e8m0 scale a block, the other matrices bf16; norms, sink
and the ratio-2 compressor's matrices are f32. One layer at a time is drawn, quantised and written, so no more than one
layer's weights are ever in memory. The folder is built beside its place and renamed when it is whole.
"""

import argparse
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
from rich.console import Console

from dsv41_numba.config import FLASH, AttnV41Cfg
from dsv41_numba.formats.bf16 import BF16, bf16_to_f32
from dsv41_numba.formats.e4m3 import E4M3_MAX, f32_to_e4m3
from dsv41_numba.formats.e8m0 import e8m0_to_f32, f32_to_e8m0
from dsv41_numba.report import progress
from dsv41_numba.roles import roles
from dsv41_numba.tensors import RawTensor, write_tensors
from dsv41_numba.weights import INDEX_NAME, AttnV41LayerWeights, random_weights, tensor_specs

FP8 = ("wq_a", "wq_b", "wkv", "wo_a", "wo_b", "indexer.wq_b")
AMAX_FLOOR = np.float32(1e-4)  # keeps the scale of a block of zeros above 0
SEED_BASE = 41_000_000  # the tiny checkpoint's
SEED_STRIDE = 1_000_000  # seed_base + 1000 * layer + tensor: a seed's streams end before the next seed's begin
MOST_LAYERS = SEED_STRIDE // 1000
CHUNK_ROWS = 1024  # weight rows quantised at a time, so that the f32 copy stays small


def run(args: argparse.Namespace, out: Console, err: Console) -> int:
    """`dsv41 make-checkpoint DIR --layers A-B --seed N --config C`; the exit code."""
    cfg = AttnV41Cfg.from_json(args.config) if args.config else FLASH
    layers = tuple(args.layers or range(cfg.n_layers))
    with progress(err, f"{len(layers)} layers into {args.folder}") as update:
        written_bytes = make_checkpoint(args.folder, cfg, layers, args.seed, update)
    shards = f"{len(layers)} shard{'s' * (len(layers) > 1)}"
    out.print(f"wrote {args.folder}: layers {layers[0]}-{layers[-1]}, seed {args.seed}, {shards}, "
              f"{written_bytes / 1e9:.2f} GB", soft_wrap=True)  # fmt: skip
    return 0


def make_checkpoint(
    folder: str | pathlib.Path,
    cfg: AttnV41Cfg,
    layers: Iterable[int],
    seed: int = 0,
    update: Callable[[float], None] = lambda done: None,
) -> int:
    """Write random weights of some layers of a geometry; returns the bytes of the tensors.

    folder  must not exist, or be empty
    layers  ascending. config.json ends with the last of them: layers beyond it would be missing tensors
    seed    weights are `random_weights` with seed_base 41,000,000 + 1,000,000 * seed
    update  called with the share of the work that is done, 0 to 1
    Nothing is left behind when it fails or is interrupted. ValueError: folder, layers or seed is not as above.
    """
    folder, layers = pathlib.Path(folder), tuple(layers)
    if not layers or list(layers) != sorted(set(layers)) or not 0 <= layers[0] <= layers[-1] < cfg.n_layers:
        raise ValueError(f"layers: expected ascending numbers within 0..{cfg.n_layers - 1}, got {layers}")
    if layers[-1] >= MOST_LAYERS or seed < 0:
        raise ValueError(f"seed: expected one from 0 on, and layers below {MOST_LAYERS}, got {seed} and {layers[-1]}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder}: expected a folder that does not exist or is empty, got one with files in it")
    cfg = up_to(cfg, layers[-1])
    unfinished = folder.absolute().with_name(f".{folder.absolute().name}.{os.getpid()}")
    unfinished.mkdir(parents=True)
    try:
        weight_map: dict[str, str] = {}
        total_bytes = 0
        for number, layer in enumerate(layers, 1):
            tensors = stored_tensors(cfg, layer, random_weights(cfg, layer, SEED_BASE + SEED_STRIDE * seed))
            shard = f"model-{number:05d}-of-{len(layers):05d}.safetensors"
            write_tensors(unfinished / shard, tensors, {"format": "pt"})
            weight_map |= dict.fromkeys(tensors, shard)
            total_bytes += sum(tensor.data.nbytes for tensor in tensors.values())
            update(number / len(layers))
        index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
        (unfinished / INDEX_NAME).write_text(json.dumps(index, indent=1) + "\n")
        cfg.to_json(unfinished / "config.json")
        if folder.exists():
            folder.rmdir()  # empty, as was checked; not every system renames onto an empty folder
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return total_bytes


def up_to(cfg: AttnV41Cfg, last: int) -> AttnV41Cfg:
    """The geometry of layers 0 to `last` alone."""
    source = cfg.candidate_source
    return replace(
        cfg,
        n_layers=last + 1,
        compress_ratios=cfg.compress_ratios[: last + 1],
        kv_sources=tuple(layer for layer in cfg.kv_sources if layer <= last),
        index_sources=tuple(layer for layer in cfg.index_sources if layer <= last),
        candidate_source=source if source is not None and source <= last else None,
    )


def stored_tensors(cfg: AttnV41Cfg, layer: int, weights: AttnV41LayerWeights) -> dict[str, RawTensor]:
    """A layer's weights as a checkpoint stores them, by full name."""
    tensors = {}
    for name in tensor_specs(cfg, roles(cfg)[layer]):
        array: np.ndarray = weights  # type: ignore[assignment]
        for part in name.split("."):
            array = getattr(array, part)
        full = f"layers.{layer}.attn.{name}"
        weight = full if name == "attn_sink" else f"{full}.weight"
        if name in FP8:
            codes, scale = quantise(array, cfg.weight_block)
            tensors[weight] = RawTensor(weight, "F8_E4M3", codes.shape, codes)
            tensors[f"{full}.scale"] = RawTensor(f"{full}.scale", "F8_E8M0", scale.shape, scale)
        else:
            tensors[weight] = RawTensor.of(weight, array)
    return tensors


def quantise(weight: np.ndarray, block: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """weight [out, in] bf16, block (rows, columns) -> codes [out, in] e4m3 and scale [ceil(out / rows),
    ceil(in / columns)] e8m0, both uint8: the smallest power of two with amax / 448 <= scale, then weight / scale to the
    nearest code, ties to even.

    A bf16 number divided by a power of two is a bf16 number again, so there are only 65,536 numbers to encode.
    """
    rows, columns = block
    out, wide = weight.shape
    code_of = f32_to_e4m3(bf16_to_f32(np.arange(1 << 16, dtype=np.uint16)))
    codes = np.empty((out, wide), np.uint8)
    scales = np.empty((-(-out // rows), -(-wide // columns)), np.uint8)
    chunk_blocks = max(1, CHUNK_ROWS // rows)
    for first in range(0, len(scales), chunk_blocks):
        begin, end = first * rows, min((first + chunk_blocks) * rows, out)
        chunk = weight[begin:end].astype(np.float32)
        amax = np.maximum.reduceat(np.abs(chunk), np.arange(0, end - begin, rows), axis=0)
        amax = np.maximum.reduceat(amax, np.arange(0, wide, columns), axis=1)
        scale = f32_to_e8m0(np.maximum(amax, AMAX_FLOOR) / np.float32(E4M3_MAX))
        scales[first : first + len(scale)] = scale
        per_column = np.repeat(e8m0_to_f32(scale), columns, axis=1)[:, :wide]
        chunk /= np.repeat(per_column, rows, axis=0)[: end - begin]
        codes[begin:end] = code_of[chunk.astype(BF16).view(np.uint16)]
    return codes, scales
