"""`dsv41 show`: draw a picture into a file."""

import argparse
import inspect
import os
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dsv41_numba.show import draw, pictures
from dsv41_numba.show.svg import Picture


def run(args: argparse.Namespace, console: Console) -> int:
    """Draw, or list what there is. Raises ValueError for a name, an option or a value that no picture has."""
    if args.list:
        print_list(console)
        return 0
    if args.name is None:
        raise ValueError("expected the NAME of a picture, or --list")
    picture = draw(args.name, **options(args.name, args.options))
    path = pathlib.Path(args.out or f"{args.name}.svg")
    write(path, picture.svg())
    console.print(f"{escape(str(path))}: {escape(picture.title)}", soft_wrap=True)
    return 0


def options(name: str, given: list[str]) -> dict[str, Any]:
    """What was given as key=value, each value in the type of the option's default."""
    known = parameters(pictures()[name]) if name in pictures() else {}
    found: dict[str, Any] = {}
    for option in given:
        key, equals, text = option.partition("=")
        if not equals:
            raise ValueError(f"{option}: expected KEY=VALUE")
        kind = type(known[key]) if key in known else str  # `draw` refuses the others
        try:
            found[key] = kind(text)
        except ValueError:
            raise ValueError(f"{key}: expected {kind.__name__} such as {known[key]}, got {text!r}") from None
    return found


def parameters(function: Callable[..., Picture]) -> dict[str, Any]:
    """A picture's options with their defaults."""
    return {p.name: p.default for p in inspect.signature(function).parameters.values()}


def print_list(console: Console) -> None:
    """Every picture, its options with their defaults, and the first line of its docstring."""
    table = Table(box=SIMPLE_HEAD)
    for column in ("picture", "options", "shows"):
        table.add_column(column)
    for name, function in pictures().items():
        defaults = " ".join(f"{key}={value}" for key, value in parameters(function).items())
        table.add_row(name, escape(defaults), escape((inspect.getdoc(function) or "").split("\n")[0]))
    console.print(table)


def write(path: pathlib.Path, text: str) -> None:
    """Write a file whole or not at all."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=".", delete=False) as scratch:
        scratch.write(text)
    os.chmod(scratch.name, 0o644)
    os.replace(scratch.name, path)
