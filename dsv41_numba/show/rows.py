"""Packed rows: how long they are, two codes in a byte, and a block of numbers with its scale."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv41_numba.config import FLASH
from dsv41_numba.formats.bf16 import BF16, as_bf16
from dsv41_numba.formats.e2m1 import e2m1_to_f32, e2m1_to_packed, f32_to_e2m1, packed_to_e2m1
from dsv41_numba.formats.e4m3 import e4m3_to_f32
from dsv41_numba.formats.packed_rows import COMPRESSED, INDEX_KEY, WINDOW, RowFormat
from dsv41_numba.ops.packed_rows import REFERENCES, pack_rows_ref
from dsv41_numba.show.svg import Picture

LEFT = 16
BAR_WIDTH, BAR_HEIGHT, BAR_ROW, BAR_TOP = 384, 26, 62, 66
BIT, BIT_HEIGHT = 26, 30
BYTE_ROW, BYTE_TOP = 84, 62
LINE, LINE_TOP = 30, 108
SIGN, EXPONENT, MANTISSA = ("pale-red", "red"), ("pale-orange", "orange"), ("pale-blue", "blue")


@dataclass(frozen=True)
class Kind:
    """A way to store a row: its format, and the fields of its codes."""

    format: RowFormat
    code_bits: tuple[int, int, int]  # sign, exponent, mantissa

    @property
    def name(self) -> str:
        codes = "e4m3" if self.format.codes_in_byte == 1 else "e2m1"
        return f"{codes} with {self.format.scale} scales"

    @property
    def block(self) -> int:
        return self.format.block

    @property
    def bits(self) -> int:
        return sum(self.code_bits)

    def quantise(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Codes, one a byte, and scales of rows x [N, D] bf16."""
        return REFERENCES[self.format](x)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """The values of codes, one a byte."""
        return e4m3_to_f32(codes) if self.format.codes_in_byte == 1 else e2m1_to_f32(codes)


KINDS = {
    "fp8": Kind(WINDOW, (1, 4, 3)),
    "fp4 e8m0": Kind(INDEX_KEY, (1, 2, 1)),
    "fp4 e4m3": Kind(COMPRESSED, (1, 2, 1)),
}


def kind_of(name: str) -> Kind:
    if name not in KINDS:
        raise ValueError(f"kind: expected one of {', '.join(KINDS)}, got {name!r}")
    return KINDS[name]


def some_rows(rows: int, D: int, seed: int) -> np.ndarray:
    """Signed normal numbers [rows, D] as bf16."""
    return as_bf16(np.random.default_rng(seed).standard_normal((rows, D)).astype(np.float32))


def row_bytes(kind: str, D: int) -> tuple[int, int]:
    """Bytes of codes and of scales of one row of D numbers, counted on a packed row."""
    row = pack_rows_ref(some_rows(1, D, 0), kind_of(kind).format)
    return row.codes.nbytes, row.scales.nbytes


def packed_row(D: int = FLASH.head_dim, kinds: str = "fp8, fp4 e4m3") -> Picture:
    """One row of D numbers to scale: as bf16, and as each of the kinds, codes before scales."""
    names = [name.strip() for name in kinds.split(",")]
    wide = some_rows(1, D, 0).nbytes
    bars: list[tuple[str, list[tuple[str, int]]]] = [("bf16", [("numbers", wide)])]
    bars += [(kind_of(name).name, list(zip(("codes", "scales"), row_bytes(name, D)))) for name in names]
    picture = Picture(
        2 * LEFT + BAR_WIDTH,
        BAR_TOP + BAR_ROW * len(bars) - 10,
        f"A row of {D} numbers, to scale",
        "; ".join(f"{name}: " + " and ".join(f"{n} bytes of {what}" for what, n in parts) for name, parts in bars),
    )
    picture.text(LEFT, 28, f"A row of {D} numbers, to scale", bold=True, size=15)
    fills = {"numbers": ("pale", "line"), "codes": ("pale-blue", "blue"), "scales": ("pale-orange", "orange")}
    for i, (name, parts) in enumerate(bars):
        x, y, total = float(LEFT), BAR_TOP + BAR_ROW * i, sum(n for _, n in parts)
        sums = " + ".join(str(n) for _, n in parts)
        picture.text(LEFT, y - 6, f"{name}: {sums} = {total} bytes" if len(parts) > 1 else f"{name}: {total} bytes")
        for what, n in parts:
            width = BAR_WIDTH * n / wide
            picture.rect(x, y, width, BAR_HEIGHT, *fills[what], tip=f"{name}: {n} bytes of {what}")
            if width > 8 * len(what):
                picture.text(x + width / 2, y + 18, what, size=13, anchor="middle")
            x += width
    return picture


def two_codes(values: str = "1.5 -1 0.5 -0.5 1 -6") -> Picture:
    """Pairs of numbers and the bytes that hold their codes."""
    numbers = np.array([float(value) for value in values.split()], np.float32)
    packed = e2m1_to_packed(f32_to_e2m1(numbers))
    held = e2m1_to_f32(packed_to_e2m1(packed))
    width = 8 * BIT + 16
    picture = Picture(
        2 * LEFT + width + 84,
        BYTE_TOP + BYTE_ROW * len(packed) - 4,
        "Two e2m1 codes in a byte, the even index in the low bits",
        "; ".join(f"0x{byte:02X}: even {held[2 * i]:g}, odd {held[2 * i + 1]:g}" for i, byte in enumerate(packed)),
    )
    picture.text(LEFT, 28, "Two codes in a byte", bold=True, size=15)
    for i, byte in enumerate(packed.tolist()):
        y = BYTE_TOP + BYTE_ROW * i
        for half, index in ((0, 2 * i + 1), (1, 2 * i)):
            x = LEFT + half * (4 * BIT + 16)
            picture.text(x, y - 6, f"x[{index}] = {held[index]:g}", size=13, mono=True)
            bits = f"{byte >> (4 * (1 - half)) & 15:04b}"
            for k, (bit, colour) in enumerate(zip(bits, (SIGN, EXPONENT, EXPONENT, MANTISSA))):
                place = 7 - 4 * half - k
                tip = f"byte {i}, bit {place}: {bit}, of x[{index}]"
                picture.cell(x + BIT * k, y, BIT - 2, BIT_HEIGHT, bit, *colour, tip=tip)
                picture.text(x + BIT * k + BIT / 2 - 1, y + BIT_HEIGHT + 16, place, "quiet", 12, anchor="middle")
        picture.text(LEFT + width + 12, y + 21, f"0x{byte:02X}", size=15, bold=True, mono=True)
    return picture


def block(kind: str = "fp8", shown: int = 8, seed: int = 7) -> Picture:
    """A block of random numbers quantised: its scale, and the first numbers with their codes and what they become."""
    way = kind_of(kind)
    x = some_rows(1, way.block, seed)
    codes, scales = way.quantise(x)
    scale = float(way.format.scale_to_f32(scales)[0, 0])
    numbers = x[0].astype(np.float32)
    back = way.decode(codes)[0] * np.float32(scale)
    assert np.array_equal(back.astype(BF16).astype(np.float32), back), "a product of both fits bf16"
    cells_left = LEFT + 176
    back_right = cells_left + 20 * way.bits + 104
    picture = Picture(
        max(back_right + LEFT, 400),
        LINE_TOP + LINE * shown + 6,
        f"{way.block} numbers as {way.name}",
        f"scale {scale:g} (byte 0x{scales[0, 0]:02X}); "
        + ", ".join(f"{numbers[i]:g} becomes {back[i]:g}" for i in range(shown)),
    )
    picture.text(LEFT, 28, f"{way.block} numbers share a scale", bold=True, size=15)
    amax = float(np.abs(numbers).max())
    picture.text(LEFT, 54, f"amax {amax:g} -> scale {scale:g}, byte 0x{scales[0, 0]:02X}", size=13, mono=True)
    for right, label in ((LEFT + 76, "x"), (LEFT + 164, "x / scale"), (back_right, "code * scale")):
        picture.text(right, LINE_TOP - 14, label, "quiet", 13, anchor="end")
    picture.text(cells_left, LINE_TOP - 14, "code", "quiet", 13)
    colours = [c for n, c in zip(way.code_bits, (SIGN, EXPONENT, MANTISSA)) for _ in range(n)]
    for i in range(shown):
        y = LINE_TOP + LINE * i
        code, value = int(codes[0, i]), float(numbers[i])
        tip = f"x[{i}] = {value:g}: code 0x{code:0{way.bits // 4}X}, read back {back[i]:g}"
        picture.text(LEFT + 76, y + 16, f"{value:.4g}", size=13, anchor="end", mono=True)
        picture.text(LEFT + 164, y + 16, f"{value / scale:.4g}", size=13, anchor="end", mono=True)
        for k, (bit, colour) in enumerate(zip(f"{code:0{way.bits}b}", colours)):
            picture.cell(cells_left + 20 * k, y, 18, 22, bit, *colour, tip=tip)
        picture.text(back_right, y + 16, f"{back[i]:.4g}", size=13, anchor="end", mono=True)
    return picture


def ruler(kind: str = "fp4 e4m3", seed: int = 8) -> Picture:
    """Where each number of a block lies, and the place that its code can hold: a tick for every code."""
    way = kind_of(kind)
    x = some_rows(1, way.block, seed)
    codes, scales = way.quantise(x)
    scale = float(way.format.scale_to_f32(scales)[0, 0])
    numbers, back = x[0].astype(np.float32), way.decode(codes)[0] * np.float32(scale)
    grid = np.unique(way.decode(np.arange(1 << way.bits, dtype=np.uint8)))
    grid = (grid[np.isfinite(grid)] + 0.0) * scale  # + 0.0: -0 is 0's place
    width, top, bottom = 420, 76, 158
    reach = max(float(grid.max()), float(np.abs(numbers).max()))

    def at(value: float) -> float:
        return LEFT + width / 2 + value / reach * (width / 2 - 8)

    picture = Picture(
        2 * LEFT + width,
        bottom + 46,
        f"{way.block} numbers and the nearest of the {len(grid)} places their codes have",
        f"scale {scale:g}: " + ", ".join(f"{a:g} to {b:g}" for a, b in zip(numbers.tolist(), back.tolist())),
    )
    picture.text(LEFT, 28, f"{way.block} numbers, {len(grid)} places for them", bold=True, size=15)
    picture.text(LEFT, 52, f"scale {scale:g}; above: the numbers, below: code values", "quiet", 13)
    picture.line(LEFT, bottom, LEFT + width, bottom)
    for place in grid.tolist():
        picture.line(at(place), bottom, at(place), bottom + 8)
        if way.bits == 4 and (place / scale).is_integer():  # between them the labels would touch
            picture.text(at(place), bottom + 26, f"{place / scale:g}", "quiet", 13, anchor="middle", mono=True)
    for i, (value, nearest) in enumerate(zip(numbers.tolist(), back.tolist())):
        picture.line(at(value), top, at(nearest), bottom, "blue")
        picture.circle(at(value), top, 4, "blue", tip=f"x[{i}] = {value:g} is read back as {nearest:g}")
    return picture


PICTURES: dict[str, Callable[..., Any]] = {
    "packed_row": packed_row,
    "two_codes": two_codes,
    "block": block,
    "ruler": ruler,
}
