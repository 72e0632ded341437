"""Linear for one to four tokens: every byte of weight crosses memory once, as fast as memory gives it.

Math       y[m, n] = sum_k x[m, k] * weight[n, k]
Shapes     x [M, K] bf16 with M from 1 to 4, weight [N, K] bf16 -> y [M, N] bf16; any N, K
Precision  products and sums in f32: each lane sums every 32nd vector of 8 columns, then as a tree over the lanes, then
           over the warps that share a row; one rounding to bf16 at the end
Launch     grid (blocks for the N rows of a group, groups), block 256; at most 512 bytes of shared memory
Moves      2 (M K + N K + M N) bytes, nearly all of it weight; the floor is memory bandwidth
Errors     ValueError when an array's dtype, shape or layout is not as above
Source     the linears of a decode step: steps 1, 2, 3, 5, 6, 13 and 14 of the layer; any GPU

One token uses each number of weight once, so shared memory cannot help. Two things count: some 50 KB a multiprocessor
must be on the way from memory at any time, and a warp that lives for a few loads must not spend its life preparing
them. In each step the lanes of a warp ask for four times 512 neighbouring bytes before they use the first::

    one token         4 vectors of 1 row     lane 0 | lane 1 | ... | lane 31 || lane 0 | ...
    two tokens        2 vectors of 2 rows    a vector of x that is read for one row serves the others too
    three, four       1 vector of 4 rows

Where N is small there are too few rows to keep the memory busy: 2, 4 or 8 warps of a block then share their rows, each
takes every 2nd, 4th or 8th step of K, and their sums meet in shared memory.
"""

import functools
from typing import Any

from numba import cuda, float32, uint32

from dsv41_numba.formats.bf16 import decode_bf16, encode_bf16
from dsv41_numba.runtime.backend import launch
from dsv41_numba.tuned.operands import Sizes, on_16_bytes, sizes
from dsv41_numba.tuned.ptx import load_16_bytes, load_16_bytes_once

MAX_TOKENS = 4
WARP_BITS = 3  # log2 of the warps a block
WARPS = 1 << WARP_BITS
THREADS = 32 * WARPS
VECTOR = 8  # bf16 in 16 bytes
LOADS = 4  # vectors of weight that a lane asks for before it uses the first
ROWS = {1: 1, 2: 2, 3: 4, 4: 4}  # of weight a warp, by tokens
BLOCKS = {1: 5, 2: 4, 3: 3, 4: 3}  # a multiprocessor, by tokens: as many as the registers of their sums allow
ENOUGH_WARPS = 5280  # as many as 132 multiprocessors hold at once; were there more, none would share rows


@cuda.jit(device=True)
def low(word):
    """The bf16 in the low half of a word."""
    return decode_bf16(word & uint32(0xFFFF))


@cuda.jit(device=True)
def high(word):
    """The bf16 in the high half of a word."""
    return decode_bf16(word >> uint32(16))


@cuda.jit(device=True)
def dot(total, x, words, j):
    """total plus the 8 products of a vector of x and vector j of `words`."""
    for q in range(4):
        total += low(x[q]) * low(words[j, q])
        total += high(x[q]) * high(words[j, q])
    return total


@functools.cache
def kernel(tokens: int) -> Any:
    """The kernel for this number of rows of x."""
    SET = ROWS[tokens]  # rows of weight a warp
    AHEAD = LOADS // SET  # vectors of each of them
    SUMS = tokens * SET

    @cuda.jit(launch_bounds=(THREADS, BLOCKS[tokens]))
    def linear_decode_kernel(x, weight, N, split_bits, vectors, y):
        """A warp SET rows of group blockIdx.y, or with 2^split_bits warps its share of K. Operands: `operands`.

        The first `vectors` * 8 columns are read 16 bytes at a time, the others one by one. Divisors are powers of two
        and written as shifts: a division of 64-bit numbers takes as long as a step.
        """
        partial = cuda.shared.array((WARPS, SUMS), float32)
        words = cuda.local.array((LOADS, 4), uint32)
        x_words = cuda.local.array(4, uint32)
        sums = cuda.local.array((tokens, SET), float32)
        thread, g = cuda.threadIdx.x, cuda.blockIdx.y
        lane, warp = thread & 31, thread >> 5
        K = weight.shape[1]
        set_bits = WARP_BITS - split_bits  # 2^set_bits sets of rows a block
        n0 = ((cuda.blockIdx.x << set_bits) + (warp >> split_bits)) * SET
        first, stride = ((warp & ((1 << split_bits) - 1)) << 5) + lane, 32 << split_bits
        for m in range(tokens):
            for r in range(SET):
                sums[m, r] = float32(0.0)
        v = first
        while v < vectors:
            for i in range(AHEAD):
                u = v + i * stride
                for r in range(SET):
                    w = load_16_bytes_once(weight, g * N + n0 + r, VECTOR * u, u < vectors and n0 + r < N)
                    for q in range(4):
                        words[i * SET + r, q] = w[q]
            for i in range(AHEAD):
                u = v + i * stride
                if u < vectors:
                    for m in range(tokens):
                        a = load_16_bytes(x, m, g * K + VECTOR * u, True)
                        for q in range(4):
                            x_words[q] = a[q]
                        for r in range(SET):
                            sums[m, r] = dot(sums[m, r], x_words, words, i * SET + r)
            v += AHEAD * stride
        k = VECTOR * vectors + first
        while k < K:
            for r in range(SET):
                if n0 + r < N:
                    w_k = decode_bf16(weight[g * N + n0 + r, k])
                    for m in range(tokens):
                        sums[m, r] += decode_bf16(x[m, g * K + k]) * w_k
            k += stride
        for m in range(tokens):
            for r in range(SET):
                total = sums[m, r]
                for halvings in range(5):  # lanes 16, 8, 4, 2, 1 apart: afterwards every lane has the warp's sum
                    total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 16 >> halvings)
                if lane == 0:
                    partial[warp, m * SET + r] = total
        cuda.syncthreads()  # every warp's sums are in before those of one row are added
        if thread < SUMS << set_bits:
            of_set, i = thread // SUMS, thread % SUMS
            y_mn = float32(0.0)
            for part in range(1 << split_bits):
                y_mn += partial[(of_set << split_bits) + part, i]
            n = ((cuda.blockIdx.x << set_bits) + of_set) * SET + i % SET
            if n < N:
                y[i // SET, g * N + n] = encode_bf16(y_mn)

    return linear_decode_kernel


def split_bits(size: Sizes) -> int:
    """log2 of the warps that share a set of rows: as many as keep the memory busy and still have vectors to read."""
    bits, warps = 0, size.groups * -(-size.N // ROWS[size.M])
    while bits < WARP_BITS and 2 * warps <= ENOUGH_WARPS and 2 * 32 * VECTOR << bits <= size.K:
        bits, warps = bits + 1, 2 * warps
    return bits


def launch_decode(x: Any, weight: Any, groups: int, y: Any) -> None:
    """Fill y; 1 to 4 rows of x, any other sizes (see `operands`)."""
    size = sizes(x, weight, groups)
    if not 1 <= size.M <= MAX_TOKENS:
        raise ValueError(f"x: expected 1 to {MAX_TOKENS} rows, got {size.M}")
    bits = split_bits(size)
    blocks = -(-size.N // (ROWS[size.M] * (WARPS >> bits)))
    vectors = size.K // VECTOR if size.K % VECTOR == 0 and on_16_bytes(x, weight) else 0
    launch(kernel(size.M), (blocks, groups), THREADS, x, weight, size.N, bits, vectors, y)
