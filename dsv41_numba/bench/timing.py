"""How long kernels take, without the time that Python takes to launch them.

A launch from Python costs more than many kernels run, so launches are queued while the GPU waits in a kernel that
sleeps: when it wakes, it runs one after the other without a gap, and two events around them measure that. If queueing
took longer than the sleep, there were gaps, and the sample is taken again with a longer one.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numba import cuda, uint32

from dsv41_numba.runtime import backend

TARGET_MS = 2.0  # of a sample: as many launches as fit
MOST_LAUNCHES = 400  # of a sample; the queue holds about a thousand
MOST_CALLS = 50
SAMPLES = 20
FEWEST_SAMPLES = 5  # where they take long
BUDGET_MS = 400.0  # of all samples together, once there are FEWEST_SAMPLES
FIRST_SLEEP_US = 500
LONGEST_SLEEP_US = 64_000


@dataclasses.dataclass(frozen=True)
class Time:
    """Milliseconds of one call: median, 10th and 90th percentile of the samples, and how they were taken."""

    ms: float
    low_ms: float
    high_ms: float
    samples: int
    calls_per_sample: int

    @classmethod
    def of(cls, samples: Sequence[float], calls: int) -> "Time":
        low, median, high = np.percentile(samples, [10, 50, 90])
        return cls(float(median), float(low), float(high), len(samples), calls)


@dataclasses.dataclass(frozen=True)
class Launch:
    """One captured launch, which can be run again: no checks, no allocation, the same arrays."""

    kernel: Any
    grid: Any
    block: Any
    args: tuple[Any, ...]

    @functools.cached_property
    def _configured(self) -> Any:
        return self.kernel[self.grid, self.block]

    def __call__(self) -> None:
        self._configured(*self.args)


@contextmanager
def captured_launches() -> Iterator[list[Launch]]:
    """While the block runs, every kernel launch also goes into the list."""
    machine, launches = backend.current(), []

    def run(kernel: Any, grid: Any, block: Any, *args: Any) -> None:
        launches.append(Launch(kernel, grid, block, args))
        machine.launch(kernel, grid, block, *args)

    current, recorder = backend.current, dataclasses.replace(machine, launch=run)
    backend.current = lambda: recorder  # type: ignore[assignment]
    try:
        yield launches
    finally:
        backend.current = current


@cuda.jit
def sleep_kernel(microseconds):
    """One thread sleeps: about 1 us a round."""
    for _ in range(microseconds):
        cuda.nanosleep(uint32(1000))


def device_time(calls: Sequence[Callable[[], Any]], launches_per_call: int = 1) -> Time:
    """The time of one of `calls` on the GPU, which take turns so that none finds its arrays in the cache."""
    for call in calls[:2]:
        call()
    cuda.synchronize()
    queue = _Queue(calls)
    first_ms = min(queue.sample(1), queue.sample(1))
    most = min(MOST_CALLS, MOST_LAUNCHES // launches_per_call)
    times = max(1, min(most, int(TARGET_MS / max(first_ms, 1e-4))))
    samples: list[float] = []
    while len(samples) < SAMPLES and (sum(samples) * times < BUDGET_MS or len(samples) < FEWEST_SAMPLES):
        samples.append(queue.sample(times))
    return Time.of(samples, times)


class _Queue:
    """Takes samples of calls that take turns."""

    def __init__(self, calls: Sequence[Callable[[], Any]]) -> None:
        self._calls, self._next, self._sleep_us = calls, 0, FIRST_SLEEP_US

    def sample(self, times: int) -> float:
        """Milliseconds a call, over so many of them."""
        while True:
            asleep, start, stop = cuda.event(), cuda.event(), cuda.event()
            begin = time.perf_counter()
            asleep.record()
            sleep_kernel[1, 1](self._sleep_us)
            start.record()
            for _ in range(times):
                self._calls[self._next % len(self._calls)]()
                self._next += 1
            queueing_ms = 1e3 * (time.perf_counter() - begin)
            stop.record()
            stop.synchronize()
            slept_ms = cuda.event_elapsed_time(asleep, start)
            if queueing_ms < slept_ms or self._sleep_us >= LONGEST_SLEEP_US:
                return float(cuda.event_elapsed_time(start, stop)) / times
            self._sleep_us *= 2


def host_time(call: Callable[[], Any], budget_ms: float = BUDGET_MS) -> Time:
    """The time of a call by the host's clock, until the GPU, if there is one, is done."""
    wait = cuda.synchronize if backend.current().name == "gpu" else lambda: None
    call()
    wait()
    samples: list[float] = []
    while len(samples) < SAMPLES and (sum(samples) < budget_ms or len(samples) < FEWEST_SAMPLES - 2):
        begin = time.perf_counter()
        call()
        wait()
        samples.append(1e3 * (time.perf_counter() - begin))
    return Time.of(samples, 1)
