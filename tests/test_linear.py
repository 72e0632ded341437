import numpy as np
import pytest

from conftest import random_bf16
from dsv41_numba.compare import bf16_array, same_bits, worst_steps
from dsv41_numba.formats.bf16 import as_bf16
from dsv41_numba.ops.linear import MAX_FEW, PADDED, STEP, TILE, linear, linear_f32, linear_f32_ref, linear_ref
from dsv41_numba.runtime.backend import to_device, to_host
from tolerances import ONE_ROUNDING

# M, N, K: each size at the edges of a tile, every axis different from the others; few rows at those of a step
SIZES = ((1, 15, 17), (15, 16, 1), (16, 17, 15), (17, 1, 16), (3, 50, 64), (33, 18, 100), (16, 32, 48))
FEW_SIZES = ((1, 3, 4), (2, 9, 4 * STEP + 4), (3, 4, 4 * STEP), (4, 6, 4 * STEP - 4), (1, 5, 8 * STEP))


def run(op, x, weight):
    return to_host(op(to_device(x), to_device(weight)))


def random_f32(rng, *shape):
    """f32 numbers that bf16 cannot hold."""
    return rng.standard_normal(shape).astype(np.float32)


def f32_error(got, x, weight):
    """The largest error in units of 2^-24 of the sum of the products' magnitudes, against float64."""
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    return float((np.abs(got - x @ weight.T) / (np.abs(x) @ np.abs(weight).T) * 2.0**24).max())


@pytest.mark.parametrize("M, N, K", SIZES + FEW_SIZES)
def test_linear_matches_its_reference_and_float64(rng, M, N, K):
    x, weight = random_bf16(rng, M, K), random_bf16(rng, N, K)
    y = bf16_array(run(linear, x, weight))
    exact = as_bf16((x.astype(np.float64) @ weight.astype(np.float64).T).astype(np.float32))
    assert worst_steps(y, linear_ref(x, weight)) <= ONE_ROUNDING
    assert worst_steps(y, exact) <= ONE_ROUNDING


@pytest.mark.parametrize("M, N, K", SIZES)
def test_linear_f32_errs_by_less_than_an_f32_rounding_a_product(rng, M, N, K):
    """K products and K additions round at most 2 K times, each by 2^-24 of the sum of the magnitudes."""
    x, weight = random_bf16(rng, M, K), random_f32(rng, N, K)
    for y in (run(linear_f32, x, weight), linear_f32_ref(x, weight)):
        assert y.dtype == np.float32
        assert f32_error(y, x, weight) <= 2 * K


def test_linear_f32_does_not_round_its_weight_to_bf16(rng):
    x, weight = random_bf16(rng, 5, 64), random_f32(rng, 7, 64)
    rounded = as_bf16(weight).astype(np.float32)
    assert f32_error(linear_f32_ref(x, rounded), x, weight) > 2 * 64
    assert f32_error(run(linear_f32, x, weight), x, weight) <= 2 * 64


def test_linear_rows_and_columns_do_not_depend_on_their_neighbours(rng):
    x, weight = random_bf16(rng, 18, 40), random_bf16(rng, 19, 40)
    together = run(linear, x, weight)
    assert same_bits(together[17:], run(linear, x[17:], weight))
    assert same_bits(np.ascontiguousarray(together[:, 3:18]), run(linear, x, weight[3:18]))


@pytest.mark.parametrize("M, N, K", FEW_SIZES)
def test_linear_of_few_rows_has_the_bits_of_many(rng, M, N, K):
    """A token's numbers do not depend on how many others come with it, whichever kernel that selects."""
    x, weight = random_bf16(rng, MAX_FEW + 1, K), random_bf16(rng, N, K)
    assert same_bits(run(linear, x[:M], weight), run(linear, x, weight)[:M])


def test_linear_of_few_rows_needs_no_alignment(rng):
    """Words of 8 bytes cannot be read from the second element of an array of bf16; the tiles can."""
    x, weight = random_bf16(rng, 1, 24), random_bf16(rng, 5, 24)
    y = run(linear, x, weight)
    shifted = to_device(np.concatenate([np.zeros(1, np.uint16), x.ravel().view(np.uint16)]))[1:].reshape(1, 24)
    assert same_bits(to_host(linear(shifted, to_device(weight))), y)


def test_linear_of_the_doubled_row_is_doubled_exactly(rng):
    x, weight = random_bf16(rng, 5, 33), random_bf16(rng, 20, 33)
    y = bf16_array(run(linear, x, weight)).astype(np.float32)
    doubled = bf16_array(run(linear, as_bf16(2 * x.astype(np.float32)), weight)).astype(np.float32)
    np.testing.assert_array_equal(doubled, 2 * y)


def test_linear_with_a_unit_matrix_copies(rng):
    """The matrix is a permutation: a transposed weight or a swapped index would show."""
    x, order = random_bf16(rng, 21, 35), rng.permutation(35)
    weight = np.zeros((35, 35), np.float32)
    weight[np.arange(35), order] = 1
    y = run(linear, x, as_bf16(weight))
    assert same_bits(y, np.ascontiguousarray(x[:, order]).view(np.uint16))
    assert not same_bits(run(linear, x, as_bf16(weight.T)), y)


def test_linear_keeps_infinities_and_nan_to_their_row_and_column():
    """Past the edges stand zeros on both sides: 0 * inf there would spread a NaN over the whole tile."""
    x, weight = np.ones((3, 5), np.float32), np.ones((4, 5), np.float32)
    x[1, 2], weight[3, 0] = np.inf, np.nan
    y = bf16_array(run(linear, as_bf16(x), as_bf16(weight))).astype(np.float32)
    expected = np.full((3, 4), 5.0, np.float32)
    expected[1, :], expected[:, 3] = np.inf, np.nan
    np.testing.assert_array_equal(y, expected)


def test_linear_reads_of_a_column_meet_no_bank_twice():
    """8 threads fetch 4 numbers each from 8 rows of the padded tile; rows of 16 numbers would meet."""

    def banks(row_length):
        return {(row * row_length + i) % 32 for row in range(8) for i in range(4)}

    assert len(banks(PADDED)) == 32 and PADDED * 4 % 16 == 0
    assert len(banks(TILE)) == 8


def test_linear_of_no_rows_is_no_rows(rng):
    weight = random_bf16(rng, 6, 8)
    assert run(linear, np.zeros((0, 8), np.uint16), weight).shape == (0, 6)
    assert run(linear_f32, np.zeros((0, 8), np.uint16), weight.astype(np.float32)).shape == (0, 6)


def test_linear_refuses_bad_input(rng):
    x, weight = to_device(random_bf16(rng, 2, 8)), to_device(random_bf16(rng, 3, 8))
    with pytest.raises(ValueError, match=r"weight: expected shape \[\*, 8\], got \[8, 3\]"):
        linear(x, to_device(np.zeros((8, 3), np.uint16)))
    with pytest.raises(ValueError, match=r"x: expected shape \[\*, \*\], got \[1, 2, 8\]"):
        linear(to_device(np.zeros((1, 2, 8), np.uint16)), weight)
    with pytest.raises(ValueError, match="weight: expected dtype uint16, got float32"):
        linear(x, to_device(np.zeros((3, 8), np.float32)))
    with pytest.raises(ValueError, match="weight: expected dtype float32, got uint16"):
        linear_f32(x, weight)
    with pytest.raises(ValueError, match="x: expected a C-contiguous array"):
        linear(to_device(np.zeros((2, 16), np.uint16))[:, ::2], weight)
