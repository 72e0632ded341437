"""From a solution to its exercise: the parts between `# CUT` and `# END` are taken out.

::

    # CUT add up a row | leaves: return 0          # YOUR CODE: add up a row
    #  in order, from column 0                     #  in order, from column 0
    total = ...                           ->       return 0
    # END

The comment stays as the instruction, with the lines under it that begin with "#  ". What `leaves` gives takes the
code's place; without it nothing does, or `pass` where Python needs a statement.

    python -m dsv41_numba.exercise.skeleton           writes tutorials/exercises anew
    python -m dsv41_numba.exercise.skeleton --check   says which of its files are not what the solutions give
"""

import ast
import pathlib
import re
import sys

from dsv41_numba.exercise import exercises
from dsv41_numba.exercise.files import CHECKOUT, solution_file
from dsv41_numba.exercise.spec import Exercise

CUT = re.compile(r"^(?P<indent> *)# CUT (?P<instruction>.+?)(?: \| leaves: (?P<leaves>.+))?$")
HOLE = "# YOUR CODE: "
FILES = "[0-9][0-9][a-z]_*.py"  # names of exercises


def skeleton(solution: str, name: str = "solution") -> str:
    """The exercise's text. Raises ValueError naming the line when a CUT has no END or an END no CUT, or there is none.

    name: of the solution, for messages.
    """
    lines = solution.splitlines()
    out: list[str] = []
    fillers: list[int] = []  # where a `pass` stands that may not be needed
    start: int | None = None
    for number, line in enumerate(lines, 1):
        marker, cut = line.strip(), CUT.match(line)
        if marker.startswith("# CUT"):
            if start is not None or cut is None:
                raise ValueError(f"{name}:{number}: expected `# CUT instruction`, not inside another, got {marker!r}")
            start = number
            out.append(f"{cut['indent']}{HOLE}{cut['instruction']}")
            filler = cut["indent"] + (cut["leaves"] or "pass")
            heading = True
        elif marker == "# END":
            if start is None:
                raise ValueError(f"{name}:{number}: expected a `# CUT` before `# END`")
            start = None
            out.append(filler)
            if filler.strip() == "pass":
                fillers.append(len(out) - 1)
        elif start is None or (heading and marker.startswith("#  ")):
            out.append(line)
        else:
            heading = False
    if start is not None:
        raise ValueError(f"{name}:{start}: expected `# END` after `# CUT`")
    if not any(line.strip().startswith(HOLE) for line in out):
        raise ValueError(f"{name}: expected a part between `# CUT` and `# END`")
    for at in reversed(fillers):
        without = out[:at] + out[at + 1 :]
        if _has_bodies("\n".join(without)):
            out = without
    return "\n".join(out) + "\n"


def _has_bodies(text: str) -> bool:
    """Whether Python accepts a text, and no function in it is a docstring alone."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return False
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    return not any(len(f.body) == 1 and isinstance(f.body[0], ast.Expr) for f in functions)


def exercise_text(exercise: Exercise) -> str:
    """What the reader starts with: the skeleton of the solution, with the command that checks it."""
    path = solution_file(exercise)
    text = skeleton(path.read_text(encoding="utf-8"), path.name)
    documented = ast.parse(text).body[0]
    lines = text.splitlines()
    lines[documented.end_lineno : documented.end_lineno] = ["", f"# Check it: dsv41 exercise {exercise.id}"]
    return "\n".join(lines) + "\n"


def write_all(folder: pathlib.Path, overwrite: bool) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
    """Write every exercise into a folder: the files written, and those kept because they were there before."""
    folder.mkdir(parents=True, exist_ok=True)
    written, kept = [], []
    for exercise in exercises().values():
        path = folder / f"{exercise.file}.py"
        if path.exists() and not overwrite:
            kept.append(path)
            continue
        path.write_text(exercise_text(exercise), encoding="utf-8")
        written.append(path)
    return written, kept


def stale(folder: pathlib.Path) -> list[str]:
    """What is wrong with a folder of untouched exercises: files that differ, are missing, or belong to no exercise."""
    expected = {f"{e.file}.py": exercise_text(e) for e in exercises().values()}
    got = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob(FILES))}
    differ = [
        f"{name}: not what its solution gives" for name in expected if name in got and got[name] != expected[name]
    ]
    missing = [f"{name}: missing" for name in expected if name not in got]
    return differ + missing + [f"{name}: no such exercise" for name in got if name not in expected]


def main(arguments: list[str]) -> int:
    """Write or, with --check, compare the checkout's exercises; the exit code."""
    folder = CHECKOUT / "exercises"
    if not folder.parent.is_dir():
        print(f"expected a checkout with {folder.parent}, got none", file=sys.stderr)
        return 2
    if arguments == ["--check"]:
        problems = stale(folder)
        print("\n".join(problems) or f"{len(exercises())} exercises are what their solutions give")
        return 1 if problems else 0
    if arguments:
        print(f"expected no argument or --check, got {' '.join(arguments)}", file=sys.stderr)
        return 2
    for path in folder.glob(FILES):
        if path.stem not in {e.file for e in exercises().values()}:
            path.unlink()
    written, _ = write_all(folder, overwrite=True)
    print(f"{len(written)} exercises in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
