"""Runs unmodified `@cuda.jit` kernels on the CPU, compiled: the machine for those who have no GPU.

    emulate(kernel)[grid, block](*args)

How a GPU's threads become something a CPU runs well, in reading order:

- `translate`: a thread becomes a generator, a barrier a yield, an index a checked access; with `expressions`, `calls`,
  `paste` (device functions), `state`, `scope` (what names mean) and `syntax`;
- `module`: the text of the translated kernel, arranged so that a suspended thread is small;
- `intrinsics`, `numeric`, `exchange`, `devicelib`: what the translated kernel calls, each a few instructions (`emit`);
- `native`, `cache`: Numba compiles it once; the machine code is kept on disk;
- `engine` (on `raw`): the scheduler, which resumes a block's threads from barrier to barrier, and the race check;
- `layout`: the memory that all of them share;
- `launch`: checks a launch, packs its arguments, splits its blocks over the cores;
- `report`, `errors`: what went wrong, with kernel, block, thread and line;
- `races`, `barriers`, `accesses`: tools for tests and exercises.
"""

from dsv41_numba.runtime.emulator.accesses import Accesses, count_accesses
from dsv41_numba.runtime.emulator.barriers import barrier_places, count_barriers, without_barrier
from dsv41_numba.runtime.emulator.errors import (
    DivergentBarrier,
    EmulatorError,
    OutOfBounds,
    Race,
    UninitialisedRead,
)
from dsv41_numba.runtime.emulator.launch import emulate
from dsv41_numba.runtime.emulator.races import race_check

__all__ = [
    "Accesses",
    "DivergentBarrier",
    "EmulatorError",
    "OutOfBounds",
    "Race",
    "UninitialisedRead",
    "barrier_places",
    "count_accesses",
    "count_barriers",
    "emulate",
    "race_check",
    "without_barrier",
]
