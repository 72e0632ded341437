"""Exercise 11b: online softmax with the sink.

One query head reads the rows that idx names and mixes them by the softmax of its logits. The slots come in tiles of 8,
and only one tile's logits are known at a time. So keep the largest logit so far, the sum of the weights (`denominator`)
and the weighted sum of the rows (`acc`), all relative to that largest logit; when a tile brings a larger one, rescale
what was summed before.

logit [T, S] f32, idx [T, S] int32 (-1 is an empty slot, whatever its logit says), rows [R, D] f32 with D <= 64 and a
finite sink [T] f32 come in; o [T, D] bf16 (uint16 bits) goes out. The sink is one more logit: it adds to the
denominator and has no row. Thread d owns dimension d, and one block has one query.

Write what the sums start with, and the work on one tile with its two barriers. A query whose slots are all empty gives
exactly 0. exp of a large logit is infinite, and infinity minus infinity is NaN: the checks look at both.
"""

# Check it: dsv41 exercise 11b

import math

import numpy as np
from numba import cuda, float32, int32

from dsv41_numba.formats.bf16 import encode_bf16, f32_to_bf16
from dsv41_numba.runtime.backend import empty, launch, to_device, to_host

SLOTS = 8  # of a tile
THREADS = 64  # the most dimensions
NEG_INF = np.float32(-np.inf)


def spec(logit, idx, rows, sink):
    o = np.zeros((len(idx), rows.shape[1]), np.float32)
    for t in range(len(idx)):
        taken = idx[t] >= 0
        highest = max(sink[t], logit[t, taken].max(initial=NEG_INF))
        weight = np.exp(logit[t, taken] - highest)
        o[t] = weight @ rows[idx[t, taken]] / (weight.sum() + np.exp(sink[t] - highest))
    return f32_to_bf16(o)


@cuda.jit
def online_softmax_kernel(logit, idx, rows, sink, o):
    tile_logit = cuda.shared.array(SLOTS, float32)
    tile_row = cuda.shared.array(SLOTS, int32)
    t = cuda.blockIdx.x
    d = cuda.threadIdx.x
    S = idx.shape[1]
    D = rows.shape[1]
    acc = float32(0.0)
    # YOUR CODE: start highest and denominator with the sink alone: the largest logit so far, with weight exp(0), no
    #  row
    for s0 in range(0, S, SLOTS):
        slots = min(SLOTS, S - s0)
        # YOUR CODE: thread d < slots puts slot s0 + d into the tile; a barrier; find the largest logit with the tile's
        #  taken slots (row not -1); rescale denominator and acc by exp(old largest - new largest); add each
        #  taken slot's weight, and its weight times rows[row, d] if d < D; a barrier before the tile is
        #  overwritten
    if d < D:
        o[t, d] = encode_bf16(acc / denominator)


def run(logit, idx, rows, sink):
    o = empty((len(idx), rows.shape[1]), np.uint16)
    launch(online_softmax_kernel, len(idx), THREADS, *(to_device(x) for x in (logit, idx, rows, sink)), o)
    return to_host(o)
