"""The fp8 linear for one to four tokens: one byte of weight a number crosses memory, and tensor cores undo the codes.

Math       y[m, n] = sum over blocks b of 32 columns of (sum_{k in b} code[m, k] * codes[n, k]) * (sx[m, b] * sw), with
           x quantised as `ops.linear_fp8` has it
Shapes     x [M, K] bf16 with M from 1 to 4, K a multiple of 32 up to 8192; codes [N, K] e4m3 and scale e8m0 of blocks
           of `rows` (a multiple of 16) x `columns` (32, 64, 128, ...) -> y [M, N] bf16; any N
Precision  codes, scales and the products of two codes are exact. The sum of a block is the tensor cores' (f32, 64
           columns in an order of their own), its scaling that of `ops.linear_fp8`, in f32. The blocks are NOT added in
           the order of K: a lane adds every second block of its chunks, then two lanes, then the warps that share rows;
           so a result may be one bf16 step from the plain kernel's
Launch     grid (blocks for the N rows), block 256; up to 39 KiB of shared memory
Moves      N K bytes of codes, N K / 1024 of scales (of 32 x 32), 2 M (K + N); the floor is memory bandwidth
Errors     ValueError when the sizes are not as above
Source     steps 1, 2, 3, 6 and 14 of a decode step; compute capability 8.9 and up

A chunk is 16 rows x 64 columns of codes, 32 bytes a lane: with lane = 4 g + t those of rows g and g + 8, columns
16 t to 16 t + 15. That is two scale blocks, lanes with t < 2 hold the first. The 8 columns of mma.sync's B keep them
apart: 4 of them are the tokens times the first block, where the second has zeros, and 4 the other way round::

                 columns of the chunk:  0 ... 31  32 ... 63
       B, n = 0 1 2 3  (tokens)         codes     0            sums of block 2 c
          n = 4 5 6 7  (tokens)         0         codes        sums of block 2 c + 1

The order of columns within a block is free, as long as both operands keep the same one: so each lane's 16 bytes are
operands as they lie, once two codes at a time have become two f16, in which they are exact.

The activation is quantised by every block for itself, into shared memory, while its first codes of weight are on their
way: a launch of its own would take longer. The registers of a chunk are asked for anew as soon as it has been used.
"""

import functools
from typing import Any

import numpy as np
from numba import cuda, float32, int32, uint32

from dsv41_numba.formats.bf16 import decode_bf16, encode_bf16
from dsv41_numba.formats.e8m0 import decode_e8m0, encode_e8m0
from dsv41_numba.formats.fp8_weight import Fp8Weight
from dsv41_numba.ops.quant_fp8 import AMAX_FLOOR, INVERSE_448, word_max
from dsv41_numba.runtime.backend import launch
from dsv41_numba.tuned.linear_decode import high, low
from dsv41_numba.tuned.linear_fp8 import DECODE_TOKENS, GROUP, MAX_COLUMNS, why_not_decode
from dsv41_numba.tuned.operands import on_16_bytes
from dsv41_numba.tuned.ptx import (
    first_e4m3_as_f16,
    last_e4m3_as_f16,
    load_16_bytes,
    load_16_bytes_once,
    mma_m16n8k16_f16,
    opaque,
    pack_e4m3,
)

WARP_BITS = 3  # log2 of the warps a block
WARPS = 1 << WARP_BITS
THREADS = 32 * WARPS
CHUNK = 64  # columns
AHEAD = 4  # chunks of codes that a warp has asked for before it uses the first
VECTORS = 4  # of 8 bf16 of x that a thread asks for at a time
BLOCKS = 3  # a multiprocessor
ENOUGH_WARPS = 3168  # as many as 132 multiprocessors hold at once; were there more, none would share rows
# words of four codes in a token's row of shared memory: 8 more than its columns take, so that the tokens' rows begin in
# different banks
ROW_WORDS = MAX_COLUMNS // 4 + 8
CHUNK_WORDS = 2 * AHEAD
ROW_SCALES = MAX_COLUMNS // 32
GROUP_SUMS = GROUP * DECODE_TOKENS


@cuda.jit(device=True)
def quantise_vector(words, codes, scale, m, v):
    """8 neighbouring bf16 of a block of 32 -> codes[m, 2 v] and [m, 2 v + 1]; lanes 0 to 3 of four hold the block.

    All lanes of the warp call it together. scale[m, v / 4] is the block's.
    """
    part = max(max(word_max(words[0]), word_max(words[1])), max(word_max(words[2]), word_max(words[3])))
    for distance in range(1, 3):  # lanes 1 and 2 apart
        part = max(part, uint32(cuda.shfl_xor_sync(0xFFFFFFFF, int32(part), distance)))
    amax = decode_bf16(part)
    if amax < AMAX_FLOOR:  # false for a NaN, which stays
        amax = AMAX_FLOOR
    byte = uint32(encode_e8m0(amax * INVERSE_448))
    # the reciprocal of a power of two is one: 2^(127 - byte), and that of a NaN a NaN
    inverse = decode_e8m0(uint32(254) - byte if byte < uint32(255) else uint32(255))
    for i in range(2):
        first, second = words[2 * i], words[2 * i + 1]
        codes[m, 2 * v + i] = pack_e4m3(
            low(first) * inverse, high(first) * inverse, low(second) * inverse, high(second) * inverse
        )
    if v & 3 == 0:
        scale[m, v >> 2] = decode_e8m0(byte)


@cuda.jit(device=True)
def ask(words, bytes_, i, weight, upper, lower, c, t, K, scale, scales, last_scale, column_bits):
    """Ask for this lane's codes of chunk c, zeros past the last column, and for the scale of its block.

    Rows begin at weight[0, upper] and [0, lower]; the scales of the blocks that they lie in at scale[scales].
    """
    j = uint32(32 * c + 8 * t)
    inside = j < uint32(K >> 1)
    a = load_16_bytes_once(weight, 0, uint32(upper + j), inside)
    b = load_16_bytes_once(weight, 0, uint32(lower + j), inside)
    for q in range(4):
        words[2 * i, q], words[2 * i + 1, q] = a[q], b[q]
    block = uint32(uint32(2 * c + (t >> uint32(1))) >> column_bits)
    bytes_[i] = scale[uint32(scales + min(block, last_scale))]


@functools.cache
def kernel(tokens: int) -> Any:
    """The kernel for this number of rows of x."""
    STEPS = VECTORS // tokens  # vectors of each row of x that a thread asks for at a time
    X_VECTORS = STEPS * tokens

    @cuda.jit(launch_bounds=(THREADS, BLOCKS))
    def linear_fp8_decode_kernel(x, weight, scale, rows, columns_of_scales, column_bits, split_bits, y):
        """A warp the 16 rows of a group, or with 2^split_bits warps its share of K.

        weight [1, N K / 2] is words of two codes, row after row; scale is flat too, `columns_of_scales` a row of blocks
        of `rows` x 2^column_bits * 32.
        """
        x_codes = cuda.shared.array((tokens, ROW_WORDS), uint32)
        x_scale = cuda.shared.array((tokens, ROW_SCALES), float32)
        partial = cuda.shared.array((WARPS, GROUP_SUMS), float32)
        words = cuda.local.array((CHUNK_WORDS, 4), uint32)  # of chunk i rows g and g + 8
        bytes_ = cuda.local.array(AHEAD, uint32)  # and the scale of its block
        x_words = cuda.local.array((X_VECTORS, 4), uint32)
        vector = cuda.local.array(4, uint32)
        sums = cuda.local.array(4, float32)
        thread = uint32(cuda.threadIdx.x)
        lane, warp = uint32(thread & uint32(31)), uint32(thread >> uint32(5))
        g, t = uint32(lane >> uint32(2)), uint32(lane & uint32(3))
        half = uint32(t >> uint32(1))  # which of a chunk's two blocks this lane's columns are
        N, K = y.shape[1], x.shape[1]
        column_bits, split_bits = column_bits & uint32(31), split_bits & uint32(WARP_BITS)  # as the compiler may know
        chunks = uint32((K + CHUNK - 1) >> 6)
        set_bits = uint32(WARP_BITS) - split_bits  # 2^set_bits groups a block
        n0 = GROUP * uint32(uint32(uint32(cuda.blockIdx.x) << set_bits) + (warp >> split_bits))
        # past the last row that row again, whose sums nobody keeps
        upper = opaque(uint32((K >> 1) * min(n0 + g, N - 1)))
        lower = opaque(uint32((K >> 1) * min(n0 + g + 8, N - 1)))
        scales, last_scale = uint32(columns_of_scales * (min(n0, N - 1) // rows)), uint32(columns_of_scales - 1)
        stride = uint32(uint32(1) << split_bits)
        first = uint32(warp & (stride - uint32(1)))
        for i in range(AHEAD):
            c = uint32(first + i * stride)
            ask(words, bytes_, i, weight, upper, lower, c, t, K, scale, scales, last_scale, column_bits)
        # the codes of x, with zeros up to a whole chunk; every warp makes as many rounds, for the shuffles
        begin = uint32(0)
        vectors = uint32(8 * chunks)
        while begin < vectors:
            for s in range(STEPS):
                v = uint32(begin + s * THREADS + thread)
                for m in range(tokens):
                    w = load_16_bytes(x, m, 8 * v, 8 * v < K)
                    for q in range(4):
                        x_words[s * tokens + m, q] = w[q]
            for s in range(STEPS):
                v = uint32(begin + s * THREADS + thread)
                if uint32(v - lane) < vectors:  # of all lanes of a warp or of none: a chunk is 8 vectors
                    for m in range(tokens):
                        for q in range(4):
                            vector[q] = x_words[s * tokens + m, q]
                        quantise_vector(vector, x_codes, x_scale, m, v)
            begin = uint32(begin + STEPS * THREADS)
        cuda.syncthreads()  # every code of x is in place before it is multiplied
        for q in range(4):
            sums[q] = float32(0.0)
        # this lane brings codes of token g % 4, if there is one and this lane's block is the one of column g of B
        token = min(uint32(g & uint32(3)), uint32(tokens - 1))
        kept = uint32(0xFFFFFFFF) if g >> uint32(2) == half and token == g & uint32(3) else uint32(0)
        # of this lane's sums; past the last token that one again
        token0 = min(uint32(2 * (t & uint32(1))), uint32(tokens - 1))
        token1 = min(uint32(2 * (t & uint32(1)) + 1), uint32(tokens - 1))
        base = first
        while base < chunks:
            for i in range(AHEAD):
                c = uint32(base + i * stride)
                if c < chunks:
                    c0 = c1 = c2 = c3 = float32(0.0)
                    for q in range(4):
                        codes = x_codes[token, uint32(16 * c + 4 * t + q)] & kept
                        above, below = words[2 * i, q], words[2 * i + 1, q]
                        c0, c1, c2, c3 = mma_m16n8k16_f16(
                            first_e4m3_as_f16(above),
                            first_e4m3_as_f16(below),
                            last_e4m3_as_f16(above),
                            last_e4m3_as_f16(below),
                            first_e4m3_as_f16(codes),
                            last_e4m3_as_f16(codes),
                            c0,
                            c1,
                            c2,
                            c3,
                        )
                    sw = decode_e8m0(bytes_[i])
                    b = uint32(2 * c + half)
                    both0, both1 = x_scale[token0, b] * sw, x_scale[token1, b] * sw
                    sums[0] += c0 * both0
                    sums[1] += c1 * both1
                    sums[2] += c2 * both0
                    sums[3] += c3 * both1
                c = uint32(c + AHEAD * stride)
                ask(words, bytes_, i, weight, upper, lower, c, t, K, scale, scales, last_scale, column_bits)
            base = uint32(base + AHEAD * stride)
        for q in range(4):  # the lane two further has the same rows and tokens, of the other blocks
            total = sums[q] + cuda.shfl_xor_sync(0xFFFFFFFF, sums[q], 2)
            if t < 2:
                partial[warp, (g + 8 * (q >> 1)) * 4 + 2 * t + (q & 1)] = total
        cuda.syncthreads()  # every warp's sums are in before those of one row are added
        of_set = uint32(thread >> uint32(4))  # 16 threads a group, each for one row
        if of_set < uint32(1) << set_bits:
            r = uint32(thread & uint32(15))
            n = GROUP * uint32(uint32(uint32(cuda.blockIdx.x) << set_bits) + of_set) + r
            for m in range(tokens):
                y_mn = float32(0.0)
                for part in range(stride):
                    y_mn += partial[uint32(of_set << split_bits) + part, 4 * r + m]
                if n < N:
                    y[m, n] = encode_bf16(y_mn)

    return linear_fp8_decode_kernel


def split_bits(N: int, K: int) -> int:
    """log2 of the warps that share a group: as many as keep the memory busy and still have AHEAD chunks to read."""
    bits, warps, chunks = 0, -(-N // GROUP), -(-K // CHUNK)
    while bits < WARP_BITS and 2 * warps <= ENOUGH_WARPS and 2 * AHEAD << bits <= chunks:
        bits, warps = bits + 1, 2 * warps
    return bits


def launch_fp8_decode(x: Any, weight: Fp8Weight, y: Any) -> None:
    """Fill y [M, N] from x [M, K] bf16 bits and a weight of at least one row."""
    M, (N, K), (rows, columns) = x.shape[0], weight.shape, weight.block
    if reason := why_not_decode(M, N, K, weight.block, on_16_bytes(x, weight.codes)):
        raise ValueError(f"x, weight: {reason}")
    bits = split_bits(N, K)
    blocks = -(-N // (GROUP * (WARPS >> bits)))
    column_bits = np.uint32((columns // 32).bit_length() - 1)
    codes, scale = weight.codes.reshape(1, N * K).view(np.uint16), weight.scale.reshape(weight.scale.size)
    columns_of_scales = weight.scale.shape[1]
    launch(kernel(M), blocks, THREADS, x, codes, scale, rows, columns_of_scales, column_bits, np.uint32(bits), y)
