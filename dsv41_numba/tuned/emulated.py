"""What the warp's PTX instructions do, in shuffles and single elements: how the emulator runs a kernel that uses them.

`ptx` hangs each function here on the instruction of the same name, and the emulator calls it in its place. So the
lane-to-element maps of the fragments are written twice, once in silicon and once here, and the same kernel on both
machines shows whether they agree. wgmma and the copy engine have no stand-in: a kernel that uses them is refused.
"""

import numpy as np
from numba import cuda, float32, int32, uint32

from dsv41_numba.formats.bf16 import decode_bf16, encode_bf16
from dsv41_numba.formats.e4m3 import decode_e4m3, encode_e4m3

LANES = 0xFFFFFFFF


@cuda.jit(device=True)
def load_16_bytes(array, i, j, inside):
    words = cuda.local.array(4, uint32)
    for q in range(4):
        words[q] = uint32(0)
        if inside:
            words[q] = uint32(array[i, j + 2 * q]) | uint32(uint32(array[i, j + 2 * q + 1]) << uint32(16))
    return words[0], words[1], words[2], words[3]


@cuda.jit(device=True)
def pack_bf16(low, high):
    return uint32(uint32(encode_bf16(low)) | uint32(uint32(encode_bf16(high)) << uint32(16)))


@cuda.jit(device=True)
def relu_bf16(low, high):
    low = float32(0.0) if low < float32(0.0) else low
    high = float32(0.0) if high < float32(0.0) else high
    return pack_bf16(low, high)


@cuda.jit(device=True)
def multiply_bf16(a, b):
    low = half_of(a, uint32(0)) * half_of(b, uint32(0))
    return pack_bf16(low, half_of(a, uint32(16)) * half_of(b, uint32(16)))


@cuda.jit(device=True)
def e4m3_as_f16(code):
    """The f16 pattern of one code: the exponent's bias grows from 7 to 15, a subnormal code is a normal f16."""
    bits = decode_e4m3(code).view(np.uint32)
    sign, magnitude = (bits >> uint32(16)) & uint32(0x8000), bits & uint32(0x7FFFFFFF)
    if magnitude > uint32(0x7F800000):
        return uint32(0x7FFF)
    if magnitude == uint32(0):
        return sign
    return uint32(sign | (uint32(magnitude - uint32(112 << 23)) >> uint32(13)))


@cuda.jit(device=True)
def first_e4m3_as_f16(word):
    return uint32(
        e4m3_as_f16(word & uint32(0xFF)) | uint32(e4m3_as_f16((word >> uint32(8)) & uint32(0xFF)) << uint32(16))
    )


@cuda.jit(device=True)
def last_e4m3_as_f16(word):
    return first_e4m3_as_f16(word >> uint32(16))


@cuda.jit(device=True)
def pack_e4m3(x0, x1, x2, x3):
    low = uint32(encode_e4m3(x0)) | uint32(uint32(encode_e4m3(x1)) << uint32(8))
    high = uint32(encode_e4m3(x2)) | uint32(uint32(encode_e4m3(x3)) << uint32(8))
    return uint32(low | uint32(high << uint32(16)))


@cuda.jit(device=True)
def copy_16_bytes(tile, s, i, j, array, m, k, n_bytes):
    for word in range(4):
        pair = uint32(0)
        for half in range(2):
            if 4 * word + 2 * half < n_bytes:
                pair |= uint32(uint32(array[m, k + 2 * word + half]) << uint32(16 * half))
        tile[s, i, j + word] = pair


@cuda.jit(device=True)
def opaque(word):
    return uint32(word)


@cuda.jit(device=True)
def arrived():
    """Copies are made at once and launches run one after the other: there is nothing to close or to wait for."""


@cuda.jit(device=True)
def ldmatrix_x4(tile, s, i, j):
    words = cuda.local.array(4, uint32)
    lane = cuda.threadIdx.x & 31
    for q in range(4):
        row = cuda.shfl_sync(LANES, int32(i), 8 * q + lane // 4)
        column = cuda.shfl_sync(LANES, int32(j), 8 * q + lane // 4)
        words[q] = tile[s, row, column + lane % 4]
    return words[0], words[1], words[2], words[3]


@cuda.jit(device=True)
def half_of(word, shift):
    return decode_bf16(uint32(word) >> shift & uint32(0xFFFF))


@cuda.jit(device=True)
def f16_of(word, shift):
    """The float32 of the f16 in one half of a word."""
    bits = uint32(word) >> shift & uint32(0xFFFF)
    exponent, mantissa = (bits >> uint32(10)) & uint32(31), bits & uint32(0x3FF)
    sign = uint32((bits & uint32(0x8000)) << uint32(16))
    if exponent == uint32(0):
        magnitude = float32(float32(mantissa) * float32(2.0**-24)).view(np.uint32)
    elif exponent == uint32(31):
        magnitude = uint32(uint32(0x7F800000) | uint32(mantissa << uint32(13)))
    else:
        magnitude = uint32(uint32(uint32(exponent + uint32(112)) << uint32(23)) | uint32(mantissa << uint32(13)))
    return uint32(sign | magnitude).view(np.float32)


def product_of(element_of):
    """mma.sync of 16-bit elements, of which `element_of` reads the one in a half of a word."""

    @cuda.jit(device=True)
    def multiply(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3):
        lane = cuda.threadIdx.x & 31
        g, t = lane // 4, lane % 4
        for word in range(8):  # two of the 16 columns of K
            upper = cuda.shfl_sync(LANES, int32(a2) if word >= 4 else int32(a0), 4 * g + word % 4)
            lower = cuda.shfl_sync(LANES, int32(a3) if word >= 4 else int32(a1), 4 * g + word % 4)
            left = cuda.shfl_sync(LANES, int32(b1) if word >= 4 else int32(b0), 4 * (2 * t) + word % 4)
            right = cuda.shfl_sync(LANES, int32(b1) if word >= 4 else int32(b0), 4 * (2 * t + 1) + word % 4)
            for half in range(2):
                shift = uint32(16 * half)
                u, v = element_of(upper, shift), element_of(lower, shift)
                p, q = element_of(left, shift), element_of(right, shift)
                c0, c1, c2, c3 = c0 + u * p, c1 + u * q, c2 + v * p, c3 + v * q
        return c0, c1, c2, c3

    return multiply


mma_m16n8k16 = product_of(half_of)
mma_m16n8k16_f16 = product_of(f16_of)


@cuda.jit(device=True)
def exp2(x):
    power = cuda.libdevice.exp2f(x)
    return power if power >= float32(2.0**-126) else float32(0.0)  # below it the instruction gives 0


@cuda.jit(device=True)
def ldmatrix_x4_transposed(tile, s, i, j):
    words = cuda.local.array(4, uint32)
    lane = cuda.threadIdx.x & 31
    column, shift = lane // 8, uint32(16 * (lane // 4 % 2))  # the word and the half of it that hold column g
    for q in range(4):
        upper_row = cuda.shfl_sync(LANES, int32(i), 8 * q + 2 * (lane % 4))
        upper_column = cuda.shfl_sync(LANES, int32(j), 8 * q + 2 * (lane % 4))
        lower_row = cuda.shfl_sync(LANES, int32(i), 8 * q + 2 * (lane % 4) + 1)
        lower_column = cuda.shfl_sync(LANES, int32(j), 8 * q + 2 * (lane % 4) + 1)
        upper = uint32(tile[s, upper_row, upper_column + column] >> shift) & uint32(0xFFFF)
        lower = uint32(tile[s, lower_row, lower_column + column] >> shift) & uint32(0xFFFF)
        words[q] = upper | uint32(lower << uint32(16))
    return words[0], words[1], words[2], words[3]


@cuda.jit(device=True)
def store_2_floats(array, i, j, first, second, inside):
    if inside:
        array[i, j], array[i, j + 1] = first, second


@cuda.jit(device=True)
def load_4_floats(array, i, j, inside):
    floats = cuda.local.array(4, float32)
    for c in range(4):
        floats[c] = array[i, j + c] if inside else float32(0.0)
    return floats[0], floats[1], floats[2], floats[3]


# by the name of the instruction in `ptx`
STAND_INS = {
    "copy_16_bytes": copy_16_bytes,
    "copies_commit": arrived,
    "copies_wait_0": arrived,
    "copies_wait_1": arrived,
    "exp2": exp2,
    "first_e4m3_as_f16": first_e4m3_as_f16,
    "last_e4m3_as_f16": last_e4m3_as_f16,
    "ldmatrix_x4": ldmatrix_x4,
    "ldmatrix_x4_transposed": ldmatrix_x4_transposed,
    "load_4_floats": load_4_floats,
    "launch_next": arrived,
    "launch_wait": arrived,
    "load_16_bytes": load_16_bytes,
    "load_16_bytes_once": load_16_bytes,
    "mma_m16n8k16": mma_m16n8k16,
    "mma_m16n8k16_f16": mma_m16n8k16_f16,
    "multiply_bf16": multiply_bf16,
    "opaque": opaque,
    "pack_bf16": pack_bf16,
    "pack_e4m3": pack_e4m3,
    "relu_bf16": relu_bf16,
    "store_2_floats": store_2_floats,
}
