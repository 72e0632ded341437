"""A matrix product in tiles: where the tiles of one block are, step by step, and who uses a number of a tile."""

from dsv41_numba.ops.linear import TILE
from dsv41_numba.show.svg import Picture

UNIT = 3.4  # of the picture, a row or column of a matrix
CELL = 11  # of the picture, an element of a tile


def tile(M: int = 48, N: int = 64, K: int = 80, step: int = 2, row: int = 1, column: int = 2) -> Picture:
    """The tiles of x and weight that one block holds in a step, and the tile of y that it makes.

    The block makes tile (row, column) of y [M, N]; weight [N, K] is drawn turned, so that tiles meet where they belong.
    """
    steps = -(-K // TILE)
    if not (0 <= step < steps and 0 <= row < -(-M // TILE) and 0 <= column < -(-N // TILE)):
        raise ValueError(
            f"step, row, column: expected a tile of a {M} x {N} x {K} product, got {step}, {row}, {column}"
        )
    left, top, gap = 20.0, 64.0, 26.0
    weight_x, y_y = left + UNIT * K + gap, top + UNIT * K + gap
    picture = Picture(
        weight_x + UNIT * N + 20,
        y_y + UNIT * M + 56,
        "Tiles of a matrix product",
        f"x is {M} by {K}, weight {N} by {K}. A block makes one {TILE} by {TILE} tile of y in {steps} steps; in step "
        f"{step + 1} it holds the tile of x and the tile of weight at columns {step * TILE} and up.",
    )
    picture.text(left, 28, f"Step {step + 1} of {steps}: k0 = {step * TILE}", bold=True, size=17)
    picture.text(left, 50, f"one square is a tile, {TILE} x {TILE} numbers", "quiet", 14)
    for x, y, columns, rows in ((left, y_y, K, M), (weight_x, top, N, K), (weight_x, y_y, N, M)):
        _matrix(picture, x, y, columns, rows)
    for k in range(steps):
        done = "solid" if k == step else "done" if k < step else "ahead"
        _tile(picture, left, y_y, row, k, M, K, "blue", done, f"x, step {k + 1}")
        _tile(picture, weight_x, top, k, column, K, N, "orange", done, f"weight, step {k + 1}")
    _tile(picture, weight_x, y_y, row, column, M, N, "green", "solid", "the tile of y of this block")
    # the way of both tiles along K
    middle = y_y + UNIT * TILE * (row + 0.5)
    picture.line(left + UNIT * TILE * (step + 1) + 2, middle, left + UNIT * K - 2, middle, "blue", 2.5, arrow=True)
    middle = weight_x + UNIT * TILE * (column + 0.5)
    picture.line(middle, top + UNIT * TILE * (step + 1) + 2, middle, top + UNIT * K - 2, "orange", 2.5, arrow=True)
    below = y_y + UNIT * M + 22
    picture.text(left, below, f"x [{M}, {K}]", "blue", 15, bold=True)
    picture.text(left, below + 20, "K to the right", "quiet", 14)
    picture.text(weight_x, below, f"y [{M}, {N}]", "green", 15, bold=True)
    picture.text(weight_x - 10, top + 16, f"weight [{N}, {K}]", "orange", 15, True, "end")
    picture.text(weight_x - 10, top + 36, "turned: K downwards", "quiet", 14, anchor="end")
    return picture


def reuse(thread_x: int = 5, thread_y: int = 9, k: int = 3) -> Picture:
    """Which threads of a block use one number of each tile: a row of them, and a column."""
    if not {thread_x, thread_y, k} <= {*range(TILE)}:
        raise ValueError(f"thread_x, thread_y, k: expected 0 to {TILE - 1}, got {thread_x}, {thread_y}, {k}")
    size, left, top, gap = CELL * TILE, 20, 66, 24
    picture = Picture(
        2 * left + 3 * size + 2 * gap,
        top + size + 92,
        "Who uses a number of a tile",
        f"x_tile[{thread_y}, {k}] is used by the {TILE} threads of row {thread_y}, weight_tile[{thread_x}, {k}] by the "
        f"{TILE} threads of column {thread_x}.",
    )
    x_left, weight_left, block_left = (left + i * (size + gap) for i in range(3))
    for start, label, ink in ((x_left, "x_tile", "blue"), (weight_left, "weight_tile", "orange")):
        picture.text(start, 28, label, ink, 16, bold=True)
        picture.text(start, 50, "row r, column k", "quiet", 14)
    picture.text(block_left, 28, "the block", bold=True, size=16)
    picture.text(block_left, 50, "row ty, column tx", "quiet", 14)
    for r in range(TILE):
        for c in range(TILE):
            here = "blue" if (r, c) == (thread_y, k) else "pale-blue" if r == thread_y else "pale"
            _cell(picture, x_left, top, r, c, here)
            here = "orange" if (r, c) == (thread_x, k) else "pale-orange" if r == thread_x else "pale"
            _cell(picture, weight_left, top, r, c, here)
            uses = r == thread_y, c == thread_x
            fills = {(True, True): "green", (True, False): "pale-blue", (False, True): "pale-orange"}
            _cell(picture, block_left, top, r, c, fills.get(uses, "pale"))
    x, weight = f"x_tile[{thread_y}, {k}]", f"weight_tile[{thread_x}, {k}]"
    lines = (
        (f"{x}: for the {TILE} threads with ty = {thread_y}", "blue"),
        (f"{weight}: for the {TILE} threads with tx = {thread_x}", "orange"),
        (f"thread (tx {thread_x}, ty {thread_y}) multiplies the two", "green"),
    )
    for i, (text, ink) in enumerate(lines):
        picture.text(left, top + size + 26 + 22 * i, text, ink, 15)
    return picture


def _matrix(picture: Picture, x: float, y: float, columns: int, rows: int) -> None:
    """A matrix with a line wherever a tile begins."""
    picture.rect(x, y, UNIT * columns, UNIT * rows, "pale", "line", thick=1.5)
    for c in range(TILE, columns, TILE):
        picture.line(x + UNIT * c, y, x + UNIT * c, y + UNIT * rows)
    for r in range(TILE, rows, TILE):
        picture.line(x, y + UNIT * r, x + UNIT * columns, y + UNIT * r)


def _tile(
    picture: Picture, x: float, y: float, row: int, column: int, rows: int, columns: int, ink: str, kind: str, tip: str
) -> None:
    """A tile of a matrix, cut off where the matrix ends: of this step, of one before, or of one to come."""
    left, top = UNIT * TILE * column, UNIT * TILE * row
    width, height = min(UNIT * TILE, UNIT * columns - left), min(UNIT * TILE, UNIT * rows - top)
    fill = {"ahead": "none", "done": f"pale-{ink}", "solid": ink}[kind]
    dash = "4 4" if kind == "ahead" else ""
    picture.rect(x + left, y + top, width, height, fill, ink, thick=1.5, dash=dash, tip=tip)


def _cell(picture: Picture, x: float, y: float, row: int, column: int, fill: str) -> None:
    picture.rect(x + CELL * column, y + CELL * row, CELL, CELL, fill, "line", thick=0.7)


PICTURES = {"tile": tile, "tile_reuse": reuse}
