import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import golden
from conftest import random_bf16
from dsv41_numba.compare import bf16_array, same_bits
from dsv41_numba.formats.bf16 import BF16, as_bf16
from dsv41_numba.formats.e4m3 import e4m3_to_f32, f32_to_e4m3
from dsv41_numba.formats.e8m0 import e8m0_to_f32, f32_to_e8m0
from dsv41_numba.ops.quant_fp8 import (
    AMAX_FLOOR,
    BLOCK,
    INVERSE_448,
    THREADS,
    fp8_quantise_ref,
    fp8_round_trip,
    fp8_round_trip_ref,
)
from dsv41_numba.runtime.backend import to_device, to_host

VALUES = np.sort(e4m3_to_f32(np.arange(0x7F, dtype=np.uint8))).astype(np.float64)  # of the codes 0 to 126


def run(x):
    return bf16_array(to_host(fp8_round_trip(to_device(x))))


def every_amax(rng):
    """One block for each finite bf16 magnitude: that number with either sign, and 31 smaller ones."""
    amax = np.arange(0x7F80, dtype=np.uint16).view(BF16).astype(np.float32)[:, None]
    x = amax * rng.uniform(-1, 1, (len(amax), BLOCK)).astype(np.float32) * np.exp2(-rng.integers(0, 18, BLOCK))
    place = rng.integers(0, BLOCK, len(amax))
    x[np.arange(len(amax)), place] = amax[:, 0] * rng.choice([-1, 1], len(amax))
    return as_bf16(x.astype(np.float32))


def float64_round_trip(block):
    """One block by search: the smallest sufficient power of two, then the nearest value, ties to the even code."""
    x = block.astype(np.float64)
    amax = max(np.abs(x).max(), float(AMAX_FLOOR))
    scale = next(2.0**e for e in range(-127, 128) if amax / 448 <= 2.0**e)
    distance = np.abs(np.minimum(np.abs(x) / scale, 448)[:, None] - VALUES)
    nearest = distance == distance.min(1, keepdims=True)
    code = np.where(nearest & (np.arange(127) % 2 == 0), 1, nearest * 0.5).argmax(1)
    with np.errstate(over="ignore"):
        return as_bf16((np.copysign(VALUES[code], x) * scale).astype(np.float32))


def test_quant_fp8_reproduces_the_recorded_bytes():
    recorded = golden.load("stages")
    x, y = recorded["fp8.x"], recorded["fp8.y"]
    codes, scales = fp8_quantise_ref(x)
    assert np.array_equal(codes, recorded["fp8.codes"])
    assert np.array_equal(scales[:, 0], recorded["fp8.scales"])
    assert same_bits(fp8_round_trip_ref(x), y)
    assert same_bits(run(x), y)
    assert np.isinf(y.astype(np.float32)).any(-1).nonzero()[0].tolist() == [29]


def test_quant_fp8_matches_its_reference_for_every_amax(rng):
    x = every_amax(rng)
    y = run(x)
    assert same_bits(y, fp8_round_trip_ref(x))
    assert not np.isnan(y.astype(np.float32)).any()
    for r in rng.integers(0, len(x), 300):
        assert same_bits(y[r], float64_round_trip(x[r])), x[r]


def test_quant_fp8_multiplying_by_the_reciprocal_gives_the_scale_that_dividing_gives():
    """For every bf16 amax: the choice is free, the docstring names the reference's."""
    amax = np.maximum(np.arange(0x7F80, dtype=np.uint16).view(BF16).astype(np.float32), AMAX_FLOOR)
    assert np.array_equal(f32_to_e8m0(amax * INVERSE_448), f32_to_e8m0(amax / np.float32(448)))


@pytest.mark.parametrize("shape", [(1, 32), (7, 32), (9, 32), (3, 96), (2, 3, 64), (32,), (5, 512), (2, 0, 32), (3, 0)])
def test_quant_fp8_matches_its_reference_at_every_shape(rng, shape):
    x = random_bf16(rng, *shape, spread=3.0)
    assert same_bits(run(x), fp8_round_trip_ref(x))
    codes, scales = fp8_quantise_ref(x)
    assert codes.shape == shape and scales.shape == (*shape[:-1], shape[-1] // BLOCK)


def test_quant_fp8_blocks_do_not_depend_on_each_other(rng):
    """More blocks than one thread block holds, of sizes far apart."""
    x = random_bf16(rng, 2 * THREADS // BLOCK + 3, BLOCK, spread=6.0)
    assert same_bits(run(x), np.concatenate([run(x[r : r + 1]) for r in range(len(x))]))


def test_quant_fp8_takes_its_scale_before_it_rounds():
    """Hard case 11: [3, 1] survives; dividing by amax / 448 and rounding that scale afterwards gives 3.5 and 1.125."""
    x = as_bf16(np.array([3, 1] + [0] * 30, np.float32))
    assert same_bits(run(x), x)
    assert e8m0_to_f32(fp8_quantise_ref(x)[1]) == 2.0**-7
    late = f32_to_e4m3(x.astype(np.float32) / np.float32(3 / 448))
    assert (e4m3_to_f32(late) * 2.0**-7)[:2].tolist() == [3.5, 1.125]


def test_quant_fp8_again_changes_no_bit(rng):
    y = run(every_amax(rng))
    y = y[np.isfinite(y.astype(np.float32)).all(-1)]
    assert len(y) > 32000 and same_bits(run(y), y)


def test_quant_fp8_keeps_the_sign_of_zero():
    x = as_bf16(np.array([0.0, -0.0, 1e-30, -1e-30] * 8, np.float32))
    assert run(x).view(np.uint16).tolist() == [0, 0x8000] * 16
    assert same_bits(fp8_round_trip_ref(x), run(x))


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_quant_fp8_makes_a_block_with_a_nan_or_an_infinity_nan_and_no_other(rng, bad):
    x = random_bf16(rng, 3, 64)
    x[1, 40] = bad
    y = run(x)
    assert same_bits(y, fp8_round_trip_ref(x))
    nan = np.isnan(y.astype(np.float32))
    assert nan[1, 32:].all() and nan.sum() == 32
    assert fp8_quantise_ref(x)[1][1].tolist()[1] == 0xFF


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(st.integers(0, 0xFFFF), min_size=BLOCK, max_size=BLOCK))
def test_quant_fp8_matches_its_reference_on_any_bits(bits):
    x = np.array(bits, np.uint16).view(BF16)
    y = run(x)
    assert same_bits(y, fp8_round_trip_ref(x))
    if np.isfinite(x.astype(np.float32)).all():
        assert same_bits(y, float64_round_trip(x))
    else:
        assert np.isnan(y.astype(np.float32)).all()


def test_quant_fp8_refuses_bad_input(rng):
    with pytest.raises(ValueError, match=r"x: expected a last axis that is a multiple of 32, got shape \[4, 48\]"):
        fp8_round_trip(to_device(random_bf16(rng, 4, 48)))
    with pytest.raises(ValueError, match="x: expected a last axis that is a multiple of 32"):
        fp8_round_trip_ref(random_bf16(rng, 4, 48))
    with pytest.raises(ValueError, match=r"multiple of 32, got shape \[\]"):
        fp8_round_trip(to_device(np.zeros(1, np.uint16)).reshape(()))
    with pytest.raises(ValueError, match="x: expected dtype uint16, got float32"):
        fp8_round_trip(to_device(np.ones((2, 32), np.float32)))
    with pytest.raises(ValueError, match="x: expected a C-contiguous array"):
        fp8_round_trip(to_device(random_bf16(rng, 2, 64))[:, :32])
    with pytest.raises(ValueError, match="x: expected a uint16 array, got list"):
        fp8_round_trip([1, 2])
