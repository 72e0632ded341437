"""Random inputs made where the kernels run: gigabytes of them in milliseconds, never zeros, which can run faster.

The numbers are about standard normal: the sum of the four bytes of a hash of (seed, index), centred and scaled.
"""

from typing import Any

import numpy as np
from numba import cuda, float32, uint32

from dsv41_numba.formats.bf16 import encode_bf16
from dsv41_numba.runtime.backend import empty, launch

THREADS = 256
BLOCKS = 4096  # at most: each thread makes several numbers of a large array
MEAN = 510.0  # of the sum of four bytes
DEVIATION = 147.8


@cuda.jit(device=True)
def noise(seed, i):
    """About a standard normal float32. `i` may pass 2^32: both halves are hashed."""
    h = uint32(uint32(i & 0xFFFFFFFF) ^ uint32(uint32(i >> 32) * uint32(0x9E3779B9)))
    h = uint32(h ^ uint32(seed * uint32(0x85EBCA6B)))
    for _ in range(2):
        h = uint32(uint32(h ^ (h >> uint32(16))) * uint32(0x7FEB352D))
        h = uint32(uint32(h ^ (h >> uint32(15))) * uint32(0x846CA68B))
    h = uint32(h ^ (h >> uint32(16)))
    low, high = h & uint32(0x00FF00FF), (h >> uint32(8)) & uint32(0x00FF00FF)  # two bytes each
    total = (low & uint32(0xFFFF)) + (low >> uint32(16)) + (high & uint32(0xFFFF)) + (high >> uint32(16))
    return (float32(total) - float32(MEAN)) / float32(DEVIATION)


@cuda.jit
def noise_bf16_kernel(seed, scale, y):
    for i in range(cuda.grid(1), y.shape[0], cuda.gridsize(1)):
        y[i] = encode_bf16(noise(seed, i) * scale)


@cuda.jit
def noise_f32_kernel(seed, scale, y):
    for i in range(cuda.grid(1), y.shape[0], cuda.gridsize(1)):
        y[i] = noise(seed, i) * scale


class Draw:
    """Makes device arrays, each of numbers of its own: the same ones for the same seed and order of calls."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed << 16

    def bf16(self, *shape: int, scale: float = 1.0) -> Any:
        """A device array of `shape`, bf16 bits, deviation `scale`."""
        return self._fill(noise_bf16_kernel, np.uint16, shape, scale)

    def f32(self, *shape: int, scale: float = 1.0) -> Any:
        """A device array of `shape`, f32, deviation `scale`."""
        return self._fill(noise_f32_kernel, np.float32, shape, scale)

    def _fill(self, kernel: Any, dtype: Any, shape: tuple[int, ...], scale: float) -> Any:
        self._seed += 1
        array, size = empty(shape, dtype), int(np.prod(shape, dtype=np.int64))
        if size > 0:
            blocks = min(-(-size // THREADS), BLOCKS)
            launch(kernel, blocks, THREADS, np.uint32(self._seed), np.float32(scale), array.reshape(size))
        return array
