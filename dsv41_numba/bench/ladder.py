"""The tuned stages beside torch or held to the host's, and every rung of the linears at one large size.

Only on GPUs of compute capability 8.0 and up: below it the rungs are the emulator's business.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv41_numba.bench import torch_ops
from dsv41_numba.bench.cases import Case
from dsv41_numba.bench.inputs import Draw
from dsv41_numba.bench.lines import file_lines
from dsv41_numba.bench.measure import Row, measure_op, random_scores, together
from dsv41_numba.bench.timing import Candidate, device_time, device_times
from dsv41_numba.bench.verify import Verdict, same_as_plain, verify, verify_attention, verify_rows
from dsv41_numba.config import AttnV41Cfg
from dsv41_numba.formats.bf16 import as_bf16
from dsv41_numba.ops import PLAIN
from dsv41_numba.ops import topk as host_topk
from dsv41_numba.runtime import backend
from dsv41_numba.tuned import TUNED, linear_fp8, sparse_attention, topk
from dsv41_numba.tuned.linear import Choice, picked, rung
from dsv41_numba.tuned.operands import capability
from dsv41_numba.tuned.recorded import recorded_launches

LADDER = "ladder"  # the op of its rows
SIZE = 8192  # M, N and K
CUBLAS = "cublas"
# The linears that the tuned ones are compared by: those that take nearly all the time of a layer's linears.
COMPARED = ("linear wq_a", "linear wq_b", "linear wkv", "grouped_linear wo_a", "linear wo_b")
TUNED_OPS = (
    *(*COMPARED, "sparse_attention", "linear_f32 compressor", "index_score"),
    *("linear_fp8 wq_b", "linear_fp8 wo_b", "sparse_attention packed", "index_score packed"),
)


@dataclass(frozen=True)
class Source:
    """Where a rung is written: files of the package, or functions of the first."""

    files: tuple[str, ...]
    functions: tuple[str, ...] = ()

    @property
    def lines(self) -> int:
        return sum(file_lines(name, self.functions) for name in self.files)


SOURCES = {
    # of the plain file what a product of this size needs: not its reference, nor its f32 and its few-token kernel
    "plain": Source(
        ("ops/linear.py",), ("dot_in_tile", "add_tile", "total", "linear_kernel", "linear", "_checked_output")
    ),
    "fma": Source(("tuned/linear_fma.py",)),
    "mma": Source(("tuned/linear_mma.py",)),
    "wgmma": Source(("tuned/linear_wgmma.py", "tuned/cluster_launch.py")),
}
SHARED = ("tuned/operands.py", "tuned/ptx.py")  # by several rungs


def has_ladder() -> bool:
    """Whether this machine has tensor cores that the tuned linears use."""
    return capability() >= (8, 0)


def rungs() -> tuple[str, ...]:
    """The rungs that this GPU can run, from the lowest to the highest."""
    return tuple(name for name in SOURCES if name != "wgmma" or capability() == (9, 0))


def measure_tuned(case: Case, draw: Draw, with_torch: bool) -> list[Row]:
    """`measure_op` with the tuned table, linears checked by whole rows; says which rung was picked."""
    choices: list[Choice] = []

    def check(stage: str, arguments: tuple[Any, ...], result: Any, before: Any) -> Verdict:
        if stage == "sparse_attention":
            choices.append(sparse_attention.picked(*arguments))
            return verify_attention(stage, arguments, result)
        if stage == "linear_fp8":
            choices.append(linear_fp8.picked(*arguments))
        if stage not in ("linear", "grouped_linear"):
            return verify(stage, arguments, result)
        x, weight, *groups = arguments
        x_rows, y_rows = (array.reshape(x.shape[0], array.size // x.shape[0]) for array in (x, result))
        choices.append(picked(x_rows, weight, groups[0] if groups else 1, y_rows))
        return verify_rows(stage, arguments, result)

    rows = measure_op(case, TUNED, draw, True, with_torch, check)
    return [dataclasses.replace(row, rung=choices[0].rung if choices else None) for row in rows]


def measure_fused(case: Case, draw: Draw) -> list[Row]:
    """A stage that the layer calls as one: the plain kernels one after the other, and one pass with the same bits."""

    def check(stage: str, arguments: tuple[Any, ...], result: Any, before: Any) -> Verdict:
        return same_as_plain(stage, arguments, result)

    plain, fused = (measure_op(case, ops, draw, True, False, check)[0] for ops in (PLAIN, TUNED))
    return [dataclasses.replace(plain, verdict=None), fused]  # the first is what the second is held to


def measure_selection(cfg: AttnV41Cfg, name: str, T: int, pos: int, draw: Draw) -> list[Row]:
    """The selection and the candidate blocks on the device, from the scores of a ratio-1 layer, held to the host's.

    "select" on float32 scores, of which no two are equal; "select ties" on the same rounded to bf16, as index scores
    are, where nearly every cut lies in a tie; the candidate blocks on these too.
    """
    _, scores = random_scores(T, pos, draw)
    rounded = as_bf16(scores).astype(np.float32)
    lens = (pos + 1 + np.arange(T)).astype(np.int32)
    blocks = cfg.candidate_topk_blocks, cfg.candidate_block_size
    k = min(cfg.index_topk, pos + T)
    return [
        _held_to_host("select", name, topk.select, host_topk.select, (scores, k), 4 * scores.size + 4 * T * k),
        _held_to_host("select ties", name, topk.select, host_topk.select, (rounded, k), 4 * scores.size + 4 * T * k),
        _held_to_host(
            "candidate_blocks",
            name,
            topk.candidate_blocks,
            host_topk.candidate_blocks,
            (rounded, lens, *blocks),
            5 * scores.size,
        ),
    ]


def _held_to_host(
    op: str, name: str, stage: Callable[..., Any], host: Callable[..., Any], arguments: tuple[Any, ...], bytes_: int
) -> Row:
    with recorded_launches() as launches:
        result = stage(*(backend.to_device(a) if isinstance(a, np.ndarray) else a for a in arguments))
    expected = host(*arguments)
    differ = int(np.count_nonzero(backend.to_host(result) != expected))
    row = Row(TUNED.name, op, name, "kernel", None, bytes_, 0, Verdict(op, expected.size, differ, 0))
    if not row.ok:
        return row
    return dataclasses.replace(row, time=device_time([together(launches)], len(launches)))


def measure_ladder(draw: Draw, with_torch: bool, size: int = SIZE) -> list[Row]:
    """Every rung at size^3 on the same numbers, checked by whole rows and timed in turns with cuBLAS."""
    x, weight = draw.bf16(size, size), draw.bf16(size, size, scale=size**-0.5)
    rows, candidates = [], []
    for name in rungs():
        y = draw.bf16(size, size)  # numbers to write over: what a rung leaves out is not what another one wrote
        with recorded_launches() as launches:
            if name == "plain":
                y = PLAIN.linear(x, weight)
            else:
                rung(name)(x, weight, 1, y)
        verdict = verify_rows("linear", (x, weight), y)
        rows.append(_row(name, size, verdict))
        candidates.append(Candidate(launches))
    beside = torch_ops.beside("linear", (x, weight), draw.bf16(size, size)) if with_torch else None
    if beside:
        rows.append(_row(CUBLAS, size))
        candidates.append(Candidate([beside]))
    right = [i for i, row in enumerate(rows) if row.ok]
    times = device_times([candidates[i] for i in right])
    cublas = times[-1] if beside else None
    for i, found in zip(right, times, strict=True):
        rows[i] = dataclasses.replace(rows[i], time=found, torch=cublas)
    return rows


def _row(name: str, size: int, verdict: Verdict | None = None) -> Row:
    table = {"plain": PLAIN.name, CUBLAS: "torch"}.get(name, TUNED.name)
    return Row(table, LADDER, str(size), "kernel", None, 6 * size**2, 2 * size**3, verdict, rung=name)
