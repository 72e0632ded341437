"""Exercise 04b: the tiled matrix product.

    y = x @ weight.T          x [M, K], weight [N, K] -> y [M, N], all bf16 as uint16 bits

Write the loop: fill both tiles, wait, add up, wait, and go on along K. Every thread of the block must reach every
barrier, also one whose number of y does not exist. Keep the sum in float32 and round it once, at the end.

Checked: every number of y; matrices that end inside a tile; races; how often you read x and weight.
"""

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
    # CUT the number y[m, n0 + tx], if there is one: the sum over K of x[m, k] * weight[n0 + tx, k]
    total = float32(0.0)
    for k0 in range(0, K, TILE):
        n, k = n0 + ty, k0 + tx
        x_tile[ty, tx] = decode_bf16(x[m, k]) if m < M and k < K else float32(0.0)
        weight_tile[ty, tx] = decode_bf16(weight[n, k]) if n < N and k < K else float32(0.0)
        cuda.syncthreads()  # both tiles are filled before anyone reads them
        for i in range(TILE):
            total += x_tile[ty, i] * weight_tile[tx, i]
        cuda.syncthreads()  # everyone has read the tiles before anyone fills them again
    if m < M and n0 + tx < N:
        y[m, n0 + tx] = encode_bf16(total)
    # END


def run(x, weight):
    """Launch the kernel: one block for each tile of y."""
    M, N = x.shape[0], weight.shape[0]
    y = empty((M, N), np.uint16)
    launch(linear_kernel, (-(-M // TILE), -(-N // TILE)), (TILE, TILE), to_device(x), to_device(weight), y)
    return to_host(y)
