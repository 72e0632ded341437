"""What the built pages hold: ids, links, and what a browser loads with them."""

import functools
import pathlib
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href", "use": "href"}


class Html(HTMLParser):
    """One page's ids, links (of `a`) and loads (of scripts, styles, images)."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids |= {value for name in ("id", "name") if (value := found.get(name))}
        if tag == "a" and (target := found.get("href")):
            self.links.append(target)
        if tag in LOADS and (target := found.get(LOADS[tag])):
            self.loads.append(target)


@functools.cache
def html(path: pathlib.Path) -> Html:
    """A built page, read."""
    return Html(path.read_text(encoding="utf-8"))


def is_external(target: str) -> bool:
    """Whether a link leads to another host. data: and mailto: lead nowhere."""
    parts = urlsplit(target)
    return bool(parts.netloc) or parts.scheme in ("http", "https")


def resolve(site: pathlib.Path, page: pathlib.Path, target: str) -> tuple[pathlib.Path, str]:
    """The file that a link of a page leads to, and the anchor in it."""
    parts = urlsplit(target)
    path = unquote(parts.path)
    if not path:
        return page, unquote(parts.fragment)
    base = site if path.startswith("/") else page.parent
    found = (base / path.lstrip("/")).resolve()
    return (found / "index.html" if found.is_dir() else found), unquote(parts.fragment)
