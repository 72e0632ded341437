"""What `dsv41 exercise` prints: one line a check, a table of the small result, and where the first failure is."""

import pathlib
from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dsv41_numba.exercise.checks import Outcome
from dsv41_numba.exercise.difference import Comparison, Number
from dsv41_numba.exercise.files import shown
from dsv41_numba.exercise.load import Trouble
from dsv41_numba.exercise.spec import LEVELS, Exercise

COLOURS = {"solved": "green", "started": "yellow"}
INDENT = 10  # of everything that belongs to a check's line


def print_exercise(exercise: Exercise, path: pathlib.Path, outcomes: Iterable[Outcome], console: Console) -> bool:
    """Print the outcomes of one file as they come. Whether all checks passed."""
    console.print(f"[bold]{exercise.id}  {escape(exercise.title)}[/], level {exercise.level}: {LEVELS[exercise.level]}")
    console.print(f"[dim]{escape(shown(path))}[/]", soft_wrap=True)
    console.print()
    solved = True
    for outcome in outcomes:
        solved = solved and outcome.ok
        if outcome.name == "not started":
            console.print(f"  [yellow]not started[/]: {outcome.detail}; write your code at `# YOUR CODE`")
        else:
            _print_outcome(outcome, console)
    return solved


def print_list(rows: list[tuple[Exercise, str]], folder: pathlib.Path, console: Console) -> None:
    """Every exercise with its state."""
    table = Table(title=f"exercises in {escape(shown(folder))}", title_justify="left", box=SIMPLE_HEAD, show_edge=False)
    for column in ("id", "title", "level", "state"):
        table.add_column(column)
    for i, (exercise, state) in enumerate(rows):
        last = i + 1 == len(rows) or rows[i + 1][0].chapter != exercise.chapter
        shown_state = f"[{COLOURS.get(state, 'dim')}]{state}[/]"
        table.add_row(exercise.id, escape(exercise.title), exercise.level, shown_state, end_section=last)
    console.print(table)
    console.print("level " + ", ".join(f"{level}: {meaning}" for level, meaning in LEVELS.items()))


def describe(found: Comparison) -> list[str]:
    """In lines, what a comparison found wrong."""
    first = found.first
    if found.problem or first is None:
        return [found.problem]
    expected = f"expected {first.expected} {first.expected_bits}"
    if first.is_written:
        away = "" if first.apart is None else f", {first.apart} steps apart"
        line = f"result{first.index}: yours {first.yours} {first.yours_bits}, {expected}{away}"
    else:
        line = f"result{first.index}: never written, {expected}"
    unwritten = f", {found.never_written} of them never written" if found.never_written else ""
    return [line, f"{found.wrong} of {found.total} numbers are wrong{unwritten}"]


def _print_outcome(outcome: Outcome, console: Console) -> None:
    verdict = "[green]ok  [/]" if outcome.ok else "[bold red]FAIL[/]"
    name, _, mistake = outcome.name.partition(": ")
    detail = ": ".join(part for part in (mistake, outcome.detail) if part)
    console.print(f"  {name:<{INDENT - 2}}{verdict}  {escape(detail)}".rstrip(), soft_wrap=True)
    if outcome.trouble:
        _print_trouble(outcome.trouble, console)
    if outcome.comparison and not outcome.ok:
        for line in describe(outcome.comparison):
            console.print(_inset(Text(line)))
    if outcome.note:
        console.print(_inset(Text(outcome.note, "yellow")))
    if outcome.comparison and outcome.comparison.shown:
        console.print(_inset(_numbers(outcome.comparison.shown)))
        for line in outcome.inputs:
            console.print(_inset(Text(line)))
        if outcome.ok:
            console.print()


def _print_trouble(trouble: Trouble, console: Console) -> None:
    console.print(_inset(Text(trouble.message)))
    if trouble.line:
        console.print(_inset(Text(f"line {trouble.line}:  {trouble.source}", "bold")))


def _inset(what: RenderableType) -> Padding:
    return Padding(what, (0, 0, 0, INDENT), expand=False)


def _numbers(rows: tuple[Number, ...]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("index")
    for column in ("yours", "bits", "expected", "bits", "steps apart"):
        table.add_column(column, justify="right")
    table.add_column("")
    for n in rows:
        away = str(n.apart) if n.is_written and n.apart is not None else ""
        verdict = "[bold red]wrong[/]" if n.is_wrong else "[green]ok[/]"
        yours = n.yours if n.is_written else "never written"
        table.add_row(n.index.strip(), yours, n.yours_bits, n.expected, n.expected_bits, away, verdict)
    return table
