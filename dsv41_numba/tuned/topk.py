"""Top-k and candidate blocks on the device: `ops.topk` without a copy to the host, exact to the set.

Math       that of `ops.topk`: the k best scores of each row, of equal ones at the cut those that torch keeps
Shapes     select            score [T, G] f32, k, candidates [T, G] u8 or None, offset -> [T, min(k, G)] i32:
                             ascending, each plus `offset`, -1 at the end where a row has too few
           candidate_blocks  score [T, G] f32, lens [T] i32 -> [T, G] u8, 1 = keep
Precision  no arithmetic, only comparisons
Launch     select_kernel: grid T, block 256 (1024 for fewer rows than multiprocessors); at most 9.3 KiB of shared
           memory; then `topk_ties`. Candidate blocks: the same two on the blocks' largest
           scores, and a kernel of grid T, block 256, before and after
Moves      4 T G bytes of scores in, 4 T k out; the passes after the first read the scores from the cache
Errors     ValueError when an array's dtype, shape or layout is not as above, or a count is below 1
Source     step 8 of the layer; the tie order is that of PyTorch 2.13 on a CPU

A radix select: a score becomes 32 bits that sort as the scores do, and the k-th largest is found 8 bits at a time. ::

    pass 1   count the keys by their upper 8 bits, from the largest on; the k-th is in one of the 256 bins
    pass 2   of the keys in that bin count by the next 8 bits ... two passes are enough when all scores are bf16 values,
             as index scores are: their lower 16 bits are zero
    last     every key above the k-th, and those equal to it, if as many are there as are still needed

If more are equal than are needed, the set is not unique. Such rows are marked, and `topk_ties` settles them in torch's
own order of work. `ties` in the result says which rows took that way.
"""

import functools
from typing import Any

import numpy as np
from numba import cuda, float32, int32, uint32

from dsv41_numba.ops.checks import check_array, check_count
from dsv41_numba.runtime.backend import empty, launch
from dsv41_numba.tuned.position import given, reader
from dsv41_numba.tuned.topk_ties import SETTLERS, masked_score, settle_kernel

BINS = 256  # of one pass: 8 bits
MANY_ROWS = 132  # multiprocessors of an H200: with fewer rows a block gets more threads
EXPANDERS = 256  # threads of the kernels for candidate blocks

NEG_INF = np.float32(-np.inf)
NEG_INF_KEY = np.uint32(0x007FFFFF)
NAN_KEY = np.uint32(0xFFFFFFFF)
ZERO_KEY = np.uint32(0x80000000)


@cuda.jit(device=True)
def sort_key(score):
    """32 bits that sort as scores do: NaN above all, -0 as 0. A negative number's bits sort the other way round."""
    bits = score.view(np.uint32)
    magnitude = bits & uint32(0x7FFFFFFF)
    if magnitude > uint32(0x7F800000):
        return NAN_KEY
    if magnitude == uint32(0):
        return ZERO_KEY
    if bits != magnitude:
        return ~bits
    return bits | uint32(0x80000000)


@cuda.jit(device=True)
def sum_of_larger(counts, t):
    """counts[b] becomes the number of keys in bins above b; threads 0 to 255 have a bin each, all threads call."""
    step = 1
    own = counts[t] if t < BINS else int32(0)
    total = own
    while step < BINS:
        cuda.syncthreads()  # the sums of the step before are in place
        above = counts[t + step] if t + step < BINS else int32(0)
        cuda.syncthreads()  # everyone has read before anyone writes
        total += above
        if t < BINS:
            counts[t] = total
        step *= 2
    cuda.syncthreads()
    if t < BINS:
        counts[t] = total - own
    cuda.syncthreads()


@functools.cache
def select_kernel(threads: int, count: Any = given) -> Any:
    """The kernel for blocks of this many threads, a multiple of 32 and at least 256; `count` finds `columns`."""
    WARPS = threads // 32

    @cuda.jit(launch_bounds=threads)  # with 1024 threads each has 64 registers
    def topk_select_kernel(score, columns, candidates, masked, offset, picked, ties):
        """One block a row of `picked` [T, k], from the first `columns` scores. candidates is read only if `masked`."""
        counts = cuda.shared.array(BINS, int32)
        found = cuda.shared.array(4, uint32)  # the k-th key so far, how many of it are needed and there, low bits
        warp_counts = cuda.shared.array(WARPS, int32)
        thread, t = cuda.threadIdx.x, cuda.blockIdx.x
        lane, warp = thread & 31, thread >> 5
        G, k = count(columns), picked.shape[1]
        if thread == 0:
            found[0] = uint32(0)
            found[1] = uint32(min(k, G))
            found[2] = uint32(0)
            found[3] = uint32(0)
        low = uint32(0)
        bits_left = 32 if G > 0 else 0  # of nothing there is nothing to find
        while bits_left > 0:
            if thread < BINS:
                counts[thread] = 0
            cuda.syncthreads()  # the bins are empty, and `found` is that of the pass before
            prefix, needed = found[0], found[1]
            shift = uint32(bits_left - 8)
            g = thread
            while g < G:
                value = masked_score(score, candidates, masked, t, g)
                key = sort_key(value)
                low |= value.view(np.uint32) & uint32(0xFFFF)
                # a shift by 32 is no shift, so the first pass has no upper bits to compare
                if bits_left == 32 or key >> uint32(bits_left) == prefix:
                    cuda.atomic.add(counts, (key >> shift) & uint32(0xFF), 1)
                g += threads
            if bits_left == 32 and low != uint32(0):
                cuda.atomic.max(found, 3, uint32(1))
            cuda.syncthreads()  # every key is counted
            own = counts[thread] if thread < BINS else int32(0)
            sum_of_larger(counts, thread)
            if thread < BINS and counts[thread] < int32(needed) and int32(needed) <= counts[thread] + own:
                found[0] = prefix << uint32(8) | uint32(thread)
                found[1] = uint32(int32(needed) - counts[thread])
                found[2] = uint32(own)
            cuda.syncthreads()  # one thread had the bin of the k-th key
            bits_left -= 8
            if bits_left == 16 and found[3] == uint32(0):
                break
        # with bits_left low bits not looked at, because they are the same in all keys of a sign
        kth = found[0]
        straddles = found[2] > found[1] and kth != NEG_INF_KEY >> uint32(bits_left)
        if thread == 0:
            ties[t] = 1 if straddles else 0
        if not straddles:  # the same for the whole block
            # each warp has a run of the row: it counts what it chooses, and then knows where its first one goes
            run = (G + threads - 1) // threads * 32
            for writing in range(2):
                place = int32(0)
                if writing == 1:
                    for before in range(warp):
                        place += warp_counts[before]
                for g0 in range(warp * run, min((warp + 1) * run, G), 32):
                    g = g0 + lane
                    chosen = False
                    if g < G:
                        key = sort_key(masked_score(score, candidates, masked, t, g))
                        chosen = key >> uint32(bits_left) >= kth and key != NEG_INF_KEY
                    votes = uint32(cuda.ballot_sync(0xFFFFFFFF, chosen))
                    if writing == 1 and chosen:
                        picked[t, place + cuda.popc(votes & ((uint32(1) << uint32(lane)) - uint32(1)))] = g + offset
                    place += cuda.popc(votes)
                if writing == 0 and lane == 0:
                    warp_counts[warp] = place
                cuda.syncthreads()  # every warp's count is in place before another adds it up
            total = 0
            for before in range(WARPS):
                total += warp_counts[before]
            for i in range(total + thread, k, threads):
                picked[t, i] = -1

    return topk_select_kernel


@cuda.jit
def block_best_kernel(score, lens, block_size, best):
    """best[t, b] = the largest score of block b; +inf where the last reachable position is; -inf in a row without."""
    t = cuda.blockIdx.x
    for b in range(cuda.threadIdx.x, best.shape[1], EXPANDERS):
        largest = NEG_INF
        if lens[t] > 0:
            for g in range(b * block_size, min((b + 1) * block_size, lens[t])):
                value = score[t, g]
                if value > largest or value != value:  # a NaN stays: nothing is greater than it
                    largest = value
            if (lens[t] - 1) // block_size == b:
                largest = float32(np.inf)
        best[t, b] = largest


@cuda.jit
def expand_kernel(kept, block_size, mask):
    """mask[t, g] = 1 in the blocks that `kept` [T, blocks] names, -1 = none."""
    t = cuda.blockIdx.x
    G = mask.shape[1]
    for g in range(cuda.threadIdx.x, G, EXPANDERS):
        mask[t, g] = 0
    cuda.syncthreads()  # the row is empty before blocks are put into it
    for i in range(cuda.threadIdx.x, kept.shape[1] * block_size, EXPANDERS):
        b = kept[t, i // block_size]
        g = b * block_size + i % block_size
        if b >= 0 and g < G:
            mask[t, g] = 1


def select_with_ties(
    score: Any, k: int, candidates: Any = None, offset: int = 0, columns: Any = None
) -> tuple[Any, Any]:
    """`select`, and with it ties [T] i32: 1 in the rows whose set torch's order of work had to decide."""
    check_array("score", score, np.float32, (None, None))
    check_count("k", k)
    T, G = score.shape
    masked = candidates is not None
    if masked:
        check_array("candidates", candidates, np.uint8, (T, G))
    else:
        candidates = empty((1, 1), np.uint8)
    k = min(int(k), G)
    picked, ties = empty((T, k), np.int32), empty(T, np.int32)
    if picked.size > 0:  # a grid of 0 blocks is a launch error
        columns = G if columns is None else columns
        threads, blocks = 256 if T >= MANY_ROWS else 1024, min(T, SETTLERS)
        of_score = (score, columns, candidates, masked, offset)
        launch(select_kernel(threads, reader(columns)), T, threads, *of_score, picked, ties)
        values, places = empty((blocks, G), np.float32), empty((3, blocks, G), np.int32)
        launch(settle_kernel(threads, reader(columns)), blocks, threads, *of_score, ties, values, places, picked)
    return picked, ties


def select(score: Any, k: int, candidates: Any = None, offset: int = 0, columns: Any = None) -> Any:
    """score [T, G] f32, candidates [T, G] u8 or None for all -> [T, min(k, G)] i32 plus `offset`, device arrays.

    `columns` [1] i32 in device memory says how many of the G count; None: all.
    """
    return select_with_ties(score, k, candidates, offset, columns)[0]


def candidate_blocks(score: Any, lens: Any, topk_blocks: int, block_size: int, blocks: Any = None) -> Any:
    """score [T, G] f32, lens [T] i32 reachable positions -> [T, G] u8, all device arrays.

    `blocks` [1] i32 in device memory says how many of the blocks count; None: all.
    """
    check_array("score", score, np.float32, (None, None))
    T, G = score.shape
    check_array("lens", lens, np.int32, (T,))
    check_count("topk_blocks", topk_blocks)
    check_count("block_size", block_size)
    mask = empty((T, G), np.uint8)
    if T * G > 0:
        best = empty((T, -(-G // block_size)), np.float32)
        launch(block_best_kernel, T, EXPANDERS, score, lens, block_size, best)
        launch(expand_kernel, T, EXPANDERS, select(best, topk_blocks, columns=blocks), block_size, mask)
    return mask
