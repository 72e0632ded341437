"""The linear ladder: the tuned linears beside torch, and every rung at one large size.

Only on GPUs of compute capability 8.0 and up: below it the rungs are the emulator's business.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from numba import cuda

from dsv41_numba.bench import torch_ops
from dsv41_numba.bench.cases import Case
from dsv41_numba.bench.inputs import Draw
from dsv41_numba.bench.lines import file_lines
from dsv41_numba.bench.measure import Row, measure_op
from dsv41_numba.bench.timing import Candidate, captured_launches, device_times
from dsv41_numba.bench.verify import Verdict, verify_rows
from dsv41_numba.ops import PLAIN
from dsv41_numba.runtime import backend
from dsv41_numba.tuned import TUNED
from dsv41_numba.tuned.linear import Choice, picked, rung

LADDER = "ladder"  # the op of its rows
SIZE = 8192  # M, N and K
CUBLAS = "cublas"
# The linears that the tuned ones are compared by: those that take nearly all the time of a layer's linears.
COMPARED = ("linear wq_a", "linear wq_b", "linear wkv", "grouped_linear wo_a", "linear wo_b")


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


def capability() -> tuple[int, int]:
    """That of the GPU."""
    major, minor = cuda.get_current_device().compute_capability
    return major, minor


def has_ladder() -> bool:
    """Whether this machine has tensor cores that the tuned linears use."""
    return backend.current().name == "gpu" and capability() >= (8, 0)


def rungs() -> tuple[str, ...]:
    """The rungs that this GPU can run, from the lowest to the highest."""
    return tuple(name for name in SOURCES if name != "wgmma" or capability() == (9, 0))


def measure_tuned(case: Case, draw: Draw, with_torch: bool) -> list[Row]:
    """`measure_op` with the tuned table, checked by whole rows; says which rung was picked."""
    choices: list[Choice] = []

    def check(stage: str, arguments: tuple[Any, ...], result: Any, before: Any) -> Verdict:
        x, weight, *groups = arguments
        x_rows, y_rows = (array.reshape(x.shape[0], array.size // x.shape[0]) for array in (x, result))
        choices.append(picked(x_rows, weight, groups[0] if groups else 1, y_rows))
        return verify_rows(stage, arguments, result)

    rows = measure_op(case, TUNED, draw, True, with_torch, check)
    return [dataclasses.replace(row, rung=choices[0].rung) for row in rows]


def measure_ladder(draw: Draw, with_torch: bool, size: int = SIZE) -> list[Row]:
    """Every rung at size^3 on the same numbers, checked by whole rows and timed in turns with cuBLAS."""
    x, weight = draw.bf16(size, size), draw.bf16(size, size, scale=size**-0.5)
    rows, candidates = [], []
    for name in rungs():
        y = draw.bf16(size, size)  # numbers to write over: what a rung leaves out is not what another one wrote
        with captured_launches() as launches:
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
