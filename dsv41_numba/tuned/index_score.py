"""Index score on tensor cores: every head's dot products by mma.sync, the rest of the formula in their registers.

Math       that of `ops.index_score`
Shapes     index_q [T, Hi, Di] bf16, index_w [T, Hi] bf16, index_k [G, Di] bf16, start_pos and ratio integers
           -> score [T, G] f32 that holds bf16 values; Di 32, 64, 96 or 128, Hi up to 64. Keys may be PackedRows
Precision  products exact, sums in f32: 16 dimensions at a time, all of one fp4 scale; bf16 exactly where Math says so.
           The heads are added in another order than the plain kernel's, so a score may be one bf16 step off
Launch     grid (ceil(G / 256), ceil(T / 8)), block 128; no shared memory
Moves      2 T Hi Di + 2 T Hi + 2 G Di bytes in (of packed keys G Di / 2 + G Di / 32), 4 T G out
Errors     ValueError as `ops.index_score`. Other sizes, and GPUs below compute capability 8.0, run the plain kernel
Source     step 7 of the layer

A warp keeps 64 keys in registers and meets one token after the other: keys are the rows of the instruction's A, heads
the columns of its B. A dot product does not care in which order its dimensions come, as long as both sides agree. So a
lane reads 16 neighbouring bytes, 8 dimensions, and uses them as two steps' operands as they are::

    dimensions of a chunk of 32    0 1 2 3 4 5 6 7 | 8 ... 15 | 16 ... 23 | 24 ... 31
    lane 4 g + c reads             c = 0           | c = 1    | c = 2     | c = 3
    first step                     a0: 0 1  a2: 2 3
    second step                    a0: 4 5  a2: 6 7

No matrix is staged in shared memory, and nothing is shuffled on its way in. The 8 dimensions of a packed key are 4
bytes, which become the same registers (`packed_rows`). What comes out lies so that a lane has 8 of
32 heads of a key; it adds those, and the four lanes of a key meet in two shuffles.
"""

import functools
from typing import Any

import numpy as np
from numba import cuda, float32, uint32

from dsv41_numba.formats.bf16 import decode_bf16, encode_bf16
from dsv41_numba.formats.packed_rows import PackedRows
from dsv41_numba.ops import PLAIN
from dsv41_numba.ops.index_score import check_operands, key_planes
from dsv41_numba.runtime.backend import empty, launch
from dsv41_numba.tuned.operands import capability, on_16_bytes
from dsv41_numba.tuned.position import given, reader

WARPS = 4
THREADS = 32 * WARPS
KEY_TILES = 4  # of 16 keys, in the registers of a warp
KEYS = 16 * KEY_TILES  # of a warp
TOKENS = 8  # that a block goes through
CHUNK = 32  # dimensions: four lanes, 16 bytes each
MAX_CHUNKS, MAX_HEAD_TILES = 4, 8  # what the registers have room for

NEG_INF = np.float32(-np.inf)


@functools.cache
def kernel(chunks: int, head_tiles: int, position: Any = given, packed: bool = False) -> Any:
    """The kernel for this many chunks of 32 dimensions and tiles of 8 heads; `position` finds start_pos."""
    from dsv41_numba.tuned.packed_rows import eight_of_key
    from dsv41_numba.tuned.ptx import load_16_bytes, mma_m16n8k16, multiply_bf16, relu_bf16

    WORDS = 4 * chunks  # of a row, in one lane

    @cuda.jit(launch_bounds=(THREADS, 2))
    def index_score_mma_kernel(index_q, index_w, index_k, scales, start_pos, ratio, score):
        """One warp 64 keys, one block 256 of them and 8 tokens. index_q is [T * Hi, Di].

        index_k is [G, Di] bf16, or packed [G, Di / 8] words of 8 codes with their scales [G, Di / 32].
        """
        keys = cuda.local.array((KEY_TILES, 2, WORDS), uint32)
        q = cuda.local.array(WORDS, uint32)
        totals = cuda.local.array((KEY_TILES, 2), float32)
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        row, c = lane >> 2, lane & 3
        G, T, Hi = index_k.shape[0], index_w.shape[0], index_w.shape[1]
        g0 = (cuda.blockIdx.x * WARPS + warp) * KEYS
        for i in range(KEY_TILES):
            for half in range(2):
                g = g0 + 16 * i + 8 * half + row
                for j in range(chunks):
                    if packed:
                        codes, byte = uint32(0), uint32(0)
                        if g < G:
                            codes, byte = uint32(index_k[g, 4 * j + c]), uint32(scales[g, j])
                        words = eight_of_key(codes, byte)
                    else:
                        words = load_16_bytes(index_k, g, CHUNK * j + 8 * c, g < G)
                    for n in range(4):
                        keys[i, half, 4 * j + n] = words[n]
        t0 = cuda.blockIdx.y * TOKENS
        first = position(start_pos) + t0
        groups = first // ratio  # one division, not one a token: they are slow
        rest = first - groups * ratio
        for t in range(t0, min(t0 + TOKENS, T)):
            rest += 1
            if rest == ratio:
                groups, rest = groups + 1, 0
            visible = min(groups, G)
            for i in range(KEY_TILES):
                totals[i, 0] = float32(0.0)
                totals[i, 1] = float32(0.0)
            if g0 < visible:  # the same for the whole warp
                for tile in range(head_tiles):
                    h = 8 * tile + row
                    for j in range(chunks):
                        words = load_16_bytes(index_q, t * Hi + h, CHUNK * j + 8 * c, h < Hi)
                        for n in range(4):
                            q[4 * j + n] = words[n]
                    h = 8 * tile + 2 * c  # this lane's columns of the result: heads h and h + 1
                    weights = uint32(0)
                    if h < Hi:
                        weights = uint32(index_w[t, h])
                    if h + 1 < Hi:
                        weights |= uint32(uint32(index_w[t, h + 1]) << uint32(16))
                    for i in range(KEY_TILES):
                        d0, d1, d2, d3 = float32(0.0), float32(0.0), float32(0.0), float32(0.0)
                        for n in range(0, WORDS, 2):
                            d0, d1, d2, d3 = mma_m16n8k16(
                                keys[i, 0, n], keys[i, 1, n], keys[i, 0, n + 1], keys[i, 1, n + 1],
                                q[n], q[n + 1], d0, d1, d2, d3,
                            )  # fmt: skip
                        upper = multiply_bf16(relu_bf16(d0, d1), weights)
                        lower = multiply_bf16(relu_bf16(d2, d3), weights)
                        totals[i, 0] += decode_bf16(upper & uint32(0xFFFF)) + decode_bf16(upper >> uint32(16))
                        totals[i, 1] += decode_bf16(lower & uint32(0xFFFF)) + decode_bf16(lower >> uint32(16))
            for i in range(KEY_TILES):
                for half in range(2):
                    total = totals[i, half]
                    total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 1)
                    total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 2)  # the four lanes of a key have its sum
                    g = g0 + 16 * i + 8 * half + row
                    if c == i and g < G:  # one of them writes
                        score[t, g] = decode_bf16(encode_bf16(total)) if g < visible else NEG_INF

    return index_score_mma_kernel


def sizes_fit(index_q: Any, index_k: Any) -> bool:
    """Whether the kernel takes these arrays."""
    _, Hi, Di = index_q.shape
    if Di == 0 or Di % CHUNK != 0 or Di > CHUNK * MAX_CHUNKS or not 0 < Hi <= 8 * MAX_HEAD_TILES:
        return False
    return on_16_bytes(index_q, index_k.codes if isinstance(index_k, PackedRows) else index_k)


def fits(index_q: Any, index_k: Any) -> bool:
    """Whether the kernel takes these arrays, on this machine."""
    return sizes_fit(index_q, index_k) and capability() >= (8, 0)


def launch_mma(index_q: Any, index_w: Any, index_k: Any, start_pos: Any, ratio: int, score: Any) -> None:
    """Fill score [T, G]; the arrays are checked, T and G are not 0. start_pos: see `position`."""
    T, Hi, Di = index_q.shape
    grid = (-(-index_k.shape[0] // (WARPS * KEYS)), -(-T // TOKENS))
    rows = index_q.reshape(T * Hi, Di)
    packed = isinstance(index_k, PackedRows)
    keys, scales = key_planes(index_k)
    if packed:
        keys = keys.view(np.uint32)
    made = kernel(Di // CHUNK, -(-Hi // 8), reader(start_pos), packed)
    launch(made, grid, THREADS, rows, index_w, keys, scales, start_pos, ratio, score)


def index_score(index_q: Any, index_w: Any, index_k: Any, start_pos: int, ratio: int) -> Any:
    """index_q [T, Hi, Di] bf16 bits, index_w [T, Hi] bf16 bits, index_k [G, Di] bf16 bits or packed, all device arrays
    -> score [T, G] f32."""
    T, G = check_operands(index_q, index_w, index_k)
    if start_pos < 0 or ratio < 1 or T * G == 0 or not fits(index_q, index_k):
        return PLAIN.index_score(index_q, index_w, index_k, start_pos, ratio)
    score = empty((T, G), np.float32)
    launch_mma(index_q, index_w, index_k, start_pos, ratio, score)
    return score
