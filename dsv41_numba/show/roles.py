"""The role map: forty layers from top to bottom, and an arrow for everything that one takes from another."""

from dataclasses import dataclass

from dsv41_numba.config import AttnV41Cfg
from dsv41_numba.roles import LayerRole, roles
from dsv41_numba.show.layer import geometry
from dsv41_numba.show.svg import Picture

WIDTH, TOP, ROW = 560, 92, 24
BOX_LEFT, BOX_WIDTH, BOX_HEIGHT = 216, 128, 18
LANE = 34  # half of what is between the spines of two kinds of arrows
APART = 5  # units between arrows that leave or enter one layer, so that no two lie on one line
COLOURS = {
    "SWA": ("pale", "quiet"),
    "FULL": ("pale-orange", "orange"),
    "REINDEX": ("pale-green", "green"),
    "REUSE": ("pale-blue", "blue"),
}
# what is handed on -> its colour, the side and place of its spine
LANES = {"rows": ("blue", -1, 1), "keys": ("orange", -1, 3), "selection": ("green", 1, 1), "mask": ("purple", 1, 3)}


@dataclass(frozen=True)
class Handed:
    """One thing that a layer takes from an earlier one."""

    what: str
    source: int
    reader: int


def handed(cfg: AttnV41Cfg) -> list[Handed]:
    """Everything that a layer of this geometry takes from another one, reader by reader."""
    found = []
    for role in roles(cfg):
        sources = {
            "rows": role.kv_source,
            "keys": role.key_source,
            "selection": role.index_source,
            "mask": role.obeys_candidates,
        }
        found += [
            Handed(what, source, role.layer)
            for what, source in sources.items()
            if source is not None and source != role.layer
        ]
    return found


def role_map(size: str = "flash") -> Picture:
    """The role of every layer, and who reads rows, keys, selection and mask of whom."""
    return map_of(geometry(size))


def map_of(cfg: AttnV41Cfg) -> Picture:
    """`role_map` of any geometry."""
    table, arrows = roles(cfg), handed(cfg)
    picture = Picture(
        WIDTH,
        TOP + ROW * len(table) + 8,
        f"What {len(table)} layers hand each other",
        "; ".join(f"layer {a.reader} reads {a.what} of layer {a.source}" for a in arrows),
    )
    picture.text(16, 28, f"{len(table)} layers, each with its role and its ratio", size=16, bold=True)
    for what, (colour, side, place) in LANES.items():
        x = _spine(side, place)
        picture.line(x - 10, 56, x + 10, 56, colour, 3)
        picture.text(x, 76, what, colour, 14, True, "middle")
    for what, (colour, side, place) in LANES.items():
        x = _spine(side, place)
        edge = BOX_LEFT if side < 0 else BOX_LEFT + BOX_WIDTH
        for source in dict.fromkeys(a.source for a in arrows if a.what == what):
            readers = [a.reader for a in arrows if (a.what, a.source) == (what, source)]
            lift = APART if place == 1 else 0
            leaves = _middle(source) + lift
            picture.line(edge, leaves, x, leaves, colour, 2)
            picture.line(x, leaves, x, _middle(readers[-1]) - lift, colour, 2)
            for reader in readers:
                y = _middle(reader) - lift
                picture.line(x, y, edge + 2 * side, y, colour, 1.5, arrow=True)
    for role in table:
        _box(picture, role, arrows)
    return picture


def _box(picture: Picture, role: LayerRole, arrows: list[Handed]) -> None:
    fill, stroke = COLOURS[role.kind]
    y = _middle(role.layer) - BOX_HEIGHT / 2
    taken = [f"{a.what} of layer {a.source}" for a in arrows if a.reader == role.layer]
    tip = f"layer {role.layer}: {role.kind}, ratio {role.ratio}"
    tip += f", reads {', '.join(taken)}" if taken else ", reads no other layer"
    picture.rect(BOX_LEFT, y, BOX_WIDTH, BOX_HEIGHT, fill, stroke, 3, 1.5 if role.is_index_source else 1, tip=tip)
    picture.text(BOX_LEFT + 26, y + 14, role.layer, "ink", 14, True, "end", mono=True)
    picture.text(BOX_LEFT + 36, y + 14, role.kind, "ink", 14, role.is_index_source)
    picture.text(BOX_LEFT + BOX_WIDTH - 8, y + 14, role.ratio or "-", "quiet", 14, anchor="end", mono=True)


def _middle(layer: int) -> float:
    return TOP + ROW * layer + ROW / 2


def _spine(side: int, place: int) -> float:
    edge = BOX_LEFT if side < 0 else BOX_LEFT + BOX_WIDTH
    return edge + side * LANE * (1 + place)


PICTURES = {"role_map": role_map}
