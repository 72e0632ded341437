import numpy as np
import pytest

from conftest import random_bf16
from dsv41_numba.compare import bf16_array, worst_steps
from dsv41_numba.formats.bf16 import as_bf16
from dsv41_numba.ops.rmsnorm import AHEAD, THREADS, rmsnorm, rmsnorm_f32, rmsnorm_f32_ref, rmsnorm_ref
from dsv41_numba.runtime.backend import to_device, to_host
from tolerances import ONE_ROUNDING

WIDTHS = (1, 2, 37, THREADS - 1, THREADS, THREADS + 1, AHEAD * THREADS - 1, AHEAD * THREADS + 1, 1280)


def float64_rmsnorm(x, weight, eps):
    x = x.astype(np.float64)
    return as_bf16((weight * x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)).astype(np.float32))


@pytest.mark.parametrize("D", WIDTHS)
def test_rmsnorm_matches_its_reference_and_float64(rng, D):
    x = random_bf16(rng, 5, D)
    weight = (1 + 0.1 * rng.standard_normal(D)).astype(np.float32)
    y = bf16_array(to_host(rmsnorm(to_device(x), to_device(weight), 1e-6)))
    assert worst_steps(y, rmsnorm_ref(x, weight, 1e-6)) <= ONE_ROUNDING
    assert worst_steps(y, float64_rmsnorm(x, weight, 1e-6)) <= ONE_ROUNDING


@pytest.mark.parametrize("D", WIDTHS)
def test_rmsnorm_f32_matches_its_reference_and_float64(rng, D):
    x = (rng.standard_normal((3, D)) * 10).astype(np.float32)
    weight = (1 + 0.1 * rng.standard_normal(D)).astype(np.float32)
    y = bf16_array(to_host(rmsnorm_f32(to_device(x), to_device(weight), 1e-20)))
    assert worst_steps(y, rmsnorm_f32_ref(x, weight, 1e-20)) <= ONE_ROUNDING
    assert worst_steps(y, float64_rmsnorm(as_bf16(x), weight, 1e-20)) <= ONE_ROUNDING


def test_rmsnorm_f32_rounds_its_rows_before_the_norm(rng):
    """The recordings' latents show it: without this rounding a quarter of them is one step off."""
    x, weight = rng.standard_normal((2, 300)).astype(np.float32), np.ones(300, np.float32)
    y = to_host(rmsnorm_f32(to_device(x), to_device(weight), 1e-20))
    assert y.tobytes() == to_host(rmsnorm(to_device(as_bf16(x)), to_device(weight), 1e-20)).tobytes()
    assert (bf16_array(y) != float64_rmsnorm(x, weight, 1e-20)).mean() > 0.05


def test_rmsnorm_does_not_depend_on_the_row_beside_it(rng):
    x, weight = to_device(random_bf16(rng, 4, 70)), to_device(rng.standard_normal(70).astype(np.float32))
    together = to_host(rmsnorm(x, weight, 1e-6))
    alone = np.concatenate([to_host(rmsnorm(to_device(to_host(x)[r : r + 1]), weight, 1e-6)) for r in range(4)])
    assert together.tobytes() == alone.tobytes()


def test_rmsnorm_keeps_small_rows_and_zeros():
    """Hard case 10: with eps 1e-20 a row of 1e-8 is normalised; with 1e-6 it would vanish."""
    x, weight = as_bf16(np.full((1, 96), 1e-8, np.float32)), np.ones(96, np.float32)
    y = bf16_array(to_host(rmsnorm(to_device(x), to_device(weight), 1e-20))).astype(np.float32)
    assert np.abs(y - 0.99995).max() < 0.004
    assert not to_host(rmsnorm(to_device(np.zeros_like(x)), to_device(weight), 1e-20)).any()


def test_rmsnorm_of_no_rows_is_no_rows():
    y = to_host(rmsnorm(to_device(np.zeros((0, 8), np.uint16)), to_device(np.ones(8, np.float32)), 1e-6))
    assert y.shape == (0, 8)


def test_rmsnorm_refuses_bad_input(rng):
    x, weight = to_device(random_bf16(rng, 2, 8)), to_device(np.ones(8, np.float32))
    with pytest.raises(ValueError, match=r"weight: expected shape \[8\], got \[7\]"):
        rmsnorm(x, to_device(np.ones(7, np.float32)), 1e-6)
    with pytest.raises(ValueError, match="x: expected dtype uint16, got float32"):
        rmsnorm(to_device(np.ones((2, 8), np.float32)), weight, 1e-6)
    with pytest.raises(ValueError, match=r"x: expected shape \[\*, \*\], got \[8\]"):
        rmsnorm(to_device(np.ones(8, np.uint16)), weight, 1e-6)
