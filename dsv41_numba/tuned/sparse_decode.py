"""Sparse attention for a few tokens: the slots of a token are split over blocks, and a second launch combines.

Math       as in `ops.sparse_attention`
Shapes     q [T, H, D] bf16 with D a multiple of 16 and <= 512, window_rows [W, D] bf16, compress_rows [G, D] bf16,
           idx [T, S] int32, attn_sink [H] f32, scale > 0, cos, sin [P, R / 2] f32 -> o [T, H, D] bf16, the last
           R columns of each head turned back by the token's position; any T, H, W, G, S above 0. Both kinds of rows
           may be PackedRows
Precision  products of bf16 and their sums in f32, by the tensor cores; weights 2^(logit log2 e - maximum) in parts of
           32 slots, for the value product as a bf16 and the bf16 of what that rounding left; parts add up in f32; one
           rounding to bf16 at the end
Launch     1: grid (S / 32, H / 16, T), rounded up, block 256, at most 48 KiB of shared memory; 2: grid (H, T, D / 256),
           rounded up, block 512
Moves      4 T H D bytes for q and o, 4 T S for idx, 2 D bytes, or a packed row's, for each row that is named; launches
           cost more
Errors     ValueError when an array's dtype, shape or layout is not as above
Source     step 11 of the layer, for a decode step; compute capability 8.0 and up

A block has 16 heads and 32 slots of one token, and asks for all its 48 rows at once: there is one wait. Its eight warps
divide the dimensions, since nothing is as long as a chain of products that wait for each other. For the scores a warp
takes a quarter of the columns and half of the slots; then all exchange their sums, and each knows all scores::

    warp 0           warp 1    ...    warp 4           warp 5    ...
    slots 0-15       0-15             slots 16-31      16-31             q . row, of D = 512
    columns 0-127    128-255          columns 0-127    128-255
                ---- sums meet in shared memory, where q was ----
    all weights      all weights      all weights      all weights       the same numbers in each
    columns 0-63     64-127           256-319          320-383           of the part's output

What a thread holds of the scores, rounded and packed, is mma.sync's operand A as it stands: no weight passes through
shared memory. Packed rows come through registers: a warp asks for the codes and scales of all its rows before it makes
bf16 of the first, so there is one wait, too. On compute capability 9.0 and up the second launch starts while the first
one runs, and waits for its end.
"""

import ctypes
import functools
from typing import Any

import numpy as np
from numba import cuda, float32, int32, int64, types, uint32, uint64

from dsv41_numba.formats.packed_rows import COMPRESSED, WINDOW, PackedRows
from dsv41_numba.ops.rope import turn_pair
from dsv41_numba.runtime.backend import empty, launch
from dsv41_numba.tuned.cluster_launch import Launch, compiled, of_arrays
from dsv41_numba.tuned.operands import capability
from dsv41_numba.tuned.packed_rows import WORD_OF, eight_of_compressed, eight_of_window, unpack_rows
from dsv41_numba.tuned.position import in_memory, reader
from dsv41_numba.tuned.ptx import (
    copies_commit,
    copies_wait_0,
    copy_16_bytes,
    exp2,
    launch_next,
    launch_wait,
    ldmatrix_x4,
    ldmatrix_x4_transposed,
    load_4_floats,
    pack_bf16,
    store_2_floats,
)
from dsv41_numba.tuned.sparse_softmax import (
    INFINITY,
    LOG2_E,
    LOWEST,
    in_two_bf16,
    multiply,
    quad_max,
    quad_sum,
    swizzled,
)

HEADS, SLOTS = 16, 32  # of a block: the M of mma.sync, and four times its N
THREADS = 256
WARPS = 8
QUARTERS = 4  # of the columns, for the scores; a warp has one of them, and half of the slots
CHUNK = 8  # bf16 in 16 bytes; 4 words
LANES = 0xFFFFFFFF
# combining
COMBINE_THREADS = 512
GROUPS = 8  # of threads: each takes every eighth part
GROUP_THREADS = 64
COLUMNS = 256  # of a block, 4 a thread
AT_ONCE = 4  # parts that a group asks for before it uses the first


@functools.cache
def parts_kernel(D: int, early: bool, packed: bool) -> Any:
    """The kernel that makes the parts, for D dimensions; `early`: the next launch may start while it runs; `packed`:
    the rows are codes and scales."""
    ROW = next(size for size in (128, 256, 512) if size >= D)  # columns in shared memory: 16 or more for each warp
    WORDS, CHUNKS = ROW // 2, ROW // CHUNK
    QUARTER, EIGHTH = ROW // QUARTERS, ROW // WARPS
    # what the warps exchange takes the place of q: 32 words for each of the 8 numbers that the threads of a warp have
    PER_ROW = WORDS // 32
    WARP_ROWS = 8 // PER_ROW
    Q_ROWS = max(HEADS, WARPS * WARP_ROWS)
    TILES_SHAPE = (1, Q_ROWS + SLOTS, WORDS)
    WARP_SLOTS, LANE_CHUNKS = SLOTS // WARPS, -(-CHUNKS // 32)
    WINDOW_SHARERS, COMPRESSED_SHARERS = WINDOW.block // CHUNK, COMPRESSED.block // CHUNK  # chunks with one scale

    @cuda.jit(device=True, forceinline=True)
    def copy_row(tiles, row, array, i, there):
        """Ask for tiles[0, row] = array[i], zeros unless `there`; one warp."""
        for c0 in range(0, CHUNKS, 32):
            chunk = c0 + (cuda.threadIdx.x & 31)
            if chunk < CHUNKS:
                inside = there and chunk * CHUNK < D
                m, column = (i, chunk * CHUNK) if inside else (int64(0), int64(0))
                copy_16_bytes(tiles, 0, row, swizzled(row, chunk), array, m, column, 16 if inside else 0)

    # packed rows come in pieces of 32 chunks of a row, PIECES of them for each warp
    PIECES = WARP_SLOTS * LANE_CHUNKS

    @cuda.jit(device=True, forceinline=True)
    def place(n):
        """The row among the slots, and this lane's chunk of it, of a warp's piece n."""
        return (cuda.threadIdx.x >> 5) * WARP_SLOTS + n // LANE_CHUNKS, n % LANE_CHUNKS * 32 + (cuda.threadIdx.x & 31)

    @cuda.jit(device=True, forceinline=True)
    def ask(n, own, window_rows, window_scales, compress_rows, compress_scales):
        """This lane's codes and scale of piece n, zeros where there are none; whether the row is a compressed one."""
        row, chunk = place(n)
        W, i = window_rows.shape[0], cuda.shfl_sync(LANES, own, row)
        codes, scale = uint64(0), uint32(0)
        if i >= W and chunk * CHUNK < D:
            codes = uint64(compress_rows[int64(i) - W, chunk])
            scale = uint32(compress_scales[int64(i) - W, chunk // COMPRESSED_SHARERS])
        elif i >= 0 and chunk * CHUNK < D:
            codes = uint64(window_rows[i, chunk])
            scale = uint32(window_scales[i, chunk // WINDOW_SHARERS])
        return codes, scale, i >= W

    @cuda.jit(device=True, forceinline=True)
    def unpack(n, codes, scale, compressed, tiles):
        """Piece n as bf16 to where the row belongs."""
        row, chunk = place(n)
        if compressed:
            words = eight_of_compressed(uint32(codes & uint64(0xFFFFFFFF)), scale)
        else:
            words = eight_of_window(codes, scale)
        if chunk < CHUNKS:
            for word in range(4):
                tiles[0, Q_ROWS + row, swizzled(Q_ROWS + row, chunk) + word] = words[word]

    def from_piece(n: int) -> Any:
        """The function that brings pieces n and up: it asks for one, has the later ones brought, then unpacks its own.

        So all of them are on their way before the first is waited for. A loop would need an array of pieces, and have
        to be unrolled for that to be registers.
        """
        later = from_piece(n + 1) if n + 1 < PIECES else None

        @cuda.jit(device=True, forceinline=True)
        def this_and_later(tiles, own, window_rows, window_scales, compress_rows, compress_scales):
            codes, scale, compressed = ask(n, own, window_rows, window_scales, compress_rows, compress_scales)
            later(tiles, own, window_rows, window_scales, compress_rows, compress_scales)
            unpack(n, codes, scale, compressed, tiles)

        @cuda.jit(device=True, forceinline=True)
        def this_alone(tiles, own, window_rows, window_scales, compress_rows, compress_scales):
            codes, scale, compressed = ask(n, own, window_rows, window_scales, compress_rows, compress_scales)
            unpack(n, codes, scale, compressed, tiles)

        return this_and_later if later else this_alone

    bring_packed_rows = from_piece(0)

    @cuda.jit(launch_bounds=(THREADS, 2))
    def sparse_decode_parts_kernel(
        q, window_rows, window_scales, compress_rows, compress_scales, idx, scale, H, o_parts, sums_parts
    ):  # fmt: skip
        """Part blockIdx.x of the slots, for 16 heads from 16 blockIdx.y on of token blockIdx.z.

        q [T H, D] bf16 bits; packed rows are words of 8 codes, [W, D / 8] uint64 and [G, D / 8] uint32; scale includes
        log2 e; o_parts [T H parts, D] f32: weights times values, not divided; sums_parts [T H, 2 parts] f32: of each
        part the maximum times scale, and behind them the sums of the weights.
        """
        tiles = cuda.shared.array(TILES_SHAPE, uint32, 128)
        scores = cuda.local.array((4, 4), float32)  # c0 to c3 of 8 slots each
        a = cuda.local.array((1, 4), uint32)
        p = cuda.local.array((2, 4), uint32)  # a0 to a3 of 16 slots each: the weights in bf16
        rest = cuda.local.array((2, 4), uint32)  # and what the rounding left
        sums = cuda.local.array((2, 4), float32)
        part, h0, token = cuda.blockIdx.x, cuda.blockIdx.y * HEADS, cuda.blockIdx.z
        parts, S, W = cuda.gridDim.x, idx.shape[1], window_rows.shape[0]
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        quarter, half = warp & 3, warp >> 2
        if early:
            launch_wait()
            launch_next()
        own = int32(-1)
        if part * SLOTS + lane < S:
            own = idx[token, part * SLOTS + lane]
        for r in range(HEADS // WARPS):
            row = warp * (HEADS // WARPS) + r
            copy_row(tiles, row, q, token * H + h0 + row, h0 + row < H)
        if packed:
            bring_packed_rows(tiles, own, window_rows, window_scales, compress_rows, compress_scales)
        else:
            for r in range(WARP_SLOTS):
                row = warp * WARP_SLOTS + r
                i = cuda.shfl_sync(LANES, own, row)
                if i >= W:
                    copy_row(tiles, Q_ROWS + row, compress_rows, int64(i) - W, True)
                else:
                    copy_row(tiles, Q_ROWS + row, window_rows, int64(i), i >= 0)
        there = uint32(cuda.ballot_sync(LANES, own >= 0))
        copies_commit()
        copies_wait_0()
        cuda.syncthreads()  # everyone's copies are in
        for j in range(2):
            for c in range(4):
                sums[j, c] = float32(0.0)
        for k in range(0, QUARTER, 16):
            chunk = (quarter * QUARTER + k) // CHUNK
            row = lane & 15
            words = ldmatrix_x4(tiles, 0, row, swizzled(row, chunk + (lane >> 4)))
            for c in range(4):
                a[0, c] = words[c]
            row = Q_ROWS + 16 * half + (lane >> 4) * 8 + (lane & 7)
            b = ldmatrix_x4(tiles, 0, row, swizzled(row, chunk + (lane >> 3 & 1)))
            multiply(sums, 0, a, 0, b[0], b[1])
            multiply(sums, 1, a, 0, b[2], b[3])
        cuda.syncthreads()  # everyone is done with q: the sums take its place
        for i in range(8):
            bits = cuda.libdevice.float_as_int(sums[i // 4, i % 4])
            tiles[0, warp * WARP_ROWS + i // PER_ROW, i % PER_ROW * 32 + lane] = uint32(bits)
        cuda.syncthreads()  # every warp's sums are in before they are added
        for i in range(16):
            score = float32(0.0)
            for k in range(QUARTERS):
                source = i // 8 * QUARTERS + k  # the warps with number i's half of the slots
                word = tiles[0, source * WARP_ROWS + i % 8 // PER_ROW, i % PER_ROW * 32 + lane]
                score += cuda.libdevice.int_as_float(int32(word))
            slot = 8 * (i // 4) + 2 * (lane & 3) + i % 2
            filled = (there >> uint32(slot)) & uint32(1) != uint32(0)
            scores[i // 4, i % 4] = score if filled else -INFINITY
        upper, lower = LOWEST, LOWEST
        for j in range(4):
            upper = max(upper, max(scores[j, 0], scores[j, 1]))
            lower = max(lower, max(scores[j, 2], scores[j, 3]))
        upper, lower = quad_max(upper) * scale, quad_max(lower) * scale
        upper_sum, lower_sum = float32(0.0), float32(0.0)
        for j in range(4):
            p0, p1 = exp2(scores[j, 0] * scale - upper), exp2(scores[j, 1] * scale - upper)
            p2, p3 = exp2(scores[j, 2] * scale - lower), exp2(scores[j, 3] * scale - lower)
            upper_sum += p0 + p1
            lower_sum += p2 + p3
            k, c = j // 2, j % 2 * 2
            p[k, c], rest[k, c] = in_two_bf16(p0, p1)
            p[k, c + 1], rest[k, c + 1] = in_two_bf16(p2, p3)
        head = h0 + (lane >> 2)
        upper_row, lower_row = token * H + head, token * H + head + 8
        for n in range(0, EIGHTH, 16):
            for j in range(2):
                for c in range(4):
                    sums[j, c] = float32(0.0)
            for k in range(2):
                row = Q_ROWS + 16 * k + (lane & 15)
                b = ldmatrix_x4_transposed(
                    tiles, 0, row, swizzled(row, (warp * EIGHTH + n) // CHUNK + (lane >> 4))
                )  # fmt: skip
                multiply(sums, 0, p, k, b[0], b[1])
                multiply(sums, 1, p, k, b[2], b[3])
                multiply(sums, 0, rest, k, b[0], b[1])
                multiply(sums, 1, rest, k, b[2], b[3])
            for j in range(2):
                d = warp * EIGHTH + n + 8 * j + 2 * (lane & 3)
                inside = ROW == D or d < D
                store_2_floats(o_parts, upper_row * parts + part, d, sums[j, 0], sums[j, 1], inside and head < H)
                store_2_floats(o_parts, lower_row * parts + part, d, sums[j, 2], sums[j, 3], inside and head + 8 < H)
        upper_sum, lower_sum = quad_sum(upper_sum), quad_sum(lower_sum)
        if warp == 0 and lane & 3 == 0:
            if head < H:
                sums_parts[upper_row, part], sums_parts[upper_row, parts + part] = upper, upper_sum
            if head + 8 < H:
                sums_parts[lower_row, part], sums_parts[lower_row, parts + part] = lower, lower_sum

    return sparse_decode_parts_kernel


@functools.cache
def combine_kernel(early: bool, position_of: Any) -> Any:
    """The kernel that adds the parts up; `early`: it may start while the launch before it runs."""

    @cuda.jit(launch_bounds=(COMBINE_THREADS, 1))
    def sparse_decode_combine_kernel(o_parts, sums_parts, attn_sink, cos, sin, start_pos, o):
        """Columns from 256 blockIdx.z on of head blockIdx.x of token blockIdx.y.

        o [T H, D / 2] words of two bf16; o_parts and sums_parts as they were made.
        """
        partial = cuda.shared.array((GROUPS, COLUMNS), float32)
        values = cuda.local.array((AT_ONCE, 4), float32)
        sums = cuda.local.array(4, float32)
        row = cuda.blockIdx.y * cuda.gridDim.x + cuda.blockIdx.x
        parts, D = sums_parts.shape[1] // 2, o_parts.shape[1]
        lane, group = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 6
        column = (cuda.threadIdx.x & (GROUP_THREADS - 1)) * 4
        d = cuda.blockIdx.z * COLUMNS + column
        for c in range(4):
            sums[c] = float32(0.0)
        if early:
            launch_wait()
        # the sink is one of the weights, and its exponent the first maximum; -inf is no sink
        sink = attn_sink[cuda.blockIdx.x] * LOG2_E
        top = max(sink, LOWEST)
        denominator = exp2(sink - top)
        for first in range(0, parts, 32):  # at most 32 at a time: lane i knows the weight of part first + i
            for i in range(AT_ONCE):
                part = first + group + GROUPS * i
                loaded = load_4_floats(o_parts, row * parts + part, d, part < parts and d < D)
                for c in range(4):
                    values[i, c] = loaded[c]
            maximum, total = -INFINITY, float32(0.0)
            if first + lane < parts:
                maximum, total = sums_parts[row, first + lane], sums_parts[row, parts + first + lane]
            before, top = top, max(top, maximum)
            for i in range(5):  # lanes 16, 8, 4, 2, 1 apart: afterwards every lane has the largest
                top = max(top, cuda.shfl_xor_sync(LANES, top, 16 >> i))
            factor, weight = exp2(before - top), exp2(maximum - top)
            total *= weight
            for i in range(5):
                total += cuda.shfl_xor_sync(LANES, total, 16 >> i)
            denominator = denominator * factor + total
            for c in range(4):
                sums[c] *= factor
            for i in range(AT_ONCE):
                part_weight = cuda.shfl_sync(LANES, weight, group + GROUPS * i)
                for c in range(4):
                    sums[c] += part_weight * values[i, c]
        for c in range(4):
            partial[group, column + c] = sums[c]
        cuda.syncthreads()  # every group's sums are in before they are added
        if group == 0 and d < D:
            share = float32(1.0) / denominator if denominator > float32(0.0) else float32(0.0)
            for c in range(4):
                for other in range(1, GROUPS):
                    sums[c] += partial[other, column + c]
                sums[c] *= share
            position = position_of(start_pos) + cuda.blockIdx.y
            for i in range(2):
                word = pack_bf16(sums[2 * i], sums[2 * i + 1])
                pair = d // 2 + i - (D // 2 - cos.shape[1])
                if pair >= 0:
                    word = turn_pair(word, cos[position, pair], -sin[position, pair])
                o[row, d // 2 + i] = word

    return sparse_decode_combine_kernel


# ---- host ----------------------------------------------------------------------------------------------------------
BITS, WORDS_2D = types.Array(types.uint16, 2, "C"), types.Array(types.uint32, 2, "C")
BYTES, LONGS = types.Array(types.uint8, 2, "C"), types.Array(types.uint64, 2, "C")
FLOATS, FLOATS_2D = types.Array(types.float32, 1, "C"), types.Array(types.float32, 2, "C")
POSITION_IN_MEMORY = types.Array(types.int64, 1, "C")


def parts_signature(packed: bool) -> tuple[Any, ...]:
    window, compressed = (LONGS, WORDS_2D) if packed else (BITS, BITS)
    indices = types.Array(types.int32, 2, "C")
    return BITS, window, BYTES, compressed, BYTES, indices, types.float32, types.int64, FLOATS_2D, FLOATS_2D


def combine_signature(position_of: Any) -> tuple[Any, ...]:
    position = POSITION_IN_MEMORY if position_of is in_memory else types.int64
    return FLOATS_2D, FLOATS_2D, FLOATS, FLOATS_2D, FLOATS_2D, position, WORDS_2D


@functools.cache
def compiled_early(D: int, packed: bool, position_of: Any) -> tuple[Any, Any]:
    """The driver's handles of both kernels, each of which may start while the launch before it runs."""
    makes = compiled(parts_kernel(D, True, packed), parts_signature(packed), 0)
    return makes, compiled(combine_kernel(True, position_of), combine_signature(position_of), 0)


def planes(rows: Any) -> tuple[Any, Any]:
    """What the kernel is given of rows: bf16 and no scales, or words of 8 codes and their scales."""
    if isinstance(rows, PackedRows):
        return rows.codes.view(WORD_OF[rows.format]), rows.scales
    return rows, empty((0, 0), np.uint8)


def launch_decode(
    q: Any, window_rows: Any, compress_rows: Any, idx: Any, attn_sink: Any, scale: float,
    cos: Any, sin: Any, start_pos: Any, o: Any,
) -> None:  # fmt: skip
    """Fill o; a multiple of 16 dimensions, at least one slot and a positive scale. start_pos is an integer, or a device
    array [1] int64 that holds it."""
    T, H, D = q.shape
    parts = -(-idx.shape[1] // SLOTS)
    packed = isinstance(window_rows, PackedRows) and isinstance(compress_rows, PackedRows)
    if not packed:  # one kernel for both kinds of rows in bf16, one for both packed
        window_rows, compress_rows = unpack_rows(window_rows), unpack_rows(compress_rows)
    rows = *planes(window_rows), *planes(compress_rows)
    q, o = q.reshape(T * H, D), o.view(np.uint32).reshape(T * H, D // 2)
    o_parts, sums_parts = empty((T * H * parts, D), np.float32), empty((T * H, 2 * parts), np.float32)
    log2_scale = np.float32(scale * LOG2_E)
    grids = (parts, -(-H // HEADS), T), (H, T, -(-D // COLUMNS))
    blocks = THREADS, COMBINE_THREADS
    if capability() >= (9, 0):
        makes = [*of_arrays(q, *rows, idx), ctypes.c_float(float(log2_scale)), ctypes.c_int64(H)]
        makes += of_arrays(o_parts, sums_parts)
        position_of = reader(start_pos)
        combines = of_arrays(o_parts, sums_parts, attn_sink, cos, sin)
        combines += of_arrays(start_pos) if position_of is in_memory else [ctypes.c_int64(start_pos)]
        combines += of_arrays(o)
        keep = (q, *rows, idx, attn_sink, cos, sin, start_pos, o, o_parts, sums_parts)
        functions = compiled_early(D, packed, position_of)
        for function, grid, block, values in zip(functions, grids, blocks, (makes, combines), strict=True):
            Launch(function, grid, block, 1, 0, values, keep)()
    else:
        arguments = (q, *rows, idx, log2_scale, H, o_parts, sums_parts)
        launch(parts_kernel(D, False, packed), grids[0], blocks[0], *arguments)
        combine = combine_kernel(False, reader(start_pos))
        launch(combine, grids[1], blocks[1], o_parts, sums_parts, attn_sink, cos, sin, start_pos, o)
