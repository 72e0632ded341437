"""Mistakes that readers make in the exercises: each must be caught by the check that is meant for it.

A module `chapterNN` beside this one has a table `MISTAKES` of its chapter's. A mistake does not copy the solution: it
says which passages of it are replaced.
"""

import importlib
import pathlib
import pkgutil
from dataclasses import dataclass

from dsv41_numba.exercise.spec import Exercise


@dataclass(frozen=True)
class Mistake:
    """A wrong way to solve an exercise.

    id         of the exercise: "04a"
    name       what is wrong, in some words
    changes    right passage of the solution -> wrong one; a right passage must be there exactly once
    caught_by  the first check that reports it: "error", "small", "full", "trap: ...", "races" or "budget"
    """

    id: str
    name: str
    changes: dict[str, str]
    caught_by: str

    def planted(self, solution: str) -> str:
        """The solution's text with the mistake in it."""
        for right, wrong in self.changes.items():
            count = solution.count(right)
            assert count == 1, f"{self.id}: expected this passage once, found it {count} times:\n{right}"
            solution = solution.replace(right, wrong)
        return solution


def mistakes() -> list[Mistake]:
    """Every chapter's mistakes."""
    names = sorted(module.name for module in pkgutil.iter_modules([str(pathlib.Path(__file__).parent)]))
    return [mistake for name in names for mistake in importlib.import_module(f"exercises.{name}").MISTAKES]


def file_with(mistake: Mistake, exercise: Exercise, solution: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """A reader's file with the mistake in it."""
    path = folder / f"{exercise.file}.py"
    path.write_text(mistake.planted(solution.read_text(encoding="utf-8")), encoding="utf-8")
    return path
