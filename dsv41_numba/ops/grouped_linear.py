"""Grouped linear: each group of neighbouring heads has a weight matrix of its own.

Math       og[t, g, r] = sum_k heads[t, g, k] * weight[g * rank + r, k]: heads[t, g] are the H / n_groups heads of
           group g one after the other; group 0 has the first heads, group 1 the next ones
Shapes     o [T, H, D] bf16, weight [n_groups * rank, H / n_groups * D] bf16, n_groups an int
           -> og [T, n_groups, rank] bf16
Precision  that of `linear`
Launch     grid (T / 16, rank / 16, n_groups), rounded up, block (16, 16); 2304 bytes of shared memory. T <= 4: grid
           (T, rank / 4, n_groups), block 128; 4 KiB
Moves      2 (T H D + rank H D + T n_groups rank) bytes
Errors     ValueError when n_groups does not divide H or the rows of weight, or an array is not as above
Source     step 13 of the layer: wo_a, the first half of the output projection

The groups are independent linears that read neighbouring columns of o and write neighbouring columns of og. Nothing is
sliced out or put together: blockIdx.z is the group, and the kernel adds the group's offset to its indices. For few
tokens that kernel is `linear_few_kernel`, which knows groups.
"""

from typing import Any

import numpy as np
from numba import cuda, float32

from dsv41_numba.formats.bf16 import as_bf16, decode_bf16, encode_bf16
from dsv41_numba.ops.checks import check_array
from dsv41_numba.ops.linear import PADDED, SUMS, TILE, add_tile, few_fit, launch_few, total
from dsv41_numba.runtime.backend import empty, launch


def grouped_linear_ref(o: np.ndarray, weight: np.ndarray, n_groups: int) -> np.ndarray:
    """o [T, H, D] bf16, weight [n_groups * rank, H / n_groups * D] bf16 -> [T, n_groups, rank] bf16.

    In float64, as `linear_ref`.
    """
    K = weight.shape[1]
    heads = o.reshape(-1, n_groups, K).astype(np.float64)
    matrices = weight.reshape(n_groups, -1, K).astype(np.float64)
    og = np.stack([heads[:, g] @ matrices[g].T for g in range(n_groups)], axis=1)
    return as_bf16(og.astype(np.float32))


@cuda.jit
def grouped_linear_kernel(o, weight, og):
    """`linear_kernel` for group blockIdx.z, on columns g * K .. (g + 1) * K - 1 of o, here seen as [T, H * D]."""
    x_tile = cuda.shared.array((TILE, TILE), float32)
    weight_tile = cuda.shared.array((TILE, PADDED), float32)
    sums = cuda.local.array(SUMS, float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    g = cuda.blockIdx.z
    M, N, K = og.shape[0], og.shape[2], weight.shape[1]
    m, n0 = cuda.blockIdx.x * TILE + ty, cuda.blockIdx.y * TILE
    # ref: og = np.stack([heads[:, g] @ matrices[g].T for g in range(n_groups)], axis=1)
    sums[0] = sums[1] = sums[2] = sums[3] = float32(0.0)
    for k0 in range(0, K, TILE):
        # the edges are the group's: past them stand the numbers of the next group
        n, k = n0 + ty, k0 + tx
        x_tile[ty, tx] = decode_bf16(o[m, g * K + k]) if m < M and k < K else float32(0.0)
        weight_tile[ty, tx] = decode_bf16(weight[g * N + n, k]) if n < N and k < K else float32(0.0)
        add_tile(sums, x_tile, weight_tile)
    # ref: return as_bf16(og.astype(np.float32))
    if m < M and n0 + tx < N:
        og[m, g, n0 + tx] = encode_bf16(total(sums))


def check_groups(o: Any, weight: Any, n_groups: int) -> tuple[int, int, int]:
    """Refuse operands of a grouped linear that do not fit, as the contract says; T, H and D of o."""
    check_array("o", o, np.uint16, (None, None, None))
    T, H, D = o.shape
    if n_groups < 1 or H % n_groups != 0:
        raise ValueError(f"n_groups: expected a divisor of the {H} heads of o, got {n_groups}")
    check_array("weight", weight, np.uint16, (None, H // n_groups * D))
    if weight.shape[0] % n_groups != 0:
        raise ValueError(f"weight: expected a multiple of {n_groups} rows, one set a group, got {weight.shape[0]}")
    return T, H, D


def grouped_linear(o, weight, n_groups: int):
    """o [T, H, D] bf16 bits, weight [n_groups * rank, H / n_groups * D] bf16 bits -> [T, n_groups, rank] bf16 bits."""
    T, H, D = check_groups(o, weight, n_groups)
    rank = weight.shape[0] // n_groups
    og = empty((T, n_groups, rank), np.uint16)
    if few_fit(o, weight, T, rank):
        launch_few(o.reshape(T, H * D), weight, og)
    elif og.size > 0:  # a grid of 0 blocks is a launch error
        grid = (-(-T // TILE), -(-rank // TILE), n_groups)
        launch(grouped_linear_kernel, grid, (TILE, TILE), o.reshape(T, H * D), weight, og)
    return og


if __name__ == "__main__":
    four_heads = as_bf16(np.arange(1, 9, dtype=np.float32).reshape(1, 4, 2))
    picks = as_bf16(np.array([[0, 0, 1, 0], [0, 1, 0, 0]], np.float32))
    print(grouped_linear_ref(four_heads, picks, 2).tolist(), "heads split by stride would give 5 and 4")
