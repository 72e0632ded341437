"""Packed rows: the caches as codes and scales, which is what their values are made of.

::

    rows           codes of a row                                scales of a row             a row of 512 / 128
    WINDOW         D bytes, an e4m3 code each                    D / 32 bytes, e8m0          512 + 16 bytes
    COMPRESSED     D / 2 bytes, two e2m1 codes each, as e2m1     D / 16 bytes, e4m3          256 + 32 bytes
    INDEX_KEY      D / 2 bytes, two e2m1 codes each, as e2m1     D / 32 bytes, e8m0           64 +  4 bytes

    codes [N, bytes]     row 0 | row 1 | row 2 | ...        two arrays, not one: a row of codes begins on a multiple of
    scales [N, blocks]   row 0 | row 1 | row 2 | ...        16 bytes, which is what one load of a thread can take. An
                                                            index key with its scales behind it would take 68 bytes, and
                                                            three of four keys would begin elsewhere

    value[n, d] = bf16(code[n, d] * scale[n, d / block])

The product is the second half of the quantisers' round trips (`ops.quant_fp8`, `ops.quant_fp4`), so what is read is,
bit for bit, what a bf16 cache holds. What is stored and comes back at the edges::

    a block of zeros          codes 0, or 0x80 and 0x8 where the sign is set; the scale of the quantiser's floor; the
                              zeros come back with their signs
    a row never written       codes 0, scale bytes 0, zeros
    a product beyond bf16     code and scale as ever, an infinity comes back; e8m0 only, when a block's largest
                              magnitude is at bf16's end
    a NaN, or an infinity     scale byte 255 (e8m0), 0x7F (e4m3, of a NaN only): the whole block comes back as NaN. Its
    under an e8m0 scale       codes are 0x7F (e4m3) or 0 (e2m1), which has no NaN
    an infinity under e4m3    the largest product, 6 * 448 = 2688
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda, uint32

from dsv41_numba.formats.bf16 import as_bf16, encode_bf16
from dsv41_numba.formats.e2m1 import decode_e2m1, e2m1_to_f32, packed_to_e2m1
from dsv41_numba.formats.e4m3 import decode_e4m3, e4m3_to_f32
from dsv41_numba.formats.e8m0 import decode_e8m0, e8m0_to_f32


@dataclass(frozen=True)
class RowFormat:
    """How a row is stored: its codes, and how many of them share a scale of which kind."""

    name: str
    codes_in_byte: int  # 1: e4m3, 2: e2m1
    block: int
    scale: str  # "e8m0" or "e4m3"

    @property
    def scale_to_f32(self) -> Callable[[np.ndarray], np.ndarray]:
        return e8m0_to_f32 if self.scale == "e8m0" else e4m3_to_f32

    def code_bytes(self, D: int) -> int:
        """Bytes of the codes of a row of D entries."""
        return D // self.codes_in_byte

    def scale_bytes(self, D: int) -> int:
        """Bytes of its scales."""
        return D // self.block

    def row_bytes(self, D: int) -> int:
        """Bytes of both."""
        return self.code_bytes(D) + self.scale_bytes(D)

    def values(self, codes: np.ndarray) -> np.ndarray:
        """Bytes of codes [..., n] -> their values [..., n codes_in_byte] f32, before scaling."""
        return e4m3_to_f32(codes) if self.codes_in_byte == 1 else e2m1_to_f32(packed_to_e2m1(codes))


WINDOW = RowFormat("window rows", 1, 32, "e8m0")
COMPRESSED = RowFormat("compressed rows", 2, 16, "e4m3")
INDEX_KEY = RowFormat("index keys", 2, 32, "e8m0")


@dataclass(frozen=True, eq=False)
class PackedRows:
    """Rows [N, D] of one format, on the host or the device.

    codes [N, D / codes_in_byte] uint8, scales [N, D / block] uint8.
    It is sliced as an array of rows would be, `rows[:n]`: the same bytes, fewer rows.
    """

    format: RowFormat
    codes: Any
    scales: Any

    @classmethod
    def new(cls, format: RowFormat, N: int, D: int, allocate: Callable[..., Any]) -> "PackedRows":
        """N rows, by the `zeros` of an op table or an `empty`. ValueError when D is not a whole number of blocks."""
        if D % format.block:
            raise ValueError(f"{format.name}: expected a row of whole blocks of {format.block}, got {D} entries")
        codes = allocate((N, format.code_bytes(D)), np.uint8)
        return cls(format, codes, allocate((N, format.scale_bytes(D)), np.uint8))

    @property
    def shape(self) -> tuple[int, int]:
        """[N, D]: that of the rows."""
        return self.codes.shape[0], self.codes.shape[1] * self.format.codes_in_byte

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return sum(self.shape[0] * plane.shape[1] for plane in (self.codes, self.scales))

    def __getitem__(self, rows: slice) -> "PackedRows":
        return PackedRows(self.format, self.codes[rows], self.scales[rows])

    def planes(self, of: Callable[[Any], Any]) -> "PackedRows":
        """The same rows with a function applied to both arrays, such as a copy to the device."""
        return PackedRows(self.format, of(self.codes), of(self.scales))

    def to_bf16(self) -> np.ndarray:
        """The values [N, D] bf16 of rows on the host."""
        scale = np.repeat(self.format.scale_to_f32(self.scales), self.format.block, axis=-1)
        with np.errstate(over="ignore"):  # the infinities of the picture
            return as_bf16(self.format.values(self.codes) * scale)


@cuda.jit(device=True)
def e4m3_pair(codes, scale):
    """Two e4m3 codes, in the low 16 bits, times an f32 scale: a word of two bf16, the first in the low half."""
    low = uint32(encode_bf16(decode_e4m3(codes & uint32(0xFF)) * scale))
    return low | uint32(uint32(encode_bf16(decode_e4m3((codes >> uint32(8)) & uint32(0xFF)) * scale)) << uint32(16))


@cuda.jit(device=True)
def e2m1_pair(codes, scale):
    """Two e2m1 codes, in the low 8 bits, times an f32 scale: a word of two bf16, the first in the low half."""
    low = uint32(encode_bf16(decode_e2m1(codes & uint32(0xF)) * scale))
    return low | uint32(uint32(encode_bf16(decode_e2m1((codes >> uint32(4)) & uint32(0xF)) * scale)) << uint32(16))


@cuda.jit(device=True)
def window_pair(codes, scales, i, m):
    """Entries 2 m and 2 m + 1 of window row i as a word of two bf16."""
    pair = uint32(codes[i, 2 * m]) | uint32(uint32(codes[i, 2 * m + 1]) << uint32(8))
    return e4m3_pair(pair, decode_e8m0(scales[i, m // 16]))


@cuda.jit(device=True)
def compressed_pair(codes, scales, i, m):
    """Entries 2 m and 2 m + 1 of compressed row i as a word of two bf16."""
    return e2m1_pair(uint32(codes[i, m]), decode_e4m3(scales[i, m // 8]))
