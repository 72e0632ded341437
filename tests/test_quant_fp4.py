from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import golden
from conftest import random_bf16
from dsv41_numba.compare import bf16_array, same_bits
from dsv41_numba.formats.bf16 import BF16, as_bf16
from dsv41_numba.formats.e2m1 import e2m1_to_f32, f32_to_e2m1
from dsv41_numba.formats.e4m3 import e4m3_to_f32, f32_to_e4m3
from dsv41_numba.formats.e8m0 import e8m0_to_f32, f32_to_e8m0
from dsv41_numba.ops.quant_fp4 import (
    AMAX_FLOOR_E4M3,
    AMAX_FLOOR_E8M0,
    fp4_quantise_e4m3_ref,
    fp4_quantise_e8m0_ref,
    fp4_round_trip_e4m3,
    fp4_round_trip_e4m3_ref,
    fp4_round_trip_e8m0,
    fp4_round_trip_e8m0_ref,
)
from dsv41_numba.ops.quant_fp8 import THREADS
from dsv41_numba.runtime.backend import to_device, to_host


def smallest_power(amax):
    return next(2.0**e for e in range(-127, 128) if amax / 6 <= 2.0**e)


def nearest_e4m3(amax):
    values = e4m3_to_f32(np.arange(0x7F, dtype=np.uint8)).astype(np.float64)
    return values[nearest_even(np.array([min(amax / 6, 448.0)]), values)][0]


def nearest_even(magnitude, values):
    """The code of the nearest value, ties to the even code."""
    distance = np.abs(magnitude[:, None] - values)
    nearest = distance == distance.min(1, keepdims=True)
    return np.where(nearest & (np.arange(len(values)) % 2 == 0), 1, nearest * 0.5).argmax(1)


@dataclass(frozen=True)
class Kind:
    """One of the two round trips."""

    recorded: str
    block: int
    floor: Any
    kernel: Any
    ref: Any
    quantise: Any
    encode: Any
    decode: Any
    search: Any

    def run(self, x):
        return bf16_array(to_host(self.kernel(to_device(x))))

    def float64_round_trip(self, block):
        """One block by search, in float64."""
        x = block.astype(np.float64)
        scale = self.search(max(np.abs(x).max(), float(self.floor)))
        values = e2m1_to_f32(np.arange(8, dtype=np.uint8)).astype(np.float64)
        code = nearest_even(np.minimum(np.abs(x) / scale, 6), values)
        with np.errstate(over="ignore"):
            return as_bf16((np.copysign(values[code], x) * scale).astype(np.float32))

    def every_amax(self, rng):
        """One block for each finite bf16 magnitude: that number with either sign, and smaller ones."""
        amax = np.arange(0x7F80, dtype=np.uint16).view(BF16).astype(np.float32)[:, None]
        small = rng.uniform(-1, 1, (len(amax), self.block)) * np.exp2(-rng.integers(0, 6, self.block))
        x = amax * small.astype(np.float32)
        x[np.arange(len(amax)), rng.integers(0, self.block, len(amax))] = amax[:, 0] * rng.choice([-1, 1], len(amax))
        return as_bf16(x)


E8M0 = Kind(
    "fp4e8m0",
    32,
    AMAX_FLOOR_E8M0,
    fp4_round_trip_e8m0,
    fp4_round_trip_e8m0_ref,
    fp4_quantise_e8m0_ref,
    f32_to_e8m0,
    e8m0_to_f32,
    smallest_power,
)
E4M3 = Kind(
    "fp4e4m3",
    16,
    AMAX_FLOOR_E4M3,
    fp4_round_trip_e4m3,
    fp4_round_trip_e4m3_ref,
    fp4_quantise_e4m3_ref,
    f32_to_e4m3,
    e4m3_to_f32,
    nearest_e4m3,
)
kinds = pytest.mark.parametrize("kind", [E8M0, E4M3], ids=["e8m0", "e4m3"])


@pytest.mark.parametrize("kind, infinite", [(E8M0, [3, 4]), (E4M3, [])], ids=["e8m0", "e4m3"])
def test_quant_fp4_reproduces_the_recorded_bytes(kind, infinite):
    x, y, codes, scales = (golden.load("stages")[f"{kind.recorded}.{part}"] for part in ("x", "y", "codes", "scales"))
    got_codes, got_scales = kind.quantise(x)
    assert np.array_equal(got_codes, codes)
    assert np.array_equal(got_scales[:, 0], scales)
    assert same_bits(kind.ref(x), y)
    assert same_bits(kind.run(x), y)
    assert np.isinf(y.astype(np.float32)).any(-1).nonzero()[0].tolist() == infinite


@kinds
def test_quant_fp4_matches_its_reference_for_every_amax(rng, kind):
    x = kind.every_amax(rng)
    y = kind.run(x)
    assert same_bits(y, kind.ref(x))
    assert not np.isnan(y.astype(np.float32)).any()
    for r in rng.integers(0, len(x), 300):
        assert same_bits(y[r], kind.float64_round_trip(x[r])), x[r]


@kinds
def test_quant_fp4_dividing_by_6_gives_the_scale_that_the_reciprocal_gives(kind):
    """For every bf16 amax: this choice is free, the one below is not."""
    amax = np.maximum(np.arange(0x7F80, dtype=np.uint16).view(BF16).astype(np.float32), kind.floor)
    assert np.array_equal(kind.encode(amax / np.float32(6)), kind.encode(amax * np.float32(1 / 6)))


def test_quant_fp4_multiplying_by_the_reciprocal_scale_would_miss_recorded_codes():
    recorded = golden.load("stages")
    scale = e4m3_to_f32(recorded["fp4e4m3.scales"])[:, None]
    with np.errstate(over="ignore"):
        codes = f32_to_e2m1(recorded["fp4e4m3.x"].astype(np.float32) * (np.float32(1) / scale))
    assert (codes != recorded["fp4e4m3.codes"]).sum() == 8
    x = as_bf16(np.array([0.17578125, 0.03662109375] + [0] * 14, np.float32))  # 6 and 1.25 times the scale
    assert E4M3.run(x)[1] == np.float32(0.029296875)  # 1: the tie goes to the even code


@kinds
@pytest.mark.parametrize("shape", [(1, 32), (7, 32), (9, 32), (3, 96), (2, 3, 64), (32,), (5, 512), (2, 0, 32), (3, 0)])
def test_quant_fp4_matches_its_reference_at_every_shape(rng, kind, shape):
    x = random_bf16(rng, *shape, spread=3.0)
    assert same_bits(kind.run(x), kind.ref(x))
    codes, scales = kind.quantise(x)
    assert codes.shape == shape and scales.shape == (*shape[:-1], shape[-1] // kind.block)
    assert codes.max(initial=0) <= 15


def test_quant_fp4_e4m3_takes_an_odd_number_of_blocks(rng):
    x = random_bf16(rng, 3, 48)
    assert same_bits(E4M3.run(x), E4M3.ref(x))


@kinds
def test_quant_fp4_blocks_do_not_depend_on_each_other(rng, kind):
    """More blocks than one thread block holds, of sizes far apart."""
    x = random_bf16(rng, 2 * THREADS // kind.block + 3, kind.block, spread=6.0)
    assert same_bits(kind.run(x), np.concatenate([kind.run(x[r : r + 1]) for r in range(len(x))]))


@kinds
def test_quant_fp4_again_changes_no_bit(rng, kind):
    """For e4m3 only while amax / 6 is a normal number: rounded to a subnormal scale it moves by up to a third."""
    x = kind.every_amax(rng)
    if kind is E4M3:
        x = x[np.abs(x.astype(np.float32)).max(-1) >= 6 * 2.0**-6]
    y = kind.run(x)
    y = y[np.isfinite(y.astype(np.float32)).all(-1)]
    assert len(y) > 16000 and same_bits(kind.run(y), y)


@kinds
def test_quant_fp4_keeps_values_that_its_codes_can_hold(kind):
    """Hard case 11 for fp4, with the scale taken first: 6 sets a scale of 1 for both kinds."""
    x = as_bf16(np.resize(np.array([6, -6, 4, 3, -2, 1.5, 1, -0.5, 0, -0.0], np.float32), 32))
    assert same_bits(kind.run(x), x)


@kinds
def test_quant_fp4_rounds_ties_to_the_even_code(kind):
    """Hard case 14 through the whole round trip: an amax of 6 sets the scale to 1."""
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], np.float32)
    x = as_bf16(np.resize(np.concatenate([[6], ties, -ties, [-0.0]]), 32).astype(np.float32))
    expected = np.array([0, 1, 1, 2, 2, 4, 4], np.float32)
    assert same_bits(kind.run(x)[:16], as_bf16(np.concatenate([[6], expected, -expected, [-0.0]]).astype(np.float32)))


def test_quant_fp4_e8m0_floor_is_the_smallest_normal_scale():
    x = as_bf16(np.array([2.0**-126, 2.0**-127, -(2.0**-128)] + [0] * 29, np.float32))
    assert fp4_quantise_e8m0_ref(x)[1].tolist() == [1]
    assert same_bits(E8M0.run(x)[:3], as_bf16(np.array([2.0**-126, 2.0**-127, -0.0], np.float32)))


def test_quant_fp4_e4m3_scale_has_a_floor_and_a_ceiling():
    x = as_bf16(np.array([[1e-20] * 16, [2.0**-9] * 16, [1e30, -2688, 448] + [1] * 13], np.float32))
    assert e4m3_to_f32(fp4_quantise_e4m3_ref(x)[1])[:, 0].tolist() == [2.0**-9, 2.0**-9, 448]
    y = E4M3.run(x).astype(np.float32)
    assert (y[0] == 0).all() and (y[1] == 2.0**-9).all() and y[2, :4].tolist() == [2688, -2688, 448, 0]


@kinds
@pytest.mark.parametrize("bad", [np.nan, -np.nan])
def test_quant_fp4_makes_a_block_with_a_nan_nan_and_no_other(rng, kind, bad):
    x = random_bf16(rng, 3, 64)
    x[1, 40] = bad
    y = kind.run(x)
    assert same_bits(y, kind.ref(x))
    nan = np.isnan(y.astype(np.float32))
    first = 40 // kind.block * kind.block
    assert nan[1, first : first + kind.block].all() and nan.sum() == kind.block
    assert np.isnan(kind.decode(kind.quantise(x)[1])).sum() == 1


@pytest.mark.parametrize("sign", [1, -1])
def test_quant_fp4_infinity_has_no_e8m0_scale_and_the_largest_e4m3_one(rng, sign):
    x = random_bf16(rng, 1, 32)
    x[0, 5] = sign * np.inf
    y_e8m0, y_e4m3 = E8M0.run(x), E4M3.run(x)
    assert same_bits(y_e8m0, E8M0.ref(x)) and np.isnan(y_e8m0.astype(np.float32)).all()
    assert same_bits(y_e4m3, E4M3.ref(x)) and y_e4m3[0, 5] == sign * 2688


@kinds
@settings(deadline=None, derandomize=True, max_examples=100)
@given(bits=st.lists(st.integers(0, 0xFFFF), min_size=32, max_size=32))
def test_quant_fp4_matches_its_reference_on_any_bits(kind, bits):
    x = np.array(bits, np.uint16).view(BF16).reshape(-1, kind.block)
    y = kind.run(x)
    assert same_bits(y, kind.ref(x))
    for block, got in zip(x, y):
        if np.isfinite(block.astype(np.float32)).all():
            assert same_bits(got, kind.float64_round_trip(block))


@kinds
def test_quant_fp4_refuses_bad_input(rng, kind):
    message = rf"x: expected a last axis that is a multiple of {kind.block}, got shape \[4, 40\]"
    with pytest.raises(ValueError, match=message):
        kind.kernel(to_device(random_bf16(rng, 4, 40)))
    with pytest.raises(ValueError, match=message):
        kind.ref(random_bf16(rng, 4, 40))
    with pytest.raises(ValueError, match="x: expected dtype uint16, got uint8"):
        kind.kernel(to_device(np.ones((2, 32), np.uint8)))
    with pytest.raises(ValueError, match="x: expected a C-contiguous array"):
        kind.kernel(to_device(random_bf16(rng, 2, 64))[:, :32])
