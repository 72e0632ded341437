"""What the bench leaves behind: a file of results, written whole or not at all, and a table on the screen."""

import dataclasses
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
from collections.abc import Sequence
from typing import Any

from numba import cuda
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import dsv41_numba
from dsv41_numba.bench.ceilings import Ceilings
from dsv41_numba.bench.measure import LaunchCost, Row
from dsv41_numba.doctor.facts import gather

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
GPU_COLUMNS = ("floor", "of it", "torch", "vs", "original", "vs")
PACKAGES = ("numba", "numba-cuda", "numpy", "torch")


def original_ms(row: Row) -> float | None:
    """What the original's kernel took for this row; None where nobody measured it."""
    if row.kind in ("call", "host"):
        return None
    call = row.case.split()[0]
    return ORIGINAL_MS.get((row.op, row.case)) or ORIGINAL_MS.get((row.op, call))


def machine() -> dict[str, Any]:
    """What the numbers depend on: the GPU, its driver, the versions, the date."""
    facts, versions = gather(), dict[str, str | None](dsv41_numba=dsv41_numba.__version__)
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    found: dict[str, Any] = {
        "backend": facts.backend,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": versions,
    }
    if facts.backend == "gpu":
        total = cuda.current_context().get_memory_info()[1]
        device = cuda.get_current_device()
        name = device.name.decode() if isinstance(device.name, bytes) else str(device.name)
        found |= {
            "gpu": name,
            "capability": list(device.compute_capability),
            "multiprocessors": device.MULTIPROCESSOR_COUNT,
            "memory_bytes": int(total),
            "driver_cuda": list(facts.driver) if facts.driver else None,
            "driver": driver_version(),
            "toolkit_cuda": list(facts.toolkit) if facts.toolkit else None,
        }
    return found


def driver_version() -> str | None:
    """The driver's own version, where its kernel module says it or nvidia-smi's library does."""
    module = pathlib.Path("/sys/module/nvidia/version")
    try:
        return module.read_text().strip()
    except OSError:
        pass
    try:
        import ctypes

        nvml, text = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.create_string_buffer(96)
        nvml.nvmlInit_v2()
        nvml.nvmlSystemGetDriverVersion(text, len(text))
        return text.value.decode() or None
    except (OSError, AttributeError):
        return None


def as_json(
    rows: Sequence[Row], found: dict[str, Any], ceilings: Ceilings | None, launch: LaunchCost | None
) -> dict[str, Any]:
    """The results as they are kept. Times in milliseconds; `check` counts steps from the NumPy reference."""
    return {
        "machine": found,
        "ceilings": dataclasses.asdict(ceilings) if ceilings else None,
        "launch": dataclasses.asdict(launch) if launch else None,
        "original": ORIGINAL,
        "results": [_result(row, ceilings) for row in rows],
    }


def _result(row: Row, ceilings: Ceilings | None) -> dict[str, Any]:
    result: dict[str, Any] = {"ops": row.ops, "op": row.op, "case": row.case, "kind": row.kind}
    result |= dataclasses.asdict(row.time) if row.time else {"ms": None}
    result |= {"bytes": row.bytes, "flops": row.flops}
    if ceilings:
        result["floor_ms"] = ceilings.floor_ms(row.bytes, row.flops)
        result["torch"] = dataclasses.asdict(row.torch) if row.torch else None
        result["original_ms"] = original_ms(row)
    if row.verdict:
        result["check"] = dataclasses.asdict(row.verdict)
    return result


def write_json(path: str | pathlib.Path, results: dict[str, Any]) -> None:
    """Write the file, whole or not at all."""
    path = pathlib.Path(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(json.dumps(results, indent=1) + "\n")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def print_rows(
    rows: Sequence[Row], found: dict[str, Any], ceilings: Ceilings | None, launch: LaunchCost | None, console: Console
) -> None:
    """The machine, its ceilings, what a launch costs, and a row a case."""
    title = found.get("gpu") or f"{found['backend']}, compiled CPU code: these times say nothing about a GPU"
    console.print(f"{title}, {found['date']}", soft_wrap=True)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("op", "case"):
        table.add_column(name, no_wrap=True)
    for name in ("ms", "+-", *(GPU_COLUMNS if ceilings else ())):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        case = f"{row.case}, {row.kind}" if row.op.startswith("layer") else row.case
        table.add_row(row.op, case, *_cells(row, ceilings))
    console.print(table)
    if ceilings:
        rate = "not measured, since torch is not installed: floors count bytes only"
        if ceilings.matrix_tflops is not None:
            rate = f"{ceilings.matrix_tflops:.0f} TFLOP/s"
        console.print(f"ceilings: copy {ceilings.copy_gbs:.0f} GB/s (read plus written), bf16 matrix product {rate}")
        console.print(f"original: {ORIGINAL}; vs: how many times as fast as that, above 1 is faster", soft_wrap=True)
    if launch:
        console.print(
            f"launch: {launch.python_us:.1f} us of Python, {launch.device_us:.1f} us on the device (one block, nothing "
            f"to do); {launch.launcher_us:.1f} us of Python for a launcher, which checks and allocates",
            soft_wrap=True,
        )
    for row in rows:
        if not row.ok:
            console.print(f"[bold red]FAIL[/] not timed: {row.op}, {row.case}: {row.verdict}", soft_wrap=True)
    verdicts = [row.verdict for row in rows if row.verdict and row.ok]
    console.print(
        f"{len(verdicts)} rows checked against the NumPy references before they were timed: "
        f"{sum(verdict.elements for verdict in verdicts)} elements, at most "
        f"{max((verdict.worst for verdict in verdicts), default=0)} steps apart",
        soft_wrap=True,
    )


def _cells(row: Row, ceilings: Ceilings | None) -> list[str]:
    if row.time is None:
        return []
    ms = row.time.ms
    cells = [_ms(ms), f"{50 * (row.time.high_ms - row.time.low_ms) / ms:.0f} %"]
    if ceilings:
        floor, original = ceilings.floor_ms(row.bytes, row.flops), original_ms(row)
        cells += [_ms(floor), f"{100 * floor / ms:.0f} %"]
        for other in (row.torch.ms if row.torch else None, original):
            cells += [_ms(other), f"{other / ms:.2f}"] if other is not None else ["-", "-"]
    return cells


def _ms(ms: float) -> str:
    return f"{ms:#.3g}".rstrip(".") if ms >= 0.001 else f"{ms:.0e}"
