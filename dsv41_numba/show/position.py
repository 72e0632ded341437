"""How a row knows its position: a pair of numbers as a clock hand, and which hands YaRN slows down."""

import math

import numpy as np

from dsv41_numba.config import FLASH
from dsv41_numba.ops.rope import freqs_table, rope_freqs, yarn_freqs
from dsv41_numba.show.svg import Picture

CLOCK, RADIUS, CLOCKS_LEFT, CLOCKS_TOP = 76, 31, 132, 70
SHOWN_PAIRS = 4  # rows of clocks
RAMP_LEFT, RAMP_TOP, RAMP_HEIGHT, BAR, GAP = 60, 84, 220, 17, 3


def clock(positions: int = 8, start_pos: int = 0) -> Picture:
    """The pair (1, 0) after its turn, at neighbouring positions: fast pairs and slow ones, without YaRN."""
    freqs = rope_freqs(FLASH.rope_dim, FLASH.rope_theta)
    cos, sin = freqs_table(freqs, start_pos + np.arange(positions))
    pairs = [len(freqs) * row // (2 * SHOWN_PAIRS) for row in range(SHOWN_PAIRS)]
    picture = Picture(
        CLOCKS_LEFT + CLOCK * positions + 12,
        CLOCKS_TOP + CLOCK * len(pairs) + 12,
        "A pair of numbers as a clock hand",
        f"Pairs {', '.join(map(str, pairs))} at positions {start_pos} to {start_pos + positions - 1}; "
        "each row of clocks turns more slowly than the one above it.",
    )
    picture.text(16, 28, "The pair (1, 0) turned by position x freq", bold=True, size=15)
    for i in range(positions):
        x = CLOCKS_LEFT + CLOCK * (i + 0.5)
        picture.text(x, CLOCKS_TOP - 8, start_pos + i, "quiet", 13, anchor="middle", mono=True)
    picture.text(16, CLOCKS_TOP - 8, "position", "quiet", 13)
    for row, pair in enumerate(pairs):
        middle = CLOCKS_TOP + CLOCK * (row + 0.5)
        picture.text(16, middle - 4, f"pair {pair}", bold=True, size=14)
        picture.text(16, middle + 14, f"freq {freqs[pair]:.3g}", "quiet", 13, mono=True)
        for i in range(positions):
            x, c, s = CLOCKS_LEFT + CLOCK * (i + 0.5), float(cos[i, pair]), float(sin[i, pair])
            tip = f"pair {pair} at position {start_pos + i}: cos {c:.4f}, sin {s:.4f}"
            picture.circle(x, middle, RADIUS, "pale", "line", tip=tip)
            picture.line(x, middle, x + RADIUS, middle, "line", dash="3 3")  # where it stood at position 0
            picture.line(x, middle, x + RADIUS * c, middle - RADIUS * s, "blue", 3, arrow=True)
            picture.circle(x, middle, 3, "ink")
    return picture


def yarn(original_seq_len: int = FLASH.original_seq_len, factor: float = FLASH.rope_factor) -> Picture:
    """What YaRN leaves of each pair's speed."""
    c = FLASH
    plain = rope_freqs(c.rope_dim, c.compress_rope_theta)
    slowed = yarn_freqs(c.rope_dim, c.compress_rope_theta, original_seq_len, factor, c.beta_fast, c.beta_slow)
    left = slowed / plain
    turns = original_seq_len * plain.astype(np.float64) / (2 * math.pi)
    kept, mixed, divided = _parts(left, factor)
    bottom, right = RAMP_TOP + RAMP_HEIGHT, RAMP_LEFT + (BAR + GAP) * len(plain)
    picture = Picture(
        right + 16,
        bottom + 96,
        "The YaRN ramp: what is left of each pair's speed",
        f"{kept} pairs keep their speed, {mixed} are mixed, {divided} are divided by {factor:g}.",
    )
    picture.text(16, 28, "YaRN: what is left of each pair's speed", bold=True, size=15)
    legend = (("green", f"{kept} kept"), ("orange", f"{mixed} mixed"), ("blue", f"{divided} divided by {factor:g}"))
    x = 16.0
    for colour, text in legend:
        picture.rect(x, 43, 14, 14, colour, radius=2)
        picture.text(x + 20, 55, text)
        x += 34 + 7.5 * len(text)
    for share, label in ((1.0, "1"), (0.5, "1/2"), (1 / factor, f"1/{factor:g}")):
        y = bottom - RAMP_HEIGHT * share
        picture.line(RAMP_LEFT - 4, y, right, y, "line")
        picture.text(RAMP_LEFT - 10, y + 4, label, "quiet", 13, anchor="end", mono=True)
    for pair, share in enumerate(map(float, left)):
        colour = "green" if share == 1 else "blue" if _is_divided(share, factor) else "orange"
        x = RAMP_LEFT + (BAR + GAP) * pair
        tip = f"pair {pair}: {share:.4f} of its speed, {turns[pair]:.4g} turns in {original_seq_len} positions"
        picture.rect(x, bottom - RAMP_HEIGHT * share, BAR, RAMP_HEIGHT * share, colour, radius=2, tip=tip)
        if pair % 4 == 0:
            picture.text(x + BAR / 2, bottom + 18, pair, "quiet", 13, anchor="middle", mono=True)
            picture.text(x + BAR / 2, bottom + 54, f"{turns[pair]:.2g}" if turns[pair] < 10 else f"{turns[pair]:.0f}",
                         "quiet", 13, anchor="middle", mono=True)  # fmt: skip
    picture.text(16, bottom + 18, "pair", "quiet", 13)
    picture.text(16, bottom + 36, f"turns without YaRN in {original_seq_len} positions:", "quiet", 13)
    picture.text(16, bottom + 80, f"Above {c.beta_fast:g} turns: kept. Below {c.beta_slow:g}: divided.", "quiet", 13)
    return picture


def _is_divided(share: float, factor: float) -> bool:
    return abs(share * factor - 1) < 1e-5  # float32 divides once more or less


def _parts(left: np.ndarray, factor: float) -> tuple[int, int, int]:
    """How many pairs are kept, mixed and divided."""
    kept = int((left == 1).sum())
    divided = sum(_is_divided(float(share), factor) for share in left) if factor != 1 else 0
    return kept, len(left) - kept - divided, divided


PICTURES = {"clock": clock, "yarn": yarn}
