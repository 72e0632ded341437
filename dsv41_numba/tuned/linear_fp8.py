"""The fp8 linear: which rung takes which shape on which GPU, and why.

::

    rung        needs                                      what limits it
    decode      at most 4 tokens, compute capability 8.9   memory bandwidth, of one byte a weight
    dequantise  more of them, compute capability 8.0       the tensor cores, in bf16; the weight is written out first
    plain       any GPU, or the emulator                   float32 arithmetic

`linear_fp8` has the contract of `ops.linear_fp8`, but for the order in which blocks are added: each rung says its own.
A rung is imported when it is first picked: all but plain need numba-cuda.
"""

from collections import Counter
from typing import Any

import numpy as np

from dsv41_numba.formats.fp8_weight import Fp8Weight
from dsv41_numba.ops import linear_fp8 as plain_linear_fp8
from dsv41_numba.ops.checks import check_array
from dsv41_numba.ops.linear_fp8 import check_weight
from dsv41_numba.runtime.backend import empty
from dsv41_numba.tuned.linear import Choice
from dsv41_numba.tuned.operands import NO_GPU, capability, on_16_bytes

DECODE_TOKENS = 4
MAX_COLUMNS = 8192  # of x, whose codes the decode rung keeps in shared memory
MAX_CODES = 1 << 32  # words of two of them are counted in 32 bits
GROUP = 16  # rows of weight a warp of the decode rung

PICKED: Counter[tuple[str, str]] = Counter()  # calls of this process by rung and reason: what the commands print


def pick(M: int, N: int, K: int, block: tuple[int, ...], capability: tuple[int, int], aligned: bool = True) -> Choice:
    """The rung for x [M, K] and a weight [N, K] with scales of this block on a GPU of this compute capability.

    `aligned` says whether x and the codes start on multiples of 16 bytes. A capability of (0, 0) means no GPU.
    """
    if capability == NO_GPU:
        return Choice("plain", "there is no GPU, and the other rungs are for one")
    if M * N * K == 0:
        return Choice("plain", "an operand is empty")
    name = "compute capability {}.{}".format(*capability)
    if M > DECODE_TOKENS:
        if capability < (8, 0):
            return Choice("plain", f"{name} has no mma.sync for bf16")
        return Choice("dequantise", f"more than {DECODE_TOKENS} tokens: the time is that of the product, in bf16")
    if capability < (8, 9):
        return Choice("plain", f"{name} has no conversion from e4m3")
    if reason := why_not_decode(M, N, K, block, aligned):
        return Choice("plain", reason)
    return Choice("decode", f"{M} of at most {DECODE_TOKENS} tokens: the time is that of reading weight")


def why_not_decode(M: int, N: int, K: int, block: tuple[int, ...], aligned: bool) -> str:
    """What keeps operands from the decode rung; empty if nothing does."""
    rows, columns = block
    if not 1 <= M <= DECODE_TOKENS:
        return f"expected 1 to {DECODE_TOKENS} rows of x, got {M}"
    if not 0 < K <= MAX_COLUMNS or K % 32 or N * K > MAX_CODES:
        return f"expected a multiple of 32 columns up to {MAX_COLUMNS} and at most {MAX_CODES} codes, got [{N}, {K}]"
    if rows % GROUP or columns % 32 or columns & (columns - 1):
        return f"expected blocks of a multiple of {GROUP} rows and of 32, 64, 128, ... columns, got {tuple(block)}"
    return "" if aligned else "expected x and codes that start on multiples of 16 bytes, got others"


def picked(x: Any, weight: Fp8Weight) -> Choice:
    """The choice for these operands on this machine."""
    (M, K), N = x.shape, weight.shape[0]
    aligned = M * N * K == 0 or on_16_bytes(x, weight.codes)
    return pick(M, N, K, weight.block, capability(), aligned)


def linear_fp8(x: Any, weight: Fp8Weight) -> Any:
    """x [M, K] bf16 bits, weight [N, K] -> [M, N] bf16 bits, all device arrays."""
    check_weight(x, weight)
    check_array("x", x, np.uint16, (None, None))
    choice = picked(x, weight)
    PICKED[choice.rung, choice.reason] += 1
    if choice.rung == "dequantise":
        from dsv41_numba.tuned.linear_fp8_dequantise import linear_fp8_dequantised

        return linear_fp8_dequantised(x, weight)
    if choice.rung == "decode":
        from dsv41_numba.tuned.linear_fp8_decode import launch_fp8_decode

        y = empty((x.shape[0], weight.shape[0]), np.uint16)
        launch_fp8_decode(x, weight, y)
        return y
    return plain_linear_fp8(x, weight)
