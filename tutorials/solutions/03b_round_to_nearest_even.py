"""Exercise 03b: round to nearest even.

Encode one float32 as the bf16 pattern nearest to it. Half way between two patterns, take the one whose last bit is 0.
The float32's bits are

    s eeeeeeee mmmmmmL RTTTTTTTTTTTTTTT        L is the last bit that stays, R and the T's go

Every NaN becomes 0x7FC0, with its sign in the highest bit. Infinities, -0.0 and subnormals are numbers like any other.
`float32(value).view(np.uint32)` gives the bits. Cast both sides of a shift to uint32.

values [N] f32 -> y [N] patterns, uint16. The checks want the same bits, and try every half-way mark of bf16.
"""

import numpy as np
from numba import cuda, float32, uint16, uint32

from dsv41_numba.runtime.backend import empty, launch, to_device, to_host

THREADS = 128


def spec(values):
    bits = values.view(np.uint32).astype(np.int64)
    upper, lower = bits >> 16, bits & 0xFFFF
    up = (lower > 0x8000) | ((lower == 0x8000) & (upper % 2 == 1))
    return np.where(np.isnan(values), upper & 0x8000 | 0x7FC0, upper + up).astype(np.uint16)


@cuda.jit(device=True)
def encode(value):
    # CUT the pattern of one float32 | leaves: return uint16(0)
    bits = float32(value).view(np.uint32)
    if value != value:
        return uint16(((bits >> uint32(16)) & uint32(0x8000)) | uint32(0x7FC0))
    last_kept = (bits >> uint32(16)) & uint32(1)
    return uint16(uint32(bits + uint32(0x7FFF) + last_kept) >> uint32(16))
    # END


@cuda.jit
def encode_kernel(values, y):
    i = cuda.grid(1)
    if i < values.shape[0]:
        y[i] = encode(values[i])


def run(values):
    y = empty(values.shape, np.uint16)
    launch(encode_kernel, -(-len(values) // THREADS), THREADS, to_device(values), y)
    return to_host(y)
