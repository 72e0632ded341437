"""No number in a page's prose that was typed by hand: all but small counts come from `{{ }}` or a block that ran."""

import pathlib
import re

import pytest

from dsv41_numba.pages.execute import TUTORIALS
from dsv41_numba.pages.markdown import Text, parts

LARGEST_COUNT = 64
# in this order: what is not prose
NOT_PROSE = [
    re.compile(r"\{\{.*?\}\}", re.DOTALL),
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"(`+)[^`].*?\1", re.DOTALL),
    re.compile(r"\$\$.*?\$\$", re.DOTALL),
    re.compile(r"\$[^$\n]+(?:\n[^$\n]+)?\$"),
    re.compile(r"!?\[[^\]]*\]\([^)]*\)"),
    re.compile(r"\{:? ?[#.][^}]*\}"),
    re.compile(r"<[^>]+>"),
]
NUMBER = re.compile(r"(?<![A-Za-z_\d.])\d+(?:[.,]\d+)*")  # not the digits of a name: bf16, H200, V4.1
UNIT = re.compile(
    r"[ \u00a0-]?(%|(per ?cent|times|fold|[kKMGT]i?B|bytes?|[mnuµ]?s|(milli|micro|nano)?seconds?|minutes?|"
    r"[GT]?FLOPs?|flops?|[GM]?Hz)\b)"
)


def stray_numbers(markdown: str, page: str) -> list[str]:
    """Each number in the page's prose that nobody made, with its line."""
    found = []
    for part in parts(markdown, page):
        if not isinstance(part, Text):
            continue
        text = part.text
        for pattern in NOT_PROSE:
            text = pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
        for number in NUMBER.finditer(text):
            small = number[0].isdigit() and int(number[0]) <= LARGEST_COUNT
            if not small or UNIT.match(text, number.end()):
                line = part.line + text.count("\n", 0, number.start())
                found.append(f"{page}:{line}: {text[number.start() : number.end() + 12].split(chr(10))[0].strip()}")
    return found


@pytest.mark.parametrize("path", sorted(TUTORIALS.glob("*.md")), ids=lambda path: path.stem)
def test_no_number_in_prose_is_typed_by_hand(path: pathlib.Path) -> None:
    assert stray_numbers(path.read_text(encoding="utf-8"), f"tutorials/{path.name}") == []


@pytest.mark.parametrize(
    "text",
    [
        "It takes 20 ms.",
        "A row has 128 numbers.",
        "about 3.5 of them",
        "12 % more",
        "a 4-byte word",
        "10 times",
        "1,024",
    ],
)
def test_a_typed_number_is_found(text: str) -> None:
    assert len(stray_numbers(text, "page.md")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "Forty layers, 16 x 16 threads, step 3.",
        "bf16 on an H200, DeepSeek-V4.1-Flash, e4m3",
        "`128` and $2^{-9} = 0.002$ and $$448$$",
        "{{ FLASH.window }} ms, [4096 rows](a.md#x128)",
        "```python run\nx = 4096\n```",
        "### Exercise { #exercise-104 }",
    ],
)
def test_code_math_links_names_and_small_counts_are_not_stray(text: str) -> None:
    assert stray_numbers(text, "page.md") == []
