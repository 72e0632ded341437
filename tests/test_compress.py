import numpy as np
import pytest

import golden
from dsv41_numba.compare import bf16_array, bf16_steps, same_bits
from dsv41_numba.ops.compress import THREADS, pool, pool_ref, store_partial, store_partial_ref
from dsv41_numba.ops.rmsnorm import rmsnorm_f32
from dsv41_numba.runtime.backend import to_device, to_host
from tolerances import EXACT


def rows(rng, T, D, spread=1.0):
    return (rng.standard_normal((T, D)) * spread).astype(np.float32)


def empty_state(ratio, D):
    return np.zeros((ratio, D), np.float32), np.full((ratio, D), -np.inf, np.float32)


def run(kv, score, kv_state, score_state, start_pos):
    """Both stages on device copies -> pooled, kv_state and score_state after the call."""
    kv_state, score_state = to_device(kv_state.copy()), to_device(score_state.copy())
    arrays = to_device(kv), to_device(score), kv_state, score_state
    pooled = to_host(pool(*arrays, start_pos))
    store_partial(*arrays, start_pos)
    return pooled, to_host(kv_state), to_host(score_state)


def run_in_chunks(kv, score, ratio, cuts):
    """A sequence in calls that end at `cuts` -> all pooled rows, and the states at the end."""
    kv_state, score_state = empty_state(ratio, kv.shape[1])
    pooled = []
    for start, end in zip((0, *cuts), (*cuts, len(kv))):
        new, kv_state, score_state = run(kv[start:end], score[start:end], kv_state, score_state, start)
        pooled.append(new)
    return np.concatenate(pooled), kv_state, score_state


def assert_pools(pooled, kv, score, ratio):
    """Hold pooled rows of whole groups to float64.

    An f32 softmax weight errs by 2^-24 times the distance of its score to the largest (the subtraction) plus 4 (exp, 2
    units in the last place); it counts twice, above and below the division; then come `ratio` products, 2 * ratio sums
    and the division. All relative to the weighted mean of the magnitudes.
    """
    n, D = pooled.shape
    kv, score = (a[: n * ratio].reshape(n, ratio, D).astype(np.float64) for a in (kv, score))
    distance = score.max(1, keepdims=True) - score
    weight = np.exp(-distance)
    weight /= weight.sum(1, keepdims=True)
    allowed = 2 * (distance.max(initial=0) + 4) + 3 * ratio + 1
    error = np.abs(pooled - (weight * kv).sum(1)) / (weight * np.abs(kv)).sum(1) * 2.0**24
    assert pooled.dtype == np.float32
    assert error.max(initial=0) <= allowed  # NaN fails


@pytest.mark.parametrize("ratio", (2, 3, 4))
@pytest.mark.parametrize(
    "T, D", ((1, 5), (2, 1), (3, 64), (4, THREADS - 1), (7, THREADS), (12, THREADS + 1), (13, 600))
)
def test_pool_matches_float64_and_its_reference(rng, ratio, T, D):
    kv, score = rows(rng, T, D), rows(rng, T, D, spread=3)
    pooled, _, _ = run(kv, score, *empty_state(ratio, D), 0)
    assert pooled.shape == (T // ratio, D)
    assert_pools(pooled, kv, score, ratio)
    assert_pools(pool_ref(kv, score, *empty_state(ratio, D), 0), kv, score, ratio)


@pytest.mark.parametrize("ratio", (2, 3, 4))
def test_pool_takes_the_first_rows_of_a_group_from_the_state(rng, ratio):
    """The group before start_pos is in the state; whatever stands in the slots of later positions is not read."""
    D = 9
    for held in range(ratio):
        kv, score = rows(rng, 2 * ratio, D), rows(rng, 2 * ratio, D, spread=3)
        kv_state, score_state = np.full((2, ratio, D), np.nan, np.float32)
        kv_state[:held], score_state[:held] = kv[:held], score[:held]
        pooled, _, _ = run(kv[held:], score[held:], kv_state, score_state, 7 * ratio + held)
        assert_pools(pooled, kv, score, ratio)
        assert_pools(pool_ref(kv[held:], score[held:], kv_state, score_state, 7 * ratio + held), kv, score, ratio)


@pytest.mark.parametrize("ratio", (2, 3, 4))
def test_pool_in_chunks_equals_one_call_bit_for_bit(rng, ratio):
    kv, score = rows(rng, 14, 6), rows(rng, 14, 6)
    whole = run_in_chunks(kv, score, ratio, ())
    for cuts in (range(1, 14), (1,), (5,), (12,), (13,), (2, 3, 9), (4, 8, 12)):
        for one, other in zip(whole, run_in_chunks(kv, score, ratio, tuple(cuts))):
            assert same_bits(one, other)


@pytest.mark.parametrize("ratio", (2, 3, 4))
def test_store_partial_leaves_exactly_the_group_that_is_not_full(rng, ratio):
    for T in range(2 * ratio + 1):
        for start_pos in range(2 * ratio):
            kv, score = rows(rng, T, 3), rows(rng, T, 3)
            kv_state, score_state = empty_state(ratio, 3)
            held = start_pos % ratio
            kv_state[:held], score_state[:held] = rows(rng, held, 3), rows(rng, held, 3)
            all_kv, all_score = np.concatenate([kv_state[:held], kv]), np.concatenate([score_state[:held], score])
            _, new_kv, new_score = run(kv, score, kv_state, score_state, start_pos)
            left = (held + T) % ratio
            expected_kv, expected_score = empty_state(ratio, 3)
            expected_kv[:left] = all_kv[held + T - left :]
            expected_score[:left] = all_score[held + T - left :]
            assert same_bits(new_kv, expected_kv) and same_bits(new_score, expected_score)
            store_partial_ref(kv, score, kv_state, score_state, start_pos)
            assert same_bits(kv_state, expected_kv) and same_bits(score_state, expected_score)


def test_store_partial_resets_every_column_of_a_wide_row(rng):
    D = 2 * THREADS + 1
    _, kv_state, score_state = run(rows(rng, 4, D), rows(rng, 4, D), rows(rng, 2, D), rows(rng, 2, D), 0)
    assert not kv_state.any() and (score_state == -np.inf).all()


def test_pool_of_scores_at_minus_infinity_is_never_nan():
    """A row at -inf has no weight; a group with nothing else is 0, not -inf - -inf."""
    kv = np.array([[1, 5, 7], [3, 6, 8]], np.float32)
    score = np.array([[0, -np.inf, -np.inf], [0, 4, -np.inf]], np.float32)
    pooled, _, _ = run(kv, score, *empty_state(2, 3), 0)
    np.testing.assert_array_equal(pooled, [[2, 6, 0]])
    np.testing.assert_array_equal(pool_ref(kv, score, *empty_state(2, 3), 0), [[2, 6, 0]])


def test_pool_of_large_scores_does_not_overflow():
    kv = np.array([[1, 1], [3, 3]], np.float32)
    score = np.array([[1e30, -1e30], [1e30, -3e38]], np.float32)
    pooled, _, _ = run(kv, score, *empty_state(2, 2), 0)
    np.testing.assert_array_equal(pooled, [[2, 1]])


def test_pool_of_a_call_that_completes_no_group_is_no_rows(rng):
    kv, score = rows(rng, 2, 5), rows(rng, 2, 5)
    assert run(kv, score, *empty_state(4, 5), 1)[0].shape == (0, 5)
    assert pool_ref(kv, score, *empty_state(4, 5), 1).shape == (0, 5)


def recorded_latents(name):
    """Each call of each ratio-2 source -> pooled rows of our kernels, the norm's weight, the recorded latent."""
    tensors, weights = golden.load(name), golden.load("tiny-weights")
    for layer in golden.layers(name, "comp_kv"):
        kv_state, score_state = empty_state(2, tensors[f"L{layer:02d}.p.comp_kv"].shape[1])
        start_pos = 0
        for step in golden.steps(name):
            key = f"L{layer:02d}.{step}."
            kv, score = tensors[key + "comp_kv"], tensors[key + "comp_score"]
            pooled, kv_state, score_state = run(kv, score, kv_state, score_state, start_pos)
            start_pos += len(kv)
            if key + "latent" in tensors:
                yield pooled, weights[f"layers.{layer}.attn.compressor.norm.weight"], tensors[key + "latent"]
            else:
                assert len(pooled) == 0


@pytest.mark.parametrize("name", ("tiny-A", "tiny-B", "tiny-C", "tiny-D"))
def test_pool_and_norm_give_the_recorded_latents(name):
    """Exactly, because `rmsnorm_f32` rounds the pooled rows to bf16 first; without that 27 % are one step off."""
    eps = golden.config()["norm_eps"]
    compared = 0
    for pooled, weight, latent in recorded_latents(name):
        normed = bf16_array(to_host(rmsnorm_f32(to_device(pooled), to_device(weight), eps)))
        assert bf16_steps(normed, latent).max() <= EXACT
        compared += latent.size
    assert compared > 0


def test_pool_and_store_partial_refuse_bad_input(rng):
    kv, score = to_device(rows(rng, 3, 8)), to_device(rows(rng, 3, 8))
    kv_state, score_state = map(to_device, empty_state(2, 8))
    for op in (pool, store_partial):
        with pytest.raises(ValueError, match=r"score: expected shape \[3, 8\], got \[2, 8\]"):
            op(kv, to_device(rows(rng, 2, 8)), kv_state, score_state, 0)
        with pytest.raises(ValueError, match=r"kv_state: expected shape \[\*, 8\], got \[2, 7\]"):
            op(kv, score, to_device(rows(rng, 2, 7)), score_state, 0)
        with pytest.raises(ValueError, match=r"score_state: expected shape \[2, 8\], got \[3, 8\]"):
            op(kv, score, kv_state, to_device(rows(rng, 3, 8)), 0)
        with pytest.raises(ValueError, match="kv: expected dtype float32, got uint16"):
            op(to_device(np.zeros((3, 8), np.uint16)), score, kv_state, score_state, 0)
        with pytest.raises(ValueError, match="kv_state: expected a row for each of ratio >= 2 slots, got 1"):
            op(kv, score, to_device(rows(rng, 1, 8)), to_device(rows(rng, 1, 8)), 0)
        with pytest.raises(ValueError, match="start_pos: expected a position >= 0, got -1"):
            op(kv, score, kv_state, score_state, -1)
