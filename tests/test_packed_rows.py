"""Packed rows: what is stored, what comes back, and that nobody who reads them can tell."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numba import cuda

from conftest import random_bf16
from dsv41_numba.compare import bf16_array, same_bits
from dsv41_numba.formats.bf16 import BF16
from dsv41_numba.formats.e2m1 import e2m1_to_packed
from dsv41_numba.formats.packed_rows import COMPRESSED, INDEX_KEY, WINDOW, PackedRows, RowFormat
from dsv41_numba.ops import PLAIN, REFERENCE
from dsv41_numba.ops.packed_rows import pack_rows, pack_rows_ref, pack_values, row_word, write_rows, write_rows_ref
from dsv41_numba.runtime.backend import empty, launch, to_device, to_host
from dsv41_numba.stack import AttnV41
from dsv41_numba.weights import random_weights
from geometries import GEOMETRIES, SMALL, geometry, random_x

FORMATS = (WINDOW, COMPRESSED, INDEX_KEY)
every_format = pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
ROUND_TRIP = {
    WINDOW: REFERENCE.fp8_round_trip,
    COMPRESSED: REFERENCE.fp4_round_trip_e4m3,
    INDEX_KEY: REFERENCE.fp4_round_trip_e8m0,
}


def bits(values):
    return values.view(np.uint16)


def every_row(format: RowFormat) -> PackedRows:
    """Rows that hold every code under every scale byte: a row a scale, whose blocks go through the codes."""
    codes = np.arange(256, dtype=np.uint8)
    if format.codes_in_byte == 2:
        codes = e2m1_to_packed(np.resize(np.arange(16, dtype=np.uint8), 256))
    D = codes.size * format.codes_in_byte
    scales = np.repeat(np.arange(256, dtype=np.uint8)[:, None], D // format.block, 1)
    return PackedRows(format, np.tile(codes, (256, 1)), scales)


def every_pattern(format: RowFormat) -> np.ndarray:
    """[1024, 8 * block] bf16 with every pattern, in blocks of numbers of all sizes and in blocks of like ones."""
    rng = np.random.default_rng(11)
    patterns = np.arange(1 << 16, dtype=np.uint16)
    return np.concatenate([patterns, rng.permutation(patterns)]).reshape(-1, 8 * format.block).view(BF16)


@cuda.jit
def words_kernel(codes, scales, words):
    """One thread a word of two bf16."""
    i = cuda.grid(1)
    n, m = i // words.shape[1], i % words.shape[1]
    if n < words.shape[0]:
        words[n, m] = row_word(codes, scales, n, m, words.shape[1])


def read_by_kernel(rows: PackedRows) -> np.ndarray:
    N, D = rows.shape
    words = empty((N, D // 2), np.uint32)
    device = rows.planes(to_device)
    launch(words_kernel, -(-N * D // 512), 256, device.codes, device.scales, words)
    return bf16_array(to_host(words).view(np.uint16))


@every_format
def test_packed_rows_of_every_code_and_scale_are_what_ml_dtypes_multiplies(format):
    rows = every_row(format)
    codes, kind = rows.codes, ml_dtypes.float8_e4m3fn
    if format.codes_in_byte == 2:
        codes = np.stack([codes & 0xF, codes >> 4], -1).reshape(len(codes), -1)
        kind = ml_dtypes.float4_e2m1fn
    values = codes.view(kind).astype(np.float64)
    scale_kind = ml_dtypes.float8_e8m0fnu if format.scale == "e8m0" else ml_dtypes.float8_e4m3fn
    scales = np.repeat(rows.scales.view(scale_kind).astype(np.float64), format.block, 1)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = (values * scales).astype(np.float32).astype(BF16)  # both steps round the few bits exactly
    got = rows.to_bf16()
    nan = np.isnan(expected)
    assert nan.any() and np.array_equal(np.isnan(got), nan)
    assert np.array_equal(bits(got)[~nan], bits(expected)[~nan])


@pytest.mark.parametrize("format", [WINDOW, COMPRESSED], ids=lambda format: format.name)
def test_packed_rows_are_read_by_kernels_as_on_the_host(format):
    rows = every_row(format)
    got, expected = read_by_kernel(rows), rows.to_bf16()
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(got), nan) and np.array_equal(bits(got)[~nan], bits(expected)[~nan])


@every_format
def test_packed_rows_come_back_as_the_round_trip_of_every_bf16_pattern(format):
    x = every_pattern(format)
    with np.errstate(invalid="ignore"):
        expected, packed = ROUND_TRIP[format](x), pack_rows_ref(x, format)
    assert np.isnan(expected).any() and (format is COMPRESSED or np.isinf(expected).any())
    assert (bits(expected) == 0x8000).any()  # a zero with its sign
    assert np.array_equal(bits(packed.to_bf16()), bits(expected))
    by_kernel = pack_rows(to_device(x), format)
    assert same_bits(to_host(by_kernel.codes), packed.codes) and same_bits(to_host(by_kernel.scales), packed.scales)
    assert np.array_equal(bits(PLAIN.to_host(by_kernel)), bits(expected))


# The scale bytes that a quantiser gives to a block that holds its largest code: from the floor to bf16's end
GIVEN_SCALES = {WINDOW: range(105, 247), COMPRESSED: range(1, 0x7F), INDEX_KEY: range(1, 253)}


@every_format
def test_packed_rows_packing_what_was_read_gives_every_code_and_scale_again(format):
    """Every code in each block's turn, beside the largest one, under every scale byte that such a block can have."""
    codes_of = 256 if format.codes_in_byte == 1 else 16
    codes = np.array([code for code in range(codes_of) if codes_of == 16 or code & 0x7F != 0x7F], np.uint8)
    largest = 0x7E if codes_of == 256 else 0x7
    blocks = [[largest, *np.resize(codes[i:], format.block - 1)] for i in range(0, len(codes), format.block - 1)]
    row = np.concatenate(blocks).astype(np.uint8)
    one_byte = row if format.codes_in_byte == 1 else e2m1_to_packed(row)
    scales = np.array(GIVEN_SCALES[format], np.uint8)
    rows = PackedRows(format, np.tile(one_byte, (scales.size, 1)), np.repeat(scales[:, None], len(blocks), 1))
    values = rows.to_bf16()
    assert np.isfinite(values).all() and set(row) == set(codes)
    for again in (pack_rows_ref(values, format), pack_rows(to_device(values), format).planes(to_host)):
        assert same_bits(again.codes, rows.codes) and same_bits(again.scales, rows.scales)


@every_format
@pytest.mark.parametrize("N", [1, 2, 17])
def test_packed_rows_take_the_bytes_of_their_format(rng, format, N):
    """Odd numbers of rows and of blocks; the last block of a launch is not full."""
    D = 3 * format.block
    x = random_bf16(rng, N, D)
    rows = pack_rows(to_device(x), format)
    assert rows.shape == (N, D) and rows.nbytes == N * format.row_bytes(D)
    assert same_bits(PLAIN.to_host(rows), ROUND_TRIP[format](x))
    assert same_bits(PLAIN.to_host(rows[: N // 2 + 1]), ROUND_TRIP[format](x)[: N // 2 + 1])


def test_packed_rows_of_the_edges_are_what_the_docstring_says():
    def row(first, format=WINDOW):
        return pack_rows_ref(np.array([first, -0.0, *[0] * (format.block - 2)], np.float32).astype(BF16)[None], format)

    assert row(0.0).codes.tolist() == [[0, 0x80, *[0] * 30]]
    assert row(0.0, INDEX_KEY).codes[0, 0] == 0x80
    assert bits(row(0.0).to_bf16())[0, :2].tolist() == [0, 0x8000]
    new = PackedRows.new(COMPRESSED, 2, 32, np.zeros)
    assert not bits(new.to_bf16()).any() and not new.codes.any() and not new.scales.any()
    largest = float(ml_dtypes.finfo(BF16).max)
    assert row(largest).to_bf16()[0, 0] == np.inf and row(largest).scales[0, 0] < 255
    assert row(largest, COMPRESSED).to_bf16()[0, 0] == 2688 == row(np.inf, COMPRESSED).to_bf16()[0, 0]
    with np.errstate(invalid="ignore"):
        for format, number in ((WINDOW, np.nan), (WINDOW, np.inf), (INDEX_KEY, -np.inf), (INDEX_KEY, np.nan)):
            assert row(number, format).scales[0, 0] == 255 and np.isnan(row(number, format).to_bf16()).all()
        assert (row(np.nan).codes == 0x7F).all() and not row(np.nan, INDEX_KEY).codes.any()
        assert row(np.nan, COMPRESSED).scales[0, 0] == 0x7F and np.isnan(row(np.nan, COMPRESSED).to_bf16()).all()


@every_format
def test_packed_rows_pack_values_finds_codes_for_every_value_that_a_quantiser_gives(format):
    """Rows near the smallest e4m3 scales too, where quantising again gives others."""
    rng = np.random.default_rng(3)
    sizes = np.exp2(rng.uniform(-22, 8, (400, 4))).repeat(format.block, 1)
    values = ROUND_TRIP[format]((rng.standard_normal(sizes.shape) * sizes).astype(np.float32).astype(BF16))
    assert same_bits(pack_values(values, format).to_bf16(), values)
    again = ROUND_TRIP[format](values)
    changed = (bits(again) != bits(values)).any(-1)
    assert changed.any() == (format is COMPRESSED)
    with pytest.raises(ValueError, match=f"values: expected {format.name}, got row 1, whose entries from "):
        pack_values(np.array([[0.0] * format.block, [1, 1.03] * (format.block // 2)], np.float32).astype(BF16), format)


def test_packed_rows_are_written_as_rows_are(rng):
    rows, old = random_bf16(rng, 9, 64), random_bf16(rng, 5, 64)
    for write, pack, place in ((write_rows_ref, pack_rows_ref, np.asarray), (write_rows, pack_rows, to_device)):
        packed, ring, plain = pack(place(rows), WINDOW), pack(place(old), WINDOW), ROUND_TRIP[WINDOW](old)
        write(packed, ring, 3)
        write_rows_ref(ROUND_TRIP[WINDOW](rows), plain, 3)
        assert same_bits(PLAIN.to_host(ring), plain)
    ring = PackedRows.new(WINDOW, 5, 64, np.zeros)
    with pytest.raises(ValueError, match="rows: expected those that the ring holds, window rows, got bf16"):
        write_rows_ref(rows, ring, 0)
    with pytest.raises(ValueError, match="rows: expected those that the ring holds, window rows, got compressed rows"):
        write_rows_ref(PackedRows.new(COMPRESSED, 2, 64, np.zeros), ring, 0)


patterns = st.integers(0, 0xFFFF).map(np.uint16)


@settings(max_examples=40, deadline=None)
@given(
    window=arrays(np.uint16, (5, 64), elements=patterns),
    compressed=arrays(np.uint16, (7, 64), elements=patterns),
    seed=st.integers(0, 1 << 32),
)
def test_packed_rows_give_the_attention_of_the_values_that_they_stand_for(window, compressed, seed):
    rng = np.random.default_rng(seed)
    idx = rng.integers(-1, 12, (2, 9)).astype(np.int32)
    q, sink = random_bf16(rng, 2, 3, 64), rng.standard_normal(3).astype(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        packed = pack_rows_ref(window.view(BF16), WINDOW), pack_rows_ref(compressed.view(BF16), COMPRESSED)
        values = ROUND_TRIP[WINDOW](window.view(BF16)), ROUND_TRIP[COMPRESSED](compressed.view(BF16))

    def attention(rows):
        on_device = [r.planes(to_device) if isinstance(r, PackedRows) else to_device(r) for r in rows]
        return to_host(PLAIN.sparse_attention(to_device(q), *on_device, to_device(idx), to_device(sink), 0.125))

    expected = attention(values)
    for rows in (packed, (packed[0], values[1]), (values[0], packed[1])):  # either kind alone, too
        assert same_bits(attention(rows), expected)


@pytest.mark.parametrize("T, Hi, Di, G", [(1, 3, 32, 1), (3, 33, 96, 65)])
def test_packed_rows_give_the_scores_of_the_values_that_they_stand_for(rng, T, Hi, Di, G):
    queries, keys = REFERENCE.fp4_round_trip_e8m0(random_bf16(rng, T, Hi, Di)), random_bf16(rng, G, Di)
    weights, packed = random_bf16(rng, T, Hi), pack_rows_ref(keys, INDEX_KEY)
    arguments = to_device(queries), to_device(weights)
    expected = PLAIN.index_score(*arguments, to_device(packed.to_bf16()), 2 * G, 2)
    assert same_bits(to_host(PLAIN.index_score(*arguments, packed.planes(to_device), 2 * G, 2)), to_host(expected))
    assert same_bits(REFERENCE.index_score(queries, weights, packed, 2 * G, 2), to_host(expected))


def test_packed_rows_of_another_format_or_shape_are_refused(rng):
    q, idx, sink = (to_device(a) for a in (random_bf16(rng, 1, 2, 64), np.zeros((1, 1), np.int32), np.zeros(2, "f4")))
    window, compressed, keys = (PackedRows.new(format, 4, 64, empty) for format in FORMATS)

    def attend(window, compressed):
        PLAIN.sparse_attention(q, window, compressed, idx, sink, 0.125)

    with pytest.raises(ValueError, match="window_rows: expected packed window rows, got compressed rows"):
        attend(compressed, compressed)
    with pytest.raises(ValueError, match="compress_rows: expected packed compressed rows, got index keys"):
        attend(window, keys)
    with pytest.raises(ValueError, match=r"compress_rows.codes: expected shape \[\*, 32\], got \[4, 48\]"):
        attend(window, PackedRows.new(COMPRESSED, 4, 96, empty))
    with pytest.raises(ValueError, match=r"window_rows.scales: expected shape \[4, 2\], got \[3, 2\]"):
        attend(PackedRows(WINDOW, window.codes, window.scales[:3]), compressed)
    with pytest.raises(ValueError, match="index_k: expected packed index keys, got window rows"):
        PLAIN.index_score(to_device(random_bf16(rng, 1, 2, 64)), to_device(random_bf16(rng, 1, 2)), window, 3, 1)


@every_format
def test_packed_rows_refuse_a_row_that_is_no_whole_number_of_blocks(rng, format):
    D = format.block + format.block // 2
    with pytest.raises(ValueError, match=f"{format.name}: expected a row of whole blocks of {format.block}, got {D}"):
        PackedRows.new(format, 2, D, np.zeros)
    for pack, place in ((pack_rows_ref, np.asarray), (pack_rows, to_device)):
        with pytest.raises(ValueError, match=f"multiple of {format.block}"):
            pack(place(random_bf16(rng, 2, D)), format)


RATIO_3 = geometry((3, 0, 3), (0,), (0,), None, head_dim=96, index_head_dim=64)
CONFIGS = {"small": SMALL, "ratio 3": RATIO_3} | GEOMETRIES


@pytest.mark.parametrize("ops", [REFERENCE, PLAIN], ids=lambda ops: ops.name)
@pytest.mark.parametrize("name", CONFIGS)
def test_packed_caches_give_the_bits_of_bf16_caches(rng, name, ops):
    """A prompt, tokens after it and a chunk, past the end of the window ring."""
    cfg = CONFIGS[name]

    def model(cache):
        return AttnV41(cfg, lambda layer: random_weights(cfg, layer), ops, "owner", cache=cache)

    packed, plain = model("packed"), model("bf16")
    T = min(cfg.window + 3, cfg.max_seq - 6)
    x = random_x(rng, cfg, T + 6)
    for call in (
        lambda model: model.prefill(x[:, :T]),
        lambda model: model.decode(x[:, T : T + 1]),
        lambda model: model.decode(x[:, T + 1 : T + 2]),
        lambda model: model.decode(x[:, T + 2 : T + 6]),
    ):
        outs, expected = call(packed), call(plain)
        assert all(same_bits(outs[layer], expected[layer]) for layer in expected)
    for layer, state in packed.states.items():
        for array in ("window", "compress_kv", "index_k"):
            if (rows := getattr(state, array)) is not None:
                assert isinstance(rows, PackedRows)
                assert same_bits(ops.to_host(rows), ops.to_host(getattr(plain.states[layer], array)))


def test_packed_caches_go_by_their_name():
    with pytest.raises(ValueError, match="cache: expected one of bf16, packed, got 'fp8'"):
        AttnV41(SMALL, lambda layer: random_weights(SMALL, layer), REFERENCE, cache="fp8")
