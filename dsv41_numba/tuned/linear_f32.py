"""Linear with a float32 weight, on tensor cores that take only bf16: three products instead of one, and nothing lost.

Math       y[m, n] = sum_k x[m, k] * weight[n, k]
Shapes     x [M, K] bf16, weight [N, K] f32 -> y [M, N] f32; K a multiple of 8 and rows on multiples of 16 bytes
Precision  a float32 has 24 bits of mantissa, a bf16 has 8: weight = high + middle + low, exactly, each a bf16. x is
           bf16 as it comes, so the three products are those of float32. Tensor cores cut what does not fit into their
           f32 sums, always towards zero, which adds up over thousands of columns: so they sum 32 columns, and those
           sums are added with rounding. A weight that is not finite gives NaN
Launch     more than 4 tokens: grid (M / 128, N / 64), rounded up, block 128; 48 KiB of shared memory. Up to 4: grid N,
           block 256; 128 bytes
Moves      2 M K + 4 (N K + M N) bytes; the floor of many tokens is arithmetic: 6 M N K operations of mma.sync
Errors     none: `tuned.linear.linear_f32` has checked the operands, and sends other sizes to the plain kernel
Source     step 4 of the layer at ratio >= 2: the compressor's projections stay f32 until its norm

::

    weight   s eeeeeeee mmmmmmm mmmmmmmm mmmmmmmm
    high                1mmmmmmm                      rounded to the nearest bf16
    middle                      +-1mmmmmmm            what that left over, rounded
    low                                  +-1mmmmmm    what that left over: it fits

The slabs lie in shared memory as they come, x as bf16 and weight as f32. Each warp takes the pieces of weight that its
next instruction wants from there, and splits them in its registers.
"""

from typing import Any

import numpy as np
from numba import cuda, float32, uint32

from dsv41_numba.runtime.backend import launch
from dsv41_numba.tuned.linear_decode import MAX_TOKENS, high, low
from dsv41_numba.tuned.linear_mma import multiply, swizzled
from dsv41_numba.tuned.ptx import (
    copies_commit,
    copies_wait_1,
    copy_16_bytes,
    ldmatrix_x4,
    load_16_bytes,
    load_16_bytes_once,
    pack_bf16,
)

ROWS, COLUMNS = 128, 64  # of y a block; a warp has half of each
THREADS = 128
SLAB = 32  # columns of K a stage
STAGES = 3
X_SHAPE = (STAGES, ROWS, SLAB // 2)  # words of two bf16
WEIGHT_SHAPE = (STAGES, COLUMNS, SLAB)  # float32 patterns
DECODE_THREADS = 256
DECODE_WARPS = DECODE_THREADS // 32
VECTOR = 8  # columns that a thread multiplies at a time: 16 bytes of x, 32 of weight


@cuda.jit(device=True)
def weight_word(row, k):
    """Where column k of a row of weight's slab stands: 16-byte chunk c at chunk c ^ (row % 8).

    A row is all 32 banks wide, so without it the 8 rows that a warp reads at a time would meet in 4 banks.
    """
    return ((k >> 2) ^ (row & 7)) * 4 + (k & 3)


@cuda.jit(device=True)
def copy_slabs(x_tiles, weight_tiles, s, x, weight_words, m0, n0, k0):
    """Ask for stage s: columns k0 .. k0 + 31 of 128 rows of x and 64 of weight, zeros past the edges."""
    M, K, N = x.shape[0], x.shape[1], weight_words.shape[0]
    thread = cuda.threadIdx.x
    for i in range(4):
        row, chunk = (thread >> 2) + 32 * i, thread & 3  # 8 bf16
        k = k0 + 8 * chunk
        inside = m0 + row < M and k < K
        m, column = (m0 + row, k) if inside else (0, 0)
        copy_16_bytes(x_tiles, s, row, swizzled(row, chunk), x, m, column, 16 if inside else 0)
    for i in range(4):
        row, chunk = (thread >> 3) + 16 * i, thread & 7  # 4 f32
        k = k0 + 4 * chunk
        inside = n0 + row < N and k < K
        n, column = (n0 + row, 2 * k) if inside else (0, 0)  # of 16-bit words
        copy_16_bytes(weight_tiles, s, row, weight_word(row, 4 * chunk), weight_words, n, column, 16 if inside else 0)


@cuda.jit(device=True)
def split(first, second):
    """Two float32 patterns as three words of two bf16: high, middle and low parts."""
    a, b = first.view(np.float32), second.view(np.float32)
    high_word = pack_bf16(a, b)
    a, b = a - low(high_word), b - high(high_word)
    middle_word = pack_bf16(a, b)
    a, b = a - low(middle_word), b - high(middle_word)
    return high_word, middle_word, pack_bf16(a, b)


@cuda.jit(launch_bounds=(THREADS, 2))
def linear_f32_mma_kernel(x, weight_words, y):
    """One block a tile of y. weight_words [N, 2 K] are the halves of the weight's float32."""
    x_tiles = cuda.shared.array(X_SHAPE, uint32, 128)
    weight_tiles = cuda.shared.array(WEIGHT_SHAPE, uint32, 128)
    sums = cuda.local.array((4, 4, 4), float32)
    slab_sums = cuda.local.array((4, 4, 4), float32)
    a = cuda.local.array((4, 4), uint32)
    m0, n0 = cuda.blockIdx.x * ROWS, cuda.blockIdx.y * COLUMNS
    lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
    warp_m, warp_n = (warp >> 1) * (ROWS // 2), (warp & 1) * (COLUMNS // 2)
    g, c = lane >> 2, lane & 3
    M, K, N = x.shape[0], x.shape[1], weight_words.shape[0]
    for i in range(4):
        for j in range(4):
            for q in range(4):
                sums[i, j, q] = float32(0.0)
    for s in range(STAGES - 1):
        if s * SLAB < K:
            copy_slabs(x_tiles, weight_tiles, s, x, weight_words, m0, n0, s * SLAB)
        copies_commit()
    s = 0
    for k0 in range(0, K, SLAB):
        copies_wait_1()  # this thread's copies of slab k0 are in
        cuda.syncthreads()  # everyone's are, and everyone is done with the slab before it, whose place is free
        free = s - 1 if s > 0 else STAGES - 1
        if k0 + (STAGES - 1) * SLAB < K:
            copy_slabs(x_tiles, weight_tiles, free, x, weight_words, m0, n0, k0 + (STAGES - 1) * SLAB)
        copies_commit()  # past the last slab an empty group: the count of groups stays right
        for i in range(4):
            for j in range(4):
                for q in range(4):
                    slab_sums[i, j, q] = float32(0.0)
        for k in range(0, SLAB, 16):
            for i in range(4):
                row = warp_m + 16 * i + (lane & 15)
                words = ldmatrix_x4(x_tiles, s, row, swizzled(row, k // 8 + (lane >> 4)))
                for q in range(4):
                    a[i, q] = words[q]
            for j in range(4):
                n, first = warp_n + 8 * j + g, k + 2 * c  # b0 is columns 2c, 2c + 1 of the 16; b1 is 8 further
                word0, word1 = weight_word(n, first), weight_word(n, first + 8)
                high0, middle0, low0 = split(weight_tiles[s, n, word0], weight_tiles[s, n, word0 + 1])
                high1, middle1, low1 = split(weight_tiles[s, n, word1], weight_tiles[s, n, word1 + 1])
                for i in range(4):  # the small parts first: they are added while the sum is small
                    multiply(slab_sums, i, j, a, low0, low1)
                    multiply(slab_sums, i, j, a, middle0, middle1)
                    multiply(slab_sums, i, j, a, high0, high1)
        for i in range(4):
            for j in range(4):
                for q in range(4):
                    sums[i, j, q] += slab_sums[i, j, q]
        s = s + 1 if s < STAGES - 1 else 0
    for i in range(4):
        for j in range(4):
            for q in range(4):
                m, n = m0 + warp_m + 16 * i + 8 * (q >> 1) + g, n0 + warp_n + 8 * j + 2 * c + (q & 1)
                if m < M and n < N:
                    y[m, n] = sums[i, j, q]


@cuda.jit(device=True)
def dot_of_vector(x_words, first, second):
    """The products of 8 bf16 in 4 words with 8 float32 in two times 4."""
    total = low(x_words[0]) * first[0].view(np.float32) + high(x_words[0]) * first[1].view(np.float32)
    total += low(x_words[1]) * first[2].view(np.float32) + high(x_words[1]) * first[3].view(np.float32)
    total += low(x_words[2]) * second[0].view(np.float32) + high(x_words[2]) * second[1].view(np.float32)
    return total + (low(x_words[3]) * second[2].view(np.float32) + high(x_words[3]) * second[3].view(np.float32))


@cuda.jit
def linear_f32_decode_kernel(x, weight_words, y):
    """One block a row of weight, for all tokens: at most 4. Its threads read the row side by side, and add up."""
    partial = cuda.shared.array((DECODE_WARPS, MAX_TOKENS), float32)
    sums = cuda.local.array(MAX_TOKENS, float32)
    n, thread = cuda.blockIdx.x, cuda.threadIdx.x
    M, K = x.shape
    for m in range(MAX_TOKENS):
        sums[m] = float32(0.0)
    for k in range(VECTOR * thread, K, VECTOR * DECODE_THREADS):
        first = load_16_bytes_once(weight_words, n, 2 * k, True)
        second = load_16_bytes_once(weight_words, n, 2 * k + 8, True)
        for m in range(MAX_TOKENS):
            if m < M:
                sums[m] += dot_of_vector(load_16_bytes(x, m, k, True), first, second)
    for m in range(MAX_TOKENS):
        total = sums[m]
        for halvings in range(5):  # lanes 16, 8, 4, 2, 1 apart: afterwards every lane has the warp's sum
            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 16 >> halvings)
        if thread & 31 == 0:
            partial[thread >> 5, m] = total
    cuda.syncthreads()  # every warp's sums are in place before they are added
    if thread < M:
        total = float32(0.0)
        for warp in range(DECODE_WARPS):
            total += partial[warp, thread]
        y[thread, n] = total


def launch_f32(x: Any, weight: Any, y: Any) -> None:
    """Fill y [M, N] f32 from x [M, K] bf16 bits and weight [N, K] f32; no size is 0, K is a multiple of 8."""
    words = weight.view(np.uint16)
    if x.shape[0] <= MAX_TOKENS:
        launch(linear_f32_decode_kernel, weight.shape[0], DECODE_THREADS, x, words, y)
    else:
        grid = (-(-x.shape[0] // ROWS), -(-weight.shape[0] // COLUMNS))
        launch(linear_f32_mma_kernel, grid, THREADS, x, words, y)
