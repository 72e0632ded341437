"""Linear: the dot product of every row of x with every row of a weight matrix, y = x @ weight.T.

Math       y[m, n] = sum_k x[m, k] * weight[n, k]
Shapes     x [M, K] bf16, weight [N, K] bf16 -> y [M, N] bf16 (`linear`); weight f32 -> y f32 (`linear_f32`)
Precision  products and sums in f32: the 4 columns of a word in order, every fourth word in order into one of four sums,
           and those as two pairs at the end; bf16 results are rounded once, after that. Every bit of y[m] depends on
           x[m] and weight alone, whichever kernel runs
Launch     grid (M / 16, N / 16), rounded up, block (16, 16); 2304 bytes of shared memory. `linear` with M <= 4, as in a
           decode step: grid (M, N / 4, 1), block 128; 4 KiB
Moves      bf16 weight: 2 (M K + N K + M N) bytes; f32 weight: 2 M K + 4 (N K + M N)
Errors     ValueError when an array's dtype, shape or layout is not as above
Source     steps 1, 2, 3, 5, 6 and 14 of the layer, step 4 at ratio 1; `linear_f32` is step 4 at ratio >= 2

A tile is 16 x 16. One block makes one tile of y, one thread one number of it. Read straight from memory, every number
of x would be fetched N times; the block fetches a tile of x and a tile of weight into shared memory and uses each
number 16 times from there, then moves both tiles on along K.

With few rows of x there is little to share: most rows of every tile of x would be empty. Then all that counts is how
fast weight arrives, and `linear_few_kernel` keeps more of it on the way.
"""

from typing import Any

import numpy as np
from numba import cuda, float32, uint16, uint64

from dsv41_numba.formats.bf16 import as_bf16, decode_bf16, encode_bf16
from dsv41_numba.ops.checks import address, check_array
from dsv41_numba.runtime.backend import empty, launch

TILE = 16  # rows and columns of a tile: 256 threads, two rows of a tile a warp

# threadIdx.x reads down a column of the weight tile, so the length of its rows decides which of the 32 banks (4 bytes
# wide) of shared memory the threads of a warp meet in. Rows of 16 numbers all begin in bank 0 or 16, and the threads
# wait for each other. Rows of 20 begin on 16-byte boundaries, so that the compiler can fetch 4 numbers in one read, and
# 8 of them in a row begin in banks 0, 20, 8, 28, 16, 4, 24, 12: their 8 x 4 numbers lie in 32 different banks.
PADDED = TILE + 4

WORD = 4  # columns whose products are summed first: four bf16 are one load of 64 bits
SUMS = 4  # word w goes to sum w mod 4: additions that do not wait for each other

# linear_few_kernel:
MAX_FEW = 4  # rows of x
FEW_ROWS = 4  # of weight a block
FEW_THREADS = 128  # a power of two
AHEAD = 2  # words of each row of weight that a thread fetches before it uses one
STEP = FEW_THREADS * AHEAD  # words of a row between two barriers
MAX_GRID_Y = 65535  # blocks


def linear_ref(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """x [M, K] bf16, weight [N, K] bf16 -> [M, N] bf16.

    In float64, where these sums lose so little that the bits of a row do not depend on how many rows there are: NumPy
    adds in an order that does.
    """
    y = x.astype(np.float64) @ weight.astype(np.float64).T
    return as_bf16(y.astype(np.float32))


def linear_f32_ref(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """x [M, K] bf16, weight [N, K] f32 -> [M, N] f32, in float64 as `linear_ref`."""
    y = x.astype(np.float64) @ weight.astype(np.float64).T
    return y.astype(np.float32)


@cuda.jit(device=True)
def dot_in_tile(x_tile, weight_tile, k0):
    """The products of 4 columns, summed: row threadIdx.y of x_tile times row threadIdx.x of weight_tile."""
    dot = float32(0.0)
    for k in range(k0, k0 + WORD):
        dot += x_tile[cuda.threadIdx.y, k] * weight_tile[cuda.threadIdx.x, k]
    return dot


@cuda.jit(device=True)
def add_tile(sums, x_tile, weight_tile):
    """Add the four words of a row of x_tile times a row of weight_tile. Every thread of the block calls it."""
    cuda.syncthreads()  # both tiles are filled before anyone reads them
    for q in range(SUMS):
        sums[q] += dot_in_tile(x_tile, weight_tile, q * WORD)
    cuda.syncthreads()  # everyone has read the tiles before anyone fills them again


@cuda.jit(device=True)
def total(sums):
    """The four sums of a number of y as one."""
    return (sums[0] + sums[1]) + (sums[2] + sums[3])


@cuda.jit
def linear_kernel(x, weight, y):
    """One block a tile of y, thread (tx, ty) its row ty and column tx.

    The tiles of M are blockIdx.x: blocks that follow each other share the tile of weight, the larger matrix, which
    so crosses memory once; and CUDA allows 2^31 - 1 blocks along x, but 65535 along y.
    """
    x_tile = cuda.shared.array((TILE, TILE), float32)
    weight_tile = cuda.shared.array((TILE, PADDED), float32)
    sums = cuda.local.array(SUMS, float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    M, K = x.shape
    N = weight.shape[0]
    m, n0 = cuda.blockIdx.x * TILE + ty, cuda.blockIdx.y * TILE
    # ref: y = x.astype(np.float64) @ weight.astype(np.float64).T
    sums[0] = sums[1] = sums[2] = sums[3] = float32(0.0)
    for k0 in range(0, K, TILE):
        # to fill a tile, tx runs along K, the fastest axis of both matrices; past an edge zeros, which add nothing
        n, k = n0 + ty, k0 + tx
        x_tile[ty, tx] = decode_bf16(x[m, k]) if m < M and k < K else float32(0.0)
        weight_tile[ty, tx] = decode_bf16(weight[n, k]) if n < N and k < K else float32(0.0)
        add_tile(sums, x_tile, weight_tile)
    # ref: return as_bf16(y.astype(np.float32))
    if m < M and n0 + tx < N:
        y[m, n0 + tx] = encode_bf16(total(sums))


@cuda.jit
def linear_f32_kernel(x, weight, y):
    """`linear_kernel` for an f32 weight: the compressor's projections stay f32 until its norm."""
    x_tile = cuda.shared.array((TILE, TILE), float32)
    weight_tile = cuda.shared.array((TILE, PADDED), float32)
    sums = cuda.local.array(SUMS, float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    M, K = x.shape
    N = weight.shape[0]
    m, n0 = cuda.blockIdx.x * TILE + ty, cuda.blockIdx.y * TILE
    # ref: y = x.astype(np.float64) @ weight.astype(np.float64).T
    sums[0] = sums[1] = sums[2] = sums[3] = float32(0.0)
    for k0 in range(0, K, TILE):
        n, k = n0 + ty, k0 + tx
        x_tile[ty, tx] = decode_bf16(x[m, k]) if m < M and k < K else float32(0.0)
        weight_tile[ty, tx] = weight[n, k] if n < N and k < K else float32(0.0)
        add_tile(sums, x_tile, weight_tile)
    if m < M and n0 + tx < N:
        y[m, n0 + tx] = total(sums)


@cuda.jit(device=True)
def dot_of_words(x_word, weight_word):
    """The sum of the products of four neighbouring bf16, the first of them in the lowest 16 bits."""
    dot = float32(0.0)
    for i in range(WORD):
        shift = uint64(16 * i)
        dot += decode_bf16(uint16(x_word >> shift)) * decode_bf16(uint16(weight_word >> shift))
    return dot


@cuda.jit
def linear_few_kernel(x, weight, y):
    """`linear_kernel` for few rows of x, with the same bits: one block 4 numbers of a row of y.

    x [M, G * K / 4] and weight [G * N, K / 4] are words of four bf16, y is [M, G, N]; G is 1, or the groups of a
    grouped linear. A thread asks for 2 words of 4 rows of weight, 64 bytes, before it uses one: what is on the way
    from memory at a time decides the speed. It sums the products of each word, and 16 threads, one for each row of
    weight and sum of `add_tile`, add those up in its order.
    blockIdx.x is the row of x, so that blocks which share weight run together and fetch it once from memory.
    """
    partial = cuda.shared.array((STEP, FEW_ROWS), float32)
    fetched = cuda.local.array((AHEAD, FEW_ROWS), uint64)
    x_words = cuda.local.array(AHEAD, uint64)
    # the mask changes nothing, but tells the compiler that no index is negative: Numba would add the axis' length to it
    t = cuda.threadIdx.x & (FEW_THREADS - 1)
    m, n0, g = cuda.blockIdx.x, cuda.blockIdx.y * FEW_ROWS, cuda.blockIdx.z
    N, words = y.shape[2], weight.shape[1]
    row, q = t % FEW_ROWS, t // FEW_ROWS  # of an adding thread
    part = float32(0.0)
    first = 0
    while first < words:
        for i in range(AHEAD):
            w = first + i * FEW_THREADS + t
            if w < words:
                x_words[i] = x[m, g * words + w]
                for r in range(FEW_ROWS):
                    # past the last row that row again, whose sum nobody stores
                    fetched[i, r] = weight[g * N + min(n0 + r, N - 1), w]
        for i in range(AHEAD):
            w = i * FEW_THREADS + t
            for r in range(FEW_ROWS):
                partial[w, r] = float32(0.0)  # past the edge, as in a tile
                if first + w < words:
                    partial[w, r] = dot_of_words(x_words[i], fetched[i, r])
        cuda.syncthreads()  # every word's sum is in place before it is added
        if q < SUMS:
            w = q
            while w < min(STEP, words - first):
                part += partial[w, row]
                w += SUMS
        cuda.syncthreads()  # they are added before the next ones overwrite them
        first += STEP
    if q < SUMS:
        partial[q, row] = part
    cuda.syncthreads()  # all four sums of a number are in place
    if t < FEW_ROWS and n0 + t < N:
        y[m, g, n0 + t] = encode_bf16(total(partial[:, t]))


def linear(x, weight):
    """x [M, K] bf16 bits, weight [N, K] bf16 bits -> [M, N] bf16 bits, all device arrays."""
    y = _checked_output(np.uint16, x, weight)
    M, N = y.shape
    if few_fit(x, weight, M, N):
        launch_few(x, weight, y.reshape(M, 1, N))
    elif y.size > 0:  # a grid of 0 blocks is a launch error
        launch(linear_kernel, (-(-M // TILE), -(-N // TILE)), (TILE, TILE), x, weight, y)
    return y


def linear_f32(x, weight):
    """x [M, K] bf16 bits, weight [N, K] f32 -> [M, N] f32, all device arrays."""
    y = _checked_output(np.float32, x, weight)
    if y.size > 0:
        grid = (-(-y.shape[0] // TILE), -(-y.shape[1] // TILE))
        launch(linear_f32_kernel, grid, (TILE, TILE), x, weight, y)
    return y


def few_fit(x: Any, weight: Any, M: int, N: int) -> bool:
    """Whether `linear_few_kernel` takes M rows of x and N rows of weight (of a group): they must be made of whole words
    on multiples of 8 bytes."""
    in_reach = 0 < M <= MAX_FEW and 0 < N <= FEW_ROWS * MAX_GRID_Y
    return in_reach and weight.shape[1] % WORD == 0 and all(address(a) % 8 == 0 for a in (x, weight))


def launch_few(x: Any, weight: Any, y: Any) -> None:
    """Fill y [M, G, N] from x [M, G * K] and weight [G * N, K], all bf16 bits that `few_fit`."""
    M, G, N = y.shape
    launch(linear_few_kernel, (M, -(-N // FEW_ROWS), G), FEW_THREADS, x.view(np.uint64), weight.view(np.uint64), y)


def _checked_output(dtype, x, weight):
    check_array("x", x, np.uint16, (None, None))
    check_array("weight", weight, dtype, (None, x.shape[1]))
    return empty((x.shape[0], weight.shape[0]), dtype)


if __name__ == "__main__":
    rows, matrix = (as_bf16(np.random.default_rng(n).standard_normal((n, 40)).astype(np.float32)) for n in (3, 5))
    y_host = linear_ref(rows, matrix)
    print(y_host.shape, np.abs(y_host.astype(np.float64) - rows.astype(np.float64) @ matrix.astype(np.float64).T).max())
