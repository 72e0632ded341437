"""Sparse attention, rung wgmma: 64 heads are the M of Hopper's warpgroup products, gathered rows are keys and values.

Math       as in `ops.sparse_attention`
Shapes     q [T, H, 512] bf16 with H a multiple of 64, window_rows [W, 512] bf16, compress_rows [G, 512] bf16,
           idx [T, S] int32, attn_sink [H] f32, scale > 0, cos, sin [P, R / 2] f32 with R 64 or 0 -> o [T, H, 512]
           bf16, the last R columns of each head turned back by the token's position; any T, W, G, S above 0
Precision  products of bf16 and their sums in f32, by the tensor cores; weights 2^(logit log2 e - maximum), rounded to
           bf16 for the value product, in tiles of 64 slots relative to the maximum up to their tile, and summed
           unrounded; one rounding to bf16 at the end
Launch     grid min(T H / 64, multiprocessors), block 384; 210 KiB of dynamic shared memory
Moves      4 T H 512 bytes for q and o, 4 T S for idx, 1024 bytes for each row that is named; the floor is arithmetic:
           4 T S H 512 operations at the rate of wgmma
Errors     ValueError when an array's dtype, shape or layout is not as above
Source     step 11 of the layer; compute capability 9.0

A block takes 64 heads of one token, an item, after the other. Each gathered row is loaded once and serves all 64 heads,
first as a key, then as a value; the same bytes in shared memory are operand B of both products. Three warpgroups:

    scores of the even tiles of 64 slots | scores of the odd tiles        | copies q, gathers rows with cp.async, as far
    output columns 0 to 255              | output columns 256 to 511      | ahead as there is room: into the next item

A pair of tiles goes through the first two like this (S scores, P weights, V values). The odd tile's maximum builds on
the even one's, and each half of the output takes both tiles in their order::

    even    S even | maximum even -> | P even -> | O += P even V even | wait P odd | O += P odd V odd | next S even
    odd     S odd  | wait maximum even | P odd -> | wait P even | O += P even V even | O += P odd V odd | next S odd

Mbarriers say "full" and "free" of each half of a tile's columns, so that scores begin when the first half is there. The
warpgroups tell each other of maxima and weights by numbered barriers. A finished item's output leaves while the next
item's first scores are multiplied.
"""

import ctypes
import functools
from typing import Any

from numba import cuda, float32, int32, int64, types, uint32, uint64

from dsv41_numba.ops.checks import address
from dsv41_numba.tuned.cluster_launch import Launch, compiled
from dsv41_numba.tuned.ptx import (
    DESCRIPTOR_LOW,
    V_ROWS,
    attention_registers,
    barrier_arrive,
    barrier_sync,
    copies_arrive,
    copy_16_bytes_at,
    divide,
    exp2,
    fence_async,
    fence_mbarrier_init,
    launch_next,
    launch_wait,
    load_float,
    load_index,
    mbarrier_arrive,
    mbarrier_init,
    mbarrier_wait,
    pack_bf16,
    registers_less,
    registers_more,
    shared_address,
    uniform,
    wgmma_wait_0,
)
from dsv41_numba.tuned.sparse_softmax import INFINITY, LOG2_E, LOWEST, quad_max, quad_sum, share

HEADS, DIMS = 64, 512  # of an item
ROW_BYTES = 2 * DIMS
ITEM_BYTES = HEADS * ROW_BYTES
TURNED = 64  # the last columns of a head, by a row of half as many cosines and sines of 4 bytes
TILE = 64  # slots
THREADS = 384
LANES = 0xFFFFFFFF

# Dynamic shared memory, from a multiple of 1024 bytes on. A block of 64 rows x 64 columns is 8192 bytes, its rows 128
# bytes, swizzled as TMA would: 16-byte chunk c of row r at chunk c ^ (r % 8).
BLOCK = 8192
Q = 0  # 8 blocks
ROWS = Q + 8 * BLOCK  # two tiles of 8 blocks
WEIGHTS = ROWS + 16 * BLOCK  # a block each
BARRIERS = WEIGHTS + 2 * BLOCK  # mbarriers, 8 bytes each
FULL = BARRIERS  # [tile][half]
FREE = BARRIERS + 32  # [tile][half]
Q_FULL, Q_FREE = BARRIERS + 64, BARRIERS + 72
END = BARRIERS + 80
SHARED_BYTES = END + 1024  # for the multiple of 1024

# numbered barriers of the two warpgroups that multiply: one arrives, the other waits
MAXIMUM_EVEN, WEIGHTS_EVEN, WEIGHTS_ODD = 1, 2, 3
BOTH = 256

registers = attention_registers()
scores_first, scores_second = registers.scores_first, registers.scores_second
declare, clear, scores_read, rescale = registers.declare, registers.clear, registers.scores_read, registers.rescale
values_of_registers, values_of_shared = registers.values_of_registers, registers.values_of_shared
weights_store, write, write_turned = registers.weights_store, registers.write, registers.write_turned


# ---- softmax of a tile: a thread has 16 slots of heads `head` and `head` + 8 -----------------------------------------
@cuda.jit(device=True, forceinline=True)
def tile_maxima(s, mask, tile, lane):
    """Take empty slots out of the scores; the largest of each of the two heads. mask[tile]: 16 slots a word."""
    slot = (lane & uint32(3)) * uint32(2)
    if (mask[tile, 0] & mask[tile, 1] & mask[tile, 2] & mask[tile, 3]) != uint32(0xFFFF):
        for j in range(8):
            bits = mask[tile, j >> 1] >> (uint32((j & 1) * 8) + slot)
            if (bits & uint32(1)) == uint32(0):
                s[4 * j] = -INFINITY
                s[4 * j + 2] = -INFINITY
            if (bits & uint32(2)) == uint32(0):
                s[4 * j + 1] = -INFINITY
                s[4 * j + 3] = -INFINITY
    upper = cuda.local.array(8, float32)
    lower = cuda.local.array(8, float32)
    for j in range(8):
        upper[j] = max(s[4 * j], s[4 * j + 1])
        lower[j] = max(s[4 * j + 2], s[4 * j + 3])
    for j in range(4):
        upper[j] = max(upper[j], upper[j + 4])
        lower[j] = max(lower[j], lower[j + 4])
    x = max(max(upper[0], upper[1]), max(upper[2], upper[3]))
    y = max(max(lower[0], lower[1]), max(lower[2], lower[3]))
    return quad_max(x), quad_max(y)


@cuda.jit(device=True, forceinline=True)
def tile_weights(s, p, upper, lower, scale):
    """p = bf16 of 2^(s scale - maximum scale), two a word; this thread's sums of the unrounded ones.

    scale includes log2 e; upper and lower are the maxima of the two heads.
    """
    upper *= scale
    lower *= scale
    sums = cuda.local.array(4, float32)
    for i in range(4):
        sums[i] = float32(0.0)
    for j in range(8):
        p0 = exp2(s[4 * j] * scale - upper)
        p1 = exp2(s[4 * j + 1] * scale - upper)
        p2 = exp2(s[4 * j + 2] * scale - lower)
        p3 = exp2(s[4 * j + 3] * scale - lower)
        sums[j & 1] += p0 + p1
        sums[2 + (j & 1)] += p2 + p3
        p[2 * j] = pack_bf16(p0, p1)
        p[2 * j + 1] = pack_bf16(p2, p3)
    return sums[0] + sums[1], sums[2] + sums[3]


@cuda.jit(device=True, forceinline=True)
def finish(upper_total, lower_total, upper, lower, sinks, item, groups, head, o, cos, sin, scale, lane):
    """Write the output of one item: 256 columns of 64 heads a warpgroup, the last 64 turned unless cos is 0."""
    token = divide(item, groups)
    sink = sinks + uint64((item - token * groups) * uint32(HEADS) + head) * uint64(4)
    upper_share = share(upper_total, upper * scale, load_float(sink))
    lower_share = share(lower_total, lower * scale, load_float(sink + uint64(32)))
    odd = lane & uint32(1)
    inside = head * uint32(ROW_BYTES) + odd * uint32(16) + (lane & uint32(2)) * uint32(4)
    to = o + uint64(item) * uint64(ITEM_BYTES) + uint64(inside)
    if cos == uint64(0):
        write(upper_share, lower_share, to, odd)
    else:
        row = uint64(token) * uint64(2 * TURNED) + uint64((lane & uint32(3)) * uint32(4))
        write_turned(upper_share, lower_share, to, odd, cos + row, sin + row)


@cuda.jit(device=True, forceinline=True)
def start_scores(q, keys, full, phase):
    """Start the scores of a tile, each half of the columns as soon as it is there."""
    mbarrier_wait(full, phase)
    fence_async()  # cp.async wrote the rows, the tensor cores read them by another way
    scores_first(q, keys)
    mbarrier_wait(full + uint32(8), phase)
    fence_async()
    scores_second(q, keys)


@cuda.jit(device=True, forceinline=True)
def release(barrier, lane):
    """This warp is done with what the barrier guards."""
    cuda.syncwarp()  # all its lanes are, before one of them says so
    if lane == uint32(0):
        mbarrier_arrive(barrier)


# ---- the three roles -----------------------------------------------------------------------------------------------
@cuda.jit(device=True, forceinline=True)
def row_source(window, compress, W, i):
    """Where row i begins in device memory, and how many bytes a copy of 16 takes from it: none of an empty slot."""
    row = max(i, int32(0))
    source = window + uint64(int64(row)) * uint64(ROW_BYTES)
    if row >= W:
        source = compress + uint64(int64(row) - int64(W)) * uint64(ROW_BYTES)
    return source, uint32(16) if i >= 0 else uint32(0)


@cuda.jit(device=True, forceinline=True)
def gather(base, mask, q, window, compress, idx, W, S, items, groups):
    """Fill q and the tiles, item after item, as far ahead as the others free them. One warpgroup.

    A warp copies 16 rows of a tile, 8 lanes a row: with one instruction 128 bytes of four rows. Rows r, r + 4, r + 8
    and r + 12 of lane 8 r + c are turned by r, r + 4, r and r + 4 chunks.
    """
    tid = uint32(cuda.threadIdx.x)
    lane = tid & uint32(31)
    warp = (tid >> uint32(5)) & uint32(3)
    r = lane >> uint32(3)
    c = lane & uint32(7)
    first = warp * uint32(16)
    even = (first + r) * uint32(128) + ((c ^ r) << uint32(4))
    odd = even ^ uint32(64)  # c ^ (r + 4)
    column = uint64(c * uint32(16))
    window += column
    compress += column
    q += column + uint64((first + r) * uint32(ROW_BYTES))
    tiles = uint32((S + uint32(2 * TILE - 1)) >> uint32(7)) << uint32(1)  # an odd last tile is followed by an empty one
    slot = first + (lane & uint32(15))  # of a tile: the one whose index this lane fetches
    step = uint32(cuda.gridDim.x)
    item = uint32(cuda.blockIdx.x)
    item_idx = idx + uint64(divide(item, groups)) * uint64(S) * uint64(4)
    phase = uint32(0)  # of the tiles
    q_phase = uint32(0)
    i = int32(-1)
    if slot < S:
        i = load_index(item_idx + uint64(slot) * uint64(4))
    while item < items:
        mbarrier_wait(base + uint32(Q_FREE), q_phase ^ uint32(1))
        q_item = q + uint64(item) * uint64(ITEM_BYTES)
        for block in range(8):
            to = base + uint32(Q + block * BLOCK)
            source = q_item + uint64(128 * block)
            copy_16_bytes_at(to + even, source, uint32(16))
            copy_16_bytes_at(to + odd + uint32(512), source + uint64(4 * ROW_BYTES), uint32(16))
            copy_16_bytes_at(to + even + uint32(1024), source + uint64(8 * ROW_BYTES), uint32(16))
            copy_16_bytes_at(to + odd + uint32(1536), source + uint64(12 * ROW_BYTES), uint32(16))
        copies_arrive(base + uint32(Q_FULL))
        next_item = uint32(item + step)
        next_idx = idx + uint64(divide(next_item, groups)) * uint64(S) * uint64(4)
        tile = uint32(0)
        while tile < tiles:
            b = tile & uint32(1)
            there = cuda.ballot_sync(LANES, i >= 0)
            s0, n0 = row_source(window, compress, W, cuda.shfl_sync(LANES, i, r))
            s1, n1 = row_source(window, compress, W, cuda.shfl_sync(LANES, i, r + uint32(4)))
            s2, n2 = row_source(window, compress, W, cuda.shfl_sync(LANES, i, r + uint32(8)))
            s3, n3 = row_source(window, compress, W, cuda.shfl_sync(LANES, i, r + uint32(12)))
            # the index of the next tile, asked for long before it is needed
            tile = uint32(tile + uint32(1))
            ahead = uint32(slot + tile * uint32(TILE))
            if tile == tiles:
                ahead = slot
                item_idx = next_idx
            i = int32(-1)
            if ahead < S and (tile < tiles or next_item < items):
                i = load_index(item_idx + uint64(ahead) * uint64(4))
            full = base + uint32(FULL) + b * uint32(16)
            free = base + uint32(FREE) + b * uint32(16)
            for half in range(2):
                mbarrier_wait(free + uint32(8 * half), phase ^ uint32(1))
                if half == 0 and lane == uint32(0):
                    mask[b, warp] = uint32(there) & uint32(0xFFFF)
                    mbarrier_arrive(full)
                for block in range(4 * half, 4 * half + 4):
                    to = base + uint32(ROWS + block * BLOCK) + b * uint32(8 * BLOCK)
                    copy_16_bytes_at(to + even, s0 + uint64(128 * block), n0)
                    copy_16_bytes_at(to + odd + uint32(512), s1 + uint64(128 * block), n1)
                    copy_16_bytes_at(to + even + uint32(1024), s2 + uint64(128 * block), n2)
                    copy_16_bytes_at(to + odd + uint32(1536), s3 + uint64(128 * block), n3)
                copies_arrive(full + uint32(8 * half))
            phase = uint32(phase ^ b)
        item = next_item
        q_phase = uint32(q_phase ^ uint32(1))


@cuda.jit(device=True, forceinline=True)
def multiply_even(base, mask, maxima, sums, sinks, o, S, items, groups, scale):
    """Scores and weights of the even tiles; the left half of the output. One warpgroup."""
    tid = uint32(cuda.threadIdx.x)
    lane = tid & uint32(31)
    warp = (tid >> uint32(5)) & uint32(3)
    head = warp * uint32(16) + (lane >> uint32(2))  # and head + 8
    lead = (lane & uint32(3)) == uint32(0)
    chunk = ((lane >> uint32(4)) ^ (lane & uint32(7))) << uint32(4)
    own_row = base + uint32(WEIGHTS) + (warp * uint32(16) + (lane & uint32(15))) * uint32(128)
    q = ((base + uint32(Q)) >> uint32(4)) | uint32(DESCRIPTOR_LOW)
    keys = ((base + uint32(ROWS)) >> uint32(4)) | uint32(DESCRIPTOR_LOW)
    odd_weights = ((base + uint32(WEIGHTS + BLOCK)) >> uint32(4)) | uint32(DESCRIPTOR_LOW)
    values = ((base + uint32(ROWS)) >> uint32(4)) | uint32(V_ROWS)
    odd_values = values + uint32(8 * BLOCK >> 4)
    full = base + uint32(FULL)
    s = cuda.local.array(32, float32)
    p = cuda.local.array(16, uint32)
    upper, lower = LOWEST, LOWEST  # the maxima so far, of heads `head` and `head` + 8
    upper_sum, lower_sum = float32(0.0), float32(0.0)
    none = uint64(0)  # of these columns turns
    pairs = (S + uint32(2 * TILE - 1)) >> uint32(7)
    step = uint32(cuda.gridDim.x)
    item = uint32(cuda.blockIdx.x)
    pair = uint32(0)
    phase = uint32(0)  # of the tiles
    q_phase = uint32(0)
    done = item
    clear()
    mbarrier_wait(base + uint32(Q_FULL), uint32(0))
    start_scores(q, keys, full, uint32(0))
    while True:
        pair = uint32(pair + uint32(1))
        last = pair == pairs
        even_sums, odd_sums = q_phase, q_phase + uint32(2)
        scores_read(s)
        if last:
            release(base + uint32(Q_FREE), lane)
        tile_upper, tile_lower = tile_maxima(s, mask, 0, lane)
        tile_upper, tile_lower = max(upper, tile_upper), max(lower, tile_lower)
        if lead:
            maxima[0, head] = tile_upper
            maxima[0, head + uint32(8)] = tile_lower
        barrier_arrive(uint32(MAXIMUM_EVEN), uint32(BOTH))
        mbarrier_wait(full, phase)  # long done: it keeps ptxas from moving the arrival down
        upper_factor, lower_factor = exp2((upper - tile_upper) * scale), exp2((lower - tile_lower) * scale)
        upper_own, lower_own = tile_weights(s, p, tile_upper, tile_lower, scale)
        upper_sum = upper_sum * upper_factor + upper_own
        lower_sum = lower_sum * lower_factor + lower_own
        if last:
            upper_sum, lower_sum = quad_sum(upper_sum), quad_sum(lower_sum)
            if lead:
                sums[even_sums, head] = upper_sum
                sums[even_sums, head + uint32(8)] = lower_sum
        weights_store(p, own_row, chunk)
        fence_async()
        barrier_arrive(uint32(WEIGHTS_EVEN), uint32(BOTH))
        rescale(upper_factor, lower_factor, S)
        values_of_registers(p, values)
        wgmma_wait_0()
        release(base + uint32(FREE), lane)
        barrier_sync(uint32(WEIGHTS_ODD), uint32(BOTH))
        upper, lower = maxima[1, head], maxima[1, head + uint32(8)]
        upper_factor, lower_factor = exp2((tile_upper - upper) * scale), exp2((tile_lower - lower) * scale)
        upper_sum *= upper_factor
        lower_sum *= lower_factor
        if last:
            upper_sum += sums[odd_sums, head]
            lower_sum += sums[odd_sums, head + uint32(8)]
        rescale(upper_factor, lower_factor, S)
        values_of_shared(odd_weights, odd_values)
        phase = uint32(phase ^ uint32(1))
        done = item
        if last:
            pair = uint32(0)
            item = uint32(item + step)
            q_phase = uint32(q_phase ^ uint32(1))
        if item >= items:
            break
        wgmma_wait_0()
        release(base + uint32(FREE + 16), lane)
        if last:
            mbarrier_wait(base + uint32(Q_FULL), q_phase)
        start_scores(q, keys, full, phase)
        if last:  # the output leaves while the next item's scores are multiplied
            finish(upper_sum, lower_sum, upper, lower, sinks, done, groups, head, o, none, none, scale, lane)
            clear()
            upper, lower = LOWEST, LOWEST
            upper_sum, lower_sum = float32(0.0), float32(0.0)
    wgmma_wait_0()
    finish(upper_sum, lower_sum, upper, lower, sinks, done, groups, head, o, none, none, scale, lane)


@cuda.jit(device=True, forceinline=True)
def multiply_odd(base, mask, maxima, sums, sinks, o, cos, sin, S, items, groups, scale):
    """Scores and weights of the odd tiles; the right half of the output. One warpgroup."""
    tid = uint32(cuda.threadIdx.x)
    lane = tid & uint32(31)
    warp = (tid >> uint32(5)) & uint32(3)
    head = warp * uint32(16) + (lane >> uint32(2))  # and head + 8
    lead = (lane & uint32(3)) == uint32(0)
    chunk = ((lane >> uint32(4)) ^ (lane & uint32(7))) << uint32(4)
    own_row = base + uint32(WEIGHTS + BLOCK) + (warp * uint32(16) + (lane & uint32(15))) * uint32(128)
    q = ((base + uint32(Q)) >> uint32(4)) | uint32(DESCRIPTOR_LOW)
    keys = ((base + uint32(ROWS + 8 * BLOCK)) >> uint32(4)) | uint32(DESCRIPTOR_LOW)
    even_weights = ((base + uint32(WEIGHTS)) >> uint32(4)) | uint32(DESCRIPTOR_LOW)
    even_values = ((base + uint32(ROWS + 4 * BLOCK)) >> uint32(4)) | uint32(V_ROWS)
    values = even_values + uint32(8 * BLOCK >> 4)
    full = base + uint32(FULL + 16)
    o += uint64(ROW_BYTES // 2)
    s = cuda.local.array(32, float32)
    p = cuda.local.array(16, uint32)
    upper, lower = LOWEST, LOWEST  # the maxima so far, of heads `head` and `head` + 8
    upper_sum, lower_sum = float32(0.0), float32(0.0)
    pairs = (S + uint32(2 * TILE - 1)) >> uint32(7)
    step = uint32(cuda.gridDim.x)
    item = uint32(cuda.blockIdx.x)
    pair = uint32(0)
    phase = uint32(0)  # of the tiles
    q_phase = uint32(0)
    done = item
    clear()
    mbarrier_wait(base + uint32(Q_FULL), uint32(0))
    start_scores(q, keys, full, uint32(0))
    while True:
        pair = uint32(pair + uint32(1))
        last = pair == pairs
        even_sums, odd_sums = q_phase, q_phase + uint32(2)
        scores_read(s)
        if last:
            release(base + uint32(Q_FREE), lane)
        tile_upper, tile_lower = tile_maxima(s, mask, 1, lane)
        barrier_sync(uint32(MAXIMUM_EVEN), uint32(BOTH))
        even_upper, even_lower = maxima[0, head], maxima[0, head + uint32(8)]
        # two steps: from the last maximum to that of the even tile, and on to that of the odd tile
        even_upper_factor, even_lower_factor = exp2((upper - even_upper) * scale), exp2((lower - even_lower) * scale)
        upper, lower = max(even_upper, tile_upper), max(even_lower, tile_lower)
        upper_factor, lower_factor = exp2((even_upper - upper) * scale), exp2((even_lower - lower) * scale)
        upper_own, lower_own = tile_weights(s, p, upper, lower, scale)
        upper_sum = upper_sum * even_upper_factor * upper_factor + upper_own
        lower_sum = lower_sum * even_lower_factor * lower_factor + lower_own
        if last:
            upper_sum, lower_sum = quad_sum(upper_sum), quad_sum(lower_sum)
        if lead:
            maxima[1, head] = upper
            maxima[1, head + uint32(8)] = lower
            if last:
                sums[odd_sums, head] = upper_sum
                sums[odd_sums, head + uint32(8)] = lower_sum
        weights_store(p, own_row, chunk)
        fence_async()
        barrier_arrive(uint32(WEIGHTS_ODD), uint32(BOTH))
        barrier_sync(uint32(WEIGHTS_EVEN), uint32(BOTH))
        if last:
            upper_sum += sums[even_sums, head] * upper_factor
            lower_sum += sums[even_sums, head + uint32(8)] * lower_factor
        rescale(even_upper_factor, even_lower_factor, S)
        values_of_shared(even_weights, even_values)
        wgmma_wait_0()
        release(base + uint32(FREE + 8), lane)
        rescale(upper_factor, lower_factor, S)
        values_of_registers(p, values)
        phase = uint32(phase ^ uint32(1))
        done = item
        if last:
            pair = uint32(0)
            item = uint32(item + step)
            q_phase = uint32(q_phase ^ uint32(1))
        if item >= items:
            break
        wgmma_wait_0()
        release(base + uint32(FREE + 24), lane)
        if last:
            mbarrier_wait(base + uint32(Q_FULL), q_phase)
        start_scores(q, keys, full, phase)
        if last:  # the output leaves while the next item's scores are multiplied
            finish(upper_sum, lower_sum, upper, lower, sinks, done, groups, head, o, cos, sin, scale, lane)
            clear()
            upper, lower = LOWEST, LOWEST
            upper_sum, lower_sum = float32(0.0), float32(0.0)
    wgmma_wait_0()
    finish(upper_sum, lower_sum, upper, lower, sinks, done, groups, head, o, cos, sin, scale, lane)


@cuda.jit(launch_bounds=(THREADS, 1))
def sparse_wgmma_kernel(q, window, compress, idx, sinks, o, cos, sin, W, S, items, groups, scale):
    """A block walks over items. The first eight are device addresses, cos and sin of the first token's row or 0;
    `groups` items a token; scale includes log2 e."""
    memory = cuda.shared.array(0, uint32)
    mask = cuda.shared.array((2, 4), uint32)  # of the slots of each tile that are not empty, 16 a word
    maxima = cuda.shared.array((2, HEADS), float32)  # of each head, up to the even and up to the odd tile
    # of each head's weights in all even and in all odd tiles; other rows than those of the item before: [2 odd + phase]
    sums = cuda.shared.array((4, HEADS), float32)
    base = uint32((shared_address(memory) + uint32(1023)) & uint32(0xFFFFFC00))  # the swizzle counts from there
    declare()
    tid = uint32(cuda.threadIdx.x)
    role = uniform(tid >> uint32(7))
    if tid == uint32(0):
        for tile in range(2):
            mbarrier_init(base + uint32(FULL + 16 * tile), uint32(132))  # 128 threads' copies, 4 warps' masks
            mbarrier_init(base + uint32(FULL + 16 * tile + 8), uint32(128))
            mbarrier_init(base + uint32(FREE + 16 * tile), uint32(4))  # the warps that use this half as values
            mbarrier_init(base + uint32(FREE + 16 * tile + 8), uint32(4))
        mbarrier_init(base + uint32(Q_FULL), uint32(128))
        mbarrier_init(base + uint32(Q_FREE), uint32(8))
        fence_mbarrier_init()
    cuda.syncthreads()
    launch_wait()
    launch_next()
    if role == uint32(2):
        registers_less()
        gather(base, mask, q, window, compress, idx, W, S, items, groups)
    else:
        registers_more()
        if role == uint32(0):
            multiply_even(base, mask, maxima, sums, sinks, o, S, items, groups, scale)
        else:
            multiply_odd(base, mask, maxima, sums, sinks, o, cos, sin, S, items, groups, scale)


# ---- host ----------------------------------------------------------------------------------------------------------
SIGNATURE = (types.uint64,) * 8 + (types.int32,) + (types.uint32,) * 3 + (types.float32,)


@functools.cache
def compiled_kernel() -> Any:
    """The driver's handle of the kernel."""
    return compiled(sparse_wgmma_kernel, SIGNATURE, SHARED_BYTES)


def prepare(
    q: Any, window_rows: Any, compress_rows: Any, idx: Any, attn_sink: Any, scale: float,
    cos: Any, sin: Any, start_pos: int, o: Any,
) -> Launch:  # fmt: skip
    """The launch that fills o, to be called any number of times."""
    T, H, D = q.shape
    if H % HEADS or D != DIMS:
        raise ValueError(f"q: expected heads in multiples of {HEADS}, of {DIMS} dimensions, got {H} of {D}")
    if cos.shape[1] not in (0, TURNED // 2):
        raise ValueError(f"cos: expected {TURNED // 2} pairs a position, or none, got {cos.shape[1]}")
    arrays = (q, window_rows, compress_rows, idx, attn_sink, o)
    groups = H // HEADS
    items = T * groups
    values: list[Any] = [ctypes.c_uint64(address(array) if array.size else 0) for array in arrays]
    row = 2 * TURNED * start_pos
    values += [ctypes.c_uint64(address(array) + row if array.size else 0) for array in (cos, sin)]
    values += [ctypes.c_int32(len(window_rows)), *map(ctypes.c_uint32, (idx.shape[1], items, groups))]
    values.append(ctypes.c_float(float(scale * LOG2_E)))
    grid = min(items, cuda.get_current_device().MULTIPROCESSOR_COUNT)
    return Launch(compiled_kernel(), grid, THREADS, 1, SHARED_BYTES, values, (*arrays, cos, sin))


def launch_wgmma(
    q: Any, window_rows: Any, compress_rows: Any, idx: Any, attn_sink: Any, scale: float,
    cos: Any, sin: Any, start_pos: int, o: Any,
) -> None:  # fmt: skip
    """Fill o; heads in multiples of 64, 512 dimensions, at least one slot and a positive scale."""
    prepare(q, window_rows, compress_rows, idx, attn_sink, scale, cos, sin, start_pos, o)()
