"""fp8: each block of 32 entries becomes e4m3 codes with one power-of-two scale; the round trip reads them back.

Math       scale = 2^ceil(log2(max(amax, 1e-4) / 448)), amax the largest magnitude of the block
           codes = e4m3(x / scale)      `fp8_quantise`
           y = bf16(codes * scale)      `fp8_round_trip`
Shapes     x [..., D] bf16, D a multiple of 32; the blocks lie along the last axis -> y [..., D] bf16
           x [M, K] bf16 -> codes [M, K] uint8, scale [M, K / 32] e8m0
Precision  every bit is fixed. The division by 448 is a multiplication by f32(1/448), in f32; the scale is the power of
           two at or above that product, so it is final BEFORE anything is quantised. e4m3 clamps to +-448 and rounds to
           nearest even; the sign of zero survives. x / scale is exact (or far below the smallest code), and so is the
           way back, except that a product above bf16's range is an infinity: 256 * 2^120, when amax is at bf16's end.
           A NaN or an infinity in x leaves its block without a scale (byte 255): the whole block is NaN.
Launch     grid ceil(N / 512) for N entries, block 256, which is 16 blocks of entries; 1 KiB of shared memory
Moves      4 N bytes; `fp8_quantise` 3 N + N / 32
Errors     ValueError when x is not a C-contiguous bf16 array whose last axis is a multiple of 32
Source     step 3 of the layer. `fp8_quantise`: packed window rows, and the activation of an fp8 linear
"""

import math
from typing import Any

import numpy as np
from numba import cuda, uint16, uint32

from dsv41_numba.formats.bf16 import as_bf16, decode_bf16, encode_bf16
from dsv41_numba.formats.e4m3 import decode_e4m3, e4m3_to_f32, encode_e4m3, f32_to_e4m3
from dsv41_numba.formats.e8m0 import decode_e8m0, e8m0_to_f32, encode_e8m0, f32_to_e8m0
from dsv41_numba.ops.checks import check_array
from dsv41_numba.runtime.backend import empty, launch

THREADS = 256  # two entries each: a multiple of every block length, so that no block of entries is split
BLOCK = 32  # entries that share a scale
WORDS_PER_BLOCK = BLOCK // 2
AMAX_FLOOR = np.float32(1e-4)  # keeps the scale of a block of zeros above 0
INVERSE_448 = np.float32(1 / 448)


def fp8_quantise_ref(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x [..., D] bf16 -> e4m3 codes [..., D] uint8, e8m0 scales [..., D / 32] uint8."""
    blocks = split_blocks(x, BLOCK).astype(np.float32)
    amax = np.abs(blocks).max(-1)
    scale = f32_to_e8m0(np.maximum(amax, AMAX_FLOOR) * INVERSE_448)
    with np.errstate(invalid="ignore"):  # infinity / NaN
        codes = f32_to_e4m3(blocks / e8m0_to_f32(scale)[..., None])
    return codes.reshape(x.shape), scale


def fp8_round_trip_ref(x: np.ndarray) -> np.ndarray:
    """x [..., D] bf16 -> [..., D] bf16."""
    codes, scale = fp8_quantise_ref(x)
    values = e4m3_to_f32(split_blocks(codes, BLOCK))
    with np.errstate(over="ignore"):  # the infinities of the contract
        return as_bf16(values * e8m0_to_f32(scale)[..., None]).reshape(x.shape)


def split_blocks(x: np.ndarray, block: int) -> np.ndarray:
    """x [..., D] -> [..., D / block, block]. ValueError when D is not a multiple of `block`."""
    check_blocks(x, block)
    return x.reshape(*x.shape[:-1], x.shape[-1] // block, block)


def check_blocks(x: Any, block: int) -> None:
    """Refuse an array whose last axis does not split into whole blocks."""
    if len(x.shape) == 0 or x.shape[-1] % block:
        raise ValueError(f"x: expected a last axis that is a multiple of {block}, got shape {list(x.shape)}")


@cuda.jit(device=True)
def group_max(part, partial, width):
    """The largest `part` of each `width` neighbouring threads (a power of two), returned to all of them.

    `partial` is shared, one element a thread.
    """
    t = cuda.threadIdx.x
    lane = t % width
    partial[t] = part
    cuda.syncthreads()  # every part is in place before anyone compares
    half = width // 2
    while half > 0:
        if lane < half:
            partial[t] = max(partial[t], partial[t + half])
        cuda.syncthreads()  # this level is done before the next reads it
        half //= 2
    return partial[t - lane]


@cuda.jit(device=True)
def word_max(word):
    """The larger magnitude of a word's two bf16, as a pattern.

    Patterns without their sign sort as their values do, and those of NaN come last: a NaN wins.
    """
    return max(word & uint32(0x7FFF), (word >> uint32(16)) & uint32(0x7FFF))


@cuda.jit(device=True)
def word_and_amax(x, partial, width):
    """This thread's word of x, and the largest magnitude of its block of `width` words; beyond the end stand zeros.

    No thread may leave before: the others wait for it in group_max.
    """
    i = cuda.grid(1)
    word = uint32(0)
    if i < x.shape[0]:
        word = x[i]
    # ref: amax = np.abs(blocks).max(-1)
    return word, decode_bf16(group_max(word_max(word), partial, width))


@cuda.jit(device=True)
def fp8_scale(amax):
    """The e8m0 byte of a block's scale."""
    # ref: scale = f32_to_e8m0(np.maximum(amax, AMAX_FLOOR) * INVERSE_448)
    if amax < AMAX_FLOOR:  # false for a NaN, which stays
        amax = AMAX_FLOOR
    return encode_e8m0(amax * INVERSE_448)


@cuda.jit(device=True)
def e4m3_codes(word, scale):
    """The codes of a word of two bf16, quantised by an f32 scale, in the low 16 bits."""
    # ref: codes = f32_to_e4m3(blocks / e8m0_to_f32(scale)[..., None])
    low = uint32(encode_e4m3(decode_bf16(word & uint32(0xFFFF)) / scale))
    return low | uint32(uint32(encode_e4m3(decode_bf16(word >> uint32(16)) / scale)) << uint32(8))


@cuda.jit(device=True)
def e4m3_round_trip(x_bits, scale):
    """The bf16 pattern of one entry, quantised by an f32 scale and read back."""
    # ref: codes = f32_to_e4m3(blocks / e8m0_to_f32(scale)[..., None])
    code = encode_e4m3(decode_bf16(x_bits) / scale)
    # ref: return as_bf16(values * e8m0_to_f32(scale)[..., None]).reshape(x.shape)
    return uint32(encode_bf16(decode_e4m3(code) * scale))


@cuda.jit
def fp8_round_trip_kernel(x, y):
    """x and y are flat arrays of words of two entries, the first in the low half. One thread a word; 16 neighbours
    share a scale."""
    partial = cuda.shared.array(THREADS, uint32)
    word, amax = word_and_amax(x, partial, WORDS_PER_BLOCK)
    scale = decode_e8m0(fp8_scale(amax))
    i = cuda.grid(1)
    if i < x.shape[0]:
        low, high = e4m3_round_trip(word & uint32(0xFFFF), scale), e4m3_round_trip(word >> uint32(16), scale)
        y[i] = low | high << uint32(16)


@cuda.jit
def fp8_quantise_kernel(x, codes, scale):
    """x [words] of two bf16 -> codes [words] of two e4m3, the first in the low byte; scale [words / 16] e8m0. One
    thread a word; 16 neighbours share a scale, which the first of them writes."""
    partial = cuda.shared.array(THREADS, uint32)
    word, amax = word_and_amax(x, partial, WORDS_PER_BLOCK)
    byte = fp8_scale(amax)
    i = cuda.grid(1)
    if i < x.shape[0]:
        codes[i] = uint16(e4m3_codes(word, decode_e8m0(byte)))
        if i % WORDS_PER_BLOCK == 0:
            scale[i // WORDS_PER_BLOCK] = byte


def fp8_round_trip(x):
    """x [..., D] bf16 bits, a device array -> [..., D] bf16 bits."""
    return launch_blocks(fp8_round_trip_kernel, BLOCK, x)


def fp8_quantise(x: Any) -> tuple[Any, Any]:
    """x [M, K] bf16 bits, a device array -> e4m3 codes [M, K] uint8, e8m0 scales [M, K / 32] uint8."""
    return launch_quantise(fp8_quantise_kernel, BLOCK, np.uint16, x)


def launch_quantise(kernel: Any, block: int, word: Any, x: Any) -> tuple[Any, Any]:
    """Check x [M, K], run a kernel of one thread a word of two entries over its flat view: codes, a `word` of two codes
    for each of those, and scales, one for each block."""
    check_array("x", x, np.uint16, (None, None))
    check_blocks(x, block)
    M, K = x.shape
    codes, scale = empty((M, K // 2 * np.dtype(word).itemsize), np.uint8), empty((M, K // block), np.uint8)
    if M * K > 0:  # a grid of 0 blocks is a launch error
        flat = x.reshape(M * K).view(np.uint32), codes.reshape(codes.size).view(word), scale.reshape(scale.size)
        launch(kernel, -(-M * K // (2 * THREADS)), THREADS, *flat)
    return codes, scale


def launch_blocks(kernel: Any, block: int, x: Any) -> Any:
    """Check x, run a kernel of one thread a word of two entries over its flat view, return the new array of x's
    shape."""
    check_array("x", x, np.uint16, (None,) * len(getattr(x, "shape", ())))
    check_blocks(x, block)
    y = empty(x.shape, np.uint16)
    N = math.prod(x.shape)
    if N > 0:  # a grid of 0 blocks is a launch error
        launch(kernel, -(-N // (2 * THREADS)), THREADS, x.reshape(N).view(np.uint32), y.reshape(N).view(np.uint32))
    return y


if __name__ == "__main__":
    rows = as_bf16(np.array([3, 1, 0.3, -0.07] + [0] * 28, np.float32))  # 0.3 and -0.07 move
    print(rows[:4], "->", fp8_round_trip_ref(rows)[:4], "codes, scale:", *fp8_quantise_ref(rows))
