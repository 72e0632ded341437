"""Where solutions and exercises are: in a checkout's `tutorials`, or the solutions inside an installed package."""

import pathlib

from dsv41_numba.exercise.spec import Exercise

_PACKAGE = pathlib.Path(__file__).parent.parent
CHECKOUT = _PACKAGE.parent / "tutorials"


def solutions_dir() -> pathlib.Path:
    """The folder of the solutions. Raises FileNotFoundError when neither place has it."""
    for folder in (_PACKAGE / "solutions", CHECKOUT / "solutions"):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"expected solutions in {_PACKAGE / 'solutions'} or {CHECKOUT / 'solutions'}, got neither")


def solution_file(exercise: Exercise) -> pathlib.Path:
    """The file that an exercise is cut out of."""
    return solutions_dir() / f"{exercise.file}.py"


def exercises_dir() -> pathlib.Path:
    """The reader's folder, unless told otherwise: the checkout's, else `exercises` in the current folder."""
    in_checkout = CHECKOUT / "exercises"
    return in_checkout if in_checkout.is_dir() else pathlib.Path("exercises")


def shown(path: pathlib.Path) -> str:
    """A path as short as it can be typed from the current folder."""
    here = pathlib.Path.cwd()
    path = path.absolute()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
