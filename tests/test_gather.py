"""The gather list, on the host and on the device."""

from types import SimpleNamespace

import numpy as np
import pytest

from dsv41_numba.ops import PLAIN, REFERENCE
from dsv41_numba.runtime.backend import to_device, to_host
from dsv41_numba.tuned import gather


def on_the_device(function):
    """A function of device arrays, for host arrays."""

    def run(*args):
        return to_host(function(*(to_device(arg) if isinstance(arg, np.ndarray) else arg for arg in args)))

    return run


TUNED = SimpleNamespace(
    gather_list=on_the_device(gather.gather_list), without_gaps=on_the_device(gather.without_gaps), name="tuned"
)
both = pytest.mark.parametrize("stage", [REFERENCE, TUNED], ids=lambda stage: stage.name)


def recent(position, window):
    """The positions that a query sees in the window."""
    return list(range(max(position - window + 1, 0), position + 1))


@both
@pytest.mark.parametrize("T", [1, 2, 127, 128, 129, 255, 256, 257, 300])
def test_gather_list_of_a_prefill_is_each_querys_own_window(T, stage):
    idx = stage.gather_list(128, 0, T, None)
    assert idx.dtype == np.int32 and idx.flags.c_contiguous and idx.shape == (T, min(T, 128))
    for t, row in enumerate(idx.tolist()):
        seen = recent(t, 128)
        assert row == seen + [-1] * (min(T, 128) - len(seen))
    assert (idx[200].min(), idx[200].max()) == (73, 200) if T > 200 else True


@both
@pytest.mark.parametrize("window", [1, 5, 8, 128])
@pytest.mark.parametrize("start_pos", [1, 4, 5, 7, 8, 126, 127, 128, 129, 300])
def test_gather_list_of_a_decode_step_is_the_ring_oldest_first(window, start_pos, stage):
    idx = stage.gather_list(window, start_pos, 1, None)
    seen = [position % window for position in recent(start_pos, window)]
    assert idx.dtype == np.int32 and idx.tolist() == [[-1] * (window - len(seen)) + seen]


@both
def test_gather_list_of_published_positions(stage):
    """Hard case 8, with window 128."""
    valid = {
        start: [slot for slot in stage.gather_list(128, start, 1, None)[0].tolist() if slot >= 0]
        for start in (5, 127, 128, 300)
    }
    assert valid[5] == list(range(6))
    assert valid[127] == list(range(128))
    assert valid[128] == [*range(1, 128), 0]
    assert valid[300] == [*range(45, 128), *range(45)]


@both
@pytest.mark.parametrize("window", [1, 5, 128])
@pytest.mark.parametrize("start_pos", [1, 4, 5, 127, 128, 300])
def test_gather_list_of_a_chunk_finds_old_rows_in_the_ring_and_new_ones_behind_it(window, start_pos, stage):
    for T in (2, window, window + 1, 200):
        if T == 1:
            continue
        idx = stage.gather_list(window, start_pos, T, None)
        assert idx.dtype == np.int32 and idx.shape == (T, window)
        for t, row in enumerate(idx.tolist()):
            seen = [p % window if p < start_pos else window + p - start_pos for p in recent(start_pos + t, window)]
            assert row == [-1] * (window - len(seen)) + seen


@both
def test_without_gaps_moves_empty_slots_behind_the_others(stage):
    idx = np.array([[-1, -1, 4, 0, -1, 9], [3, 1, -1, -1, 2, 0], [-1] * 6], np.int32)
    moved = stage.without_gaps(idx)
    assert moved.tolist() == [[4, 0, 9, -1, -1, -1], [3, 1, 2, 0, -1, -1], [-1] * 6]
    assert moved.dtype == np.int32 and moved.flags.c_contiguous
    full = np.arange(70, dtype=np.int32)[None]
    assert (stage.without_gaps(full) == full).all()


@both
def test_gather_list_ends_with_the_selection(stage):
    topk = np.array([[3, 5], [4, -1], [4, 5]], np.int32)
    assert stage.gather_list(2, 0, 3, topk).tolist() == [[0, -1, 3, 5], [0, 1, 4, -1], [1, 2, 4, 5]]
    assert stage.gather_list(2, 7, 1, topk[:1]).tolist() == [[0, 1, 3, 5]]
    assert stage.gather_list(2, 0, 1, np.zeros((1, 0), np.int32)).tolist() == [[0]]


@both
def test_without_gaps_of_any_pattern(rng, stage):
    idx = np.where(rng.random((9, 203)) < 0.4, -1, rng.permutation(9 * 203).reshape(9, 203)).astype(np.int32)
    for row, moved in zip(idx, stage.without_gaps(idx)):
        rows = row[row >= 0].tolist()
        assert moved.tolist() == rows + [-1] * (203 - len(rows))


def test_gather_list_of_plain_is_the_references(rng):
    topk = rng.integers(-1, 90, (3, 5)).astype(np.int32)
    for start_pos in (0, 9):
        got = to_host(PLAIN.gather_list(4, start_pos, 3, to_device(topk)))
        np.testing.assert_array_equal(got, REFERENCE.gather_list(4, start_pos, 3, topk))
