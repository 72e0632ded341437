from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import golden
from conftest import random_bf16
from dsv41_numba.compare import bf16_array, same_bits
from dsv41_numba.formats.bf16 import as_bf16
from dsv41_numba.ops.rope import (
    HEADS_PER_BLOCK,
    WARP,
    cos_sin,
    freqs_table,
    rope,
    rope_freqs,
    rope_inverse,
    rope_inverse_ref,
    rope_ref,
    rope_table,
    yarn_freqs,
)
from dsv41_numba.runtime.backend import to_device, to_host

REAL_YARN = (64, 160000.0, 65536, 16.0, 32.0, 1.0)
FREQS = {
    "tiny.plain": rope_freqs(16, 10000.0),
    "tiny.yarn": yarn_freqs(16, 160000.0, 64, 16.0, 32.0, 1.0),
    "real.plain": rope_freqs(64, 10000.0),
    "real.yarn": yarn_freqs(*REAL_YARN),
}


def run(x, cos, sin, start_pos, step=1, op=rope):
    return bf16_array(to_host(op(to_device(x), to_device(cos), to_device(sin), start_pos, step)))


def table(rope_dim, P):
    return freqs_table(rope_freqs(rope_dim, 10000.0), np.arange(P))


# ---- the tables


@pytest.mark.parametrize("name", FREQS)
def test_rope_tables_have_the_recorded_bits(name):
    recorded = golden.load("stages")
    assert same_bits(FREQS[name], recorded[f"rope.{name}.freqs"])
    cos, sin = freqs_table(FREQS[name], recorded[f"rope.{name.split('.')[0]}.positions"])
    assert same_bits(cos, recorded[f"rope.{name}.cos"])
    assert same_bits(sin, recorded[f"rope.{name}.sin"])


def test_rope_table_takes_yarn_for_compressed_layers_and_plain_for_the_others():
    """Hard case 1: the two tables must not be swapped."""
    tiny = SimpleNamespace(
        rope_dim=16,
        rope_theta=10000.0,
        compress_rope_theta=160000.0,
        original_seq_len=64,
        rope_factor=16.0,
        beta_fast=32.0,
        beta_slow=1.0,
        max_seq=64,
    )
    recorded = golden.load("stages")
    for compressed, name in ((False, "tiny.plain"), (True, "tiny.yarn")):
        cos, sin = rope_table(tiny, compressed)
        assert same_bits(cos, recorded[f"rope.{name}.cos"]) and same_bits(sin, recorded[f"rope.{name}.sin"])
    assert not same_bits(rope_table(tiny, True)[0], rope_table(tiny, False)[0])


def test_rope_freqs_have_the_published_values():
    """Hard case 1, at the released geometry. The values were worked out in f64: one f32 step apart at most."""
    one_step = 2.0**-23
    plain, yarn = FREQS["real.plain"], FREQS["real.yarn"]
    for i, value in {1: 0.749894209, 16: 0.01, 31: 1.33352143e-4}.items():
        assert abs(plain[i] / value - 1) <= one_step and abs(yarn[i] / value - 1) > 0.08
    unscaled = rope_freqs(64, 160000.0)
    expected = {1: 0.687656022, 15: 3.635538584e-3, 16: 2.265625e-3, 20: 2.969777783e-4, 25: 5.372312671e-6}
    for i, value in (expected | {31: 5.680529037e-7}).items():
        assert abs(yarn[i] / value - 1) <= one_step
    ratio = yarn / unscaled
    assert np.allclose(ratio[[15, 16, 20, 25, 31]], [1, 0.90625, 0.53125, 1 / 16, 1 / 16], rtol=1e-6)
    assert same_bits(yarn[:16], unscaled[:16])


def test_rope_yarn_is_off_without_an_original_length():
    assert same_bits(yarn_freqs(64, 160000.0, 0, 16.0, 32.0, 1.0), rope_freqs(64, 160000.0))


@pytest.mark.parametrize("rope_dim", [2, 6, 96])
@pytest.mark.parametrize("original", [4, 64, 65536])
def test_rope_yarn_slows_pairs_by_1_to_factor_in_order(rope_dim, original):
    ratio = yarn_freqs(rope_dim, 10000.0, original, 40.0, 32.0, 1.0) / rope_freqs(rope_dim, 10000.0)
    assert (np.diff(ratio) <= 1e-6).all() and ratio.max() <= 1 + 1e-6 and ratio.min() >= 1 / 40 - 1e-6


@pytest.mark.parametrize("rope_dim", [0, 7, -2])
def test_rope_freqs_refuse_an_odd_or_empty_rope_dim(rope_dim):
    with pytest.raises(ValueError, match=f"rope_dim: expected an even number from 2 on, got {rope_dim}"):
        rope_freqs(rope_dim, 10000.0)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.lists(st.floats(-(2.0**20), 2.0**20, width=32), min_size=1, max_size=64))
def test_rope_cos_and_sin_are_within_their_error_of_the_exact_ones(angles):
    angles = np.array(angles, np.float32)
    for got, exact in zip(cos_sin(angles), (np.cos(angles.astype(np.float64)), np.sin(angles.astype(np.float64)))):
        step = np.spacing(np.maximum(np.abs(exact).astype(np.float32), np.float32(2.0**-60)))
        assert (np.abs(got - exact) <= 0.57 * step).all()


def test_rope_cos_and_sin_at_the_quarter_turns():
    """Where a result is near 0 the reduction by pi / 2 must keep its relative precision, also at far positions."""
    quarters = np.concatenate([np.arange(-40, 41), np.arange(600000, 600040)])
    angles = (quarters * (np.pi / 2)).astype(np.float32)
    for got, exact in zip(cos_sin(angles), (np.cos(angles.astype(np.float64)), np.sin(angles.astype(np.float64)))):
        assert (np.abs(got - exact) <= 2.0**-23 * np.abs(exact)).all()
    assert cos_sin(np.array([0.0, -0.0], np.float32))[0].tolist() == [1, 1]


# ---- the rotation


def test_rope_reproduces_the_recorded_rotation_and_its_inverse():
    recorded = golden.load("stages")
    x, cos, sin = recorded["rope.apply.x"], recorded["rope.real.yarn.cos"], recorded["rope.real.yarn.sin"]
    for ref, op, y in (
        (rope_ref, rope, recorded["rope.apply.y"]),
        (rope_inverse_ref, rope_inverse, recorded["rope.apply.yinv"]),
    ):
        assert same_bits(ref(x, cos, sin, 0), y)
        assert same_bits(run(x, cos, sin, 0, op=op), y)


def half_split(x, cos, sin):
    """The family's other pairing, (i, i + R / 2): wrong here."""
    low, high = np.split(x.astype(np.float32), 2, axis=-1)
    c, s = cos[:, None, :], sin[:, None, :]
    return as_bf16(np.concatenate([low * c - high * s, low * s + high * c], axis=-1))


def test_rope_half_split_pairs_would_miss_the_recording():
    recorded = golden.load("stages")
    wrong = half_split(recorded["rope.apply.x"], recorded["rope.real.yarn.cos"], recorded["rope.real.yarn.sin"])
    assert (wrong[1:] != recorded["rope.apply.y"][1:]).mean() > 0.8


@pytest.mark.parametrize("D, first", [(512, 448), (128, 64)])
def test_rope_turns_adjacent_entries_of_the_tail(D, first):
    """Hard case 2: one-hot at the first entry that turns, position 1; the attention's head and the indexer's."""
    x = as_bf16(np.eye(1, D, first, dtype=np.float32)[None])
    y = run(x, *table(64, 2), 1)[0, 0].astype(np.float32)
    assert y[first : first + 2].tolist() == as_bf16(np.array([0.540302306, 0.841470985], np.float32)).tolist()
    assert not np.delete(y, [first, first + 1]).any()


@pytest.mark.parametrize(
    "T, H, D, R, start_pos, step",
    [
        (1, 1, 2, 2, 3, 1),
        (3, 7, 96, 16, 0, 1),
        (9, 1, 512, 64, 11, 1),
        (5, 8, 128, 64, 2, 4),
        (2, HEADS_PER_BLOCK + 1, 2 * WARP + 6, 10, 5, 3),
        (2, 3, 2 * WARP, 2 * WARP, 40, 2),
        (1, 6, 2 * WARP - 2, 12, 63, 7),
        (0, 4, 64, 16, 5, 1),
    ],
)
def test_rope_matches_its_reference(rng, T, H, D, R, start_pos, step):
    x, (cos, sin) = random_bf16(rng, T, H, D), table(R, 64)
    assert same_bits(run(x, cos, sin, start_pos, step), rope_ref(x, cos, sin, start_pos, step))
    inverse = run(x, cos, sin, start_pos, step, op=rope_inverse)
    assert same_bits(inverse, rope_inverse_ref(x, cos, sin, start_pos, step))


def test_rope_matches_float64(rng):
    """Half a bf16 step, at most 2^-8 of the number, after f32 noise, which stays when two terms cancel."""
    x, (cos, sin) = random_bf16(rng, 40, 3, 32), table(32, 40)
    z = x.astype(np.float64)[..., 0::2] + 1j * x.astype(np.float64)[..., 1::2]
    exact = z * (cos.astype(np.float64) + 1j * sin)[:, None, :]
    y = run(x, cos, sin, 0).astype(np.float64)
    for got, want in ((y[..., 0::2], exact.real), (y[..., 1::2], exact.imag)):
        assert (np.abs(got - want) <= 2.0**-8 * np.abs(want) + 2.0**-23 * np.abs(z)).all()


def test_rope_copies_the_entries_before_the_tail(rng):
    """Every 16-bit pattern goes through, NaNs included."""
    x = np.zeros((64, 1, 1024 + 16), np.uint16)
    x[..., :1024] = np.arange(65536, dtype=np.uint16).reshape(64, 1, 1024)
    y = run(bf16_array(x), *table(16, 64), 0)
    assert np.array_equal(y.view(np.uint16)[..., :1024], x[..., :1024])


def test_rope_at_position_0_changes_nothing(rng):
    x = random_bf16(rng, 1, 5, 48)
    assert same_bits(run(x, *table(32, 8), 0), x)
    assert same_bits(run(x, *table(32, 8), 0, op=rope_inverse), x)


def test_rope_keeps_each_pairs_norm_and_turns_back(rng):
    """Half a bf16 step is at most 2^-8 of a number, so of a pair's norm: one turn, and twice that there and back."""
    x, (cos, sin) = random_bf16(rng, 60, 4, 32), table(32, 60)
    y = run(x, cos, sin, 0)
    back = run(y, cos, sin, 0, op=rope_inverse)

    def pairs(a):
        return a.astype(np.float64).reshape(60, 4, 16, 2)

    norm = np.linalg.norm(pairs(x), axis=-1)
    assert (np.abs(np.linalg.norm(pairs(y), axis=-1) / norm - 1) <= 2.0**-8 + 1e-6).all()
    assert (np.linalg.norm(pairs(back) - pairs(x), axis=-1) / norm <= 2.0**-7 + 1e-5).all()


def test_rope_row_t_stands_at_start_pos_plus_t_steps(rng):
    x, (cos, sin) = random_bf16(rng, 4, 2, 16), table(16, 32)
    together = run(x, cos, sin, 6, 3)
    for t in range(4):
        assert same_bits(together[t : t + 1], run(x[t : t + 1], cos, sin, 6 + 3 * t))
    assert same_bits(run(x[:1], cos, sin, 31), rope_ref(x[:1], cos, sin, 31))  # the last row of the table


def test_rope_refuses_bad_input(rng):
    x, (cos, sin) = random_bf16(rng, 4, 2, 16), table(16, 32)
    dx, dcos, dsin = to_device(x), to_device(cos), to_device(sin)
    for start_pos, step, shown in (
        (29, 1, "29..32 by 1"),
        (-1, 1, "-1..2 by 1"),
        (0, 11, "0..33 by 11"),
        (5, 0, "5..5"),
    ):
        for call in (lambda a: rope(dx, dcos, dsin, *a), lambda a: rope_ref(x, cos, sin, *a)):
            with pytest.raises(ValueError, match=f"positions within the table's 0..31, step >= 1, got {shown}"):
                call((start_pos, step))
    with pytest.raises(ValueError, match=r"x: expected shape \[\*, \*, \*\], got \[8, 16\]"):
        rope(to_device(x.reshape(8, 16)), dcos, dsin, 0)
    with pytest.raises(ValueError, match="x: expected dtype uint16, got float32"):
        rope(to_device(x.astype(np.float32)), dcos, dsin, 0)
    with pytest.raises(ValueError, match=r"sin: expected shape \[32, 8\], got \[32, 7\]"):
        rope(dx, dcos, to_device(np.ascontiguousarray(sin[:, :7])), 0)
    with pytest.raises(ValueError, match="cos: expected at most 7 pairs for heads of 14, got 8"):
        rope(to_device(np.ascontiguousarray(x[..., :14])), dcos, dsin, 0)
    with pytest.raises(ValueError, match="x: expected an even last axis, which splits into pairs, got 15"):
        rope(to_device(np.ascontiguousarray(x[..., :15])), dcos, dsin, 0)
