"""The exercises of chapter 11: how to attend to scattered rows."""

import numpy as np

from dsv41_numba.exercise.spec import Exercise, Inputs, Trap
from dsv41_numba.formats.bf16 import f32_to_bf16


def attention(rng: np.random.Generator, T: int, S: int, D: int, rows: int, sink: float = 0.0) -> Inputs:
    """Logits, rows and sinks in the tens of one; about every fifth slot behind the first is empty."""
    idx = rng.integers(0, rows, (T, S)).astype(np.int32)
    idx[:, 1:][rng.random((T, S - 1)) < 0.2] = -1
    logit = 2 * rng.standard_normal((T, S)).astype(np.float32)
    sinks = (rng.standard_normal(T) + sink).astype(np.float32)
    return logit, idx, rng.standard_normal((rows, D)).astype(np.float32), sinks


def two_queries(rng: np.random.Generator) -> Inputs:
    logit = np.array([[0, 1, 2], [0, 3, -1]], np.float32)
    idx = np.array([[0, 1, 2], [2, -1, 0]], np.int32)
    rows = np.array([[1, 0, -1, 2], [0, 1, 3, -2], [4, -4, 1, 1]], np.float32)
    return logit, idx, rows, np.array([0, 1], np.float32)


def empty_first_tile(rng: np.random.Generator) -> Inputs:
    logit, idx, rows, sink = attention(rng, 3, 20, 10, 9)
    idx[:, :8] = -1
    return logit, idx, rows, sink


def nothing_to_read(rng: np.random.Generator) -> Inputs:
    logit, idx, rows, sink = attention(rng, 3, 11, 10, 9)
    idx[1] = -1
    return logit, idx, rows, sink


def large_logits(rng: np.random.Generator) -> Inputs:
    logit, idx, rows, sink = attention(rng, 3, 20, 10, 9, 150.0)
    return logit + np.float32(150.0), idx, rows, sink


def rising_logits(rng: np.random.Generator) -> Inputs:
    """Each tile's logits far above those before: what was summed must shrink to nothing."""
    logit, idx, rows, sink = attention(rng, 3, 24, 10, 9)
    return logit + np.repeat(np.array([0, 60, 120], np.float32), 8), idx, rows, sink


def high_empty_slots(rng: np.random.Generator) -> Inputs:
    logit, idx, rows, sink = attention(rng, 3, 20, 10, 9)
    logit[idx == -1] = 200.0
    return logit, idx, rows, sink


def whole_numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """bf16 bits of whole numbers from -9 to 9: sums of their products are exact in f32."""
    return f32_to_bf16(rng.integers(-9, 10, shape).astype(np.float32))


def slots(rng: np.random.Generator, T: int, S: int, D: int, rows: int) -> Inputs:
    """Queries, rows and slots, every fourth or so empty; the last row is large, to be noticed where -1 reads it."""
    q, all_rows = whole_numbers(rng, T, D), whole_numbers(rng, rows, D)
    all_rows[-1] = f32_to_bf16(np.full(D, 1024, np.float32))
    idx = rng.integers(0, rows, (T, S)).astype(np.int32)
    idx[rng.random((T, S)) < 0.25] = -1
    return q, all_rows, idx, 0.125


EXERCISES = [
    Exercise(
        id="11a",
        file="11a_window_slots",
        title="the window's part of the gather list",
        level="A",
        small=lambda rng: (0, 4, 2),
        full=(lambda rng: (0, 40, 16), lambda rng: (37, 1, 16), lambda rng: (0, 70, 67)),
        traps=(
            Trap("a prompt shorter than the window", lambda rng: (0, 5, 16)),
            Trap("slots of positions before the first", lambda rng: (5, 1, 16)),
            Trap("the last step before the ring is full", lambda rng: (15, 1, 16)),
            Trap("the first step that overwrites a row", lambda rng: (16, 1, 16)),
            Trap("a window of one", lambda rng: (3, 1, 1)),
        ),
        hints=(
            "The newest of `window` rows is the query's own, so the oldest is t - window + 1, not t - window.",
            "In a prefill the list starts at the oldest row that exists: max(t - window + 1, 0). Column s adds s.",
            "In a decode step column s stands for position start_pos - window + 1 + s, and the position modulo window "
            "is its slot.",
        ),
        kernels=("window_slots_kernel",),
    ),
    Exercise(
        id="11b",
        file="11b_online_softmax",
        title="online softmax with the sink",
        level="B",
        small=two_queries,
        full=(lambda rng: attention(rng, 4, 21, 40, 30), lambda rng: attention(rng, 2, 8, 64, 5)),
        traps=(
            Trap("a leading tile of empty slots: -inf minus -inf", empty_first_tile),
            Trap("a query without any row to read", nothing_to_read),
            Trap("exp of a large logit or sink", large_logits),
            Trap("sums not rescaled when a larger logit comes", rising_logits),
            Trap("the largest logit taken from an empty slot", high_empty_slots),
        ),
        hints=(
            "Start as if the sink were a slot that has been read: the largest logit so far is the sink, its weight "
            "relative to itself is exp(0) = 1, and it adds no row.",
            "A tile takes two passes over its slots: the first finds the largest logit, the second adds the weights. "
            "In between the old sums are multiplied by exp(old largest - new largest).",
            "Every thread does the same sums over the weights, and its own dimension of the rows. Barriers stand "
            "outside every `if`: one after the tile is filled, one after it was read.",
        ),
        steps=1,
        kernels=("online_softmax_kernel",),
    ),
    Exercise(
        id="11c",
        file="11c_two_numbers_a_read",
        title="two numbers in one read",
        level="C",
        small=lambda rng: slots(rng, 2, 4, 4, 3),
        full=(lambda rng: slots(rng, 3, 130, 90, 40), lambda rng: slots(rng, 2, 64, 128, 5)),
        traps=(
            Trap("fewer slots than threads, fewer than words", lambda rng: slots(rng, 2, 3, 128, 6)),
            Trap("an empty slot read as a row", lambda rng: slots(rng, 5, 21, 2, 2)),
        ),
        hints=(
            "A word holds dimensions 2 m and 2 m + 1. Both the query's word and the row's come apart with low_bf16 and "
            "high_bf16.",
            "The query is the same for all slots: share the copying as the loop over slots shares the slots, and put "
            "the barrier before that loop, where every thread comes past.",
            "Read rows[row, m] once, into a variable, and use it for both halves. Write logit[t, s] once, at the end, "
            "from a variable that starts as NEG_INF.",
        ),
        kernels=("logits_kernel",),
    ),
]
