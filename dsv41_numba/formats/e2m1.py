"""e2m1: the 4-bit numbers of fp4 rows, and two of them in a byte.

::

    bit   3 | 2 1 | 0
          s | e e | m       e > 0: (-1)^s 2^(e-1) (1 + m/2),  e = 0: (-1)^s 2^0 (m/2)
    0x0 = 0   0x1 = 0.5   0x2 = 1   0x3 = 1.5   0x4 = 2   0x5 = 3   0x6 = 4   0x7 = 6 (largest)   0x8 = -0   0xF = -6

There is no infinity and no NaN: a row's scale has to carry them. A byte holds two codes, the even index low::

    bit   7 6 5 4 | 3 2 1 0
          odd i   | even i
    0xA3 -> 1.5, -1   0x91 -> 0.5, -0.5   0xF2 -> 1, -6   0x80 -> 0, -0

Encoding clamps to +-6 and rounds to the nearest. A tie goes to the even code, so each half-way mark belongs to the one
of its neighbours whose last bit is 0::

    code       0      1      2      3      4      5      6      7
    value      0     0.5     1     1.5     2      3      4      6
    half way     0.25   0.75   1.25   1.75   2.5    3.5    5
    a tie is    0 <-    -> 1   1 <-   -> 2   2 <-   -> 4  4 <-
"""

import numpy as np
from numba import cuda, float32, uint8, uint32

E2M1_MAX = 6.0
E2M1_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def e2m1_to_f32(codes: np.ndarray) -> np.ndarray:
    """Decode uint8 codes 0 to 15 (any shape) to float32, exactly. IndexError above 15."""
    return E2M1_VALUES[codes]


def f32_to_e2m1(values: np.ndarray) -> np.ndarray:
    """Encode float32 (any shape) as uint8 codes: clamp to +-6, to nearest even. ValueError for a NaN."""
    values = np.asarray(values, np.float32)
    if np.isnan(values).any():
        raise ValueError("values: expected numbers, got a NaN, which e2m1 cannot hold")
    magnitude = np.minimum(np.abs(values), np.float32(E2M1_MAX))
    e = np.frexp(np.maximum(magnitude, np.float32(1.0)))[1] - 1
    q = np.rint(np.ldexp(magnitude, 1 - e)).astype(np.int32)  # in units of 2^(e-1); as in e4m3, a carry is right
    return (np.where(np.signbit(values), 8, 0) | (2 * e + q)).astype(np.uint8)


def e2m1_to_packed(codes: np.ndarray) -> np.ndarray:
    """uint8 codes [..., 2 n] -> bytes [..., n] of two codes each, the even index in the low 4 bits."""
    if codes.shape[-1] % 2:
        raise ValueError(f"codes: expected an even last axis, got {codes.shape[-1]}")
    return codes[..., 0::2] | (codes[..., 1::2] << np.uint8(4))


def packed_to_e2m1(packed: np.ndarray) -> np.ndarray:
    """Bytes [..., n] -> uint8 codes [..., 2 n]."""
    both = np.stack([packed & np.uint8(0xF), packed >> np.uint8(4)], axis=-1)
    return both.reshape(*packed.shape[:-1], 2 * packed.shape[-1])


@cuda.jit(device=True)
def decode_e2m1(code):
    """The float32 of one code (the low 4 bits)."""
    m = uint32(code) & uint32(1)
    e = (uint32(code) >> uint32(1)) & uint32(3)
    halves = m
    if e > 0:
        halves = (uint32(2) + m) << uint32(e - uint32(1))  # 2^(e-1) (1 + m/2), counted in halves
    magnitude = float32(halves) * float32(0.5)
    return -magnitude if uint32(code) & uint32(8) else magnitude


@cuda.jit(device=True)
def encode_e2m1(value):
    """The code nearest to one float32, clamped to +-6. The code is the number of half-way marks below the value.

    A NaN is above no mark and becomes 0: whoever calls this makes the scale a NaN, as the quantisers do.
    """
    magnitude = abs(float32(value))
    # > leaves a tie with the code below, >= gives it to the code above: always the even one
    code = (
        uint32(magnitude > float32(0.25))
        + uint32(magnitude >= float32(0.75))
        + uint32(magnitude > float32(1.25))
        + uint32(magnitude >= float32(1.75))
        + uint32(magnitude > float32(2.5))
        + uint32(magnitude >= float32(3.5))
        + uint32(magnitude > float32(5.0))
    )
    sign = (float32(value).view(np.uint32) >> uint32(28)) & uint32(8)
    return uint8(sign | code)


@cuda.jit(device=True)
def pack_e2m1(even, odd):
    """The byte of two codes."""
    return uint8(uint32(even) | (uint32(odd) << uint32(4)))


@cuda.jit(device=True)
def unpack_e2m1(packed, i):
    """The code with index i of a packed row, given its byte i // 2."""
    return uint8((uint32(packed) >> uint32(4 * (i % 2))) & uint32(0xF))
