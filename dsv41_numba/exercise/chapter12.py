"""The exercises of chapter 12: what the layers hand each other, and the linear of each group of heads."""

import dataclasses

import numpy as np

from dsv41_numba.config import FLASH, TINY
from dsv41_numba.exercise.chapter01 import ODD, RELEASED, Geometry, named
from dsv41_numba.exercise.spec import Draw, Exercise, Inputs, Trap
from dsv41_numba.formats.bf16 import f32_to_bf16

SLOW = named(
    dataclasses.replace(
        TINY,
        n_layers=3,
        compress_ratios=(5, 2, 2),
        kv_sources=(0, 1),
        index_sources=(0, 1, 2),
        candidate_source=None,
    )
)  # the first layer's groups take longer than those of the layer after it


def lists(ratios: tuple[int, ...], kv_sources: tuple[int, ...], index_sources: tuple[int, ...], mask: int) -> Draw:
    """What a configuration says about its layers."""
    return lambda rng: (*(np.array(entries, np.int32) for entries in (ratios, kv_sources, index_sources)), mask)


def sequence(cfg: Geometry, tokens: tuple[int, ...], owner: int = 0) -> Draw:
    """Calls of so many tokens, one after the other, from position 0 on."""

    def inputs(rng: np.random.Generator) -> Inputs:
        starts = np.cumsum((0, *tokens[:-1]))
        return cfg, np.stack([starts, tokens], axis=1).astype(np.int32), owner

    return inputs


def quarters(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """bf16 bits of multiples of 1/4: products and sums are exact in float32, in any order."""
    return f32_to_bf16((rng.integers(-16, 17, shape) / 4).astype(np.float32))


def heads(T: int, H: int, D: int, n_groups: int, rank: int) -> Draw:
    return lambda rng: (quarters(rng, T, H, D), quarters(rng, n_groups * rank, H // n_groups * D), n_groups)


def infinite_neighbour(rng: np.random.Generator) -> Inputs:
    """Group 1 begins with an infinity; it belongs to no product of group 0, not even to one with 0."""
    o, weight, n_groups = heads(2, 2, 20, 2, 3)(rng)
    o[:, 1, 0] = 0x7F80
    weight[3:, 0] = 0x3F80
    return o, weight, n_groups


EXERCISES = [
    Exercise(
        id="12a",
        file="12a_add_a_reindex_layer",
        title="add the REINDEX layer to the role table",
        level="A",
        small=lists((0, 2, 2), (1,), (1, 2), 1),
        full=(lists(FLASH.compress_ratios, FLASH.kv_sources, FLASH.index_sources, 20),),
        traps=(
            Trap("no mask at all", lists((0, 4, 4, 0, 4), (1,), (1, 2, 4), -1)),
            Trap("a REINDEX layer below the mask", lists((1, 1, 1, 1, 1), (0,), (0, 1, 2, 4), 2)),
            Trap("a FULL layer above the mask", lists((1, 1, 0, 1), (0, 3), (0, 1, 3), 0)),
        ),
        hints=(
            "A REINDEX layer is an index source that is no kv source. Which of `rows_of` and `selection_of` is its own "
            "number?",
            "Index keys are made by kv sources alone. A REINDEX layer scores those of the layer whose rows it reads, "
            "even if another REINDEX layer stands between.",
            "obeys: mask is a layer only if it is at least 0, it must be below this layer, and this layer must select.",
        ),
    ),
    Exercise(
        id="12b",
        file="12b_whose_index_keys",
        title="whose index keys a layer scores",
        level="B",
        small=sequence(SLOW, (10,)),
        full=(sequence(RELEASED, (20, 1, 1, 1, 1)), sequence(RELEASED, (20, 1, 1), owner=1)),
        traps=(
            Trap("nothing to score yet", sequence(SLOW, (2, 1))),
            Trap("a chunk that ends inside a group", sequence(RELEASED, (20, 3, 1))),
            Trap("a call that is shorter than a group", sequence(ODD, (11, 1, 2, 1))),
        ),
        hints=(
            "How many groups are complete before this call, and how many after it? Both are whole-number divisions.",
            "Only a kv source publishes. A REINDEX layer takes what lies in the slot and leaves it there.",
            "after > before says that this call completes a group; publish then, or in every call if owner is 1. Score "
            "after that, if after > 0.",
        ),
    ),
    Exercise(
        id="12c",
        file="12c_grouped_linear",
        title="a linear for each group of heads",
        level="B",
        small=heads(2, 2, 4, 2, 2),
        full=(heads(17, 3, 40, 3, 18), heads(5, 4, 9, 1, 7)),
        traps=(
            Trap("heads split by stride", heads(3, 6, 8, 3, 5)),
            Trap("guards the row instead of the group", infinite_neighbour),
        ),
        hints=(
            "It is the tiled product of chapter 4, for the heads g * heads .. g * heads + heads - 1 of o and the rows "
            "g * N .. g * N + N - 1 of weight.",
            "Thread (tx, ty) fills x_tile[ty, tx] with token m and weight_tile[ty, tx] with rank n0 + ty, both at "
            "column k0 + tx of the group; 0 if that is past K.",
            "Two barriers in each round: after both tiles are filled, and after all products are added. The sum of "
            "x_tile[ty, i] * weight_tile[tx, i] is og[m, g, n0 + tx].",
        ),
        kernels=("grouped_linear_kernel",),
    ),
]
