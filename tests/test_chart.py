"""chart: the picture and the table of the ladder say what the measurements say."""

import copy
import json
import pathlib
import re
import xml.etree.ElementTree as ET

import pytest

from dsv41_numba.chart import BEGIN, END, ladder_block, ladder_table, refresh, with_block
from dsv41_numba.show import draw
from dsv41_numba.show.ladder import ADDS, CUBLAS, DECADE, ladder_picture, read

ROOT = pathlib.Path(__file__).parent.parent
SVG = "{http://www.w3.org/2000/svg}"
MEASURED = {
    "machine": {"gpu": "Made-up <GPU> & sons", "date": "2031-02-03T04:05:06+00:00"},
    "ladder_shared_lines": {"tuned/operands.py": 38, "tuned/ptx.py": 183},
    "ladder": [
        {"rung": "plain", "size": 4096, "tflops": 7.7241, "share_of_cublas": 0.0097, "lines": 44},
        {"rung": "fma", "size": 4096, "tflops": 23.24, "share_of_cublas": 0.02925, "lines": 56},
        {"rung": "mma", "size": 4096, "tflops": 305.21, "share_of_cublas": 0.3841, "lines": 127},
        {"rung": "wgmma", "size": 4096, "tflops": 809.1, "share_of_cublas": 1.0184, "lines": 325},
        {"rung": "cublas", "size": 4096, "tflops": 794.5, "share_of_cublas": 1.0, "lines": None},
    ],
}


def without_torch():
    measured = copy.deepcopy(MEASURED)
    del measured["ladder"][-1]
    for rung in measured["ladder"]:
        rung["share_of_cublas"] = None
    return measured


def ladder_svg(measured):
    return ladder_picture(measured).svg()


def texts(svg):
    return ["".join(node.itertext()) for node in ET.fromstring(svg).iter(f"{SVG}text")]


def bars(svg):
    """Lengths of the bars, from the lowest rung to the highest."""
    rects = ET.fromstring(svg).iter(f"{SVG}rect")
    return [float(node.get("width")) for node in rects if node.get("class") == "fill-blue"]


def test_chart_labels_every_bar_with_its_rate_and_share():
    said = texts(ladder_svg(MEASURED))
    for label in (
        "7.72 TFLOP/s, 1.0 %",
        "23.2 TFLOP/s, 2.9 %",
        "305 TFLOP/s, 38 %",
        "809 TFLOP/s, 102 %",
        "cuBLAS 794",
    ):
        assert label in said, label
    assert "bf16 matrix product, 4096 x 4096 x 4096: TFLOP/s of each rung" in said
    assert "Made-up <GPU> & sons, 2031-02-03. Logarithmic axis; percentages are of cuBLAS." in said


def test_chart_bars_are_as_long_as_the_logarithm_of_their_rates():
    plain, fma, mma, wgmma = bars(ladder_svg(MEASURED))
    assert plain == pytest.approx(DECADE * 0.8878, abs=0.1)
    assert wgmma - plain == pytest.approx(DECADE * 2.0202, abs=0.1) and plain < fma < mma < wgmma
    slow = copy.deepcopy(MEASURED)
    slow["ladder"][0]["tflops"] = 0.25  # left of the axis
    assert bars(ladder_svg(slow))[0] == 0


def test_chart_stays_inside_its_view_box_and_needs_nothing_from_elsewhere():
    svg = ladder_svg(MEASURED)
    root = ET.fromstring(svg)
    _, _, width, height = map(float, root.get("viewBox").split())
    for node in root.iter():
        x, y = (float(node.get(name, 0)) for name in "xy")
        assert 0 <= x + float(node.get("width", 0)) <= width and 0 <= y + float(node.get("height", 0)) <= height
        for x, y in re.findall(r"(\S+) (\S+?)(?: [A-Z]|$)", (node.get("d") or "").removeprefix("M ")):
            assert 0 <= float(x.split()[-1]) <= width and 0 <= float(y) <= height
    assert not re.search(r"url\(|@import|href|<script", svg)
    assert svg.count("http") == 1  # the name space


def test_chart_is_readable_on_light_and_on_dark():
    svg = ladder_svg(MEASURED)
    assert "@media (prefers-color-scheme: dark)" in svg and 'class="fill-paper" width="760"' in svg
    drawn = svg[svg.index("</style>") :]
    assert not re.search(r"#[0-9a-f]{3,6}\b|rgb\(", drawn), "a colour that does not follow light and dark"


def test_chart_is_told_in_words_too():
    root = ET.fromstring(ladder_svg(MEASURED))
    title, description = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert root.get("role") == "img" and root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
    assert description.text.startswith("plain 7.72 TFLOP/s, 1.0 %; fma ") and "cuBLAS 794 TFLOP/s" in description.text


def test_chart_knows_every_rung_of_the_bench():
    from dsv41_numba.bench import ladder

    assert ADDS.keys() == ladder.SOURCES.keys() and CUBLAS == ladder.CUBLAS


def test_chart_table_has_a_row_a_rung():
    lines = ladder_table(MEASURED).splitlines()
    assert lines[2] == "| plain | 16 x 16 tiles in shared memory | 7.72 | 1.0 % | 44 |"
    assert lines[5].startswith("| wgmma | ") and lines[5].endswith(" | 809 | 102 % | 325 |")
    assert lines[6] == "| cuBLAS | torch's product, for comparison | 794 | 100 % | |"
    assert lines[8].startswith("4096 x 4096 x 4096 in bf16, Made-up <GPU> & sons, 2031-02-03;")
    assert "tuned/operands.py (38) and tuned/ptx.py (183)" in lines[9]


def test_chart_does_without_cublas_and_without_a_rung():
    measured = without_torch()
    assert not any("cuBLAS" in text for text in texts(ladder_svg(measured)))
    assert "7.72 TFLOP/s" in texts(ladder_svg(measured))
    assert ladder_table(measured).splitlines()[2].endswith("| 7.72 | - | 44 |")
    del measured["ladder"][3]
    measured["ladder"][2]["tflops"] = None  # its check failed
    assert len(bars(ladder_svg(measured))) == 2 and "mma" not in ladder_table(measured)


def test_chart_block_replaces_what_was_between_the_markers():
    readme = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    text = with_block(readme, ladder_block(MEASURED))
    assert text.startswith(f"before\n{BEGIN}\n![") and text.endswith(f"\n{END}\nafter\n") and "old" not in text
    assert with_block(text, ladder_block(MEASURED)) == text
    for wrong in ("no markers", f"{END} {BEGIN}", f"{BEGIN} {BEGIN} {END}", BEGIN):
        with pytest.raises(ValueError, match=r"README.md: expected <!-- ladder --> and after it <!-- /ladder -->"):
            with_block(wrong, "block")


def test_chart_refresh_writes_both_or_neither(tmp_path):
    readme = tmp_path / "README.md"
    (tmp_path / "measurements.json").write_text('{"ladder": []}')
    with pytest.raises(ValueError, match="expected a ladder"):
        refresh(tmp_path, readme)
    (tmp_path / "measurements.json").write_text(json.dumps(MEASURED))
    readme.write_text("no markers")
    with pytest.raises(ValueError, match="README"):
        refresh(tmp_path, readme)
    assert not (tmp_path / "ladder.svg").exists()
    readme.write_text(f"{BEGIN}{END}")
    refresh(tmp_path, readme)
    assert (tmp_path / "ladder.svg").read_text() == ladder_svg(MEASURED)
    assert readme.read_text() == ladder_block(MEASURED)


@pytest.mark.skipif(not (ROOT / "data" / "measurements.json").exists(), reason="nothing has been measured yet")
def test_chart_in_the_readme_is_what_was_measured():
    """If this fails after a measurement: python -m dsv41_numba.chart"""
    measured, readme = read(ROOT / "data"), (ROOT / "README.md").read_text(encoding="utf-8")
    assert with_block(readme, ladder_block(measured)) == readme
    assert (ROOT / "data" / "ladder.svg").read_text(encoding="utf-8") == ladder_svg(measured)
    assert draw("ladder").svg() == ladder_svg(measured)
