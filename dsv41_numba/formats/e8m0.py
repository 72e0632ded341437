"""e8m0: a power of two in one byte, which is a float32's exponent field. The scales of fp8 weights and of most rows.

::

    bit   7 6 5 4 3 2 1 0
          e e e e e e e e       value 2^(e-127)
    0x00 = 2^-127 (smallest)   0x01 = 2^-126   0x7E = 0.5   0x7F = 1   0xFE = 2^127 (largest)   0xFF = nan

No sign, no zero. Shifting the byte into place is right for 1 to 254 only: byte 0 is a subnormal float32 (0x00400000,
where the shift gives 0), and byte 255 is a NaN (where the shift gives infinity). Numba compiles without flush-to-zero
by default; a kernel built with `fastmath` would decode byte 0 right, and lose it in the next multiplication.

Encoding rounds up: the byte of the smallest power of two that is not below the value. That is 2^ceil(log2(value))
without a logarithm: the exponent field, plus 1 if any mantissa bit is set. A power of two gets its own exponent, so
that every byte survives decoding and encoding. Zero becomes byte 0. What has no such power becomes NaN: values above
2^127, infinity, NaN, and anything with its sign bit set.
"""

import numpy as np
from numba import cuda, float32, uint8, uint32

E8M0_NAN = 0xFF
E8M0_VALUES = np.append(np.ldexp(1.0, np.arange(255) - 127), np.nan).astype(np.float32)


def e8m0_to_f32(codes: np.ndarray) -> np.ndarray:
    """Decode uint8 codes (any shape) to float32, exactly; byte 255 is NaN."""
    return E8M0_VALUES[codes]


def f32_to_e8m0(values: np.ndarray) -> np.ndarray:
    """Encode float32 (any shape) as the uint8 codes of the smallest powers of two not below them."""
    values = np.asarray(values, np.float32)
    has_code = (values <= np.float32(2.0**127)) & ~np.signbit(values)
    smallest = np.float32(2.0**-127)
    fraction, e = np.frexp(np.where(has_code, np.maximum(values, smallest), smallest))
    code = np.where(fraction == 0.5, e - 1, e) + 127  # fraction is at least 0.5 and below 1: 0.5 is a power of two
    return np.where(has_code, code, E8M0_NAN).astype(np.uint8)


@cuda.jit(device=True)
def decode_e8m0(code):
    """The float32 of one code. No arithmetic, so byte 0 survives on any machine."""
    if code == 0:
        return uint32(0x00400000).view(np.float32)
    if code == 255:
        return uint32(0x7FC00000).view(np.float32)
    return uint32(uint32(code) << uint32(23)).view(np.float32)


@cuda.jit(device=True)
def encode_e8m0(value):
    """The code of the smallest power of two that is not below one float32."""
    bits = float32(value).view(np.uint32)
    if bits > uint32(0x7F000000):  # above 2^127, infinity, NaN, or with a sign
        return uint8(255)
    exponent, mantissa = bits >> uint32(23), bits & uint32(0x7FFFFF)
    if exponent == 0:  # below 2^-126 half a step is the power: 2^-127 is the pattern 0x00400000
        return uint8(mantissa > uint32(0x00400000))
    return uint8(exponent + uint32(mantissa > uint32(0)))
