"""Import a reader's file, and say where in it something went wrong."""

import linecache
import pathlib
import re
import sys
import traceback
from dataclasses import dataclass
from types import ModuleType

from dsv41_numba.runtime.emulator import EmulatorError, Race


@dataclass(frozen=True)
class Trouble:
    """An error: what, and at which line of the reader's file (None when it did not come from there)."""

    message: str
    line: int | None
    source: str  # the text of that line
    is_race: bool = False


def load(path: pathlib.Path, exercise: str) -> ModuleType:
    """The module of a file as it is now. Whatever its code raises comes through.

    A reader's file and the solution get the same module name, so that equal kernels share their compiled code.
    """
    name = f"exercise_{exercise}"
    module = ModuleType(name)
    module.__file__ = str(path)
    linecache.checkcache(str(path))
    sys.modules[name] = module
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), module.__dict__)
    return module


def trouble(error: BaseException, path: pathlib.Path) -> Trouble:
    """Where and what an error was, in one sentence."""
    ours = isinstance(error, EmulatorError)
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    if isinstance(error, SyntaxError) and error.filename == str(path):
        text, line = error.msg, error.lineno
    else:
        line = _line(error, text, path)
    if not ours:
        # Numba explains at length; the reason is the first more specific error in it, or one of its first lines
        specific = re.findall(r"(?:Name|Type|NumbaType|Typing|Lowering)Error: ([^\n]+)", text)
        lines = [part.strip() for part in text.splitlines() if part.strip() and not part.startswith("Failed in")]
        text = (specific + lines + [""])[0]
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    text = re.sub(rf"{re.escape(str(path))}:(\d+)", r"line \1", text)
    source = linecache.getline(str(path), line).strip() if line else ""
    return Trouble(text, line, source, isinstance(error, Race))


def _line(error: BaseException, text: str, path: pathlib.Path) -> int | None:
    """The line of the reader's file: as the emulator names it, else the innermost one that was running."""
    named = re.search(rf"{re.escape(str(path))}:(\d+)", text)
    if named:
        return int(named[1])
    frames = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    return frames[-1] if frames else None
