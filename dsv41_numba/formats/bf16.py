"""bf16: the upper half of a float32.

::

    bit   15 | 14 ... 7 | 6 ... 0
          s  | e e e e e e e e | m m m m m m m      value (-1)^s 2^(e-127) (1 + m/128),  e = 0: (-1)^s 2^-126 (m/128)
    0x3F80 = 1   0xBF80 = -1   0x7F7F = 3.39e38 (largest)   0x0001 = 9.2e-41 (smallest)   0x7F80 = inf   0x7FC0 = nan

Decoding appends 16 zero bits. Encoding drops 16 bits and rounds to the nearest, ties to the even code::

    float32  ... L | R T T T T T T T T T T T T T T T        L last kept bit, R the round bit, T the tail
    add 0x7FFF + L, then cut: the carry reaches L when R T...T is above half, or exactly half with L odd

The carry may run through the mantissa into the exponent, which is the right result (0x7F7F... becomes inf).
"""

import ml_dtypes
import numpy as np
from numba import cuda, float32, uint16, uint32

BF16 = ml_dtypes.bfloat16


def bf16_to_f32(bits: np.ndarray) -> np.ndarray:
    """Decode uint16 patterns (any shape) to float32, exactly."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(values: np.ndarray) -> np.ndarray:
    """Encode float32 (any shape) as uint16 patterns, to nearest even; every NaN becomes 0x7FC0 with its sign kept."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    last_kept = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + last_kept) >> np.uint32(16)
    quiet_nan = (bits >> np.uint32(16)) & np.uint32(0x8000) | np.uint32(0x7FC0)
    return np.where(np.isnan(values), quiet_nan, rounded).astype(np.uint16)


def as_bf16(values: np.ndarray) -> np.ndarray:
    """Round float32 to an `ml_dtypes.bfloat16` array of the same shape, by the rule above."""
    return f32_to_bf16(values).view(BF16)


@cuda.jit(device=True)
def decode_bf16(bits):
    """The float32 of one pattern. Both shift operands are uint32: a narrow left operand would lose its bits."""
    return uint32(uint32(bits) << uint32(16)).view(np.float32)


@cuda.jit(device=True)
def encode_bf16(value):
    """The pattern nearest to one float32."""
    bits = float32(value).view(np.uint32)
    last_kept = (bits >> uint32(16)) & uint32(1)
    # a NaN must not be rounded: its tail could carry it into the sign, and cutting could leave an infinity
    if value != value:
        return uint16(((bits >> uint32(16)) & uint32(0x8000)) | uint32(0x7FC0))
    return uint16(uint32(bits + uint32(0x7FFF) + last_kept) >> uint32(16))
