"""fp4: each block of entries becomes e2m1 codes with one scale; the round trip reads them back. Two kinds of scale.

Math       e8m0, blocks of 32: scale = 2^ceil(log2(max(amax, 6 * 2^-126) / 6))
           e4m3, blocks of 16: scale = e4m3(max(amax, 6 * 2^-9) / 6)
           codes = e2m1(x / scale)      `fp4_quantise_*`; amax is the largest magnitude of the block
           y = bf16(codes * scale)      `fp4_round_trip_*`
Shapes     x [..., D] bf16, D a multiple of 32 (e8m0) or 16 (e4m3); blocks lie along the last axis -> y [..., D] bf16
           x [M, D] bf16 -> codes [M, D / 2] uint8, two in a byte, scale [M, D / 32] e8m0 or [M, D / 16] e4m3
Precision  every bit is fixed. Both divisions are true f32 divisions; for x / scale with an e4m3 scale a multiplication
           by the reciprocal gives other codes (0.0366 / 0.0293 is a tie, its reciprocal's product is not). The scale is
           final BEFORE anything is quantised: the power of two at or above amax / 6, or amax / 6 to the nearest e4m3,
           ties to even, at most 448. e2m1 clamps to +-6 and rounds to nearest even; the sign of zero survives.
           e8m0: a product above bf16's range is an infinity (4 * 2^126, when amax is at bf16's end); an infinity in x
           has no scale and makes its whole block NaN. e4m3: all magnitudes above 2688, infinity too, become 2688.
           A NaN in x makes its whole block NaN, for both.
Launch     grid ceil(N / 512) for N entries, block 256, which is 16 or 32 blocks of entries; 1 KiB of shared memory
Moves      4 N bytes; `fp4_quantise_*` 2.5 N + N / 32 or N / 16
Errors     ValueError when x is not a C-contiguous bf16 array whose last axis is a multiple of 32 (e8m0) or 16 (e4m3)
Source     steps 5 and 6 of the layer (index keys and index queries, e8m0) and step 9 (latents, e4m3). `fp4_quantise_*`:
           packed caches of those keys and latents
"""

from typing import Any

import numpy as np
from numba import cuda, float32, uint32

from dsv41_numba.formats.bf16 import as_bf16, decode_bf16, encode_bf16
from dsv41_numba.formats.e2m1 import decode_e2m1, e2m1_to_f32, encode_e2m1, f32_to_e2m1, pack_e2m1
from dsv41_numba.formats.e4m3 import decode_e4m3, e4m3_to_f32, encode_e4m3, f32_to_e4m3
from dsv41_numba.formats.e8m0 import decode_e8m0, e8m0_to_f32, encode_e8m0, f32_to_e8m0
from dsv41_numba.ops.quant_fp8 import THREADS, launch_blocks, launch_quantise, split_blocks, word_and_amax

BLOCK_E8M0 = 32  # entries that share a scale
BLOCK_E4M3 = 16
# the largest code is 6, so these floors are the amax of each format's smallest (for e8m0: smallest normal) scale
AMAX_FLOOR_E8M0 = np.float32(6 * 2.0**-126)
AMAX_FLOOR_E4M3 = np.float32(6 * 2.0**-9)


def fp4_quantise_e8m0_ref(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x [..., D] bf16 -> e2m1 codes [..., D] uint8 (one a byte), e8m0 scales [..., D / 32] uint8."""
    blocks = split_blocks(x, BLOCK_E8M0).astype(np.float32)
    amax = np.abs(blocks).max(-1)
    scale = f32_to_e8m0(np.maximum(amax, AMAX_FLOOR_E8M0) / np.float32(6.0))
    return _codes_ref(blocks, e8m0_to_f32(scale)).reshape(x.shape), scale


def fp4_quantise_e4m3_ref(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x [..., D] bf16 -> e2m1 codes [..., D] uint8 (one a byte), e4m3 scales [..., D / 16] uint8."""
    blocks = split_blocks(x, BLOCK_E4M3).astype(np.float32)
    amax = np.abs(blocks).max(-1)
    scale = f32_to_e4m3(np.maximum(amax, AMAX_FLOOR_E4M3) / np.float32(6.0))
    return _codes_ref(blocks, e4m3_to_f32(scale)).reshape(x.shape), scale


def fp4_round_trip_e8m0_ref(x: np.ndarray) -> np.ndarray:
    """x [..., D] bf16 -> [..., D] bf16."""
    codes, scale = fp4_quantise_e8m0_ref(x)
    return _dequantise_ref(codes, e8m0_to_f32(scale), BLOCK_E8M0)


def fp4_round_trip_e4m3_ref(x: np.ndarray) -> np.ndarray:
    """x [..., D] bf16 -> [..., D] bf16."""
    codes, scale = fp4_quantise_e4m3_ref(x)
    return _dequantise_ref(codes, e4m3_to_f32(scale), BLOCK_E4M3)


def _codes_ref(blocks: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """blocks [..., n, block] f32, scale [..., n] f32 -> e2m1 codes. A block whose scale is NaN gets codes of 0."""
    scale = scale[..., None]
    with np.errstate(invalid="ignore"):  # infinity / NaN
        return f32_to_e2m1(np.where(np.isnan(scale), np.float32(0.0), blocks / scale))


def _dequantise_ref(codes: np.ndarray, scale: np.ndarray, block: int) -> np.ndarray:
    values = e2m1_to_f32(split_blocks(codes, block))
    with np.errstate(over="ignore"):  # the infinities of the contract
        return as_bf16(values * scale[..., None]).reshape(codes.shape)


@cuda.jit(device=True)
def fp4_scale_e8m0(amax):
    """The e8m0 byte of a block's scale."""
    # ref: scale = f32_to_e8m0(np.maximum(amax, AMAX_FLOOR_E8M0) / np.float32(6.0))
    if amax < AMAX_FLOOR_E8M0:  # false for a NaN, which stays
        amax = AMAX_FLOOR_E8M0
    return encode_e8m0(amax / float32(6.0))


@cuda.jit(device=True)
def fp4_scale_e4m3(amax):
    """The e4m3 code of a block's scale."""
    # ref: scale = f32_to_e4m3(np.maximum(amax, AMAX_FLOOR_E4M3) / np.float32(6.0))
    if amax < AMAX_FLOOR_E4M3:
        amax = AMAX_FLOOR_E4M3
    return encode_e4m3(amax / float32(6.0))


@cuda.jit(device=True)
def e2m1_codes(word, scale):
    """The byte of the codes of a word of two bf16, quantised by an f32 scale."""
    if scale != scale:
        return pack_e2m1(uint32(0), uint32(0))  # e2m1 has no NaN: the scale is it
    # ref: return f32_to_e2m1(np.where(np.isnan(scale), np.float32(0.0), blocks / scale))
    low, high = decode_bf16(word & uint32(0xFFFF)) / scale, decode_bf16(word >> uint32(16)) / scale
    return pack_e2m1(encode_e2m1(low), encode_e2m1(high))


@cuda.jit(device=True)
def e2m1_round_trip(x_bits, scale):
    """The bf16 pattern of one entry, quantised by an f32 scale and read back."""
    # ref: return f32_to_e2m1(np.where(np.isnan(scale), np.float32(0.0), blocks / scale))
    code = encode_e2m1(decode_bf16(x_bits) / scale)
    # ref: return as_bf16(values * scale[..., None]).reshape(codes.shape)
    return uint32(encode_bf16(decode_e2m1(code) * scale))  # a NaN scale makes a NaN of any code


@cuda.jit
def fp4_round_trip_e8m0_kernel(x, y):
    """x and y are flat arrays of words of two entries, the first in the low half. One thread a word; 16 neighbours
    share a power-of-two scale."""
    partial = cuda.shared.array(THREADS, uint32)
    word, amax = word_and_amax(x, partial, BLOCK_E8M0 // 2)
    scale = decode_e8m0(fp4_scale_e8m0(amax))
    i = cuda.grid(1)
    if i < x.shape[0]:
        low, high = e2m1_round_trip(word & uint32(0xFFFF), scale), e2m1_round_trip(word >> uint32(16), scale)
        y[i] = low | high << uint32(16)


@cuda.jit
def fp4_round_trip_e4m3_kernel(x, y):
    """`fp4_round_trip_e8m0_kernel` with 8 neighbours a scale, which is the nearest e4m3 number."""
    partial = cuda.shared.array(THREADS, uint32)
    word, amax = word_and_amax(x, partial, BLOCK_E4M3 // 2)
    scale = decode_e4m3(fp4_scale_e4m3(amax))
    i = cuda.grid(1)
    if i < x.shape[0]:
        low, high = e2m1_round_trip(word & uint32(0xFFFF), scale), e2m1_round_trip(word >> uint32(16), scale)
        y[i] = low | high << uint32(16)


@cuda.jit
def fp4_quantise_e8m0_kernel(x, codes, scale):
    """x [words] of two bf16 -> codes [words] of two e2m1 in a byte; scale [words / 16] e8m0. One thread a word; 16
    neighbours share a scale, which the first of them writes."""
    partial = cuda.shared.array(THREADS, uint32)
    word, amax = word_and_amax(x, partial, BLOCK_E8M0 // 2)
    byte = fp4_scale_e8m0(amax)
    i = cuda.grid(1)
    if i < x.shape[0]:
        codes[i] = e2m1_codes(word, decode_e8m0(byte))
        if i % (BLOCK_E8M0 // 2) == 0:
            scale[i // (BLOCK_E8M0 // 2)] = byte


@cuda.jit
def fp4_quantise_e4m3_kernel(x, codes, scale):
    """`fp4_quantise_e8m0_kernel` with 8 neighbours a scale, which is the nearest e4m3 number: scale [words / 8]."""
    partial = cuda.shared.array(THREADS, uint32)
    word, amax = word_and_amax(x, partial, BLOCK_E4M3 // 2)
    byte = fp4_scale_e4m3(amax)
    i = cuda.grid(1)
    if i < x.shape[0]:
        codes[i] = e2m1_codes(word, decode_e4m3(byte))
        if i % (BLOCK_E4M3 // 2) == 0:
            scale[i // (BLOCK_E4M3 // 2)] = byte


def fp4_round_trip_e8m0(x):
    """x [..., D] bf16 bits, a device array, D a multiple of 32 -> [..., D] bf16 bits."""
    return launch_blocks(fp4_round_trip_e8m0_kernel, BLOCK_E8M0, x)


def fp4_round_trip_e4m3(x):
    """x [..., D] bf16 bits, a device array, D a multiple of 16 -> [..., D] bf16 bits."""
    return launch_blocks(fp4_round_trip_e4m3_kernel, BLOCK_E4M3, x)


def fp4_quantise_e8m0(x: Any) -> tuple[Any, Any]:
    """x [M, D] bf16 bits, a device array -> e2m1 codes [M, D / 2] uint8, e8m0 scales [M, D / 32] uint8."""
    return launch_quantise(fp4_quantise_e8m0_kernel, BLOCK_E8M0, np.uint8, x)


def fp4_quantise_e4m3(x: Any) -> tuple[Any, Any]:
    """x [M, D] bf16 bits, a device array -> e2m1 codes [M, D / 2] uint8, e4m3 scales [M, D / 16] uint8."""
    return launch_quantise(fp4_quantise_e4m3_kernel, BLOCK_E4M3, np.uint8, x)


if __name__ == "__main__":
    row = as_bf16(np.linspace(-5, 5, 32, dtype=np.float32))
    print("e8m0", fp4_round_trip_e8m0_ref(row), "scales", fp4_quantise_e8m0_ref(row)[1])
    print("e4m3", fp4_round_trip_e4m3_ref(row), "scales", fp4_quantise_e4m3_ref(row)[1])
