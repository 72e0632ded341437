"""The ladder's chart and table, drawn from data/measurements.json: `python -m dsv41_numba.chart` refreshes both.

It rewrites data/ladder.svg and the block of README.md between `<!-- ladder -->` and `<!-- /ladder -->`. Nothing in them
is written by hand: a test holds both to the measurements.
"""

import json
import math
import pathlib
import sys
from typing import Any
from xml.sax.saxutils import escape

from dsv41_numba.data import data_dir

Measurements = dict[str, Any]  # data/measurements.json

BEGIN, END = "<!-- ladder -->", "<!-- /ladder -->"
CUBLAS = "cublas"
ADDS = {
    "plain": "16 x 16 tiles in shared memory",
    "fma": "8 x 8 sums in each thread's registers",
    "mma": "tensor cores; copies run ahead",
    "wgmma": "a copy engine feeds the tensor cores",
}

# The picture, in units of its viewBox. The axis is logarithmic: on a linear one the first rung would be 6 units long.
WIDTH, TOP, ROW, BAR = 820, 96, 58, 34
ZERO, DECADE, DECADES = 270, 150, 3  # where 1 TFLOP/s is, units for each factor of 10, and how many of them
RIGHT = ZERO + DECADE * DECADES
INSIDE = 230  # a bar from this length on has room for its own label
# A card with a background of its own: readable on any page, also where the page and the system differ on light or dark.
STYLE = """
  .card { fill: #ffffff; stroke: #d0d7de } .grid { stroke: #d8dee4 } .bar { fill: #2f6fb5 }
  .text { fill: #1f2328 } .quiet { fill: #59636e } .inside { fill: #ffffff }
  .beside { paint-order: stroke; stroke: #ffffff; stroke-width: 5 }
  .cublas { stroke: #b35900 } .cublas-text { fill: #954a00 }
  @media (prefers-color-scheme: dark) {
    .card { fill: #151b23; stroke: #3d444d } .grid { stroke: #2f3742 } .bar { fill: #3572b8 }
    .text { fill: #f0f6fc } .quiet { fill: #9198a1 } .beside { stroke: #151b23 }
    .cublas { stroke: #e0914d } .cublas-text { fill: #eba669 }
  }
"""


def ladder_svg(measurements: Measurements) -> str:
    """The rungs as bars, their rates on a logarithmic axis, cuBLAS as a line across them."""
    rungs, cublas = _rungs(measurements), _cublas(measurements)
    bottom = TOP + ROW * len(rungs)
    size = f"{measurements['ladder'][0]['size']}"
    title = f"bf16 matrix product, {size} x {size} x {size}: TFLOP/s of each rung"
    told = [f"{rung['rung']} {_labels(rung)}" for rung in rungs]
    if cublas:
        told.append(f"cuBLAS {_rate(cublas)} TFLOP/s")
    where = f"{_where(measurements)}. Logarithmic axis{'; percentages are of cuBLAS' if cublas else ''}."
    parts = [
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{bottom + 59}" rx="8"/>',
        _text(24, 36, title, "text", 17, "bold"),
        _text(24, 58, where, "quiet", 13),
    ]
    for power in range(DECADES + 1):
        x = ZERO + DECADE * power
        parts.append(f'<line class="grid" x1="{x}" y1="{TOP - 8}" x2="{x}" y2="{bottom}"/>')
        parts.append(_text(x, bottom + 20, f"{10**power}", "quiet", 13, anchor="middle"))
    parts.append(_text(RIGHT, bottom + 42, "TFLOP/s", "quiet", 13, anchor="middle"))
    for i, rung in enumerate(rungs):
        y = TOP + ROW * i
        parts.append(_text(24, y + 16, rung["rung"], "text", 15, "bold"))
        parts.append(_text(24, y + 35, ADDS[rung["rung"]], "quiet", 12.5))
        length = _x(rung) - ZERO
        parts.append(f'<rect class="bar" x="{ZERO}" y="{y + 5}" width="{length:.1f}" height="{BAR}" rx="3"/>')
        if length >= INSIDE:
            parts.append(_text(ZERO + length - 10, y + 27, _labels(rung), "inside", 14, "bold", "end"))
        else:
            parts.append(_text(ZERO + length + 8, y + 27, _labels(rung), "text beside", 14, "bold"))
    if cublas:
        at = f"{_x(cublas):.1f}"
        parts.append(
            f'<line class="cublas" x1="{at}" y1="{TOP - 8}" x2="{at}" y2="{bottom}" stroke-width="2" '
            'stroke-dasharray="6 4"/>'
        )
        parts.append(_text(_x(cublas), TOP - 15, f"cuBLAS {_rate(cublas)}", "cublas-text", 13.5, "bold", "middle"))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 60}" role="img" '
            'aria-labelledby="title description" font-family="system-ui, -apple-system, \'Segoe UI\', sans-serif">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="description">{escape("; ".join(told))}. {escape(where)}</desc>',
            f"<style>{STYLE}</style>",
            *parts,
            "</svg>\n",
        ]
    )


def ladder_table(measurements: Measurements) -> str:
    """The rungs as a Markdown table, with what they were measured on."""
    lines = ["| rung | what it adds | TFLOP/s | of cuBLAS | lines of code |", "|---|---|---:|---:|---:|"]
    for rung in _rungs(measurements):
        share = _share(rung) or "-"
        lines.append(f"| {rung['rung']} | {ADDS[rung['rung']]} | {_rate(rung)} | {share} | {rung['lines']} |")
    cublas, size = _cublas(measurements), measurements["ladder"][0]["size"]
    if cublas:
        lines.append(f"| cuBLAS | torch's product, for comparison | {_rate(cublas)} | 100 % | |")
    shared = " and ".join(f"{name} ({count})" for name, count in measurements["ladder_shared_lines"].items())
    return "\n".join(
        [
            *lines,
            "",
            f"{size} x {size} x {size} in bf16, {_where(measurements)}; measured in turns, each checked first.",
            f"Lines without docstrings, comments and blank lines; the rungs also share {shared}.",
        ]
    )


def ladder_block(measurements: Measurements) -> str:
    """What stands in README.md from the first marker to the last."""
    picture = "![The ladder: TFLOP/s of each rung on a logarithmic axis, and cuBLAS](data/ladder.svg)"
    return f"{BEGIN}\n{picture}\n\n{ladder_table(measurements)}\n{END}"


def with_block(readme: str, block: str) -> str:
    """The README with this block in place of its own. Raises ValueError when it has not both markers, once each."""
    begin, end = readme.find(BEGIN), readme.find(END)
    if readme.count(BEGIN) != 1 or readme.count(END) != 1 or end < begin:
        raise ValueError(f"README.md: expected {BEGIN} and after it {END}, once each")
    return readme[:begin] + block + readme[end + len(END) :]


def read(data: pathlib.Path) -> Measurements:
    """The measurements in a data folder. Raises ValueError when they have no ladder."""
    path = data / "measurements.json"
    measurements: Measurements = json.loads(path.read_text(encoding="utf-8"))
    if not measurements.get("ladder"):
        raise ValueError(f"{path}: expected a ladder, which `dsv41 bench` measures on compute capability 8.0 and up")
    return measurements


def refresh(data: pathlib.Path, readme: pathlib.Path) -> None:
    """Rewrite data/ladder.svg and the README's block from data/measurements.json."""
    measurements = read(data)
    text = with_block(readme.read_text(encoding="utf-8"), ladder_block(measurements))
    (data / "ladder.svg").write_text(ladder_svg(measurements), encoding="utf-8")
    readme.write_text(text, encoding="utf-8")


def _rungs(measurements: Measurements) -> list[Measurements]:
    return [rung for rung in measurements["ladder"] if rung["rung"] != CUBLAS and rung["tflops"] is not None]


def _cublas(measurements: Measurements) -> Measurements | None:
    return next((rung for rung in measurements["ladder"] if rung["rung"] == CUBLAS), None)


def _where(measurements: Measurements) -> str:
    """The GPU and the day."""
    return f"{measurements['machine']['gpu']}, {measurements['machine']['date'][:10]}"


def _rate(rung: Measurements) -> str:
    return f"{rung['tflops']:#.3g}".rstrip(".")


def _share(rung: Measurements) -> str:
    share = rung["share_of_cublas"]
    return "" if share is None else f"{100 * share:.{0 if share >= 0.1 else 1}f} %"


def _labels(rung: Measurements) -> str:
    return ", ".join(filter(None, [f"{_rate(rung)} TFLOP/s", _share(rung)]))


def _x(rung: Measurements) -> float:
    """Where a rate stands on the axis: at its left end if it is at most 1 TFLOP/s."""
    return ZERO + DECADE * max(math.log10(rung["tflops"]), 0.0)


def _text(x: float, y: float, text: str, kind: str, size: float, weight: str = "normal", anchor: str = "start") -> str:
    return (
        f'<text class="{kind}" x="{x:g}" y="{y:g}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )


if __name__ == "__main__":
    try:
        refresh(data_dir(), data_dir().parent / "README.md")
    except (OSError, ValueError) as error:
        sys.exit(f"dsv41_numba.chart: {error}")
