"""Take barriers out of a kernel, one at a time: a test that does so shows whether a missing one would be found."""

from dataclasses import dataclass
from typing import Any

from dsv41_numba.runtime.emulator.launch import emulate
from dsv41_numba.runtime.emulator.scope import python_function


@dataclass(frozen=True)
class WithoutBarrier:
    """A kernel that the emulator runs as if one `cuda.syncthreads()` were not there."""

    kernel: Any
    dropped_barrier: int

    @property
    def py_func(self) -> Any:
        """The kernel's Python function, unchanged."""
        return python_function(self.kernel)

    @property
    def __name__(self) -> str:
        return str(self.py_func.__name__)


def barrier_places(kernel: Any) -> list[tuple[str, int]]:
    """File and line of each `cuda.syncthreads()` of a kernel and its device functions, in the order of their first use.

    A barrier in a device function counts once, however often the function is called.
    """
    return [(file, line) for file, line, _ in emulate(kernel).translated.barriers]


def count_barriers(kernel: Any) -> int:
    """The number of `barrier_places`."""
    return len(barrier_places(kernel))


def without_barrier(kernel: Any, i: int) -> WithoutBarrier:
    """The kernel with barrier i of `barrier_places` removed, to be passed to `emulate` or `race_check`."""
    if not 0 <= i < count_barriers(kernel):
        raise ValueError(f"i: expected 0 to {count_barriers(kernel) - 1}, got {i}")
    return WithoutBarrier(kernel, i)
