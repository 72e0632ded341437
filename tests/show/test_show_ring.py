"""show ring and the pictures of stored rows: slots, bytes, bits and numbers are what the package's code gives."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from dsv41_numba.config import FLASH
from dsv41_numba.formats.e2m1 import e2m1_to_f32, unpack_e2m1
from dsv41_numba.formats.e4m3 import e4m3_to_f32
from dsv41_numba.ops.quant_fp4 import fp4_quantise_e4m3_ref, fp4_round_trip_e4m3_ref, fp4_round_trip_e8m0_ref
from dsv41_numba.ops.quant_fp8 import fp8_quantise_ref, fp8_round_trip_ref
from dsv41_numba.ops.ring import ring_write_ref
from dsv41_numba.show import draw
from dsv41_numba.show.rows import BAR_WIDTH, row_bytes, some_rows

SVG = "{http://www.w3.org/2000/svg}"
ROUND_TRIPS = {"fp8": fp8_round_trip_ref, "fp4 e8m0": fp4_round_trip_e8m0_ref, "fp4 e4m3": fp4_round_trip_e4m3_ref}


def parsed(name, **options):
    return ET.fromstring(draw(name, **options).svg())


def tips(root, shape="rect"):
    """(element, tip) of every shape that has one, as drawn."""
    return [(node, node.find(f"{SVG}title").text) for node in root.iter(f"{SVG}{shape}") if len(node)]


@pytest.mark.parametrize("window, calls", [(8, "5 2 1 1 11"), (5, "3 4"), (3, "1 1 1 1 1 1 1"), (7, "30 1")])
def test_show_ring_slots_hold_the_positions_that_the_ring_holds(window, calls):
    root = parsed("ring", window=window, calls=calls)
    boxes = iter(tips(root))
    texts = [node.text for node in root.iter(f"{SVG}text")]
    ring, start = np.full((window, 1), -1), 0
    for T in map(int, calls.split()):
        ring_write_ref(np.arange(start, start + T)[:, None], ring, start)
        call = f"position {start}" if T == 1 else f"positions {start} to {start + T - 1}"
        assert any(text.startswith(call) for text in texts)
        for slot, position in enumerate(ring[:, 0].tolist()):
            box, tip = next(boxes)
            assert tip == f"{call}: slot {slot} " + ("is empty" if position < 0 else f"holds position {position}")
            assert ("orange" in box.get("class")) == (position >= start), "what this call wrote is marked"
        start += T
    assert next(boxes, None) is None
    assert root.find(f"{SVG}title").text == f"A ring of {window} slots: position p lies in slot p mod {window}"


def test_show_packed_row_bars_are_as_long_as_the_rows_bytes():
    root = parsed("packed_row")
    assert (row_bytes("fp8", 512), row_bytes("fp4 e4m3", 512)) == ((512, 16), (256, 32))
    expected = {
        "bf16: 1024 bytes of numbers": 1024,
        "e4m3 with e8m0 scales: 512 bytes of codes": 512,
        "e4m3 with e8m0 scales: 16 bytes of scales": 16,
        "e2m1 with e4m3 scales: 256 bytes of codes": 256,
        "e2m1 with e4m3 scales: 32 bytes of scales": 32,
    }
    assert {tip: round(1024 * float(box.get("width")) / BAR_WIDTH) for box, tip in tips(root)} == expected
    assert "e2m1 with e4m3 scales: 256 + 32 = 288 bytes" in [node.text for node in root.iter(f"{SVG}text")]


def test_show_packed_row_of_an_index_key():
    assert row_bytes("fp4 e8m0", FLASH.index_head_dim) == (64, 4)
    texts = [node.text for node in parsed("packed_row", D=128, kinds="fp4 e8m0").iter(f"{SVG}text")]
    assert "bf16: 256 bytes" in texts and "e2m1 with e8m0 scales: 64 + 4 = 68 bytes" in texts


def test_show_two_codes_bits_give_the_numbers_back():
    values = [1.5, -1, 0.5, -0.5, 1, -6, 0, -0.0]
    root = parsed("two_codes", values=" ".join(map(str, values)))
    bits = {}
    for _, tip in tips(root):
        byte, place, bit, index = map(int, re.fullmatch(r"byte (\d+), bit (\d+): (\d), of x\[(\d+)\]", tip).groups())
        assert index == 2 * byte + (place > 3), "the odd index lies in the high bits"
        bits[byte, place] = bit
    for i, value in enumerate(values):
        byte = sum(bits[i // 2, place] << place for place in range(8))
        got = e2m1_to_f32(np.array(unpack_e2m1.py_func(byte, i)))
        assert got == value and np.signbit(got) == np.signbit(value)
    boldest = [node.text for node in root.iter(f"{SVG}text") if node.get("font-size") == "15"]
    assert boldest[1:] == ["0xA3", "0x91", "0xF2", "0x80"]


@pytest.mark.parametrize("kind", ROUND_TRIPS)
def test_show_block_reads_back_what_the_round_trip_gives(kind):
    root, size = parsed("block", kind=kind, seed=11), 16 if kind == "fp4 e4m3" else 32
    x = some_rows(1, size, 11)
    back = ROUND_TRIPS[kind](x)[0].astype(np.float32)
    seen = {}
    for _, tip in tips(root):
        found = re.fullmatch(r"x\[(\d+)\] = (\S+): code 0x[0-9A-F]+, read back (\S+)", tip)
        seen[int(found[1])] = (float(found[2]), float(found[3]))
    assert sorted(seen) == list(range(8))
    for i, (value, read) in seen.items():
        assert (value, read) == (float(f"{float(x[0, i]):g}"), float(f"{back[i]:g}"))


def test_show_block_bits_are_the_codes():
    x = some_rows(1, 32, 7)
    codes, scales = fp8_quantise_ref(x)
    root = parsed("block", kind="fp8", seed=7)
    digits = [
        node.text for node in root.iter(f"{SVG}text") if node.text in ("0", "1") and node.get("text-anchor") == "middle"
    ]
    assert "".join(digits) == "".join(f"{code:08b}" for code in codes[0, :8])
    assert f"byte 0x{scales[0, 0]:02X}" in root.find(f"{SVG}desc").text


def test_show_ruler_lines_lead_to_where_the_codes_are():
    root = parsed("ruler", kind="fp4 e4m3", seed=3)
    x = some_rows(1, 16, 3)
    back = fp4_round_trip_e4m3_ref(x)[0].astype(np.float32)
    scale = e4m3_to_f32(fp4_quantise_e4m3_ref(x)[1])[0, 0]
    dots = tips(root, "circle")
    lines = [node.get("d") for node in root.iter(f"{SVG}path") if node.get("class") == "stroke-blue"]
    assert len(dots) == len(lines) == 16
    ends = [tuple(map(float, re.fullmatch(r"M (\S+) \S+ L (\S+) \S+", line).groups())) for line in lines]
    middle = 16 + 420 / 2
    unit = (420 / 2 - 8) / max(6 * scale, np.abs(x.astype(np.float32)).max())
    for i, ((dot, tip), (start, end)) in enumerate(zip(dots, ends)):
        assert tip == f"x[{i}] = {float(x[0, i]):g} is read back as {back[i]:g}"
        assert float(dot.get("cx")) == start == pytest.approx(middle + unit * float(x[0, i]), abs=0.02)
        assert end == pytest.approx(middle + unit * back[i], abs=0.02)


def test_show_rows_refuse_a_kind_that_does_not_exist():
    with pytest.raises(ValueError, match="kind: expected one of fp8, fp4 e8m0, fp4 e4m3, got 'int8'"):
        draw("block", kind="int8")
