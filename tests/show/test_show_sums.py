"""show sums and show errors: boxes hold what threads held, bars what NumPy counts."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from dsv41_numba.show import draw
from dsv41_numba.show.errors import relative_errors

SVG = "{http://www.w3.org/2000/svg}"


def tips(name, **options):
    root = ET.fromstring(draw(name, **options).svg())
    return root, [node.text for node in root.iter(f"{SVG}title")][1:]  # the first is the picture's


def held(found, pattern):
    """(level, thread) -> number, from tips."""
    matches = (re.match(pattern, tip) for tip in found)
    return {(int(m[1]), int(m[2])): float(m[3]) for m in matches if m}


@pytest.mark.parametrize("threads, columns", [(8, 20), (4, 3), (2, 9), (16, 50)])
@pytest.mark.parametrize("name", ["tree", "butterfly"])
def test_show_sums_levels_add_up_the_row_of_the_picture(name, threads, columns):
    root, found = tips(name, threads=threads, columns=columns)
    row = np.array([float(re.search(r"= (\S+),", tip)[1]) for tip in found if tip.startswith("x[")])
    owners = [int(re.search(r"of thread (\d+)", tip)[1]) for tip in found if tip.startswith("x[")]
    assert len(row) == columns and owners == [d % threads for d in range(columns)]
    sums = np.array([(row[t::threads] ** 2).sum() for t in range(threads)])
    numbers = held(found, r"level (\d+), (?:partial\[|lane )(\d+)\]? = ([^,\s]+)")
    half, level = threads // 2, 1
    while half:
        if name == "tree":
            sums[:half] += sums[half : 2 * half]
        else:
            sums = sums + sums[np.arange(threads) ^ half]
        assert [numbers[level, t] for t in range(threads)] == sums.tolist()
        half, level = half // 2, level + 1
    assert sums[0] == (row**2).sum() and len(numbers) == (level - 1) * threads
    assert root.find(f"{SVG}desc").text.endswith(f"the sum is {sums[0]:g}.")


def test_show_tree_marks_what_is_left_from_the_level_above():
    _, found = tips("tree", threads=8)
    left = {(int(m[1]), int(m[2])) for tip in found if (m := re.match(r"level (\d+), partial\[(\d+)\].*left", tip))}
    assert left == {(level, t) for level in (1, 2, 3) for t in range(8 >> level, 8)}


def test_show_sums_refuses_threads_that_are_no_power_of_two():
    with pytest.raises(ValueError, match="threads: expected a power of two from 2 to 32, got 6"):
        draw("tree", threads=6)
    with pytest.raises(ValueError, match="columns: expected at least 1, got 0"):
        draw("butterfly", columns=0)


def test_show_errors_bars_count_every_number_once():
    root, found = tips("errors", numbers=5000, seed=1)
    for name, errors in zip(("rounded", "cut"), relative_errors(5000, 1)):
        bars = [int(tip.rpartition(" ")[2]) for tip in found if tip.startswith(name)]
        assert sum(bars) == len(errors) == 5000
    text = root.find(f"{SVG}desc").text
    nearest, cut = (float(number) for number in re.findall(r"at most (\S+) x", text))
    assert nearest <= 1 < cut <= 2  # half a step of rounding, a whole one of cutting


def test_show_errors_rounding_is_even_and_cutting_is_not():
    rounded, cut = relative_errors(100_000, 0)
    assert np.abs(rounded).max() <= 2.0**-8 and cut.max() <= 0
    assert abs(rounded.mean()) < 2.0**-15 and cut.mean() < -(2.0**-10)
