"""One number of any format taken apart, and the rounding that brought it there.

Everything shown comes from the encoders and decoders of `dsv41_numba.formats`; the parts of the picture that explain
them are held to their results by a test.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dsv41_numba.formats.bf16 import bf16_to_f32, f32_to_bf16
from dsv41_numba.formats.e2m1 import E2M1_MAX, e2m1_to_f32, f32_to_e2m1
from dsv41_numba.formats.e4m3 import E4M3_MAX, e4m3_to_f32, f32_to_e4m3
from dsv41_numba.formats.e8m0 import e8m0_to_f32, f32_to_e8m0
from dsv41_numba.show.svg import Picture

WIDTH, LEFT, BIT, ROW = 720, 16, 40, 34
F32_BIT = 21  # 32 of them in a row
INK = {"sign": "red", "exponent": "blue", "mantissa": "green", "tail": "quiet"}
FILL = {"sign": "pale-red", "exponent": "pale-blue", "mantissa": "pale-green", "tail": "pale"}


@dataclass(frozen=True)
class Format:
    """How many bits sign, exponent and mantissa have, the bias, the package's functions, what larger numbers become."""

    name: str
    sign: int
    exponent: int
    mantissa: int
    bias: int
    dtype: type
    decode: Callable[[np.ndarray], np.ndarray]
    encode: Callable[[np.ndarray], np.ndarray]
    clamps_to: float = math.inf

    @property
    def bits(self) -> int:
        return self.sign + self.exponent + self.mantissa

    @property
    def has_mantissa(self) -> bool:
        """Whether there is anything to round to nearest: e8m0 rounds up."""
        return self.mantissa > 0

    def value(self, code: int) -> float:
        """The number of one code."""
        return float(self.decode(np.array([code], self.dtype))[0])

    def code(self, value: float) -> int:
        """The code that the package gives one float32."""
        return int(self.encode(np.array([value], np.float32))[0])

    def fields(self, code: int) -> tuple[int, int, int]:
        """Sign, exponent and mantissa as they stand in the bits."""
        mantissa, exponent = code & ((1 << self.mantissa) - 1), code >> self.mantissa & ((1 << self.exponent) - 1)
        return code >> (self.bits - 1) if self.sign else 0, exponent, mantissa

    def shown(self, code: int) -> str:
        """The code as it is written: 0x and its digits."""
        return f"0x{code:0{-(-self.bits // 4)}X}"


FORMATS = {
    found.name: found
    for found in (
        Format("bf16", 1, 8, 7, 127, np.uint16, bf16_to_f32, f32_to_bf16),
        Format("e4m3", 1, 4, 3, 7, np.uint8, e4m3_to_f32, f32_to_e4m3, E4M3_MAX),
        Format("e2m1", 1, 2, 1, 1, np.uint8, e2m1_to_f32, f32_to_e2m1, E2M1_MAX),
        Format("e8m0", 0, 8, 0, 127, np.uint8, e8m0_to_f32, f32_to_e8m0),
    )
}


def find(format: str) -> Format:
    """The format of this name; ValueError if there is none."""
    if format not in FORMATS:
        raise ValueError(f"format: expected one of {', '.join(FORMATS)}, got {format!r}")
    return FORMATS[format]


def formula(format: str, code: int) -> str:
    """How the value follows from the fields, in words and numbers."""
    f = find(format)
    s, e, m = f.fields(code)
    value = f.value(code)
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "exponent all ones, mantissa 0: infinity"
    sign = "-" if s else ""
    if not f.has_mantissa:
        return f"2^({e} - {f.bias}) = 2^{e - f.bias}"
    of = f"{m}/{1 << f.mantissa}"
    if e == 0:
        return f"{sign}2^{1 - f.bias} x {of}" + ("" if m else ", zero with its sign")
    return f"{sign}2^({e} - {f.bias}) x (1 + {of})"


def neighbours(format: str, code: int, each_side: int = 2) -> list[tuple[int, float]]:
    """Codes and values around a finite code, ascending; of +0 and -0 the one asked for stands there."""
    codes, values = ascending(format)
    at = int(np.searchsorted(values, find(format).value(code)))
    first = max(at - each_side, 0)
    around = zip(codes[first : at + each_side + 1].tolist(), values[first : at + each_side + 1].tolist())
    here = (code, find(format).value(code))
    return [here if value == here[1] else (number, value) for number, value in around]


@functools.cache
def ascending(format: str) -> tuple[np.ndarray, np.ndarray]:
    """Every finite value of a format once, and its code (that of +0 for zero), in the values' order."""
    f = find(format)
    codes: np.ndarray = np.arange(1 << f.bits).astype(f.dtype)
    codes = codes[np.isfinite(f.decode(codes))]
    values, first = np.unique(f.decode(codes), return_index=True)
    return codes[first], values


def byte(format: str = "e4m3", code: int = 0x3A) -> Picture:
    """One code of bf16, e4m3, e2m1 or e8m0 taken apart: its fields, its value, and its neighbours."""
    f = find(format)
    if not 0 <= code < 1 << f.bits:
        raise ValueError(f"code: expected 0 to {(1 << f.bits) - 1} for {format}, got {code}")
    s, e, m = f.fields(code)
    value = f.value(code)
    about = f"{format} {f.shown(code)}: sign {s}, exponent {e}, mantissa {m}, value {_text(value)}"
    picture = Picture(WIDTH, 264, f"{format} {f.shown(code)}", about)
    picture.text(LEFT, 30, f"{format} {f.shown(code)}  =  {_text(value)}", bold=True, size=16)
    fields = ["sign"] * f.sign + ["exponent"] * f.exponent + ["mantissa"] * f.mantissa
    for i, field in enumerate(fields):
        place = f.bits - 1 - i
        picture.text(LEFT + BIT * i + BIT / 2 - 2, 58, place, "quiet", 12, anchor="middle", mono=True)
        bit = code >> place & 1
        picture.cell(
            LEFT + BIT * i, 64, BIT - 4, ROW, bit, FILL[field], INK[field], size=15, tip=f"bit {place}: {field}"
        )
    for field, number in (("sign", s), ("exponent", e), ("mantissa", m)):
        if field in fields:
            first, count = fields.index(field), fields.count(field)
            short = field[0] if count == 1 else field
            middle = LEFT + BIT * (first + count / 2) - 2
            picture.text(middle, 116, f"{short} {number}", INK[field], 13, anchor="middle")
    picture.text(LEFT, 146, formula(format, code), size=15, mono=True)
    if math.isfinite(value):
        _number_line(picture, f, neighbours(format, code), code, 196)
    return picture


def rounding(format: str = "bf16", value: float = 0.1) -> Picture:
    """A float32 rounded to a format: the bits that stay, the bit that decides, the tail, and both candidates."""
    f = find(format)
    with np.errstate(over="ignore"):  # refused below
        exact = float(np.float32(value))
    if not math.isfinite(exact):
        raise ValueError(f"value: expected a number that float32 holds, got {value}")
    if not f.sign and (exact < 0 or math.copysign(1, exact) < 0 or exact > 2.0**127):
        raise ValueError(f"value: expected 0 to 2^127, which {format} can hold, got {value}")
    bits = int(np.array([exact], np.float32).view(np.uint32)[0])
    code = f.code(exact)
    kept = kept_bits(f, exact)
    rule = why(format, exact)
    about = f"float32 0x{bits:08X} = {_text(exact)} to {format} {f.shown(code)} = {_text(f.value(code))}: {rule}"
    picture = Picture(WIDTH, 268, f"{_text(exact)} in {format}", about)
    picture.text(LEFT, 30, f"float32 {_text(exact)}  to  {format} {f.shown(code)} = {_text(f.value(code))}",
                 bold=True, size=16)  # fmt: skip
    round_at = 9 + kept  # from the left: sign, 8 of exponent, mantissa
    for i in range(32):
        field = "sign" if i == 0 else "exponent" if i < 9 else "mantissa" if i < round_at else "tail"
        letter = {round_at - 1: "L", round_at: "R"}.get(i, "T" if i > round_at else "")
        if i < 9 or not f.has_mantissa:
            letter = "T" if i >= 9 else ""
        stroke = {"L": "green", "R": "orange", "T": "line", "": "line"}[letter]
        fill = "pale-orange" if letter == "R" else FILL[field]
        x = LEFT + F32_BIT * i + 5 * (i > 0) + 5 * (i > 8)
        picture.cell(x, 64, F32_BIT - 2, ROW, bits >> (31 - i) & 1, fill, stroke, size=14,
                     tip=f"bit {31 - i}: {letter or field}")  # fmt: skip
        if letter:
            picture.text(x + F32_BIT / 2 - 1, 114, letter, {"T": "quiet"}.get(letter, stroke), 13, True, "middle", True)
    picture.text(LEFT, 58, "sign, 8 bits of exponent, 23 of mantissa", "quiet", 13)
    picture.text(LEFT, 144, rule, size=14)
    _number_line(picture, f, candidates(format, exact), code, 196, exact)
    return picture


def kept_bits(f: Format, value: float) -> int:
    """How many of the 23 mantissa bits of a float32 the format keeps for this number; negative: not even the leading 1.

    Below the smallest normal number each halving costs a bit.
    """
    exponent = max(math.frexp(value)[1] - 1, -126) if value else -126
    return f.mantissa - max(1 - f.bias - exponent, 0)


def candidates(format: str, value: float) -> list[tuple[int, float]]:
    """The codes on both sides of a number, lower first; one code for a number that is one, or beyond the largest."""
    f = find(format)
    around = neighbours(format, f.code(min(max(value, -_largest(format)), _largest(format))), 1)
    below = [pair for pair in around if pair[1] <= value]
    return below[-1:] if below and below[-1][1] == value else below[-1:] + around[len(below) :][:1]


def why(format: str, value: float) -> str:
    """The rule that decided, in one line."""
    f = find(format)
    code = f.code(value)
    if f.value(code) == value:
        return "the tail is 0: exact"
    if abs(value) > f.clamps_to:
        return f"beyond {f.clamps_to:g}: clamped"
    if not f.has_mantissa:
        return "some bit of the mantissa is set: the next exponent" if value else "no code is zero: the smallest"
    if not math.isfinite(f.value(code)):
        return "half a step or more beyond the largest: infinity"
    if abs(value) > _largest(format):
        return "less than half a step beyond the largest: down"
    (_, low), (_, high) = candidates(format, value)
    towards = "up" if abs(f.value(code)) > abs(value) else "down"
    if value == (low + high) / 2:
        return f"R T...T is exactly half: {towards}, to the even code"
    return f"R T...T is {'above' if towards == 'up' else 'below'} half: {towards}"


def _largest(format: str) -> float:
    return float(ascending(format)[1][-1])


def _number_line(
    picture: Picture, f: Format, around: list[tuple[int, float]], code: int, y: float, exact: float | None = None
) -> None:
    """Codes at their places, the chosen one marked; `exact` is where the number itself lies."""
    ends = [v for _, v in around] + ([exact] if exact is not None else [])
    low, high = min(ends), max(ends)
    right = WIDTH - 70

    def place(value: float) -> float:
        return 70 + (right - 70) * (0.5 if low == high else (value - low) / (high - low))

    picture.line(LEFT, y, WIDTH - LEFT, y, "ink")
    if exact is not None and len(around) == 2 and f.has_mantissa:
        half = place((around[0][1] + around[1][1]) / 2)
        picture.line(half, y - 18, half, y + 12, "quiet", dash="3 3")
        picture.text(half, y + 26, "half way", "quiet", 13, anchor="middle")
    for number, value in around:
        chosen, x = number == code, place(value)
        picture.circle(x, y, 6 if chosen else 4, "orange" if chosen else "paper", "ink",
                       tip=f"{f.shown(number)} = {_text(value)}")  # fmt: skip
        picture.text(x, y + 26, f.shown(number), "ink", 13, chosen, "middle", mono=True)
        picture.text(x, y + 46, _text(value), "ink", 13, chosen, "middle", mono=True)
    if exact is not None:
        picture.line(place(exact), y - 26, place(exact), y - 7, "red", 2, arrow=True)


def _text(value: float) -> str:
    """A number as short as it stays exact enough to read."""
    return f"{value:.6g}" if not math.isnan(value) else "nan"


PICTURES = {"byte": byte, "rounding": rounding}
