"""Packed rows on their way into a cache: quantised, and their codes and scales kept instead of what they stand for.

Math       codes, scales = quantise(x), of the quantiser of the rows' format; reading is `formats.packed_rows`'
Shapes     `pack_rows`: x [N, D] bf16 -> PackedRows [N, D]
           `row_word`: a word of two bf16 of a row, for kernels that read either kind
           `write_rows`: `ring_write` for rows [T, D] and ring [W, D] that are bf16, or packed in the same format
           `pack_values`: values [N, D] bf16 that such rows had -> PackedRows with exactly these values; on the host
Precision  every bit is fixed: a packed row is read as the bf16 number that the round trip of the same format gives
Launch     that of `fp8_quantise`, `fp4_quantise_*`, and of `ring_write` for codes and scales
Moves      those of the same
Errors     ValueError as there; `write_rows`: when the formats differ; `pack_values`: when a value is of no such row
Source     steps 3, 5 and 9 of the layer, for cache="packed"
"""

from typing import Any

import numpy as np
from numba import cuda, uint32

from dsv41_numba.formats.e2m1 import e2m1_to_packed, f32_to_e2m1
from dsv41_numba.formats.e4m3 import E4M3_VALUES
from dsv41_numba.formats.packed_rows import (
    COMPRESSED,
    INDEX_KEY,
    WINDOW,
    PackedRows,
    RowFormat,
    compressed_pair,
    window_pair,
)
from dsv41_numba.ops.checks import check_array
from dsv41_numba.ops.quant_fp4 import (
    fp4_quantise_e4m3,
    fp4_quantise_e4m3_ref,
    fp4_quantise_e8m0,
    fp4_quantise_e8m0_ref,
)
from dsv41_numba.ops.quant_fp8 import fp8_quantise, fp8_quantise_ref
from dsv41_numba.ops.ring import ring_write, ring_write_ref

REFERENCES = {WINDOW: fp8_quantise_ref, COMPRESSED: fp4_quantise_e4m3_ref, INDEX_KEY: fp4_quantise_e8m0_ref}
KERNELS = {WINDOW: fp8_quantise, COMPRESSED: fp4_quantise_e4m3, INDEX_KEY: fp4_quantise_e8m0}


def pack_rows_ref(x: np.ndarray, format: RowFormat) -> PackedRows:
    """x [N, D] bf16 -> PackedRows [N, D]."""
    codes, scales = REFERENCES[format](x)
    return PackedRows(format, codes if format.codes_in_byte == 1 else e2m1_to_packed(codes), scales)


def pack_rows(x: Any, format: RowFormat) -> PackedRows:
    """x [N, D] bf16 bits, a device array -> PackedRows [N, D]."""
    return PackedRows(format, *KERNELS[format](x))


@cuda.jit(device=True)
def row_word(rows, scales, i, m, words):
    """Word m of row i, of `words` words of two bf16: as it lies there, or of the codes and scales of a packed row.

    Rows of bf16 have no scales; a window row has twice as many bytes of codes as words, a compressed row as many.
    """
    if scales.shape[1] == 0:
        return uint32(rows[i, m])
    if rows.shape[1] > words:
        return window_pair(rows, scales, i, m)
    return compressed_pair(rows, scales, i, m)


def write_rows_ref(rows: Any, ring: Any, start_pos: int) -> None:
    """rows [T, D], ring [W, D], changed in place."""
    for source, target in same_planes(rows, ring):
        ring_write_ref(source, target, start_pos)


def write_rows(rows: Any, ring: Any, start_pos: int) -> None:
    """rows [T, D], ring [W, D], device arrays or PackedRows of such; ring is changed in place."""
    for source, target in same_planes(rows, ring):
        ring_write(source, target, start_pos)


def same_planes(rows: Any, ring: Any) -> list[tuple[Any, Any]]:
    """The pairs of arrays that rows are written as. ValueError when one side is packed and the other is not, or is
    packed in another format."""
    found, wanted = (x.format.name if isinstance(x, PackedRows) else "bf16" for x in (rows, ring))
    if found != wanted:
        raise ValueError(f"rows: expected those that the ring holds, {wanted}, got {found}")
    return [(rows.codes, ring.codes), (rows.scales, ring.scales)] if isinstance(ring, PackedRows) else [(rows, ring)]


def check_packed(name: str, rows: PackedRows, format: RowFormat, shape: tuple[int | None, int]) -> None:
    """Refuse packed rows of another format or shape [N, D], or whose arrays are not as `PackedRows` says."""
    if rows.format != format:
        raise ValueError(f"{name}: expected packed {format.name}, got {rows.format.name}")
    N, D = shape
    check_array(f"{name}.codes", rows.codes, np.uint8, (N, format.code_bytes(D)))
    check_array(f"{name}.scales", rows.scales, np.uint8, (rows.shape[0], format.scale_bytes(D)))


def pack_values(values: np.ndarray, format: RowFormat) -> PackedRows:
    """values [N, D] bf16, each block of which is codes times a scale -> rows with these values. ValueError if none are.

    Quantising such values anew finds their codes under e8m0 scales, where nothing but the exponent moves. An e4m3 scale
    depends on the magnitude that was quantised, which is gone: near the smallest scales it may have been another one,
    so there all of them are tried.
    """
    packed = pack_rows_ref(values, format)
    bits, got = values.view(np.uint16), packed.to_bf16().view(np.uint16)
    for n, block in np.argwhere((bits != got).reshape(len(values), -1, format.block).any(-1)):
        at = slice(block * format.block, (block + 1) * format.block)
        one_byte = slice(at.start // format.codes_in_byte, at.stop // format.codes_in_byte)
        found = _block_of_values(values[n, at], format)
        if found is None:
            raise ValueError(f"values: expected {format.name}, got row {n}, whose entries from {at.start} on are none")
        packed.codes[n, one_byte], packed.scales[n, block] = found
    return packed


def _block_of_values(values: np.ndarray, format: RowFormat) -> tuple[np.ndarray, int] | None:
    """Codes and scale of one block, by trying every e4m3 scale, the largest that fits first."""
    if format.scale != "e4m3":
        return None
    for scale in range(0x7E, 0, -1):
        with np.errstate(over="ignore"):
            codes = f32_to_e2m1(values.astype(np.float32) / E4M3_VALUES[scale])
        row = PackedRows(format, e2m1_to_packed(codes)[None], np.array([[scale]], np.uint8))
        if np.array_equal(row.to_bf16().view(np.uint16)[0], values.view(np.uint16)):
            return row.codes[0], scale
    return None


if __name__ == "__main__":
    from dsv41_numba.formats.bf16 import as_bf16

    x_nd = as_bf16(np.random.default_rng(5).standard_normal((2, 512)).astype(np.float32))
    for kind in KERNELS:
        rows_nd = pack_rows_ref(x_nd, kind)
        print(f"{kind.name}: {rows_nd.nbytes // 2} bytes a row, first entries {rows_nd.to_bf16()[0, :3]}")
