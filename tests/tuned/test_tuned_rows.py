"""The fused rows: every bit is that of the four stages one after the other."""

import numpy as np
import pytest

from conftest import random_bf16
from dsv41_numba.formats.packed_rows import COMPRESSED, INDEX_KEY, WINDOW, PackedRows
from dsv41_numba.ops import PLAIN, REFERENCE
from dsv41_numba.ops.packed_rows import pack_rows_ref
from dsv41_numba.ops.rope import freqs_table, yarn_freqs
from dsv41_numba.runtime.backend import to_device, to_host
from dsv41_numba.tuned import rows

POSITIONS = 300


def table(rope_dim, positions=POSITIONS):
    freqs = yarn_freqs(rope_dim, 160000.0, 64, 16.0, 32.0, 1.0)
    return freqs_table(freqs, np.arange(positions))


def device(*arrays):
    return [to_device(a) for a in arrays]


def poisoned(*shape):
    return to_device(np.full(shape, 0xFFFF, np.uint16))


def poisoned_rows(format, N, D):
    """Packed rows of which nothing is written yet; 0xFF is no code of a latent's or a window's scale but NaN."""
    return PackedRows.new(format, N, D, lambda shape, dtype: to_device(np.full(shape, 0xFF, dtype)))


def host(rows):
    """Everything that rows hold, in bytes: packed ones have two arrays."""
    return [to_host(a) for a in ((rows.codes, rows.scales) if isinstance(rows, PackedRows) else (rows,))]


def assert_same_rows(got, expected):
    for one, other in zip(host(got), host(expected), strict=True):
        np.testing.assert_array_equal(one, other)


def weight(rng, D):
    return (1 + 0.3 * rng.standard_normal(D)).astype(np.float32)


@pytest.mark.parametrize("T", [1, 2, 7, 8, 9, 33])
@pytest.mark.parametrize("D, rope_dim", [(512, 64), (64, 16), (128, 64), (32, 4), (96, 10), (576, 64)])
def test_tuned_rows_of_kv_have_the_bits_of_the_stages(rng, T, D, rope_dim):
    y, gain, tables = random_bf16(rng, T, D), weight(rng, D), table(rope_dim)
    W, start = 5, 13
    old = random_bf16(rng, W, D)
    ring, plain_ring = (to_device(old.copy()) for _ in range(2))
    arguments = device(y, gain)
    got = rows.kv_rows(*arguments, 1e-6, *device(*tables), start, ring)
    expected = PLAIN.kv_rows(*arguments, 1e-6, *device(*tables), start, plain_ring)
    np.testing.assert_array_equal(to_host(got), to_host(expected))
    np.testing.assert_array_equal(to_host(ring), to_host(plain_ring))


@pytest.mark.parametrize("n, ratio, start", [(1, 1, 0), (5, 2, 7), (3, 4, 8), (40, 1, 3)])
@pytest.mark.parametrize("D, rope_dim", [(128, 64), (32, 16), (64, 16)])
def test_tuned_rows_of_index_keys_have_the_bits_of_the_stages(rng, n, ratio, start, D, rope_dim):
    y, gain = device(random_bf16(rng, n, D), weight(rng, D))
    tables = device(*table(rope_dim))
    caches = [poisoned(50, D) for _ in range(2)]
    got = rows.index_key_rows(y, gain, 1e-6, *tables, start, ratio, caches[0])
    expected = PLAIN.index_key_rows(y, gain, 1e-6, *tables, start, ratio, caches[1])
    np.testing.assert_array_equal(to_host(got), to_host(expected))
    np.testing.assert_array_equal(to_host(caches[0]), to_host(caches[1]))


@pytest.mark.parametrize("n, ratio, start", [(1, 2, 1), (6, 2, 6), (33, 1, 2)])
@pytest.mark.parametrize("D, rope_dim", [(512, 64), (64, 16), (48, 8)])
def test_tuned_rows_of_latents_have_the_bits_of_the_stages(rng, n, ratio, start, D, rope_dim):
    (latent,) = device(random_bf16(rng, n, D))
    tables = device(*table(rope_dim))
    caches = [poisoned(40, D) for _ in range(2)]
    got = rows.latent_rows(latent, *tables, start, ratio, caches[0])
    expected = PLAIN.latent_rows(latent, *tables, start, ratio, caches[1])
    np.testing.assert_array_equal(to_host(got), to_host(expected))
    np.testing.assert_array_equal(to_host(caches[0]), to_host(caches[1]))


@pytest.mark.parametrize("T", [1, 2, 9, 33])
@pytest.mark.parametrize("D, rope_dim", [(512, 64), (64, 16), (96, 10), (576, 64)])
def test_tuned_rows_are_packed_as_the_stages_pack_them(rng, T, D, rope_dim):
    y, gain = device(random_bf16(rng, T, D), weight(rng, D))
    tables = device(*table(rope_dim))
    rings, latents, keys = ([poisoned_rows(kind, N, D) for _ in range(2)]
                            for kind, N in ((WINDOW, 5), (COMPRESSED, 60), (INDEX_KEY, 60)))  # fmt: skip
    for stage, arguments, caches in (
        ("kv_rows", (y, gain, 1e-6, *tables, 13), rings),
        ("latent_rows", (y, *tables, 7, 2), latents),
        ("index_key_rows", (y, gain, 1e-6, *tables, 8, 1), keys),
    ):
        got, expected = (getattr(ops, stage)(*arguments, cache) for ops, cache in zip((rows, PLAIN), caches))
        assert got.shape == (T, D)
        assert_same_rows(got, expected)
        assert_same_rows(*caches)


@pytest.mark.parametrize("T, Hi", [(1, 4), (3, 5), (2, 32)])
@pytest.mark.parametrize("D, rope_dim", [(128, 64), (32, 16)])
def test_tuned_rows_of_index_queries_have_the_bits_of_the_stages(rng, T, Hi, D, rope_dim):
    (y,) = device(random_bf16(rng, T, Hi, D))
    tables = device(*table(rope_dim))
    got = rows.index_query_rows(y, *tables, 21)
    np.testing.assert_array_equal(to_host(got), to_host(PLAIN.index_query_rows(y, *tables, 21)))


@pytest.mark.parametrize(
    "stage, format",
    [
        ("fp8_round_trip", WINDOW),
        ("fp4_round_trip_e8m0", INDEX_KEY),
        ("fp4_round_trip_e4m3", COMPRESSED),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_tuned_rows_quantise_every_bf16_pattern_as_the_reference_does(rng, stage, format):
    """Each pattern in a block of numbers of its own size, so that all codes and scales are met, the ends too; as values
    and as packed rows."""
    block = format.block
    patterns = rng.permutation(np.arange(1 << 16, dtype=np.uint16).repeat(2))
    near = (patterns.astype(np.int32)[:, None] + rng.integers(-300, 300, (patterns.size, block - 1))) % (1 << 16)
    blocks = np.concatenate([patterns[:, None], near.astype(np.uint16)], axis=1)
    blocks = np.concatenate([blocks, np.arange(1 << 16, dtype=np.uint16).reshape(-1, block)])
    x = blocks.reshape(-1, 128)
    y, unturned = poisoned(*x.shape), device(*(np.zeros((len(x), 0), np.float32) for _ in range(2)))
    rows._launch(format, to_device(x), None, 0.0, *unturned, 0, 1, 1, y, None)
    got = to_host(y)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        expected = getattr(REFERENCE, stage)(x.view(REFERENCE.bf16)).view(np.uint16)
        reference = pack_rows_ref(x.view(REFERENCE.bf16), format)
    nan = np.isnan(expected.view(REFERENCE.bf16).astype(np.float32))
    np.testing.assert_array_equal(np.isnan(got.view(REFERENCE.bf16).astype(np.float32)), nan)
    np.testing.assert_array_equal(got[~nan], expected[~nan])
    packed = poisoned_rows(format, *x.shape)
    rows._launch(format, to_device(x), None, 0.0, *unturned, 0, 1, 1, None, packed)
    np.testing.assert_array_equal(to_host(packed.codes), reference.codes)
    np.testing.assert_array_equal(to_host(packed.scales), reference.scales)
    np.testing.assert_array_equal(PLAIN.to_host(packed).view(np.uint16), expected)


def test_tuned_rows_read_the_position_from_device_memory(rng):
    y, gain = device(random_bf16(rng, 1, 64), weight(rng, 64))
    tables = device(*table(16))
    position = to_device(np.array([77], np.int64))
    rings = [poisoned(8, 64) for _ in range(2)]
    got = rows.kv_rows(y, gain, 1e-6, *tables, position, rings[0])
    expected = PLAIN.kv_rows(y, gain, 1e-6, *tables, 77, rings[1])
    np.testing.assert_array_equal(to_host(got), to_host(expected))
    np.testing.assert_array_equal(to_host(rings[0]), to_host(rings[1]))
    caches = [poisoned(40, 64) for _ in range(2)]
    assert rows.latent_rows(y, *tables, position, 2, caches[0]) is None
    PLAIN.latent_rows(y, *tables, 77, 2, caches[1])
    np.testing.assert_array_equal(to_host(caches[0]), to_host(caches[1]))


def test_tuned_rows_refuse_what_does_not_fit(rng):
    y, gain = device(random_bf16(rng, 3, 64), weight(rng, 64))
    tables = device(*table(16, positions=10))
    with pytest.raises(ValueError, match=r"ring: expected shape \[\*, 64\], got \[4, 32\]"):
        rows.kv_rows(y, gain, 1e-6, *tables, 0, poisoned(4, 32))
    with pytest.raises(ValueError, match=r"positions within the table's 0\.\.9, step >= 1, got 8\.\.10"):
        rows.kv_rows(y, gain, 1e-6, *tables, 8, poisoned(4, 64))
    with pytest.raises(ValueError, match=r"cache: expected room for rows 2 to 4, got 4 rows"):
        rows.latent_rows(y, *tables, 2, 1, poisoned(4, 64))
    with pytest.raises(ValueError, match="cache: expected packed compressed rows, got window rows"):
        rows.latent_rows(y, *tables, 2, 1, poisoned_rows(WINDOW, 8, 64))
    with pytest.raises(ValueError, match=r"ring.codes: expected shape \[\*, 64\], got \[4, 32\]"):
        rows.kv_rows(y, gain, 1e-6, *tables, 0, poisoned_rows(WINDOW, 4, 32))
    with pytest.raises(ValueError, match="multiple of 32"):
        rows.index_query_rows(to_device(random_bf16(rng, 1, 2, 48)), *tables, 0)
    with pytest.raises(ValueError, match=r"weight: expected shape \[64\]"):
        rows.kv_rows(y, to_device(weight(rng, 32)), 1e-6, *tables, 0, poisoned(4, 64))
