"""What `{{ }}` may call on a page: Python's builtins, FLASH and TINY, and every name of `SITE`."""

import argparse
import importlib
import os
import re
from html import escape
from typing import Any

from dsv41_numba.chart import ladder_table
from dsv41_numba.cli import parser
from dsv41_numba.config import FLASH, TINY
from dsv41_numba.exercise import exercises as known_exercises
from dsv41_numba.pages import measured
from dsv41_numba.pages.api import api_table
from dsv41_numba.pages.execute import ROOT, TUTORIALS
from dsv41_numba.pages.exercises import exercise, exercises
from dsv41_numba.pages.listing import listing
from dsv41_numba.pages.markdown import fenced
from dsv41_numba.show import draw

HELP_COLUMNS = 100


def value(name: str) -> Any:
    """A constant of the package: `value("dsv41_numba.ops.linear.TILE")`."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def figure(name: str, caption: str = "", **options: Any) -> str:
    """A picture of `dsv41_numba.show` with a caption; `code` in the caption is set as code."""
    picture = draw(name, **options)
    svg = re.sub(r"<style>.*?</style>\n?", "", picture.svg(), flags=re.DOTALL)  # the site has the rules once
    below = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(caption, quote=False))
    figcaption = f"<figcaption>{below}</figcaption>\n" if caption else ""
    return f'<figure style="max-width: {picture.width:g}px">\n{svg.strip()}\n{figcaption}</figure>\n'


def source(path: str) -> str:
    """A link to a file: a module's page in the API reference, or a file of tutorials/ itself."""
    if not (ROOT / path).is_file():
        raise ValueError(f"path: expected a file of the repository, got {path!r}")
    if path.startswith("dsv41_numba/") and path.endswith(".py"):
        module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        return f"[`{path}`][{module}]"
    if (ROOT / path).is_relative_to(TUTORIALS):
        return f"[`{path}`]({(ROOT / path).relative_to(TUTORIALS).as_posix()})"
    return f"`{path}`"


def readme(block: str) -> str:
    """The commands of README.md's block with this name: "install"."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(rf"^```sh {block}\n(.+?)^```$", text, re.DOTALL | re.MULTILINE)
    if not found:
        raise ValueError(f"README.md: expected a block ```sh {block}")
    return fenced(found[1], "sh")


def chapters() -> str:
    """A table of the chapters: the question each asks, and its exercises."""
    entries = known_exercises()
    lines = ["| | question | exercises |", "|---:|---|---|"]
    for path in sorted(TUTORIALS.glob("[0-9][0-9]-*.md")):
        number, title = int(path.name[:2]), path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        links = (f"[{id}]({path.name}#exercise-{id})" for id, entry in entries.items() if entry.chapter == number)
        lines.append(f"| {number} | [{title}]({path.name}) | {', '.join(links)} |")
    return "\n".join(lines)


def commands() -> str:
    """A table of the commands of `dsv41`."""
    lines = ["| command | what it does |", "|---|---|"]
    lines += [f"| [`dsv41 {name}`](api.md#dsv41-{name}) | {about} |" for name, about in _commands().items()]
    return "\n".join(lines)


def command_help(name: str) -> str:
    """What `dsv41 NAME --help` prints."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(HELP_COLUMNS)
    try:
        text = _subparsers().choices[name].format_help()
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before
    return fenced(text, "text")


def commands_help() -> str:
    """A heading for each command of `dsv41`, and what its `--help` prints."""
    about = _commands()
    return "\n".join(
        f"### `dsv41 {name}` {{ #dsv41-{name} }}\n\n{about[name][0].upper()}{about[name][1:]}.\n\n{command_help(name)}"
        for name in about
    )


def ladder() -> str:
    """The rungs of the linear ladder as a table."""
    return ladder_table(measured.measurements())


def _subparsers() -> Any:
    return next(action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))


def _commands() -> dict[str, str]:
    return {action.dest: action.help or "" for action in _subparsers()._choices_actions}


SITE: dict[str, object] = {
    "FLASH": FLASH,
    "TINY": TINY,
    "MEASURED": measured.measurements(),
    "value": value,
    "listing": listing,
    "figure": figure,
    "source": source,
    "readme": readme,
    "chapters": chapters,
    "exercise": exercise,
    "exercises": exercises,
    "timings": measured.timings,
    "ms": measured.ms,
    "row": measured.row,
    "times_floor": measured.times_floor,
    "times_torch": measured.times_torch,
    "gpu": measured.gpu,
    "measured_on": measured.measured_on,
    "origin": measured.origin,
    "duration": measured.duration,
    "significant": measured.significant,
    "ladder": ladder,
    "api_table": api_table,
    "commands": commands,
    "command_help": command_help,
    "commands_help": commands_help,
}
