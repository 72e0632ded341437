"""What the rungs of sparse attention share: the softmax within a warp, and fragments of its operands.

Of 16 heads by 8 slots (or columns) a thread holds four numbers, as mma.sync and wgmma leave them: two neighbours of
head lane / 4, the "upper" one, and the same two of head lane / 4 + 8, the "lower" one. The four lanes of a "quad" hold
the rest of both. Weights are powers of two: logits are multiplied by log2 e, with the scale, in one multiplication.
"""

import numpy as np
from numba import cuda, float32

from dsv41_numba.ops.sparse_attention import high_bf16, low_bf16
from dsv41_numba.tuned.ptx import exp2, mma_m16n8k16, pack_bf16

LANES = 0xFFFFFFFF
LOWEST = float32(-1e30)  # below every product that counts, and finite: infinity minus infinity would be NaN
INFINITY = float32(np.inf)
LOG2_E = float32(1.4426950408889634)


@cuda.jit(device=True, forceinline=True)
def quad_max(x):
    """The largest x of a quad."""
    x = max(x, cuda.shfl_xor_sync(LANES, x, 1))
    return max(x, cuda.shfl_xor_sync(LANES, x, 2))


@cuda.jit(device=True, forceinline=True)
def quad_sum(x):
    """The sum of x over a quad."""
    x += cuda.shfl_xor_sync(LANES, x, 1)
    return x + cuda.shfl_xor_sync(LANES, x, 2)


@cuda.jit(device=True, forceinline=True)
def in_two_bf16(first, second):
    """Two weights as a word of two bf16, and as another word what that rounding left of them: 16 bits in all."""
    word = pack_bf16(first, second)
    return word, pack_bf16(first - low_bf16(word), second - high_bf16(word))


@cuda.jit(device=True, forceinline=True)
def share(total, maximum, sink):
    """What to multiply a head's output with: 1 / (total + 2^(sink log2 e - maximum)), in which nothing overflows.

    The sink is unscaled, the maximum as it stands in the exponents. A head without any weight gets 0.
    """
    sink *= LOG2_E
    top = max(maximum, sink)
    own = exp2(maximum - top)
    denominator = total * own + exp2(sink - top)
    return own / denominator if denominator > float32(0.0) else float32(0.0)


@cuda.jit(device=True, forceinline=True)
def swizzled(row, chunk):
    """The word at which a 16-byte chunk of a row begins in shared memory: chunk c of row r at c ^ (r % 8).

    Rows are multiples of 128 bytes, so that unturned the same chunk of eight rows would share its banks.
    """
    return (chunk ^ (row & 7)) * 4


@cuda.jit(device=True, forceinline=True)
def multiply(sums, j, a, k, b0, b1):
    """sums[j] += the 16 rows in a[k] times 8 columns, by mma.sync."""
    c = mma_m16n8k16(
        a[k, 0], a[k, 1], a[k, 2], a[k, 3], b0, b1, sums[j, 0], sums[j, 1], sums[j, 2], sums[j, 3]
    )  # fmt: skip
    sums[j, 0], sums[j, 1], sums[j, 2], sums[j, 3] = c
