"""How long kernels take, without the time that Python takes to launch them.

A launch from Python costs more than many kernels run, so launches are queued while the GPU waits in a kernel that
sleeps: when it wakes, it runs one after the other without a gap, and two events around them measure that. If queueing
took longer than the sleep, there were gaps, and the sample is taken again with a longer one. What is compared is
measured in turns, sample by sample, so that a change of the GPU's clocks meets all of it.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba import cuda, uint32

from dsv41_numba.runtime import backend

TARGET_MS = 5.0  # of a sample: as many launches as fit
MOST_LAUNCHES = 400  # of a sample; the queue holds about a thousand
MOST_CALLS = 50
SAMPLES = 20
FEWEST_SAMPLES = 3  # where they take long
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


@cuda.jit
def sleep_kernel(microseconds):
    """One thread sleeps: about 1 us a round."""
    for _ in range(microseconds):
        cuda.nanosleep(uint32(1000))


def device_time(calls: Sequence[Callable[[], Any]], launches_per_call: int = 1) -> Time:
    """The time of one of `calls` on the GPU, which take turns so that none finds its arrays in the cache."""
    (found,) = device_times([Candidate(calls, launches_per_call)])
    return found


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Calls of one of the things that are compared, each of about so many launches."""

    calls: Sequence[Callable[[], Any]]
    launches_per_call: int = 1


def device_times(candidates: Sequence[Candidate]) -> list[Time]:
    """`device_time` of each candidate, all in turns."""
    queues = [_Queue(candidate) for candidate in candidates]
    while unfinished := [queue for queue in queues if not queue.done]:
        for queue in unfinished:
            queue.samples.append(queue.sample(queue.times))
    return [Time.of(queue.samples, queue.times) for queue in queues]


class _Queue:
    """Takes samples of calls that take turns, `times` of them a sample."""

    def __init__(self, candidate: Candidate) -> None:
        self._calls, self._next, self._sleep_us = candidate.calls, 0, FIRST_SLEEP_US
        for call in self._calls[:2]:
            call()
        cuda.synchronize()
        first = [self.sample(1) for _ in range(2)]
        most = min(MOST_CALLS, MOST_LAUNCHES // candidate.launches_per_call)
        self.times = max(1, min(most, int(TARGET_MS / max(min(first), 1e-4))))
        self.samples: list[float] = first if self.times == 1 else []

    @property
    def done(self) -> bool:
        return enough(self.samples, sum(self.samples) * self.times, BUDGET_MS)

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
    """The time of a call by the host's clock, until the GPU, if there is one, is done.

    The first call warms up; of one that takes longer than the budget it is the only sample.
    """
    wait = cuda.synchronize if backend.current().name == "gpu" else lambda: None

    def sample() -> float:
        begin = time.perf_counter()
        call()
        wait()
        return 1e3 * (time.perf_counter() - begin)

    first = sample()
    if first > budget_ms:
        return Time.of([first], 1)
    samples: list[float] = []
    while not enough(samples, sum(samples), budget_ms):
        samples.append(sample())
    return Time.of(samples, 1)


def enough(samples: Sequence[float], taken_ms: float, budget_ms: float) -> bool:
    """Whether there are SAMPLES of them, or FEWEST_SAMPLES that used up the budget."""
    return len(samples) >= (SAMPLES if taken_ms < budget_ms else FEWEST_SAMPLES)
