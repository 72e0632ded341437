"""The index score on tensor cores against its reference: the same bits, but where the order of the heads' sum shows."""

import numpy as np
import pytest

from conftest import random_bf16
from dsv41_numba.compare import bf16_steps, same_bits
from dsv41_numba.formats.bf16 import as_bf16
from dsv41_numba.formats.packed_rows import INDEX_KEY, PackedRows
from dsv41_numba.ops.index_score import index_score_ref
from dsv41_numba.ops.packed_rows import pack_rows_ref
from dsv41_numba.runtime import backend
from dsv41_numba.runtime.backend import to_device, to_host
from dsv41_numba.tuned.index_score import index_score, kernel, launch_mma
from test_index_score import inputs
from tolerances import ONE_ROUNDING

pytest.importorskip("numba_cuda", reason="numba-cuda, whose intrinsics hold the PTX, is not installed")


def run(q, w, k, start_pos, ratio):
    score = backend.empty((len(q), k.shape[0]), np.float32)
    keys = k.planes(to_device) if isinstance(k, PackedRows) else to_device(k)
    launch_mma(to_device(q), to_device(w), keys, start_pos, ratio, score)
    return to_host(score)


@pytest.mark.parametrize(
    "T, Hi, Di, G, start_pos, ratio",
    [
        (1, 8, 32, 1, 0, 1),
        (1, 32, 128, 70, 140, 2),
        (3, 5, 64, 63, 100, 2),
        (17, 7, 96, 65, 40, 1),
        (18, 32, 128, 300, 290, 1),
        (2, 64, 32, 257, 1030, 4),
        (5, 9, 128, 260, 0, 2),
    ],
)
def test_tuned_index_score_matches_the_reference(rng, T, Hi, Di, G, start_pos, ratio):
    q, w, k = inputs(rng, T, Hi, Di, G)
    visible = min((start_pos + T) // ratio, G)
    poisoned = np.array(k)
    poisoned[visible:] = np.nan  # keys that nobody may see
    score, expected = run(q, w, poisoned, start_pos, ratio), index_score_ref(q, w, k, start_pos, ratio)
    seen = np.isfinite(expected)
    assert np.array_equal(np.isfinite(score), seen) and (score[~seen] == -np.inf).all()
    steps = bf16_steps(as_bf16(score[seen]), as_bf16(expected[seen]))
    print(f"{np.count_nonzero(steps)} of {steps.size} scores are apart, by at most {steps.max(initial=0)} bf16 steps")
    assert steps.max(initial=0) <= ONE_ROUNDING
    assert np.count_nonzero(steps) <= max(2, 0.005 * steps.size)


@pytest.mark.parametrize("T, Hi, Di, G, start_pos", [(1, 8, 32, 1, 0), (3, 5, 64, 63, 100), (2, 9, 128, 130, 200)])
def test_tuned_index_score_of_packed_keys_has_the_bits_of_their_values(rng, T, Hi, Di, G, start_pos):
    q, w, _ = inputs(rng, T, Hi, Di, G)
    keys = pack_rows_ref(random_bf16(rng, G, Di, spread=3.0), INDEX_KEY)
    some = keys.scales[:: max(G // 7, 1)]
    some[:, 0] = rng.integers(0, 255, len(some))  # of any size
    expected = run(q, w, keys.to_bf16(), start_pos, 1)
    assert same_bits(run(q, w, keys, start_pos, 1), expected)
    on_device = to_device(q), to_device(w)
    by_table = [index_score(*on_device, k, start_pos, 1) for k in (keys.planes(to_device), to_device(keys.to_bf16()))]
    assert same_bits(*map(to_host, by_table))


def test_tuned_index_score_keeps_a_nan(rng):
    q, w, k = inputs(rng, 1, 8, 32, 20)
    k[3, 5] = np.nan
    score, expected = run(q, w, k, 30, 1), index_score_ref(q, w, k, 30, 1)
    assert np.array_equal(np.isnan(score), np.isnan(expected)) and np.isnan(score[0, 3])


@pytest.mark.parametrize("Di", [48, 160])
def test_tuned_index_score_of_other_sizes_is_the_plain_kernels(rng, Di):
    q, w, k = (to_device(a) for a in inputs(rng, 2, 3, Di, 9))
    score = to_host(index_score(q, w, k, 12, 1))
    np.testing.assert_array_equal(score, index_score_ref(*(a.view("bfloat16") for a in map(to_host, (q, w, k))), 12, 1))


def test_tuned_index_score_refuses_what_the_plain_one_refuses(rng):
    q, w, k = (to_device(a) for a in inputs(rng, 2, 3, 32, 9))
    with pytest.raises(ValueError, match="ratio: expected"):
        index_score(q, w, k, 12, 0)
    with pytest.raises(ValueError, match="start_pos: expected"):
        index_score(q, w, k, -1, 1)


def test_tuned_index_score_kernel_is_made_once():
    assert kernel(4, 4) is kernel(4, 4)
