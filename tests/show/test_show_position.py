"""show position: hands point where cos and sin of the package say, bars are as high as YaRN's speeds."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from dsv41_numba.config import FLASH
from dsv41_numba.ops.rope import freqs_table, rope_freqs, yarn_freqs
from dsv41_numba.show import draw
from dsv41_numba.show.position import RADIUS, RAMP_HEIGHT

SVG = "{http://www.w3.org/2000/svg}"


def parsed(name, **options):
    return ET.fromstring(draw(name, **options).svg())


@pytest.mark.parametrize("start_pos", [0, 1000])
def test_show_clock_hands_point_to_cos_and_sin(start_pos):
    root = parsed("clock", positions=3, start_pos=start_pos)
    cos, sin = freqs_table(rope_freqs(FLASH.rope_dim, FLASH.rope_theta), start_pos + np.arange(3))
    tips = [node for node in root.iter(f"{SVG}circle") if node.find(f"{SVG}title") is not None]
    hands = [node.get("d") for node in root.iter(f"{SVG}path") if node.get("class") == "stroke-blue"]
    assert len(tips) == len(hands) == 4 * 3
    for clock, hand in zip(tips, hands):
        pair, pos = map(int, re.match(r"pair (\d+) at position (\d+)", clock.find(f"{SVG}title").text).groups())
        x1, y1, x2, y2 = map(float, re.fullmatch(r"M (\S+) (\S+) L (\S+) (\S+)", hand).groups())
        assert (x1, y1) == (float(clock.get("cx")), float(clock.get("cy")))
        turned = np.array([x2 - x1, y1 - y2]) / RADIUS
        assert turned == pytest.approx([cos[pos - start_pos, pair], sin[pos - start_pos, pair]], abs=0.01 / RADIUS)


def test_show_yarn_bars_are_what_is_left_of_each_speed():
    c = FLASH
    plain = rope_freqs(c.rope_dim, c.compress_rope_theta)
    left = yarn_freqs(
        c.rope_dim, c.compress_rope_theta, c.original_seq_len, c.rope_factor, c.beta_fast, c.beta_slow
    ) / plain  # fmt: skip
    root = parsed("yarn")
    bars = [node for node in root.iter(f"{SVG}rect") if node.find(f"{SVG}title") is not None]
    assert len(bars) == len(plain) == 32
    assert [float(bar.get("height")) / RAMP_HEIGHT for bar in bars] == pytest.approx(left, abs=0.01 / RAMP_HEIGHT)
    colours = [bar.get("class").removeprefix("fill-") for bar in bars]
    assert [c == "green" for c in colours] == list(left == 1)
    divided = np.isclose(left, 1 / 16, rtol=1e-5)
    assert [c == "blue" for c in colours] == list(divided)
    assert root.find(f"{SVG}desc").text == (
        f"{(left == 1).sum()} pairs keep their speed, {colours.count('orange')} are mixed, "
        f"{divided.sum()} are divided by 16."
    )


def test_show_yarn_without_yarn_keeps_every_pair():
    root = parsed("yarn", original_seq_len=0, factor=16.0)
    assert root.find(f"{SVG}desc").text.startswith("32 pairs keep their speed, 0 are mixed, 0 ")
