"""Chapter 6: turning pairs on and back, and the YaRN ramp."""

import numpy as np

from dsv41_numba.exercise.spec import Draw, Exercise, Inputs, Trap
from dsv41_numba.formats.bf16 import as_bf16
from dsv41_numba.ops.rope import freqs_table, rope_freqs

THETA = 10000.0


def heads(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """bf16 bits of normal numbers."""
    return as_bf16(rng.standard_normal(shape).astype(np.float32)).view(np.uint16)


def rows(T: int, D: int, R: int, start_pos: int, step: int = 1) -> Draw:
    """T rows of D entries, of which the last R turn; the table has a few positions more than the rows need."""

    def inputs(rng: np.random.Generator) -> Inputs:
        cos, sin = freqs_table(rope_freqs(R, THETA), np.arange(start_pos + T * step + 3))
        return heads(rng, T, D), cos, sin, start_pos, step

    return inputs


def nearly_cancelling(rng: np.random.Generator) -> Inputs:
    """4 rows of 8 pairs whose first entry, turned back, almost vanishes: its bf16 shows how the sum was rounded."""
    cos, sin = freqs_table(rope_freqs(16, THETA), 1 + np.arange(4))
    even = as_bf16(rng.standard_normal((4000, *cos.shape)).astype(np.float32)).astype(np.float32)
    odd = as_bf16(-even * cos / sin).astype(np.float32)  # even cos + odd sin is what the rounding of odd leaves
    exact = as_bf16((even.astype(np.float64) * cos + odd.astype(np.float64) * sin).astype(np.float32))
    differ = exact != as_bf16(even * cos + odd * sin)
    first = differ.argmax(axis=0)[None]
    pairs = np.stack([np.take_along_axis(entry, first, 0)[0] for entry in (even, odd)], axis=-1)
    return as_bf16(pairs.reshape(4, 16)).view(np.uint16), cos, sin, 0, 1


def rows_of_heads(T: int, H: int, D: int, R: int, start_pos: int) -> Draw:
    """`rows` of H heads each, of neighbouring positions."""

    def inputs(rng: np.random.Generator) -> Inputs:
        cos, sin = freqs_table(rope_freqs(R, THETA), np.arange(start_pos + T + 3))
        return heads(rng, T, H, D), cos, sin, start_pos

    return inputs


def geometry(*numbers: float) -> Draw:
    """rope_dim, theta, original, factor, beta_fast, beta_slow."""
    return lambda rng: numbers


EXERCISES = [
    Exercise(
        id="06a",
        file="06a_turn_back",
        title="turn back",
        level="A",
        small=rows(2, 4, 4, start_pos=0),
        full=(rows(9, 80, 48, start_pos=7), rows(5, 32, 32, start_pos=1000)),
        traps=(
            Trap("takes every row for one position", rows(6, 24, 16, start_pos=3, step=2)),
            Trap("rounds once where the contract rounds three times", nearly_cancelling),
        ),
        hints=(
            "To undo a turn by an angle is to turn by minus that angle. Which of cos and sin changes its sign then?",
            "Write the two formulas of `rope` with -sin in place of sin, and tidy up the signs.",
            "new_even = even cos + odd sin, new_odd = odd cos - even sin; the table's row is start_pos + t * step.",
        ),
        kernels=("rope_inverse_kernel",),
    ),
    Exercise(
        id="06b",
        file="06b_the_yarn_ramp",
        title="the YaRN ramp",
        level="B",
        small=geometry(16, 10000.0, 4096, 8.0, 32.0, 1.0),
        full=(geometry(64, 160000.0, 65536, 16.0, 32.0, 1.0), geometry(128, 50000.0, 32768, 40.0, 24.0, 2.0)),
        traps=(
            Trap("slows down without YaRN", geometry(64, 10000.0, 0, 16.0, 32.0, 1.0)),
            Trap("begins the ramp before pair 0", geometry(32, 10000.0, 64, 4.0, 32.0, 1.0)),
            Trap("ends the ramp after rope_dim - 1", geometry(16, 10.0, 4096, 4.0, 200.0, 1.0)),
            Trap("divides by zero where the ramp has no width", geometry(16, 10000.0, 6, 4.0, 8.0, 1.0)),
        ),
        hints=(
            "low is the floor of pair_that_turns(beta_fast), at least 0; high the ceil of pair_that_turns(beta_slow), "
            "at most rope_dim - 1. Take care of original 0 before either, because log(0) has no value.",
            "How far pair i is up the ramp is (i - low) / (high - low), held between 0 and 1 by np.clip; keep is 1 "
            "minus that.",
            "Where low == high, add 0.001 to high. Make low and high - low np.float32 before the division, so that "
            "all of it is float32.",
        ),
    ),
    Exercise(
        id="06c",
        file="06c_turn_the_pairs",
        title="the rotation kernel",
        level="B",
        small=rows_of_heads(2, 1, 4, 4, start_pos=0),
        full=(rows_of_heads(5, 3, 80, 80, start_pos=11), rows_of_heads(3, 2, 32, 32, start_pos=900)),
        traps=(Trap("turns the first entries instead of the last", rows_of_heads(4, 2, 96, 64, start_pos=5)),),
        hints=(
            "Two loops of stride 32: one over the entries that are copied, one over the pairs that turn.",
            "Pair i is the neighbours copied + 2 i and copied + 2 i + 1, not entries R / 2 apart.",
            "Read both entries before either is written; cos and sin are [start_pos + t, i].",
        ),
        kernels=("rope_kernel",),
    ),
]
