import numpy as np
import pytest

from conftest import random_bf16
from dsv41_numba.compare import bf16_array, same_bits, worst_steps
from dsv41_numba.formats.bf16 import as_bf16
from dsv41_numba.ops.grouped_linear import grouped_linear, grouped_linear_ref
from dsv41_numba.ops.linear import MAX_FEW, linear
from dsv41_numba.runtime.backend import to_device, to_host
from tolerances import ONE_ROUNDING

# T, H, D, n_groups, rank: sizes at the edges of a 16 x 16 tile, and groups whose edge lies within one
SIZES = (
    (1, 2, 17, 2, 15),
    (15, 4, 4, 2, 16),
    (16, 6, 5, 3, 17),
    (17, 6, 8, 3, 1),
    (3, 6, 96, 3, 20),
    (18, 4, 7, 1, 33),
    (2, 6, 514, 3, 5),
)


def run(o, weight, n_groups):
    return to_host(grouped_linear(to_device(o), to_device(weight), n_groups))


@pytest.mark.parametrize("T, H, D, n_groups, rank", SIZES)
def test_grouped_linear_matches_its_reference_and_float64(rng, T, H, D, n_groups, rank):
    o, weight = random_bf16(rng, T, H, D), random_bf16(rng, n_groups * rank, H // n_groups * D)
    og = bf16_array(run(o, weight, n_groups))
    matrices = weight.astype(np.float64).reshape(n_groups, rank, H // n_groups, D)
    by_head = o.astype(np.float64).reshape(T, n_groups, H // n_groups, D)
    exact = as_bf16(np.einsum("tghd,grhd->tgr", by_head, matrices).astype(np.float32))
    assert og.shape == (T, n_groups, rank)
    assert worst_steps(og, grouped_linear_ref(o, weight, n_groups)) <= ONE_ROUNDING
    assert worst_steps(og, exact) <= ONE_ROUNDING


def test_grouped_linear_takes_contiguous_heads():
    """Hard case 9: heads split by stride instead of in contiguous runs would give [5, 4]."""
    weight = as_bf16(np.array([[0, 0, 1, 0], [0, 1, 0, 0]], np.float32))
    for T in (1, MAX_FEW + 1):
        o = as_bf16(np.resize(np.arange(1, 9, dtype=np.float32), (T, 4, 2)))
        strided = np.ascontiguousarray(o[:, [0, 2, 1, 3]])
        assert bf16_array(run(o, weight, 2)).astype(np.float32).ravel().tolist() == T * [3, 6]
        assert bf16_array(run(strided, weight, 2)).astype(np.float32).ravel().tolist() == T * [5, 4]


@pytest.mark.parametrize("T, H, D, n_groups, rank", [(1, 4, 2, 2, 1), (2, 6, 514, 3, 5), (4, 4, 512, 2, 9)])
def test_grouped_linear_of_few_tokens_has_the_bits_of_many(rng, T, H, D, n_groups, rank):
    o, weight = random_bf16(rng, MAX_FEW + 1, H, D), random_bf16(rng, n_groups * rank, H // n_groups * D)
    assert same_bits(run(o[:T], weight, n_groups), run(o, weight, n_groups)[:T])


def test_grouped_linear_with_one_group_is_linear(rng):
    o, weight = random_bf16(rng, 17, 4, 6), random_bf16(rng, 18, 24)
    flat = to_host(linear(to_device(o.reshape(17, 24)), to_device(weight)))
    assert same_bits(run(o, weight, 1).reshape(17, 18), flat)


def test_grouped_linear_with_a_group_a_head(rng):
    o, weight = random_bf16(rng, 3, 4, 6), random_bf16(rng, 4 * 5, 6)
    og = run(o, weight, 4)
    for h in range(4):
        one = to_host(linear(to_device(np.ascontiguousarray(o[:, h])), to_device(weight[5 * h : 5 * (h + 1)])))
        assert same_bits(np.ascontiguousarray(og[:, h]), one)


def test_grouped_linear_groups_do_not_see_each_other(rng):
    """NaN in the heads and the weight of group 1 must not reach groups 0 and 2: the edges are the groups'."""
    o, weight = random_bf16(rng, 2, 6, 5), random_bf16(rng, 3 * 7, 10)
    clean = bf16_array(run(o, weight, 3))
    o[:, 2:4], weight[7:14] = np.nan, np.nan
    og = bf16_array(run(o, weight, 3))
    assert same_bits(np.ascontiguousarray(og[:, ::2]), np.ascontiguousarray(clean[:, ::2]))
    assert np.isnan(og[:, 1].astype(np.float32)).all()


def test_grouped_linear_of_no_tokens_is_no_rows(rng):
    assert run(np.zeros((0, 4, 6), np.uint16), random_bf16(rng, 10, 12), 2).shape == (0, 2, 5)


def test_grouped_linear_refuses_bad_input(rng):
    o, weight = to_device(random_bf16(rng, 2, 4, 6)), to_device(random_bf16(rng, 10, 12))
    with pytest.raises(ValueError, match="n_groups: expected a divisor of the 4 heads of o, got 3"):
        grouped_linear(o, weight, 3)
    with pytest.raises(ValueError, match="n_groups: expected a divisor of the 4 heads of o, got 0"):
        grouped_linear(o, weight, 0)
    with pytest.raises(ValueError, match=r"weight: expected shape \[\*, 6\], got \[10, 12\]"):
        grouped_linear(o, weight, 4)
    with pytest.raises(ValueError, match="weight: expected a multiple of 2 rows, one set a group, got 9"):
        grouped_linear(o, to_device(np.zeros((9, 12), np.uint16)), 2)
    with pytest.raises(ValueError, match=r"o: expected shape \[\*, \*, \*\], got \[2, 24\]"):
        grouped_linear(to_device(np.zeros((2, 24), np.uint16)), weight, 2)
