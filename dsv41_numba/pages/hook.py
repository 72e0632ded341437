"""What MkDocs calls while it builds the site: fills the pages, makes the API reference, adds what a page needs.

Nothing is written into `tutorials/`: the API pages and the pictures' style sheet exist in the built site only.
"""

import os

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

from dsv41_numba.pages.api import api_pages
from dsv41_numba.pages.fill import fill
from dsv41_numba.pages.markdown import PageError
from dsv41_numba.show.svg import STYLE

MATH = ('class="arithmatex"', ["assets/vendor/katex/katex.min.js", "assets/math.js"])
DIAGRAM = ('class="mermaid"', ["assets/vendor/mermaid/mermaid.min.js"])
MATH_STYLE = "assets/vendor/katex/katex.min.css"


def on_startup(command: str, dirty: bool) -> None:
    """The site shows what everyone can run."""
    os.environ.setdefault("DSV41_BACKEND", "emulator")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the API's pages into the navigation."""
    section = next(entry["API"] for entry in config.nav or [] if "API" in entry)
    section += [{title: path} for path, title, _ in api_pages()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what the package itself writes."""
    for path, _, text in api_pages():
        files.append(File.generated(config, path, content=text))
    files.append(File.generated(config, "assets/pictures.css", content=STYLE))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill a page, and link a chapter's notebook below its title."""
    path = page.file.src_uri
    if page.file.generated_by:
        return markdown
    try:
        filled = fill(markdown, f"tutorials/{path}")
    except PageError as error:
        raise PluginError(str(error)) from error
    notebook = f"notebooks/{path.removesuffix('.md')}.ipynb"
    if files.get_file_from_path(notebook):
        title, _, rest = filled.lstrip().partition("\n")
        filled = f"{title}\n\n[This chapter as a notebook]({notebook}){{ .notebook download }}\n{rest}"
    return filled


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Load the renderers of formulas and diagrams where there are some; before the theme's script, which looks for
    them."""

    def url(path: str) -> str:
        return get_relative_url(path, page.url)

    for sign, scripts in (MATH, DIAGRAM):
        if sign in html:
            html += "".join(f'\n<script src="{url(path)}"></script>' for path in scripts)
    if MATH[0] in html:
        html = f'<link rel="stylesheet" href="{url(MATH_STYLE)}">\n{html}'
    return html
