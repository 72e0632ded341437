"""Judge a reader's file: one outcome a check, in a fixed order, up to the first that fails.

1. not started  the file's code is the untouched exercise
2. error        it cannot be imported, or `run` stops on the small input
3. small        a result that can be followed by hand
4. full         odd sizes and signed random numbers
5. trap: ...    one input for each usual mistake
6. races        two threads touch one number and no barrier is between (on the full inputs)
7. budget       reads and writes of global memory against the solution's (on the first full input)

The specification is always the solution file's own, whatever the reader's file says. An error of `run` on a larger
input is that check's failure. On a GPU the last two are left out.
"""

import ast
import contextlib
import copy
import dataclasses
import inspect
import pathlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from dsv41_numba.compare import bf16_array
from dsv41_numba.exercise.difference import Comparison, as_arrays, compare, holds
from dsv41_numba.exercise.files import solution_file
from dsv41_numba.exercise.load import Trouble, load, trouble
from dsv41_numba.exercise.skeleton import exercise_text
from dsv41_numba.exercise.spec import Draw, Exercise
from dsv41_numba.runtime import backend
from dsv41_numba.runtime.emulator import Accesses, count_accesses, emulate

SMALL_SHOWN = 8  # numbers
WRITTEN_OUT = 32  # numbers of an array of the inputs, at most
OTHER_POISON = 0xAA  # to tell a number that is not written from one that happens to be 0xFF...


@dataclass(frozen=True)
class Outcome:
    """The outcome of one check. `name` is as in the list above; `detail` one line on what was checked or is wrong."""

    name: str
    ok: bool
    detail: str = ""
    trouble: Trouble | None = None
    comparison: Comparison | None = None
    inputs: tuple[str, ...] = ()  # written out, where they are small
    note: str = ""


def inputs_of(exercise: Exercise, draw: Draw, what: str) -> tuple[Any, ...]:
    """The arguments that a draw gives: the same in every run, different for each exercise and check."""
    return tuple(draw(np.random.default_rng(zlib.crc32(f"{exercise.id} {what}".encode()))))


def is_started(exercise: Exercise, path: pathlib.Path) -> bool:
    """Whether a file has other code than the untouched exercise; comments and layout do not count."""
    untouched, text = exercise_text(exercise), path.read_text(encoding="utf-8")
    try:
        return ast.dump(ast.parse(text)) != ast.dump(ast.parse(untouched))
    except SyntaxError:
        return text != untouched


def check(exercise: Exercise, path: pathlib.Path, gpu: bool = False) -> Iterator[Outcome]:
    """The outcomes of a file's checks, each as soon as it is known. The last one is the only one that may have failed.

    gpu: run on the GPU that `runtime.backend` finds, and not on the emulator.
    """
    if not is_started(exercise, path):
        yield Outcome("not started", False, "the file is as it was given")
        return
    machine = backend.poisoned(backend.current()) if gpu else backend.emulator("exercises run on it")
    judge = _Judge(exercise, path, machine)
    with backend.using(machine):
        for step in (judge.load, judge.small, judge.full, *judge.traps(), judge.races, judge.budget):
            outcome = step()
            if outcome is not None:
                yield outcome
                if not outcome.ok:
                    return


class _Judge:
    """The checks of one file. Each gives its outcome, or None when it does not apply."""

    def __init__(self, exercise: Exercise, path: pathlib.Path, machine: backend.Backend) -> None:
        self.exercise, self.path, self.machine = exercise, path, machine
        self.solution = load(solution_file(exercise), exercise.id)
        self.theirs = ModuleType("not imported yet")

    def load(self) -> Outcome | None:
        try:
            self.theirs = load(self.path, self.exercise.id)
            if not callable(getattr(self.theirs, "run", None)):
                raise NameError("run is not defined")
        except (Exception, SystemExit) as error:
            return Outcome("error", False, trouble=trouble(error, self.path))
        return None

    def small(self) -> Outcome:
        inputs = inputs_of(self.exercise, self.exercise.small, "small")
        outcome = self.compared("small", inputs, SMALL_SHOWN)
        return dataclasses.replace(outcome, name="error", detail="") if outcome.trouble else outcome

    def full(self) -> Outcome:
        details = []
        for inputs in self.full_inputs():
            outcome = self.compared("full", inputs)
            details.append(outcome.detail)
            if not outcome.ok:
                return outcome
        return Outcome("full", True, "; ".join(details))

    def traps(self) -> list[Callable[[], Outcome]]:
        def one(k: int) -> Callable[[], Outcome]:
            trap = self.exercise.traps[k]
            return lambda: self.compared(f"trap: {trap.mistake}", inputs_of(self.exercise, trap.inputs, f"trap {k}"))

        return [one(k) for k in range(len(self.exercise.traps))]

    def races(self) -> Outcome | None:
        if not self.watches():
            return None
        launched: set[str] = set()
        for inputs in self.full_inputs():
            race = self.race(inputs, launched)
            if race:
                return Outcome("races", False, trouble=race)
        missing = [name for name in self.exercise.kernels if name not in launched]
        if missing:
            return Outcome("races", False, f"run never launches {', '.join(missing)}")
        return Outcome("races", True, "none: every access is ordered by a barrier")

    def budget(self) -> Outcome | None:
        if not self.watches():
            return None
        inputs = self.full_inputs()[0]
        try:
            yours, limit = self.accesses(self.theirs, inputs), self.accesses(self.solution, inputs)
        except (Exception, SystemExit) as error:
            return Outcome("budget", False, trouble=trouble(error, self.path))
        over = [
            kind
            for kind in ("reads", "writes")
            if _cost(yours, kind) > _cost(limit, kind)  # first of all threads, then of the busiest one
        ]
        return Outcome("budget", not over, spent(yours, limit), note=f"too many {' and '.join(over)}" if over else "")

    # -- what the checks are made of ----------------------------------------------------------------------------------
    def watches(self) -> bool:
        return bool(self.exercise.kernels) and self.machine.name == "emulator"

    def full_inputs(self) -> list[tuple[Any, ...]]:
        return [inputs_of(self.exercise, draw, f"full {k}") for k, draw in enumerate(self.exercise.full)]

    def compared(self, name: str, inputs: tuple[Any, ...], show: int = 0) -> Outcome:
        """Run on copies of the inputs and compare with the specification."""
        detail = self.sizes(inputs)
        expected = self.solution.spec(*copy.deepcopy(inputs))
        try:
            yours = self.theirs.run(*copy.deepcopy(inputs))
        except (Exception, SystemExit) as error:
            return Outcome(name, False, detail, trouble=self.explained(error, inputs))
        comparison = compare(yours, expected, self.exercise.steps, self.unwritten(yours, inputs), show)
        # a race shows as wrong numbers too; to name it says more
        race = self.race(inputs, set()) if self.watches() and not comparison.ok else None
        note = f"the race check says why: {race.message}" if race and race.is_race else ""
        written_out = self.written_out(inputs) if show and not comparison.ok else ()
        return Outcome(name, comparison.ok, detail, comparison=comparison, inputs=written_out, note=note)

    def explained(self, error: BaseException, inputs: tuple[Any, ...]) -> Trouble:
        """Where and what an error of `run` was. Numba's CUDA compiler names no line of the kernel, but the emulator
        does, if it refuses the same."""
        if self.machine.name != "emulator" and type(error).__module__.startswith("numba"):
            try:
                with backend.using(backend.emulator("it names lines")):
                    self.theirs.run(*copy.deepcopy(inputs))
            except (Exception, SystemExit) as again:
                error = again
        return trouble(error, self.path)

    def unwritten(self, yours: Any, inputs: tuple[Any, ...]) -> list[np.ndarray] | None:
        """Which elements of a result were never written: those that are as `empty` made them, whatever that is."""
        results = as_arrays(yours)
        if not all(isinstance(r, np.ndarray) for r in results):
            return None
        as_left = holds(results, backend.POISON)
        if not any(mask.any() for mask in as_left):
            return None
        with backend.using(backend.poisoned(self.machine, OTHER_POISON)):
            again = holds(as_arrays(self.theirs.run(*copy.deepcopy(inputs))), OTHER_POISON)
        return [a & b for a, b in zip(as_left, again)]

    def race(self, inputs: tuple[Any, ...], launched: set[str]) -> Trouble | None:
        """What the race check finds in the exercise's kernels; adds to `launched` the names of those that ran."""

        def launch(kernel: Any, grid: Any, block: Any, *args: Any) -> None:
            launched.add(name_of(kernel))
            emulate(kernel, racecheck=name_of(kernel) in self.exercise.kernels)[grid, block](*args)

        try:
            with self.launching(launch):
                self.theirs.run(*copy.deepcopy(inputs))
        except (Exception, SystemExit) as error:
            return trouble(error, self.path)
        return None

    def accesses(self, module: ModuleType, inputs: tuple[Any, ...]) -> Accesses:
        """Reads and writes of the exercise's kernels: the sum over launches, of one thread the most."""
        counted: list[Accesses] = []

        def launch(kernel: Any, grid: Any, block: Any, *args: Any) -> None:
            if name_of(kernel) in self.exercise.kernels:
                counted.append(count_accesses(kernel, grid, block, args))
            else:
                emulate(kernel)[grid, block](*args)

        with self.launching(launch):
            module.run(*copy.deepcopy(inputs))
        return Accesses(
            sum(c.reads for c in counted),
            sum(c.writes for c in counted),
            max((c.thread_reads for c in counted), default=0),
            max((c.thread_writes for c in counted), default=0),
        )

    def sizes(self, inputs: tuple[Any, ...]) -> str:
        """The inputs by name, arrays with their shapes: "x [33, 17], start_pos 5"."""
        named = zip(inspect.signature(self.solution.spec).parameters, inputs)
        return ", ".join(f"{name} {list(v.shape) if isinstance(v, np.ndarray) else v}" for name, v in named)

    def written_out(self, inputs: tuple[Any, ...]) -> tuple[str, ...]:
        """Every small array of the inputs with its numbers: "x = [[1, -2], [0, 3]]"."""
        named = zip(inspect.signature(self.solution.spec).parameters, inputs)
        arrays = [(name, a) for name, a in named if isinstance(a, np.ndarray) and a.size <= WRITTEN_OUT]
        values = [(name, bf16_array(a).astype(np.float32) if a.dtype == np.uint16 else a) for name, a in arrays]
        return tuple(f"{name} = {literal(a.tolist())}" for name, a in values)

    def launching(self, launch: Callable[..., None]) -> contextlib.AbstractContextManager[None]:
        return backend.using(dataclasses.replace(self.machine, launch=launch))


def name_of(kernel: Any) -> str:
    """The name of a kernel's Python function."""
    return str(getattr(kernel, "py_func", kernel).__name__)


def literal(value: Any) -> str:
    """Nested lists of numbers as one would type them: "[[1, -0.5], [0, 3]]"."""
    return f"[{', '.join(map(literal, value))}]" if isinstance(value, list) else f"{value:g}"


def spent(yours: Accesses, limit: Accesses) -> str:
    """What was read and written, and how much the solution does, in one line."""
    text = (
        f"a thread reads at most {yours.thread_reads} numbers and writes {yours.thread_writes}, "
        f"all threads {yours.reads} and {yours.writes}"
    )
    if yours == limit:
        return f"{text}, as in the solution"
    return (
        f"{text}; in the solution {limit.thread_reads} and {limit.thread_writes}, "
        f"all threads {limit.reads} and {limit.writes}"
    )


def _cost(accesses: Accesses, kind: str) -> tuple[int, int]:
    """Of two ways with the same accesses in all, the one whose busiest thread has fewer is cheaper."""
    return getattr(accesses, kind), getattr(accesses, f"thread_{kind}")
