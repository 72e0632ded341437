"""Every page in a real browser: wide and narrow, light and dark."""

import re
from typing import Any

import pytest

from dsv41_numba.pages.api import TITLES
from dsv41_numba.pages.execute import TUTORIALS
from dsv41_numba.show.svg import DARK, LIGHT

WIDTHS = (1280, 390)
SCHEMES = {"light": LIGHT, "dark": DARK}
PAGES = [f"{path.stem}.html" for path in sorted(TUTORIALS.glob("*.md"))]
REFERENCE = [f"api/{part}.html" for part in TITLES]
SWITCH = "form[data-md-component='palette'] label:visible"  # between light and dark
LIMIT_MS = 20_000

# what the page's scripts have to do after loading: set each formula, replace each diagram's text by its drawing
RENDERED = """() => [...document.querySelectorAll(".arithmatex")].every(e => e.querySelector(".katex"))
    && [...document.querySelectorAll("pre.mermaid")].length === 0
    && [...document.querySelectorAll("div.mermaid")].every(e => e.offsetHeight > 20)"""
PICTURE_PAPER = """() => [...document.querySelectorAll("svg.picture")].map(
    e => getComputedStyle(e).getPropertyValue("--paper").trim())"""
TOO_WIDE = """() => document.documentElement.scrollWidth <= innerWidth ? [] : [...document.querySelectorAll("body *")]
    .filter(e => e.getBoundingClientRect().right > innerWidth + 1).slice(0, 5)
    .map(e => `${e.tagName} ${e.className}: ${e.textContent.trim().slice(0, 40)}`)"""


@pytest.fixture
def open_page(browser: Any, server: str) -> Any:
    """Opens a page of the site; what goes wrong in it collects in `troubles`."""
    contexts = []

    def open(name: str, width: int = WIDTHS[0], scheme: str = "light") -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(LIMIT_MS)
        page.troubles = []
        page.on("console", lambda message: message.type == "error" and page.troubles.append(message.text))
        page.on("pageerror", lambda error: page.troubles.append(str(error)))
        page.on("requestfailed", lambda request: page.troubles.append(f"failed: {request.url}"))
        local = (server, "data:", "blob:")
        page.on("request", lambda r: r.url.startswith(local) or page.troubles.append(f"another host: {r.url}"))
        page.goto(f"{server}/{name}")
        return page

    yield open
    for context in contexts:
        context.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_renders_and_fits_in_light_and_in_dark(open_page: Any, name: str) -> None:
    page = open_page(name, scheme="light")
    page.wait_for_function(RENDERED)
    assert page.locator(".katex-error").count() == 0
    for width, schemes in zip(WIDTHS, (("light", "dark"), ("dark", "light"))):
        page.set_viewport_size({"width": width, "height": 900})
        for number, scheme in enumerate(schemes):
            if number > 0:
                page.locator(SWITCH).click()
            assert set(page.evaluate(PICTURE_PAPER)) <= {SCHEMES[scheme]["paper"]}
            assert page.evaluate(TOO_WIDE) == [], f"wider than {width}, {scheme}"
    assert page.troubles == []


@pytest.mark.parametrize("name", REFERENCE)
def test_a_page_of_the_reference_loads_and_fits(open_page: Any, name: str) -> None:
    page = open_page(name, WIDTHS[-1])
    assert page.evaluate(TOO_WIDE) == []
    assert page.troubles == []


def test_the_system_chooses_dark_and_the_switch_overrules_it(open_page: Any) -> None:
    name = next(f"{p.stem}.html" for p in sorted(TUTORIALS.glob("0*.md")) if "{{ figure(" in p.read_text("utf-8"))
    page = open_page(name, scheme="dark")
    assert set(page.evaluate(PICTURE_PAPER)) == {DARK["paper"]}
    page.locator(SWITCH).click()
    assert page.locator("body").get_attribute("data-md-color-scheme") == "default"
    assert set(page.evaluate(PICTURE_PAPER)) == {LIGHT["paper"]}


def test_the_search_finds_a_kernel(open_page: Any) -> None:
    page = open_page("index.html")
    page.locator("input.md-search__input").fill("linear_kernel")
    page.locator(".md-search-result__item").first.wait_for()
    assert re.search(r"linear", page.locator(".md-search-result__item").first.inner_text())
    assert page.troubles == []


def test_a_diagram_and_a_formula_are_there_to_be_rendered() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in TUTORIALS.glob("*.md"))
    assert "```mermaid" in text
    assert "$" in re.sub(r"`[^`]*`", "", text)
