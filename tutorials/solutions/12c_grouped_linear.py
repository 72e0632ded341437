"""Exercise 12c: a linear for each group of heads.

o [T, H, D] bf16 bits holds what each head read. Its heads form n_groups groups of neighbours: group 0 has the first
H / n_groups heads, group 1 the next ones. weight [n_groups * rank, K] bf16 bits has `rank` rows for group 0, then those
of group 1; K = H / n_groups * D. og [T, n_groups, rank] bf16 bits goes out, the sums in float32.

Block (x, y, g) makes a tile of og[:, g]: 16 tokens from 16 x on, 16 ranks from 16 y on.
Both tiles hold 16 numbers along K: x_tile of 16 tokens, weight_tile of 16 ranks. Thread (tx, ty) makes
og[m, g, n0 + tx]. Column k of group g is entry k % D of its head k // D.

Write the loop over K and the store. Every number of o and of weight is read once a block. (The project's kernel sees
o as [T, H * D], where that column is o[m, g * K + k].)
"""

import numpy as np
from numba import cuda, float32

from dsv41_numba.formats.bf16 import bf16_to_f32, decode_bf16, encode_bf16, f32_to_bf16
from dsv41_numba.runtime.backend import empty, launch, to_device, to_host

TILE = 16
PADDED = 17  # an odd row length: threads that read down a column meet different banks


def spec(o, weight, n_groups):
    T, K = o.shape[0], weight.shape[1]
    heads = bf16_to_f32(o).reshape(T, n_groups, K).astype(np.float64)
    matrices = bf16_to_f32(weight).reshape(n_groups, -1, K).astype(np.float64)
    og = np.stack([heads[:, g] @ matrices[g].T for g in range(n_groups)], axis=1)
    return f32_to_bf16(og.astype(np.float32))


@cuda.jit
def grouped_linear_kernel(o, weight, og):
    x_tile = cuda.shared.array((TILE, TILE), float32)
    weight_tile = cuda.shared.array((TILE, PADDED), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    g = cuda.blockIdx.z
    M, N, K = og.shape[0], og.shape[2], weight.shape[1]
    D = o.shape[2]
    heads = K // D  # of a group
    m, n0 = cuda.blockIdx.x * TILE + ty, cuda.blockIdx.y * TILE
    # CUT fill both tiles, K a tile at a time, with zeros past an edge of the group, and add the products;
    #  then store og[m, g, n0 + tx]
    total = float32(0.0)
    for k0 in range(0, K, TILE):
        n, k = n0 + ty, k0 + tx
        x_tile[ty, tx] = decode_bf16(o[m, g * heads + k // D, k % D]) if m < M and k < K else float32(0.0)
        weight_tile[ty, tx] = decode_bf16(weight[g * N + n, k]) if n < N and k < K else float32(0.0)
        cuda.syncthreads()  # both tiles are filled before anyone reads them
        for i in range(TILE):
            total += x_tile[ty, i] * weight_tile[tx, i]
        cuda.syncthreads()  # everyone has read the tiles before anyone fills them again
    if m < M and n0 + tx < N:
        og[m, g, n0 + tx] = encode_bf16(total)
    # END


def run(o, weight, n_groups):
    T, rank = o.shape[0], weight.shape[0] // n_groups
    og = empty((T, n_groups, rank), np.uint16)
    grid = (-(-T // TILE), -(-rank // TILE), n_groups)
    launch(grouped_linear_kernel, grid, (TILE, TILE), to_device(o), to_device(weight), og)
    return to_host(og)
