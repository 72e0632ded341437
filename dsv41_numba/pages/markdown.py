"""A page cut into text and fenced blocks, with the line that each begins on; and plain text made Markdown."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_FENCE = re.compile(r"^(?P<indent> *)(?P<marker>`{3,}|~{3,})(?P<info>[^`]*)$")
_OPTION = re.compile(r"^[a-z]+=[^ ]+$")
_COLUMNS = re.compile(r"\S {2,}\S|^ ", re.MULTILINE)  # words set below each other, or an indented line
_CODE_SPAN = re.compile(r"(`[^`]*`)")
# what Markdown would take for its own
_MARKUP = re.compile(r"[\\*\[<$&]|(?<!\w)_|_(?!\w)|^[#>+-]", re.MULTILINE)


class PageError(Exception):
    """Something on a page that cannot be shown; the message names page, line and cause."""

    def __init__(self, page: str, line: int, cause: str) -> None:
        super().__init__(f"{page}:{line}: {cause}")
        self.page, self.line, self.cause = page, line, cause


@dataclass(frozen=True)
class Text:
    """Lines outside of fences."""

    text: str
    line: int  # of the page, counted from 1


@dataclass(frozen=True)
class Fence:
    """A fenced block. `info` is what stands behind the opening marker: "python run", "text"."""

    code: str  # without the fence's own indentation
    info: str
    indent: str  # inside an admonition or a list
    marker: str
    line: int  # of the opening marker
    options: dict[str, str] = field(default_factory=dict)  # of a block that runs: "exit=1"

    @property
    def language(self) -> str:
        return self.info.split()[0] if self.info else ""

    @property
    def runs(self) -> bool:
        return self.info.split()[1:2] == ["run"]

    @property
    def text(self) -> str:
        """The block as it stands on the page."""
        return fenced(self.code, self.info, self.indent, self.marker)


def fenced(code: str, info: str, indent: str = "", marker: str = "```") -> str:
    """A fenced block around code; longer markers if the code has such a line itself."""
    while any(line.lstrip().startswith(marker) for line in code.splitlines()):
        marker += marker[0]
    lines = [f"{marker}{info}", *code.rstrip("\n").split("\n"), marker]
    return "".join(f"{indent}{line}".rstrip() + "\n" for line in lines)


def parts(markdown: str, page: str) -> Iterator[Text | Fence]:
    """The page from top to bottom. Raises PageError for a fence without an end or with options nobody knows."""
    lines = markdown.splitlines(keepends=True)
    text: list[str] = []
    first = at = 0
    while at < len(lines):
        opening = _FENCE.match(lines[at].rstrip("\n"))
        if not opening:
            text.append(lines[at])
            at += 1
            continue
        if text:
            yield Text("".join(text), first + 1)
        text, start = [], at
        at = _end(lines, start, opening["marker"])
        if at == len(lines):
            raise PageError(page, start + 1, "a fence that is never closed")
        yield _fence(lines[start + 1 : at], opening, start + 1, page)
        at += 1
        first = at
    if text:
        yield Text("".join(text), first + 1)


def _end(lines: list[str], start: int, marker: str) -> int:
    """The line of the fence's closing marker, or how many lines there are."""
    for at in range(start + 1, len(lines)):
        closing = lines[at].strip()
        if len(closing) >= len(marker) and closing == marker[0] * len(closing):
            return at
    return len(lines)


def _fence(lines: list[str], opening: re.Match[str], line: int, page: str) -> Fence:
    indent, info = opening["indent"], opening["info"].strip()
    code = "".join(text.removeprefix(indent) if text.strip() else "\n" for text in lines)
    words = info.split()
    options = {}
    if words[1:2] == ["run"]:
        for word in words[2:]:
            if not _OPTION.match(word):
                raise PageError(page, line, f"```{info}: expected options as name=value, got {word!r}")
            name, _, value = word.partition("=")
            options[name] = value
    return Fence(code, info, indent, opening["marker"], line, options)


def as_markdown(plain: str) -> str:
    """A docstring as Markdown: paragraphs with columns as text blocks, others as text with their `code`."""
    paragraphs: list[str] = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(plain)):
        if _COLUMNS.search(paragraph):
            paragraphs.append(fenced(inspect.cleandoc(paragraph), "text").rstrip())
        else:
            pieces = _CODE_SPAN.split(re.sub(r"::$", ":", paragraph))
            paragraphs.append("".join(p if p.startswith("`") else _MARKUP.sub(_entity, p) for p in pieces))
    return "\n\n".join(paragraphs)


def _entity(character: re.Match[str]) -> str:
    return f"&#{ord(character[0])};"
