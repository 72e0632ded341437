"""Kernel launches as things: noted while a launcher makes them, to be run again or made into a CUDA graph."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from numba import cuda

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


def graph_of(launches: Sequence[Any]) -> Any:
    """These launches, one after the other, as one CUDA graph: `graph.launch(stream)`, a stream of `cuda.core`.

    Their kernels have run before: nothing may be compiled while a graph is built. What the launches hold must live as
    long as the graph.
    """
    from cuda.core import Device

    device = Device(cuda.get_current_device().id)
    device.set_current()
    builder = device.create_stream().create_graph_builder()
    builder.begin_building()
    for one in launches:
        one.capture(builder)
    return builder.end_building().complete()


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
