"""Exercise 04c: half the reads.

    y = x @ weight.T          x [M, K], weight [N, K] -> y [M, N], all bf16 as uint16 bits

The kernel of 04b reads x N / 16 times and weight M / 16 times. Halve both: let a block of 16 x 16 threads make 32 x 32
numbers of y, so that each thread makes four: rows ty and ty + 16, columns tx and tx + 16 of the block's part. The tiles
of x and weight become 32 x 16. For each column of them, a thread fetches two numbers of `x_tile` and two of
`weight_tile` into variables, and has four products for four reads.

Checked: every number of y; races; and that you read x and weight no more often than the solution does.
"""

# Check it: dsv41 exercise 04c

import numpy as np
from numba import cuda, float32

from dsv41_numba.formats.bf16 import bf16_to_f32, decode_bf16, encode_bf16, f32_to_bf16
from dsv41_numba.runtime.backend import empty, launch, to_device, to_host

TILE = 16
PADDED = TILE + 4  # threads that read down a column of weight_tile would meet in few banks of shared memory otherwise
PART = 32  # rows and columns of y that a block makes


def spec(x, weight):
    """What `run` must return, in NumPy."""
    y = bf16_to_f32(x).astype(np.float64) @ bf16_to_f32(weight).astype(np.float64).T
    return f32_to_bf16(y.astype(np.float32))


@cuda.jit(device=True)
def store(total, m, n, y):
    """Write one number of y, if it is there."""
    if m < y.shape[0] and n < y.shape[1]:
        y[m, n] = encode_bf16(total)


@cuda.jit
def linear_kernel(x, weight, y):
    """One block 32 x 32 numbers of y, thread (tx, ty) four of them."""
    x_tile = cuda.shared.array((PART, TILE), float32)
    weight_tile = cuda.shared.array((PART, PADDED), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    M, K = x.shape
    N = weight.shape[0]
    m, n = cuda.blockIdx.x * PART + ty, cuda.blockIdx.y * PART + tx
    # YOUR CODE: four sums: of y[m, n], y[m, n + 16], y[m + 16, n] and y[m + 16, n + 16]


def run(x, weight):
    """Launch the kernel: one block for each 32 x 32 part of y."""
    M, N = x.shape[0], weight.shape[0]
    y = empty((M, N), np.uint16)
    launch(linear_kernel, (-(-M // PART), -(-N // PART)), (TILE, TILE), to_device(x), to_device(weight), y)
    return to_host(y)
