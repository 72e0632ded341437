"""Compress: pool every group of `ratio` neighbouring tokens into one row, and keep the group that is not full yet.

Math       group j is the positions j * ratio .. j * ratio + ratio - 1; for every column d on its own
           p[i, d] = softmax over i of score[i, d];  pooled[j, d] = sum_i p[i, d] * kv[i, d]
Shapes     kv, score [T, D] f32: the rows of positions start_pos .. start_pos + T - 1
           kv_state, score_state [ratio, D] f32: the rows of the group that was not full before this call, each in slot
           position mod ratio; ratio >= 2
           `pool` -> pooled [n, D] f32, the groups that this call completes:
           n = (start_pos + T) // ratio - start_pos // ratio
           `store_partial` changes both states in place: rows of the group not full after this call, in the other slots
           kv 0 and score -inf. It comes after `pool`, which reads the states as the call before left them
Precision  all in f32: largest score, exp of the differences, both sums with i ascending, one division at the end
Launch     pool: grid n, block 256; store_partial: grid ratio, block 256; no shared memory
Moves      pool: 8 ratio D bytes in and 4 D out a group; store_partial: at most 16 ratio D bytes
Errors     ValueError when an array's dtype, shape or layout is not as above, ratio < 2 or start_pos < 0
Source     step 4 of the layer at ratio >= 2, between its two projections and its norm
"""

import math

import numpy as np
from numba import cuda, float32

from dsv41_numba.ops.checks import check_array
from dsv41_numba.runtime.backend import empty, launch

THREADS = 256
LOWEST = float(np.finfo(np.float32).min)  # finite, so that -inf minus it is -inf, where -inf - -inf is NaN


def pool_ref(
    kv: np.ndarray, score: np.ndarray, kv_state: np.ndarray, score_state: np.ndarray, start_pos: int
) -> np.ndarray:
    """kv, score [T, D] f32, kv_state, score_state [ratio, D] f32 -> [groups completed, D] f32."""
    ratio, D = kv_state.shape
    n = (start_pos + len(kv)) // ratio - start_pos // ratio
    # earlier calls brought the first rows of the first group
    held = start_pos % ratio
    kv = np.concatenate([kv_state[:held], kv])[: n * ratio].reshape(n, ratio, D)
    score = np.concatenate([score_state[:held], score])[: n * ratio].reshape(n, ratio, D)
    top = np.maximum(score.max(1, keepdims=True), np.float32(LOWEST))
    weight = np.exp(score - top)
    total = weight.sum(1, dtype=np.float32)
    return (weight * kv).sum(1, dtype=np.float32) / np.maximum(total, np.float32(1.0))


def store_partial_ref(
    kv: np.ndarray, score: np.ndarray, kv_state: np.ndarray, score_state: np.ndarray, start_pos: int
) -> None:
    """kv, score [T, D] f32, kv_state, score_state [ratio, D] f32, changed in place."""
    ratio = kv_state.shape[0]
    end = start_pos + len(kv)
    for slot in range(ratio):
        position = end // ratio * ratio + slot
        if position >= end:
            kv_state[slot], score_state[slot] = 0.0, -np.inf
        elif position >= start_pos:
            kv_state[slot], score_state[slot] = kv[position - start_pos], score[position - start_pos]


@cuda.jit(device=True)
def row_value(rows, state, held, i, d):
    """Column d of row i of a group: the first `held` rows lie in the state, the others are this call's."""
    if i < held:
        return state[i, d]
    return rows[i - held, d]


@cuda.jit
def pool_kernel(kv, score, kv_state, score_state, start_pos, pooled):
    """One block a group; thread t owns columns t, t + 256, ..."""
    ratio, D = kv_state.shape
    first = (start_pos // ratio + cuda.blockIdx.x) * ratio  # the group's first position, in slot 0
    # ref: held = start_pos % ratio
    held = start_pos - first  # negative for the groups after the first one: all their rows are this call's
    for d in range(cuda.threadIdx.x, D, THREADS):
        # ref: top = np.maximum(score.max(1, keepdims=True), np.float32(LOWEST))
        top = float32(LOWEST)
        for i in range(ratio):
            top = max(top, row_value(score, score_state, held, i, d))
        # ref: weight = np.exp(score - top)
        # ref: total = weight.sum(1, dtype=np.float32)
        total = float32(0.0)
        kv_sum = float32(0.0)
        for i in range(ratio):
            weight = float32(math.exp(row_value(score, score_state, held, i, d) - top))
            total += weight
            kv_sum += weight * row_value(kv, kv_state, held, i, d)
        # ref: return (weight * kv).sum(1, dtype=np.float32) / np.maximum(total, np.float32(1.0))
        # the largest score adds exp(0) = 1, so total is at least 1; only where every score is -inf both sums are 0
        pooled[cuda.blockIdx.x, d] = kv_sum / max(total, float32(1.0))


@cuda.jit
def store_partial_kernel(kv, score, kv_state, score_state, start_pos):
    """One block a slot; thread t owns columns t, t + 256, ..."""
    ratio, D = kv_state.shape
    slot = cuda.blockIdx.x
    end = start_pos + kv.shape[0]
    # ref: position = end // ratio * ratio + slot
    position = end // ratio * ratio + slot
    for d in range(cuda.threadIdx.x, D, THREADS):
        if position >= end:
            # ref: kv_state[slot], score_state[slot] = 0.0, -np.inf
            kv_state[slot, d] = float32(0.0)
            score_state[slot, d] = float32(-math.inf)
        elif position >= start_pos:
            # ref: kv_state[slot], score_state[slot] = kv[position - start_pos], score[position - start_pos]
            kv_state[slot, d] = kv[position - start_pos, d]
            score_state[slot, d] = score[position - start_pos, d]
        # else an earlier call stored this row, and its group is still not full


def pool(kv, score, kv_state, score_state, start_pos: int):
    """kv, score [T, D] f32, kv_state, score_state [ratio, D] f32 -> [groups completed, D] f32, all device arrays."""
    _check(kv, score, kv_state, score_state, start_pos)
    ratio, D = kv_state.shape
    n = (start_pos + kv.shape[0]) // ratio - start_pos // ratio
    pooled = empty((n, D), np.float32)
    if n > 0:  # a grid of 0 blocks is a launch error
        launch(pool_kernel, n, THREADS, kv, score, kv_state, score_state, start_pos, pooled)
    return pooled


def store_partial(kv, score, kv_state, score_state, start_pos: int) -> None:
    """kv, score [T, D] f32, kv_state, score_state [ratio, D] f32, changed in place, all device arrays."""
    _check(kv, score, kv_state, score_state, start_pos)
    launch(store_partial_kernel, kv_state.shape[0], THREADS, kv, score, kv_state, score_state, start_pos)


def _check(kv, score, kv_state, score_state, start_pos: int) -> None:
    check_array("kv", kv, np.float32, (None, None))
    check_array("score", score, np.float32, tuple(kv.shape))
    check_array("kv_state", kv_state, np.float32, (None, kv.shape[1]))
    check_array("score_state", score_state, np.float32, tuple(kv_state.shape))
    if kv_state.shape[0] < 2:
        raise ValueError(f"kv_state: expected a row for each of ratio >= 2 slots, got {kv_state.shape[0]}")
    if start_pos < 0:
        raise ValueError(f"start_pos: expected a position >= 0, got {start_pos}")


if __name__ == "__main__":
    five = np.arange(5, dtype=np.float32)[:, None]
    none = np.zeros((2, 1), np.float32)
    print(pool_ref(five, 0 * five, none, none, 0).ravel(), "the means of 0 1 and 2 3; position 4 waits for 5")
