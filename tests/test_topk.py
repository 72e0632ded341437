import functools
import zlib

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dsv41_numba.ops import topk as stage
from dsv41_numba.ops.topk import candidate_blocks, choose, chosen_mask, compiled_choose, select, topk
from golden import FOLDER, load

ROWS, CASES = 200, 47  # recorded top-k rows and candidate cases
TINY_TOPK, TINY_BLOCKS, TINY_BLOCK_SIZE, TINY_WINDOW, CANDIDATE_SOURCE = 4, 3, 2, 8, 20
WEIGHTS = {"tiny-weights", "tiny-D-weights", "tiny-fp8-weights", "tiny-fp8-dequant"}
RECORDINGS = sorted({path.stem for path in FOLDER.glob("tiny-*.safetensors")} - WEIGHTS)


def recorded_rows():
    """The recorded rows as (values [n], k, set ascending)."""
    stages = load("stages")
    n, k = stages["topk.n"], stages["topk.k"]
    values = np.split(stages["topk.values"], np.cumsum(n)[:-1])
    sets = np.split(stages["topk.indices_f32"], np.cumsum(np.minimum(k, n))[:-1])
    assert len(values) == len(sets) == ROWS
    return [(row, int(k_row), chosen) for row, k_row, chosen in zip(values, k, sets, strict=True)]


def recorded_cases():
    """The recorded candidate cases as (score [T, G], lens [T], blocks, block size, mask)."""
    stages = load("stages")
    assert stages["cand.count"][0] == CASES
    for case in range(CASES):
        score, lens, params, mask = (stages[f"cand.{case:02d}.{what}"] for what in ("logits", "lens", "params", "mask"))
        yield score, lens, int(params[0]), int(params[1]), mask


def python_set(values, k):
    order = list(range(len(values)))
    choose(values.tolist(), order, k)
    assert sorted(order) == list(range(len(values)))  # still a permutation
    return np.sort(order[:k])


def compiled_set(values, k):
    order = np.arange(len(values), dtype=np.int32)
    compiled_choose()(values.copy(), order, k)
    return np.sort(order[:k])


def lowest_index_set(values, k):
    """The planted wrong rule: of equal values the first ones."""
    return np.sort(np.argsort(-values, kind="stable")[:k])


def without_unreachable(values, chosen):
    """What `topk` makes of a chosen set: -1 at the end for every score of -inf."""
    reachable = chosen[values[chosen] != -np.inf]
    return np.concatenate([reachable, np.full(len(chosen) - len(reachable), -1)])


def has_tie_across_cut(values, k):
    cut = np.partition(values, -k)[-k]
    return np.count_nonzero((values >= cut) | np.isnan(values)) > k


class Undecided:
    """A score that takes a value only when an algorithm compares it, each time the one that makes the split worst.

    A frozen score goes before all others. Of two undecided ones the likely pivot is frozen, so every pivot ends up
    among the first few and a split takes next to nothing off the range. After `freezes` of them the rest are equal.
    """

    pivot = None
    frozen = 0
    freezes = 0

    def __init__(self, value=None):
        self.value = value

    def __gt__(self, other):
        if self.value is None and other.value is None and Undecided.frozen < Undecided.freezes:
            (self if self is Undecided.pivot else other).value = 1000.0 - Undecided.frozen
            Undecided.frozen += 1
        if self.value is None:
            Undecided.pivot = self
        elif other.value is None:
            Undecided.pivot = other
        return (self.value or 0.0) > (other.value or 0.0)


def exhausting_row(n, k):
    """f32 [n] on which introselect runs out of splits for this k and must choose among many equal values."""
    Undecided.pivot, Undecided.frozen, Undecided.freezes = None, 0, 7 * n.bit_length()
    scores = [Undecided(-1.0 - i % 3 if i * 7919 % 11 == 0 else None) for i in range(n)]
    choose(scores, list(range(n)), k)
    # What is still undecided was only ever compared with greater or smaller scores: it may be 0, 1/4 or 1/2.
    return np.array([i * 7919 % 13 % 3 / 4 if s.value is None else s.value for i, s in enumerate(scores)], np.float32)


# (n, k, crc32 of the row, crc32 of the i32 set that PyTorch 2.13 chooses on a CPU) for `exhausting_row`
EXHAUSTING = (
    (64, 57, 0x86C51EF2, 0x889F9575),
    (100, 66, 0x2050956E, 0x470A2C81),
    (128, 85, 0x149784A2, 0x01B52A88),
    (200, 133, 0x9DAAB517, 0x5094BB0A),
    (300, 285, 0x52440F0F, 0x08E655BE),
    (513, 342, 0xDDFB2A3C, 0xB57899CB),
    (1000, 666, 0x6953BD8A, 0x9AC0E9C5),
    (3000, 1500, 0x148D4CA8, 0x9F95F7FD),
)


@pytest.mark.parametrize("algorithm", [python_set, compiled_set])
def test_topk_chooses_the_recorded_sets(algorithm):
    for values, k, chosen in recorded_rows():
        np.testing.assert_array_equal(algorithm(values, k), chosen)


def test_topk_of_recorded_rows_is_ascending_with_unreachable_last():
    for values, k, chosen in recorded_rows():
        np.testing.assert_array_equal(topk(values[None], k), without_unreachable(values, chosen)[None])


def test_topk_sets_do_not_depend_on_the_width_of_the_format():
    stages = load("stages")
    np.testing.assert_array_equal(stages["topk.indices_f32"], stages["topk.indices_bf16"])
    assert not (stages["topk.values"].view(np.uint32) & 0xFFFF).any()  # every value is a bf16 value


def test_topk_recordings_catch_a_lowest_index_rule():
    tied = [(values, k, chosen) for values, k, chosen in recorded_rows() if has_tie_across_cut(values, k)]
    wrong = sum(not np.array_equal(lowest_index_set(values, k), chosen) for values, k, chosen in tied)
    print(f"lowest index first: {wrong} of {len(tied)} tied rows wrong")
    assert wrong > len(tied) // 2


@pytest.mark.parametrize("factor", [0, 1 << 20, 63, 65])
def test_topk_recordings_catch_the_wrong_branch(monkeypatch, factor):
    """0: always the heap; 1 << 20: always introselect; 63 and 65: the border beside the right one."""
    monkeypatch.setattr(stage, "HEAP_FACTOR", factor)
    assert any(not np.array_equal(python_set(values, k), chosen) for values, k, chosen in recorded_rows())


@functools.cache
def exhausting_case(n, k):
    """The row, the set chosen from it and how often that took the fallback."""
    row = exhausting_row(n, k)
    fallbacks, heap_select = [], stage.heap_select
    with pytest.MonkeyPatch.context() as spied:
        spied.setattr(stage, "heap_select", lambda *args: (fallbacks.append(args), heap_select(*args)))
        return row, python_set(row, k), len(fallbacks)


@pytest.mark.parametrize(("n", "k", "row_crc", "set_crc"), EXHAUSTING)
def test_topk_falls_back_to_a_heap_exactly(n, k, row_crc, set_crc):
    row, chosen, fallbacks = exhausting_case(n, k)
    assert zlib.crc32(row.tobytes()) == row_crc
    assert fallbacks == 1 and has_tie_across_cut(row, k)
    assert zlib.crc32(chosen.astype(np.int32).tobytes()) == set_crc
    np.testing.assert_array_equal(compiled_set(row, k), chosen)
    np.testing.assert_array_equal(topk(row[None], k)[0], chosen)


def keep_splitting(values, order, first, middle, last):
    """The planted wrong fallback of quickselect without a depth limit."""
    while last - first > stage.SMALL_RANGE:
        split = stage.partition(values, order, first, last)
        first, last = (split, last) if split < middle else (first, split)
    sort_instead(values, order, first, middle, last)


def sort_instead(values, order, first, middle, last):
    """The planted wrong fallback of a stable sort."""
    order[first:last] = sorted(order[first:last], key=lambda i: -values[i])


@pytest.mark.parametrize("fallback", [keep_splitting, sort_instead])
def test_topk_exhausting_rows_catch_another_fallback(monkeypatch, fallback):
    cases = [(k, *exhausting_case(n, k)[:2]) for n, k, _, _ in EXHAUSTING]
    monkeypatch.setattr(stage, "heap_select", fallback)
    assert not any(np.array_equal(python_set(row, k), chosen) for k, row, chosen in cases)


def test_topk_recordings_reach_the_fallback_four_times(monkeypatch):
    fallbacks, heap_select = [], stage.heap_select
    monkeypatch.setattr(stage, "heap_select", lambda *args: (fallbacks.append(args), heap_select(*args)))
    introselected = [(v, k, chosen) for v, k, chosen in recorded_rows() if k * stage.HEAP_FACTOR > len(v)]
    for values, k, chosen in introselected:
        np.testing.assert_array_equal(python_set(values, k), chosen)
    assert len(introselected) == 142 and len(fallbacks) == 4


@pytest.mark.parametrize("name", RECORDINGS)
def test_topk_follows_the_recorded_layers(name):
    captures = load(name)
    checked = 0
    for key, score in captures.items():
        layer, step, what = key.split(".")
        if what != "score":
            continue
        candidates = None
        if int(layer[1:]) > CANDIDATE_SOURCE:
            candidates = captures[f"L{CANDIDATE_SOURCE:02d}.{step}.candidates"]
        offset = score.shape[0] if step == "p" else TINY_WINDOW
        picked = select(score, TINY_TOPK, candidates)
        np.testing.assert_array_equal(np.where(picked < 0, -1, picked + offset), captures[f"{layer}.{step}.topk"])
        checked += 1
    print(f"{checked} selections")
    assert checked > 0


@pytest.mark.parametrize("name", [name for name in RECORDINGS if "ownkeys" not in name])
def test_candidate_blocks_follow_the_recorded_layers(name):
    captures = load(name)
    for key, mask in captures.items():
        layer, step, what = key.split(".")
        if what != "candidates":
            continue
        T, G = mask.shape  # at ratio 1 a query sees every position up to its own
        lens = np.arange(G - T + 1, G + 1)
        got = candidate_blocks(captures[f"{layer}.{step}.score"], lens, TINY_BLOCKS, TINY_BLOCK_SIZE)
        np.testing.assert_array_equal(got, mask)


def test_candidate_blocks_match_the_recorded_cases():
    wrongly_pinned_differs = 0
    for score, lens, blocks, size, mask in recorded_cases():
        got = candidate_blocks(score, lens, blocks, size)
        assert got.dtype == np.uint8
        np.testing.assert_array_equal(got, mask)
        # planted wrong: the block before is pinned
        wrongly = candidate_blocks(score, np.maximum(lens - size, 0), blocks, size)
        wrongly_pinned_differs += not np.array_equal(wrongly, mask)
    assert wrongly_pinned_differs > CASES // 2


def test_candidate_blocks_keep_nothing_of_an_empty_row(rng):
    score = rng.standard_normal((2, 7)).astype(np.float32)
    np.testing.assert_array_equal(
        candidate_blocks(score, np.array([0, 7]), 5, 3), np.array([[0] * 7, [1] * 7], np.uint8)
    )


def test_candidate_blocks_never_keep_a_block_without_a_reachable_score():
    score = np.full((1, 8), -np.inf, np.float32)
    score[0, 1] = -3.0
    np.testing.assert_array_equal(candidate_blocks(score, np.array([2]), 3, 2), [[1, 1, 0, 0, 0, 0, 0, 0]])


def test_topk_breaks_ties_by_the_algorithm_not_the_index():
    row = np.array([[0, -1, 0, 0, 5, 0]], np.float32)
    np.testing.assert_array_equal(topk(row, 3), [[3, 4, 5]])


def test_topk_works_where_nothing_can_be_cached(monkeypatch):
    """A read-only installation and no home folder: Numba finds no place for its cache."""
    monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])
    with pytest.raises(RuntimeError, match="no locator available"):
        numba.njit(cache=True)(choose)
    assert compiled_choose.__wrapped__().py_func is choose


def test_topk_is_the_same_in_100_runs(rng):
    score = np.maximum(rng.integers(-9, 4, (3, 700)), 0).astype(np.float32)
    first = topk(score, 40)
    assert all(topk(score, 40).tobytes() == first.tobytes() for _ in range(100))


def test_topk_does_not_depend_on_the_row_beside_it(rng):
    """Many tied rows take the compiled path, one narrow row the Python one: the same code, the same sets."""
    score = np.maximum(rng.integers(-9, 4, (60, 150)), 0).astype(np.float32)
    alone = np.concatenate([topk(score[t : t + 1], 20) for t in range(60)])
    assert score.size > stage.PYTHON_ENTRIES > score.shape[1]
    np.testing.assert_array_equal(topk(score, 20), alone)


def test_topk_puts_nan_before_infinity():
    row = np.array([[1.0, np.inf, np.nan, -np.inf, 7.0, -np.nan, np.inf]], np.float32)
    np.testing.assert_array_equal(topk(row, 2), [[2, 5]])
    np.testing.assert_array_equal(topk(row, 4), [[1, 2, 5, 6]])
    np.testing.assert_array_equal(topk(row, 7), [[0, 1, 2, 4, 5, 6, -1]])


@pytest.mark.parametrize("k", [1, 2, 3, 9])
def test_topk_of_one_to_three_positions(k):
    for G in range(1, 4):
        row = np.arange(G, dtype=np.float32)[None]
        np.testing.assert_array_equal(topk(row, k), [range(max(0, G - k), G)])


def test_topk_of_nothing_is_nothing():
    assert topk(np.zeros((3, 0), np.float32), 4).shape == (3, 0)  # no group is complete yet
    assert topk(np.zeros((0, 5), np.float32), 4).shape == (0, 4)
    assert candidate_blocks(np.zeros((3, 0), np.float32), np.zeros(3, np.int32), 2, 2).shape == (3, 0)
    np.testing.assert_array_equal(topk(np.full((1, 5), -np.inf, np.float32), 3), [[-1, -1, -1]])


def test_select_takes_candidates_only(rng):
    score = rng.standard_normal((2, 9)).astype(np.float32)
    candidates = np.array([[0, 0, 0, 1, 1, 1, 0, 0, 0], [1, 0, 1, 0, 1, 0, 1, 0, 1]], np.uint8)
    picked = select(score, 4, candidates)
    np.testing.assert_array_equal(picked[0], [3, 4, 5, -1])
    assert set(picked[1]) < {0, 2, 4, 6, 8}
    np.testing.assert_array_equal(select(score, 4), topk(score, 4))


# Few values, so that most rows tie; zeros of both signs are equal
SCORES = st.sampled_from([np.nan, np.inf, -np.inf, -0.0, 0.0, -1.0, 0.5, 1.0, 2.0, 3.0])


@given(arrays(np.float32, st.integers(1, 90), elements=SCORES), st.integers(1, 99))
def test_topk_set_holds_all_above_the_cut_and_none_below(values, k):
    picked = topk(values[None], k)[0]
    k = min(k, len(values))
    assert len(picked) == k
    chosen = picked[picked >= 0]
    assert (np.diff(chosen) > 0).all() and (picked[len(chosen) :] == -1).all()
    assert len(chosen) == min(k, np.count_nonzero(values != -np.inf))
    rank = np.where(np.isnan(values), np.float32(4.0), np.minimum(values, np.float32(3.5)))  # NaN, inf, 3, ...
    cut = np.sort(rank)[-k]
    assert set(np.flatnonzero(rank > cut)) <= set(chosen)
    assert (rank[chosen] >= cut).all()
    np.testing.assert_array_equal(picked, without_unreachable(values, python_set(values, k)))


@given(st.permutations(range(40)), st.integers(1, 40))
def test_topk_without_a_tie_needs_no_algorithm(order, k):
    values = np.array(order, np.float32)
    np.testing.assert_array_equal(np.flatnonzero(chosen_mask(values[None], k)[0]), python_set(values, k))


def test_topk_refuses_bad_input():
    score = np.zeros((2, 6), np.float32)
    with pytest.raises(ValueError, match="score: expected dtype float32, got float64"):
        topk(score.astype(np.float64), 3)
    with pytest.raises(ValueError, match=r"score: expected shape \[\*, \*\], got \[6\]"):
        topk(score[0], 3)
    with pytest.raises(ValueError, match="score: expected a NumPy array, got list"):
        topk([[0.0]], 3)
    with pytest.raises(ValueError, match="score: expected a C-contiguous array"):
        topk(score.T, 3)
    for k in (0, -1, 2.0, True):
        with pytest.raises(ValueError, match=f"k: expected an integer of at least 1, got {k}"):
            topk(score, k)


def test_candidate_blocks_refuse_bad_input():
    score, lens = np.zeros((2, 6), np.float32), np.array([6, 6])
    for outside in (7, -1):
        with pytest.raises(
            ValueError, match=rf"lens: expected reachable positions from 0 to 6, got {outside} in row 1"
        ):
            candidate_blocks(score, np.array([0, outside]), 1, 2)
    with pytest.raises(ValueError, match="lens: expected integers, got float64"):
        candidate_blocks(score, lens.astype(float), 1, 2)
    with pytest.raises(ValueError, match=r"lens: expected shape \[2\], got \[3\]"):
        candidate_blocks(score, np.array([1, 2, 3]), 1, 2)
    with pytest.raises(ValueError, match="topk_blocks: expected an integer of at least 1, got 0"):
        candidate_blocks(score, lens, 0, 2)
    with pytest.raises(ValueError, match="block_size: expected an integer of at least 1, got -2"):
        candidate_blocks(score, lens, 1, -2)


def test_select_refuses_bad_candidates():
    score = np.zeros((2, 6), np.float32)
    with pytest.raises(ValueError, match="candidates: expected dtype uint8, got bool"):
        select(score, 3, np.ones((2, 6), bool))
    with pytest.raises(ValueError, match=r"candidates: expected shape \[2, 6\], got \[2, 5\]"):
        select(score, 3, np.ones((2, 5), np.uint8))
