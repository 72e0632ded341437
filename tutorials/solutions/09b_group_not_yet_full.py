"""Exercise 09b: decode with a group that is not yet full.

A call brings the rows of positions start_pos, start_pos + 1, ... Some of them complete a group, the last ones may not.
The rows of the group that is not full wait in kv_state and score_state [ratio, D] f32, row `position mod ratio`, until
a later call brings the others.

kv, score [T, D] f32, the two states as the call before left them, and start_pos come in. Out go pooled (one row for
each group that this call completes) and both states.

Write two things. In `row_value`: row i of a group lies in the state for the first `held` rows, otherwise in this call's
rows. In `store_partial_kernel`: what slot `slot` holds after the call. A slot that has no row yet is empty: kv 0 and
score -inf. The checks look at every element of both states.
"""

import math

import numpy as np
from numba import cuda, float32

from dsv41_numba.runtime.backend import empty, launch, to_device, to_host

THREADS = 256
LOWEST = float(np.finfo(np.float32).min)


def spec(kv, score, kv_state, score_state, start_pos):
    ratio, D = kv_state.shape
    end, held = start_pos + len(kv), start_pos % ratio
    kv, score = np.concatenate([kv_state[:held], kv]), np.concatenate([score_state[:held], score])
    n = end // ratio - start_pos // ratio
    group_kv, group_score = (x[: n * ratio].reshape(n, ratio, D) for x in (kv, score))
    weight = np.exp(group_score - group_score.max(1, keepdims=True))
    pooled = (weight * group_kv).sum(1, dtype=np.float32) / weight.sum(1, dtype=np.float32)
    kv_after, score_after = np.zeros((ratio, D), np.float32), np.full((ratio, D), -np.inf, np.float32)
    left = len(kv) - n * ratio
    kv_after[:left], score_after[:left] = kv[n * ratio :], score[n * ratio :]
    return pooled, kv_after, score_after


@cuda.jit(device=True)
def row_value(rows, state, held, i, d):
    # CUT return dimension d of row i of the group: state[i, d] if i < held, else this call's row i - held
    if i < held:
        return state[i, d]
    return rows[i - held, d]
    # END


@cuda.jit
def pool_kernel(kv, score, kv_state, score_state, start_pos, pooled):
    ratio, D = kv_state.shape
    first = (start_pos // ratio + cuda.blockIdx.x) * ratio  # the group's first position
    held = start_pos - first  # negative for the groups after the first one: all their rows are this call's
    for d in range(cuda.threadIdx.x, D, THREADS):
        top = float32(LOWEST)
        for i in range(ratio):
            top = max(top, row_value(score, score_state, held, i, d))
        total = float32(0.0)
        kv_sum = float32(0.0)
        for i in range(ratio):
            weight = float32(math.exp(row_value(score, score_state, held, i, d) - top))
            total += weight
            kv_sum += weight * row_value(kv, kv_state, held, i, d)
        pooled[cuda.blockIdx.x, d] = kv_sum / total


@cuda.jit
def store_partial_kernel(kv, score, kv_state, score_state, start_pos):
    ratio, D = kv_state.shape
    slot = cuda.blockIdx.x
    end = start_pos + kv.shape[0]
    position = end // ratio * ratio + slot  # what this slot is for: a position of the group that `end` lies in
    for d in range(cuda.threadIdx.x, D, THREADS):
        # CUT kv 0 and score -inf where position has not come yet; the row of this call where this call brought
        #  it; nothing where an earlier call stored it
        if position >= end:
            kv_state[slot, d] = float32(0.0)
            score_state[slot, d] = float32(-math.inf)
        elif position >= start_pos:
            kv_state[slot, d] = kv[position - start_pos, d]
            score_state[slot, d] = score[position - start_pos, d]
        # END


def run(kv, score, kv_state, score_state, start_pos):
    ratio, D = kv_state.shape
    pooled = empty(((start_pos + len(kv)) // ratio - start_pos // ratio, D), np.float32)
    arrays = [to_device(x) for x in (kv, score, kv_state.copy(), score_state.copy())]
    if len(pooled) > 0:
        launch(pool_kernel, len(pooled), THREADS, *arrays, start_pos, pooled)
    launch(store_partial_kernel, ratio, THREADS, *arrays, start_pos)
    return to_host(pooled), to_host(arrays[2]), to_host(arrays[3])
