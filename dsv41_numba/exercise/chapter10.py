"""The exercises of chapter 10: which rows are worth reading."""

import numpy as np

from dsv41_numba.exercise.spec import Exercise, Inputs, Trap
from dsv41_numba.formats.bf16 import f32_to_bf16


def few_bits(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """f32 multiples of 1/4 up to 31: bf16 holds them all."""
    return (rng.integers(-124, 125, shape) / 4).astype(np.float32)


def weights(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """bf16 bits of signed weights of about a tenth."""
    return f32_to_bf16((rng.standard_normal(shape) / 10).astype(np.float32))


def two_heads(rng: np.random.Generator) -> Inputs:
    dot = np.array([[[1, 2, 3, -1, -2, -3, 0.5, 0], [-2, 4, -6, -2, 4, 6, 1, 0]]], np.float32)
    return dot, f32_to_bf16(np.array([[0.5, -0.25]], np.float32))


def dots_between(rng: np.random.Generator) -> Inputs:
    """Dots that fall between two bf16 numbers, the half-way ones among them."""
    dot = few_bits(rng, 3, 4, 40) * np.float32(1 + 2.0**-8)
    return dot, weights(rng, 3, 4)


def many_heads(rng: np.random.Generator) -> Inputs:
    return few_bits(rng, 2, 32, 40), weights(rng, 2, 32)


def with_nan(rng: np.random.Generator) -> Inputs:
    dot = np.abs(few_bits(rng, 2, 3, 10))
    dot[0, 1, 4] = np.nan
    return dot, f32_to_bf16(rng.uniform(0.1, 1, (2, 3)).astype(np.float32))


def blocks(
    rng: np.random.Generator, lens: list[int], G: int, topk_blocks: int, block_size: int, newest: float
) -> Inputs:
    """Scores whose newest reachable block is `newest` above the others."""
    score = rng.standard_normal((len(lens), G)).astype(np.float32)
    for t, reach in enumerate(lens):
        score[t, max(reach - 1, 0) // block_size * block_size :] += np.float32(newest)
        score[t, reach:] = -np.inf
    return score, np.array(lens, np.int32), topk_blocks, block_size


def four_blocks(rng: np.random.Generator) -> Inputs:
    return np.array([[1, 5, 2, -3, 0, -1, 4, -np.inf]], np.float32), np.array([7], np.int32), 2, 2


def equal_blocks(rng: np.random.Generator) -> Inputs:
    score = np.array([[0, 3, 3, 1, 2, 3, 0, 3, -1]], np.float32)
    return score, np.array([9], np.int32), 3, 2


def whole_numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """bf16 bits of whole numbers from -6 to 6: sums of their products are exact in f32."""
    return f32_to_bf16(rng.integers(-6, 7, shape).astype(np.float32))


def queries_and_keys(rng: np.random.Generator, T: int, H: int, D: int, G: int) -> Inputs:
    return whole_numbers(rng, T, H, D), whole_numbers(rng, G, D)


EXERCISES = [
    Exercise(
        id="10a",
        file="10a_relu_and_head_weights",
        title="from the dots of all heads to one score",
        level="A",
        small=two_heads,
        full=(
            lambda rng: (few_bits(rng, 3, 5, 130), weights(rng, 3, 5)),
            lambda rng: (few_bits(rng, 1, 1, 7), weights(rng, 1, 1)),
        ),
        traps=(
            Trap("dot not rounded to bf16", dots_between),
            Trap("sum rounded after every head", many_heads),
            Trap("NaN made 0 by the ReLU", with_nan),
        ),
        hints=(
            "Three roundings make a score: the dot, the weighted dot, the sum. The last one already stands below the "
            "loop.",
            "ReLU comes before the weight, because a weight may be negative. Write `if relu < float32(0.0)`: that "
            "comparison is false for NaN, so a NaN stays one.",
            "relu = decode_bf16(encode_bf16(dot[t, h, g])), then the if, then the same two calls around relu * w.",
        ),
        kernels=("score_kernel",),
    ),
    Exercise(
        id="10b",
        file="10b_candidate_blocks",
        title="the blocks worth looking into, with the newest one pinned",
        level="B",
        small=four_blocks,
        full=(
            lambda rng: blocks(rng, [23, 17, 10, 13], 23, 3, 3, 5.0),
            lambda rng: blocks(rng, [241, 210], 241, 10, 8, 5.0),
        ),
        traps=(
            Trap("newest block, partly filled, not pinned", lambda rng: blocks(rng, [22, 16], 23, 2, 3, -5.0)),
            Trap("pin one block too far when the newest is full", lambda rng: blocks(rng, [21, 12], 24, 3, 3, -5.0)),
            Trap("fewer blocks than asked for", lambda rng: blocks(rng, [5, 1, 8], 20, 4, 3, 0.0)),
            Trap("a query that reaches nothing", lambda rng: blocks(rng, [0, 1, 2], 8, 2, 2, 0.0)),
            Trap("of equal blocks the later one", equal_blocks),
        ),
        hints=(
            "The last block ends at G and may be shorter: min(first + block_size, G) ends its loop. Scores behind "
            "lens[t] are -inf already and need no test.",
            "Position lens[t] - 1 lies in this block if first <= lens[t] - 1 < first + block_size. With lens[t] 0 that "
            "is never true.",
            "A block's place in the order is the number of blocks before it; it is kept if that number is below "
            "topk_blocks. Compare every other block's maximum with this one's, and the block numbers where they are "
            "equal.",
        ),
        kernels=("block_max_kernel", "keep_kernel"),
    ),
    Exercise(
        id="10c",
        file="10c_one_read_a_key",
        title="read each key once for all heads",
        level="C",
        small=lambda rng: queries_and_keys(rng, 2, 2, 3, 4),
        full=(
            lambda rng: queries_and_keys(rng, 3, 13, 24, 150),
            lambda rng: queries_and_keys(rng, 2, 16, 32, 64),
        ),
        traps=(
            Trap("threads without a key leave before the barrier", lambda rng: queries_and_keys(rng, 2, 5, 32, 3)),
            Trap("fewer numbers in a query than threads", lambda rng: queries_and_keys(rng, 1, 1, 7, 70)),
        ),
        hints=(
            "Number i of a token's queries is head i // D, dimension i % D. With `range(cuda.threadIdx.x, H * D, "
            "THREADS)` the threads share the work, whatever H * D is.",
            "Everybody copies queries, also a thread whose g is past the last key; only the rest of the kernel stands "
            "behind `if g < score.shape[1]`. The barrier stands between the two.",
            "Loop over d once to fill key, before the loop over h. Inside the loops over h and d there is no read of "
            "index_q or index_k left.",
        ),
        kernels=("score_kernel",),
    ),
]
