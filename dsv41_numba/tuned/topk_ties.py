"""Top-k rows whose cut lies in a tie: torch's order of work, by a whole block.

Math       that of `ops.topk.choose`: introselect, or a heap of k where k * 64 <= G
Launch     grid min(T, 1024), block 256 (1024 for few rows); 24.3 KiB of shared memory
Moves      only of marked rows: 4 G bytes of scores, and a workspace of 16 G bytes again and again
Source     step 8 of the layer; the tie order is that of PyTorch 2.13 on a CPU

Which of the equal scores stay depends on every exchange that torch's algorithms make, so they must all be made. But
they need not be found one after the other.

Introselect splits a range around a pivot: a scan from the left stops where a score does not go before the pivot, a
scan from the right where it does not go after it; both stops are exchanged, and on it goes until the scans meet. What
lies between the scans has not been touched, so the i-th stop from the left is the i-th such place of the range as it
was, and likewise from the right. All stops are found at once by counting, and all exchanges are made at once::

    stops from the left    L0   L1        L2     L3
    range                   .    .    .    .  .   .    .    .
    stops from the right         R3           R2       R1   R0     exchange L0 R0, L1 R1, L2 R2; L3 > R3: split at L3

The heap has no such form: each score that enters it changes what the next one meets. Here a warp compares 256 scores
with the root at a time; the few that may enter go one by one into a heap in shared memory.
"""

import functools
from typing import Any

import numpy as np
from numba import cuda, float32, int32, uint32

from dsv41_numba.ops.topk import HEAP_FACTOR, SMALL_RANGE, goes_before, heap_select, median_place, settle
from dsv41_numba.tuned.position import given

SETTLERS = 1024  # blocks, and rows of the workspace
HEAP_SLOTS = 2048  # of a heap in shared memory
AHEAD = 8  # scores that a lane fetches before one is compared with the root

NEG_INF = np.float32(-np.inf)


@cuda.jit(device=True)
def masked_score(score, candidates, masked, t, g):
    """The score, or -inf where a mask excludes the position."""
    if masked and candidates[t, g] == 0:
        return NEG_INF
    return score[t, g]


@cuda.jit(device=True)
def lower_lanes(votes, lane):
    """How many lanes below this one voted."""
    return cuda.popc(votes & ((uint32(1) << uint32(lane)) - uint32(1)))


@functools.cache
def settle_kernel(threads: int, count: Any = given) -> Any:
    """The kernel for blocks of this many threads, a multiple of 32; `count` finds `columns`."""
    WARPS = threads // 32

    @cuda.jit(device=True)
    def partition(values, order, lefts, rights, first, last, warp_counts, swaps):
        """`ops.topk.partition` of order[first:last] by the whole block. lefts and rights are its workspace."""
        thread = cuda.threadIdx.x
        lane, warp = thread & 31, thread >> 5
        if thread == 0:
            pivot = median_place(values, order, first + 1, first + (last - first) // 2, last - 1)
            order[first], order[pivot] = order[pivot], order[first]
            swaps[0] = 0
        cuda.syncthreads()  # the pivot is out of the way
        pivot_value = values[order[first]]
        n_left, n_right = 0, 0
        for p0 in range(first, last, threads):
            p = p0 + thread
            value = values[order[min(p, last - 1)]]
            is_left = first < p and p < last and not goes_before(value, pivot_value)
            is_right = p < last and not goes_before(pivot_value, value)
            left_votes = uint32(cuda.ballot_sync(0xFFFFFFFF, is_left))
            right_votes = uint32(cuda.ballot_sync(0xFFFFFFFF, is_right))
            if lane == 0:
                warp_counts[0, warp] = cuda.popc(left_votes)
                warp_counts[1, warp] = cuda.popc(right_votes)
            cuda.syncthreads()  # every warp's counts are in place
            left_place, right_place = n_left, n_right
            for other in range(WARPS):
                if other < warp:
                    left_place += warp_counts[0, other]
                    right_place += warp_counts[1, other]
                n_left += warp_counts[0, other]
                n_right += warp_counts[1, other]
            if is_left:
                lefts[left_place + lower_lanes(left_votes, lane)] = p
            if is_right:
                rights[right_place + lower_lanes(right_votes, lane)] = p  # ascending: the scan meets the last first
            cuda.syncthreads()  # the counts are used before the next ones overwrite them
        mine = 0
        for i in range(thread, min(n_left, n_right), threads):
            if lefts[i] < rights[n_right - 1 - i]:
                mine += 1
        if mine > 0:
            cuda.atomic.add(swaps, 0, mine)
        cuda.syncthreads()  # the number of exchanges is known
        for i in range(thread, swaps[0], threads):
            a, b = lefts[i], rights[n_right - 1 - i]
            order[a], order[b] = order[b], order[a]
        split = last
        if swaps[0] < n_left:
            split = lefts[swaps[0]]
        if swaps[0] > 0:
            split = min(split, rights[n_right - swaps[0]])  # the last exchange left a stop there
        cuda.syncthreads()  # the exchanges are made, and everyone has read their number
        return split

    @cuda.jit(device=True)
    def introselect(values, order, lefts, rights, G, k, warp_counts, swaps):
        """`ops.topk.introselect` of order[:G] by the whole block."""
        first, last, splits_left, n = 0, G, 0, G
        while n > 1:
            n //= 2
            splits_left += 2
        while last - first > SMALL_RANGE and splits_left > 0:
            splits_left -= 1
            split = partition(values, order, lefts, rights, first, last, warp_counts, swaps)
            if split < k:
                first = split
            else:
                last = split
        if cuda.threadIdx.x == 0:
            if last - first > SMALL_RANGE:
                heap_select(values, order, first, k, last)
            else:
                for i in range(first + 1, last):  # insertion sort: equal scores stay as they stand
                    index = order[i]
                    place = i
                    while place > first and goes_before(values[index], values[order[place - 1]]):
                        order[place] = order[place - 1]
                        place -= 1
                    order[place] = index
        cuda.syncthreads()  # order[:k] is the choice

    @cuda.jit(device=True)
    def heap_of(values, order, G, k, heap, slot_value, slot_index):
        """`ops.topk.heap_select` of order[:G], with the heap in shared memory."""
        thread = cuda.threadIdx.x
        fetched = cuda.local.array(AHEAD, float32)
        for i in range(thread, k, threads):
            heap[i] = i
            slot_value[i] = values[i]
            slot_index[i] = i
        cuda.syncthreads()  # the first k scores are in place before they become a heap
        if thread == 0:
            for hole in range(k // 2 - 1, -1, -1):
                settle(slot_value, heap, 0, k, hole, heap[hole])
        cuda.syncthreads()
        if thread < 32:
            for g0 in range(k, G, 32 * AHEAD):
                for j in range(AHEAD):
                    fetched[j] = values[min(g0 + 32 * j + thread, G - 1)]
                for j in range(AHEAD):
                    top = heap[0]
                    root = slot_value[top]
                    value = fetched[j]
                    enters = g0 + 32 * j + thread < G and goes_before(value, root)
                    votes = uint32(cuda.ballot_sync(0xFFFFFFFF, enters))
                    cuda.syncwarp()  # every lane has read the root before lane 0 changes it
                    while votes != uint32(0):
                        lane = cuda.ffs(votes) - 1
                        newcomer = cuda.shfl_sync(0xFFFFFFFF, value, lane)
                        if thread == 0 and goes_before(newcomer, root):  # the vote was against an older root
                            slot_value[top] = newcomer
                            slot_index[top] = g0 + 32 * j + lane
                            settle(slot_value, heap, 0, k, 0, top)
                            top = heap[0]
                            root = slot_value[top]
                        votes &= votes - uint32(1)
                    cuda.syncwarp()  # the root is in place before the next scores are compared with it
        cuda.syncthreads()  # the heap is the choice
        for i in range(thread, k, threads):
            order[i] = slot_index[i]
        cuda.syncthreads()

    @cuda.jit(launch_bounds=threads)
    def topk_settle_kernel(score, columns, candidates, masked, offset, ties, values, places, picked):
        """The marked rows, one after the other. values f32 [blocks, G] and places i32 [3, blocks, G] are workspace."""
        warp_counts = cuda.shared.array((2, WARPS), int32)
        swaps = cuda.shared.array(1, int32)
        heap = cuda.shared.array(HEAP_SLOTS, int32)
        slot_value = cuda.shared.array(HEAP_SLOTS, float32)
        slot_index = cuda.shared.array(HEAP_SLOTS, int32)
        thread, block = cuda.threadIdx.x, cuda.blockIdx.x
        lane = thread & 31
        T, G = score.shape[0], count(columns)
        k = picked.shape[1]
        row, order = values[block], places[0, block]
        for t in range(block, T, cuda.gridDim.x):
            if ties[t] != 0:  # the same for the whole block
                for g in range(thread, G, threads):
                    row[g] = masked_score(score, candidates, masked, t, g)
                    order[g] = g
                cuda.syncthreads()  # the row and the order are in place before anyone chooses
                if k * HEAP_FACTOR > G:
                    introselect(row, order, places[1, block], places[2, block], G, k, warp_counts, swaps)
                elif k <= HEAP_SLOTS:
                    heap_of(row, order, G, k, heap, slot_value, slot_index)
                else:
                    if thread == 0:
                        heap_select(row, order, 0, k, G)
                    cuda.syncthreads()
                # the choice, in any order, to `picked`; then `order` is free for marks
                for i in range(thread, k, threads):
                    picked[t, i] = order[i]
                cuda.syncthreads()
                for g in range(thread, G, threads):
                    order[g] = 0
                cuda.syncthreads()
                for i in range(thread, k, threads):
                    g = picked[t, i]
                    if row[g] != NEG_INF:
                        order[g] = 1
                cuda.syncthreads()  # every choice is marked, and nobody needs `picked` any more
                place = 0
                for g0 in range(0, G, threads):
                    g = g0 + thread
                    chosen = g < G and order[min(g, G - 1)] == 1
                    votes = uint32(cuda.ballot_sync(0xFFFFFFFF, chosen))
                    if lane == 0:
                        warp_counts[0, thread >> 5] = cuda.popc(votes)
                    cuda.syncthreads()  # every warp's count is in place
                    own = place
                    for other in range(WARPS):
                        if other < thread >> 5:
                            own += warp_counts[0, other]
                        place += warp_counts[0, other]
                    if chosen:
                        picked[t, own + lower_lanes(votes, lane)] = g + offset
                    cuda.syncthreads()  # the counts are used before the next ones overwrite them
                for i in range(place + thread, k, threads):
                    picked[t, i] = -1
                cuda.syncthreads()  # the row is done before the workspace gets the next one

    return topk_settle_kernel
