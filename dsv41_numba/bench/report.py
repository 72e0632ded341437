"""What the bench leaves behind: a file of results, written whole or not at all, and means over them."""

import dataclasses
import functools
import json
import math
import os
import pathlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dsv41_numba.bench.ceilings import Ceilings
from dsv41_numba.bench.ladder import COMPARED, CUBLAS, LADDER, SHARED, SOURCES
from dsv41_numba.bench.lines import file_lines
from dsv41_numba.bench.measure import LaunchCost, Row
from dsv41_numba.bench.stacks import Stack
from dsv41_numba.ops import PLAIN
from dsv41_numba.tuned import TUNED

# The original module's kernels, measured on one H200 in one run, milliseconds. Its linears are those of its dense_gemm.
# "decode": the same at every context.
ORIGINAL_MS: dict[tuple[str, str], float] = {
    ("linear wq_a", "prefill 2048"): 5.77,
    ("linear wq_b", "prefill 2048"): 35.6,
    ("linear wkv", "prefill 2048"): 2.39,
    ("grouped_linear wo_a", "prefill 2048"): 29.3,
    ("linear wo_b", "prefill 2048"): 36.1,
    ("linear_f32 compressor", "prefill 2048"): 1.97,
    ("sparse_attention", "prefill 2048"): 89.3,
    ("index_score", "prefill 2048"): 3.36,
    ("rope q", "prefill 2048"): 0.083,
    ("fp4_round_trip_e8m0 index_q", "prefill 2048"): 0.067,
    ("rmsnorm q", "prefill 2048"): 0.013,
    ("layer REUSE", "prefill 2048"): 198.8,
    ("linear wq_b", "decode"): 0.030,
    ("grouped_linear wo_a", "decode"): 0.056,
    ("linear wo_b", "decode"): 0.026,
    ("sparse_attention", "decode"): 0.30,
    ("index_score", "decode 131072"): 0.123,
    ("layer REUSE", "decode"): 0.55,
}
ORIGINAL = "the original module's kernels, one H200"
DIGITS = 5  # of a number in the file: more than two runs agree in


def original_ms(row: Row) -> float | None:
    """What the original's kernel took for this row; None where nobody measured it."""
    if row.kind in ("call", "host"):
        return None
    call = row.case.split()[0]
    return ORIGINAL_MS.get((row.op, row.case)) or ORIGINAL_MS.get((row.op, call))


@dataclass(frozen=True)
class Mean:
    """How many times as fast as something else: over several rows, and the slowest of them."""

    what: str
    rows: int
    geometric_mean: float
    lowest: float
    lowest_at: str

    @classmethod
    def of(cls, what: str, ratios: Iterable[tuple[float, str]]) -> list["Mean"]:
        """One mean of (ratio, which row); none of nothing."""
        found = list(ratios)
        if not found:
            return []
        lowest, at = min(found)
        mean = math.exp(sum(math.log(ratio) for ratio, _ in found) / len(found))
        return [cls(what, len(found), mean, lowest, at)]


@dataclass(frozen=True)
class Report:
    """Everything that one run measured, and how long it took."""

    rows: Sequence[Row]
    machine: dict[str, Any]
    ceilings: Ceilings | None
    launch: LaunchCost | None
    seconds: float
    stacks: Sequence[Stack] = ()

    @property
    def results(self) -> list[Row]:
        """Every row but the ladder's."""
        return [row for row in self.rows if row.op != LADDER]

    @property
    def ladder(self) -> list[Row]:
        return [row for row in self.rows if row.op == LADDER]

    @functools.cached_property
    def means(self) -> list[Mean]:
        """The tuned linears beside torch, case by case, and the plain kernels beside the original's."""
        found = []
        tuned = [row for row in self.results if row.ops == TUNED.name and row.op in COMPARED]
        for case in dict.fromkeys(row.case for row in tuned):
            of_case = [row for row in tuned if row.case == case]
            ratios = [(row.torch.ms / row.time.ms, row.op) for row in of_case if row.torch and row.time]
            found += Mean.of(f"tuned linears, {case}, beside torch", ratios)
        beside = []
        for row in self.results:
            original = original_ms(row)
            if row.ops == PLAIN.name and row.kind == "kernel" and row.time and original is not None:
                beside.append((original / row.time.ms, f"{row.op}, {row.case}"))
        return found + Mean.of("plain kernels beside the original's", beside)

    def as_json(self) -> dict[str, Any]:
        """The results as they are kept. Times in milliseconds; `check` counts steps from the NumPy reference."""
        return {
            "machine": self.machine,
            "seconds": self.seconds,
            "ceilings": dataclasses.asdict(self.ceilings) if self.ceilings else None,
            "launch": dataclasses.asdict(self.launch) if self.launch else None,
            "stacks": [dataclasses.asdict(stack) for stack in self.stacks],
            "original": ORIGINAL,
            "means": [dataclasses.asdict(mean) for mean in self.means],
            "ladder": [self._rung(row) for row in self.ladder],
            "ladder_shared_lines": {name: file_lines(name) for name in SHARED},
            "results": [self._result(row) for row in self.results],
        }

    def _result(self, row: Row) -> dict[str, Any]:
        result = {"op": row.op, "case": row.case, "ops": row.ops, "rung": row.rung, "kind": row.kind, **_time(row)}
        if self.ceilings:
            result["floor_ms"] = self.ceilings.floor_ms(row.bytes, row.flops)
            result["torch"] = dataclasses.asdict(row.torch) if row.torch else None
            result["original_ms"] = original_ms(row)
        return result | {"bytes": row.bytes, "flops": row.flops, "check": _check(row)}

    def _rung(self, row: Row) -> dict[str, Any]:
        source = None if row.rung == CUBLAS else SOURCES[row.rung or ""]
        return {
            "rung": row.rung,
            "size": int(row.case),
            **_time(row),
            "tflops": tflops(row),
            "share_of_cublas": share_of_cublas(row),
            "lines": source.lines if source else None,
            "files": list(source.files) if source else [],
            "check": _check(row),
        }


def tflops(row: Row) -> float | None:
    """10^12 operations a second; None where nothing was timed."""
    return row.flops / (1e9 * row.time.ms) if row.time else None


def share_of_cublas(row: Row) -> float | None:
    """The speed of a rung over cuBLAS' in the same turns."""
    return row.torch.ms / row.time.ms if row.torch and row.time else None


def _time(row: Row) -> dict[str, Any]:
    return dataclasses.asdict(row.time) if row.time else {"ms": None}


def _check(row: Row) -> dict[str, Any] | None:
    return dataclasses.asdict(row.verdict) if row.verdict else None


def write_json(path: str | pathlib.Path, results: dict[str, Any]) -> None:
    """Write the file, whole or not at all; every entry of a list on a line of its own."""
    path = pathlib.Path(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(_as_text(results), encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _as_text(results: dict[str, Any]) -> str:
    entries = []
    for key, value in results.items():
        text = json.dumps(_rounded(value))
        if isinstance(value, list) and value:
            text = "[\n" + ",\n".join(f"  {json.dumps(_rounded(row))}" for row in value) + "\n ]"
        entries.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(entries) + "\n}\n"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    return [_rounded(entry) for entry in value] if isinstance(value, list) else value
