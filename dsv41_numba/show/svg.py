"""A small SVG canvas: what every picture is made of.

Colours are names, not values, so that a picture is readable on light and dark: a stand-alone file follows the system's
setting, a picture inside a page of the site follows the page's.
"""

import hashlib
from html import escape

LIGHT = {
    "paper": "#ffffff",
    "ink": "#1f2328",
    "quiet": "#59636e",
    "line": "#c3cad2",
    "blue": "#2f6fb5",
    "orange": "#b35900",
    "green": "#1f7a4d",
    "red": "#b3261e",
    "purple": "#7a4fb5",
    "pale": "#eef1f4",
    "pale-blue": "#d7e6f7",
    "pale-orange": "#fbe3cb",
    "pale-green": "#d3efdf",
    "pale-red": "#f9dbd8",
    "pale-purple": "#e7dcf7",
}
DARK = {
    "paper": "#151b23",
    "ink": "#f0f6fc",
    "quiet": "#9aa4ae",
    "line": "#4a535e",
    "blue": "#6aa9ea",
    "orange": "#e0914d",
    "green": "#58b98a",
    "red": "#f0837a",
    "purple": "#b592ea",
    "pale": "#222a34",
    "pale-blue": "#1f3a58",
    "pale-orange": "#4d3216",
    "pale-green": "#173f2b",
    "pale-red": "#512522",
    "pale-purple": "#382a55",
}
SANS = "system-ui, -apple-system, 'Segoe UI', sans-serif"
MONO = "ui-monospace, 'Cascadia Mono', 'DejaVu Sans Mono', Consolas, monospace"


def variables(colours: dict[str, str]) -> str:
    """CSS that gives every colour name its value."""
    return " ".join(f"--{name}: {value};" for name, value in colours.items())


STYLE = "\n".join(
    [
        f".picture {{ {variables(LIGHT)} font-family: {SANS} }}",
        f"@media (prefers-color-scheme: dark) {{ .picture {{ {variables(DARK)} }} }}",
        f'[data-md-color-scheme="default"] .picture {{ {variables(LIGHT)} }}',
        f'[data-md-color-scheme="slate"] .picture {{ {variables(DARK)} }}',
        f".picture .mono {{ font-family: {MONO} }}",
        *(f".picture .fill-{name} {{ fill: var(--{name}) }}" for name in LIGHT),
        *(f".picture .stroke-{name} {{ stroke: var(--{name}) }}" for name in LIGHT),
    ]
)


def number(value: float) -> str:
    """A coordinate as text, at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"


class Picture:
    """A canvas `width` x `height` units; x grows to the right, y downwards. Methods draw in call order.

    title        one line, read out by screen readers and shown as a tooltip
    description  what a person who cannot see the picture needs to know
    """

    def __init__(self, width: float, height: float, title: str, description: str = ""):
        self.width, self.height, self.title, self.description = width, height, title, description
        self.parts: list[str] = []

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str = "none",
        stroke: str = "none",
        radius: float = 0,
        thick: float = 1,
        dash: str = "",
        tip: str = "",
    ) -> None:
        """A rectangle; `tip` is shown when the pointer rests on it."""
        shape = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" rx="{radius:g}"'
        self._shape("rect", shape, fill, stroke, thick, dash, tip)

    def circle(
        self, x: float, y: float, r: float, fill: str = "none", stroke: str = "none", thick: float = 1, tip: str = ""
    ) -> None:
        """A circle around (x, y)."""
        shape = f'cx="{number(x)}" cy="{number(y)}" r="{number(r)}"'
        self._shape("circle", shape, fill, stroke, thick, "", tip)

    def line(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        stroke: str = "line",
        thick: float = 1,
        dash: str = "",
        arrow: bool = False,
    ) -> None:
        """A line, with a head at its end if it is an arrow."""
        self.path(f"M {number(x1)} {number(y1)} L {number(x2)} {number(y2)}", stroke=stroke, thick=thick, dash=dash)
        if arrow:
            length = max(((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5, 1e-9)
            ux, uy, head = (x2 - x1) / length, (y2 - y1) / length, 5 + thick
            corners = [(x2 - head * ux + s * head * uy / 2, y2 - head * uy - s * head * ux / 2) for s in (1, -1)]
            points = " L ".join(f"{number(a)} {number(b)}" for a, b in [(x2, y2), *corners])
            self.path(f"M {points} Z", fill=stroke)

    def path(
        self, d: str, fill: str = "none", stroke: str = "none", thick: float = 1, dash: str = "", tip: str = ""
    ) -> None:
        """A path in SVG's own notation."""
        self._shape("path", f'd="{d}"', fill, stroke, thick, dash, tip)

    def text(
        self,
        x: float,
        y: float,
        text: object,
        fill: str = "ink",
        size: float = 13,
        bold: bool = False,
        anchor: str = "start",
        mono: bool = False,
    ) -> None:
        """One line of text whose baseline is at y; anchor "start", "middle" or "end"."""
        kind = f"fill-{fill} mono" if mono else f"fill-{fill}"
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(
            f'<text class="{kind}" x="{number(x)}" y="{number(y)}" font-size="{size:g}"{weight} '
            f'text-anchor="{anchor}">{escape(str(text))}</text>'
        )

    def cell(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        text: object = "",
        fill: str = "pale",
        stroke: str = "line",
        ink: str = "ink",
        size: float = 13,
        bold: bool = False,
        tip: str = "",
    ) -> None:
        """A box with text in its middle: one element of an array, one bit, one row."""
        self.rect(x, y, width, height, fill, stroke, radius=2, tip=tip)
        if str(text):
            self.text(x + width / 2, y + height / 2 + 0.36 * size, text, ink, size, bold, "middle", mono=True)

    def svg(self) -> str:
        """The picture as one SVG document, which may also stand inside a page."""
        name = hashlib.sha256((self.title + "".join(self.parts)).encode()).hexdigest()[
            :8
        ]  # ids of one page may not meet
        return "\n".join(
            [
                f'<svg class="picture" xmlns="http://www.w3.org/2000/svg" '
                f'viewBox="0 0 {number(self.width)} {number(self.height)}" role="img" '
                f'aria-labelledby="t{name} d{name}">',
                f'<title id="t{name}">{escape(self.title)}</title>',
                f'<desc id="d{name}">{escape(self.description or self.title)}</desc>',
                f"<style>{STYLE}</style>",
                f'<rect class="fill-paper" width="{number(self.width)}" height="{number(self.height)}" rx="8"/>',
                *self.parts,
                "</svg>\n",
            ]
        )

    __str__ = svg
    _repr_svg_ = svg  # a notebook shows the picture

    def _shape(self, tag: str, shape: str, fill: str, stroke: str, thick: float, dash: str = "", tip: str = "") -> None:
        kinds = [f"{what}-{name}" for what, name in (("fill", fill), ("stroke", stroke)) if name != "none"]
        style = "" if fill != "none" else ' fill="none"'
        style += f' stroke-width="{thick:g}"' if stroke != "none" else ""
        style += f' stroke-dasharray="{dash}"' if dash else ""
        inside = f"><title>{escape(tip)}</title></{tag}>" if tip else "/>"
        self.parts.append(f'<{tag} class="{" ".join(kinds)}" {shape}{style}{inside}')
