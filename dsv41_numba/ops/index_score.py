"""Index score: how much each query wants each compressed position; the top-k selection reads it.

Math       index_w[t, h] = bf16(projected[t, h] * scale)
           score[t, g] = bf16( sum_h bf16( relu(bf16(sum_d index_q[t, h, d] * index_k[g, d])) * index_w[t, h] ) ),
           and -inf where g is not visible. Group g is complete once `ratio` tokens have filled it, so the query at
           position start_pos + t sees g only if g < (start_pos + t + 1) // ratio.
Shapes     projected [T, Hi] bf16, scale a float -> index_w [T, Hi] bf16
           index_q [T, Hi, Di] bf16, index_w [T, Hi] bf16, index_k [G, Di] bf16, start_pos and ratio integers
           -> score [T, G] f32 that holds bf16 values. The keys may be PackedRows [G, Di] (`formats.packed_rows`)
Precision  f32 products and sums, bf16 exactly where Math says so. The dot is summed over 32 dimensions at a time, and
           these parts are added in ascending order. Within a part one scale covers q's fp4 codes and one covers k's:
           each product is a multiple of 1/4 of the two scales' product and at most 36 of it, the sum of 32 of them
           has 13 bits and is exact in f32 whatever the order. Only adding the parts can round, so kernel and
           reference agree to the bit, and a fused multiply-add changes nothing. The heads are added in head order.
Launch     `index_weights`: grid ceil(T Hi / 256), block 256. `index_score`: grid (T, ceil(G / 64)), block (32, 8),
           20.1 KiB of shared memory. Tokens lie along x because only x takes more than 65,535 blocks, and because
           neighbours there read the same keys, which then stay in cache.
Moves      2 T Hi Di + 2 T Hi + 2 G Di bytes in (of packed keys G Di / 2 + G Di / 32), 4 T G out
Errors     ValueError when an array's dtype, shape or layout is not as above, start_pos < 0 or ratio < 1
Source     steps 6 (the head weights) and 7 of the layer
"""

from typing import Any

import numpy as np
from numba import cuda, float32

from dsv41_numba.formats.bf16 import as_bf16, decode_bf16, encode_bf16
from dsv41_numba.formats.e2m1 import decode_e2m1, unpack_e2m1
from dsv41_numba.formats.e8m0 import decode_e8m0
from dsv41_numba.formats.packed_rows import INDEX_KEY, PackedRows
from dsv41_numba.ops.checks import check_array
from dsv41_numba.ops.packed_rows import check_packed
from dsv41_numba.runtime.backend import empty, launch

THREADS = 256  # of an index_weights block

TILE_G = 64  # keys of an index_score block
TILE_H = 32  # heads it takes at a time
TILE_D = 32  # dimensions it takes at a time: those of one fp4 scale
PADDED_D = 33  # an odd row length: 32 threads that read one column of 32 rows meet 32 different memory banks
THREADS_X = 32  # along the keys: each thread takes KEYS of them, 32 apart
THREADS_Y = 8  # along the heads: each thread takes HEADS of them, 8 apart
KEYS = 2
HEADS = 4
KEY_ROWS = 8  # TILE_G / THREADS_Y: keys that one row of threads stages

NEG_INF = np.float32(-np.inf)


def index_weights_ref(projected: np.ndarray, scale: float) -> np.ndarray:
    """projected [T, Hi] bf16, scale a float, rounded to f32 -> index_w [T, Hi] bf16."""
    return as_bf16(projected.astype(np.float32) * np.float32(scale))


@cuda.jit
def index_weights_kernel(projected, scale, index_w):
    """One thread an element."""
    i = cuda.grid(1)
    Hi = projected.shape[1]
    if i < projected.shape[0] * Hi:
        t = i // Hi
        h = i % Hi
        # ref: return as_bf16(projected.astype(np.float32) * np.float32(scale))
        index_w[t, h] = encode_bf16(decode_bf16(projected[t, h]) * scale)


def index_weights(projected, scale: float):
    """projected [T, Hi] bf16 bits, a device array; scale a float -> index_w [T, Hi] bf16 bits.

    `scale` is index_head_dim**-0.5 * index_n_heads**-0.5 and is rounded to f32 here.
    """
    check_array("projected", projected, np.uint16, (None, None))
    T, Hi = projected.shape
    index_w = empty((T, Hi), np.uint16)
    if T * Hi > 0:  # a grid of 0 blocks is a launch error
        launch(index_weights_kernel, -(-T * Hi // THREADS), THREADS, projected, np.float32(scale), index_w)
    return index_w


def index_score_ref(index_q: np.ndarray, index_w: np.ndarray, index_k: Any, start_pos: int, ratio: int) -> np.ndarray:
    """index_q [T, Hi, Di] bf16, index_w [T, Hi] bf16, index_k [G, Di] bf16 or packed, two integers -> score [T, G]
    f32."""
    if isinstance(index_k, PackedRows):
        index_k = index_k.to_bf16()
    T, Hi, Di = index_q.shape
    G = index_k.shape[0]
    q, w, k = (x.astype(np.float32) for x in (index_q, index_w, index_k))
    total = np.zeros((T, G), np.float32)
    for h in range(Hi):
        dot = np.zeros((T, G), np.float32)
        for d0 in range(0, Di, TILE_D):
            dot += q[:, h, d0 : d0 + TILE_D] @ k[:, d0 : d0 + TILE_D].T
        relu = np.maximum(as_bf16(dot).astype(np.float32), 0)
        total += as_bf16(relu * w[:, h, None]).astype(np.float32)
    visible = (start_pos + np.arange(T) + 1) // ratio
    hidden = np.arange(G)[None, :] >= visible[:, None]
    return np.where(hidden, NEG_INF, as_bf16(total).astype(np.float32))


@cuda.jit(device=True)
def key_entry(index_k, scales, g, d):
    """Entry d of key g. Keys of bf16 have no scales; a packed one has a byte for two entries, a scale for TILE_D."""
    if scales.shape[1] == 0:
        return decode_bf16(index_k[g, d])
    # the product has two bits: a bf16 has room for it, whatever the scale
    return decode_e2m1(unpack_e2m1(index_k[g, d // 2], d)) * decode_e8m0(scales[g, d // TILE_D])


@cuda.jit
def index_score_kernel(index_q, index_w, index_k, scales, start_pos, ratio, score):
    """Block (t, tile): one token against a tile of keys, which all its heads share."""
    q_tile = cuda.shared.array((TILE_H, TILE_D), float32)
    k_tile = cuda.shared.array((TILE_G, PADDED_D), float32)
    weighted = cuda.shared.array((TILE_H, TILE_G), float32)
    dot = cuda.local.array((HEADS, KEYS), float32)
    part = cuda.local.array((HEADS, KEYS), float32)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    t = cuda.blockIdx.x
    g0 = cuda.blockIdx.y * TILE_G
    Hi = index_q.shape[1]
    Di = index_q.shape[2]
    G = index_k.shape[0]
    # ref: visible = (start_pos + np.arange(T) + 1) // ratio
    visible = min((start_pos + t + 1) // ratio, G)
    g_of_thread = g0 + ty * THREADS_X + tx  # the one key whose heads this thread adds up, when ty < KEYS
    total = float32(0.0)
    if g0 < visible:  # the same for the whole block: a tile that is hidden altogether costs no dots
        for h0 in range(0, Hi, TILE_H):
            for i in range(HEADS):
                for j in range(KEYS):
                    dot[i, j] = float32(0.0)
            for d0 in range(0, Di, TILE_D):
                # x runs along the dimensions here: neighbours read neighbours. Beyond an edge a 0 adds nothing
                d = d0 + tx
                for i in range(HEADS):
                    row = ty + i * THREADS_Y
                    q_tile[row, tx] = float32(0.0)
                    if h0 + row < Hi and d < Di:
                        q_tile[row, tx] = decode_bf16(index_q[t, h0 + row, d])
                for i in range(KEY_ROWS):
                    row = ty + i * THREADS_Y
                    k_tile[row, tx] = float32(0.0)
                    if g0 + row < visible and d < Di:
                        k_tile[row, tx] = key_entry(index_k, scales, g0 + row, d)
                cuda.syncthreads()  # both tiles are staged before anyone multiplies
                # ref: dot += q[:, h, d0 : d0 + TILE_D] @ k[:, d0 : d0 + TILE_D].T
                for i in range(HEADS):
                    for j in range(KEYS):
                        part[i, j] = float32(0.0)
                # a `range` would keep a second count beside m and hide that the loop can be unrolled: half as fast
                m = 0
                while m < TILE_D:
                    for i in range(HEADS):
                        for j in range(KEYS):
                            part[i, j] += q_tile[ty + i * THREADS_Y, m] * k_tile[tx + j * THREADS_X, m]
                    m += 1
                for i in range(HEADS):
                    for j in range(KEYS):
                        dot[i, j] += part[i, j]
                cuda.syncthreads()  # everyone is done with the tiles before they are overwritten
            # ref: relu = np.maximum(as_bf16(dot).astype(np.float32), 0)
            # ref: total += as_bf16(relu * w[:, h, None]).astype(np.float32)
            for i in range(HEADS):
                row = ty + i * THREADS_Y
                if h0 + row < Hi:
                    w = decode_bf16(index_w[t, h0 + row])
                    for j in range(KEYS):
                        relu = decode_bf16(encode_bf16(dot[i, j]))
                        if relu < float32(0.0):  # this way round a NaN stays a NaN
                            relu = float32(0.0)
                        weighted[row, tx + j * THREADS_X] = decode_bf16(encode_bf16(relu * w))
            cuda.syncthreads()  # every head's column is in place before it is summed
            if ty < KEYS:
                for row in range(min(TILE_H, Hi - h0)):
                    total += weighted[row, ty * THREADS_X + tx]
            # no barrier here: the next heads write `weighted` only after the barriers around their dots
    # ref: return np.where(hidden, NEG_INF, as_bf16(total).astype(np.float32))
    if ty < KEYS and g_of_thread < G:
        score[t, g_of_thread] = NEG_INF
        if g_of_thread < visible:
            score[t, g_of_thread] = decode_bf16(encode_bf16(total))


def index_score(index_q, index_w, index_k, start_pos: int, ratio: int):
    """index_q [T, Hi, Di] bf16 bits, index_w [T, Hi] bf16 bits, index_k [G, Di] bf16 bits or packed, all device arrays
    -> score [T, G] f32. G is the row count of index_k: pass the rows in use, the first ones of a cache."""
    T, G = check_operands(index_q, index_w, index_k)
    if start_pos < 0:
        raise ValueError(f"start_pos: expected a position of at least 0, got {start_pos}")
    if ratio < 1:
        raise ValueError(f"ratio: expected at least 1 (a layer without compression has no index), got {ratio}")
    score = empty((T, G), np.float32)
    if T * G > 0:
        grid, block = (T, -(-G // TILE_G)), (THREADS_X, THREADS_Y)
        launch(index_score_kernel, grid, block, index_q, index_w, *key_planes(index_k), start_pos, ratio, score)
    return score


def check_operands(index_q: Any, index_w: Any, index_k: Any) -> tuple[int, int]:
    """Refuse operands that do not fit, as the contract says; T and G."""
    check_array("index_q", index_q, np.uint16, (None, None, None))
    T, Hi, Di = index_q.shape
    check_array("index_w", index_w, np.uint16, (T, Hi))
    if isinstance(index_k, PackedRows):
        check_packed("index_k", index_k, INDEX_KEY, (None, Di))
    else:
        check_array("index_k", index_k, np.uint16, (None, Di))
    return T, index_k.shape[0]


def key_planes(index_k: Any) -> tuple[Any, Any]:
    """What a kernel is given of keys: their bf16 bits and no scales, or the codes and scales of packed ones."""
    return (index_k.codes, index_k.scales) if isinstance(index_k, PackedRows) else (index_k, empty((0, 0), np.uint8))


if __name__ == "__main__":
    queries, keys = (np.sign(np.random.default_rng(0).standard_normal(shape)) for shape in ((4, 2, 32), (4, 32)))
    weights = as_bf16(np.ones((4, 2), np.float32))
    print(index_score_ref(as_bf16(queries.astype(np.float32)), weights, as_bf16(keys.astype(np.float32)), 0, 1))
