"""show bits: what the pictures say of a number is what formats/ says, and every code and many roundings are tried."""

import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from dsv41_numba.formats import bf16, e2m1, e4m3, e8m0
from dsv41_numba.show import draw
from dsv41_numba.show.bits import FORMATS, candidates, formula, kept_bits, neighbours, why

SVG = "{http://www.w3.org/2000/svg}"
PARTS = {"bf16": (1, 8, 7), "e4m3": (1, 4, 3), "e2m1": (1, 2, 1), "e8m0": (0, 8, 0)}
DECODE = {"bf16": bf16.bf16_to_f32, "e4m3": e4m3.e4m3_to_f32, "e2m1": e2m1.e2m1_to_f32, "e8m0": e8m0.e8m0_to_f32}
ENCODE = {"bf16": bf16.f32_to_bf16, "e4m3": e4m3.f32_to_e4m3, "e2m1": e2m1.f32_to_e2m1, "e8m0": e8m0.f32_to_e8m0}
LANDMARKS = {
    "bf16": [0x3F80, 0xBF80, 0x7F7F, 0x0001, 0x7F80, 0x7FC0, 0x8000, 0x0080],
    "e4m3": range(256),
    "e2m1": range(16),
    "e8m0": range(256),
}
VALUES = [0.1, -0.1, 1.0, 2.5, 3.5, 5.0, 0.25, 0.75, 448.0, 464.0, 1000.0, 0.007, 2.0**-10, 2.0**-11, 3e38, -0.0, 1e-40]


def decoded(format, codes):
    return DECODE[format](np.asarray(codes, np.uint16 if format == "bf16" else np.uint8))


def encoded(format, value):
    return int(ENCODE[format](np.array([value], np.float32))[0])


def parsed(name, **options):
    root = ET.fromstring(draw(name, **options).svg())
    texts = [node.text for node in root.iter(f"{SVG}text")]
    tips = [node.text for node in root.iter(f"{SVG}title")][1:]  # the first is the picture's
    return root, texts, tips


@pytest.mark.parametrize("format", FORMATS)
def test_show_byte_has_the_bits_fields_and_value_of_the_code(format):
    sign, exponent, mantissa = PARTS[format]
    bits = sign + exponent + mantissa
    for code in LANDMARKS[format]:
        root, texts, _ = parsed("byte", format=format, code=code)
        value = float(decoded(format, [code])[0])
        assert texts[1 : 2 * bits + 1 : 2] == [str(place) for place in range(bits - 1, -1, -1)]
        assert "".join(texts[2 : 2 * bits + 1 : 2]) == f"{code:0{bits}b}"
        cells = [node for node in root.iter(f"{SVG}rect") if node.find(f"{SVG}title") is not None]
        fields = [cell.find(f"{SVG}title").text.split(": ")[1] for cell in cells]
        assert fields == ["sign"] * sign + ["exponent"] * exponent + ["mantissa"] * mantissa
        written = root.find(f"{SVG}desc").text
        s, e, m = map(int, re.search(r"sign (\d+), exponent (\d+), mantissa (\d+)", written).groups())
        assert code == (s << (exponent + mantissa)) | (e << mantissa) | m
        shown = float(written.rpartition(" ")[2])
        assert shown == pytest.approx(value, rel=1e-5, abs=0, nan_ok=True)
        assert math.isnan(value) or math.copysign(1, shown) == math.copysign(1, value)


@pytest.mark.parametrize("format", FORMATS)
def test_show_byte_formula_gives_the_value_of_every_code(format):
    codes = np.arange(0, 1 << sum(PARTS[format]), 7 if format == "bf16" else 1)
    for code, value in zip(codes, decoded(format, codes)):
        text = formula(format, int(code))
        if not math.isfinite(value):
            assert ("not a number" if math.isnan(value) else "infinity") in text
            continue
        sum_of = re.sub(r"2\^", "2.0 ** ", text.partition("=")[0].partition(",")[0].replace("x", "*"))
        result = eval(sum_of)
        assert result == value and math.copysign(1, result) == math.copysign(1, value)


@pytest.mark.parametrize("format", FORMATS)
def test_show_byte_neighbours_are_the_next_values_of_the_format(format):
    codes = np.arange(1 << sum(PARTS[format]))
    values = decoded(format, codes)
    ordered = sorted({float(v) for v in values if math.isfinite(v)})
    for code in LANDMARKS[format]:
        value = float(values[code])
        if math.isfinite(value):
            around = neighbours(format, code)
            at = ordered.index(value)
            assert [v for _, v in around] == ordered[max(at - 2, 0) : at + 3]
            assert all(float(values[c]) == v for c, v in around) and code in [c for c, _ in around]
            _, _, tips = parsed("byte", format=format, code=code)
            assert len(tips) == sum(PARTS[format]) + len(around)


@pytest.mark.parametrize("format", FORMATS)
def test_show_rounding_goes_where_the_encoder_goes(format):
    rng = np.random.default_rng(3)
    values = VALUES + [float(v) for v in np.float32(rng.standard_normal(20) * 2.0 ** rng.integers(-12, 9, 20))]
    for value in (v for v in values if format != "e8m0" or 0 < v < 2**127):
        root, texts, _ = parsed("rounding", format=format, value=value)
        code, exact = encoded(format, value), float(np.float32(value))
        got = float(decoded(format, [code])[0])
        written = root.find(f"{SVG}desc").text
        assert int(re.search(rf"to {format} 0x([0-9A-F]+)", written)[1], 16) == code
        digits = "".join(text for text in texts[1:] if text in ("0", "1"))[:32]
        assert digits == f"{np.float32(value).view(np.uint32):032b}"
        both = [v for _, v in candidates(format, exact)]
        assert got in both or math.isinf(got)
        if len(both) == 2:
            assert both[0] < exact < both[1]
            rule = why(format, exact)
            if format != "e8m0":
                distance = [abs(exact - v) for v in both]
                assert ("exactly half" in rule) == (distance[0] == distance[1])
                assert got == both[distance.index(min(distance))] or distance[0] == distance[1]
                assert ("up" in rule.split(": ")[1]) == (abs(got) > abs(exact))


@pytest.mark.parametrize("format", ["bf16", "e4m3", "e2m1"])
def test_show_rounding_marks_the_bit_whose_weight_is_half_a_step(format):
    for value in (0.1, 1.1, 3.3, 5.3, 0.007, 0.3):
        low, high = (v for _, v in candidates(format, float(np.float32(value))))
        exponent = math.frexp(value)[1] - 1
        assert 2.0 ** (exponent - kept_bits(FORMATS[format], value) - 1) == (high - low) / 2


def test_show_rounding_marks_l_r_and_the_tail():
    _, texts, _ = parsed("rounding", format="bf16", value=0.1)
    letters = [text for text in texts if text in ("L", "R", "T")]
    assert letters == ["L", "R"] + ["T"] * 15
    _, texts, _ = parsed("rounding", format="e8m0", value=0.1)
    assert [text for text in texts if text in ("L", "R", "T")] == ["T"] * 23


def test_show_bits_refuses_what_a_format_does_not_have():
    for options, message in (
        ({"format": "f32"}, "format: expected one of bf16"),
        ({"format": "e2m1", "code": 16}, "code: expected 0 to 15 for e2m1, got 16"),
    ):
        with pytest.raises(ValueError, match=message):
            draw("byte", **options)
    with pytest.raises(ValueError, match="value: expected a number that float32 holds"):
        draw("rounding", value=1e39)
    with pytest.raises(ValueError, match="value: expected 0 to 2"):
        draw("rounding", format="e8m0", value=-1.0)
