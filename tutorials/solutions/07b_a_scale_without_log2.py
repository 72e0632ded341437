"""Exercise 07b: a power-of-two scale, without log2.

x [R, 32] bf16 bits: R blocks of 32 numbers. Each block gets one byte, the e8m0 code of

    scale = 2^ceil(log2(max(amax, 1e-4) / 448))          amax is the block's largest magnitude

which is the smallest power of two that brings the block within e4m3's 448. A float32 already has its exponent in its
bits, so that no logarithm is needed: bits 30 to 23 are the exponent field, which is an e8m0 code; bits 22 to 0 are 0
for a power of two. Multiply by INVERSE_448 instead of dividing.

`amax_bits` is bf16's pattern of amax without its sign; write what follows. A block with an infinity or a NaN has no
scale: its byte is 255.
"""

import numpy as np
from numba import cuda, uint8, uint32

from dsv41_numba.formats.bf16 import decode_bf16
from dsv41_numba.runtime.backend import empty, launch, to_device, to_host

BLOCK = 32
AMAX_FLOOR = np.float32(1e-4)
INVERSE_448 = np.float32(1 / 448)


def spec(x):
    magnitude = np.left_shift(x & 0x7FFF, 16, dtype=np.uint32).view(np.float32)
    needed = np.maximum(magnitude.max(1), AMAX_FLOOR) * INVERSE_448
    powers = np.exp2(np.arange(-127.0, 128)).astype(np.float32)  # of the codes 0 to 254
    return np.where(np.isfinite(needed), np.searchsorted(powers, needed), 255).astype(np.uint8)


@cuda.jit(device=True)
def scale_code(amax_bits):
    # CUT the e8m0 code: floor, product, its exponent, one more unless a power of two | leaves: return uint8(0)
    amax = decode_bf16(amax_bits)
    if amax < AMAX_FLOOR:
        amax = AMAX_FLOOR
    bits = (amax * INVERSE_448).view(np.uint32)
    exponent, mantissa = bits >> uint32(23), bits & uint32(0x7FFFFF)
    if exponent == 255:
        return uint8(255)
    return uint8(exponent + uint32(mantissa > uint32(0)))
    # END


@cuda.jit
def scale_kernel(x, scales):
    partial = cuda.shared.array(BLOCK, uint32)
    r, t = cuda.blockIdx.x, cuda.threadIdx.x
    partial[t] = uint32(x[r, t]) & uint32(0x7FFF)  # patterns without a sign sort as their values do
    cuda.syncthreads()
    half = BLOCK // 2
    while half > 0:
        if t < half:
            partial[t] = max(partial[t], partial[t + half])
        cuda.syncthreads()
        half //= 2
    if t == 0:
        scales[r] = scale_code(partial[0])


def run(x):
    scales = empty(len(x), np.uint8)
    launch(scale_kernel, len(x), BLOCK, to_device(x), scales)
    return to_host(scales)
