"""What an exercise is made of, and where its files are.

The solution `tutorials/solutions/<file>.py` is the source: a docstring that says the task, `spec` (NumPy), the kernels
or host functions with the part to write between `# CUT` and `# END`, and `run`. The exercise
`tutorials/exercises/<file>.py` is the same file with that part cut out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LEVELS = {"A": "fill one to three lines", "B": "write a body", "C": "beat the plain kernel's budget"}

Inputs = tuple[Any, ...]  # the arguments of `spec` and `run`: host arrays and numbers
Draw = Callable[[np.random.Generator], Inputs]


@dataclass(frozen=True)
class Trap:
    """An input that the usual mistake fails. `mistake` names it: "high nibble first", "tie away from zero"."""

    mistake: str
    inputs: Draw


@dataclass(frozen=True)
class Exercise:
    """One exercise. `spec(*inputs)` and `run(*inputs)` return one array, or a tuple of arrays.

    id       chapter and letter: "04a"
    file     its name in tutorials/solutions and tutorials/exercises, without .py: "04a_load_the_b_tile"
    title    the task in some words
    level    one of `LEVELS`
    small    some 8 numbers that can be followed by hand
    full     odd sizes, signed and different on every axis
    hints    three, each saying more than the one before
    steps    how far an element of `run` may be from `spec`: steps of bf16 for uint16 arrays, of the format for float32;
             0 means the same bits
    kernels  the file's kernels whose races and budget are checked; none for a host function
    """

    id: str
    file: str
    title: str
    level: str
    small: Draw
    full: Sequence[Draw]
    hints: tuple[str, str, str]
    traps: tuple[Trap, ...] = ()
    steps: int = 0
    kernels: tuple[str, ...] = ()

    @property
    def chapter(self) -> int:
        return int(self.id[:2])
