"""The exercises of chapter 8: how 4 bits hold a key."""

import numpy as np

from dsv41_numba.exercise.spec import Draw, Exercise, Inputs, Trap

MARKS = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], np.float32)  # half way between neighbours


def equal_pairs(R: int, bytes_a_row: int) -> Draw:
    """codes [R, 2 bytes_a_row]; both codes of a byte are equal, so that their order does not matter."""
    return lambda rng: (np.repeat(rng.integers(0, 16, (R, bytes_a_row)), 2, axis=1).astype(np.uint8),)


def all_bytes(rng: np.random.Generator) -> Inputs:
    """Every pair of codes once, eight rows of them."""
    pairs = rng.permutation(256).reshape(8, 32)
    return (np.stack([pairs % 16, pairs // 16], axis=-1).reshape(8, 64).astype(np.uint8),)


def between_marks(rng: np.random.Generator, N: int) -> np.ndarray:
    """f32 [N] of both signs, within +-6, off every half-way mark, and no zero."""
    magnitude = rng.uniform(0.01, 5.99, N).astype(np.float32)
    magnitude[np.isin(magnitude, MARKS)] = 3
    return magnitude * rng.choice(np.array([-1, 1], np.float32), N)


def packed_rows(rng: np.random.Generator, R: int, D: int) -> np.ndarray:
    """rows [R, D / 2 + D / 16] of random codes and of scales that are numbers."""
    codes = rng.integers(0, 256, (R, D // 2)).astype(np.uint8)
    return np.concatenate([codes, rng.integers(0x01, 0x7F, (R, D // 16)).astype(np.uint8)], axis=1)


def one_block(rng: np.random.Generator) -> Inputs:
    """0.5, -0.5, 1, -6, -1, 1.5, 0, -0 and eight more, times 2."""
    return (np.array([[0x91, 0xF2, 0x3A, 0x80, 0x10, 0x32, 0x54, 0x76, 0x40]], np.uint8),)


def nan_scales(rng: np.random.Generator) -> Inputs:
    rows = packed_rows(rng, 3, 64)
    rows[1, -4:] = [0x7F, 0x38, 0x7F, 0x01]  # no negative NaN: its sign is lost on a GPU, and kept on a CPU
    return (rows,)


EXERCISES = [
    Exercise(
        id="08a",
        file="08a_two_codes_a_byte",
        title="two codes in a byte",
        level="A",
        small=lambda rng: (np.repeat(np.arange(8, dtype=np.uint8), 2)[None],),
        full=(equal_pairs(7, 150), equal_pairs(3, 64)),
        traps=(Trap("high nibble first", all_bytes),),
        hints=(
            "A byte is a number: the upper four bits count sixteens.",
            "Shift one of the codes left by 4, then put both together with `|`. Which of them goes up?",
            "The odd index goes up. Cast to uint8 what you store; shift by `uint32(4)`, of the same type as the code.",
        ),
        kernels=("pack_kernel",),
    ),
    Exercise(
        id="08b",
        file="08b_the_nearest_code",
        title="the nearest code, ties to even",
        level="B",
        small=lambda rng: (np.array([0.3, 0.9, -1.1, 1.6, -2.2, 3.1, -4.4, 5.7], np.float32),),
        full=(lambda rng: (between_marks(rng, 3001),),),
        traps=(
            Trap("tie away from zero", lambda rng: (np.concatenate([MARKS, -MARKS]),)),
            Trap("above 6", lambda rng: (np.array([6, 7, -7.5, 8, 100, -1e30, np.inf, -np.inf], np.float32),)),
            Trap("-0.0 loses its sign", lambda rng: (np.array([0.0, -0.0, 1e-40, -1e-40, -0.2], np.float32),)),
        ),
        hints=(
            "The code is the number of half-way marks that the magnitude lies above.",
            "A comparison is 0 or 1: add seven of them. Where a magnitude equals a mark, `>` leaves it with the code "
            "below and `>=` gives it to the code above: which of the two is even?",
            "The marks 0.25, 1.25, 2.5 and 5 take `>`, the others `>=`. For the sign, view the float32 as uint32 and "
            "shift right by 28: bit 31 is then bit 3.",
        ),
        kernels=("encode_kernel",),
    ),
    Exercise(
        id="08c",
        file="08c_read_a_packed_row",
        title="read a packed row with its scales",
        level="B",
        small=one_block,
        full=(lambda rng: (packed_rows(rng, 5, 512),),),
        traps=(
            Trap("scales looked for at byte 256 of a shorter row", lambda rng: (packed_rows(rng, 3, 96),)),
            Trap("a NaN scale is read as a number", nan_scales),
        ),
        hints=(
            "`rows[r, i]` is the byte of the numbers 2 i and 2 i + 1; `& uint32(0xF)` and `>> uint32(4)` take it "
            "apart.",
            "The scales follow the D / 2 bytes of codes. Number d belongs to scale d // 16, and both numbers of a byte "
            "have the same one: read it once.",
            "The scale is `decode_e4m3(rows[r, D // 2 + 2 * i // BLOCK])`; a product goes through `encode_bf16`.",
        ),
        kernels=("unpack_kernel",),
    ),
]
