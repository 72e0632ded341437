"""The numbers page: every number is the code's own, and none of those that readers ask about is missing."""

import ast
import math
import pathlib
import re

import numpy as np
import pytest

from dsv41_numba import numbers as module
from dsv41_numba.config import FLASH
from dsv41_numba.formats.e4m3 import E4M3_MAX, f32_to_e4m3
from dsv41_numba.formats.e8m0 import f32_to_e8m0
from dsv41_numba.numbers import GROUPS, constant, index, numbers, shown, table

ASKED_FOR = """128 512 448 464 6 16 32 127 8 2,048 65,536 160,000 1e-20 1e-4 2^-9 2^-14 640 890 1,048,576
               288 68 3,200 2,688 10,000 64 40 5,120 1,280 1,024 256 257 48""".split()


def test_numbers_has_every_number_that_is_asked_for():
    known = {row.shown for row in numbers()}
    kib = {shown(row.value / 1024) for row in numbers() if "bytes of shared memory" in row.why}
    assert set(ASKED_FOR) <= known | kib


def test_numbers_of_the_model_are_all_the_fields_of_the_config():
    rows = numbers("model")
    named = {row.where.removeprefix("FLASH.") for row in rows}
    assert named == set(FLASH.__dataclass_fields__) - {"kv_sources", "index_sources"}  # layers' own numbers
    for row in rows:
        value = getattr(FLASH, row.where.removeprefix("FLASH."))
        assert row.value in value if isinstance(value, tuple) else row.value == value


def test_numbers_stand_in_the_code_under_the_name_that_is_shown():
    named = [row for row in numbers() if re.fullmatch(r"[a-z0-9_.]+\.[A-Z][A-Z0-9_]+", row.where)]
    assert len(named) > 15
    for row in named:
        assert row.value == constant(row.where)


def test_numbers_of_bytes_are_what_the_caches_take():
    rows = {row.shown: row for row in numbers("bytes")}
    ratios = [FLASH.compress_ratios[layer] for layer in FLASH.kv_sources]
    tokens = math.lcm(*ratios)
    latent, key = (
        FLASH.head_dim * 4 // 8 + FLASH.head_dim // 16,
        FLASH.index_head_dim * 4 // 8 + FLASH.index_head_dim // 32,
    )
    assert sum(tokens // ratio * (latent + key) for ratio in ratios) == 890 * tokens
    assert {"890", "640", str(latent), str(key), "3,200"} <= rows.keys()


def test_numbers_of_formats_are_where_the_encoders_say():
    for row in numbers("formats"):
        if row.shown == "464":  # half way from the largest to what would come next
            assert row.value - E4M3_MAX == (E4M3_MAX - np.float32(416)) / 2
            assert f32_to_e4m3(np.float32([416, row.value, 1e6])).tolist() == [0x7D, 0x7E, 0x7E]
        if row.shown == "127":
            assert f32_to_e8m0(np.ones(1, np.float32))[0] == row.value
        if row.shown == "2^-9":
            assert f32_to_e4m3(np.array([row.value, row.value / 2], np.float32)).tolist() == [1, 0]


def test_numbers_has_no_number_typed_where_the_code_has_it():
    """Numbers in numbers.py's own code are small: halves, squares and the like."""
    tree = ast.parse(pathlib.Path(module.__file__).read_text(encoding="utf-8"))
    typed = {
        node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and type(node.value) in (int, float)
    }
    assert {value for value in typed if abs(value) > 7} <= {16, 0x7F7F, 1e7}
    texts = [row.why for row in numbers()]
    assert not [text for text in texts if re.search(r"\{|\}", text)]


def test_numbers_tables_have_each_row_once():
    assert sum(len(table(group).splitlines()) - 2 for group in GROUPS) == len(numbers())
    assert len({(row.where, row.shown) for row in numbers()}) == len(numbers())
    for row in numbers():
        assert row.why and "|" not in row.why + row.where and row.group in GROUPS
    assert len(index().split("), ")) > 20
    with pytest.raises(ValueError, match="group: expected one of model, bytes"):
        numbers("other")


@pytest.mark.parametrize(
    "value, text",
    [
        (65536, "65,536"), (448.0, "448"), (0.5, "0.5"), (2.0**-9, "2^-9"), (np.float32(6 * 2.0**-9), "6 x 2^-9"),
        (np.float32(1e-4), "1e-4"), (1e-20, "1e-20"), (2.5, "2.5"), (3.3895e38, "3.39e38"), (2.0**-127, "2^-127"),
    ],
)  # fmt: skip
def test_numbers_are_written_short(value, text):
    assert shown(value) == text


def test_the_page_shows_every_group():
    page = pathlib.Path(module.__file__).parent.parent / "tutorials/numbers.md"
    text = page.read_text(encoding="utf-8")
    for group in GROUPS:
        assert f"{{ #{group} }}" in text and f'table")("{group}")' in text
