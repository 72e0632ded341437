"""The built site: no dead link, nothing loaded from another host, everything within reach."""

import ast
import pathlib
import re

import pytest
from html_pages import html, is_external, resolve

from dsv41_numba.pages import names
from dsv41_numba.pages.api import modules
from dsv41_numba.pages.execute import TUTORIALS
from dsv41_numba.pages.listing import module_path

ELSEWHERE = ("data:", "mailto:", "javascript:", "blob:")


def pages_of(site: pathlib.Path) -> list[pathlib.Path]:
    return sorted(site.rglob("*.html"))


def test_every_page_of_tutorials_is_in_the_site(site: pathlib.Path) -> None:
    missing = [page.name for page in TUTORIALS.glob("*.md") if not (site / page.with_suffix(".html").name).is_file()]
    assert not missing


def test_no_link_is_dead(site: pathlib.Path) -> None:
    dead = []
    for page in pages_of(site):
        for target in html(page).links + html(page).loads:
            if is_external(target) or target.startswith(ELSEWHERE):
                continue
            path, anchor = resolve(site, page, target)
            if not path.is_file():
                dead.append(f"{page.relative_to(site)}: {target}: no such file")
            elif anchor and path.suffix == ".html" and anchor not in html(path).ids and anchor != "__tabbed":
                dead.append(f"{page.relative_to(site)}: {target}: no such place in {path.name}")
    assert not dead, "\n".join(dead)


def test_nothing_is_loaded_from_another_host(site: pathlib.Path) -> None:
    outside = [
        f"{page.name}: {target}" for page in pages_of(site) for target in html(page).loads if is_external(target)
    ]
    for sheet in site.rglob("*.css"):
        for target in re.findall(r"url\(\s*['\"]?([^'\")]+)", sheet.read_text(encoding="utf-8")):
            if is_external(target):
                outside.append(f"{sheet.name}: {target}")
            elif not target.startswith(("data:", "#")) and not resolve(site, sheet, target)[0].is_file():
                outside.append(f"{sheet.name}: {target}: no such file")
        imported = re.findall(r"@import[^;]*", sheet.read_text(encoding="utf-8"))
        outside += [f"{sheet.name}: {line}" for line in imported if "//" in line]
    assert not outside, "\n".join(outside)


def test_every_page_is_within_reach_of_the_first(site: pathlib.Path) -> None:
    first = site / "index.html"
    reached, waiting = {first}, [first]
    while waiting:
        page = waiting.pop()
        for target in html(page).links:
            if is_external(target) or target.startswith(ELSEWHERE):
                continue
            path, _ = resolve(site, page, target)
            if path.suffix == ".html" and path.is_file() and path not in reached:
                reached.add(path)
                waiting.append(path)
    assert [page.name for page in pages_of(site) if page not in reached and page.name != "404.html"] == []


@pytest.fixture(scope="module")
def documented(site: pathlib.Path) -> set[str]:
    """Every name that the API reference has a place for."""
    return set().union(*(html(page).ids for page in (site / "api").glob("*.html")))


def test_every_public_function_kernel_and_class_is_in_the_reference(documented: set[str]) -> None:
    missing = []
    for module in modules():
        tree = ast.parse(module_path(module).read_text(encoding="utf-8"))
        defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        wanted = [module, *(f"{module}.{name}" for name in defined if not name.startswith("_"))]
        missing += [name for name in wanted if name not in documented]
    assert not missing, "\n".join(missing)


def test_every_command_is_in_the_reference(site: pathlib.Path) -> None:
    commands = re.findall(r"\[`dsv41 ([a-z-]+)`\]", names.commands())
    assert len(commands) > 5
    assert not [name for name in commands if f"dsv41-{name}" not in html(site / "api.html").ids]


def test_every_exercise_has_a_place_on_its_chapters_page(site: pathlib.Path) -> None:
    from dsv41_numba.exercise import exercises
    from dsv41_numba.pages.exercises import page

    built = {id: site / page(entry.chapter).replace(".md", ".html") for id, entry in exercises().items()}
    assert not [id for id, path in built.items() if f"exercise-{id}" not in html(path).ids]
