"""The window ring: which position each slot holds after every call."""

import numpy as np

from dsv41_numba.ops.ring import ring_write
from dsv41_numba.runtime.backend import to_device, to_host
from dsv41_numba.show.svg import Picture

LEFT, TOP, CELL, CELL_HEIGHT, ROW = 16, 84, 46, 34, 76
EMPTY = -1


def rings(window: int, calls: list[int]) -> list[tuple[int, np.ndarray]]:
    """(first position, positions [window] after it) of each call: `ring_write` with rows that hold their position."""
    ring, start_pos, after = to_device(np.full((window, 1), EMPTY, np.int64)), 0, []
    for T in calls:
        ring_write(to_device(np.arange(start_pos, start_pos + T)[:, None]), ring, start_pos)
        after.append((start_pos, to_host(ring)[:, 0].copy()))
        start_pos += T
    return after


def ring(window: int = 8, calls: str = "5 2 1 1 11") -> Picture:
    """The ring after each of some calls; `calls` has the tokens of each, one after the other."""
    lengths = [int(T) for T in calls.split()]
    after = rings(window, lengths)
    picture = Picture(
        max(2 * LEFT + CELL * window, 360),
        TOP + ROW * len(lengths) - 4,
        f"A ring of {window} slots: position p lies in slot p mod {window}",
        "; ".join(f"after {_call(start, T)}: " + _words(held) for T, (start, held) in zip(lengths, after)),
    )
    picture.text(LEFT, 28, f"Slot = position mod {window}", bold=True, size=15)
    for slot in range(window):
        picture.text(LEFT + CELL * (slot + 0.5), 56, slot, "quiet", 13, anchor="middle", mono=True)
    for i, (T, (start, held)) in enumerate(zip(lengths, after)):
        y = TOP + ROW * i
        skipped = max(T - window, 0)
        note = f", the first {skipped} not written" if skipped else ""
        picture.text(LEFT, y - 6, f"{_call(start, T)}{note}", size=13)
        for slot, position in enumerate(held.tolist()):
            x = LEFT + CELL * slot
            tip = f"{_call(start, T)}: slot {slot} " + (f"holds position {position}" if position >= 0 else "is empty")
            if position == EMPTY:
                picture.rect(x, y, CELL - 4, CELL_HEIGHT, "none", "line", 2, dash="4 3", tip=tip)
                continue
            new = position >= start
            fill, stroke = ("pale-orange", "orange") if new else ("pale", "line")
            picture.cell(x, y, CELL - 4, CELL_HEIGHT, position, fill, stroke, bold=new, tip=tip)
    return picture


def _call(start: int, T: int) -> str:
    return f"position {start}" if T == 1 else f"positions {start} to {start + T - 1}"


def _words(held: np.ndarray) -> str:
    return ", ".join("-" if position == EMPTY else str(position) for position in held.tolist())


PICTURES = {"ring": ring}
