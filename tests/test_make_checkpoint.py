"""make-checkpoint: the released layout, the quantisation rule, and nothing half-written."""

import argparse
import dataclasses
import io
import json

import numpy as np
import pytest
from rich.console import Console

from dsv41_numba import make_checkpoint as module
from dsv41_numba.compare import same_bits
from dsv41_numba.config import FLASH, TINY
from dsv41_numba.formats.bf16 import as_bf16
from dsv41_numba.formats.e4m3 import e4m3_to_f32
from dsv41_numba.formats.e8m0 import e8m0_to_f32
from dsv41_numba.make_checkpoint import FP8, make_checkpoint, quantise, run, up_to
from dsv41_numba.roles import roles
from dsv41_numba.tensors import open_tensors
from dsv41_numba.walk import walk_checkpoint
from dsv41_numba.weights import Checkpoint, random_weights, tensor_specs
from golden import FOLDER as GOLDEN


def of(weights, name):
    for part in name.split("."):
        weights = getattr(weights, part)
    return weights


def test_make_checkpoint_of_the_tiny_geometry_is_the_recorded_fp8_checkpoint(tmp_path):
    make_checkpoint(tmp_path / "tiny", TINY, range(TINY.n_layers))
    made = {
        name: tensor
        for shard in (tmp_path / "tiny").glob("*.safetensors")
        for name, tensor in open_tensors(shard).items()
    }
    recorded = open_tensors(GOLDEN / "tiny-fp8-weights.safetensors")
    assert made.keys() == set(recorded)
    for name, tensor in made.items():
        assert tensor.dtype == recorded[name].dtype
        assert same_bits(tensor.data, recorded[name].data), name


def test_make_checkpoint_reads_back_bit_for_bit(tmp_path):
    cfg = dataclasses.replace(TINY, dim=72, q_lora_rank=40, weight_block=(16, 24))  # partial blocks at every edge
    done = []
    total = make_checkpoint(tmp_path / "odd", cfg, range(21), 3, done.append)
    checkpoint = Checkpoint(tmp_path / "odd")
    assert checkpoint.cfg == up_to(cfg, 20) and done[-1] == 1.0 and done == sorted(done)
    index = json.loads((tmp_path / "odd" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == total
    assert len(set(index["weight_map"].values())) == 21
    for role in roles(cfg)[:21]:
        drawn, read = random_weights(cfg, role.layer, 44_000_000), checkpoint.layer(role.layer)
        for name in tensor_specs(cfg, role):
            expected = of(drawn, name)
            if name in FP8:
                codes, scale = quantise(expected, cfg.weight_block)
                wide = np.repeat(np.repeat(e8m0_to_f32(scale), 16, 0), 24, 1)[: codes.shape[0], : codes.shape[1]]
                expected = as_bf16(e4m3_to_f32(codes) * wide)
            assert same_bits(of(read, name), expected), (role.layer, name)


def test_make_checkpoint_scale_is_the_smallest_power_of_two_that_fits(rng):
    weight = as_bf16((rng.standard_normal((70, 100)) * np.exp(3 * rng.standard_normal((70, 1)))).astype(np.float32))
    weight[:32, :32] = 0
    weight[32:64, :32] = as_bf16(np.float32(448.0))  # exactly at the limit: the scale is 1, not 2
    codes, scale = quantise(weight, (32, 32))
    assert codes.shape == (70, 100) and scale.shape == (3, 4)
    values = e8m0_to_f32(scale)
    for i in range(3):
        for j in range(4):
            amax = np.abs(weight[32 * i : 32 * i + 32, 32 * j : 32 * j + 32].astype(np.float64)).max()
            assert max(amax, 1e-4) / 448 <= values[i, j] < 2 * max(amax, 1e-4) / 448 * (1 + 1e-6)
    assert values[1, 0] == 1.0 and (e4m3_to_f32(codes[32:64, :32]) == 448.0).all()
    # each code is the nearest of all of them
    every = e4m3_to_f32(np.arange(127, dtype=np.uint8)).astype(np.float64)
    exact = weight.astype(np.float64) / np.repeat(np.repeat(values, 32, 0), 32, 1)[:70, :100]
    best = np.abs(np.abs(exact)[..., None] - every).min(-1)
    assert (np.abs(np.abs(exact) - np.abs(e4m3_to_f32(codes).astype(np.float64))) == best).all()


def test_make_checkpoint_walks_without_naming_layers(tmp_path):
    out = Console(file=io.StringIO(), width=118)
    args = argparse.Namespace(folder=str(tmp_path / "w"), layers=range(0, 4), seed=0, config=None)
    tiny = tmp_path / "tiny.json"
    TINY.to_json(tiny)
    args.config = str(tiny)
    assert run(args, out, Console(file=io.StringIO())) == 0
    assert "layers 0-3, seed 0, 4 shards" in out.file.getvalue()
    unset = dict.fromkeys(("config", "layers", "layer", "step", "show", "record"))
    walk = argparse.Namespace(
        checkpoint=args.folder,
        tokens=5,
        decode=1,
        seed=0,
        ops="reference",
        index_keys="released",
        linear="bf16",
        cache="bf16",
        **unset,
    )
    assert walk_checkpoint(walk, out, Console(file=io.StringIO())) == 0


def test_make_checkpoint_config_ends_with_its_layers():
    cut = up_to(FLASH, 3)
    assert (cut.n_layers, cut.compress_ratios, cut.kv_sources) == (4, (0, 0, 2, 2), (2,))
    assert cut.index_sources == (2,) and cut.candidate_source is None
    assert up_to(FLASH, 39) == FLASH


def test_make_checkpoint_refuses_what_it_would_spoil(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="expected a folder that does not exist or is empty"):
        make_checkpoint(kept, TINY, range(2))
    with pytest.raises(ValueError, match="expected a folder that does not exist or is empty"):
        make_checkpoint(kept / "mine.txt", TINY, range(2))
    for layers in ([], [1, 0], [0, 40], [-1]):
        with pytest.raises(ValueError, match=r"layers: expected ascending numbers within 0..39"):
            make_checkpoint(tmp_path / "new", TINY, layers)
    with pytest.raises(ValueError, match="seed: expected one from 0 on"):
        make_checkpoint(tmp_path / "new", TINY, [0], seed=-1)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_make_checkpoint_leaves_nothing_half_written(tmp_path, monkeypatch):
    def breaks(cfg, layer, seed_base):
        if layer == 2:
            raise KeyboardInterrupt
        return random_weights(cfg, layer, seed_base)

    monkeypatch.setattr(module, "random_weights", breaks)
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new"):
        with pytest.raises(KeyboardInterrupt):
            make_checkpoint(tmp_path / name, TINY, range(4))
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
    monkeypatch.undo()
    make_checkpoint(tmp_path / "empty", TINY, range(4))
    assert len(list((tmp_path / "empty").iterdir())) == 6
