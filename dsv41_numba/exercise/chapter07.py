"""The exercises of chapter 7: how 8 bits hold a key."""

import numpy as np

from dsv41_numba.exercise.spec import Draw, Exercise, Inputs, Trap
from dsv41_numba.formats.bf16 import as_bf16

BLOCK = 32


def random_numbers(rng: np.random.Generator, rows: int, D: int) -> np.ndarray:
    return as_bf16(rng.choice([-1, 1], (rows, D)) * rng.uniform(0.1, 99, (rows, D)).astype(np.float32)).view(np.uint16)


def call(T: int, W: int, D: int, start_pos: int) -> Draw:
    """rows [T, D], and a ring [W, D] that is full of older rows: bf16 bits of numbers, none of them 0."""
    return lambda rng: (*(random_numbers(rng, n, D) for n in (T, W)), start_pos)


def three_rows(rng: np.random.Generator) -> Inputs:
    """Rows 1, 2, 3 into a ring of zeros: the number is the row's."""
    rows = as_bf16(np.array([[1, -1], [2, -2], [3, -3]], np.float32)).view(np.uint16)
    return rows, np.zeros((4, 2), np.uint16), 1


def blocks(amax: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """bf16 bits of one block for each amax: that magnitude with either sign somewhere, the others below it."""
    x = amax[:, None] * rng.uniform(-0.9, 0.9, (len(amax), BLOCK))
    x[np.arange(len(amax)), rng.integers(0, BLOCK, len(amax))] = amax * rng.choice([-1, 1], len(amax))
    return as_bf16(x.astype(np.float32)).view(np.uint16)


def between_powers(rng: np.random.Generator, R: int) -> np.ndarray:
    """amax [R] such that amax / 448 lies well between two powers of two and far above the floor."""
    return 448 * rng.uniform(1.02, 1.98, R) * np.exp2(rng.integers(-18, 60, R))


def eight_blocks(rng: np.random.Generator) -> Inputs:
    return (blocks(np.array([3, 1, 500, 100, 0.3, 7e4, 1e9, 0.01]), rng),)


def powers_of_two(rng: np.random.Generator) -> Inputs:
    """amax is 448 times a power of two."""
    return (blocks(448 * np.exp2(np.arange(-20.0, 119)), rng),)


def below_the_floor(rng: np.random.Generator) -> Inputs:
    """amax from bf16's smallest subnormal number up to 1e-4."""
    return (blocks(np.geomspace(2.0**-133, 9.9e-5, 61), rng),)


def zeros(rng: np.random.Generator) -> Inputs:
    return (np.array([[0, 0x8000] * (BLOCK // 2)] * 3, np.uint16),)


def without_a_scale(rng: np.random.Generator) -> Inputs:
    """Blocks with an infinity or a NaN between numbers."""
    x = blocks(between_powers(rng, 5), rng)
    x[np.arange(5), rng.integers(0, BLOCK, 5)] = [0x7F80, 0xFF80, 0x7FC0, 0xFFC0, 0x7F81]
    return (x,)


def words(R: int) -> Draw:
    """R blocks of 32 numbers, of sizes far apart, as words of two."""
    return lambda rng: (blocks(between_powers(rng, R), rng).view(np.uint32).reshape(-1),)


def four_blocks(rng: np.random.Generator) -> Inputs:
    """The same 16 numbers and 16 zeros, at four sizes: a word for each of a block's threads."""
    x = np.zeros((4, BLOCK), np.float32)
    x[:, :16] = [3, 1, 0.3, -0.07, -2.2, 0.9, 1e-3, -0.0, 0.5, -0.5, 2.5, 1.7, -1, 0.01, -0.02, 0.04]
    x *= np.exp2(np.array([0, -8, 20, 90], np.float32))[:, None]
    return (as_bf16(x).view(np.uint32).reshape(-1),)


def a_nan(rng: np.random.Generator) -> Inputs:
    x = blocks(between_powers(rng, 4), rng)
    x[2, 7] = 0x7FC0
    return (x.view(np.uint32).reshape(-1),)


EXERCISES = [
    Exercise(
        id="07a",
        file="07a_the_ring_slot",
        title="the slot of a row",
        level="A",
        small=three_rows,
        full=(call(5, 11, 300, 4), call(7, 7, 3, 0)),
        traps=(
            Trap("no wrap after the last slot", call(6, 7, 5, 9)),
            Trap("more rows than slots: the first instead of the last", call(24, 7, 5, 0)),
            Trap("more rows than slots: the skipped ones not counted", call(24, 7, 5, 3)),
        ),
        hints=(
            "There are min(T, W) blocks, numbered from 0. With T = 5 and W = 11, block 2 copies row 2. With T = 24 and "
            "W = 7 only the rows 17 to 23 stay: which of them is block 0's?",
            "Skip `max(T - W, 0)` rows. Row t is position `start_pos + t`, not position t.",
            "The slot is the position modulo W; it holds for any start_pos, also far beyond W.",
        ),
        kernels=("ring_write_kernel",),
    ),
    Exercise(
        id="07b",
        file="07b_a_scale_without_log2",
        title="the power-of-two scale from the bits",
        level="B",
        small=eight_blocks,
        full=(lambda rng: (blocks(between_powers(rng, 61), rng),),),
        traps=(
            Trap("one power too high where the quotient is a power of two", powers_of_two),
            Trap("no floor: zeros", zeros),
            Trap("no floor: subnormal numbers", below_the_floor),
            Trap("a NaN's byte wraps round to 0", without_a_scale),
        ),
        hints=(
            "Three steps: `amax = decode_bf16(amax_bits)`, raised to AMAX_FLOOR if it is below; the product with "
            "INVERSE_448; its bits, `.view(np.uint32)`.",
            "Shift the bits right by 23 and you have floor(log2) + 127. When is the ceiling one more than the floor? "
            "Look at the other 23 bits.",
            "Infinity and NaN have the exponent field 255, and 255 + 1 does not fit into a byte: return 255 for that "
            "field before you add anything.",
        ),
        kernels=("scale_kernel",),
    ),
    Exercise(
        id="07c",
        file="07c_one_read_a_word",
        title="the round trip with one read a word",
        level="C",
        small=four_blocks,
        full=(words(64), words(4)),
        traps=(
            Trap("threads beyond the last word", words(7)),
            Trap("a NaN loses against numbers", a_nan),
            Trap("no floor", lambda rng: (blocks(np.geomspace(1e-12, 9e-5, 4), rng).view(np.uint32).reshape(-1),)),
        ),
        hints=(
            "A thread beyond the end may not leave early: its neighbours wait for it at the barriers. Give it a word "
            "of 0.",
            "`partial[t]` gets the larger of the word's two magnitudes. Then a tree: with half = 8, 4, 2, 1 a thread "
            "whose `t % NEIGHBOURS` is below half takes the larger of its own and of `partial[t + half]`. One barrier "
            "before the tree and one after each level.",
            "The result lies with the first of the 16: `partial[t - t % NEIGHBOURS]`. Decode it, raise it to the "
            "floor, and give the scale and the word that is still in a register to `both`.",
        ),
        kernels=("round_trip_kernel",),
    ),
]
