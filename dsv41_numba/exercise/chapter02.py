"""Chapter 2: adding up a row: its tail, its barriers, and shuffles instead of most of them."""

import numpy as np

from dsv41_numba.exercise.spec import Draw, Exercise, Inputs, Trap
from dsv41_numba.formats.bf16 import as_bf16

F32_SUM = 16  # steps of f32: the sum's order is another one in NumPy, and every addition may be half a step off


def norm(R: int, D: int) -> Draw:
    """Rows of bf16 bits, a weight, an epsilon."""

    def inputs(rng: np.random.Generator) -> Inputs:
        x = as_bf16(rng.standard_normal((R, D)).astype(np.float32)).view(np.uint16)
        return x, rng.standard_normal(D).astype(np.float32), 1e-6

    return inputs


def large_last_column(rng: np.random.Generator) -> Inputs:
    """257 columns, the last of which decides the sum."""
    x = rng.standard_normal((3, 257)).astype(np.float32)
    x[:, 256] = (40, -50, 60)
    return as_bf16(x).view(np.uint16), rng.standard_normal(257).astype(np.float32), 1e-6


def rows(R: int, D: int) -> Draw:
    """f32 rows of normal numbers."""
    return lambda rng: (rng.standard_normal((R, D)).astype(np.float32),)


def halves(R: int, D: int) -> Draw:
    """f32 rows of small multiples of 1/2: their squares add up exactly in any order."""
    return lambda rng: ((rng.integers(-4, 5, (R, D)) / 2 + 0.5).astype(np.float32),)


EXERCISES = [
    Exercise(
        id="02a",
        file="02a_a_tail_of_one_column",
        title="a tail of one column",
        level="A",
        small=norm(1, 8),
        full=(norm(5, 200), norm(3, 256)),
        traps=(Trap("column 256 is nobody's", large_last_column),),
        hints=(
            "D is not a multiple of 128, and it may be smaller than 128. What has to be true of d before x[r, d] is "
            "read?",
            "Begin with d = t, and go on by THREADS as long as there is such a column.",
            "`while d < D:` with `d += THREADS` as the last line inside. Read x[r, d] once, into a name, and add that "
            "name times itself.",
        ),
        steps=1,
        kernels=("rmsnorm_kernel",),
    ),
    Exercise(
        id="02b",
        file="02b_the_missing_barriers",
        title="the missing barriers",
        level="A",
        small=halves(1, 8),
        full=(rows(3, 200), rows(4, 131)),
        traps=(Trap("the next row's parts meet this row's sum", rows(11, 150)),),
        hints=(
            "Two kinds of places need a barrier: between a write and another thread's read of it, and between a read "
            "and another thread's next write there.",
            "Only some threads go into the `if`. What happens to those that wait inside it?",
            "All threads read partial[0] at the end of a row. Who writes it first in the next row, and can that be "
            "before the others have read?",
        ),
        steps=F32_SUM,
        kernels=("divide_kernel",),
    ),
    Exercise(
        id="02c",
        file="02c_a_butterfly_in_each_warp",
        title="a butterfly in each warp",
        level="B",
        small=halves(2, 8),
        full=(rows(4, 300), rows(3, 128)),
        hints=(
            "Five exchanges. In each, a thread adds what it gets to what it has: "
            "part += cuda.shfl_xor_sync(LANES, part, offset).",
            "All 32 lanes have the same sum now. One of them stores it; if all did, they would race.",
            "After the barrier each thread adds up the four numbers of warp_sums itself, in the same order as the "
            "others.",
        ),
        steps=F32_SUM,
        kernels=("squares_kernel",),
    ),
]
