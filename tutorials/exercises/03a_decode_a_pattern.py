"""Exercise 03a: decode a pattern.

bits [N] holds bf16 patterns as uint16. Make of each the float32 that it means: y [N] f32. A bf16 is the upper half of a
float32, so no arithmetic is needed. `word.view(np.float32)` reads a uint32's bits as a float32 inside a kernel.

The checks want the same bits, for every kind of number that there is.
"""

# Check it: dsv41 exercise 03a

import numpy as np
from numba import cuda, uint32

from dsv41_numba.runtime.backend import empty, launch, to_device, to_host

THREADS = 128


def spec(bits):
    return np.left_shift(bits, 16, dtype=np.uint32).view(np.float32)


@cuda.jit
def decode_kernel(bits, y):
    i = cuda.grid(1)
    if i < bits.shape[0]:
        # YOUR CODE: y[i] = the float32 whose upper half is bits[i] and whose lower half is 0
        #  a uint16 has no room to shift in, `uint32(bits[i])` has
        pass


def run(bits):
    y = empty(bits.shape, np.float32)
    launch(decode_kernel, -(-len(bits) // THREADS), THREADS, to_device(bits), y)
    return to_host(y)
