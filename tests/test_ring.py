import numpy as np
import pytest

from conftest import random_bf16
from dsv41_numba.compare import same_bits
from dsv41_numba.ops.ring import THREADS, ring_write, ring_write_ref
from dsv41_numba.runtime.backend import to_device, to_host


def numbered(first, count, D=3):
    """Rows that say which position they are: position * 8 + column."""
    return (np.arange(first, first + count)[:, None] * 8 + np.arange(D)).astype(np.uint16)


def positions(ring):
    """Which position each slot of a ring of numbered rows holds."""
    ring = to_host(ring)
    np.testing.assert_array_equal(ring % 8, np.broadcast_to(np.arange(ring.shape[1]), ring.shape))
    return (ring[:, 0] // 8).tolist()


def fresh(W, D=3):
    return to_device(numbered(8000, W, D))


# T, W, D, start_pos: a call shorter than, as long as, longer than the ring; odd windows; D at the edges of a block
CASES = (
    (1, 8, 1, 0),
    (5, 7, THREADS - 1, 0),
    (7, 7, THREADS, 3),
    (8, 7, THREADS + 1, 5),
    (23, 7, 600, 0),
    (1, 1, 5, 9),
    (4, 1, 5, 2),
    (3, 5, 40, 1_048_573),
)


@pytest.mark.parametrize("T, W, D, start_pos", CASES)
def test_ring_write_matches_its_reference(rng, T, W, D, start_pos):
    rows, ring = random_bf16(rng, T, D), random_bf16(rng, W, D)
    ring_bits = to_device(ring.copy())
    ring_write(to_device(rows), ring_bits, start_pos)
    ring_write_ref(rows, ring, start_pos)
    assert same_bits(to_host(ring_bits), ring.view(np.uint16))


@pytest.mark.parametrize("dtype", (np.uint8, np.float32, np.int32, np.int64))
def test_ring_write_copies_any_number_type(rng, dtype):
    rows, ring = (rng.integers(0, 255, (n, 9)).astype(dtype) for n in (6, 4))
    ring_device = to_device(ring.copy())
    ring_write(to_device(rows), ring_device, 3)
    ring_write_ref(rows, ring, 3)
    assert same_bits(to_host(ring_device), ring)


def test_ring_write_keeps_the_last_window_of_a_prefill():
    """Hard case 8: 300 rows into 128 slots; slot 44 holds position 172, slot 0 position 256."""
    ring = fresh(128)
    ring_write(to_device(numbered(0, 300)), ring, 0)
    held = positions(ring)
    assert held[44] == 172 and held[0] == 256
    assert sorted(held) == list(range(172, 300))


@pytest.mark.parametrize("n", (127, 128, 129, 255, 256, 257))
def test_ring_write_of_prompts_around_the_window(n):
    ring = fresh(128)
    ring_write(to_device(numbered(0, n)), ring, 0)
    held = positions(ring)
    for p in range(max(n - 128, 0), n):
        assert held[p % 128] == p
    assert held[n:] == [8000 + slot for slot in range(n, 128)]


def test_ring_write_token_by_token_equals_one_call():
    once, stepwise = fresh(7), fresh(7)
    rows = numbered(0, 23)
    ring_write(to_device(rows), once, 0)
    for p in range(23):
        ring_write(to_device(rows[p : p + 1]), stepwise, p)
    assert same_bits(to_host(once), to_host(stepwise))


def test_ring_write_appends_to_a_cache_with_room():
    cache = fresh(20)
    ring_write(to_device(numbered(0, 6)), cache, 0)
    ring_write(to_device(numbered(6, 14)), cache, 6)
    assert positions(cache) == list(range(20))


def test_ring_write_leaves_the_other_slots_alone():
    ring = fresh(8)
    ring_write(to_device(numbered(13, 3)), ring, 13)
    assert positions(ring) == [8000, 8001, 8002, 8003, 8004, 13, 14, 15]


def test_ring_write_of_no_rows_changes_nothing():
    ring = fresh(8)
    ring_write(to_device(numbered(0, 0)), ring, 5)
    assert positions(ring) == list(range(8000, 8008))


def test_ring_write_of_more_rows_than_a_grid_has_blocks_along_y():
    rows, ring = numbered(0, 70_000, 1), to_device(np.zeros((66_000, 1), np.uint16))
    ring_write(to_device(rows), ring, 0)
    expected = np.zeros((66_000, 1), np.uint16)
    ring_write_ref(rows, expected, 0)
    assert same_bits(to_host(ring), expected)


def test_ring_write_refuses_bad_input(rng):
    rows, ring = to_device(random_bf16(rng, 2, 8)), to_device(random_bf16(rng, 4, 8))
    with pytest.raises(ValueError, match=r"ring: expected shape \[\*, 8\], got \[4, 9\]"):
        ring_write(rows, to_device(np.zeros((4, 9), np.uint16)), 0)
    with pytest.raises(ValueError, match="ring: expected dtype uint16, got float32"):
        ring_write(rows, to_device(np.zeros((4, 8), np.float32)), 0)
    with pytest.raises(ValueError, match="ring: expected at least 1 slot, got 0"):
        ring_write(rows, to_device(np.zeros((0, 8), np.uint16)), 0)
    with pytest.raises(ValueError, match="start_pos: expected a position >= 0, got -1"):
        ring_write(rows, ring, -1)
    with pytest.raises(ValueError, match=r"rows: expected dtype uint16, got bfloat16 \(pass bf16 through"):
        ring_write(random_bf16(rng, 2, 8), ring, 0)
    with pytest.raises(ValueError, match="rows: expected a uint16 array, got list"):
        ring_write([[1, 2]], ring, 0)
