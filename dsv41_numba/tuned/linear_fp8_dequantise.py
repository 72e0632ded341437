"""The fp8 linear for many tokens: both operands as the bf16 numbers that their codes stand for, and a bf16 product.

Math       y = fp8_round_trip(x) @ (codes * scales).T, the sum that `ops.linear_fp8` writes block by block
Shapes     x [M, K] bf16, K a multiple of 32; weight [N, K] as `ops.linear_fp8` has it -> y [M, N] bf16
Precision  a code times a scale has 4 significant bits, so bf16 holds it, if it is within bf16's range (else infinity,
           or a subnormal that is rounded: no weight that `linear="bf16"` would read has one). Products and sums in f32
           in the order of `tuned.linear`, not block by block in the order of K: a result may be one bf16 step from the
           plain kernel's. One rounding to bf16
Launch     the round trip of x; one thread for 4 codes of weight, block 256; the bf16 linear
Moves      3 N K bytes of weight beside those of the bf16 linear, which writes and reads it once more
Errors     none: `tuned.linear_fp8` has checked the operands
Source     steps 1, 2, 3, 6 and 14 of a prefill; any GPU

It needs 2 N K bytes for the time of the call, and is as fast as the bf16 linear less the time to write its weight.
"""

from typing import Any

import numpy as np
from numba import cuda, uint32

from dsv41_numba.formats.bf16 import encode_bf16
from dsv41_numba.formats.e4m3 import decode_e4m3
from dsv41_numba.formats.e8m0 import decode_e8m0
from dsv41_numba.formats.fp8_weight import Fp8Weight
from dsv41_numba.ops import fp8_round_trip
from dsv41_numba.runtime.backend import empty, launch
from dsv41_numba.tuned.linear import linear

THREADS = 256
CODES = 4  # a thread: a word of them, which lies in one scale block


@cuda.jit(device=True)
def pair_of(codes, scale):
    """The bf16 of the two codes in the low half of a word, times a scale."""
    low = uint32(encode_bf16(decode_e4m3(codes & uint32(0xFF)) * scale))
    high = uint32(encode_bf16(decode_e4m3((codes >> uint32(8)) & uint32(0xFF)) * scale))
    return uint32(low | uint32(high << uint32(16)))


@cuda.jit
def dequantise_kernel(codes, scale, rows, columns, values):
    """codes [N, K / 4] words of four codes -> values [N, K / 2] words of two bf16. blockIdx.x is the row of weight."""
    n = cuda.blockIdx.x
    for w in range(cuda.threadIdx.x, codes.shape[1], THREADS):
        word, s = codes[n, w], decode_e8m0(scale[n // rows, CODES * w // columns])
        values[n, 2 * w] = pair_of(word, s)
        values[n, 2 * w + 1] = pair_of(word >> uint32(16), s)


def dequantised(weight: Fp8Weight) -> Any:
    """The weight as bf16 bits [N, K], a new device array; its columns are a multiple of 32, as are those of a block."""
    N, K = weight.shape
    values = empty((N, K), np.uint16)
    launch(dequantise_kernel, N, THREADS, weight.codes.view(np.uint32), weight.scale, *weight.block,
           values.view(np.uint32))  # fmt: skip
    return values


def linear_fp8_dequantised(x: Any, weight: Fp8Weight) -> Any:
    """x [M, K] bf16 bits, weight [N, K] -> [M, N] bf16 bits; no size is 0."""
    return linear(fp8_round_trip(x), dequantised(weight))
