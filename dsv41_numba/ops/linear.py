"""Linear: the dot product of every row of x with every row of a weight matrix, y = x @ weight.T.

Math       y[m, n] = sum_k x[m, k] * weight[n, k]
Shapes     x [M, K] bf16, weight [N, K] bf16 -> y [M, N] bf16 (`linear`); weight f32 -> y f32 (`linear_f32`)
Precision  products and sums in f32, k ascending; bf16 results are rounded once, at the end
Launch     grid (M / 16, N / 16), rounded up, block (16, 16); 2304 bytes of shared memory
Moves      bf16 weight: 2 (M K + N K + M N) bytes; f32 weight: 2 M K + 4 (N K + M N)
Errors     ValueError when an array's dtype, shape or layout is not as above
Source     steps 1, 2, 3, 5, 6 and 14 of the layer, step 4 at ratio 1; `linear_f32` is step 4 at ratio >= 2

A tile is 16 x 16. One block makes one tile of y, one thread one number of it. Read straight from memory, every number
of x would be fetched N times; the block fetches a tile of x and a tile of weight into shared memory and uses each
number 16 times from there, then moves both tiles on along K.
"""

import numpy as np
from numba import cuda, float32

from dsv41_numba.formats.bf16 import as_bf16, decode_bf16, encode_bf16
from dsv41_numba.ops.checks import check_array
from dsv41_numba.runtime.backend import empty, launch

TILE = 16  # rows and columns of a tile: 256 threads, two rows of a tile a warp

# threadIdx.x reads down a column of the weight tile, so the length of its rows decides which of the 32 banks (4 bytes
# wide) of shared memory the threads of a warp meet in. Rows of 16 numbers all begin in bank 0 or 16, and the threads
# wait for each other. Rows of 20 begin on 16-byte boundaries, so that the compiler can fetch 4 numbers in one read, and
# 8 of them in a row begin in banks 0, 20, 8, 28, 16, 4, 24, 12: their 8 x 4 numbers lie in 32 different banks.
PADDED = TILE + 4


def linear_ref(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """x [M, K] bf16, weight [N, K] bf16 -> [M, N] bf16."""
    y = x.astype(np.float32) @ weight.astype(np.float32).T
    return as_bf16(y)


def linear_f32_ref(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """x [M, K] bf16, weight [N, K] f32 -> [M, N] f32."""
    return x.astype(np.float32) @ weight.T


@cuda.jit(device=True)
def add_tile(y, x_tile, weight_tile):
    """y plus row threadIdx.y of x_tile times row threadIdx.x of weight_tile. Every thread of the block calls it."""
    cuda.syncthreads()  # both tiles are filled before anyone reads them
    for k in range(TILE):
        y += x_tile[cuda.threadIdx.y, k] * weight_tile[cuda.threadIdx.x, k]
    cuda.syncthreads()  # everyone has read the tiles before anyone fills them again
    return y


@cuda.jit
def linear_kernel(x, weight, y):
    """One block a tile of y, thread (tx, ty) its row ty and column tx.

    The tiles of M are blockIdx.x: blocks that follow each other share the tile of weight, the larger matrix, which
    so crosses memory once; and CUDA allows 2^31 - 1 blocks along x, but 65535 along y.
    """
    x_tile = cuda.shared.array((TILE, TILE), float32)
    weight_tile = cuda.shared.array((TILE, PADDED), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    M, K = x.shape
    N = weight.shape[0]
    m, n0 = cuda.blockIdx.x * TILE + ty, cuda.blockIdx.y * TILE
    # ref: y = x.astype(np.float32) @ weight.astype(np.float32).T
    y_mn = float32(0.0)
    for k0 in range(0, K, TILE):
        # to fill a tile, tx runs along K, the fastest axis of both matrices; past an edge zeros, which add nothing
        n, k = n0 + ty, k0 + tx
        x_tile[ty, tx] = decode_bf16(x[m, k]) if m < M and k < K else float32(0.0)
        weight_tile[ty, tx] = decode_bf16(weight[n, k]) if n < N and k < K else float32(0.0)
        y_mn = add_tile(y_mn, x_tile, weight_tile)
    # ref: return as_bf16(y)
    if m < M and n0 + tx < N:
        y[m, n0 + tx] = encode_bf16(y_mn)


@cuda.jit
def linear_f32_kernel(x, weight, y):
    """`linear_kernel` for an f32 weight: the compressor's projections stay f32 until its norm."""
    x_tile = cuda.shared.array((TILE, TILE), float32)
    weight_tile = cuda.shared.array((TILE, PADDED), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    M, K = x.shape
    N = weight.shape[0]
    m, n0 = cuda.blockIdx.x * TILE + ty, cuda.blockIdx.y * TILE
    # ref: return x.astype(np.float32) @ weight.T
    y_mn = float32(0.0)
    for k0 in range(0, K, TILE):
        n, k = n0 + ty, k0 + tx
        x_tile[ty, tx] = decode_bf16(x[m, k]) if m < M and k < K else float32(0.0)
        weight_tile[ty, tx] = weight[n, k] if n < N and k < K else float32(0.0)
        y_mn = add_tile(y_mn, x_tile, weight_tile)
    if m < M and n0 + tx < N:
        y[m, n0 + tx] = y_mn


def linear(x, weight):
    """x [M, K] bf16 bits, weight [N, K] bf16 bits -> [M, N] bf16 bits, all device arrays."""
    return _launch(linear_kernel, np.uint16, x, weight)


def linear_f32(x, weight):
    """x [M, K] bf16 bits, weight [N, K] f32 -> [M, N] f32, all device arrays."""
    return _launch(linear_f32_kernel, np.float32, x, weight)


def _launch(kernel, dtype, x, weight):
    check_array("x", x, np.uint16, (None, None))
    check_array("weight", weight, dtype, (None, x.shape[1]))
    y = empty((x.shape[0], weight.shape[0]), dtype)
    if y.size > 0:  # a grid of 0 blocks is a launch error
        launch(kernel, (-(-x.shape[0] // TILE), -(-weight.shape[0] // TILE)), (TILE, TILE), x, weight, y)
    return y


if __name__ == "__main__":
    rows, matrix = (as_bf16(np.random.default_rng(n).standard_normal((n, 40)).astype(np.float32)) for n in (3, 5))
    y_host = linear_ref(rows, matrix)
    print(y_host.shape, np.abs(y_host.astype(np.float64) - rows.astype(np.float64) @ matrix.astype(np.float64).T).max())
