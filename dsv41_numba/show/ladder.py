"""The linear ladder as bars, from data/measurements.json; `python -m dsv41_numba.chart` makes data/ladder.svg of it."""

import json
import math
import pathlib
from typing import Any

from dsv41_numba.data import data_dir
from dsv41_numba.show.svg import Picture

Measurements = dict[str, Any]  # data/measurements.json

CUBLAS = "cublas"
ADDS = {
    "plain": "16 x 16 tiles in shared memory",
    "fma": "8 x 8 sums in each thread's registers",
    "mma": "tensor cores; copies run ahead",
    "wgmma": "a copy engine feeds the tensor cores",
}

# In units of the picture. The axis is logarithmic: on a linear one the first rung would be 6 units long.
WIDTH, TOP, ROW, BAR = 760, 96, 58, 34
ZERO, DECADE, DECADES = 282, 146, 3  # where 1 TFLOP/s is, units for each factor of 10, and how many of them
RIGHT = ZERO + DECADE * DECADES
INSIDE = 230  # a bar from this length on has room for its own label


def read(data: pathlib.Path) -> Measurements:
    """The measurements in a data folder. Raises ValueError when they have no ladder."""
    path = data / "measurements.json"
    measurements: Measurements = json.loads(path.read_text(encoding="utf-8"))
    if not measurements.get("ladder"):
        raise ValueError(f"{path}: expected a ladder, which `dsv41 bench` measures on compute capability 8.0 and up")
    return measurements


def ladder() -> Picture:
    """The ladder that was measured."""
    return ladder_picture(read(data_dir()))


def ladder_picture(measurements: Measurements) -> Picture:
    """The rungs as bars, their rates on a logarithmic axis, cuBLAS as a line across them."""
    rungs, cublas = measured_rungs(measurements), cublas_of(measurements)
    bottom = TOP + ROW * len(rungs)
    told = [f"{rung['rung']} {_label(rung)}" for rung in rungs]
    if cublas:
        told.append(f"cuBLAS {rate(cublas)} TFLOP/s")
    note = f"{where(measurements)}. Logarithmic axis{'; percentages are of cuBLAS' if cublas else ''}."
    size = measurements["ladder"][0]["size"]
    title = f"bf16 matrix product, {size} x {size} x {size}: TFLOP/s of each rung"
    picture = Picture(WIDTH, bottom + 60, title, f"{'; '.join(told)}. {note}")
    picture.text(20, 36, title, size=17, bold=True)
    picture.text(20, 58, note, "quiet")
    for power in range(DECADES + 1):
        x: float = ZERO + DECADE * power
        picture.line(x, TOP - 8, x, bottom)
        picture.text(x, bottom + 20, 10**power, "quiet", anchor="middle")
    picture.text(RIGHT, bottom + 42, "TFLOP/s", "quiet", anchor="middle")
    for i, rung in enumerate(rungs):
        y, length = TOP + ROW * i, _x(rung) - ZERO
        picture.text(20, y + 16, rung["rung"], size=15, bold=True)
        picture.text(20, y + 35, ADDS[rung["rung"]], "quiet")
        picture.rect(ZERO, y + 5, length, BAR, "blue", radius=3, tip=f"{rung['rung']}: {_label(rung)}")
        if length >= INSIDE:
            picture.text(ZERO + length - 10, y + 27, _label(rung), "paper", 14, True, "end")
        else:
            picture.rect(ZERO + length + 4, y + 10, 8 * len(_label(rung)) + 8, BAR - 10, "paper")  # over the grid
            picture.text(ZERO + length + 8, y + 27, _label(rung), "ink", 14, True)
    if cublas:
        x = _x(cublas)
        picture.line(x, TOP - 8, x, bottom, "orange", 2, "6 4")
        picture.text(WIDTH - 20, TOP - 15, f"cuBLAS {rate(cublas)}", "orange", 14, True, "end")
    return picture


def measured_rungs(measurements: Measurements) -> list[Measurements]:
    """The package's own rungs that were timed, from the lowest to the highest."""
    return [rung for rung in measurements["ladder"] if rung["rung"] != CUBLAS and rung["tflops"] is not None]


def cublas_of(measurements: Measurements) -> Measurements | None:
    """cuBLAS' row, where torch was installed."""
    return next((rung for rung in measurements["ladder"] if rung["rung"] == CUBLAS), None)


def where(measurements: Measurements) -> str:
    """The GPU and the day."""
    return f"{measurements['machine']['gpu']}, {measurements['machine']['date'][:10]}"


def rate(rung: Measurements) -> str:
    """TFLOP/s in three digits."""
    return f"{rung['tflops']:#.3g}".rstrip(".")


def share(rung: Measurements) -> str:
    """The rate over cuBLAS'; "" where that was not measured."""
    of_cublas = rung["share_of_cublas"]
    return "" if of_cublas is None else f"{100 * of_cublas:.{0 if of_cublas >= 0.1 else 1}f} %"


def _label(rung: Measurements) -> str:
    return ", ".join(filter(None, [f"{rate(rung)} TFLOP/s", share(rung)]))


def _x(rung: Measurements) -> float:
    """Where a rate stands on the axis: at its left end if it is at most 1 TFLOP/s."""
    return ZERO + DECADE * max(math.log10(rung["tflops"]), 0.0)


PICTURES = {"ladder": ladder}
