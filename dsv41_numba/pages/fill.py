"""Fill a page: evaluate `{{ expression }}` and run the blocks marked `run`; the result is plain Markdown."""

import pathlib
import re
from collections.abc import Callable

from dsv41_numba.pages import names
from dsv41_numba.pages.execute import ROOT, Runner
from dsv41_numba.pages.markdown import Fence, PageError, Text, fenced, parts

EXPRESSION = re.compile(r"\{\{(.+?)\}\}", re.DOTALL)


def fill(markdown: str, page: str) -> str:
    """The page as plain Markdown. `page` is its path from the repository's root: "tutorials/04-matrix-product.md".

    Raises PageError naming page, line and cause when an expression or a block fails.
    """
    runner = Runner(page, markdown)
    filled = []
    for part in parts(markdown, page):
        if isinstance(part, Text):
            filled.append(evaluated(part, page, names.SITE))
        elif part.runs:
            filled.append(_executed(part, runner))
        else:
            filled.append(part.text)
    return "".join(filled)


def fill_file(path: str | pathlib.Path) -> str:
    """`fill` of a file."""
    path = pathlib.Path(path).resolve()
    return fill(path.read_text(encoding="utf-8"), page_name(path))


def page_name(path: pathlib.Path) -> str:
    """A page's path from the repository's root, or all of it if it is elsewhere."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)


def evaluated(part: Text, page: str, known: dict[str, object]) -> str:
    """Text with the value of every expression in its place."""
    return EXPRESSION.sub(_evaluate(part, page, known), part.text)


def _evaluate(part: Text, page: str, known: dict[str, object]) -> Callable[[re.Match[str]], str]:
    def value(found: re.Match[str]) -> str:
        line = part.line + part.text.count("\n", 0, found.start())
        try:
            result = str(eval(" ".join(found[1].split()), dict(known)))
        except Exception as error:
            raise PageError(page, line, f"{{{{{found[1]}}}}}: {type(error).__name__}: {error}") from error
        return _placed(result, found, part.text, page, line)

    return value


def _placed(result: str, found: re.Match[str], text: str, page: str, line: int) -> str:
    """A value of several lines needs a line of its own, and takes over that line's indentation."""
    if "\n" not in result:
        return result
    before = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
    after = text[found.end() :].split("\n", 1)[0]
    if before.strip() or after.strip():
        raise PageError(page, line, f"{{{{{found[1]}}}}}: expected a line of its own, since it makes several")
    lines = result.rstrip("\n").split("\n")
    return "\n".join([lines[0], *(f"{before}{rest}".rstrip() for rest in lines[1:])])


def _executed(fence: Fence, runner: Runner) -> str:
    output = runner.run(fence).text
    shown = fenced(fence.code, fence.language, fence.indent, fence.marker)
    if not output.strip():
        return shown
    return f"{shown}\n{fenced(output, ' { .text .output }', fence.indent, fence.marker)}"
