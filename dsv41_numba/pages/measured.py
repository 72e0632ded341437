"""Times and rates for pages, from data/measurements.json: never typed by hand, always with their origin."""

import functools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsv41_numba.data import data_dir

NOTHING = "-"
KINDS = {"host": "on the host", "call": "with Python's part", "kernels": ""}  # what a row is, if not one kernel


@functools.cache
def measurements() -> dict[str, Any]:
    """All of data/measurements.json."""
    found: dict[str, Any] = json.loads((data_dir() / "measurements.json").read_text(encoding="utf-8"))
    return found


def gpu() -> str:
    """The GPU that was measured: "NVIDIA H200"."""
    return str(measurements()["machine"]["gpu"])


def measured_on() -> str:
    """The day of the measurements: "2026-12-01"."""
    return str(measurements()["machine"]["date"])[:10]


def row(op: str, case: str, ops: str = "plain", kind: str | None = None) -> dict[str, Any]:
    """One measured row: op, case, ops, rung, kind, ms, low_ms, high_ms, samples, floor_ms, torch, original_ms, bytes,
    flops, check. Raises ValueError naming what was measured instead."""
    rows = [found for found in _rows(op) if found["ops"] == ops and kind in (None, found["kind"])]
    of_case = [found for found in rows if found["case"] == case]
    if not of_case:
        cases = ", ".join(dict.fromkeys(found["case"] for found in rows)) or "none of these ops and kind"
        raise ValueError(f"{op}, {ops}: expected one of the cases {cases}, got {case!r}")
    return of_case[0]


def ms(op: str, case: str, ops: str = "plain", kind: str | None = None) -> str:
    """One median time with its unit: "20.9 ms", "26.4 µs"."""
    return duration(row(op, case, ops, kind)["ms"])


def times_floor(op: str, case: str, ops: str = "plain") -> str:
    """How many times the floor an op takes: "98.6"."""
    found = row(op, case, ops)
    return significant(found["ms"] / found["floor_ms"])


def times_torch(op: str, case: str, ops: str = "plain") -> str:
    """How many times as long as torch's an op takes: "90.6"."""
    found = row(op, case, ops)
    if not found["torch"]:
        raise ValueError(f"{op}, {case}: torch was not measured for it")
    return significant(found["ms"] / found["torch"]["ms"])


def timings(op: str, cases: Sequence[str] = (), original: bool = False) -> str:
    """A table of an op's measured rows, all its cases or those that begin with one of `cases`.

    original  a column with what the original module's kernel took
    """
    rows = [found for found in _rows(op) if not cases or any(_is_case(found["case"], case) for case in cases)]
    if not rows:
        raise ValueError(f"{op}: expected cases among {', '.join(dict.fromkeys(r['case'] for r in _rows(op)))}")
    heads = ["case", "kernel", "median", "spread", "floor", "over floor", "torch"]
    heads += ["original's kernel"] if original else []
    lines = [f"| {' | '.join(heads)} |", f"|---|---|{'---:|' * (len(heads) - 2)}"]
    for found in rows:
        cells = [
            found["case"],
            _kernel(found),
            duration(found["ms"]),
            span(found["low_ms"], found["high_ms"]),
            duration(found["floor_ms"]),
            significant(found["ms"] / found["floor_ms"]),
            duration(found["torch"]["ms"]) if found["torch"] else NOTHING,
        ]
        if original:
            cells.append(duration(found["original_ms"]) if found["original_ms"] else NOTHING)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([f"**{op}**", "", *lines, "", origin()])


def origin() -> str:
    """Where times on a page come from, as a sentence."""
    ceilings = measurements()["ceilings"]
    return (
        f"Measured on one {gpu()}, {measured_on()}, each result checked first; spread is from the tenth to the "
        f"ninetieth percentile. Floor: what this GPU needs at least, at {significant(ceilings['copy_gbs'])} GB/s of a "
        f"copy and {significant(ceilings['matrix_tflops'])} TFLOP/s of its matrix product."
    )


def duration(milliseconds: float) -> str:
    """Three digits and a unit: "1.84 s", "20.9 ms", "26.4 µs"."""
    for size, unit in ((1e3, "s"), (1.0, "ms"), (1e-3, "µs")):
        if milliseconds >= 0.9995 * size:
            return f"{significant(milliseconds / size)} {unit}"
    return f"{significant(milliseconds / 1e-6)} ns"


def span(low_ms: float, high_ms: float) -> str:
    """From the 10th to the 90th percentile: "20.8 to 21.0 ms"."""
    low, high = duration(low_ms), duration(high_ms)
    same_unit = low.split()[1] == high.split()[1]
    return f"{low.split()[0] if same_unit else low} to {high}"


def significant(value: float, digits: int = 3) -> str:
    """A number with so many digits that count, without an exponent: "0.0123", "98.6", "4280"."""
    return np.format_float_positional(value, digits, unique=False, fractional=False, trim="k").rstrip(".")


def _rows(op: str) -> list[dict[str, Any]]:
    rows = [found for found in measurements()["results"] if found["op"] == op and found["ms"] is not None]
    if not rows:
        known = ", ".join(dict.fromkeys(found["op"] for found in measurements()["results"]))
        raise ValueError(f"op: expected one of {known}, got {op!r}")
    return rows


def _is_case(case: str, wanted: str) -> bool:
    return case == wanted or case.startswith(f"{wanted} ")


def _kernel(found: dict[str, Any]) -> str:
    name = found["ops"] if not found["rung"] else f"{found['ops']}: {found['rung']}"
    note = KINDS.get(found["kind"], "")
    return f"{name}, {note}" if note else str(name)
