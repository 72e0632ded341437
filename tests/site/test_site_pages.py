"""Filling a page: what works, and that what fails says page, line and cause."""

import pytest

from dsv41_numba.config import FLASH
from dsv41_numba.pages import PageError, fill
from dsv41_numba.pages.execute import TUTORIALS, shortened
from dsv41_numba.pages.exercises import without_marks
from dsv41_numba.pages.listing import cut
from dsv41_numba.pages.markdown import as_markdown
from dsv41_numba.pages.measured import duration, measurements, ms, significant, span, timings

PAGE = "tutorials/page.md"


def test_an_expression_becomes_its_value() -> None:
    assert fill("a window of {{ FLASH.window }} rows", PAGE) == f"a window of {FLASH.window} rows"


def test_expressions_inside_fences_stay() -> None:
    text = "```text\n{{ FLASH.window }}\n```\n"
    assert fill(text, PAGE) == text


def test_blocks_of_a_page_share_a_namespace_and_show_what_they_print() -> None:
    filled = fill('```python run\nx = 2\n```\n\n```python run\nprint(x, 3, sep="+")\n```\n', PAGE)
    assert filled == (
        '```python\nx = 2\n```\n\n```python\nprint(x, 3, sep="+")\n```\n\n``` { .text .output }\n2+3\n```\n'
    )


def test_a_block_inside_a_note_keeps_its_indentation() -> None:
    filled = fill("!!! note\n\n    ```python run\n    print(1)\n    ```\n", PAGE)
    assert "\n    ``` { .text .output }\n    1\n    ```\n" in filled


def test_a_kernel_written_on_a_page_runs() -> None:
    block = """```python run
import numpy as np
from numba import cuda
from dsv41_numba.runtime.backend import launch, to_device, to_host

@cuda.jit
def double_kernel(x):
    x[cuda.threadIdx.x] *= 2

x = to_device(np.arange(3))
launch(double_kernel, 1, 3, x)
print(to_host(x))
```
"""
    assert "[0 2 4]" in fill(block, PAGE)


def test_a_command_runs_and_shows_both_its_streams() -> None:
    filled = fill("```sh run exit=3\necho out; echo err >&2; exit 3\n```\n", PAGE)
    assert filled.endswith("``` { .text .output }\nout\nerr\n```\n")


def test_long_output_keeps_its_first_and_last_lines() -> None:
    assert shortened("1\n2\n3\n4\n5\n\n", 1, 2) == "1\n…\n4\n5\n"
    assert shortened("1\n2\n3\n", 1, 1) == "1\n2\n3\n"


@pytest.mark.parametrize(
    ("text", "line", "cause"),
    [
        ("one\n\ntwo {{ FLASH.windw }}", 3, "AttributeError"),
        ('{{ listing("dsv41_numba.ops.linear", "no_such_kernel") }}', 1, "expected one of .*, got 'no_such_kernel'"),
        ('{{ listing("dsv41_numba.no_such_module", "x") }}', 1, "expected a file of the package"),
        ('{{ figure("no such picture") }}', 1, "picture: expected one of"),
        ('{{ exercise("99z") }}', 1, "exercise: expected one of .*, got '99z'"),
        ('{{ ms("linear wq_b", "prefill 3") }}', 1, "expected one of the cases prefill 512, .*, got 'prefill 3'"),
        ('{{ timings("no such op") }}', 1, "op: expected one of linear wq_a"),
        ('{{ source("dsv41_numba/none.py") }}', 1, "expected a file of the repository"),
        ('text {{ timings("linear wq_b") }}', 1, "expected a line of its own"),
        ("\n```python run\nx = 1\n\nx / 0\n```\n", 5, "ZeroDivisionError"),
        ("```python run\nx = 1\nx = = 2\n```\n", 3, "SyntaxError"),
        ("\n```sh run\nfalse\n```\n", 2, "exit code 1, expected 0"),
        ("```python run\nx\n", 1, "never closed"),
        ("```python run loud\nx\n```\n", 1, "expected options as name=value, got 'loud'"),
        ("```python run exit=1\nx = 1\n```\n", 1, "expected options among head, tail, got exit"),
        ("```ruby run\nx\n```\n", 1, "expected python or sh"),
    ],
)
def test_a_failure_names_page_line_and_cause(text: str, line: int, cause: str) -> None:
    with pytest.raises(PageError, match=f"^{PAGE}:{line}: .*{cause}"):
        fill(text, PAGE)


def test_a_listing_has_the_comments_of_its_names_and_joins_constants() -> None:
    source = "A = 1\n\n# why\nB: int = 2\n\ndef f():\n    x = 1\n    # the rest\n\n\n"
    source += "class C:\n    def g(self):\n        pass\n"
    assert cut(source, "A", "B") == "A = 1\n# why\nB: int = 2\n"
    assert cut(source, "f", "C.g") == "def f():\n    x = 1\n    # the rest\n\n\ndef g(self):\n    pass\n"


def test_a_solution_is_shown_without_its_marks() -> None:
    assert without_marks("a\n    # CUT add\n    #  in order\n    b\n    # END\n    # c\n") == "a\n    b\n    # c\n"


def test_plain_text_stays_as_it_is_laid_out() -> None:
    assert as_markdown("x[T, d] * y_ref `a*b`") == "x&#91;T, d] &#42; y_ref `a*b`"
    assert as_markdown("Two:\n\n    one   1\n    two   2") == "Two:\n\n```text\none   1\ntwo   2\n```"


def test_times_have_three_digits_and_a_unit() -> None:
    assert [duration(t) for t in (1838.4, 20.876, 0.9999, 0.026373, 0.00000123)] == [
        "1.84 s", "20.9 ms", "1.00 ms", "26.4 µs", "1.23 ns",
    ]  # fmt: skip
    assert [significant(x) for x in (4277.8, 98.58, 1.0, 0.012345, 0.0)] == ["4280", "98.6", "1.00", "0.0123", "0.00"]
    assert (span(20.81, 21.04), span(0.9, 1.1)) == ("20.8 to 21.0 ms", "900 µs to 1.10 ms")


def test_timings_show_every_measured_row_with_gpu_and_date() -> None:
    rows = [row for row in measurements()["results"] if row["op"] == "linear wq_b"]
    table = timings("linear wq_b")
    assert sum(line.startswith("| ") for line in table.splitlines()) == len(rows) + 1
    assert measurements()["machine"]["gpu"] in table
    assert measurements()["machine"]["date"][:10] in table
    assert ms("linear wq_b", "prefill 2048") in timings("linear wq_b", cases=("prefill 2048",))
    assert "prefill 512" not in timings("linear wq_b", cases=("decode",))


def test_every_page_begins_with_a_question_or_a_name() -> None:
    wrong = [path.name for path in TUTORIALS.glob("*.md") if not path.read_text(encoding="utf-8").startswith("# ")]
    assert not wrong
