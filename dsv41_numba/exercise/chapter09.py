"""The exercises of chapter 9: how two tokens become one."""

import numpy as np

from dsv41_numba.exercise.spec import Exercise, Inputs, Trap

EXP_STEPS = 16  # of f32: exp may be two off in kernel and spec, and a weight counts above and below the division


def one_sign_a_column(rng: np.random.Generator, T: int, D: int) -> np.ndarray:
    """[T, D] f32, positive or negative by column, so that no sum over rows cancels and steps mean something."""
    sign = np.where(rng.random(D) < 0.5, -1.0, 1.0)
    return (sign * rng.uniform(0.5, 2.0, (T, D))).astype(np.float32)


def scores(rng: np.random.Generator, T: int, D: int, around: float = 0.0) -> np.ndarray:
    """[T, D] f32: standard normal, moved."""
    return (rng.standard_normal((T, D)) + around).astype(np.float32)


def groups(rng: np.random.Generator, T: int, D: int, ratio: int, around: float = 0.0) -> Inputs:
    return one_sign_a_column(rng, T, D), scores(rng, T, D, around), ratio


def two_groups(rng: np.random.Generator) -> Inputs:
    kv = np.array([[1, 10, -1, -10], [3, 30, -3, -30], [5, 50, -5, -50], [7, 70, -7, -70]], np.float32)
    score = np.array([[0, 0, 0, 0], [0, 1, 2, 3], [3, 2, 1, 0], [0, 0, 0, 0]], np.float32)
    return kv, score, 2


def call(rng: np.random.Generator, start_pos: int, T: int, D: int, ratio: int) -> Inputs:
    """A call whose states are as earlier calls left them: the rows of the group in the making, the rest empty."""
    kv_state, score_state = np.zeros((ratio, D), np.float32), np.full((ratio, D), -np.inf, np.float32)
    held = start_pos % ratio
    rows = one_sign_a_column(rng, held + T, D)  # a column keeps its sign from the state to the call
    kv_state[:held], score_state[:held] = rows[:held], scores(rng, held, D)
    return rows[held:], scores(rng, T, D), kv_state, score_state, start_pos


def first_call(rng: np.random.Generator) -> Inputs:
    kv = np.array([[1, 10], [3, 30], [5, 50]], np.float32)
    score = np.array([[0, 0], [0, 1], [2, 3]], np.float32)
    return kv, score, np.zeros((2, 2), np.float32), np.full((2, 2), -np.inf, np.float32), 0


EXERCISES = [
    Exercise(
        id="09a",
        file="09a_softmax_of_a_group",
        title="the softmax of a group, one per dimension",
        level="A",
        small=two_groups,
        full=(lambda rng: groups(rng, 15, 300, 3), lambda rng: groups(rng, 8, 5, 2)),
        traps=(
            Trap("exp of a large score, which is infinite", lambda rng: groups(rng, 6, 7, 2, 150.0)),
            Trap("exp of very low scores, all 0", lambda rng: groups(rng, 6, 7, 3, -150.0)),
        ),
        hints=(
            "The loop already knows the row: it is row `first + i` of kv and of score, and column d of both.",
            "`math.exp` of a float32 gives the weight before it is divided; the division comes after the loop.",
            "weight = float32(math.exp(score[first + i, d] - top)). Read each number once and keep it in a variable.",
        ),
        steps=EXP_STEPS,
        kernels=("pool_kernel",),
    ),
    Exercise(
        id="09b",
        file="09b_group_not_yet_full",
        title="decode with a group that is not yet full",
        level="B",
        small=first_call,
        full=(lambda rng: call(rng, 0, 8, 260, 4), lambda rng: call(rng, 2, 1, 33, 3)),
        traps=(
            Trap("T is not a multiple of ratio: rows left over", lambda rng: call(rng, 0, 7, 9, 4)),
            Trap("decode after a prefill that ended inside a group", lambda rng: call(rng, 7, 1, 9, 4)),
            Trap("a row that an earlier call stored is lost", lambda rng: call(rng, 5, 1, 9, 4)),
            Trap("several tokens that start and end inside groups", lambda rng: call(rng, 3, 6, 9, 4)),
        ),
        hints=(
            "Row i of a group that started before this call is token first + i. The state holds the first `held` of "
            "them; row i - held of kv is the rest. For later groups held is negative, and i - held is still right.",
            "A slot stands for one position, and there are three cases: the position is still to come (>= end), this "
            "call brought it (>= start_pos), or an earlier call did.",
            "In the first case write 0 and -math.inf, in the second copy row position - start_pos, in the third write "
            "nothing.",
        ),
        steps=EXP_STEPS,
        kernels=("pool_kernel", "store_partial_kernel"),
    ),
]
