"""How many threads add up one row: a tree over shared memory, and a butterfly of shuffles inside one warp.

Both pictures show a run: a kernel notes what each thread holds after every level.
"""

import numpy as np
from numba import cuda, float32

from dsv41_numba.runtime.backend import empty, launch, to_device, to_host
from dsv41_numba.show.svg import Picture

MOST = 32  # threads a picture can have: one warp
LEFT, SLOT, BOX, LEVEL = 92, 76, 30, 78
OWNER = 1  # the thread whose columns are marked


@cuda.jit
def tree_kernel(part, levels):
    """One block. part [threads] f32 -> levels [log2(threads) + 1, threads]: `partial` after each level."""
    partial = cuda.shared.array(MOST, float32)
    t = cuda.threadIdx.x
    partial[t] = part[t]
    levels[0, t] = partial[t]
    cuda.syncthreads()  # every part is in place before anyone adds
    half, level = part.shape[0] // 2, 1
    while half > 0:
        if t < half:
            partial[t] += partial[t + half]
        levels[level, t] = partial[t]
        cuda.syncthreads()  # this level is done before the next reads it
        half //= 2
        level += 1


@cuda.jit
def butterfly_kernel(part, levels):
    """One warp, or a first part of one. part [lanes] f32 -> levels [log2(lanes) + 1, lanes]: each lane's sum."""
    lane = cuda.threadIdx.x
    total = part[lane]
    levels[0, lane] = total
    offset, level = part.shape[0] // 2, 1
    while offset > 0:
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, offset)
        levels[level, lane] = total
        offset //= 2
        level += 1


def row_and_levels(kernel, threads: int, columns: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A row [columns] f32 of multiples of 1/2, and what the threads hold after each level, [levels, threads] f32."""
    if threads not in (2, 4, 8, 16, 32):
        raise ValueError(f"threads: expected a power of two from 2 to {MOST}, got {threads}")
    if columns < 1:
        raise ValueError(f"columns: expected at least 1, got {columns}")
    row = np.random.default_rng(seed).integers(-4, 5, columns).astype(np.float32) / np.float32(2)
    part = np.array([(row[t::threads] ** 2).sum() for t in range(threads)], np.float32)
    levels = empty((threads.bit_length(), threads), np.float32)
    launch(kernel, 1, threads, to_device(part), levels)
    return row, to_host(levels)


def tree(threads: int = 8, columns: int = 18, seed: int = 2) -> Picture:
    """The squares of a row added up by a tree over shared memory."""
    row, levels = row_and_levels(tree_kernel, threads, columns, seed)
    picture = _picture("The sum of a row's squares, as a tree over shared memory", row, levels)
    for level in range(1, len(levels)):
        half = threads >> level
        y, above = _y(level), _y(level - 1)
        _label(picture, y, f"half = {half}")
        picture.line(16, above + BOX + 14, LEFT + SLOT * threads, above + BOX + 14, "red", dash="4 4")
        for t in range(threads):
            adds = t < half
            if adds:
                for source in (t, t + half):
                    _arrow(picture, source, above, t, y, "blue" if source == t else "orange")
            tip = f"level {level}, partial[{t}] = {levels[level, t]:g}" + ("" if adds else ", left from above")
            ink, fill = ("ink", "pale-blue") if adds else ("quiet", "paper")
            picture.cell(_x(t), y, SLOT - 12, BOX, f"{levels[level, t]:g}", fill, ink=ink, size=14, bold=adds, tip=tip)
    picture.text(16, picture.height - 14, "Red: a barrier. Every thread waits there for all the others.", "red")
    return picture


def butterfly(threads: int = 8, columns: int = 18, seed: int = 2) -> Picture:
    """The squares of a row added up by shuffles: every lane ends with the whole sum."""
    row, levels = row_and_levels(butterfly_kernel, threads, columns, seed)
    picture = _picture("The sum of a row's squares, as a butterfly of shuffles", row, levels)
    for level in range(1, len(levels)):
        offset = threads >> level
        y, above = _y(level), _y(level - 1)
        _label(picture, y, f"xor {offset}")
        for t in range(threads):
            _arrow(picture, t, above, t, y, "blue")
            _arrow(picture, t ^ offset, above, t, y, "orange")
            tip = f"level {level}, lane {t} = {levels[level, t]:g}, with lane {t ^ offset}"
            picture.cell(_x(t), y, SLOT - 12, BOX, f"{levels[level, t]:g}", "pale-blue", size=14, bold=True, tip=tip)
    picture.text(
        16, picture.height - 14, "Orange: what a lane reads from another lane's register. No barrier.", "orange"
    )
    return picture


def _picture(title: str, row: np.ndarray, levels: np.ndarray) -> Picture:
    """The row, whose columns the threads share, and the threads' parts."""
    threads = levels.shape[1]
    picture = Picture(
        LEFT + SLOT * threads + 4,
        _y(len(levels) - 1) + BOX + 44,
        title,
        f"{len(row)} columns, {threads} threads, {len(levels) - 1} levels; the sum is {levels[-1, 0]:g}.",
    )
    picture.text(16, 28, title, bold=True, size=15)
    width = SLOT * threads / len(row)
    _label(picture, 46, "x")
    for d, x_d in enumerate(map(float, row)):
        mine = d % threads == OWNER
        fill, size = ("pale-orange" if mine else "pale"), min(13, 0.36 * width)
        tip = f"x[{d}] = {x_d:g}, of thread {d % threads}"
        picture.cell(LEFT - 6 + d * width, 46, width - 3, BOX, f"{x_d:g}", fill, size=size, bold=mine, tip=tip)
    for t in range(threads):
        picture.text(_x(t) + (SLOT - 12) / 2, _y(0) - 8, f"t = {t}", "quiet", 13, anchor="middle", mono=True)
        mine = t == OWNER
        tip = f"level 0, thread {t}: x[d]^2 added up over d = {', '.join(map(str, range(t, len(row), threads)))}"
        fill = "pale-orange" if mine else "pale"
        picture.cell(_x(t), _y(0), SLOT - 12, BOX, f"{levels[0, t]:g}", fill, size=14, bold=mine, tip=tip)
    _label(picture, _y(0), "squares")
    return picture


def _label(picture: Picture, y: float, text: str) -> None:
    picture.text(16, y + BOX / 2 + 5, text, "quiet", 14)


def _x(t: int) -> float:
    return LEFT + SLOT * t


def _y(level: int) -> float:
    return 112 + LEVEL * level


def _arrow(picture: Picture, source: int, above: float, target: int, y: float, stroke: str) -> None:
    """From a box to one in the next level; what comes from aside arrives beside the middle."""
    middle = (SLOT - 12) / 2
    aside = 10 * ((source > target) - (source < target))
    picture.line(_x(source) + middle, above + BOX, _x(target) + middle + aside, y - 1, stroke, 1.5, arrow=True)


PICTURES = {"tree": tree, "butterfly": butterfly}
