"""The fp8 linear: codes on both sides, a scale for each block, blocks added in the order of K."""

import dataclasses

import numpy as np
import pytest

import golden
from conftest import random_bf16
from dsv41_numba.check import check
from dsv41_numba.compare import bf16_array, same_bits, worst_steps
from dsv41_numba.config import TINY
from dsv41_numba.formats.bf16 import BF16, as_bf16
from dsv41_numba.formats.e4m3 import E4M3_VALUES, e4m3_to_f32
from dsv41_numba.formats.e8m0 import E8M0_VALUES, e8m0_to_f32
from dsv41_numba.formats.fp8_weight import Fp8Weight
from dsv41_numba.make_checkpoint import quantise
from dsv41_numba.ops import PLAIN, REFERENCE
from dsv41_numba.ops.linear_fp8 import BLOCK, TILE, fp8_quantise, linear_fp8, linear_fp8_ref
from dsv41_numba.ops.quant_fp8 import THREADS, fp8_quantise_ref, fp8_round_trip_ref
from dsv41_numba.recording import Recording
from dsv41_numba.runtime.backend import to_device, to_host
from dsv41_numba.stack import AttnV41
from dsv41_numba.tuned import sparse_attention as tuned_attention
from dsv41_numba.weights import Checkpoint
from tolerances import ONE_ROUNDING

NAN_CODES, INVALID_SCALE = (0x7F, 0xFF), 0xFF
# M, N, K, block: one off a tile on either side, last blocks of one row and of all but one, every axis another size
SIZES = (
    (1, 1, 32, (32, 32)),
    (TILE - 1, TILE + 1, 64, (32, 32)),
    (TILE + 1, 33, 96, (32, 32)),
    (3, 63, 160, (32, 32)),
    (5, 130, 256, (128, 128)),
    (2, 37, 128, (5, 64)),
    (4, 19, 96, (1, 96)),
)


def random_weight(rng, N, K, block=(32, 32), exponents=12):
    """Codes of every kind but NaN, and scales that differ from block to block by up to 2^exponents."""
    codes = rng.integers(0, 256, (N, K), dtype=np.uint8)
    codes[np.isin(codes, NAN_CODES)] = 0x35
    scale = 127 - rng.integers(0, exponents + 1, (-(-N // block[0]), -(-K // block[1])))
    return Fp8Weight(codes, scale.astype(np.uint8), block)


def on_device(weight):
    return dataclasses.replace(weight, codes=to_device(weight.codes), scale=to_device(weight.scale))


def run(x, weight):
    return bf16_array(to_host(linear_fp8(to_device(x), on_device(weight))))


def one_at_a_time(x, weight):
    """The contract in scalars: f32 after every step, columns of a block in order, blocks in order."""
    codes, sx = fp8_quantise_ref(x)
    y = np.zeros((len(x), weight.shape[0]), np.float32)
    for m, n in np.ndindex(y.shape):
        for b in range(x.shape[1] // BLOCK):
            product = np.float32(0)
            for k in range(b * BLOCK, (b + 1) * BLOCK):
                product = np.float32(product + E4M3_VALUES[codes[m, k]] * E4M3_VALUES[weight.codes[n, k]])
            sw = weight.scale[n // weight.block[0], b * BLOCK // weight.block[1]]
            y[m, n] = np.float32(y[m, n] + product * np.float32(E8M0_VALUES[sx[m, b]] * E8M0_VALUES[sw]))
    return as_bf16(y)


def of_quantised(x, weight):
    """The same product in float64, from the values that the codes stand for: no blocks at all."""
    return as_bf16((fp8_round_trip_ref(x).astype(np.float64) @ weight.to_f32().astype(np.float64).T).astype(np.float32))


@pytest.mark.parametrize("M, N, K, block", SIZES)
def test_linear_fp8_matches_its_reference_and_float64(rng, M, N, K, block):
    x, weight = random_bf16(rng, M, K, spread=2.0), random_weight(rng, N, K, block)
    y = run(x, weight)
    assert worst_steps(y, linear_fp8_ref(x, weight)) <= ONE_ROUNDING
    assert worst_steps(y, of_quantised(x, weight)) <= ONE_ROUNDING
    assert worst_steps(linear_fp8_ref(x, weight), of_quantised(x, weight)) <= ONE_ROUNDING


def test_linear_fp8_has_the_bits_of_the_contract(rng):
    x, weight = random_bf16(rng, 3, 160, spread=2.0), random_weight(rng, 35, 160)
    assert same_bits(run(x, weight), one_at_a_time(x, weight))


def test_linear_fp8_multiplies_every_pair_of_codes():
    """448 in another column makes the activation's scale 1, so an e4m3 value is its own code."""
    x = np.zeros((256, BLOCK), np.float32)
    x[:, 0], x[:, 1] = 448, np.nan_to_num(E4M3_VALUES)
    codes = np.zeros((256, BLOCK), np.uint8)
    codes[:, 1] = np.arange(256)
    weight = Fp8Weight(codes, np.full((8, 1), 127, np.uint8))
    expected = np.nan_to_num(E4M3_VALUES)[:, None] * E4M3_VALUES
    for y in (run(as_bf16(x), weight), linear_fp8_ref(as_bf16(x), weight)):
        np.testing.assert_array_equal(y.astype(np.float32), expected)  # a product of two codes fits bf16


def test_linear_fp8_knows_every_scale_of_a_weight():
    x, codes = np.zeros((2, BLOCK), np.float32), np.zeros((256, BLOCK), np.uint8)
    x[:, 5], codes[:, 5] = (448, -7), 0x3C  # 1.5
    weight = Fp8Weight(codes, np.arange(256, dtype=np.uint8)[:, None], (1, BLOCK))
    with np.errstate(over="ignore"):
        expected = as_bf16(np.float32([[672], [-10.5]]) * E8M0_VALUES)
    assert np.isinf(expected.astype(np.float32)).sum() > 5
    for y in (run(as_bf16(x), weight), linear_fp8_ref(as_bf16(x), weight)):
        np.testing.assert_array_equal(y[:, :255].astype(np.float32), expected[:, :255].astype(np.float32))
        assert np.isnan(y[:, INVALID_SCALE].astype(np.float32)).all()


@pytest.mark.parametrize("sums, expected", [([30, -30, 0], 1), ([0, 30, -30], 0), ([30, 0, -30], 0), ([-30, 30, 0], 1)])
def test_linear_fp8_adds_blocks_in_the_order_of_k(sums, expected):
    """1 is lost beside 2^30, and not after the two big blocks have taken each other away."""
    x = np.zeros((1, 3 * BLOCK), np.float32)
    x[0, ::BLOCK] = 1
    codes = np.zeros((1, 3 * BLOCK), np.uint8)
    codes[0, ::BLOCK] = [0xB8 if power < 0 else 0x38 for power in sums]  # -1 or 1
    weight = Fp8Weight(codes, np.array([[127 + abs(power) for power in sums]], np.uint8))
    for y in (run(as_bf16(x), weight), linear_fp8_ref(as_bf16(x), weight)):
        assert y.astype(np.float32).tolist() == [[expected]]


def test_linear_fp8_scales_a_block_before_it_adds_the_next(rng):
    """Each block and each row of blocks has its own scale: moving any of them moves only what it belongs to."""
    x, weight = random_bf16(rng, 3, 96), random_weight(rng, 70, 96)
    before = run(x, weight)
    for i, b in np.ndindex(3, 3):
        scale = weight.scale.copy()
        scale[i, b] += 3
        changed = (run(x, dataclasses.replace(weight, scale=scale)).view(np.uint16) != before.view(np.uint16)).any(0)
        rows = np.arange(70) // 32 == i
        assert changed[rows].all() and not changed[~rows].any()


def test_linear_fp8_rows_and_columns_do_not_depend_on_their_neighbours(rng):
    x, weight = random_bf16(rng, 18, 64), random_weight(rng, 40, 64)
    together = run(x, weight)
    assert same_bits(together[17:], run(x[17:], weight))
    lower = Fp8Weight(weight.codes[32:], weight.scale[1:])
    assert same_bits(np.ascontiguousarray(together[:, 32:]), run(x, lower))


def test_linear_fp8_of_the_doubled_row_is_doubled_exactly(rng):
    """The scale doubles and the codes stay."""
    x, weight = random_bf16(rng, 5, 64), random_weight(rng, 20, 64)
    y = run(x, weight).astype(np.float32)
    np.testing.assert_array_equal(run(as_bf16(2 * x.astype(np.float32)), weight).astype(np.float32), 2 * y)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_linear_fp8_keeps_nan_to_its_row_and_column(rng, bad):
    x, weight = random_bf16(rng, 4, 64), random_weight(rng, 40, 64)
    x[1, 40] = bad
    weight.codes[33, 7] = 0x7F
    for y in (run(x, weight), linear_fp8_ref(x, weight)):
        nan = np.isnan(y.astype(np.float32))
        assert nan[1].all() and nan[:, 33].all() and nan.sum() == 40 + 3


@pytest.mark.parametrize("M, N, K", [(0, 3, 32), (3, 0, 32), (3, 5, 0), (0, 0, 0)])
def test_linear_fp8_of_empty_operands(M, N, K):
    """The sum of no products is 0."""
    weight = Fp8Weight(np.zeros((N, K), np.uint8), np.zeros((-(-N // 32), K // 32), np.uint8))
    y = to_host(linear_fp8(to_device(np.zeros((M, K), np.uint16)), on_device(weight)))
    assert same_bits(y, np.zeros((M, N), np.uint16))
    assert same_bits(linear_fp8_ref(np.zeros((M, K), BF16), weight), np.zeros((M, N), BF16))


def test_fp8_quantise_reproduces_the_recorded_bytes():
    recorded = golden.load("stages")
    codes, scale = map(to_host, fp8_quantise(to_device(recorded["fp8.x"])))
    assert np.array_equal(codes, recorded["fp8.codes"])
    assert np.array_equal(scale[:, 0], recorded["fp8.scales"])


def test_fp8_quantise_matches_its_reference_for_every_amax(rng):
    """Every bf16 pattern, NaN and infinities too, beside smaller numbers of its block."""
    x = np.arange(1 << 16, dtype=np.uint16).view(BF16)[:, None].astype(np.float32)
    with np.errstate(invalid="ignore"):
        x = as_bf16(x * np.append(1, rng.uniform(-1, 1, BLOCK - 1)).astype(np.float32))
    expected = fp8_quantise_ref(x)
    for got, wanted in zip(map(to_host, fp8_quantise(to_device(x))), expected):
        assert same_bits(got, wanted)
    assert (expected[1] == 0xFF).sum() == 2 * 128  # the patterns without a number


@pytest.mark.parametrize("shape", [(1, 32), (3, 96), (2 * THREADS // BLOCK + 1, 32), (33, 64)])
def test_fp8_quantise_matches_its_reference_at_every_shape(rng, shape):
    x = random_bf16(rng, *shape, spread=3.0)
    for got, wanted in zip(map(to_host, fp8_quantise(to_device(x))), fp8_quantise_ref(x)):
        assert same_bits(got, wanted)


def test_linear_fp8_of_a_quantised_matrix_is_near_the_matrix(rng):
    """What both quantisations cost: an e4m3 code is within 2^-4 of its number, and the errors are independent."""
    x, matrix = random_bf16(rng, 6, 512, spread=0.0), random_bf16(rng, 64, 512, spread=0.0)
    y = linear_fp8_ref(x, Fp8Weight(*quantise(matrix, (32, 32)))).astype(np.float64)
    exact = x.astype(np.float64) @ matrix.astype(np.float64).T
    assert 0.01 < np.linalg.norm(y - exact) / np.linalg.norm(exact) < 2**0.5 * 2.0**-4


@pytest.mark.parametrize("ops", [REFERENCE, PLAIN], ids=lambda ops: ops.name)
def test_linear_fp8_is_the_tables_linear_of_such_a_weight(rng, ops):
    x, weight = random_bf16(rng, 3, 64), random_weight(rng, 10, 64)
    there = dataclasses.replace(weight, codes=ops.to_device(weight.codes), scale=ops.to_device(weight.scale))
    matrix = as_bf16(weight.to_f32())
    of_codes, of_bf16 = (ops.to_host(ops.linear(ops.to_device(x), w)) for w in (there, ops.to_device(matrix)))
    assert worst_steps(of_codes, linear_fp8_ref(x, weight)) <= ONE_ROUNDING
    assert worst_steps(of_bf16, REFERENCE.linear(x, matrix)) <= ONE_ROUNDING
    assert worst_steps(of_codes, of_bf16) > ONE_ROUNDING


def test_linear_fp8_refuses_bad_input(rng):
    x, weight = to_device(random_bf16(rng, 2, 64)), on_device(random_weight(rng, 40, 64))
    with pytest.raises(ValueError, match=r"x: expected a last axis that is a multiple of 32, got shape \[2, 48\]"):
        linear_fp8(to_device(random_bf16(rng, 2, 48)), Fp8Weight(np.zeros((3, 48), np.uint8), np.zeros((1, 2))))
    with pytest.raises(ValueError, match="x: expected a last axis that is a multiple of 32"):
        linear_fp8_ref(random_bf16(rng, 2, 48), Fp8Weight(np.zeros((3, 48), np.uint8), np.zeros((1, 2), np.uint8)))
    with pytest.raises(ValueError, match=r"weight: expected an Fp8Weight, got ndarray|DeviceNDArray"):
        linear_fp8(x, to_device(np.zeros((3, 64), np.uint8)))
    with pytest.raises(ValueError, match=r"weight.codes: expected shape \[\*, 64\], got \[40, 32\]"):
        linear_fp8(x, on_device(random_weight(rng, 40, 32)))
    with pytest.raises(ValueError, match=r"weight.scale: expected shape \[2, 2\], got \[1, 2\]"):
        linear_fp8(x, dataclasses.replace(weight, scale=weight.scale[:1]))
    with pytest.raises(ValueError, match=r"weight.scale: expected dtype uint8, got float32"):
        linear_fp8(x, dataclasses.replace(weight, scale=to_device(np.ones((2, 2), np.float32))))
    with pytest.raises(ValueError, match=r"weight.block: expected columns that are a multiple of 32, .* got 16"):
        linear_fp8(x, on_device(random_weight(rng, 40, 64, (32, 16))))
    with pytest.raises(ValueError, match=r"weight.block: expected an integer of at least 1, got 0"):
        linear_fp8(x, dataclasses.replace(weight, block=(0, 32)))
    with pytest.raises(ValueError, match=r"weight.block: expected rows and columns, got \(32,\)"):
        linear_fp8(x, dataclasses.replace(weight, block=(32,)))
    with pytest.raises(ValueError, match="x: expected dtype uint16, got float32"):
        linear_fp8(to_device(np.ones((2, 64), np.float32)), weight)
    with pytest.raises(ValueError, match=r"x: expected shape \[M, K\], got \[64\]"):
        linear_fp8(to_device(np.zeros(64, np.uint16)), weight)


def test_fp8_weight_has_the_values_of_its_codes(rng):
    weight = random_weight(rng, 40, 72)
    assert weight.shape == (40, 72) and weight.nbytes == 40 * 72 + 2 * 3
    values = weight.to_f32()
    for n, k in [(0, 0), (31, 31), (32, 32), (39, 71)]:
        assert values[n, k] == e4m3_to_f32(weight.codes[n, k]) * e8m0_to_f32(weight.scale[n // 32, k // 32])


# the whole layer
@pytest.fixture(scope="module")
def checkpoint():
    return Checkpoint(golden.FOLDER / "tiny-fp8-weights.safetensors", cfg=TINY, linear="fp8")


def test_linear_fp8_chain_has_the_recorded_bits_with_the_official_probabilities(checkpoint):
    """Chained, `out` is off by what f32 probabilities do: with those of the official kernel no bit is. So the wider
    limit that `rules.RULES` gives to `out` hides nothing of the linears."""
    ops = dataclasses.replace(REFERENCE, sparse_attention=tuned_attention.sparse_attention_ref)
    report = check(Recording(golden.FOLDER / "tiny-fp8-linear.safetensors"), TINY, checkpoint.layer, ops)
    for stage in ("qr", "q", "kv", "index_q", "og", "out"):
        assert report.chained[stage].differ == 0, stage
    assert report.chained["out"].elements == 61440


@pytest.mark.parametrize("ops", [REFERENCE, PLAIN], ids=lambda ops: ops.name)
def test_linear_fp8_weights_live_where_the_tables_arrays_do(checkpoint, ops, rng):
    model = AttnV41(TINY, checkpoint.layer, ops, layers=[0])
    model.prefill({0: random_bf16(rng, 3, TINY.dim)})
    weight = model._layer_weights(0).wq_b
    assert isinstance(weight, Fp8Weight) and weight.block == TINY.weight_block
    assert type(weight.codes) is type(ops.to_device(np.zeros(1, np.uint8)))
    assert same_bits(ops.to_host(weight.codes), checkpoint.layer(0).wq_b.codes)
