"""Exercise 06c: the rotation kernel.

Turn the last R entries of every head, in pairs of neighbours, and copy the entries before them. x [T, H, D] holds bf16
bits, cos and sin [P, R / 2] f32; row t stands at position start_pos + t. For pair i at that position

    y[2 i]     = x[2 i] cos - x[2 i + 1] sin
    y[2 i + 1] = x[2 i] sin + x[2 i + 1] cos        counted from the first of the last R entries

A block is one head of one row: blockIdx.x is t, blockIdx.y is the head, 32 threads share its entries. Round every
product and every sum on its own, with fmul_rn, fadd_rn and fsub_rn of `cuda.libdevice`.

The checks want the same bits, and count what a thread reads and writes.
"""

# Check it: dsv41 exercise 06c

import numpy as np
from numba import cuda

from dsv41_numba.formats.bf16 import as_bf16, decode_bf16, encode_bf16
from dsv41_numba.runtime.backend import empty, launch, to_device, to_host


def spec(x, cos, sin, start_pos):
    y, copied = x.copy(), x.shape[2] - 2 * cos.shape[1]
    wide = np.left_shift(x[:, :, copied:], 16, dtype=np.uint32).view(np.float32)
    c, s = (table[start_pos : start_pos + len(x), None, :] for table in (cos, sin))
    even, odd = wide[:, :, 0::2], wide[:, :, 1::2]
    y[:, :, copied::2] = as_bf16(even * c - odd * s).view(np.uint16)
    y[:, :, copied + 1 :: 2] = as_bf16(even * s + odd * c).view(np.uint16)
    return y


@cuda.jit
def rope_kernel(x, cos, sin, start_pos, y):
    t, h = cuda.blockIdx.x, cuda.blockIdx.y
    copied = x.shape[2] - 2 * cos.shape[1]
    # YOUR CODE: copy the first `copied` entries, then turn the pairs.


def run(x, cos, sin, start_pos):
    y = empty(x.shape, np.uint16)
    launch(rope_kernel, x.shape[:2], 32, to_device(x), to_device(cos), to_device(sin), start_pos, y)
    return to_host(y)
