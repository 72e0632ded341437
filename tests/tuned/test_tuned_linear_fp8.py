"""The rungs of the fp8 linear: on a GPU with PTX, on the emulator with what `tuned.emulated` makes of it."""

import dataclasses

import numpy as np
import pytest
from numba import cuda, uint32

import golden
from conftest import random_bf16
from dsv41_numba.check import check
from dsv41_numba.compare import bf16_array, bf16_steps, same_bits, worst_steps
from dsv41_numba.config import TINY
from dsv41_numba.formats.bf16 import as_bf16
from dsv41_numba.formats.e4m3 import E4M3_VALUES, f32_to_e4m3
from dsv41_numba.formats.fp8_weight import Fp8Weight
from dsv41_numba.ops.linear_fp8 import linear_fp8_ref
from dsv41_numba.recording import Recording
from dsv41_numba.runtime.backend import empty, launch, to_device, to_host
from dsv41_numba.tuned import TUNED
from dsv41_numba.tuned import linear_fp8 as rungs
from dsv41_numba.weights import Checkpoint
from test_linear_fp8 import on_device, random_weight
from tolerances import ONE_ROUNDING

pytest.importorskip("numba_cuda", reason="numba-cuda, which the tuned kernels need, is not installed")

# M, N, K, block: rows below, at and past a group of 16; half a chunk at the end; 1, 2, 4 and 8 warps that share rows
SIZES = [
    (1, 16, 64, (32, 32)),
    (1, 1, 32, (32, 32)),
    (4, 40, 96, (32, 32)),
    (3, 130, 512, (128, 128)),
    (2, 33, 1056, (16, 64)),
    (1, 17, 2080, (32, 32)),
    (4, 9, 2048, (32, 32)),
]


def decode(x, weight):
    from dsv41_numba.tuned.linear_fp8_decode import launch_fp8_decode

    y = empty((x.shape[0], weight.shape[0]), np.uint16)
    launch_fp8_decode(to_device(x), on_device(weight), y)
    return bf16_array(to_host(y))


def dequantise(x, weight):
    from dsv41_numba.tuned.linear_fp8_dequantise import linear_fp8_dequantised

    return bf16_array(to_host(linear_fp8_dequantised(to_device(x), on_device(weight))))


every_rung = pytest.mark.parametrize("rung", [decode, dequantise], ids=lambda rung: rung.__name__)


@every_rung
@pytest.mark.parametrize("M, N, K, block", SIZES)
def test_tuned_linear_fp8_matches_its_reference(rng, rung, M, N, K, block):
    """Blocks are added in another order: one bf16 step, and not often."""
    x, weight = random_bf16(rng, M, K, spread=2.0), random_weight(rng, N, K, block)
    steps = bf16_steps(rung(x, weight), linear_fp8_ref(x, weight))
    print(f"{np.count_nonzero(steps)} of {steps.size} differ, by at most {steps.max()}")
    assert steps.max() <= ONE_ROUNDING
    assert np.count_nonzero(steps) <= 0.02 * steps.size


@every_rung
def test_tuned_linear_fp8_multiplies_every_pair_of_codes(rung):
    codes = np.zeros((256, 64), np.uint8)
    codes[:, 33] = np.arange(256)
    weight = Fp8Weight(codes, np.full((8, 2), 127, np.uint8))
    values = np.nan_to_num(E4M3_VALUES)
    for first in range(0, 256, 4):
        x = np.zeros((4, 64), np.float32)
        x[:, 32], x[:, 33] = 448, values[first : first + 4]  # 448 makes the scale 1
        expected = values[first : first + 4, None] * E4M3_VALUES
        np.testing.assert_array_equal(rung(as_bf16(x), weight).astype(np.float32), expected)


@every_rung
def test_tuned_linear_fp8_scales_each_block_by_its_own(rng, rung):
    # Scales within a factor of 4: under one 2^12 larger, bf16 rounding would hide a block's change
    x, weight = random_bf16(rng, 3, 160), random_weight(rng, 70, 160, exponents=2)
    before = rung(x, weight)
    for i, b in np.ndindex(*weight.scale.shape):
        scale = weight.scale.copy()
        scale[i, b] += 3
        changed = (rung(x, dataclasses.replace(weight, scale=scale)) != before).any(0)
        rows = np.arange(70) // 32 == i
        assert changed[rows].mean() > 0.9 and not changed[~rows].any()


def test_tuned_linear_fp8_decode_quantises_every_amax_as_the_reference(rng):
    """The identity as weight shows the quantised x: each bf16 magnitude with smaller numbers, the largest apart."""
    weight = Fp8Weight(np.eye(64, dtype=np.uint8) * 0x38, np.full((2, 2), 127, np.uint8))
    amax = rng.choice(np.arange(0x7F00, dtype=np.uint16), 160, replace=False)
    x = amax.view(as_bf16(np.zeros(1, np.float32)).dtype).astype(np.float32).reshape(-1, 1)
    x = as_bf16(x * np.append(1, rng.uniform(-1, 1, 31)).astype(np.float32)).reshape(-1, 2, 64)
    for tokens in x[:40]:
        assert same_bits(decode(tokens, weight) + 0, linear_fp8_ref(tokens, weight) + 0)  # + 0: a sum has no -0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_tuned_linear_fp8_decode_keeps_nan_to_its_row_and_column(rng, bad):
    x, weight = random_bf16(rng, 4, 96), random_weight(rng, 40, 96)
    x[1, 40] = bad
    weight.codes[33, 7], weight.scale[0, 2] = 0x7F, 0xFF
    nan = np.isnan(decode(x, weight).astype(np.float32))
    assert nan[1].all() and nan[:, 33].all() and nan[:, :32].all() and nan.sum() == 40 + 3 * 33


def test_tuned_linear_fp8_tokens_do_not_depend_on_each_other(rng):
    x, weight = random_bf16(rng, 4, 1056), random_weight(rng, 20, 1056)
    together = decode(x, weight)
    for first, last in [(0, 1), (1, 3), (1, 4)]:
        assert same_bits(together[first:last], decode(np.ascontiguousarray(x[first:last]), weight))


def test_tuned_linear_fp8_table_picks_plain_on_the_emulator_and_counts_it(rng):
    before = rungs.PICKED.total()
    x, weight = random_bf16(rng, 3, 64), random_weight(rng, 20, 64)
    y = bf16_array(to_host(TUNED.linear(to_device(x), on_device(weight))))
    assert worst_steps(y, linear_fp8_ref(x, weight)) <= ONE_ROUNDING
    assert rungs.PICKED.total() == before + 1


def test_tuned_linear_fp8_of_empty_operands():
    for M, N, K in ((0, 3, 32), (3, 0, 32), (3, 5, 0), (9, 0, 64)):
        weight = Fp8Weight(np.zeros((N, K), np.uint8), np.zeros((-(-N // 32), K // 32), np.uint8))
        y = to_host(TUNED.linear_fp8(to_device(np.zeros((M, K), np.uint16)), on_device(weight)))
        assert same_bits(y, np.zeros((M, N), np.uint16))


@pytest.mark.parametrize("linear", [decode, dequantise], ids=lambda rung: rung.__name__)
def test_tuned_linear_fp8_passes_its_recording(monkeypatch, linear):
    """Every fp8 linear of the layers by one rung, at most 4 tokens at a time for decode."""

    def by_rung(x, weight):
        parts = [linear(bf16_array(to_host(x))[m : m + 4], weight) for m in range(0, x.shape[0], 4)]
        return to_device(np.concatenate(parts))

    ops = dataclasses.replace(TUNED, linear=lambda x, w: (by_rung if isinstance(w, Fp8Weight) else TUNED.linear)(x, w))
    checkpoint = Checkpoint(golden.FOLDER / "tiny-fp8-weights.safetensors", cfg=TINY, linear="fp8")
    recording = Recording(golden.FOLDER / "tiny-fp8-linear.safetensors")
    report = check(recording, TINY, checkpoint.layer, ops)
    assert [str(mismatch) for _, mismatch in report.mismatches()] == []


@pytest.mark.parametrize(
    "M, N, K, block, capability, aligned, rung, reason",
    [
        (1, 32768, 1280, (32, 32), (9, 0), True, "decode", "1 of at most 4 tokens"),
        (4, 5120, 8192, (32, 32), (8, 9), True, "decode", "4 of at most 4 tokens"),
        (4, 5120, 8224, (32, 32), (9, 0), True, "plain", "a multiple of 32 columns up to 8192"),
        (4, 5120, 8192, (24, 32), (9, 0), True, "plain", "a multiple of 16 rows"),
        (4, 5120, 8160, (32, 96), (9, 0), True, "plain", "32, 64, 128"),
        (4, 5120, 8192, (32, 32), (9, 0), False, "plain", "multiples of 16 bytes"),
        (4, 5120, 8192, (32, 32), (8, 6), True, "plain", "8.6 has no conversion from e4m3"),
        (5, 5120, 8192, (32, 32), (9, 0), True, "dequantise", "more than 4 tokens"),
        (2048, 5120, 8192, (32, 32), (8, 0), False, "dequantise", "more than 4 tokens"),
        (2048, 5120, 8192, (32, 32), (7, 5), True, "plain", "7.5 has no mma.sync"),
        (1, 32768, 1280, (32, 32), (0, 0), True, "plain", "no GPU"),
        (0, 32768, 1280, (32, 32), (9, 0), True, "plain", "empty"),
    ],
)
def test_tuned_linear_fp8_pick_says_which_rung_and_why(M, N, K, block, capability, aligned, rung, reason):
    choice = rungs.pick(M, N, K, block, capability, aligned)
    assert choice.rung == rung and reason in choice.reason


def test_tuned_linear_fp8_refuses_bad_input(rng):
    with pytest.raises(ValueError, match=r"x, weight: expected 1 to 4 rows of x, got 5"):
        decode(random_bf16(rng, 5, 64), random_weight(rng, 3, 64))
    with pytest.raises(ValueError, match=r"x, weight: expected blocks of a multiple of 16 rows .* got \(5, 64\)"):
        decode(random_bf16(rng, 2, 64), random_weight(rng, 7, 64, (5, 64)))
    with pytest.raises(ValueError, match=r"weight.codes: expected shape \[\*, 64\], got \[3, 32\]"):
        TUNED.linear_fp8(to_device(random_bf16(rng, 2, 64)), on_device(random_weight(rng, 3, 32)))


def test_tuned_linear_fp8_shares_rows_where_there_are_few():
    from dsv41_numba.tuned.linear_fp8_decode import split_bits

    sizes = {(32768, 1280): 0, (5120, 8192): 3, (4096, 1280): 2, (1280, 5120): 3, (512, 5120): 3, (16, 64): 0}
    assert {size: split_bits(*size) for size in sizes} == sizes


def codes_kernel(first_e4m3_as_f16, last_e4m3_as_f16, pack_e4m3):
    @cuda.jit
    def kernel(words, floats, halves, codes):
        i = cuda.grid(1)
        if i < words.shape[0]:
            halves[i, 0], halves[i, 1] = first_e4m3_as_f16(words[i]), last_e4m3_as_f16(words[i])
        if i < floats.shape[0]:
            codes[i] = uint32(pack_e4m3(floats[i, 0], floats[i, 1], floats[i, 2], floats[i, 3]))

    return kernel


def test_tuned_linear_fp8_instructions_convert_every_code_and_round_as_the_format():
    """On a GPU the instructions, elsewhere their stand-ins: both are held to NumPy's f16 and the format's encoder."""
    from dsv41_numba.tuned import ptx

    every = np.arange(256, dtype=np.uint8)
    # each value of the format, its neighbours half way and just beside it, zeros, the ends, what has no number
    finite = np.sort(E4M3_VALUES[np.isfinite(E4M3_VALUES)])
    middle = (finite[1:] + finite[:-1]) / 2
    above, below = (np.nextafter(middle, np.float32(end)) for end in (1e9, -1e9))
    special = np.float32([0, -0.0, 464, 1e30, -1e30, np.inf, -np.inf, 1e-40, np.nan])
    floats = np.concatenate([finite, middle, above, below, special])
    floats = np.resize(floats, (-(-len(floats) // 4), 4)).astype(np.float32)
    words = np.stack([every, every[::-1], np.roll(every, 3), np.roll(every, 77)], 1).copy().view(np.uint32)[:, 0]
    halves, codes = empty((256, 2), np.uint32), empty(len(floats), np.uint32)
    kernel = codes_kernel(ptx.first_e4m3_as_f16, ptx.last_e4m3_as_f16, ptx.pack_e4m3)
    launch(kernel, 4, 128, to_device(words), to_device(floats), halves, codes)
    got = to_host(halves).view(np.float16).reshape(256, 4)
    expected = E4M3_VALUES[words.view(np.uint8).reshape(256, 4)].astype(np.float16)
    np.testing.assert_array_equal(got, expected)
    assert (np.signbit(got) == np.signbit(expected))[~np.isnan(expected)].all()
    assert np.array_equal(to_host(codes).view(np.uint8).reshape(-1, 4), f32_to_e4m3(floats))
