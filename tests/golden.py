"""The recordings in data/golden as NumPy arrays: `load("tiny-A")["L02.p.q"]`."""

import functools
import json
import pathlib
import re
import struct

import numpy as np

from dsv41_numba.formats.bf16 import BF16

FOLDER = pathlib.Path(__file__).parent.parent / "data" / "golden"
DTYPES = {
    "BF16": BF16,
    "F8_E4M3": np.uint8,
    "F8_E8M0": np.uint8,
    "F32": np.float32,
    "I32": np.int32,
    "U8": np.uint8,
}


@functools.cache
def load(name: str) -> dict[str, np.ndarray]:
    """Every tensor of `name`.safetensors. bf16 as ml_dtypes arrays, fp8 and scales as raw bytes; read-only."""
    raw = (FOLDER / f"{name}.safetensors").read_bytes()
    (header_bytes,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + header_bytes])
    header.pop("__metadata__", None)
    tensors = {}
    for key, entry in header.items():
        start, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
        # copied, because the file packs its tensors at any byte: the copy is aligned
        array = np.frombuffer(raw[start:end], DTYPES[entry["dtype"]]).reshape(entry["shape"])
        array.flags.writeable = False
        tensors[key] = array
    return tensors


@functools.cache
def config() -> dict:
    """The tiny geometry, with the file's own key names."""
    return json.loads((FOLDER / "tiny-config.json").read_text())


def steps(name: str) -> list[str]:
    """The recording's calls in order: p (prefill), d0, d1, ... (ownkeys recordings start at d0)."""
    found = {key.split(".")[1] for key in load(name)}
    return sorted(found, key=lambda step: -1 if step == "p" else int(step[1:]))


def layers(name: str, stage: str) -> list[int]:
    """The layers that captured `stage` at some step."""
    return sorted({int(m[1]) for key in load(name) if (m := re.fullmatch(rf"L(\d+)\.\w+\.{stage}", key))})


def source(layer: int, sources: str) -> int:
    """The layer that `layer` reads: the last entry of config()[sources] up to it."""
    return max(s for s in config()[sources] if s <= layer)


def weights(name: str) -> dict[str, np.ndarray]:
    """The weights that the recording `name` was made with."""
    tensors = load("tiny-fp8-weights" if "fp8" in name else "tiny-weights")
    return tensors | load("tiny-D-weights") if name.startswith("tiny-D") else tensors


def whole(name: str) -> str:
    """The recording that has the prefill too: an ownkeys recording starts after it, and it is the same in both."""
    return name.removesuffix("-ownkeys")


def end_of(name: str, step: str) -> int:
    """How many positions are filled after `step`."""
    prefill = len(load(whole(name))["L02.p.x"])
    return prefill if step == "p" else prefill + int(step[1:]) + 1


def rows_so_far(name: str, layer: int, stage: str, step: str) -> np.ndarray | None:
    """The rows of `stage` (latent_q, index_k) that `layer` made up to and including `step`, in order; None where some
    were not recorded."""
    calls = steps(whole(name))
    calls = calls[: calls.index(step) + 1]
    rows = [load(whole(name) if call == "p" else name).get(f"L{layer:02d}.{call}.{stage}") for call in calls]
    width = config()["index_head_dim" if stage == "index_k" else "head_dim"]
    together = np.concatenate([np.zeros((0, width), BF16), *(part for part in rows if part is not None)])
    return together if len(together) == end_of(name, step) // config()["compress_ratios"][layer] else None
