"""Exercises of chapter 4: the matrix product in tiles."""

import numpy as np

from dsv41_numba.exercise.spec import Draw, Exercise, Inputs, Trap
from dsv41_numba.formats.bf16 import f32_to_bf16


def whole_numbers(M: int, N: int, K: int) -> Draw:
    """x [M, K] and weight [N, K] of small whole numbers: every product and sum can be followed by hand."""
    return lambda rng: tuple(f32_to_bf16(rng.integers(-3, 4, (rows, K)).astype(np.float32)) for rows in (M, N))


def matrices(M: int, N: int, K: int) -> Draw:
    """x [M, K] and weight [N, K], signed, as bf16 bits."""
    return lambda rng: tuple(f32_to_bf16(rng.standard_normal((rows, K)).astype(np.float32)) for rows in (M, N))


def infinite_weight(rng: np.random.Generator) -> Inputs:
    """K ends inside a tile, and the last weight of a row is infinite: times a zero it would be NaN."""
    x, weight = matrices(5, 7, 21)(rng)
    weight[3, -1] = f32_to_bf16(np.array([np.inf], np.float32))[0]
    return x, weight


def infinite_before_the_edge(rng: np.random.Generator) -> Inputs:
    """An infinite weight in the first tile, at a column that does not exist in the second."""
    x, weight = matrices(5, 7, 21)(rng)
    weight[3, 15] = f32_to_bf16(np.array([-np.inf], np.float32))[0]
    return x, weight


EXERCISES = [
    Exercise(
        id="04a",
        file="04a_load_the_weight_tile",
        title="load the weight tile",
        level="A",
        small=whole_numbers(2, 4, 3),
        full=(matrices(33, 18, 47), matrices(17, 50, 16)),
        hints=(
            "The line above fills `x_tile`, and yours has the same form. What tells the rows of weight of this block "
            "from those of another block?",
            "`weight_tile[ty, tx]` is the number in row `n0 + ty` and column `k0 + tx` of weight. It exists if the row "
            "is below N and the column below K.",
            "With `n = n0 + ty`: `decode_bf16(weight[n, k])` if `n < N and k < K`, else `float32(0.0)`.",
        ),
        traps=(
            Trap("the last weight read again past the edge", infinite_weight),
            Trap("a weight of the tile before left in place", infinite_before_the_edge),
        ),
        steps=1,
        kernels=("linear_kernel",),
    ),
    Exercise(
        id="04b",
        file="04b_the_tiled_body",
        title="the whole tiled product",
        level="B",
        small=whole_numbers(2, 4, 3),
        full=(matrices(33, 18, 47), matrices(17, 50, 16)),
        hints=(
            "One loop over `k0` in steps of `TILE`. In it: fill both tiles, barrier, 16 products, barrier. The sum is "
            "a variable of the thread, set before the loop.",
            "Do not leave early when `m >= M`: the thread still fills its part of the tiles and takes part in the "
            "barriers. It only writes nothing at the end.",
            "The products of a step are `x_tile[ty, i] * weight_tile[tx, i]` for i in `range(TILE)`: row ty of one "
            "tile and row tx of the other.",
        ),
        traps=(Trap("the last weight read again past the edge", infinite_weight),),
        steps=1,
        kernels=("linear_kernel",),
    ),
    Exercise(
        id="04c",
        file="04c_four_numbers_a_thread",
        title="four numbers a thread, half the reads",
        level="C",
        small=whole_numbers(2, 4, 3),
        full=(matrices(33, 50, 47), matrices(70, 17, 16)),
        hints=(
            "A thread now fills two numbers of each tile: rows `ty` and `ty + 16`. Each number of a tile goes into 32 "
            "sums instead of 16.",
            "In column i: `x0, x1 = x_tile[ty, i], x_tile[ty + TILE, i]`, two of weight in the same way, and then four "
            "sums: x0 and x1 times w0 and w1.",
            "Call `store` four times. It looks whether its number of y exists, and each of the four may lie outside.",
        ),
        traps=(Trap("the last weight read again past the edge", infinite_weight),),
        steps=1,
        kernels=("linear_kernel",),
    ),
]
