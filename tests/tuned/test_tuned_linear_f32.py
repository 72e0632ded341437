"""The linear with a float32 weight by three bf16 products, against float64."""

import numpy as np
import pytest

from conftest import random_bf16
from dsv41_numba.compare import bf16_array
from dsv41_numba.ops.linear import linear_f32_ref
from dsv41_numba.runtime.backend import empty, to_device, to_host
from dsv41_numba.tuned.linear import linear_f32

pytest.importorskip("numba_cuda", reason="numba-cuda, whose intrinsics hold the PTX, is not installed")

from dsv41_numba.tuned.linear_f32 import launch_f32


def random_f32(rng, *shape):
    """All 24 bits of the mantissa in use, magnitudes over 2^12."""
    return (rng.standard_normal(shape) * np.exp2(rng.integers(-6, 7, shape))).astype(np.float32)


def run(x, weight):
    y = empty((len(x), len(weight)), np.float32)
    launch_f32(to_device(x), to_device(weight), y)
    return to_host(y)


def error(y, x, weight):
    """The largest distance from float64, in f32 roundings of the sum of the products' magnitudes."""
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    assert np.isfinite(y).all()
    return float((np.abs(y - x @ weight.T) / (np.abs(x) @ np.abs(weight).T)).max() * 2**24)


SIZES = [(1, 5, 8), (4, 3, 2056), (2, 1, 40), (5, 70, 40), (131, 65, 72), (130, 9, 168)]


@pytest.mark.parametrize("M, N, K", SIZES)
def test_tuned_linear_f32_errs_by_roundings_of_its_sums_only(rng, M, N, K):
    x, weight = random_bf16(rng, M, K), random_f32(rng, N, K)
    found = error(run(x, weight), x, weight)
    print(f"{found:.2f} roundings")
    assert found <= 3 * K  # one for each product that is added, were all to go the same way


def test_tuned_linear_f32_loses_no_bit_of_a_weight(rng):
    """One column, x = 1: the weight itself comes back, because its three parts add up to it."""
    weight = np.zeros((64, 8), np.float32)
    weight[:, 3] = random_f32(rng, 64)
    for tokens in (1, 6):
        x = np.zeros((tokens, 8), np.float32)
        x[:, 3] = 1
        y = run(bf16_array(np.where(x == 1, 0x3F80, 0).astype(np.uint16)), weight)
        assert np.array_equal(y, np.broadcast_to(weight[:, 3], y.shape))


def test_tuned_linear_f32_of_other_sizes_is_the_plain_kernels(rng):
    x, weight = random_bf16(rng, 3, 13), random_f32(rng, 4, 13)
    y = to_host(linear_f32(to_device(x), to_device(weight)))
    np.testing.assert_allclose(y, linear_f32_ref(x, weight), rtol=1e-5, atol=1e-4)
