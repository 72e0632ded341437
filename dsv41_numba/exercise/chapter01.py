"""The exercises of chapter 1: the shapes and the work of one layer."""

import dataclasses

import numpy as np

from dsv41_numba.config import FLASH, TINY, AttnV41Cfg
from dsv41_numba.exercise.spec import Draw, Exercise, Inputs, Trap


class Geometry(AttnV41Cfg):
    """A geometry that is short where the checks print their inputs."""

    def __str__(self) -> str:
        return f"{self.n_heads} heads of {self.head_dim}, window {self.window}"


def named(cfg: AttnV41Cfg) -> Geometry:
    return Geometry(**{field.name: getattr(cfg, field.name) for field in dataclasses.fields(cfg)})


SMALL, RELEASED = named(TINY), named(FLASH)
ODD = named(
    dataclasses.replace(
        TINY,
        n_heads=6,
        head_dim=96,
        o_groups=3,
        window=5,
        index_topk=6,
        n_layers=5,
        compress_ratios=(4, 4, 0, 3, 3),
        kv_sources=(0, 3),
        index_sources=(0, 3, 4),
        candidate_source=None,
    )
)  # other sizes and ratios: 4 on a FULL and a REUSE layer, 3 on a FULL and a REINDEX layer


def call(cfg: Geometry, layer: int, start_pos: int, T: int) -> Draw:
    """T tokens from start_pos on."""

    def inputs(rng: np.random.Generator) -> Inputs:
        return cfg, layer, start_pos, T

    return inputs


EXERCISES = [
    Exercise(
        id="01a",
        file="01a_name_the_shapes",
        title="name the shapes of the fourteen steps",
        level="A",
        small=call(SMALL, 2, 0, 9),
        full=(
            call(RELEASED, 2, 0, 2048),
            call(RELEASED, 20, 131071, 1),
            call(RELEASED, 25, 131071, 1),
            call(RELEASED, 0, 0, 2048),
        ),
        traps=(
            Trap("window slots that no query can fill", call(SMALL, 1, 0, 3)),
            Trap("more selected than there are", call(SMALL, 2, 0, 3)),
            Trap("a decode before the ring is full", call(SMALL, 1, 3, 1)),
            Trap("groups counted from this call's tokens alone", call(SMALL, 2, 21, 1)),
            Trap("a group that is not full yet", call(SMALL, 2, 20, 1)),
            Trap("takes every ratio for 2 or 1", call(ODD, 0, 7, 6)),
        ),
        hints=(
            "A group counts once its last token is there. After this call there are start_pos + T tokens.",
            "n is the difference of two such counts: after the call and before it. k is index_topk, or less where "
            "fewer positions exist.",
            "window_slots: the first call has min(T, window) columns, every later one the whole ring. og is "
            "[T, o_groups, o_lora_rank] and out is as wide as x.",
        ),
    ),
    Exercise(
        id="01b",
        file="01b_count_the_work",
        title="count what a call must do",
        level="B",
        small=call(SMALL, 2, 0, 9),
        full=(call(RELEASED, 2, 0, 2048), call(RELEASED, 20, 131071, 1), call(RELEASED, 24, 100000, 300)),
        traps=(
            Trap("counts a score on a layer that takes its selection", call(RELEASED, 25, 0, 700)),
            Trap("compressed positions on a layer of ratio 0", call(RELEASED, 0, 0, 700)),
            Trap("a decode before the ring is full", call(SMALL, 20, 3, 1)),
            Trap("takes every ratio for 2 or 1", call(ODD, 3, 7, 20)),
        ),
        hints=(
            "Write down how many positions each token sees: start_pos + 1 for the first, one more for each "
            "that follows.",
            "visible is the sum over tokens of min(seen, window), selected that of min(seen // ratio, index_topk).",
            "Attention: 2 D operations for the key and 2 D for the value, for each pair and each of H heads. Score: "
            "2 * index_head_dim for each reached position and each index head, and only where the layer is an index "
            "source.",
        ),
    ),
]
