"""The bench's tables on the screen."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from dsv41_numba.bench.ceilings import Ceilings
from dsv41_numba.bench.ladder import CUBLAS, SOURCES
from dsv41_numba.bench.measure import Row
from dsv41_numba.bench.report import ORIGINAL, Report, original_ms, share_of_cublas, tflops

GPU_COLUMNS = ("floor", "of it", "torch", "vs", "original", "vs")


def show(report: Report, console: Console) -> None:
    """The machine, a row a case, the ladder, the means, the ceilings, what a launch costs, and what failed."""
    found, ceilings, launch = report.machine, report.ceilings, report.launch
    title = found.get("gpu") or f"{found['backend']}, compiled CPU code: these times say nothing about a GPU"
    console.print(f"{title}, {found['date']}", soft_wrap=True)
    if report.results:
        console.print(_results(report.results, ceilings))
    if report.ladder:
        console.print(_ladder(report.ladder))
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
    for stack in report.stacks:
        launches = f", {' or '.join(map(str, stack.launches))} launches in one graph" if stack.launches else ""
        console.print(
            f"{stack.what}: {stack.tokens_per_s:.0f} tokens/s{launches}, "
            f"{stack.memory_bytes / 1e9:.1f} GB on the device, {stack.cache_bytes / 1e9:.2f} GB of it caches",
            soft_wrap=True,
        )
    for mean in report.means:
        console.print(
            f"{mean.what}: {mean.geometric_mean:.3f} times as fast, the geometric mean of {mean.rows}; "
            f"lowest {mean.lowest:.3f}, {mean.lowest_at}",
            soft_wrap=True,
        )
    for row in report.rows:
        if not row.ok:
            name = " ".join(filter(None, [row.op, row.rung]))
            console.print(f"[bold red]FAIL[/] not timed: {name}, {row.case}: {row.verdict}", soft_wrap=True)
    verdicts = [row.verdict for row in report.rows if row.verdict and row.ok]
    console.print(
        f"{len(verdicts)} rows checked against the NumPy references before they were timed: "
        f"{sum(verdict.elements for verdict in verdicts)} elements, at most "
        f"{max((verdict.worst for verdict in verdicts), default=0)} steps apart; {report.seconds:.0f} s in all",
        soft_wrap=True,
    )


def _results(rows: Sequence[Row], ceilings: Ceilings | None) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("op", "case", *(("ops",) if ceilings else ())):
        table.add_column(name, no_wrap=True)
    for name in ("ms", "+-", *(GPU_COLUMNS if ceilings else ())):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        case = f"{row.case}, {row.kind}" if row.op.startswith(("layer", "stack")) else row.case
        ops = [f"{row.ops} {row.rung or ''}".rstrip()] if ceilings else []
        table.add_row(row.op, case, *ops, *_cells(row, ceilings))
    return table


def _cells(row: Row, ceilings: Ceilings | None) -> list[str]:
    if row.time is None:
        return []
    ms = row.time.ms
    cells = [_ms(ms), _spread(row)]
    if ceilings:
        floor, original = ceilings.floor_ms(row.bytes, row.flops), original_ms(row)
        cells += [_ms(floor), f"{100 * floor / ms:.0f} %"]
        for other in (row.torch.ms if row.torch else None, original):
            cells += [_ms(other), f"{other / ms:.2f}"] if other is not None else ["-", "-"]
    return cells


def _ladder(rows: Sequence[Row]) -> Table:
    size = rows[0].case
    table = Table(title=f"ladder: {size} x {size} x {size}", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("rung")
    for name in ("ms", "+-", "TFLOP/s", "of cuBLAS", "lines of code"):
        table.add_column(name, justify="right")
    for row in rows:
        rate, share = tflops(row), share_of_cublas(row)
        if row.time and rate is not None:
            lines = "" if row.rung == CUBLAS else str(SOURCES[row.rung or ""].lines)
            beside = "-" if share is None else f"{100 * share:.1f} %"
            table.add_row(row.rung, _ms(row.time.ms), _spread(row), f"{rate:.1f}", beside, lines)
    return table


def _spread(row: Row) -> str:
    assert row.time is not None
    return f"{50 * (row.time.high_ms - row.time.low_ms) / row.time.ms:.0f} %"


def _ms(ms: float) -> str:
    return f"{ms:#.3g}".rstrip(".") if ms >= 0.001 else f"{ms:.0e}"
