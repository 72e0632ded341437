"""show roofline: marks stand where the measurements say, under the measured ceilings."""

import math
import re
import xml.etree.ElementTree as ET

import pytest

from dsv41_numba.data import data_dir
from dsv41_numba.show import draw
from dsv41_numba.show.ladder import read
from dsv41_numba.show.roofline import points, roof

SVG = "{http://www.w3.org/2000/svg}"
TIP = re.compile(r"(.+), (plain|tuned|torch): (\S+) TFLOP/s, (\S+) % of the roof")
CASES = ["prefill 2048", "decode"]


def marks(case):
    """(op, who) -> (TFLOP/s, share of the roof in %) of every mark, by its tip."""
    root = ET.fromstring(draw("roofline", case=case).svg())
    tips = [TIP.fullmatch(tip.text) for tip in root.iter(f"{SVG}title")]
    return {(tip[1], tip[2]): (float(tip[3]), float(tip[4])) for tip in tips if tip}


@pytest.mark.parametrize("case", CASES)
def test_show_roofline_has_a_mark_for_every_measured_product(case):
    measured = read(data_dir())
    found, names = marks(case), (case, "decode 131072") if case == "decode" else (case,)
    rows = [r for r in measured["results"] if r["case"] in names and r["kind"] == "kernel" and r["flops"] and r["ms"]]
    expected = {(r["op"], r["ops"]): r["flops"] / (1e9 * r["ms"]) for r in rows}
    assert {key: rate for key, (rate, _) in found.items() if key[1] != "torch"} == pytest.approx(expected, rel=0.01)
    for row in rows:
        least = 100 * row["floor_ms"] / row["ms"]  # the floor is the roof, as a time
        assert found[row["op"], row["ops"]][1] == pytest.approx(least, rel=0.02)


@pytest.mark.parametrize("case", CASES)
def test_show_roofline_names_every_op(case):
    root = ET.fromstring(draw("roofline", case=case).svg())
    texts = [node.text for node in root.iter(f"{SVG}text")]
    assert all(point.op.removeprefix("linear ") in texts for point in points(read(data_dir()), case))


def test_show_roofline_roof_is_the_lower_of_both_ceilings():
    measured = {"ceilings": {"copy_gbs": 4000.0, "matrix_tflops": 800.0}}
    assert roof(measured, 1) == 4 and roof(measured, 200) == 800 and roof(measured, 1e6) == 800


def test_show_roofline_marks_are_on_logarithmic_axes():
    """Two marks of one op differ in height by the logarithm of their rates alone."""
    root = ET.fromstring(draw("roofline").svg())
    heights = {}
    for node in root.iter(f"{SVG}circle"):
        if (title := node.find(f"{SVG}title")) is not None and (tip := TIP.fullmatch(title.text)):
            heights[tip[1], tip[2]] = (float(node.get("cy")), float(tip[3]))
    scales = set()
    for (op, who), (height, rate) in heights.items():
        if who == "plain" and (op, "torch") in heights:
            other, faster = heights[op, "torch"]
            scales.add(round((height - other) / math.log10(faster / rate)))
    assert len(scales) == 1 and scales.pop() > 100


def test_show_roofline_refuses_what_was_not_measured():
    with pytest.raises(ValueError, match="case: expected a call that was measured"):
        draw("roofline", case="prefill 3")
