"""The bit explorer gives the bits that the package gives, in Node and in a browser, and its page shows them."""

import json
import pathlib
import re
import shutil
import subprocess

import numpy as np
import pytest

from dsv41_numba.formats.bf16 import BF16, as_bf16, bf16_to_f32, f32_to_bf16
from dsv41_numba.formats.e2m1 import e2m1_to_f32, f32_to_e2m1
from dsv41_numba.formats.e4m3 import e4m3_to_f32, f32_to_e4m3
from dsv41_numba.formats.e8m0 import e8m0_to_f32, f32_to_e8m0
from dsv41_numba.ops.quant_fp4 import (
    fp4_quantise_e4m3_ref,
    fp4_quantise_e8m0_ref,
    fp4_round_trip_e4m3_ref,
    fp4_round_trip_e8m0_ref,
)
from dsv41_numba.ops.quant_fp8 import fp8_quantise_ref, fp8_round_trip_ref
from dsv41_numba.pages.execute import TUTORIALS
from dsv41_numba.show.svg import STYLE

SCRIPT = TUTORIALS / "assets" / "bits.js"
FORMATS = {
    "bf16": (16, f32_to_bf16, bf16_to_f32),
    "e4m3": (8, f32_to_e4m3, e4m3_to_f32),
    "e8m0": (8, f32_to_e8m0, e8m0_to_f32),
    "e2m1": (4, f32_to_e2m1, e2m1_to_f32),
}
KINDS = {
    "fp8": (32, fp8_quantise_ref, fp8_round_trip_ref),
    "fp4 e8m0": (32, fp4_quantise_e8m0_ref, fp4_round_trip_e8m0_ref),
    "fp4 e4m3": (16, fp4_quantise_e4m3_ref, fp4_round_trip_e4m3_ref),
}
# numbers go in and out as the bits of a float32, so that -0, infinity and NaN survive the way
HELPERS = """
const view = new DataView(new ArrayBuffer(4));
const number = (bits) => (view.setUint32(0, bits), view.getFloat32(0));
const bits = (value) => (view.setFloat32(0, value), view.getUint32(0));
const calls = {
  encode: ([format, values]) => values.map((value) => dsv41Bits.formats[format].encode(number(value))),
  decode: ([format, codes]) => codes.map((code) => bits(dsv41Bits.formats[format].decode(code))),
  quantise: ([kind, blocks]) => blocks.map((block) => {
    const made = dsv41Bits.quantise(kind, block);
    return { ...made, amax: bits(made.amax), scale: bits(made.scale) };
  }),
  parse: ([texts]) => texts.map((text) => {
    const value = dsv41Bits.parse(text);
    return value === undefined ? null : bits(value);
  }),
  text: ([values]) => values.map((value) => dsv41Bits.text(number(value))),
  textBf16: ([patterns]) => patterns.map((pattern) => dsv41Bits.textBf16(pattern)),
};
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A page with the explorer's own lines of bits.md, and nothing else."""
    text = (TUTORIALS / "bits.md").read_text(encoding="utf-8")
    lines = re.findall(r"^<(?:link|div|script).*$", text, re.MULTILINE)
    assert len(lines) == 4, "a style sheet, two places, a script"
    path = tmp_path_factory.mktemp("bits") / "bits.html"
    head = (
        f'<meta charset="utf-8"><base href="{TUTORIALS.as_uri()}/"><meta name="viewport" content="width=device-width">'
    )
    path.write_text(f"<!doctype html>{head}<style>{STYLE}</style>" + "\n".join(lines), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def page(browser, address):
    context = browser.new_context(viewport={"width": 390, "height": 900})
    opened = context.new_page()
    opened.set_default_timeout(10_000)
    troubles = []
    opened.on("console", lambda message: message.type == "error" and troubles.append(message.text))
    opened.on("pageerror", lambda error: troubles.append(str(error)))
    opened.on("request", lambda r: r.url.startswith("file:") or troubles.append(f"another host: {r.url}"))
    opened.goto(address)
    yield opened
    context.close()
    assert troubles == []


@pytest.fixture(scope="module", params=["node", "chromium"])
def call(request, tmp_path_factory):
    """Calls a function of HELPERS with the explorer's script: by name, with arguments."""
    if request.param == "node":
        node = shutil.which("node")
        if not node:
            pytest.skip("needs node on PATH")
        path = tmp_path_factory.mktemp("node") / "call.js"
        path.write_text(
            f"require({json.dumps(str(SCRIPT))}); {HELPERS}"
            "const [name, given] = JSON.parse(require('fs').readFileSync(0, 'utf8'));"
            "process.stdout.write(JSON.stringify(calls[name](given)));"
        )

        def run(name, *given):
            done = subprocess.run([node, str(path)], input=json.dumps([name, given]), capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout)

        yield run
        return
    opened = request.getfixturevalue("browser").new_page()
    opened.goto(request.getfixturevalue("address"))
    script = (
        f"(text) => {{ {HELPERS} const [name, given] = JSON.parse(text); return JSON.stringify(calls[name](given)); }}"
    )
    yield lambda name, *given: json.loads(opened.evaluate(script, json.dumps([name, given])))
    opened.close()


def f32_bits(values):
    return np.ascontiguousarray(values, np.float32).view(np.uint32)


def hard_values(rng):
    """float32: every code of every format, what lies half way between neighbours, a step beside, and any bits."""
    values = []
    for width, _, decode in FORMATS.values():
        held = decode(np.arange(1 << width).astype(np.uint16 if width == 16 else np.uint8))
        held = np.unique(held[np.isfinite(held)]).astype(np.float64)
        if width == 16:
            held = rng.choice(held, 5000)
        with np.errstate(over="ignore"):
            values += [held, ((held[1:] + held[:-1]) / 2)]
    values = np.concatenate(values).astype(np.float32)
    with np.errstate(over="ignore"):
        beside = [np.nextafter(values, np.float32(to)) for to in (np.inf, -np.inf)]
    bits = rng.integers(0, 1 << 32, 20000, dtype=np.uint32).view(np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 465, 1000, -1000, 1e-45, -1e-45], np.float32)
    values = np.concatenate([values, *beside, bits, special])
    return np.where(np.isnan(values), np.float32(np.nan), values)  # a number of JavaScript has no NaN with a sign


@pytest.mark.parametrize("format", FORMATS)
def test_bits_decode_every_code_as_the_package_does(call, format):
    width, _, decode = FORMATS[format]
    codes = np.arange(1 << width).astype(np.uint16 if width == 16 else np.uint8)
    expected, got = decode(codes), np.array(call("decode", format, codes.tolist()), np.uint32).view(np.float32)
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(got), nan)
    assert np.array_equal(f32_bits(got)[~nan], f32_bits(expected)[~nan])


@pytest.mark.parametrize("format", FORMATS)
def test_bits_encode_hard_values_as_the_package_does(call, rng, format):
    values, (_, encode, _) = hard_values(rng), FORMATS[format]
    if format == "e2m1":  # the package refuses a NaN
        values = values[~np.isnan(values)]
    got = np.array(call("encode", format, f32_bits(values).tolist()))
    wrong = np.flatnonzero(got != encode(values))
    assert wrong.size == 0, [(float(values[i]), hex(got[i])) for i in wrong[:5]]


def blocks(rng, length):
    """bf16 patterns [n, length]: sizes far apart, exact ties, all kinds of ends, and any bits."""
    wide = rng.standard_normal((400, length)) * np.exp2(rng.integers(-135, 127, (400, 1)))
    spread = rng.standard_normal((200, length)) * np.exp2(rng.integers(-20, 20, (200, length)))
    ties = rng.choice([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6, 448, 8.5, 9.5, -0.0], (100, length))
    ties = ties * rng.choice([-1, 1], ties.shape) * np.exp2(rng.integers(-12, 12, (100, 1)))
    # every e4m3 scale with ties of it: times the reciprocal some of them would be ties no longer
    scales = e4m3_to_f32(np.arange(1, 0x7F, dtype=np.uint8))[:, None]
    of_scale = scales * np.resize([6, 0.25, -0.75, 1.25, 1.75, -2.5, 3.5, 5], length)
    with np.errstate(over="ignore"):
        numbers = [as_bf16(part.astype(np.float32)).view(np.uint16) for part in (wide, spread, ties, of_scale)]
    powers = np.zeros((255, length), np.uint16)
    powers[:, 3], powers[:, 5] = np.arange(255) << 7, np.arange(255) << 7 | 0x8001
    powers[254] = 0
    special = np.zeros((6, length), np.uint16)
    special[:, 1], special[:, 2] = [0, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0x7F7F], 0x4040
    return np.concatenate([*numbers, powers, special, rng.integers(0, 1 << 16, (300, length)).astype(np.uint16)])


@pytest.mark.parametrize("kind", KINDS)
def test_bits_quantise_blocks_as_the_package_does(call, rng, kind):
    length, quantise, round_trip = KINDS[kind]
    patterns = blocks(rng, length)
    x = patterns.view(BF16)
    with np.errstate(invalid="ignore"):  # of signalling NaNs
        codes, scales = quantise(x)
        back = round_trip(x).view(np.uint16)
    amax = np.abs(x.astype(np.float32)).max(-1)
    decode = FORMATS["e4m3" if kind == "fp4 e4m3" else "e8m0"][2]
    made = call("quantise", kind, patterns.tolist())
    for r, got in enumerate(made):
        assert got["scaleCode"] == scales[r, 0], r
        assert got["codes"] == codes[r].tolist(), r
        nan = np.isnan(back[r].view(BF16).astype(np.float32))
        assert np.array_equal(np.where(nan, 0x7FC0, back[r]), got["back"]), r
        for name, expected in (("amax", amax[r]), ("scale", decode(scales[r])[0])):
            value = np.array(got[name], np.uint32).view(np.float32)
            assert value == expected or (np.isnan(value) and np.isnan(expected)), (r, name)


def test_bits_texts_read_back_to_the_same_number(call, rng):
    values = hard_values(rng)[::7]
    values = values[np.isfinite(values)]
    texts = call("text", f32_bits(values).tolist())
    assert np.array_equal(f32_bits([float(text) for text in texts]), f32_bits(values))
    assert call("parse", texts) == f32_bits(values).tolist()
    patterns = np.arange(0x7F80, dtype=np.uint16)[::11]
    short = np.array([float(text) for text in call("textBf16", patterns.tolist())], np.float32)
    assert np.array_equal(f32_to_bf16(short), patterns)


def test_bits_parse_what_people_type(call):
    typed = {"0.3": 0.3, " -1e-5 ": -1e-5, ".5": 0.5, "2.": 2.0, "2^-9": 2.0**-9, "-2^3": -8.0, "INF": np.inf,
             "-inf": -np.inf, "-0": -0.0, "+7": 7.0, "1e99": np.inf}  # fmt: skip
    with np.errstate(over="ignore"):
        expected = [int(f32_bits([np.float32(value)])[0]) for value in typed.values()]
    assert call("parse", list(typed)) == expected
    assert np.isnan(np.array(call("parse", ["nan"]), np.uint32).view(np.float32))
    assert call("parse", ["", "one", "0x10", "1,5", "--1", "1e", "2^", "."]) == [None] * 8


# -- the page ----------------------------------------------------------------------------------------------------------
SHOWN = """() => [...document.querySelectorAll("[data-format]")].map((card) => ({
    format: card.dataset.format,
    line: card.querySelector("output").innerText,
    bits: [...card.querySelectorAll("button")].map((button) => button.innerText).join(""),
    pressed: [...card.querySelectorAll("button")].map((button) => button.ariaPressed === "true" ? "1" : "0").join(""),
}))"""
SHOWN_BLOCK = """() => ({
    line: document.querySelector(".bits-line output").innerText,
    bits: [...document.querySelectorAll(".bits-scale span")].map((bit) => bit.innerText).join(""),
    boxes: [...document.querySelectorAll(".bits-cell")].filter((box) => box.offsetParent).map(
        (box) => [...box.querySelectorAll("span")].map((part) => part.innerText)),
})"""


def shown(page):
    """format -> (code, value) as the cards show them."""
    cards = {}
    for card in page.evaluate(SHOWN):
        code, _, value = card["line"].partition(" = ")
        assert card["pressed"] == card["bits"] and int(card["bits"], 2) == int(code, 16)
        cards[card["format"]] = int(code, 16), np.float32(value)
    return cards


def shown_block(page):
    """scale code, and of each box the number, its code and what is read back."""
    block = page.evaluate(SHOWN_BLOCK)
    scale = int(re.search(r"scale (0x[0-9A-F]+)", block["line"])[1], 16)
    assert int(block["bits"], 2) == scale
    numbers, codes, back = zip(*block["boxes"])
    assert len({len(code) for code in codes}) == 1
    return scale, [float(n) for n in numbers], [int(code, 2) for code in codes], [float(n) for n in back]


def type_number(page, text):
    page.get_by_label("Number", exact=True).fill(text)


def test_bits_page_shows_the_codes_of_a_typed_number(page):
    for text in ("0.3", "-1.75", "500", "1e-9", "-0", "2.5", "inf"):
        type_number(page, text)
        value = np.float32(float(text))
        expected = {}
        for format, (_, encode, decode) in FORMATS.items():
            code = encode(np.array([value]))
            expected[format] = int(code[0]), decode(code)[0]
        np.testing.assert_equal(shown(page), expected)
        assert page.locator("#bits-problem").inner_text() == ""


def test_bits_page_says_what_is_no_number_and_keeps_the_last(page):
    type_number(page, "0.25")
    before = shown(page)
    type_number(page, "a quarter")
    assert "Type a number" in page.get_by_role("alert").inner_text()
    assert page.get_by_label("Number", exact=True).get_attribute("aria-invalid") == "true"
    np.testing.assert_equal(shown(page), before)


@pytest.mark.parametrize("format", FORMATS)
def test_bits_page_changes_the_number_with_every_bit(page, format):
    width, encode, decode = FORMATS[format]
    type_number(page, "1.5")
    code = int(encode(np.array([1.5], np.float32))[0])
    for place in range(width):
        page.locator(f"[data-format={format}] [data-bit='{place}']").click()
        code ^= 1 << place
        value = decode(np.array([code], np.uint16 if width == 16 else np.uint8))[0]
        cards = shown(page)
        np.testing.assert_equal(cards[format], (code, value))
        typed = float(page.get_by_label("Number", exact=True).input_value())
        np.testing.assert_equal(np.float32(typed), value)
        if not np.isnan(value) and format != "bf16":
            assert cards["bf16"][0] == f32_to_bf16(np.array([value]))[0]


@pytest.mark.parametrize("kind", KINDS)
def test_bits_page_quantises_its_block(page, kind):
    length, quantise, round_trip = KINDS[kind]
    page.locator(f"input[value='{kind}']").check()
    for fill, typed in (("Example", "0.3"), ("Random", "100"), ("Zeros", "-2"), ("Example", "2^-20")):
        page.get_by_role("button", name=fill).click()
        type_number(page, typed)
        scale, numbers, codes, back = shown_block(page)
        x = as_bf16(np.array(numbers, np.float32))
        expected_codes, expected_scales = quantise(x)
        assert len(numbers) == length and scale == expected_scales[0]
        assert codes == expected_codes.tolist()
        assert np.array_equal(as_bf16(np.array(back, np.float32)).view(np.uint16), round_trip(x).view(np.uint16))
        assert x[2] == as_bf16(np.array([2.0**-20 if "^" in typed else float(typed)], np.float32))[0]


def test_bits_page_a_bit_of_the_number_changes_the_scale_of_the_block(page):
    before = shown_block(page)
    page.locator(".bits-cell").nth(5).click()
    assert page.get_by_label("Number", exact=True).input_value() == "-0.5"
    page.locator("[data-format=bf16] [data-bit='13']").click()  # exponent 01111110 -> 00111110
    page.locator("[data-format=bf16] [data-bit='14']").click()  # -> 10111110: 2^63
    scale, numbers, codes, _ = shown_block(page)
    assert as_bf16(np.float32([numbers[5]]))[0] == -(2.0**63) and scale > before[0]
    assert {code & 0x7F for i, code in enumerate(codes) if i != 5} == {0}, "the neighbours are lost"


def test_bits_page_works_from_the_keyboard(page):
    page.get_by_label("Number", exact=True).focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.dataset.bit") == "15"
    for _ in range(15):
        page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.bit") == "0"
    before = shown(page)["bf16"][0]
    page.keyboard.press("Space")
    assert shown(page)["bf16"][0] == before ^ 1
    assert page.evaluate("document.activeElement.dataset.bit") == "0", "the focus stays"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('[data-format]').dataset.format") == "e4m3"
    page.locator(".bits-cell").nth(2).focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.index") == "6", "4 boxes a row on a narrow screen"
    page.keyboard.press("Enter")
    assert page.locator(".bits-cell").nth(6).get_attribute("aria-pressed") == "true"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_bits_page_fits(browser, address, width, scheme):
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(address)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    type_number(page, "-1.234e-38")  # as long as a number becomes
    clipped = "e => e.scrollWidth > e.clientWidth + 1"
    assert not any(box.evaluate(clipped) for box in page.locator(".bits-cell:visible").all())
    page.close()


def test_bits_script_asks_no_other_host():
    for path in (SCRIPT, SCRIPT.with_suffix(".css"), TUTORIALS / "bits.md"):
        assert not re.search(r"https?:|//[a-z]+\.|fetch\(|XMLHttpRequest|import\(", path.read_text(encoding="utf-8")), (
            path
        )


def test_bits_files_are_where_the_page_loads_them_from():
    text = (TUTORIALS / "bits.md").read_text(encoding="utf-8")
    for path in re.findall(r'(?:src|href)="([^"]+)"', text):
        assert (TUTORIALS / pathlib.PurePosixPath(path)).is_file()
