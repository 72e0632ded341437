import numpy as np
import pytest

import golden
from conftest import random_bf16
from dsv41_numba.compare import bf16_array, bf16_steps, same_bits
from dsv41_numba.formats.bf16 import as_bf16, bf16_to_f32
from dsv41_numba.ops.index_score import (
    NEG_INF,
    THREADS,
    TILE_D,
    TILE_G,
    TILE_H,
    index_score,
    index_score_ref,
    index_weights,
    index_weights_ref,
)
from dsv41_numba.runtime.backend import to_device, to_host
from tolerances import ONE_ROUNDING

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def fp4_rows(rng, *shape, spread=3):
    """bf16 rows as the fp4 round trip leaves them: signed codes times one power of two for each 32 dimensions."""
    codes = rng.choice(E2M1, shape) * rng.choice([-1, 1], shape)
    blocks = rng.integers(-spread, spread + 1, (*shape[:-1], -(-shape[-1] // TILE_D)))
    scales = np.exp2(np.repeat(blocks, TILE_D, -1)[..., : shape[-1]])
    return as_bf16((codes * scales).astype(np.float32))


def inputs(rng, T, Hi, Di, G, spread=3):
    return fp4_rows(rng, T, Hi, Di, spread=spread), random_bf16(rng, T, Hi), fp4_rows(rng, G, Di, spread=spread)


def run(index_q, index_w, index_k, start_pos, ratio):
    device = (to_device(x) for x in (index_q, index_w, index_k))
    return to_host(index_score(*device, start_pos, ratio))


def float64_score(index_q, index_w, index_k, start_pos, ratio):
    """The formula with every sum in float64 and bf16 roundings where it names them."""
    q, w, k = (x.astype(np.float64) for x in (index_q, index_w, index_k))
    dot = as_bf16(np.einsum("thd,gd->thg", q, k).astype(np.float32)).astype(np.float64)
    weighted = as_bf16((np.maximum(dot, 0) * w[:, :, None]).astype(np.float32)).astype(np.float64)
    score = as_bf16(weighted.sum(1).astype(np.float32)).astype(np.float32)
    for t in range(len(q)):
        score[t, (start_pos + t + 1) // ratio :] = -np.inf
    return score


@pytest.mark.parametrize(
    "T, Hi, Di, G, start_pos, ratio",
    [
        (1, 1, 32, 1, 0, 1),
        (3, 4, 64, TILE_G - 1, 100, 2),
        (2, 6, 96, TILE_G, 63, 1),
        (2, TILE_H - 1, 32, TILE_G + 1, 259, 4),
        (5, TILE_H, 128, 2 * TILE_G + 5, 130, 1),
        (1, TILE_H + 1, 160, 7, 20, 3),
        (70, 5, 32, 35, 0, 2),
        (2, 2 * TILE_H + 3, 40, 9, 30, 2),
    ],
)
def test_index_score_matches_its_reference_to_the_bit(rng, T, Hi, Di, G, start_pos, ratio):
    q, w, k = inputs(rng, T, Hi, Di, G)
    score = run(q, w, k, start_pos, ratio)
    assert same_bits(score, index_score_ref(q, w, k, start_pos, ratio))
    steps = bf16_steps(as_bf16(score), as_bf16(float64_score(q, w, k, start_pos, ratio)))
    assert steps.max() <= ONE_ROUNDING


def test_index_score_adds_the_parts_of_different_scales_in_order(rng):
    """With parts 2^40 apart most of a sum is rounded away; the order decides what is left."""
    q, w, k = inputs(rng, 3, 8, 5 * TILE_D, 50, spread=10)
    score = run(q, w, k, 200, 1)
    assert same_bits(score, index_score_ref(q, w, k, 200, 1))


RECORDINGS = [f"tiny-{scenario}{keys}" for scenario in "ABCD" for keys in ("", "-ownkeys")] + ["tiny-fp8-dequant-run"]


def published_keys(name, layer, step):
    """The keys that `layer` scores against at `step`, and whether they are old. When a decode step completes no group,
    the released code takes the keys published last: layer 20's of the call before, as many as there are groups."""
    calls, groups = golden.steps(name), golden.end_of(name, step) // golden.config()["compress_ratios"][layer]
    completes = golden.end_of(name, step) % golden.config()["compress_ratios"][layer] == 0
    if step == "p" or completes or name.endswith("-ownkeys"):
        return golden.rows_so_far(name, golden.source(layer, "kv_source_layers"), "index_k", step), False
    return golden.rows_so_far(name, 20, "index_k", calls[calls.index(step) - 1])[:groups], True


@pytest.mark.parametrize("name", RECORDINGS)
def test_index_score_equals_the_recordings_to_the_bit(name):
    tensors = golden.load(name)
    compared = stale = 0
    for layer in golden.layers(name, "index_q"):
        ratio = golden.config()["compress_ratios"][layer]
        for step in golden.steps(name):
            key = f"L{layer:02d}.{step}"
            index_k, is_stale = published_keys(name, layer, step)
            if index_k is None or f"{key}.index_q" not in tensors:
                continue  # layers 8 and 14 are recorded whole in A only; before the first group there is no query
            start_pos = 0 if step == "p" else golden.end_of(name, step) - 1
            score = run(tensors[f"{key}.index_q"], tensors[f"{key}.index_w"], index_k, start_pos, ratio)
            assert same_bits(score, tensors[f"{key}.score"]), key
            compared, stale = compared + 1, stale + is_stale
    print(f"{name}: {compared} scores, {stale} of them against the keys of the call before")
    assert compared >= 3
    assert (stale > 0) == (not name.endswith("-ownkeys"))


def test_index_score_lets_a_query_see_only_complete_groups(rng):
    """Hard case 3: ratio 2, positions 0..5 see 0 1 1 2 2 3 groups."""
    q, w, k = inputs(rng, 6, 2, 32, 3)
    assert np.isfinite(run(q, w, k, 0, 2)).sum(1).tolist() == [0, 1, 1, 2, 2, 3]
    assert np.isfinite(run(q, w, k, 0, 4)).sum(1).tolist() == [0, 0, 0, 1, 1, 1]
    assert np.isfinite(run(q, w, k, 1, 1)).sum(1).tolist() == [2, 3, 3, 3, 3, 3]


def test_index_score_of_a_token_depends_on_no_other_token_and_no_later_key(rng):
    q, w, k = inputs(rng, 5, 3, 64, TILE_G + 6)
    together = run(q, w, k, TILE_G + 1, 1)
    for t in range(5):
        visible = TILE_G + 2 + t
        alone = run(q[t : t + 1], w[t : t + 1], k[:visible], TILE_G + 1 + t, 1)
        assert same_bits(together[t : t + 1, :visible], alone)


def test_index_score_keeps_a_nan(rng):
    """An fp4 block that overflowed holds infinities, and infinity times 0 is NaN: the relu must not hide it."""
    q, w, k = inputs(rng, 1, 2, 32, 3)
    q[0, 0, 0], k[:, 0] = np.inf, as_bf16(np.array([0, 1, 2], np.float32))
    w[0, 0] = 1
    score = run(q, w, k, 9, 1)
    assert np.isnan(score[0, 0]) and score[0, 1:].tolist() == [np.inf, np.inf]


def without_relu(q, w, k):
    dot = as_bf16(np.einsum("thd,gd->thg", q, k)).astype(np.float32)
    return as_bf16(as_bf16(dot * w[:, :, None]).astype(np.float32).sum(1))


def without_rounding_the_dot(q, w, k):
    dot = np.maximum(np.einsum("thd,gd->thg", q, k), 0)
    return as_bf16(as_bf16(dot * w[:, :, None]).astype(np.float32).sum(1))


def without_rounding_the_products(q, w, k):
    dot = np.maximum(as_bf16(np.einsum("thd,gd->thg", q, k)).astype(np.float32), 0)
    return as_bf16((dot * w[:, :, None]).sum(1))


def with_the_weight_inside_the_relu(q, w, k):
    dot = as_bf16(np.einsum("thd,gd->thg", q, k)).astype(np.float32)
    return as_bf16(as_bf16(np.maximum(dot * w[:, :, None], 0)).astype(np.float32).sum(1))


def with_the_next_token_s_weights(q, w, k):
    return without_rounding_the_products(q, np.roll(w, -1, 0), k)


@pytest.mark.parametrize(
    "wrong",
    [
        without_relu,
        without_rounding_the_dot,
        without_rounding_the_products,
        with_the_weight_inside_the_relu,
        with_the_next_token_s_weights,
    ],
)
def test_index_score_inputs_tell_a_wrong_formula(rng, wrong):
    q, w, k = inputs(rng, 4, 6, 64, 40)
    score = run(q, w, k, 40, 1)
    assert (wrong(*(x.astype(np.float32) for x in (q, w, k))).astype(np.float32) != score).any()


def test_index_score_of_nothing_is_nothing(rng):
    q, w, k = inputs(rng, 2, 3, 32, 4)
    assert run(q[:0], w[:0], k, 0, 1).shape == (0, 4)
    assert run(q, w, k[:0], 0, 2).shape == (2, 0)


def test_index_score_refuses_bad_input(rng):
    q, w, k = (to_device(x) for x in inputs(rng, 2, 3, 32, 4))
    with pytest.raises(ValueError, match=r"index_w: expected shape \[2, 3\], got \[3, 2\]"):
        index_score(q, to_device(np.zeros((3, 2), np.uint16)), k, 0, 1)
    with pytest.raises(ValueError, match=r"index_k: expected shape \[\*, 32\], got \[4, 31\]"):
        index_score(q, w, to_device(np.zeros((4, 31), np.uint16)), 0, 1)
    with pytest.raises(ValueError, match="index_q: expected dtype uint16, got float32"):
        index_score(to_device(np.zeros((2, 3, 32), np.float32)), w, k, 0, 1)
    with pytest.raises(ValueError, match="start_pos: expected a position of at least 0, got -1"):
        index_score(q, w, k, -1, 1)
    with pytest.raises(ValueError, match=r"ratio: expected at least 1 .*, got 0"):
        index_score(q, w, k, 0, 0)


@pytest.mark.parametrize("scale", [32**-0.5 * 4**-0.5, 128**-0.5 * 32**-0.5, 96**-0.5 * 6**-0.5])
def test_index_weights_match_their_reference_on_every_pattern(scale):
    every = bf16_array(np.arange(1 << 16, dtype=np.uint16).reshape(1024, 64))
    index_w = bf16_array(to_host(index_weights(to_device(every), scale)))
    with np.errstate(invalid="ignore"):
        expected = index_weights_ref(every, scale)
    finite = np.isfinite(every.astype(np.float32))
    assert index_w[finite].tobytes() == expected[finite].tobytes()
    with np.errstate(invalid="ignore"):
        exact = bf16_to_f32(every.view(np.uint16)).astype(np.float64) * np.float32(scale)
    assert bf16_steps(index_w[finite], as_bf16(exact[finite].astype(np.float32))).max() == 0


@pytest.mark.parametrize("T, Hi", [(1, 1), (1, THREADS - 1), (2, THREADS // 2), (37, 7)])
def test_index_weights_fill_every_element(rng, T, Hi):
    projected = random_bf16(rng, T, Hi)
    assert same_bits(bf16_array(to_host(index_weights(to_device(projected), 0.3))), index_weights_ref(projected, 0.3))


@pytest.mark.parametrize("name", ["tiny-A", "tiny-B", "tiny-C", "tiny-D"])
def test_index_weights_equal_the_recordings_to_the_bit(name):
    tensors, weights = golden.load(name), golden.weights(name)
    scale = golden.config()["index_head_dim"] ** -0.5 * golden.config()["index_n_heads"] ** -0.5
    for layer in golden.layers(name, "index_w"):
        weight = weights[f"layers.{layer}.attn.indexer.weights_proj.weight"].astype(np.float64)
        for step in golden.steps(name):
            if f"L{layer:02d}.{step}.index_w" not in tensors:
                continue  # before the first group there is nothing to weigh
            x = tensors[f"L{layer:02d}.{step}.x"].astype(np.float64)
            projected = as_bf16((x @ weight.T).astype(np.float32))
            index_w = bf16_array(to_host(index_weights(to_device(projected), scale)))
            assert same_bits(index_w, tensors[f"L{layer:02d}.{step}.index_w"]), (layer, step)


def test_index_weights_refuse_bad_input():
    assert to_host(index_weights(to_device(np.zeros((0, 4), np.uint16)), 0.1)).shape == (0, 4)
    with pytest.raises(ValueError, match=r"projected: expected shape \[\*, \*\], got \[4\]"):
        index_weights(to_device(np.zeros(4, np.uint16)), 0.1)


def test_index_score_hides_with_minus_infinity(rng):
    q, w, k = inputs(rng, 2, 2, 32, TILE_G + 2)
    score = run(q, w, k, 0, 1)
    assert np.isfinite(score[0, :1]).all() and (score[0, 1:] == NEG_INF).all() and (score[1, 2:] == NEG_INF).all()
