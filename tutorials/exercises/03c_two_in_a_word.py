"""Exercise 03c: two in a word.

Multiply bf16 numbers by a scale. Memory is read in words of 32 bits, so this kernel's x and y are words: each holds two
bf16 patterns, the first in its low half. A thread that takes one word reads once and writes once for two numbers.

y = bf16(x * scale), x and y [N] bf16 bits, N even, scale a float32. The checks count reads and writes.
"""

# Check it: dsv41 exercise 03c

import numpy as np
from numba import cuda, uint32

from dsv41_numba.formats.bf16 import as_bf16, decode_bf16, encode_bf16
from dsv41_numba.runtime.backend import empty, launch, to_device, to_host

THREADS = 128


def spec(x, scale):
    wide = np.left_shift(x, 16, dtype=np.uint32).view(np.float32)
    return as_bf16(wide * np.float32(scale)).view(np.uint16)


@cuda.jit
def scale_kernel(x, scale, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        # YOUR CODE: take word i apart, scale both numbers, and store one word
        pass


def run(x, scale):
    y = empty(x.shape, np.uint16)
    words = len(x) // 2
    x_words, y_words = to_device(x).view(np.uint32), y.view(np.uint32)
    launch(scale_kernel, -(-words // THREADS), THREADS, x_words, np.float32(scale), y_words)
    return to_host(y)
