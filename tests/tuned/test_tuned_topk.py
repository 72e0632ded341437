"""The selection on the device: the host's sets, row by row, ties across the cut included."""

import dataclasses

import numba
import numpy as np
import pytest

from dsv41_numba.formats.bf16 import as_bf16
from dsv41_numba.ops import topk as host
from dsv41_numba.runtime import backend
from dsv41_numba.runtime.backend import to_device, to_host
from dsv41_numba.runtime.emulator import emulate
from dsv41_numba.tuned.topk import candidate_blocks, select, select_kernel, select_with_ties
from dsv41_numba.tuned.topk_ties import settle_kernel
from ptx import CAPABILITIES, ptx_of
from test_topk import EXHAUSTING, ROWS, exhausting_row, recorded_cases, recorded_rows, without_unreachable

SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 3.0, -3.0], np.float32)


def chosen(score, k, candidates=None, offset=0):
    device = None if candidates is None else to_device(candidates)
    picked, ties = select_with_ties(to_device(score), k, device, offset)
    return to_host(picked), to_host(ties)


def check(score, k, candidates=None):
    """Equal to the host's; returns the number of rows that were settled one by one."""
    picked, ties = chosen(score, k, candidates)
    np.testing.assert_array_equal(picked, host.select(score, k, candidates))
    return int(ties.sum())


def test_tuned_topk_chooses_the_recorded_sets():
    settled = 0
    for values, k, expected in recorded_rows():
        picked, ties = chosen(values[None].copy(), k)
        np.testing.assert_array_equal(picked, without_unreachable(values, expected)[None])
        settled += int(ties[0])
    assert 0 < settled < ROWS
    print(f"{settled} of {ROWS} recorded rows have a tie across the cut")


@pytest.mark.parametrize("T, G, k", [(1, 1, 1), (3, 7, 7), (5, 31, 4), (2, 33, 40), (4, 257, 64), (140, 300, 17)])
def test_tuned_topk_equals_the_hosts_on_any_f32(rng, T, G, k):
    score = rng.standard_normal((T, G)).astype(np.float32)
    check(score, k)
    bits = rng.integers(0, 1 << 32, (T, G), np.uint64).astype(np.uint32)
    check(bits.view(np.float32), k)
    check(rng.choice(SPECIAL, (T, G)), k)


@pytest.mark.parametrize("values", [2, 5, 40])
def test_tuned_topk_settles_ties_in_torchs_order(rng, values):
    """bf16 plateaus, as sums of ReLUs make them; k on both sides of the line where torch changes its algorithm."""
    settled = 0
    for G, k in ((65, 1), (65, 2), (200, 3), (200, 150), (1000, 512), (1000, 15)):
        levels = as_bf16(rng.standard_normal(values).astype(np.float32)).astype(np.float32)
        levels[0] = -np.inf
        settled += check(rng.choice(levels, (6, G)), k)
    assert settled > 0


@pytest.mark.parametrize("n, k", [case[:2] for case in EXHAUSTING])
def test_tuned_topk_falls_back_to_a_heap_where_torch_does(n, k):
    """Rows on which every split is bad."""
    assert check(exhausting_row(n, k)[None], k) == 1


def test_tuned_topk_of_10_000_rows_with_ties(rng):
    """A few values a row, so that the cut lies in a tie nearly always; both algorithms, odd sizes."""
    settled = 0
    for G, k in ((67, 1), (130, 2), (97, 33), (33, 30), (257, 64)):
        levels = rng.choice(np.array([-np.inf, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0, np.nan], np.float32), (2000, 5))
        score = np.take_along_axis(levels, rng.integers(0, 5, (2000, G)), axis=1)
        settled += check(score, k)
    print(f"{settled} of 10000 rows were settled")
    assert settled > 5000


def test_tuned_topk_with_a_heap_larger_than_shared_memory(rng):
    score = rng.choice(np.arange(7, dtype=np.float32), (1, 2100 * 64))
    assert check(score, 2100) == 1


def test_tuned_topk_of_a_long_row(rng):
    for G, k in ((40_000, 512), (131_072, 512)):
        assert check(rng.standard_normal((1, G)).astype(np.float32), k) == 0
    plateaus = np.maximum(rng.standard_normal((1, 40_000)), 0).astype(np.float16).astype(np.float32)
    check(plateaus, 512)
    assert check(plateaus, 30_000) == 1  # the cut lies among the zeros


def test_tuned_topk_obeys_the_candidates_and_adds_the_offset(rng):
    score = as_bf16(rng.standard_normal((9, 120)).astype(np.float32)).astype(np.float32)
    score[:, 100:] = -np.inf
    candidates = (rng.random((9, 120)) < 0.3).astype(np.uint8)
    candidates[4] = 0  # nothing to choose from
    check(score, 20, candidates)
    picked, _ = chosen(score, 20, candidates, offset=128)
    expected = host.select(score, 20, candidates)
    np.testing.assert_array_equal(picked, np.where(expected < 0, -1, expected + 128))
    assert (picked[4] == -1).all()


def test_tuned_topk_candidate_blocks_match_the_recorded_cases():
    for score, lens, blocks, size, expected in recorded_cases():
        mask = to_host(candidate_blocks(to_device(score), to_device(lens.astype(np.int32)), blocks, size))
        np.testing.assert_array_equal(mask, expected)


def test_tuned_topk_candidate_blocks_equal_the_hosts(rng):
    for T, G, blocks, size in ((1, 1, 1, 1), (7, 50, 3, 8), (5, 33, 4, 3), (6, 90, 100, 7), (4, 400, 20, 8)):
        lens = rng.integers(0, G + 1, T).astype(np.int32)
        score = rng.choice(np.array([-2.0, -1.0, 0.0, 0.5, np.nan], np.float32), (T, G))
        score[np.arange(G) >= lens[:, None]] = -np.inf
        mask = to_host(candidate_blocks(to_device(score), to_device(lens), blocks, size))
        np.testing.assert_array_equal(mask, host.candidate_blocks(score, lens, blocks, size))


@pytest.mark.skipif(backend.current().name != "emulator", reason="the race check is the emulator's")
def test_tuned_topk_kernels_have_no_race(rng):
    def run(kernel, grid, block, *args):
        emulate(kernel, racecheck=True)[grid, block](*args)

    tied = rng.choice(np.arange(5, dtype=np.float32), (2, 300))
    lens = np.array([250, 0], np.int32)
    with backend.using(dataclasses.replace(backend.current(), launch=run)):
        for k in (2, 70):  # a heap, and introselect
            check(tied, k)
        candidate_blocks(to_device(tied), to_device(lens), 4, 8)


def test_tuned_topk_of_nothing():
    assert to_host(select(to_device(np.zeros((0, 5), np.float32)), 3)).shape == (0, 3)
    assert to_host(select(to_device(np.zeros((4, 0), np.float32)), 3)).shape == (4, 0)


def test_tuned_topk_refuses_what_does_not_fit():
    score = to_device(np.zeros((2, 5), np.float32))
    with pytest.raises(ValueError, match="k: expected an integer of at least 1, got 0"):
        select(score, 0)
    with pytest.raises(ValueError, match=r"candidates: expected shape \[2, 5\], got \[2, 4\]"):
        select(score, 1, to_device(np.zeros((2, 4), np.uint8)))
    with pytest.raises(ValueError, match="lens: expected dtype int32, got int64"):
        candidate_blocks(score, to_device(np.zeros(2, np.int64)), 1, 1)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_tuned_topk_has_no_f64(capability):
    score, mask, picked = numba.float32[:, ::1], numba.uint8[:, ::1], numba.int32[:, ::1]
    row, flag, number = numba.int32[::1], numba.boolean, numba.int64
    for kernel, signature in (
        (select_kernel(256), (score, number, mask, flag, number, picked, row)),
        (settle_kernel(256), (score, number, mask, flag, number, row, score, numba.int32[:, :, ::1], picked)),
    ):
        assert ".f64" not in ptx_of(kernel, signature, capability)
