"""What the commands print: tables of roles, of a check and of a stage, and the progress bar. Words for the eye only."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from dsv41_numba.check import Report, Tally, worst_number
from dsv41_numba.config import AttnV41Cfg
from dsv41_numba.ops import Ops
from dsv41_numba.recording import Recording
from dsv41_numba.roles import LayerRole, roles
from dsv41_numba.rules import RULES, Rule
from dsv41_numba.stages import StageResult


@contextmanager
def progress(console: Console, label: str) -> Iterator[Callable[[float], None]]:
    """A bar on `console` while the block runs; the function it gives takes the share that is done, 0 to 1."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task(label, total=1.0)
        yield lambda share: bar.update(task, completed=share)


def reads(role: LayerRole) -> str:
    """What a layer takes from which other layer."""
    parts = []
    if role.kv_source not in (None, role.layer):
        parts.append(f"rows{', keys' * role.is_index_source} {role.kv_source}")
    if role.index_source not in (None, role.layer):
        parts.append(f"selection {role.index_source}")
    if role.obeys_candidates is not None:
        parts.append(f"mask {role.obeys_candidates}")
    return ", ".join(parts) or "-"


def publishes(role: LayerRole) -> str:
    """What a layer hands to later ones."""
    parts = ["rows", "keys"] * role.is_kv_source
    parts += ["selection"] * role.is_index_source + ["mask"] * role.publishes_candidates
    return ", ".join(parts) or "-"


def layer_table(title: str, *more: str) -> Table:
    """An empty table of layers: the columns that every such table begins with, then `more`, right-aligned."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("layer", justify="right")
    table.add_column("role")
    table.add_column("ratio", justify="right")
    table.add_column("reads", no_wrap=True)
    table.add_column("publishes", no_wrap=True)
    for name in more:
        table.add_column(name, justify="right")
    return table


def layer_cells(role: LayerRole) -> tuple[str, ...]:
    """The first cells of a layer's row in `layer_table`."""
    return str(role.layer), role.kind, str(role.ratio), reads(role), publishes(role)


def print_roles(cfg: AttnV41Cfg, console: Console) -> None:
    """The map of a geometry: one row a layer."""
    table = layer_table("what each layer makes, reads and publishes (ratio: tokens a compressed position)")
    all_roles = roles(cfg)
    for role in all_roles:
        table.add_row(*layer_cells(role), end_section=role.layer + 1 in cfg.kv_sources)
    console.print(table)
    kinds = [role.kind for role in all_roles]
    console.print(", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)))


def print_check(result: Report, recording: Recording, ops: str, console: Console) -> int:
    """Both judgements of a check, one row a stage, then the mismatches and a line that sums up; the exit code."""
    table = Table(title=f"{recording.path.name}, {ops} ops", title_justify="left", box=SIMPLE_HEAD)
    for name in ("stage", "elements", "differ", "worst, allowed", "", "elements", "rel. L2, allowed", "flips", ""):
        table.add_column(name, justify="left" if name in ("stage", "") else "right")
    for stage, rule in RULES.items():
        alone, chained = result.alone.get(stage), result.chained.get(stage)
        if alone or chained:
            table.add_row(stage, *_alone_cells(alone, rule), *_chained_cells(chained, rule))
    console.print(table)
    console.print("left: each stage alone, from recorded inputs; right: the whole chain, from the recorded x")
    tallies = list(result.alone.values())
    not_judged = sum(tally.not_judged for tally in tallies)
    if not_judged:
        console.print(f"{not_judged} captures not judged alone: their inputs are not recorded")
    if recording.unknown:
        console.print(f"not compared, no such stage: {', '.join(recording.unknown)}", soft_wrap=True)
    if result.skipped_layers:
        console.print(f"layers not replayed, because a source's input is not recorded: {result.skipped_layers}")
    mismatches = result.mismatches()
    for judgement, mismatch in mismatches:
        console.print(f"[bold red]mismatch[/] {judgement}: {mismatch}", soft_wrap=True)
    judged = [tally for tally in tallies if tally.elements]
    worst = worst_number(judged)
    at = f"{worst.worst} ({worst.stage}, {worst.worst_at})" if worst else "0"
    console.print(
        f"{'FAIL' if mismatches else 'ok'}: {len(judged)} stages, {sum(tally.elements for tally in judged)} elements "
        f"compared, worst bf16 steps {at}, {sum(tally.flips for tally in tallies)} codes flipped alone, "
        f"{sum(tally.rows_differ for tally in result.chained.values())} selections differ chained",
        soft_wrap=True,
    )
    return 1 if mismatches else 0


def print_picks(ops: Ops, console: Console) -> None:
    """Which rungs the tuned linears and the tuned sparse attention took, and why; nothing for the other op tables."""
    if ops.name != "tuned":
        return
    from dsv41_numba.tuned import linear, linear_fp8, sparse_attention

    for what, picked in (
        ("linears", linear.PICKED),
        ("fp8 linears", linear_fp8.PICKED),
        ("sparse attention", sparse_attention.PICKED),
    ):
        for (rung, reason), count in picked.most_common():
            console.print(f"tuned {what}: {count} by {rung}, because {reason}", soft_wrap=True)


def _alone_cells(tally: Tally | None, rule: Rule) -> tuple[str, ...]:
    if tally is None or not tally.elements:
        return "-", "-", "-", "not judged" if tally and tally.not_judged else ""
    unit = {"bf16": "steps", "f32": "units", "codes": "codes"}.get(rule.kind, "")
    allowed = f"{1 if rule.kind == 'codes' else rule.steps} {unit}" if unit else "exact"
    return str(tally.elements), str(tally.differ), f"{tally.worst}, {allowed}", _verdict(tally)


def _chained_cells(tally: Tally | None, rule: Rule) -> tuple[str, ...]:
    if tally is None or not tally.elements:
        return "-", "-", "-", ""
    if rule.kind == "selection":
        return str(tally.elements), f"{tally.rows_differ} rows differ", "-", _verdict(tally)
    flips = str(tally.flips) if rule.kind == "codes" else "-"
    return str(tally.elements), f"{tally.relative_l2:.4%}, {tally.allowed_l2:.1%}", flips, _verdict(tally)


def _verdict(tally: Tally) -> str:
    return "[bold red]FAIL[/]" if tally.mismatch else "[green]ok[/]"


def print_stage(name: str, contract: str, result: StageResult, console: Console) -> None:
    """A stage's contract, and how its kernel compares with its reference."""
    console.print(contract, markup=False)
    console.print()
    table = Table(title=f"{name}: kernel against reference", title_justify="left", box=SIMPLE_HEAD)
    for column in ("output", "elements", "differ", "worst", "allowed", ""):
        table.add_column(column)
    table.add_row(
        f"{result.kernel.dtype} {list(result.kernel.shape)}",
        str(result.kernel.size),
        str(result.differ),
        f"{result.worst_steps} {result.unit}",
        str(result.limit),
        "[green]ok[/]" if result.ok else "[bold red]FAIL[/]",
    )
    console.print(table)
