"""How often a kernel goes to global memory: the reads and writes of its array arguments, counted."""

from dataclasses import dataclass
from typing import Any

from dsv41_numba.runtime.emulator import layout as at
from dsv41_numba.runtime.emulator.launch import emulate


@dataclass(frozen=True)
class Accesses:
    """Elements of array arguments that one launch reads and writes: all its threads together, and the busiest one.

    Shared and local memory do not count. An atomic operation is one read and one write.
    """

    reads: int
    writes: int
    thread_reads: int
    thread_writes: int


def count_accesses(kernel: Any, grid: Any, block: Any, args: tuple[Any, ...], **options: Any) -> Accesses:
    """Launch on `args`, as `emulate(kernel, **options)[grid, block](*args)` does, and count."""
    emulated = emulate(kernel, count=True, **options)
    emulated[grid, block](*args)
    counts = emulated.counts
    reads = counts[:, at.READ] + counts[:, at.ATOMIC] // 2
    writes = counts[:, at.WRITE] + counts[:, at.ATOMIC] // 2
    return Accesses(int(reads.sum()), int(writes.sum()), int(reads.max()), int(writes.max()))
