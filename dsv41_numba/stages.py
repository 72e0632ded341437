"""Every stage that has a kernel, with random inputs of the layer's shapes: what `dsv41 stage` runs.

One entry a stage: what it may differ by, and a function that makes signed, uneven inputs for a geometry. `run_stage`
runs the reference and the kernel on them and counts how far they are apart.
"""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv41_numba.config import AttnV41Cfg
from dsv41_numba.formats.bf16 import as_bf16
from dsv41_numba.formats.fp8_weight import Fp8Weight
from dsv41_numba.formats.packed_rows import PackedRows
from dsv41_numba.ops import PLAIN, REFERENCE, Ops
from dsv41_numba.ops.quant_fp8 import BLOCK, fp8_quantise_ref
from dsv41_numba.ops.rope import rope_table
from dsv41_numba.rules import F32_NOISE, Rule, steps_apart

BITS, ONE_STEP, NOISE = Rule("exact"), Rule("bf16", 1), Rule("f32", 1)


@dataclass(frozen=True)
class Stage:
    """A stage: what it may differ by, and its inputs for (cfg, T, random generator)."""

    rule: Rule
    inputs: Callable[[AttnV41Cfg, int, np.random.Generator], tuple[Any, ...]]
    in_place: int | None = None  # the argument that the stage writes, if it returns nothing


@dataclass(frozen=True)
class StageResult:
    """What came out, and how far apart reference and kernel are."""

    reference: np.ndarray
    kernel: np.ndarray
    worst_steps: int
    differ: int
    unit: str
    limit: int

    @property
    def ok(self) -> bool:
        return self.worst_steps <= self.limit


def _bf16(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return as_bf16(rng.standard_normal(shape).astype(np.float32))


def _f32(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _fp8_weight(rng: np.random.Generator, N: int, K: int) -> Fp8Weight:
    codes, _ = fp8_quantise_ref(_bf16(rng, N, K))
    return Fp8Weight(codes, rng.integers(115, 120, (-(-N // BLOCK), K // BLOCK), np.uint8))


def _rope_inputs(c: AttnV41Cfg, T: int, rng: np.random.Generator) -> tuple[Any, ...]:
    cos, sin = rope_table(c, True)
    return _bf16(rng, T, c.n_heads, c.head_dim), cos, sin, 5 % (c.max_seq - T)


def _group_inputs(c: AttnV41Cfg, T: int, rng: np.random.Generator) -> tuple[Any, ...]:
    """A chunk that starts inside a group, at ratio 2."""
    rows = [_f32(rng, size, c.head_dim) for size in (T, T, 2, 2)]
    return *rows, 3


def _score_inputs(c: AttnV41Cfg, T: int, rng: np.random.Generator) -> tuple[Any, ...]:
    index_q = REFERENCE.fp4_round_trip_e8m0(_bf16(rng, T, c.index_n_heads, c.index_head_dim))
    index_k = REFERENCE.fp4_round_trip_e8m0(_bf16(rng, 2 * T, c.index_head_dim))
    return index_q, _bf16(rng, T, c.index_n_heads), index_k, 2 * T, 1


def _attention_inputs(c: AttnV41Cfg, T: int, rng: np.random.Generator) -> tuple[Any, ...]:
    n_rows = c.window + T
    idx = rng.integers(-1, n_rows, (T, c.window + c.index_topk)).astype(np.int32)
    return (
        _bf16(rng, T, c.n_heads, c.head_dim),
        _bf16(rng, c.window, c.head_dim),
        _bf16(rng, T, c.head_dim),
        idx,
        _f32(rng, c.n_heads),
        c.softmax_scale,
    )


STAGES = {
    "linear": Stage(ONE_STEP, lambda c, T, r: (_bf16(r, T, c.dim), _bf16(r, c.q_lora_rank, c.dim))),
    "linear_fp8": Stage(ONE_STEP, lambda c, T, r: (_bf16(r, T, c.dim), _fp8_weight(r, c.q_lora_rank, c.dim))),
    "linear_f32": Stage(NOISE, lambda c, T, r: (_bf16(r, T, c.dim), _f32(r, c.head_dim, c.dim))),
    "rmsnorm": Stage(ONE_STEP, lambda c, T, r: (_bf16(r, T, c.q_lora_rank), _f32(r, c.q_lora_rank), c.norm_eps)),
    "rmsnorm_f32": Stage(ONE_STEP, lambda c, T, r: (_f32(r, T, c.head_dim), _f32(r, c.head_dim), c.norm_eps)),
    "rope": Stage(BITS, _rope_inputs),
    "rope_inverse": Stage(BITS, _rope_inputs),
    "fp8_round_trip": Stage(BITS, lambda c, T, r: (_bf16(r, T, c.head_dim),)),
    "fp4_round_trip_e8m0": Stage(BITS, lambda c, T, r: (_bf16(r, T, c.index_n_heads, c.index_head_dim),)),
    "fp4_round_trip_e4m3": Stage(BITS, lambda c, T, r: (_bf16(r, T, c.head_dim),)),
    "pool": Stage(NOISE, _group_inputs),
    "store_partial": Stage(BITS, _group_inputs, in_place=2),
    "ring_write": Stage(BITS, lambda c, T, r: (_bf16(r, T, c.head_dim), _bf16(r, c.window, c.head_dim), 3), in_place=1),
    "index_weights": Stage(BITS, lambda c, T, r: (_bf16(r, T, c.index_n_heads), c.index_scale)),
    "index_score": Stage(BITS, _score_inputs),
    "sparse_attention": Stage(ONE_STEP, _attention_inputs),
    "grouped_linear": Stage(
        ONE_STEP,
        lambda c, T, r: (
            _bf16(r, T, c.n_heads, c.head_dim),
            _bf16(r, c.o_groups * c.o_lora_rank, c.n_heads // c.o_groups * c.head_dim),
            c.o_groups,
        ),
    ),
}


def placed(ops: Ops, argument: Any) -> Any:
    """A copy of an argument where an op table finds it."""
    if isinstance(argument, PackedRows):
        return argument.planes(lambda plane: ops.to_device(plane.copy()))
    if isinstance(argument, Fp8Weight):
        codes, scale = (ops.to_device(array.copy()) for array in (argument.codes, argument.scale))
        return Fp8Weight(codes, scale, argument.block)
    return ops.to_device(argument.copy()) if isinstance(argument, np.ndarray) else argument


def contract(name: str, ops: Ops = PLAIN) -> str:
    """The docstring of the file that a stage of an op table is written in."""
    return inspect.cleandoc(sys.modules[getattr(ops, name).__module__].__doc__ or "")


def run_stage(name: str, cfg: AttnV41Cfg, T: int, seed: int, ops: Ops = PLAIN) -> StageResult:
    """Run a stage's reference and the kernel of an op table on the same random inputs, T tokens."""
    stage = STAGES[name]
    inputs = stage.inputs(cfg, T, np.random.default_rng(seed))
    reference, kernel = (_output(table, name, stage, inputs) for table in (REFERENCE, ops))
    steps = steps_apart(stage.rule, kernel, reference)
    unit = {"bf16": "bf16 steps", "f32": f"units of {F32_NOISE:.1e} of the row's largest", "exact": "differing bits"}
    return StageResult(
        reference,
        kernel,
        int(steps.max(initial=0)),
        int(np.count_nonzero(steps)),
        unit[stage.rule.kind],
        stage.rule.steps,
    )


def _output(ops: Ops, name: str, stage: Stage, inputs: tuple[Any, ...]) -> np.ndarray:
    arguments = [placed(ops, argument) for argument in inputs]
    result = getattr(ops, name)(*arguments)
    return ops.to_host(arguments[stage.in_place] if stage.in_place is not None else result)
