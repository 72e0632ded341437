"""Exercise 05a: fill the A fragment.

A block is one warp. It makes a 16 x 8 piece of y = x @ weight.T, 16 columns of K a step. In each step lane 4 g + t
brings four words a0 to a3 of x; `pair(x, row, k)` is such a word: x[row, k] in its low half, x[row, k + 1] in its
high half, zeros past the edges. The words of weight are there already. Say which row and which k each of the four is.

x [M, K] and weight [N, K] are bf16 bits, y [M, N] too. The checks compare y with a product in NumPy.
"""

# Check it: dsv41 exercise 05a

import numpy as np
from numba import cuda, float32, uint32

from dsv41_numba.formats.bf16 import as_bf16, encode_bf16
from dsv41_numba.runtime.backend import empty, launch, to_device, to_host
from dsv41_numba.tuned.emulated import mma_m16n8k16


def spec(x, weight):
    wide_x, wide_weight = (np.left_shift(bits, 16, dtype=np.uint32).view(np.float32) for bits in (x, weight))
    return as_bf16(wide_x @ wide_weight.T).view(np.uint16)


@cuda.jit(device=True)
def pair(array, row, k):
    word = uint32(0)
    for half in range(2):
        if row < array.shape[0] and k + half < array.shape[1]:
            word |= uint32(uint32(array[row, k + half]) << uint32(16 * half))
    return word


@cuda.jit
def product_kernel(x, weight, y):
    m0, n0, lane = cuda.blockIdx.x * 16, cuda.blockIdx.y * 8, cuda.threadIdx.x
    g, t = lane // 4, lane % 4
    sums = cuda.local.array(4, float32)
    for r in range(4):
        sums[r] = float32(0.0)
    for k0 in range(0, x.shape[1], 16):
        b0 = pair(weight, n0 + g, k0 + 2 * t)
        b1 = pair(weight, n0 + g, k0 + 2 * t + 8)
        # YOUR CODE: a0 to a3: pair(x, ...) of the right row and column of K.
        a0 = a1 = a2 = a3 = uint32(0)
        sums[0], sums[1], sums[2], sums[3] = mma_m16n8k16(
            a0, a1, a2, a3, b0, b1, sums[0], sums[1], sums[2], sums[3]
        )  # fmt: skip
    for r in range(4):
        m, n = m0 + g + r // 2 * 8, n0 + 2 * t + r % 2
        if m < y.shape[0] and n < y.shape[1]:
            y[m, n] = encode_bf16(sums[r])


def run(x, weight):
    y = empty((x.shape[0], weight.shape[0]), np.uint16)
    grid = (-(-x.shape[0] // 16), -(-weight.shape[0] // 8))
    launch(product_kernel, grid, 32, to_device(x), to_device(weight), y)
    return to_host(y)
