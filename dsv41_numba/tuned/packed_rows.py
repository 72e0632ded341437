"""Packed rows on their way into the tensor cores: eight codes at a time become eight bf16, in registers.

Math       value = code * scale, as `formats.packed_rows` has it
Shapes     `unpack_rows`: PackedRows [N, D] -> [N, D] bf16
Precision  every bit is fixed. A code's exponent and mantissa, moved to where a bf16 has its own, are the number that
           the code stands for, but for a power of two: bf16's bias is 127, e4m3's 7, e2m1's 1. Subnormal codes become
           subnormal bf16, so they need no case of their own. One product sets that right, a second is the scale; both
           are exact, unless the result is beyond bf16's range and an infinity. A NaN scale makes NaN of any code
Launch     grid ceil(N D / 2048), block 256; no shared memory
Moves      the bytes of the packed rows, and 2 N D
Errors     ValueError when codes or scales are not as the format says, or of index keys, which nobody reads as bf16
Source     step 11 of the layer, for cache="packed"; the keys of step 7

::

    e4m3   s e e e e m m m                  bf16   s 0 0 0 0 e e e e m m m 0 0 0 0      times 2^120
    e2m1           s e e m                         s 0 0 0 0 0 0 e e m 0 0 0 0 0 0      times 2^126

0x7F, e4m3's NaN, would come out as 480 scales: the quantiser gives it only under a scale that is NaN itself.
"""

import functools
from typing import Any

import numpy as np
from numba import cuda, uint32, uint64

from dsv41_numba.formats.e4m3 import decode_e4m3
from dsv41_numba.formats.packed_rows import COMPRESSED, WINDOW, PackedRows, RowFormat
from dsv41_numba.ops.packed_rows import check_packed
from dsv41_numba.runtime.backend import empty, launch
from dsv41_numba.tuned.ptx import multiply_bf16

EIGHT = 8  # entries that a thread reads at once
THREADS = 256
TWO_TO_120, TWO_TO_126 = 0x7B807B80, 0x7E807E80  # in both halves of a word


@cuda.jit(device=True, forceinline=True)
def e8m0_in_both(byte):
    """A word of two bf16, both the scale of an e8m0 byte."""
    bits = uint32(byte) << uint32(7)
    if bits == uint32(0):
        bits = uint32(0x0040)  # 2^-127 is a subnormal bf16
    if bits == uint32(255 << 7):
        bits = uint32(0x7FC0)
    return uint32(bits | uint32(bits << uint32(16)))


@cuda.jit(device=True, forceinline=True)
def e4m3_in_both(byte):
    """The same of an e4m3 code: its float32 has nothing in the lower half."""
    bits = decode_e4m3(byte).view(np.uint32)
    return uint32(bits | uint32(bits >> uint32(16)))


@cuda.jit(device=True, forceinline=True)
def two_e4m3(codes, scale):
    """A word of two bf16 of the two e4m3 codes in the low 16 bits."""
    low = uint32((codes & uint32(0x7F)) << uint32(4)) | uint32((codes & uint32(0x80)) << uint32(8))
    high = uint32((codes & uint32(0x7F00)) << uint32(12)) | uint32((codes & uint32(0x8000)) << uint32(16))
    return multiply_bf16(multiply_bf16(uint32(low | high), uint32(TWO_TO_120)), scale)


@cuda.jit(device=True, forceinline=True)
def two_e2m1(codes, scale):
    """A word of two bf16 of the two e2m1 codes in the low 8 bits."""
    low = uint32((codes & uint32(0x07)) << uint32(6)) | uint32((codes & uint32(0x08)) << uint32(12))
    high = uint32((codes & uint32(0x70)) << uint32(18)) | uint32((codes & uint32(0x80)) << uint32(24))
    return multiply_bf16(multiply_bf16(uint32(low | high), uint32(TWO_TO_126)), scale)


@cuda.jit(device=True, forceinline=True)
def eight_e2m1(codes, scale):
    """Four words of two bf16 of the eight e2m1 codes of a word."""
    return (
        two_e2m1(codes, scale),
        two_e2m1(codes >> uint32(8), scale),
        two_e2m1(codes >> uint32(16), scale),
        two_e2m1(codes >> uint32(24), scale),
    )


@cuda.jit(device=True, forceinline=True)
def eight_of_key(codes, byte):
    """Four words of eight entries of an index key: 32 bits of codes and the byte of their scale."""
    return eight_e2m1(uint32(codes), e8m0_in_both(byte))


@cuda.jit(device=True, forceinline=True)
def eight_of_compressed(codes, byte):
    """The same of a compressed row, whose scales are e4m3."""
    return eight_e2m1(uint32(codes), e4m3_in_both(byte))


@cuda.jit(device=True, forceinline=True)
def eight_of_window(codes, byte):
    """The same of a window row: 64 bits of codes."""
    scale = e8m0_in_both(byte)
    low, high = uint32(codes & uint64(0xFFFFFFFF)), uint32(uint64(codes) >> uint64(32))
    return (
        two_e4m3(low, scale),
        two_e4m3(low >> uint32(16), scale),
        two_e4m3(high, scale),
        two_e4m3(high >> uint32(16), scale),
    )


EIGHT_OF = {WINDOW: eight_of_window, COMPRESSED: eight_of_compressed}
WORD_OF = {WINDOW: np.uint64, COMPRESSED: np.uint32}  # eight codes


@functools.cache
def unpack_kernel(format: RowFormat) -> Any:
    """The kernel for rows of this format."""
    eight_of, SHARERS = EIGHT_OF[format], format.block // EIGHT

    @cuda.jit(launch_bounds=(THREADS, 2))
    def unpack_rows_kernel(codes, scales, rows):
        """codes [N, D / 8] words of eight codes, scales [N, D / block] bytes -> rows [N, D / 4] words of four bf16."""
        columns = codes.shape[1]
        i = cuda.grid(1)
        n, c = i // columns, i % columns
        if n < codes.shape[0]:
            words = eight_of(codes[n, c], scales[n, c // SHARERS])
            rows[n, 2 * c] = uint64(words[0]) | (uint64(words[1]) << uint64(32))
            rows[n, 2 * c + 1] = uint64(words[2]) | (uint64(words[3]) << uint64(32))

    return unpack_rows_kernel


def unpack_rows(rows: Any) -> Any:
    """PackedRows [N, D], or bf16 bits [N, D], which come back themselves -> bf16 bits [N, D], a device array."""
    if not isinstance(rows, PackedRows):
        return rows
    if rows.format not in EIGHT_OF:
        raise ValueError(f"rows: expected {WINDOW.name} or {COMPRESSED.name}, got {rows.format.name}")
    check_packed("rows", rows, rows.format, (None, rows.shape[1]))
    N, D = rows.shape
    values = empty((N, D), np.uint16)
    if N * D > 0:  # a grid of 0 blocks is a launch error
        codes = rows.codes.view(WORD_OF[rows.format])
        launch(
            unpack_kernel(rows.format), -(-N * D // (EIGHT * THREADS)), THREADS, codes, rows.scales,
            values.view(np.uint64),
        )  # fmt: skip
    return values
