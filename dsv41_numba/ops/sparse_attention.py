"""Sparse attention: every query attends to the few rows that its gather list names, and to a learned sink.

Math       logit[t, h, s] = scale * sum_d q[t, h, d] * row[idx[t, s], d]
           weight[t, h, s] = exp(logit[t, h, s]) / (exp(attn_sink[h]) + sum_s exp(logit[t, h, s]))
           o[t, h, d] = sum_s weight[t, h, s] * row[idx[t, s], d]
           A row is key and value at once and all heads share it. Row i is window_rows[i] for i < W, otherwise
           compress_rows[i - W]; idx -1 is an empty slot and adds nothing. The sink takes weight and gives no value,
           and it is not scaled; -inf is no sink. A query whose slots are all empty gets exactly 0.
Shapes     q [T, H, D] bf16 with D even and <= 512, window_rows [W, D] bf16, compress_rows [G, D] bf16 (G may be 0),
           idx [T, S] int32, attn_sink [H] f32, scale a float, head_dim**-0.5 -> o [T, H, D] bf16
           Either kind of rows may be PackedRows [W, D] or [G, D] (`formats.packed_rows`) instead
Precision  all in f32, the weights too (nothing is rounded to bf16 before the value product); one rounding to bf16 at
           the end. Online softmax over tiles of 32 slots, its maximum starting at the sink
Launch     grid T ceil(H / 8), block 256; 42.3 KiB of shared memory
Moves      4 T H D bytes for q and o, 4 T S for idx; each of the at most T S rows named once: 2 D bytes, or those of a
           packed row
Errors     ValueError when an array's dtype, shape or layout is not as above. An index below -1 or from W + G on is an
           error that no launcher can see in device memory: the reference and the emulator's bounds check report it,
           a GPU reads whatever lies there
Source     step 11 of the layer
"""

import math
from typing import Any

import numpy as np
from numba import cuda, float32, int32, uint32

from dsv41_numba.formats.bf16 import as_bf16, decode_bf16, encode_bf16
from dsv41_numba.formats.packed_rows import COMPRESSED, WINDOW, PackedRows
from dsv41_numba.ops.checks import check_array
from dsv41_numba.ops.packed_rows import check_packed, row_word
from dsv41_numba.runtime.backend import empty, launch

HEADS = 8  # heads of a block: each row that it stages serves all of them
SLOTS = 32  # slots of a tile
THREADS = 256  # HEADS * SLOTS
MAX_D = 512  # 2 * THREADS: for the values each thread has one word of the row
MAX_WORDS = 256  # of a row: 2 bf16 in a word of 32 bits, the even dimension in the low half
PADDED_WORDS = 257  # an odd row length: 32 threads that read one column of 32 rows meet 32 different memory banks

NEG_INF = np.float32(-np.inf)
LOWEST = np.finfo(np.float32).min
GATHERED_BYTES = 1 << 26  # gathered f64 rows that the reference holds at a time


def sparse_attention_ref(
    q: np.ndarray, window_rows: Any, compress_rows: Any, idx: np.ndarray, attn_sink: np.ndarray, scale: float
) -> np.ndarray:
    """q [T, H, D] bf16, window_rows [W, D] bf16 or packed, compress_rows [G, D] likewise, idx [T, S] int32,
    attn_sink [H] f32, a float -> o [T, H, D] bf16.

    The sums are float64's, so that their bits do not depend on NumPy's order, which changes with the shapes.
    """
    window_rows, compress_rows = as_values(window_rows), as_values(compress_rows)
    T, H, D = q.shape
    W, G, S = len(window_rows), len(compress_rows), idx.shape[1]
    if ((idx < -1) | (idx >= W + G)).any():
        raise ValueError(f"idx: expected indices from -1 to {W + G - 1}, got {idx.min()} to {idx.max()}")
    o = np.zeros((T, H, D), np.float32)
    tokens = max(1, GATHERED_BYTES // (8 * max(1, S * D)))
    for t0 in range(0, T, tokens):
        q_t, idx_t = q[t0 : t0 + tokens].astype(np.float64), idx[t0 : t0 + tokens]
        rows = np.zeros((*idx_t.shape, D), np.float64)
        in_window, compressed = (idx_t >= 0) & (idx_t < W), idx_t >= W
        rows[in_window] = window_rows[idx_t[in_window]]
        rows[compressed] = compress_rows[idx_t[compressed] - W]
        logit = (q_t @ rows.transpose(0, 2, 1)).astype(np.float32) * np.float32(scale)
        logit = np.where((idx_t != -1)[:, None, :], logit, NEG_INF)
        # the maximum only keeps exp in range; with the sink among them, empty queries have a finite one too
        sink = np.maximum(attn_sink, LOWEST)[:, None]
        highest = np.maximum(logit.max(-1, keepdims=True, initial=NEG_INF), sink)
        weight = np.exp(logit - highest)
        denominator = np.exp(sink - highest) + weight.sum(-1, keepdims=True, dtype=np.float64)
        o[t0 : t0 + tokens] = weight @ rows / denominator
    return as_bf16(o)


def as_values(rows: Any) -> np.ndarray:
    """The bf16 numbers of rows on the host, packed or not."""
    return rows.to_bf16() if isinstance(rows, PackedRows) else rows


@cuda.jit(device=True)
def low_bf16(word):
    """The even dimension of a word."""
    return decode_bf16(word & uint32(0xFFFF))


@cuda.jit(device=True)
def high_bf16(word):
    """The odd dimension of a word."""
    return decode_bf16(word >> uint32(16))


@cuda.jit(device=True)
def stage_row(rows, scales, i, words, row_tile, s):
    """row_tile[s] = row i, by 32 neighbouring threads: what follows never knows whether it was packed."""
    m = cuda.threadIdx.x % SLOTS
    while m < words:
        row_tile[s, m] = row_word(rows, scales, i, m, words)
        m += SLOTS


@cuda.jit(device=True)
def max_over_slots(value, partial):
    """The largest `value` among the threads of one head, returned to each. `partial` is shared, [HEADS, SLOTS]."""
    head = cuda.threadIdx.x // SLOTS
    slot = cuda.threadIdx.x % SLOTS
    partial[head, slot] = value
    cuda.syncthreads()  # every value is in place before anyone compares
    half = SLOTS // 2
    while half > 0:
        if slot < half:
            partial[head, slot] = max(partial[head, slot], partial[head, slot + half])
        cuda.syncthreads()  # this level is done before the next reads it
        half //= 2
    return partial[head, 0]


@cuda.jit(device=True)
def sum_over_slots(value, partial):
    """partial[head, 0] becomes the sum of `value` over the threads of that head, for every thread to read."""
    head = cuda.threadIdx.x // SLOTS
    slot = cuda.threadIdx.x % SLOTS
    partial[head, slot] = value
    cuda.syncthreads()  # every value is in place before anyone adds
    half = SLOTS // 2
    while half > 0:
        if slot < half:
            partial[head, slot] += partial[head, slot + half]
        cuda.syncthreads()  # this level is done before the next reads it
        half //= 2


@cuda.jit
def sparse_attention_kernel(
    q, window_rows, window_scales, compress_rows, compress_scales, idx, attn_sink, scale, o
):  # fmt: skip
    """One block 8 heads of one token. A tile of 32 rows is staged once and serves them all, first as keys, then as
    values. For the logits thread t has head t // 32 and slot t % 32; for the values it has dimensions 2t and 2t + 1.

    q [T, H, D / 2], window_rows [W, D / 2], compress_rows [G, D / 2] and o [T, H, D / 2] are words of two bf16: half as
    many reads. Packed rows are bytes of codes instead, with their scales; rows of bf16 have none. The innermost loops
    are `while` loops: a `range` keeps a second count beside its variable, which costs more than their work, and hides
    from the compiler that it can unroll them (three times slower, measured).
    """
    q_tile = cuda.shared.array((HEADS, MAX_WORDS), uint32)
    row_tile = cuda.shared.array((SLOTS, PADDED_WORDS), uint32)
    slot_row = cuda.shared.array(SLOTS, int32)
    partial = cuda.shared.array((HEADS, SLOTS), float32)
    weight = cuda.shared.array((HEADS, SLOTS), float32)
    rescale = cuda.shared.array(HEADS, float32)
    acc_low = cuda.local.array(HEADS, float32)
    acc_high = cuda.local.array(HEADS, float32)
    W = window_rows.shape[0]
    H = q.shape[1]
    words = q.shape[2]
    S = idx.shape[1]
    # tokens and heads share one grid axis, since only x takes more than 65,535 blocks; the blocks of a token are
    # neighbours, so they read the same rows at about the same time
    head_groups = (H + HEADS - 1) // HEADS
    token = cuda.blockIdx.x // head_groups
    h0 = cuda.blockIdx.x % head_groups * HEADS
    t = cuda.threadIdx.x
    head = t // SLOTS
    slot = t % SLOTS
    # ref: sink = np.maximum(attn_sink, LOWEST)[:, None]
    highest = LOWEST
    if h0 + head < H:
        highest = max(attn_sink[h0 + head], LOWEST)
        for m in range(slot, words, SLOTS):
            q_tile[head, m] = q[token, h0 + head, m]
    # each thread sums the weights of its own slots; the sink's exp(sink - highest) = 1 goes to the first
    denominator = float32(0.0)
    if slot == 0:
        denominator = float32(1.0)
    for h in range(HEADS):
        acc_low[h] = float32(0.0)
        acc_high[h] = float32(0.0)
    for s0 in range(0, S, SLOTS):
        slots = min(SLOTS, S - s0)
        if t < slots:
            slot_row[t] = idx[token, s0 + t]
        cuda.syncthreads()  # everyone knows the rows before they are staged
        for s in range(head, slots, HEADS):
            i = slot_row[s]
            if i >= W:
                stage_row(compress_rows, compress_scales, i - W, words, row_tile, s)
            elif i != -1:
                stage_row(window_rows, window_scales, i, words, row_tile, s)
        cuda.syncthreads()  # the rows, and before the first tile q too, are staged before anyone multiplies
        # ref: logit = (q_t @ rows.transpose(0, 2, 1)).astype(np.float32) * np.float32(scale)
        # ref: logit = np.where((idx_t != -1)[:, None, :], logit, NEG_INF)
        logit = NEG_INF
        if h0 + head < H and slot < slots and slot_row[slot] != -1:
            dot = float32(0.0)
            m = 0
            while m < words:
                dot += low_bf16(q_tile[head, m]) * low_bf16(row_tile[slot, m])
                dot += high_bf16(q_tile[head, m]) * high_bf16(row_tile[slot, m])
                m += 1
            logit = dot * scale
        # ref: highest = np.maximum(logit.max(-1, keepdims=True, initial=NEG_INF), sink)
        tile_highest = max(highest, max_over_slots(logit, partial))
        # the sums so far are relative to the old maximum. Never infinity minus infinity, which would be NaN: the first
        # maximum is a finite sink
        factor = math.exp(highest - tile_highest)
        highest = tile_highest
        # ref: weight = np.exp(logit - highest)
        own_weight = math.exp(logit - highest)
        # ref: denominator = np.exp(sink - highest) + weight.sum(-1, keepdims=True, dtype=np.float64)
        denominator = denominator * factor + own_weight
        weight[head, slot] = own_weight
        if slot == 0:
            rescale[head] = factor
        cuda.syncthreads()  # the weights of every head and slot are in place before anyone reads them
        # ref: o[t0 : t0 + tokens] = weight @ rows / denominator
        if t < words:
            for h in range(HEADS):
                acc_low[h] *= rescale[h]
                acc_high[h] *= rescale[h]
            s = 0
            while s < slots:
                if slot_row[s] != -1:  # the same for the whole block
                    low = low_bf16(row_tile[s, t])
                    high = high_bf16(row_tile[s, t])
                    for h in range(HEADS):
                        acc_low[h] += weight[h, s] * low
                        acc_high[h] += weight[h, s] * high
                s += 1
        cuda.syncthreads()  # everyone is done with this tile before the next overwrites it
    sum_over_slots(denominator, partial)
    if t < words:
        for h in range(HEADS):
            if h0 + h < H:
                low = uint32(encode_bf16(acc_low[h] / partial[h, 0]))
                high = uint32(encode_bf16(acc_high[h] / partial[h, 0]))
                o[token, h0 + h, t] = low | high << uint32(16)


def check_operands(q, window_rows, compress_rows, idx, attn_sink) -> tuple[int, int, int]:
    """Refuse operands that do not fit, as the contract says; T, H and D of q."""
    check_array("q", q, np.uint16, (None, None, None))
    T, H, D = q.shape
    if D > MAX_D or D % 2 != 0:
        raise ValueError(f"q: expected an even number of dimensions, at most {MAX_D}, got {D}")
    for name, rows, format in (("window_rows", window_rows, WINDOW), ("compress_rows", compress_rows, COMPRESSED)):
        if isinstance(rows, PackedRows):
            check_packed(name, rows, format, (None, D))
        else:
            check_array(name, rows, np.uint16, (None, D))
    check_array("idx", idx, np.int32, (T, None))
    check_array("attn_sink", attn_sink, np.float32, (H,))
    return T, H, D


def row_planes(rows: Any) -> tuple[Any, Any]:
    """What a kernel is given of rows: words of two bf16 and no scales, or the codes and scales of packed ones."""
    if isinstance(rows, PackedRows):
        return rows.codes, rows.scales
    return rows.view(np.uint32), empty((0, 0), np.uint8)


def sparse_attention(q, window_rows, compress_rows, idx, attn_sink, scale: float):
    """q [T, H, D] bf16 bits, window_rows [W, D] bf16 bits, compress_rows [G, D] bf16 bits, either may be packed,
    idx [T, S] int32, attn_sink [H] f32, all device arrays, and a float -> o [T, H, D] bf16 bits."""
    T, H, D = check_operands(q, window_rows, compress_rows, idx, attn_sink)
    o = empty((T, H, D), np.uint16)
    if T * H > 0:  # a grid of 0 blocks is a launch error
        rows = *row_planes(window_rows), *row_planes(compress_rows)
        args = (q.view(np.uint32), *rows, idx, attn_sink, np.float32(scale), o.view(np.uint32))
        launch(sparse_attention_kernel, T * -(-H // HEADS), THREADS, *args)
    return o


if __name__ == "__main__":
    query, row = as_bf16(np.full((1, 1, 16), 0.5, np.float32)), as_bf16(np.ones((1, 16), np.float32))
    slots_ts, sink_h = np.array([[-1, 0]], np.int32), np.zeros(1, np.float32)
    print(sparse_attention_ref(query, row, row[:0], slots_ts, sink_h, 0.25)[0, 0, 0])  # e^2 / (e^2 + 1)
