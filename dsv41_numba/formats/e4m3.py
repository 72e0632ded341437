"""e4m3 (the "fn" kind: finite, no infinity): the 8-bit numbers of fp8 weights, of fp8 rows, and of the latent's scales.

::

    bit   7 | 6 5 4 3 | 2 1 0
          s | e e e e | m m m       e > 0: (-1)^s 2^(e-7) (1 + m/8),  e = 0: (-1)^s 2^-6 (m/8)
    0x01 = 2^-9 (smallest)   0x08 = 2^-6 (smallest normal)   0x38 = 1   0xB8 = -1   0x7E = 448 (largest)
    0x80 = -0   0x7F = nan   0xFF = nan

Encoding clamps first: whatever is above 448, infinity too, becomes 448, and only a NaN becomes a NaN (0x7F, whatever
its sign). Then it rounds to the nearest, ties to the even code. One rule serves normal and subnormal numbers::

    e    the exponent of the number, but at least -6
    q    the number in units of 2^(e-3), rounded: 8 to 16 for a normal number, 0 to 8 for a subnormal one
    code 8 (e + 6) + q: a q of 16 carries into the next exponent, a q of 8 at e = -6 is the first normal code
"""

import numpy as np
from numba import cuda, float32, uint8, uint32

E4M3_MAX = 448.0
E4M3_NAN = 0x7F
MIN_EXPONENT = -6
F32_MIN_EXPONENT = 127 + MIN_EXPONENT  # the same as a float32's exponent field


def _values() -> np.ndarray:
    """The 256 values, from the picture."""
    code = np.arange(256)
    e, m = (code >> 3) & 15, code & 7
    magnitude = np.where(e > 0, np.ldexp(1 + m / 8, e - 7), np.ldexp(m / 8, MIN_EXPONENT))
    magnitude[[0x7F, 0xFF]] = np.nan
    return np.where(code & 0x80, -magnitude, magnitude).astype(np.float32)


E4M3_VALUES = _values()


def e4m3_to_f32(codes: np.ndarray) -> np.ndarray:
    """Decode uint8 codes (any shape) to float32, exactly."""
    return E4M3_VALUES[codes]


def f32_to_e4m3(values: np.ndarray) -> np.ndarray:
    """Encode float32 (any shape) as uint8 codes: clamp to +-448, to nearest even; NaN becomes 0x7F."""
    values = np.asarray(values, np.float32)
    nan = np.isnan(values)
    magnitude = np.minimum(np.abs(np.where(nan, np.float32(0.0), values)), np.float32(E4M3_MAX))
    smallest_normal = np.float32(2.0**MIN_EXPONENT)
    e = np.frexp(np.maximum(magnitude, smallest_normal))[1] - 1  # frexp's fraction is below 1, ours at least 1
    q = np.rint(np.ldexp(magnitude, 3 - e)).astype(np.int32)
    sign = np.where(np.signbit(values), 0x80, 0)
    return np.where(nan, E4M3_NAN, sign | (8 * (e - MIN_EXPONENT) + q)).astype(np.uint8)


@cuda.jit(device=True)
def decode_e4m3(code):
    """The float32 of one code."""
    magnitude = uint32(code) & uint32(0x7F)
    if magnitude == uint32(0x7F):
        bits = uint32(0x7FC00000)
    elif magnitude >= uint32(0x08):
        # exponent and mantissa move together to the top of a float32; the bias grows from 7 to 127
        bits = uint32((magnitude << uint32(20)) + uint32(120 << 23))
    else:
        bits = float32(float32(magnitude) * float32(2.0**-9)).view(np.uint32)
    sign = uint32((uint32(code) & uint32(0x80)) << uint32(24))
    return uint32(bits | sign).view(np.float32)


@cuda.jit(device=True)
def encode_e4m3(value):
    """The code nearest to one float32, clamped to +-448; NaN becomes 0x7F. In integers, so nothing can be fused."""
    bits = float32(value).view(np.uint32)
    magnitude = bits & uint32(0x7FFFFFFF)
    if magnitude > uint32(0x7F800000):
        return uint8(0x7F)
    magnitude = min(magnitude, uint32(0x43E00000))  # the float32 pattern of 448; patterns sort as their values do
    exponent = magnitude >> uint32(23)
    e = max(exponent, uint32(F32_MIN_EXPONENT))
    # the 24-bit significand loses 20 bits, one more for each step below the smallest normal exponent. At 31 nothing is
    # left, so a float32 subnormal, which has no leading 1, may be given one
    significand = (magnitude & uint32(0x7FFFFF)) | uint32(0x800000)
    drop = min(uint32(20) + e - exponent, uint32(31))
    last_kept = uint32(significand >> drop) & uint32(1)
    below_half = uint32(uint32(1) << uint32(drop - uint32(1))) - uint32(1)
    q = uint32(significand + below_half + last_kept) >> drop
    sign = (bits >> uint32(24)) & uint32(0x80)
    return uint8(sign | (uint32(8) * (e - uint32(F32_MIN_EXPONENT)) + q))
