"""Each chapter as a Jupyter notebook, made by jupytext from the chapter's own page.

    python -m dsv41_numba.pages.notebooks           writes tutorials/notebooks anew
    python -m dsv41_numba.pages.notebooks --check   says which of its files are not what the pages give

Blocks that run become code cells, figures too, commands shell cells; everything else is Markdown, with the expressions
filled in. The notebooks are kept without outputs, and the same page always gives the same bytes.
"""

import pathlib
import re
import sys
from typing import Any

from dsv41_numba.pages.execute import ROOT, TUTORIALS
from dsv41_numba.pages.exercises import exercise_block
from dsv41_numba.pages.fill import evaluated
from dsv41_numba.pages.markdown import Fence, PageError, Text, fenced, parts
from dsv41_numba.pages.names import SITE
from dsv41_numba.show import draw

NOTEBOOKS = TUTORIALS / "notebooks"
SETUP = """\
# Installs what is not there, numba-cuda too, which the tuned kernels need also without a GPU; and says which machine
# will run the kernels.
import importlib.util
import os
import shutil
import sys
from pathlib import Path

here = Path.cwd()
clone = next((folder for folder in (here, *here.parents) if (folder / "dsv41_numba").is_dir()), None)
assert clone, "open this notebook from its folder in a clone of the repository: tutorials/notebooks"
os.chdir(clone)
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # where dsv41 is
if shutil.which("dsv41") is None or importlib.util.find_spec("numba_cuda") is None:
    %pip install --quiet -e ".[gpu]"

from dsv41_numba.runtime.backend import current

print(f"kernels run on the {current().name}: {current().reason}")
"""
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
ADMONITION = re.compile(r'^(?P<indent> *)(?P<kind>!!!|\?\?\?\+?) +\w+(?: +"(?P<title>.*)")?$')
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
ATTRIBUTES = re.compile(r" *\{:? *[#.][^}]*\}")
FORMAT = {"extension": ".py", "format_name": "percent", "comment_magics": False}


def _figure(name: str, caption: str = "", **options: Any) -> str:
    """A code cell that draws the picture, and the caption below."""
    draw(name, **options)  # a wrong name or option is an error of the page
    call = ", ".join([f'"{name}"', *(f"{key}={value!r}" for key, value in options.items())])
    cell = fenced(f"from dsv41_numba.show import draw\n\ndraw({call})", "python run")
    return f"{cell}\n{caption}\n" if caption else cell


def _source(path: str) -> str:
    if not (ROOT / path).is_file():
        raise ValueError(f"path: expected a file of the repository, got {path!r}")
    return f"[`{path}`](/{path})"


def _exercise(id: str) -> str:
    return exercise_block(id, "sh run exit=1")


NAMES = SITE | {"figure": _figure, "source": _source, "exercise": _exercise}


def notebook(markdown: str, page: str) -> str:
    """A page as the text of an .ipynb file. Raises PageError as `fill` does."""
    import jupytext
    import nbformat

    evaluate = (evaluated(part, page, NAMES) if isinstance(part, Text) else part.text for part in parts(markdown, page))
    cells, text = [f"# %%\n{SETUP}"], ""
    for part in parts(_without_admonitions("".join(evaluate)), page):
        if isinstance(part, Fence) and part.runs:
            cells += [_markdown(text), f"# %%\n{_code(part, page)}\n"]
            text = ""
        else:
            text += _block(part) if isinstance(part, Fence) else _text(part.text)
    made = jupytext.reads("\n".join([*cells, _markdown(text)]), fmt=FORMAT)
    made.metadata = nbformat.from_dict(METADATA)
    stem = pathlib.Path(page).stem
    for number, cell in enumerate(made.cells):
        cell.id, cell.metadata = f"{stem}-{number}", {}
    made.nbformat, made.nbformat_minor = 4, 5
    nbformat.validate(made)
    return str(nbformat.writes(made)).rstrip("\n") + "\n"


def _markdown(text: str) -> str:
    """A cell of text; none of empty text."""
    lines = text.strip().splitlines()
    return "\n".join(["# %% [markdown]", *(f"# {line}".rstrip() for line in lines), ""]) if lines else ""


def _block(fence: Fence) -> str:
    """A block that does not run, with its title above."""
    title = re.search(r'title="([^"]*)"', fence.info)
    above = f"`{title[1]}`\n\n" if title else ""
    return above + fenced(fence.code, fence.language)


def _code(fence: Fence, page: str) -> str:
    """What a cell runs for a block."""
    code = fence.code.strip("\n")
    if fence.language == "python":
        return code
    if fence.options.get("exit", "0") == "0":
        return f"%%sh\n{code}"
    if "\\\n" in code:
        raise PageError(page, fence.line, f"```{fence.info}: expected commands of one line each")
    return "\n".join(f"!{line}" for line in code.splitlines())  # takes any exit code


def _text(text: str) -> str:
    """Text of a page as a notebook shows it: no attributes, links that lead on from the notebooks' folder."""
    return re.sub(r"\n{3,}", "\n\n", LINK.sub(_link, ATTRIBUTES.sub("", text)))


def _link(found: re.Match[str]) -> str:
    path, _, _ = found["target"].partition("#")
    if ":" in path or not path:
        return found[0] if path else found["text"]
    if path.startswith("/"):
        path = f"../..{path}"  # a file of the repository
    elif re.match(r"\d\d-.*\.md$", path):
        path = path.removesuffix(".md") + ".ipynb"
    else:
        path = f"../{path}"
    return f"[{found['text']}]({path})"


def _without_admonitions(markdown: str) -> str:
    """Notes as bold titles and folds as <details>, since notebooks know neither; a fold with cells in it stays open."""
    lines = markdown.splitlines()
    out: list[str] = []
    at = 0
    while at < len(lines):
        opening = ADMONITION.match(lines[at])
        if not opening:
            out.append(lines[at])
            at += 1
            continue
        inside = opening["indent"] + "    "
        end = at + 1
        while end < len(lines) and (lines[end].startswith(inside) or not lines[end].strip()):
            end += 1
        body = _without_admonitions("\n".join(line.removeprefix(inside) for line in lines[at + 1 : end]))
        title, at = opening["title"] or "Note", end
        if opening["kind"] == "!!!" or re.search(r"^ *(```|~~~)\w+ run", body, re.MULTILINE):
            out += [f"**{title}**", "", *body.strip("\n").split("\n"), ""]
        else:
            out += [f"<details><summary>{title}</summary>", "", *body.strip("\n").split("\n"), "", "</details>", ""]
    return "\n".join(out) + "\n"


def notebooks() -> dict[str, str]:
    """The text of every chapter's notebook by its file's name."""
    pages = sorted(TUTORIALS.glob("[0-9][0-9]-*.md"))
    return {
        f"{path.stem}.ipynb": notebook(path.read_text(encoding="utf-8"), f"tutorials/{path.name}") for path in pages
    }


def stale(folder: pathlib.Path = NOTEBOOKS) -> list[str]:
    """The files of a folder that are not what the pages give, or missing, or of no page."""
    expected = notebooks()
    got = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.ipynb"))}
    return [name for name in sorted(expected.keys() | got.keys()) if expected.get(name) != got.get(name)]


def main(arguments: list[str]) -> int:
    """Write or, with --check, compare the notebooks; the exit code."""
    if arguments == ["--check"]:
        wrong = stale()
        print(
            "\n".join(f"{name}: not what its page gives" for name in wrong) or "every notebook is what its page gives"
        )
        return 1 if wrong else 0
    if arguments:
        print(f"expected no argument or --check, got {' '.join(arguments)}", file=sys.stderr)
        return 2
    made = notebooks()
    NOTEBOOKS.mkdir(parents=True, exist_ok=True)
    for path in NOTEBOOKS.glob("*.ipynb"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (NOTEBOOKS / name).write_text(text, encoding="utf-8")
    print(f"{len(made)} notebooks in {NOTEBOOKS.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except PageError as error:
        sys.exit(str(error))
