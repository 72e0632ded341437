"""Exercise 04a: load the weight tile.

    y = x @ weight.T          x [M, K], weight [N, K] -> y [M, N], all bf16 as uint16 bits

A block of 16 x 16 threads makes a 16 x 16 tile of y. Step by step along K it copies a tile of x and a tile of weight
into shared memory and adds up their products from there. `x_tile` is filled for you. Fill `weight_tile`: each thread
copies one number, so that after the barrier `weight_tile[r, c]` is `weight[n0 + r, k0 + c]`.

Checked: every number of y; matrices that end inside a tile; infinities; races; how often you read x and weight.
"""

# Check it: dsv41 exercise 04a

import numpy as np
from numba import cuda, float32

from dsv41_numba.formats.bf16 import bf16_to_f32, decode_bf16, encode_bf16, f32_to_bf16
from dsv41_numba.runtime.backend import empty, launch, to_device, to_host

TILE = 16
PADDED = TILE + 4  # threads that read down a column of weight_tile would meet in few banks of shared memory otherwise


def spec(x, weight):
    """What `run` must return, in NumPy."""
    y = bf16_to_f32(x).astype(np.float64) @ bf16_to_f32(weight).astype(np.float64).T
    return f32_to_bf16(y.astype(np.float32))


@cuda.jit
def linear_kernel(x, weight, y):
    """One block a tile of y, thread (tx, ty) its row ty and column tx."""
    x_tile = cuda.shared.array((TILE, TILE), float32)
    weight_tile = cuda.shared.array((TILE, PADDED), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    M, K = x.shape
    N = weight.shape[0]
    m, n0 = cuda.blockIdx.x * TILE + ty, cuda.blockIdx.y * TILE
    total = float32(0.0)
    for k0 in range(0, K, TILE):
        # neighbouring threads (tx) read neighbouring numbers (k); past an edge a zero, which adds nothing
        k = k0 + tx
        x_tile[ty, tx] = decode_bf16(x[m, k]) if m < M and k < K else float32(0.0)
        # YOUR CODE: one number of weight into weight_tile[ty, tx], or a zero past the edge of weight
        cuda.syncthreads()  # both tiles are filled before anyone reads them
        for i in range(TILE):
            total += x_tile[ty, i] * weight_tile[tx, i]
        cuda.syncthreads()  # everyone has read the tiles before anyone fills them again
    if m < M and n0 + tx < N:
        y[m, n0 + tx] = encode_bf16(total)


def run(x, weight):
    """Launch the kernel: one block for each tile of y."""
    M, N = x.shape[0], weight.shape[0]
    y = empty((M, N), np.uint16)
    launch(linear_kernel, (-(-M // TILE), -(-N // TILE)), (TILE, TILE), to_device(x), to_device(weight), y)
    return to_host(y)
