"""The gather list on the device: `ops.gather` without a copy of the selection to the host.

Math       that of `ops.gather`
Shapes     gather_list   window, start_pos, T ints, topk [T, k] i32 or None -> idx [T, S] i32
           without_gaps  idx [T, S] i32 -> [T, S] i32
Precision  indices only
Launch     gather_list_kernel: grid T, block 128; without_gaps_kernel: grid T, block 32; no shared memory
Moves      4 T k bytes in, 4 T S out; the same again for without_gaps
Errors     ValueError when topk or idx is not as above
Source     step 10 of the layer
"""

import functools
from typing import Any

import numpy as np
from numba import cuda, int32, uint32

from dsv41_numba.ops.checks import check_array
from dsv41_numba.runtime.backend import empty, launch
from dsv41_numba.tuned.position import given, in_memory

THREADS = 128


@functools.cache
def gather_list_kernel(position_of: Any) -> Any:
    """The kernel that finds start_pos by this function."""

    @cuda.jit
    def gather_list_kernel(window, start_pos, topk, idx):
        """One block a query; each thread every 128th column."""
        t = cuda.blockIdx.x
        T, S = idx.shape
        k = topk.shape[1]
        first = position_of(start_pos)
        position = first + t
        for c in range(cuda.threadIdx.x, S, THREADS):
            if c >= S - k:
                row = topk[t, c - (S - k)]
            elif first == 0:
                row = max(t - window + 1, 0) + c  # among this call's rows
                if row > t:
                    row = -1
            else:
                seen = position - window + 1 + c
                if seen < 0:
                    row = -1
                elif T == 1 or seen < first:
                    row = seen % window  # in the ring
                else:
                    row = window + seen - first  # of this chunk, behind the ring's
            idx[t, c] = row

    return gather_list_kernel


@cuda.jit
def without_gaps_kernel(idx, moved):
    """One warp a query: entries go to the front in order, the rest becomes -1."""
    t, lane = cuda.blockIdx.x, cuda.threadIdx.x
    S = idx.shape[1]
    place = int32(0)
    for c0 in range(0, S, 32):
        c = c0 + lane
        row = idx[t, min(c, S - 1)]
        filled = c < S and row >= 0
        votes = uint32(cuda.ballot_sync(0xFFFFFFFF, filled))
        if filled:
            moved[t, place + cuda.popc(votes & ((uint32(1) << uint32(lane)) - uint32(1)))] = row
        place += cuda.popc(votes)
    for c in range(place + lane, S, 32):
        moved[t, c] = -1


def gather_list(window: int, start_pos: int, T: int, topk: Any) -> Any:
    """window, start_pos, T ints, topk [T, k] i32 as step 8 publishes it or None -> idx [T, S] i32, device arrays."""
    slots = min(T, window) if start_pos == 0 else window
    if topk is None:
        topk = empty((T, 0), np.int32)
    check_array("topk", topk, np.int32, (T, None))
    idx = empty((T, slots + topk.shape[1]), np.int32)
    launch(gather_list_kernel(given), T, THREADS, window, start_pos, topk, idx)
    return idx


def gather_list_at(window: int, position: Any, topk: Any) -> Any:
    """`gather_list` of one token whose position is in device memory -> idx [1, window + k] i32.

    As in a decode step, also at position 0.
    """
    idx = empty((1, window + topk.shape[1]), np.int32)
    launch(gather_list_kernel(in_memory), 1, THREADS, window, position, topk, idx)
    return idx


def without_gaps(idx: Any) -> Any:
    """idx [T, S] i32 -> [T, S] i32 with each row's -1 behind its other entries, device arrays."""
    check_array("idx", idx, np.int32, (None, None))
    moved = empty(idx.shape, np.int32)
    if idx.shape[0] * idx.shape[1] > 0:
        launch(without_gaps_kernel, idx.shape[0], 32, idx, moved)
    return moved
