"""The ladder's chart and table: `python -m dsv41_numba.chart` refreshes both from data/measurements.json.

It rewrites data/ladder.svg, which `show.ladder` draws, and the block of README.md between `<!-- ladder -->` and
`<!-- /ladder -->`. Nothing in them is written by hand: a test holds both to the measurements.
"""

import pathlib
import sys

from dsv41_numba.data import data_dir
from dsv41_numba.show.ladder import (
    ADDS,
    Measurements,
    cublas_of,
    ladder_picture,
    measured_rungs,
    rate,
    read,
    share,
    where,
)

BEGIN, END = "<!-- ladder -->", "<!-- /ladder -->"


def ladder_table(measurements: Measurements) -> str:
    """The rungs as a Markdown table, with what they were measured on."""
    lines = ["| rung | what it adds | TFLOP/s | of cuBLAS | lines of code |", "|---|---|---:|---:|---:|"]
    for rung in measured_rungs(measurements):
        of_cublas = share(rung) or "-"
        lines.append(f"| {rung['rung']} | {ADDS[rung['rung']]} | {rate(rung)} | {of_cublas} | {rung['lines']} |")
    cublas, size = cublas_of(measurements), measurements["ladder"][0]["size"]
    if cublas:
        lines.append(f"| cuBLAS | torch's product, for comparison | {rate(cublas)} | 100 % | |")
    shared = " and ".join(f"{name} ({count})" for name, count in measurements["ladder_shared_lines"].items())
    return "\n".join(
        [
            *lines,
            "",
            f"{size} x {size} x {size} in bf16, {where(measurements)}; measured in turns, each checked first.",
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


def refresh(data: pathlib.Path, readme: pathlib.Path) -> None:
    """Rewrite data/ladder.svg and the README's block from data/measurements.json."""
    measurements = read(data)
    text = with_block(readme.read_text(encoding="utf-8"), ladder_block(measurements))
    (data / "ladder.svg").write_text(ladder_picture(measurements).svg(), encoding="utf-8")
    readme.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    try:
        refresh(data_dir(), data_dir().parent / "README.md")
    except (OSError, ValueError) as error:
        sys.exit(f"dsv41_numba.chart: {error}")
