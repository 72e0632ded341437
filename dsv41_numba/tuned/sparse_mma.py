"""Sparse attention, rung mma: tensor cores by mma.sync, for any number of heads, on any GPU that has them.

Math       as in `ops.sparse_attention`
Shapes     q [T, H, D] bf16 with D a multiple of 16 and <= 512, window_rows [W, D] bf16, compress_rows [G, D] bf16,
           idx [T, S] int32, attn_sink [H] f32, scale > 0, cos, sin [P, R / 2] f32 -> o [T, H, D] bf16, the last
           R columns of each head turned back by the token's position; any T, H, W, G, S above 0
Precision  products of bf16 and their sums in f32, by the tensor cores; weights 2^(logit log2 e - maximum) in tiles of
           64 slots relative to the maximum up to their tile, for the value product as a bf16 and the bf16 of what that
           rounding left; one rounding to bf16 at the end
Launch     grid T ceil(H / 64), block 256; 48 KiB of shared memory
Moves      4 T H D bytes for q and o, 4 T S for idx, 2 D bytes for each row that is named. A tile fetches its rows twice
           and q again, mostly from the cache: that, not arithmetic, sets the time
Errors     ValueError when an array's dtype, shape or layout is not as above
Source     step 11 of the layer; compute capability 8.0 and up

A block has 64 heads of one token, and keeps their output in registers: 64 x D sums. A tile of 64 slots takes steps of
two pieces of 64 x 64 in shared memory; while one step is multiplied, the pieces of the next are on their way::

    scores, 64 columns of D a step                values, 128 columns of D a step
    q [64, 64 k ...]  rows [64, 64 k ...]         rows [64, 128 v ...]  rows [64, 128 v + 64 ...]
    S += q rows^T                                 o[:, 128 v ...] += P rows

Eight warps: warp w has heads 16 (w % 4) ... + 15, and the first (w < 4) or the second half of the slots for the scores,
of a step's columns for the values. The weights P go through shared memory, since both halves need all of them. What
bf16 leaves of a weight is one more operand A: it costs products, but no more fetching.
"""

import functools
from typing import Any

import numpy as np
from numba import cuda, float32, int32, int64, uint32

from dsv41_numba.ops.rope import turn_pair
from dsv41_numba.runtime.backend import launch
from dsv41_numba.tuned.ptx import (
    copies_commit,
    copies_wait_0,
    copy_16_bytes,
    exp2,
    ldmatrix_x4,
    ldmatrix_x4_transposed,
    pack_bf16,
)
from dsv41_numba.tuned.sparse_softmax import (
    INFINITY,
    LOG2_E,
    LOWEST,
    in_two_bf16,
    multiply,
    quad_max,
    quad_sum,
    share,
    swizzled,
)

HEADS = SLOTS = PIECE = 64  # of a block; of a tile; rows and columns of a piece
THREADS = 256
CHUNK = 8  # bf16 in 16 bytes; 4 words
TILES_SHAPE = (2, 2 * PIECE, PIECE // 2)  # steps, rows of two pieces, words of two bf16
WEIGHTS_SHAPE = (2, HEADS, SLOTS // 2)  # bf16, and what that left; before and after them what the halves exchange
LANES = 0xFFFFFFFF


@cuda.jit(device=True, forceinline=True)
def give(words, head, upper, lower):
    """One lane of each quad leaves its half's numbers of heads `head` and head + 8 where `given` finds them."""
    if cuda.threadIdx.x & 3 == 0:
        row = 2 * (cuda.threadIdx.x >> 7)
        words[0, row + (head >> 5), head & 31] = uint32(cuda.libdevice.float_as_int(upper))
        words[0, row + (head + 8 >> 5), head + 8 & 31] = uint32(cuda.libdevice.float_as_int(lower))


@cuda.jit(device=True, forceinline=True)
def given(words, half, head):
    """What that half left of a head."""
    return cuda.libdevice.int_as_float(int32(words[0, 2 * half + (head >> 5), head & 31]))


@functools.cache
def kernel(D: int) -> Any:
    """The kernel for D dimensions."""
    SCORE_STEPS, VALUE_STEPS = -(-D // PIECE), -(-D // (2 * PIECE))
    STEPS = SCORE_STEPS + VALUE_STEPS  # of a tile
    BLOCKS = 8 * VALUE_STEPS  # of a warp's output: 16 heads, 8 columns

    @cuda.jit(device=True, forceinline=True)
    def name_rows(idx, token, s0, named):
        """The two rows that this thread copies of the tile from slot s0 on; -1: none."""
        for i in range(2):
            slot = s0 + (cuda.threadIdx.x >> 3) + 32 * i
            named[i] = int32(-1)
            if slot < idx.shape[1]:
                named[i] = idx[token, slot]

    @cuda.jit(device=True, forceinline=True)
    def ask(tiles, s, step, q, first_row, heads, window_rows, compress_rows, named):
        """Ask for both pieces of a step, with zeros for what is not there. A thread copies 16 bytes of four rows."""
        chunk = cuda.threadIdx.x & 7
        for place in range(2):
            slab = step if step < SCORE_STEPS else 2 * (step - SCORE_STEPS) + place
            column = slab * PIECE + chunk * CHUNK
            for i in range(2):
                row = (cuda.threadIdx.x >> 3) + 32 * i
                to = place * PIECE + row
                if place == 0 and step < SCORE_STEPS:
                    inside = row < heads and column < D
                    m, k = (first_row + row, column) if inside else (0, 0)
                    copy_16_bytes(tiles, s, to, swizzled(row, chunk), q, m, k, 16 if inside else 0)
                elif named[i] >= window_rows.shape[0]:
                    inside = column < D
                    m, k = (named[i] - window_rows.shape[0], column) if inside else (0, 0)
                    copy_16_bytes(tiles, s, to, swizzled(row, chunk), compress_rows, m, k, 16 if inside else 0)
                else:
                    inside = named[i] >= 0 and column < D
                    m, k = (int64(named[i]), column) if inside else (int64(0), 0)
                    copy_16_bytes(tiles, s, to, swizzled(row, chunk), window_rows, m, k, 16 if inside else 0)

    @cuda.jit(device=True, forceinline=True)
    def multiply_scores(tiles, s, a, scores):
        """scores += 16 heads of q times 32 rows, over 64 columns."""
        lane, first, half = cuda.threadIdx.x & 31, (cuda.threadIdx.x >> 5 & 3) * 16, cuda.threadIdx.x >> 7
        for chunk in range(0, 8, 2):  # 16 columns
            row = first + (lane & 15)
            words = ldmatrix_x4(tiles, s, row, swizzled(row, chunk + (lane >> 4)))
            for c in range(4):
                a[0, c] = words[c]
            for j in range(0, 4, 2):
                row = PIECE + 32 * half + j * 8 + (lane >> 4) * 8 + (lane & 7)
                b = ldmatrix_x4(tiles, s, row, swizzled(row, chunk + (lane >> 3 & 1)))
                multiply(scores, j, a, 0, b[0], b[1])
                multiply(scores, j + 1, a, 0, b[2], b[3])

    def value_step(v: int) -> Any:
        """The function that does step `step` of the values if it is v or a later one.

        Sums stay in registers only under numbers that the compiler knows, so every step has a function of its own.
        """
        later = value_step(v + 1) if v + 1 < VALUE_STEPS else None

        @cuda.jit(device=True, forceinline=True)
        def multiply_values(step, tiles, s, weights, a, sums):
            """sums[8 v ...] += the weights of 16 heads times 64 columns of all 64 rows."""
            lane, first, half = cuda.threadIdx.x & 31, (cuda.threadIdx.x >> 5 & 3) * 16, cuda.threadIdx.x >> 7
            for k in range(4):  # 16 slots
                row = first + (lane & 15)
                for part in range(2):
                    words = ldmatrix_x4(weights, part, row, swizzled(row, 2 * k + (lane >> 4)))
                    for c in range(4):
                        a[part, c] = words[c]
                row = half * PIECE + 16 * k + (lane & 15)
                for n in range(0, 8, 2):
                    b = ldmatrix_x4_transposed(tiles, s, row, swizzled(row, n + (lane >> 4)))
                    for part in range(2):
                        multiply(sums, 8 * v + n, a, part, b[0], b[1])
                        multiply(sums, 8 * v + n + 1, a, part, b[2], b[3])

        @cuda.jit(device=True, forceinline=True)
        def this_or_later(step, tiles, s, weights, a, sums):
            if step == v:
                multiply_values(step, tiles, s, weights, a, sums)
            else:
                later(step, tiles, s, weights, a, sums)

        return this_or_later if later else multiply_values

    multiply_values = value_step(0)

    @cuda.jit(launch_bounds=(THREADS, 1))
    def sparse_mma_kernel(q, window_rows, compress_rows, idx, attn_sink, scale, H, cos, sin, start_pos, o):
        """One block 64 heads of a token. q [T H, D] bf16 bits, o [T H, D / 2] words of two; scale includes log2 e."""
        tiles = cuda.shared.array(TILES_SHAPE, uint32, 128)
        weights = cuda.shared.array(WEIGHTS_SHAPE, uint32, 128)
        scores = cuda.local.array((4, 4), float32)  # c0 to c3 of 8 slots each
        sums = cuda.local.array((BLOCKS, 4), float32)  # c0 to c3 of 8 columns each
        a = cuda.local.array((2, 4), uint32)  # a0 to a3 of q, or of the weights and what bf16 left of them
        named = cuda.local.array(2, int32)
        named_next = cuda.local.array(2, int32)
        groups, S = (H + HEADS - 1) // HEADS, idx.shape[1]
        token, h0 = cuda.blockIdx.x // groups, cuda.blockIdx.x % groups * HEADS
        first_row, heads = token * H + h0, H - h0
        lane, half = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 7
        head = (cuda.threadIdx.x >> 5 & 3) * 16 + (lane >> 2)  # and head + 8
        for n in range(BLOCKS):
            for c in range(4):
                sums[n, c] = float32(0.0)
        upper, lower = LOWEST, LOWEST  # the maxima so far, of heads `head` and `head` + 8
        upper_total, lower_total = float32(0.0), float32(0.0)
        s = 0
        name_rows(idx, token, 0, named)
        name_rows(idx, token, SLOTS, named_next)
        ask(tiles, s, 0, q, first_row, heads, window_rows, compress_rows, named)
        copies_commit()
        for s0 in range(0, S, SLOTS):
            own = int32(-1)
            if s0 + 32 * half + lane < S:
                own = idx[token, s0 + 32 * half + lane]
            there = uint32(cuda.ballot_sync(LANES, own >= 0))  # of this warp's 32 slots
            for j in range(4):
                for c in range(4):
                    scores[j, c] = float32(0.0)
            for step in range(STEPS):
                copies_wait_0()
                cuda.syncthreads()  # everyone's pieces of this step are in, and everyone is done with the step before
                step_next = step + 1
                if step_next == STEPS:  # the first step of the next tile
                    step_next = 0
                    named[0], named[1] = named_next[0], named_next[1]
                    name_rows(idx, token, s0 + 2 * SLOTS, named_next)
                if step_next > 0 or s0 + SLOTS < S:
                    ask(tiles, 1 - s, step_next, q, first_row, heads, window_rows, compress_rows, named)
                copies_commit()
                if step < SCORE_STEPS:
                    multiply_scores(tiles, s, a, scores)
                else:
                    multiply_values(step - SCORE_STEPS, tiles, s, weights, a, sums)
                s = 1 - s
                if step != SCORE_STEPS - 1:
                    continue
                # the scores are complete: make weights of them
                tile_upper, tile_lower = LOWEST, LOWEST
                for j in range(4):
                    for c in range(4):
                        if (there >> uint32(8 * j + 2 * (lane & 3) + c % 2)) & uint32(1) == uint32(0):
                            scores[j, c] = -INFINITY
                    tile_upper = max(tile_upper, max(scores[j, 0], scores[j, 1]))
                    tile_lower = max(tile_lower, max(scores[j, 2], scores[j, 3]))
                tile_upper, tile_lower = quad_max(tile_upper), quad_max(tile_lower)
                give(weights, head, tile_upper, tile_lower)
                cuda.syncthreads()  # both halves' maxima are in
                before_upper, before_lower = upper, lower
                upper = max(upper, max(given(weights, 0, head), given(weights, 1, head)))
                lower = max(lower, max(given(weights, 0, head + 8), given(weights, 1, head + 8)))
                cuda.syncthreads()  # and read, before weights take their place
                upper_factor, lower_factor = exp2((before_upper - upper) * scale), exp2((before_lower - lower) * scale)
                upper_total *= upper_factor
                lower_total *= lower_factor
                for n in range(BLOCKS):
                    sums[n, 0] *= upper_factor
                    sums[n, 1] *= upper_factor
                    sums[n, 2] *= lower_factor
                    sums[n, 3] *= lower_factor
                for j in range(4):
                    p0, p1 = exp2((scores[j, 0] - upper) * scale), exp2((scores[j, 1] - upper) * scale)
                    p2, p3 = exp2((scores[j, 2] - lower) * scale), exp2((scores[j, 3] - lower) * scale)
                    upper_total += p0 + p1
                    lower_total += p2 + p3
                    word = swizzled(head, 4 * half + j) + (lane & 3)
                    weights[0, head, word], weights[1, head, word] = in_two_bf16(p0, p1)
                    weights[0, head + 8, word], weights[1, head + 8, word] = in_two_bf16(p2, p3)
        upper_total, lower_total = quad_sum(upper_total), quad_sum(lower_total)
        cuda.syncthreads()  # everyone is done with the weights
        give(weights, head, upper_total, lower_total)
        cuda.syncthreads()  # both halves' totals are in
        for h in range(2):  # heads `head` and head + 8: c0 and c1, c2 and c3 of `sums`
            if head + 8 * h < heads:
                total = given(weights, 0, head + 8 * h) + given(weights, 1, head + 8 * h)
                own_share = share(total, (lower if h else upper) * scale, attn_sink[h0 + head + 8 * h])
                for n in range(BLOCKS):
                    column = n // 8 * 2 * PIECE + half * PIECE + n % 8 * 8 + 2 * (lane & 3)
                    if column < D:
                        words = pack_bf16(sums[n, 2 * h] * own_share, sums[n, 2 * h + 1] * own_share)
                        o[first_row + head + 8 * h, column // 2] = words
                # In the loop above this would keep LLVM from unrolling it, and `sums` from registers
                for pair in range(cos.shape[1]):
                    column = D - 2 * (cos.shape[1] - pair)
                    if column % (2 * PIECE) // PIECE == half and column % 8 // 2 == lane & 3:  # one this thread wrote
                        row = first_row + head + 8 * h
                        cosine, sine = cos[start_pos + token, pair], sin[start_pos + token, pair]
                        o[row, column // 2] = turn_pair(o[row, column // 2], cosine, -sine)

    return sparse_mma_kernel


def launch_mma(
    q: Any, window_rows: Any, compress_rows: Any, idx: Any, attn_sink: Any, scale: float,
    cos: Any, sin: Any, start_pos: int, o: Any,
) -> None:  # fmt: skip
    """Fill o; a multiple of 16 dimensions, at least one slot and a positive scale."""
    T, H, D = q.shape
    arguments = (q.reshape(T * H, D), window_rows, compress_rows, idx, attn_sink, np.float32(scale * LOG2_E), H)
    turn = cos, sin, start_pos
    launch(kernel(D), T * -(-H // HEADS), THREADS, *arguments, *turn, o.view(np.uint32).reshape(T * H, D // 2))
