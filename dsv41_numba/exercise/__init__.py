"""Exercises: parts of the package's kernels to write oneself, checked on the emulator or on a GPU.

In reading order: `spec` says what an exercise is made of, `files` where its files are, `skeleton` cuts the exercise out
of the solution; `load` imports a reader's file, `difference` compares arrays, `checks` judges, `report` prints and
`command` is `dsv41 exercise`. Each module `chapterNN` beside this one has the table `EXERCISES` of its chapter.
"""

import functools
import importlib
import pkgutil

from dsv41_numba.exercise.spec import Exercise


def chapters() -> list[int]:
    """The chapters that have exercises."""
    names = [m.name for m in pkgutil.iter_modules(__path__)]
    return sorted(int(name.removeprefix("chapter")) for name in names if name.startswith("chapter"))


@functools.cache
def of_chapter(chapter: int) -> dict[str, Exercise]:
    """A chapter's exercises by their ids. Raises ValueError for an id of another chapter or one given twice."""
    found: dict[str, Exercise] = {}
    for exercise in importlib.import_module(f"{__name__}.chapter{chapter:02}").EXERCISES:
        if exercise.id in found or exercise.chapter != chapter:
            raise ValueError(f"chapter {chapter}: expected ids of its own, each once, got {exercise.id!r}")
        found[exercise.id] = exercise
    return dict(sorted(found.items()))


def exercises() -> dict[str, Exercise]:
    """Every exercise by its id, in order."""
    return {name: exercise for chapter in chapters() for name, exercise in of_chapter(chapter).items()}


def find(which: str) -> list[Exercise]:
    """The exercise of an id such as "04a", or all of a chapter: "04" or "4". Raises ValueError when there is none."""
    digits = which.rstrip("abcdefghijklmnopqrstuvwxyz")
    if digits.isdecimal() and int(digits) in chapters():
        found = [e for e in of_chapter(int(digits)).values() if which in (e.id, digits)]
        if found:
            return found
    raise ValueError(f"ID: expected a chapter or one of {', '.join(exercises())}, got {which!r}")
