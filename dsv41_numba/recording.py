"""Recordings: every stage of every layer and call, in one safetensors file.

Keys are `L{layer:02d}.{step}.{name}`: step `p` is the prefill, `d0`, `d1`, ... the decode steps after it; the names are
the fields of `AttnV41Run`, and `o_f32` for an attention output with f32 probabilities. The batch axis is dropped.

A recording of decode steps only goes on where another one's prefill ended ("tiny-A-ownkeys" after "tiny-A"): that
file, the base, gives what this one does not hold.
"""

import dataclasses
import pathlib
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from dsv41_numba.layer import AttnV41Run
from dsv41_numba.ops import Ops
from dsv41_numba.tensors import RawTensor, open_tensors, write_tensors

KEY = re.compile(r"L(\d{2,})\.(p|d\d+)\.(\w+)")
STAGES = tuple(field.name for field in dataclasses.fields(AttnV41Run))


class RecordingError(ValueError):
    """A recording that cannot be replayed; the message names the file and what is wrong."""


class Recording:
    """A recording on disk, read lazily.

    path    the safetensors file
    base    the recording whose prefill comes before this one's first decode step; None looks for a file beside it
            whose name is this one's without its last `-part`, if this one has no prefill
    Raises RecordingError when the file has no such keys, lacks a step, or needs a base that is not there.
    """

    def __init__(self, path: str | pathlib.Path, base: str | pathlib.Path | None = None) -> None:
        self.path = pathlib.Path(path)
        self._tensors = open_tensors(self.path)
        self._base: Recording | None = None
        self.captured: dict[tuple[int, str], set[str]] = {}
        self.unknown: tuple[str, ...] = ()  # keys of stages that this port does not have
        for key in self._tensors:
            match = KEY.fullmatch(key)
            if match is None:
                raise RecordingError(f"{self.path}: expected keys like L02.p.topk, got {key!r}")
            if match[3] not in (*STAGES, "o_f32"):
                self.unknown += (key,)
                continue
            self.captured.setdefault((int(match[1]), match[2]), set()).add(match[3])
        if not self.captured:
            raise RecordingError(f"{self.path}: expected a recording, got no tensors")
        own_steps = {step for _, step in self.captured}
        if "p" not in own_steps:
            self._base = Recording(base or self._find_base())
            own_steps |= {"p"}
        elif base is not None:
            raise RecordingError(f"{self.path}: expected no base, since it has its own prefill, got {base}")
        n_decodes = len(own_steps) - 1
        self.steps = ("p", *(f"d{i}" for i in range(n_decodes)))
        if own_steps != set(self.steps):
            raise RecordingError(f"{self.path}: expected the steps {' '.join(self.steps)}, got {sorted(own_steps)}")
        self.layers = tuple(sorted({layer for layer, _ in self.captured}))
        self.runnable = self._runnable()
        self.n_prefill = self.get(self.runnable[0], "p", "x").shape[0]

    def _find_base(self) -> pathlib.Path:
        base = self.path.with_name(self.path.stem.rpartition("-")[0] + self.path.suffix)
        if not base.stem or not base.is_file():
            raise RecordingError(
                f"{self.path}: has no prefill (step p), so a recording with one must come before it; "
                f"expected it at {base} or given with --base"
            )
        return base

    def _runnable(self) -> tuple[int, ...]:
        """The layers whose input x is known in every step."""
        layers = set(self.layers) | (set(self._base.layers) if self._base else set())
        runnable = tuple(
            layer for layer in sorted(layers) if all(self._holder(layer, step, "x") for step in self.steps)
        )
        if not runnable:
            raise RecordingError(f"{self.path}: expected the input x of at least one layer in every step, got none")
        return runnable

    def _holder(self, layer: int, step: str, name: str) -> "Recording | None":
        """The recording that holds this tensor: this one, or its base for the prefill and for the inputs."""
        if name in self.captured.get((layer, step), ()):
            return self
        if self._base is not None and (step == "p" or name == "x"):
            return self._base._holder(layer, step, name)
        return None

    def has(self, layer: int, step: str, name: str) -> bool:
        """Whether the tensor is recorded, here or in the base."""
        return self._holder(layer, step, name) is not None

    def get(self, layer: int, step: str, name: str) -> np.ndarray:
        """A copy of the tensor as a host array: BF16 as ml_dtypes.bfloat16, F32, I32 and U8 as NumPy's types."""
        holder = self._holder(layer, step, name)
        key = f"L{layer:02d}.{step}.{name}"
        if holder is None:
            raise RecordingError(f"{self.path}: expected tensor {key}, got none")
        return np.array(holder._tensors[key].array())

    def judged(self, layer: int, step: str) -> bool:
        """Whether this file itself holds the step: a base's prefill is replayed, but judged with the base."""
        return (layer, step) in self.captured

    def start_pos(self, step: str) -> int:
        """The position of the step's first token."""
        return 0 if step == "p" else self.n_prefill + int(step[1:])


class Recorder:
    """Collects the runs of a walk and writes them as one recording."""

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}

    def add(self, layer: int, step: str, run: AttnV41Run, ops: Ops) -> None:
        """Copy every intermediate of a run; call it before the layer's next call, which reuses the window ring."""
        for name in STAGES:
            value = getattr(run, name)
            if value is not None:
                self._arrays[f"L{layer:02d}.{step}.{name}"] = np.array(ops.to_host(value))
        # REFERENCE and PLAIN keep the probabilities in f32, so their o is also the recordings' o_f32
        self._arrays[f"L{layer:02d}.{step}.o_f32"] = self._arrays[f"L{layer:02d}.{step}.o"]

    def write(self, path: str | pathlib.Path) -> None:
        """Write the file whole or not at all."""
        write_tensors(path, {name: RawTensor.of(name, array) for name, array in self._arrays.items()})


def stage_order(names: Iterable[str]) -> list[Any]:
    """Stage names in the order in which a layer makes them."""
    return sorted(names, key=STAGES.index)
