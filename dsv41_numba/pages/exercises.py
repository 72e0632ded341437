"""Exercises on pages: the task, the code with its hole, hints and the solution as folds, and a table of all."""

import ast
import inspect

from dsv41_numba.exercise import exercises as known_exercises
from dsv41_numba.exercise.files import solution_file
from dsv41_numba.exercise.skeleton import HOLE, exercise_text
from dsv41_numba.exercise.spec import LEVELS
from dsv41_numba.pages.execute import TUTORIALS
from dsv41_numba.pages.listing import cut, last_line
from dsv41_numba.pages.markdown import as_markdown, fenced

CUT, END = "# CUT ", "# END"
HINTS = ("A hint", "Another hint", "The last hint")


def exercise(id: str) -> str:
    """One exercise: `exercise("04a")`. Raises ValueError for an id that does not exist."""
    return exercise_block(id, "sh")


def exercise_block(id: str, check: str) -> str:
    """One exercise; `check` is what stands behind the fence of the command that checks it."""
    known = known_exercises()
    if id not in known:
        raise ValueError(f"exercise: expected one of {', '.join(known) or 'none yet'}, got {id!r}")
    entry = known[id]
    task, solution = exercise_text(entry), solution_file(entry).read_text(encoding="utf-8")
    name = f"{entry.file}.py"
    parts = [
        f"### Exercise {id}: {entry.title} {{ #exercise-{id} }}",
        "",
        as_markdown(about(task)),
        "",
        f"Level {entry.level}: {LEVELS[entry.level]}. The file is [`tutorials/exercises/{name}`](exercises/{name}).",
        "",
        fenced(cut(task, *functions_with(task, HOLE)), f'python title="tutorials/exercises/{name}"'),
        fenced(f"dsv41 exercise {id}", check),
    ]
    for title, hint in zip(HINTS, entry.hints):
        parts.append(_fold(title, as_markdown(hint)))
    answer = without_marks(cut(solution, *functions_with(solution, CUT)))
    parts.append(_fold("The solution", fenced(answer, f'python title="tutorials/solutions/{name}"')))
    return "\n".join(parts)


def exercises(chapter: int | None = None) -> str:
    """A table of all exercises, or of one chapter's."""
    lines = ["| exercise | what to do | level |", "|---|---|---|"]
    for id, entry in known_exercises().items():
        if chapter in (None, entry.chapter):
            lines.append(f"| [{id}]({page(entry.chapter)}#exercise-{id}) | {entry.title} | {entry.level} |")
    return "\n".join(lines)


def page(chapter: int) -> str:
    """The page of a chapter: "04-matrix-product.md"."""
    pages = sorted(TUTORIALS.glob(f"{chapter:02}-*.md"))
    if len(pages) != 1:
        raise ValueError(f"chapter {chapter}: expected one page, got {len(pages)}")
    return pages[0].name


def about(text: str) -> str:
    """The task as a file's docstring says it, without its title."""
    return inspect.cleandoc(ast.get_docstring(ast.parse(text), clean=False) or "").partition("\n")[2].strip()


def functions_with(text: str, mark: str) -> list[str]:
    """The functions of a file that have a line which begins so. Raises ValueError when none has."""
    lines = text.splitlines()
    marked = [number for number, line in enumerate(lines, 1) if line.strip().startswith(mark)]
    names = [
        node.name
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and any(node.lineno <= at <= last_line(lines, node) for at in marked)
    ]
    if not names:
        raise ValueError(f"expected a function with a line {mark!r}")
    return names


def without_marks(text: str) -> str:
    """A solution's text without the lines that mark the part to cut out."""
    kept: list[str] = []
    in_instruction = False
    for line in text.splitlines():
        bare = line.strip()
        in_instruction = bare.startswith(CUT) or (in_instruction and bare.startswith("#  "))
        if not in_instruction and not bare.startswith(END):
            kept.append(line)
    return "\n".join(kept) + "\n"


def _fold(title: str, text: str) -> str:
    inside = "\n".join(f"    {line}".rstrip() for line in text.strip().splitlines())
    return f'??? note "{title}"\n\n{inside}\n'
