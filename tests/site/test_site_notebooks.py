"""The notebooks: what their pages give, and each runs from top to bottom in a real kernel."""

import json
import os
import pathlib
import shutil
import sys

import pytest

from dsv41_numba.pages.notebooks import NOTEBOOKS, notebook, stale

jupytext = pytest.importorskip("jupytext", reason='needs pip install -e ".[site]"')

CELL_LIMIT_S = 120
CHAPTERS = sorted(NOTEBOOKS.glob("*.ipynb"))


def cells(markdown: str) -> list[tuple[str, str]]:
    """(kind, text) of every cell but the first."""
    made = json.loads(notebook(markdown, "tutorials/page.md"))["cells"]
    return [(cell["cell_type"], "".join(cell["source"])) for cell in made][1:]


def test_the_committed_notebooks_are_what_their_pages_give() -> None:
    assert stale() == [], "python -m dsv41_numba.pages.notebooks writes them anew"


def test_blocks_that_run_are_cells_and_all_else_is_text() -> None:
    python = "```python run\nx = 1\n\n\n# y\n```\n\n```python\nno\n```\n"
    page = f"# T\n\n{python}\n```sh run\nls\n```\n\n```sh run exit=1\nfalse\n```\n"
    assert cells(page) == [
        ("markdown", "# T"),
        ("code", "x = 1\n\n\n# y"),
        ("markdown", "```python\nno\n```"),
        ("code", "%%sh\nls"),
        ("code", "!false"),
    ]


def test_a_figure_is_a_cell_that_draws_it() -> None:
    assert cells('{{ figure("ladder", "All rungs") }}\n') == [
        ("code", 'from dsv41_numba.show import draw\n\ndraw("ladder")'),
        ("markdown", "All rungs"),
    ]


def test_folds_links_and_attributes_are_what_a_notebook_knows() -> None:
    page = '### A { #a }\n\n??? note "Hint"\n\n    See [b](02-b.md#c), [d](bits.md), [e](exercises/f.py).\n'
    text = "See [b](02-b.ipynb), [d](../bits.md), [e](../exercises/f.py)."
    assert cells(page) == [("markdown", f"### A\n\n<details><summary>Hint</summary>\n\n{text}\n\n</details>")]


def test_there_is_a_notebook_for_every_chapter() -> None:
    assert len(CHAPTERS) == 12


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(
    path: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("DSV41_BACKEND", "emulator")
    if shutil.which("dsv41") is None:  # the package was not installed but is on the path
        script = tmp_path / "dsv41"
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dsv41_numba "$@"\n', encoding="utf-8")
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    made = nbformat.read(path, as_version=4)
    folder = {"metadata": {"path": str(NOTEBOOKS)}}
    nbclient.NotebookClient(made, timeout=CELL_LIMIT_S, kernel_name="python3", resources=folder).execute()
    assert "kernels run on the emulator" in made.cells[0].outputs[0].text
