"""Chapter 5: the tensor core's fragments, and shared memory without bank conflicts."""

import numpy as np

from dsv41_numba.exercise.spec import Draw, Exercise, Inputs, Trap
from dsv41_numba.formats.bf16 import as_bf16


def quarters(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """bf16 bits of multiples of 1/4 from -8 to 8: their products and sums are exact in float32, in any order."""
    return as_bf16((rng.integers(-32, 33, (rows, columns)) / 4).astype(np.float32)).view(np.uint16)


def product(M: int, N: int, K: int) -> Draw:
    """x [M, K] and weight [N, K]."""
    return lambda rng: (quarters(rng, M, K), quarters(rng, N, K))


def down_a_column(rng: np.random.Generator) -> Inputs:
    """x has 1 to 8 in its first column, weight a 1 there: so has y."""
    x, weight = np.zeros((8, 16), np.float32), np.zeros((1, 16), np.float32)
    x[:, 0], weight[0, 0] = np.arange(1, 9), 1
    return as_bf16(x).view(np.uint16), as_bf16(weight).view(np.uint16)


def along_a_row(rng: np.random.Generator) -> Inputs:
    """The other way round: y is 1 to 8 in one row."""
    x, weight = down_a_column(rng)
    return weight, x


def slab(rng: np.random.Generator) -> Inputs:
    """Words of bits."""
    return (rng.integers(0, 1 << 32, (64, 16), dtype=np.uint32),)


EXERCISES = [
    Exercise(
        id="05a",
        file="05a_fill_the_a_fragment",
        title="fill the A fragment",
        level="A",
        small=down_a_column,
        full=(product(32, 16, 48),),
        traps=(
            Trap("reads past the last row", product(17, 8, 16)),
            Trap("reads past the last column of K", product(16, 8, 37)),
        ),
        hints=(
            "Look at the picture of A: find one lane's four boxes. Two of them differ in the row, two in the column.",
            "Lane 4 g + t: a0 is row g. Which register has the same columns, 8 rows further down?",
            "a1 is 8 rows down, a2 is 8 columns on, a3 is both. The columns of a lane begin at 2 t, because a word "
            "holds two.",
        ),
        kernels=("product_kernel",),
    ),
    Exercise(
        id="05b",
        file="05b_store_the_c_fragment",
        title="sum over K and store the C fragment",
        level="B",
        small=along_a_row,
        full=(product(32, 24, 64), product(16, 8, 80)),
        traps=(
            Trap("writes row g + 8 where y has none", product(20, 8, 16)),
            Trap("writes pairs where N is odd", product(16, 13, 16)),
            Trap("nothing is written where K is 0", product(16, 8, 0)),
        ),
        hints=(
            "The picture of C: registers c0 and c1 stand side by side in one row, c2 and c3 in another.",
            "c0 and c1 are row g, columns 2 t and 2 t + 1; c2 and c3 are the same columns of row g + 8.",
            "The loop over K is `for k0 in range(0, x.shape[1], 16)`; the store stands after it, behind "
            "`if m < y.shape[0] and n < y.shape[1]`.",
        ),
        kernels=("product_kernel",),
    ),
    Exercise(
        id="05c",
        file="05c_swizzle_the_slab",
        title="a slab without bank conflicts",
        level="C",
        small=slab,
        full=(slab,),
        hints=(
            "Two rows fill the 32 banks. Unswizzled, chunk c of rows 0, 2, 4 and 6 lies in the same four banks.",
            "A chunk may move within its row only. Rows 0 and 1 can stay; which other places are left for rows 2 and "
            "3, 4 and 5, 6 and 7?",
            "Exclusive or with a number from 0 to 3 permutes the four places; the number must change every two rows.",
        ),
        kernels=("slab_kernel",),
    ),
]
