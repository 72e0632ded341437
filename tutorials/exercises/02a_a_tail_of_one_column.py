"""Exercise 02a: a tail of one column.

A block is one row of x [R, D], 128 threads share its columns: thread t owns t, t + 128, t + 256, ... as long as there
are columns. Add up the squares of yours. With D = 257, thread 0 owns three columns and everyone else two; with D = 8,
most threads own none and still have to reach the barriers.

x and y hold bf16 bits, weight [D] f32. The checks compare y with a norm in NumPy, and count what a thread reads.
"""

# Check it: dsv41 exercise 02a

import math

import numpy as np
from numba import cuda, float32

from dsv41_numba.formats.bf16 import as_bf16, decode_bf16, encode_bf16
from dsv41_numba.ops.rmsnorm import THREADS, block_sum
from dsv41_numba.runtime.backend import empty, launch, to_device, to_host


def spec(x, weight, eps):
    wide = np.left_shift(x, 16, dtype=np.uint32).view(np.float32)
    mean = (wide * wide).mean(-1, keepdims=True, dtype=np.float32)
    return as_bf16(weight * (wide * (np.float32(1.0) / np.sqrt(mean + np.float32(eps))))).view(np.uint16)


@cuda.jit
def rmsnorm_kernel(x, weight, eps, y):
    partial = cuda.shared.array(THREADS, float32)
    r, t = cuda.blockIdx.x, cuda.threadIdx.x
    D = x.shape[1]
    part = float32(0.0)
    # YOUR CODE: add to `part` the square of each of your columns; decode_bf16(x[r, d]) is one of them
    mean = block_sum(part, partial) / float32(D)
    scale = float32(1.0) / math.sqrt(mean + eps)
    for d in range(t, D, THREADS):
        y[r, d] = encode_bf16(weight[d] * (decode_bf16(x[r, d]) * scale))


def run(x, weight, eps):
    y = empty(x.shape, np.uint16)
    launch(rmsnorm_kernel, x.shape[0], THREADS, to_device(x), to_device(weight), np.float32(eps), y)
    return to_host(y)
