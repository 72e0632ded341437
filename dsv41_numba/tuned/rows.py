"""Rows on their way into a cache in one pass: norm, rotation, quantiser and cache write, a warp a row.

Math       that of `ops.composed`
Shapes     that of `ops.composed`; D a multiple of the quantiser's block, at most 1024
Precision  every bit that of the stages one after the other. Squares are added in rmsnorm's order: 128 strided parts,
           then a tree. For a bf16 cache the quantisers make no codes: a number is rounded where it lies, by adding and
           subtracting one so large that what the format has no bits for is lost
Launch     grid ceil(rows / (8 ROWS)), block (32, 8); no shared memory. A warp has ROWS rows at a time: as many as make
           four words of 8 bytes a lane, so that enough is on its way to keep memory busy
Moves      2 bytes a number read and 2 written, or those of a packed row; kv_rows writes the last W rows once more, into
           the ring
Errors     those of the stages
Source     steps 3, 5, 6 and 9 of the layer

Lane l of a warp has entries 4 l to 4 l + 3 of each 128, in a word of 8 bytes. Rotation pairs lie within a word, blocks
of 32 or 16 entries in 8 or 4 neighbouring lanes. The parts of the sum of squares are numbered by entry mod 128, so the
tree's first five levels go from lane to lane, the last two stay within one::

    parts   0-3      4-7     ...     64-67    68-71    ...       level 64: lanes 16 apart
    lane    0        1       ...     16       17       ...       level 4: lanes 1 apart; levels 2 and 1: a lane's four
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda, float32, int32, uint16, uint32, uint64

from dsv41_numba.formats.bf16 import decode_bf16, encode_bf16
from dsv41_numba.formats.e4m3 import decode_e4m3
from dsv41_numba.formats.e8m0 import decode_e8m0
from dsv41_numba.formats.packed_rows import COMPRESSED, INDEX_KEY, WINDOW, PackedRows, RowFormat
from dsv41_numba.ops.checks import check_array
from dsv41_numba.ops.packed_rows import check_packed
from dsv41_numba.ops.quant_fp4 import e2m1_codes, fp4_scale_e4m3, fp4_scale_e8m0
from dsv41_numba.ops.quant_fp8 import check_blocks, e4m3_codes, fp8_scale
from dsv41_numba.ops.rope import check_positions, turn_pair
from dsv41_numba.runtime.backend import empty, launch
from dsv41_numba.tuned.position import reader

WARP = 32
WARPS = 8  # of a block
LANES = 0xFFFFFFFF
PER_WORD = 4  # bf16 in 8 bytes
AHEAD = 4  # words that a lane has in flight
MOST_D = AHEAD * WARP * PER_WORD * 2
E4M3_BITS, E2M1_BITS = 3, 1  # of their mantissas


# ---- the quantisers: a scale of each block, and a number rounded to what a code times it is ------------------------
@cuda.jit(device=True)
def rounded(x, lowest_exponent, mantissa_bits):
    """x >= 0 to the nearest number with so many mantissa bits, ties to even; below 2^(lowest_exponent - 127) the steps
    stay those of that exponent.

    In units of the last bit, x plus 1.5 2^23 has no bits left for a fraction.
    """
    exponent = max(x.view(np.uint32) >> uint32(23), uint32(lowest_exponent))
    large = uint32(uint32(exponent + uint32(23 - mantissa_bits)) << uint32(23) | uint32(0x400000)).view(np.float32)
    return cuda.libdevice.fsub_rn(cuda.libdevice.fadd_rn(x, large), large)


@cuda.jit(device=True)
def with_sign_of(x_bits, magnitude):
    """The bf16 pattern of a magnitude with the sign of another pattern; a NaN has none."""
    bits = uint32(encode_bf16(magnitude))
    return bits if magnitude != magnitude else bits | (x_bits & uint32(0x8000))


@cuda.jit(device=True)
def e8m0_scale(byte):
    """The power of two that a byte stands for, and 1 over it."""
    code = uint32(byte)
    if code == uint32(255):
        return decode_e8m0(code), decode_e8m0(code)
    return decode_e8m0(code), decode_e8m0(uint32(254) - code)


@cuda.jit(device=True)
def fp8_round_trip(x_bits, scale, inverse):
    """As `ops.quant_fp8.e4m3_round_trip`: a multiplication by a power of two rounds as the division does."""
    code = min(decode_bf16(uint16(x_bits & uint32(0x7FFF))) * inverse, float32(448.0))
    return with_sign_of(x_bits, rounded(code, 127 - 6, E4M3_BITS) * scale)


@cuda.jit(device=True)
def fp4_e8m0_round_trip(x_bits, scale, inverse):
    """As `ops.quant_fp4.e2m1_round_trip`."""
    code = min(decode_bf16(uint16(x_bits & uint32(0x7FFF))) * inverse, float32(6.0))
    return with_sign_of(x_bits, rounded(code, 127, E2M1_BITS) * scale)


@cuda.jit(device=True)
def e4m3_scale(byte):
    """The scale that a byte stands for, twice: nobody multiplies by the inverse of one that is no power of two."""
    scale = decode_e4m3(byte)
    return scale, scale


@cuda.jit(device=True)
def fp4_e4m3_round_trip(x_bits, scale, _):
    """As `ops.quant_fp4.e2m1_round_trip`: this scale is no power of two, so it divides."""
    code = min(decode_bf16(uint16(x_bits & uint32(0x7FFF))) / scale, float32(6.0))
    return with_sign_of(x_bits, rounded(code, 127, E2M1_BITS) * scale)


@cuda.jit(device=True)
def four_e4m3(word, scale):
    """The codes of a word of four bf16, in 32 bits."""
    low, high = uint32(word & uint64(0xFFFFFFFF)), uint32(word >> uint64(32))
    return e4m3_codes(low, scale) | uint32(e4m3_codes(high, scale) << uint32(16))


@cuda.jit(device=True)
def four_e2m1(word, scale):
    """The codes of a word of four bf16, in 16 bits."""
    low, high = uint32(word & uint64(0xFFFFFFFF)), uint32(word >> uint64(32))
    return uint32(e2m1_codes(low, scale)) | uint32(uint32(e2m1_codes(high, scale)) << uint32(8))


@dataclass(frozen=True)
class Quantiser:
    """What a kernel needs: the byte of a block's scale, what it stands for, a number's round trip, a word's codes."""

    scale_byte: Any
    scale_of: Any
    round_trip: Any
    codes: Any
    word: Any  # the type of four codes


QUANTISERS = {
    WINDOW: Quantiser(fp8_scale, e8m0_scale, fp8_round_trip, four_e4m3, np.uint32),
    INDEX_KEY: Quantiser(fp4_scale_e8m0, e8m0_scale, fp4_e8m0_round_trip, four_e2m1, np.uint16),
    COMPRESSED: Quantiser(fp4_scale_e4m3, e4m3_scale, fp4_e4m3_round_trip, four_e2m1, np.uint16),
}


# ---- the kernel ----------------------------------------------------------------------------------------------------
@cuda.jit(device=True)
def entry(word, c):
    """The bf16 pattern of entry c of a word."""
    return uint16((word >> uint64(16 * c)) & uint64(0xFFFF))


@cuda.jit(device=True)
def tree_sum(parts):
    """The sum of all lanes' four parts, the same in each, in the order of rmsnorm's tree."""
    for level in range(5):  # lanes 16, 8, 4, 2, 1 apart
        for c in range(PER_WORD):
            parts[c] += cuda.shfl_xor_sync(LANES, parts[c], 16 >> level)
    return (parts[0] + parts[2]) + (parts[1] + parts[3])


@cuda.jit(device=True)
def turned(word, w, angle_row, cos, sin, copied):
    """Both pairs of word w of a row, turned by a row of the table if they are among the last."""
    low, high = uint32(word & uint64(0xFFFFFFFF)), uint32(word >> uint64(32))
    pair = 2 * w - copied
    if pair >= 0:
        low = turn_pair(low, cos[angle_row, pair], sin[angle_row, pair])
    if pair + 1 >= 0:
        high = turn_pair(high, cos[angle_row, pair + 1], sin[angle_row, pair + 1])
    return uint64(low) | (uint64(high) << uint64(32))


@functools.cache
def rows_kernel(
    D: int, norm: bool, format: RowFormat, position_of: Any, returned: bool, cached: bool, packed: bool
) -> Any:
    """The kernel for rows of D, with a norm or without; its result returned, cached, or both, and packed or in bf16."""
    quantiser = QUANTISERS[format]
    scale_byte, scale_of, round_trip = quantiser.scale_byte, quantiser.scale_of, quantiser.round_trip
    codes_of, block = quantiser.codes, format.block
    WORDS = D // PER_WORD  # of a row
    PER_LANE = -(-WORDS // WARP)
    ROWS = rows_of_a_warp(D)
    SHARERS = block // PER_WORD  # lanes with the same scale

    @cuda.jit
    def fused_rows_kernel(x, weight, eps, cos, sin, start_pos, ratio, heads, y, y_scales, cache, cache_scales):
        """x [rows, D / 4] words of four bf16, weight [D]; `heads` rows a token.

        y [rows, D / 4] and cache [slots, D / 4] are such words too, or packed of four codes, with the blocks' scales.
        Token t is group start_pos // ratio + t, stands at ratio times that, and in the slot of that number.
        """
        words = cuda.local.array((ROWS, PER_LANE), uint64)
        parts = cuda.local.array(PER_WORD, float32)
        lane = cuda.threadIdx.x
        rows, tokens = x.shape[0], x.shape[0] // heads
        copied = D // 2 - cos.shape[1]
        first = position_of(start_pos) // ratio
        row0 = (cuda.blockIdx.x * WARPS + cuda.threadIdx.y) * ROWS
        for i in range(ROWS):
            for j in range(PER_LANE):
                w = lane + j * WARP
                words[i, j] = uint64(0)
                if row0 + i < rows and w < WORDS:
                    words[i, j] = x[row0 + i, w]
        for i in range(ROWS):
            there = row0 + i < rows  # no lane leaves: the others need it to add up and compare
            t = (row0 + i) // heads
            if norm:
                # ref: mean = (x * x).mean(-1, keepdims=True, dtype=np.float32)
                for c in range(PER_WORD):
                    parts[c] = float32(0.0)
                for j in range(PER_LANE):
                    for c in range(PER_WORD):
                        x_d = decode_bf16(entry(words[i, j], c))
                        parts[c] += x_d * x_d
                mean = tree_sum(parts) / float32(D)
                # ref: scale = np.float32(1.0) / np.sqrt(mean + np.float32(eps))
                gain = float32(1.0) / math.sqrt(mean + eps)
            for j in range(PER_LANE):
                w = lane + j * WARP
                inside = there and w < WORDS
                word = words[i, j]
                if norm and inside:
                    # ref: return as_bf16(weight * (x * scale))
                    normed = uint64(0)
                    for c in range(PER_WORD):
                        bits = encode_bf16(weight[PER_WORD * w + c] * (decode_bf16(entry(word, c)) * gain))
                        normed |= uint64(bits) << uint64(16 * c)
                    word = normed
                if inside:
                    word = turned(word, w, (first + t) * ratio, cos, sin, copied)
                largest = uint32(0)
                for c in range(PER_WORD):
                    largest = max(largest, uint32(entry(word, c)) & uint32(0x7FFF))
                apart = SHARERS // 2
                while apart > 0:
                    largest = max(largest, uint32(cuda.shfl_xor_sync(LANES, int32(largest), apart)))
                    apart //= 2
                byte = scale_byte(decode_bf16(uint16(largest)))
                scale, inverse = scale_of(byte)
                quantised = uint64(0)
                if packed:
                    quantised = uint64(codes_of(word, scale))
                else:
                    for c in range(PER_WORD):
                        bits = round_trip(uint32(entry(word, c)), scale, inverse)
                        quantised |= uint64(bits) << uint64(16 * c)
                if inside:
                    if returned:
                        y[row0 + i, w] = quantised
                        if packed and w % SHARERS == 0:
                            y_scales[row0 + i, w // SHARERS] = byte
                    if cached and t >= tokens - cache.shape[0]:  # a row that a later one replaces is not written
                        slot = (first + t) % cache.shape[0]
                        cache[slot, w] = quantised
                        if packed and w % SHARERS == 0:
                            cache_scales[slot, w // SHARERS] = byte

    return fused_rows_kernel


def rows_of_a_warp(D: int) -> int:
    """How many rows of D a warp has at a time."""
    return max(AHEAD // -(-D // (WARP * PER_WORD)), 1)


# ---- host ----------------------------------------------------------------------------------------------------------
def kv_rows(y: Any, weight: Any, eps: float, cos: Any, sin: Any, start_pos: Any, ring: Any) -> Any:
    """y [T, D] bf16 bits, weight [D] f32, ring [W, D] bf16 bits, changed in place -> kv [T, D] bf16 bits.

    A ring or cache may be packed, here and below: then the result is, too. start_pos is an integer, here and below, or
    a device array [1] int64 that holds it.
    """
    _check_cache("ring", ring, WINDOW, y.shape[1])
    kv: Any = empty(y.shape, np.uint16)
    if isinstance(ring, PackedRows):
        kv = PackedRows.new(WINDOW, y.shape[0], y.shape[1], empty)
    _launch(WINDOW, y, weight, eps, cos, sin, start_pos, 1, 1, kv, ring)
    return kv


def index_key_rows(
    y: Any, weight: Any, eps: float, cos: Any, sin: Any, start_pos: Any, ratio: int, cache: Any
) -> Any:  # fmt: skip
    """y [n, Di] bf16 bits, weight [Di] f32, cache [N, Di] bf16 bits -> index_k [n, Di] bf16 bits, a part of the cache;
    None where start_pos is in device memory."""
    place = _room(cache, INDEX_KEY, y, start_pos, ratio)
    _launch(INDEX_KEY, y, weight, eps, cos, sin, start_pos, ratio, 1, None, cache)
    return place


def latent_rows(latent: Any, cos: Any, sin: Any, start_pos: Any, ratio: int, cache: Any) -> Any:
    """latent [n, D] bf16 bits, cache [N, D] bf16 bits -> latent_q [n, D] bf16 bits, a part of the cache; None where
    start_pos is in device memory."""
    place = _room(cache, COMPRESSED, latent, start_pos, ratio)
    _launch(COMPRESSED, latent, None, 0.0, cos, sin, start_pos, ratio, 1, None, cache)
    return place


def index_query_rows(y: Any, cos: Any, sin: Any, start_pos: Any) -> Any:
    """y [T, Hi, Di] bf16 bits -> index_q [T, Hi, Di] bf16 bits."""
    check_array("y", y, np.uint16, (None, None, None))
    T, Hi, Di = y.shape
    index_q = empty((T, Hi, Di), np.uint16)
    rows = T * Hi, Di
    _launch(INDEX_KEY, y.reshape(rows), None, 0.0, cos, sin, start_pos, 1, Hi, index_q.reshape(rows), None)
    return index_q


def _check_cache(name: str, cache: Any, format: RowFormat, D: int) -> None:
    """Refuse a ring or cache that is neither bf16 bits [N, D] nor packed in this format."""
    if isinstance(cache, PackedRows):
        check_packed(name, cache, format, (None, D))
    else:
        check_array(name, cache, np.uint16, (None, D))


def _room(cache: Any, format: RowFormat, rows: Any, start_pos: Any, ratio: int) -> Any:
    """The part of a cache that the rows go to. ValueError when there is none."""
    _check_cache("cache", cache, format, rows.shape[1])
    if hasattr(start_pos, "shape"):
        return None
    first, n = start_pos // ratio, rows.shape[0]
    if first + n > cache.shape[0]:
        raise ValueError(f"cache: expected room for rows {first} to {first + n - 1}, got {cache.shape[0]} rows")
    return cache[first : first + n]


def _launch(
    format: RowFormat, x: Any, weight: Any, eps: float, cos: Any, sin: Any, start_pos: Any, ratio: int, heads: int,
    y: Any, cache: Any,
) -> None:  # fmt: skip
    check_array("y", x, np.uint16, (None, None))
    n_rows, D = x.shape
    check_blocks(x, format.block)
    if D > MOST_D:
        raise ValueError(f"y: expected rows of at most {MOST_D}, got {D}")
    if weight is not None:
        check_array("weight", weight, np.float32, (D,))
    check_array("cos", cos, np.float32, (None, None))
    check_array("sin", sin, np.float32, tuple(cos.shape))
    if 2 * cos.shape[1] > D:
        raise ValueError(f"cos: expected at most {D // 2} pairs a position, got {cos.shape[1]}")
    if not hasattr(start_pos, "shape"):
        check_positions(cos, n_rows // max(heads, 1), start_pos // ratio * ratio, ratio)
    if n_rows == 0:  # a grid of 0 blocks is a launch error
        return
    packed = isinstance(cache, PackedRows)
    word = QUANTISERS[format].word if packed else np.uint64
    no_words, no_scales = empty((0, 0), word), empty((0, 0), np.uint8)

    def planes(rows: Any) -> tuple[Any, Any]:
        if rows is None:
            return no_words, no_scales
        return (rows.codes.view(word), rows.scales) if packed else (rows.view(word), no_scales)

    kernel = rows_kernel(D, weight is not None, format, reader(start_pos), y is not None, cache is not None, packed)
    launch(
        kernel,
        -(-n_rows // (WARPS * rows_of_a_warp(D))),
        (WARP, WARPS),
        x.view(np.uint64),
        cos[0] if weight is None else weight,  # not read then
        np.float32(eps),
        cos,
        sin,
        start_pos,
        ratio,
        heads,
        *planes(y),
        *planes(cache),
    )
