"""Kernel launches as things: noted while a launcher makes them, to be run again or captured into a CUDA graph."""

import dataclasses
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dsv41_numba.runtime import backend
from dsv41_numba.tuned import cluster_launch


@dataclasses.dataclass(frozen=True)
class Launch:
    """One launch of a Numba kernel, which can be run again: no checks, no allocation, the same arrays."""

    kernel: Any
    grid: Any
    block: Any
    args: tuple[Any, ...]

    @functools.cached_property
    def _configured(self) -> Any:
        return self.kernel[self.grid, self.block]

    def __call__(self) -> None:
        self._configured(*self.args)

    def capture(self, builder: Any) -> None:
        """Put the launch into the graph that a `cuda.core` graph builder is building; the kernel is compiled."""
        self.kernel[self.grid, self.block, builder](*self.args)


@contextmanager
def recorded_launches(run: bool = True) -> Iterator[list[Any]]:
    """While the block runs, every kernel launch goes into the list, a `Launch` or one of `cluster_launch`; without
    `run` it does nothing else."""
    machine, launches = backend.current(), list[Any]()

    def note(kernel: Any, grid: Any, block: Any, *args: Any) -> None:
        launches.append(Launch(kernel, grid, block, args))
        if run:
            machine.launch(kernel, grid, block, *args)

    def note_prepared(prepared: cluster_launch.Launch) -> None:
        launches.append(prepared)
        if run:
            launch_prepared(prepared)

    launch_prepared = cluster_launch.Launch.__call__
    cluster_launch.Launch.__call__ = note_prepared  # type: ignore[method-assign, assignment]
    try:
        with backend.using(dataclasses.replace(machine, launch=note)):
            yield launches
    finally:
        cluster_launch.Launch.__call__ = launch_prepared  # type: ignore[method-assign, assignment]
