"""Run the fences marked `run`: Python in one namespace a page, commands in a shell. What they print is what is shown.

The blocks run in this process, on whatever machine `runtime.backend` chose; the site's builds choose the emulator. A
block is compiled under the page's own name and line numbers, so that a traceback, a kernel's source and a message of
the emulator all point into the page.

markdown-exec does much the same, but it replaces `print`, so that what a library prints is lost; it gives a kernel no
source to be compiled from; and a failure is a warning to it. Here site, notebooks and preview share one way.
"""

import contextlib
import io
import linecache
import os
import pathlib
import subprocess
import sys
import traceback
import types
from dataclasses import dataclass

from dsv41_numba.pages.markdown import Fence, PageError

ROOT = pathlib.Path(__file__).parent.parent.parent  # the checkout
TUTORIALS = ROOT / "tutorials"
COLUMNS = 100  # what commands may print into
COMMAND_LIMIT_S = 300
OPTIONS = {"python": {"head", "tail"}, "sh": {"head", "tail", "exit"}}


@dataclass(frozen=True)
class Output:
    """What a block printed, shortened if its fence says so."""

    text: str


class Runner:
    """Runs the blocks of one page, top to bottom. `markdown` is the page's whole text."""

    def __init__(self, page: str, markdown: str) -> None:
        self.page = page
        # where inspect looks for the source of a kernel, which the emulator compiles
        linecache.cache[page] = (len(markdown), None, markdown.splitlines(keepends=True), page)
        self.module = types.ModuleType("page_" + "".join(c if c.isalnum() else "_" for c in pathlib.Path(page).stem))
        sys.modules[self.module.__name__] = self.module  # dataclasses and inspect look there

    def run(self, fence: Fence) -> Output:
        """Run one block. Raises PageError when it fails."""
        if fence.language not in OPTIONS:
            raise PageError(self.page, fence.line, f"```{fence.info}: expected python or sh to run")
        unknown = set(fence.options) - OPTIONS[fence.language]
        if unknown:
            expected = ", ".join(sorted(OPTIONS[fence.language]))
            raise PageError(
                self.page, fence.line, f"```{fence.info}: expected options among {expected}, got {min(unknown)}"
            )
        try:
            with contextlib.chdir(ROOT):
                text = self._python(fence) if fence.language == "python" else self._sh(fence)
        except PageError:
            raise
        except (Exception, SystemExit) as error:
            raise PageError(self.page, self._line(error, fence), f"{type(error).__name__}: {error}") from error
        return Output(shortened(text, int(fence.options.get("head", 0)), int(fence.options.get("tail", 0))))

    def _python(self, fence: Fence) -> str:
        code = compile("\n" * fence.line + fence.code, self.page, "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, self.module.__dict__)
        return printed.getvalue()

    def _sh(self, fence: Fence) -> str:
        environment = os.environ | {
            "PATH": f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "COLUMNS": str(COLUMNS),
            "NO_COLOR": "1",
        }
        done = subprocess.run(
            ["sh", "-ec", commands(fence.code)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=COMMAND_LIMIT_S,
            env=environment,
        )
        expected = int(fence.options.get("exit", 0))
        if done.returncode != expected:
            last = "\n".join(done.stdout.splitlines()[-20:])
            raise PageError(
                self.page, fence.line, f"exit code {done.returncode}, expected {expected}: {fence.code.strip()}\n{last}"
            )
        return done.stdout

    def _line(self, error: BaseException, fence: Fence) -> int:
        """The line of the page that an error came from."""
        if isinstance(error, SyntaxError) and error.filename == self.page and error.lineno:
            return error.lineno
        of_page = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == self.page]
        return of_page[-1] or fence.line if of_page else fence.line


def commands(code: str) -> str:
    """The lines of a shell block, with `dsv41` as this interpreter runs it even where no script is installed."""
    return f'dsv41() {{ "{sys.executable}" -m dsv41_numba "$@"; }}\n{code}'


def shortened(text: str, head: int, tail: int) -> str:
    """The first `head` and the last `tail` lines, a line with an ellipsis between them; all of it if both are 0."""
    lines = text.rstrip().splitlines()
    if not (head or tail) or len(lines) <= head + tail + 1:
        return text
    return "\n".join([*lines[:head], "…", *(lines[-tail:] if tail else [])]) + "\n"
