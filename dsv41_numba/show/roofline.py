"""The roofline: what each op reached, under what the machine can do at most. All of it from data/measurements.json."""

import math
from dataclasses import dataclass
from typing import Any

from dsv41_numba.data import data_dir
from dsv41_numba.show.ladder import read, where
from dsv41_numba.show.svg import Picture

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 560, 62, 744, 96, 510
LETTER, LINE = 6.4, 15  # of a label, about
MARKS = {"plain": "blue", "tuned": "green", "torch": "orange"}

Box = tuple[float, float, float, float]  # left, upper, right, lower


@dataclass(frozen=True)
class Point:
    """An op that does matrix products: operations a byte that must move, and TFLOP/s by who did it."""

    op: str
    flops_per_byte: float
    tflops: dict[str, float]


def points(measurements: dict[str, Any], case: str) -> list[Point]:
    """The ops of one call, "prefill 2048" or "decode", that do matrix products, by rising flops per byte.

    "decode" takes in "decode 131072", where the time depends on the context.
    """
    names = (case, "decode 131072") if case == "decode" else (case,)
    found: dict[str, Point] = {}
    for row in measurements["results"]:
        if row["kind"] != "kernel" or row["case"] not in names or not row["flops"] or not row["ms"]:
            continue
        point = found.setdefault(row["op"], Point(row["op"], row["flops"] / row["bytes"], {}))
        point.tflops[row["ops"]] = row["flops"] / (1e9 * row["ms"])
        if row["torch"]:
            point.tflops["torch"] = row["flops"] / (1e9 * row["torch"]["ms"])
    return sorted(found.values(), key=lambda point: point.flops_per_byte)


def roof(measurements: dict[str, Any], flops_per_byte: float) -> float:
    """The most TFLOP/s at so many operations a byte: the copy's rate times them, or the matrix product's."""
    ceilings = measurements["ceilings"]
    return min(ceilings["copy_gbs"] * flops_per_byte / 1e3, ceilings["matrix_tflops"])


def roofline(case: str = "prefill 2048") -> Picture:
    """Each op of one call as marks on a vertical line, the measured ceilings above them; both axes logarithmic."""
    measurements = read(data_dir())
    shown = points(measurements, case)
    if not shown:
        raise ValueError(f"case: expected a call that was measured, such as 'prefill 2048' or 'decode', got {case!r}")
    rates = [rate for point in shown for rate in point.tflops.values()]
    low = 10.0 ** math.floor(math.log10(min(rates)) - 0.3)
    high = 10.0 ** math.ceil(math.log10(measurements["ceilings"]["matrix_tflops"]))
    first, last = shown[0].flops_per_byte / 2, max(2000.0, shown[-1].flops_per_byte * 2)

    def x(flops_per_byte: float) -> float:
        return LEFT + (RIGHT - LEFT) * math.log(flops_per_byte / first) / math.log(last / first)

    def y(tflops: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * math.log(tflops / low) / math.log(high / low)

    copy, matrix = measurements["ceilings"]["copy_gbs"], measurements["ceilings"]["matrix_tflops"]
    picture = Picture(
        WIDTH,
        HEIGHT,
        f"Roofline, {case}",
        f"{where(measurements)}. " + "; ".join(f"{p.op}: {_told(p)}" for p in shown),
    )
    picture.text(16, 28, f"Roofline, {case}: TFLOP/s against operations a byte", size=15, bold=True)
    picture.text(16, 48, f"{where(measurements)}. Both axes are logarithmic.", "quiet")
    at = 16.0
    for name, colour in MARKS.items():
        _mark(picture, at + 6, 66, name)
        picture.text(at + 18, 71, name, colour, bold=True)
        at += 80
    for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1):
        picture.line(LEFT, y(10.0**power), RIGHT, y(10.0**power))
        picture.text(LEFT - 8, y(10.0**power) + 4, f"{10.0**power:g}", "quiet", anchor="end")
    for power in range(math.ceil(math.log10(first)), math.floor(math.log10(last)) + 1):
        picture.line(x(10.0**power), TOP, x(10.0**power), BOTTOM)
        picture.text(x(10.0**power), BOTTOM + 18, f"{10.0**power:g}", "quiet", anchor="middle")
    picture.text(RIGHT, BOTTOM + 38, "operations a byte", "quiet", anchor="end")
    ridge = 1e3 * matrix / copy
    corners = [(max(first, 1e3 * low / copy), roof(measurements, max(first, 1e3 * low / copy)))]
    corners += [(ridge, matrix), (last, matrix)] if ridge > first else [(last, matrix)]
    path = " L ".join(f"{x(a):.2f} {y(b):.2f}" for a, b in corners)
    picture.path(f"M {path}", stroke="ink", thick=2)
    taken: list[Box] = [(x(ridge) - 4, y(matrix) - 26, RIGHT, y(matrix) - 6)]
    picture.text(RIGHT, y(matrix) - 10, f"matrix product: {matrix:.0f} TFLOP/s", bold=True, anchor="end")
    picture.text(LEFT + 8, TOP + 14, f"sloped: copy, {copy:.0f} GB/s", bold=True)
    for point in shown:
        across, heights = x(point.flops_per_byte), [y(rate) for rate in point.tflops.values()]
        picture.line(across, min(heights), across, max(heights), "quiet")
        for name, rate in point.tflops.items():
            ceiling = roof(measurements, point.flops_per_byte)
            tip = f"{point.op}, {name}: {rate:.3g} TFLOP/s, {100 * rate / ceiling:.3g} % of the roof"
            _mark(picture, across, y(rate), name, tip)
            taken.append((across - 7, y(rate) - 7, across + 7, y(rate) + 7))
    for point in shown:
        _label(picture, point.op, x(point.flops_per_byte), max(y(rate) for rate in point.tflops.values()), taken)
    return picture


def _mark(picture: Picture, x: float, y: float, name: str, tip: str = "") -> None:
    """A mark of its own shape and colour for each of MARKS."""
    if name == "torch":
        picture.circle(x, y, 5, "paper", MARKS[name], 2, tip)
    elif name == "tuned":
        picture.path(f"M {x:.2f} {y - 7:.2f} l 7 7 l -7 7 l -7 -7 Z", MARKS[name], tip=tip)
    else:
        picture.circle(x, y, 5, MARKS[name], tip=tip)


def _label(picture: Picture, text: str, x: float, y: float, taken: list[Box]) -> None:
    """The op's name at the nearest free place below its lowest mark, and a thin line to it."""
    text = text.removeprefix("linear ")
    width = LETTER * len(text) + 16
    rows = [y + 22 + LINE * row for row in range(14)]
    places = [(x, rows[0])] + [(x + side * (width / 2 + 6), base) for base in rows for side in (1, -1)]
    for middle, base in places:
        left, right, upper, lower = middle - width / 2, middle + width / 2, base - 12, base + 3
        inside = left >= LEFT and right <= RIGHT and lower <= BOTTOM
        if inside and not any(left < b[2] and b[0] < right and upper < b[3] and b[1] < lower for b in taken):
            taken.append((left, upper, right, lower))
            if middle != x:
                picture.line(x, y + 6, left + 8 if left > x else right - 8, (upper + lower) / 2, "quiet")
            picture.rect(left + 6, upper, width - 12, lower - upper, "paper")  # over the grid and other ops' lines
            picture.text(middle, base, text, size=12, anchor="middle")
            return


def _told(point: Point) -> str:
    return ", ".join(f"{name} {rate:.3g} TFLOP/s" for name, rate in point.tflops.items())


PICTURES = {"roofline": roofline}
