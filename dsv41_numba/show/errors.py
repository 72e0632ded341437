"""What rounding to bf16 does to many numbers: a histogram of live errors."""

import numpy as np

from dsv41_numba.formats.bf16 import as_bf16, bf16_to_f32
from dsv41_numba.show.svg import Picture

BINS = 48
LEFT, TOP, WIDTH, HEIGHT = 40, 92, 640, 190
REACH = 2.0**-7  # of the axis on each side: cutting reaches so far, rounding half as far


def relative_errors(numbers: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(|bf16(x)| - |x|) / |x| of normal numbers x, f64 [numbers]: to nearest even, and with the low bits cut off."""
    if numbers < 1:
        raise ValueError(f"numbers: expected at least 1, got {numbers}")
    x = np.random.default_rng(seed).standard_normal(numbers).astype(np.float32)
    cut = bf16_to_f32((x.view(np.uint32) >> np.uint32(16)).astype(np.uint16))
    exact = np.abs(x.astype(np.float64))
    rounded, short = (np.abs(y.astype(np.float64)) / exact - 1 for y in (as_bf16(x), cut))
    return rounded, short


def errors(numbers: int = 100_000, seed: int = 0) -> Picture:
    """Relative errors of bf16: rounding to nearest even against cutting off the low bits."""
    rounded, short = relative_errors(numbers, seed)
    edges = np.linspace(-REACH, REACH, BINS + 1)
    heights = [np.histogram(e, edges)[0] for e in (rounded, short)]
    worst, mean = (tuple(float(f(e)) for e in (rounded, short)) for f in (lambda e: np.abs(e).max(), np.mean))
    picture = Picture(
        LEFT + WIDTH + 40,
        TOP + HEIGHT + 76,
        f"What bf16 does to {numbers:,} normal numbers",
        f"Relative errors. To nearest even: at most {_in_half_steps(worst[0])}, mean {_in_half_steps(mean[0])}. "
        f"Low bits cut off: at most {_in_half_steps(worst[1])}, mean {_in_half_steps(mean[1])}.",
    )
    picture.text(16, 28, picture.title, bold=True, size=15)
    for i, (colour, name) in enumerate((("blue", "to nearest even"), ("orange", "low bits cut off"))):
        y = 42 + 20 * i
        picture.rect(16, y, 13, 13, f"pale-{colour}", colour)
        picture.text(36, y + 11, f"{name}: at most {_in_half_steps(worst[i])}, mean {_in_half_steps(mean[i])}", size=13)
    top, bottom, bar = max(h.max() for h in heights), TOP + HEIGHT, WIDTH / BINS
    for colour, name, counts in (("orange", "cut", heights[1]), ("blue", "rounded", heights[0])):
        for i, count in enumerate(map(int, counts)):
            if count:
                height = HEIGHT * count / top
                tip = f"{name}, {_in_half_steps(edges[i])} to {_in_half_steps(edges[i + 1])}: {count}"
                picture.rect(LEFT + bar * i, bottom - height, bar - 1, height, f"pale-{colour}", colour, tip=tip)
    picture.line(LEFT, bottom, LEFT + WIDTH, bottom, "ink")
    for k in range(-2, 3):
        x = LEFT + WIDTH * (k + 2) / 4
        picture.line(x, bottom, x, bottom + 6, "ink")
        picture.text(x, bottom + 22, k, "quiet", 13, anchor="middle", mono=True)
    below = "relative error in units of 2^-8, which is half a step at 1; left is towards zero"
    picture.text(LEFT + WIDTH / 2, bottom + 46, below, "quiet", 13, anchor="middle")
    return picture


def _in_half_steps(error: float) -> str:
    return f"{error * 2**8:.3f} x 2^-8"


PICTURES = {"errors": errors}
