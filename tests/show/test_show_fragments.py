"""show fragments: the boxes say what the instruction's contract in `tuned.ptx` says, and what NumPy's product needs."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from dsv41_numba.show import draw
from dsv41_numba.show.fragments import fragment_maps

SVG = "{http://www.w3.org/2000/svg}"
TIP = re.compile(r"row (\d+), column (\d+)(?: and (\d+))?: lane (\d+), [abc](\d)")


def boxes(operand, lane=5):
    """(row, column) -> (lane, register) of every box of the picture, by its tip."""
    root = ET.fromstring(draw("fragments", operand=operand, lane=lane).svg())
    found = {}
    for tip in root.iter(f"{SVG}title"):
        if match := TIP.fullmatch(tip.text):
            row, first, second, lane, register = (int(number) if number else None for number in match.groups())
            for column in (first,) if second is None else (first, second):
                assert (row, column) not in found
                found[row, column] = (lane, register)
    return found


def contract(operand):
    """What the drawing above `mma_m16n8k16` in tuned/ptx.py says, with lane = 4 g + t."""
    found = {}
    for lane in range(32):
        g, t = lane // 4, lane % 4
        if operand == "A":
            places = {(g + 8 * (r % 2), 2 * t + 8 * (r // 2) + half): r for r in range(4) for half in range(2)}
        elif operand == "B":
            places = {(g, 2 * t + 8 * r + half): r for r in range(2) for half in range(2)}
        else:
            places = {(g + 8 * (r // 2), 2 * t + r % 2): r for r in range(4)}
        found |= {place: (lane, register) for place, register in places.items()}
    return found


@pytest.mark.parametrize("operand", ["A", "B", "C"])
def test_show_fragments_boxes_are_the_contract_of_the_instruction(operand):
    assert boxes(operand) == contract(operand)


def test_show_fragments_every_element_has_one_place():
    maps = fragment_maps()
    assert {operand: len(held) for operand, held in maps.items()} == {"A": 16 * 16, "B": 8 * 16, "C": 16 * 8}
    for held in maps.values():
        assert len(set(held.values())) == len(held)


def test_show_fragments_low_half_is_the_lower_column():
    maps = fragment_maps()
    for operand in "AB":
        assert all(place.half == column % 2 for (_, column), place in maps[operand].items())


@pytest.mark.parametrize("lane", [0, 13])
def test_show_fragments_frames_the_boxes_of_one_lane(lane):
    root = ET.fromstring(draw("fragments", operand="C", lane=lane).svg())
    frames = [node for node in root.iter(f"{SVG}rect") if node.get("class") == "stroke-red"]
    assert len(frames) == sum(place[0] == lane for place in boxes("C").values()) == 4
    texts = [node.text for node in root.iter(f"{SVG}text") if node.get("font-weight") == "bold"]
    assert texts.count(str(lane)) == 4


def test_show_fragments_refuses_another_operand():
    with pytest.raises(ValueError, match="operand: expected one of A, B, C, got 'D'"):
        draw("fragments", operand="D")


def test_show_fragments_map_makes_a_product(rng):
    """Elements laid into lanes by the map, multiplied by the stand-in, are NumPy's product."""
    from dsv41_numba.formats.bf16 import as_bf16
    from dsv41_numba.show.fragments import _run

    x, weight = (rng.integers(-8, 9, (rows, 16)).astype(np.float32) for rows in (16, 8))
    _, _, sums = _run(as_bf16(x).view(np.uint16), as_bf16(weight).view(np.uint16))
    y = np.array([[sums[fragment_maps()["C"][m, n].lane, fragment_maps()["C"][m, n].register] for n in range(8)]
                  for m in range(16)])  # fmt: skip
    assert np.array_equal(y, x @ weight.T)
