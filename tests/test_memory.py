"""What the caches take: bf16 as they are allocated, packed as their codes and scales count."""

import dataclasses
import json
from fractions import Fraction

import numpy as np
import pytest

from dsv41_numba.caches import CACHES, AttnV41LayerState
from dsv41_numba.cli import main
from dsv41_numba.config import FLASH, TINY
from dsv41_numba.formats.e2m1 import e2m1_to_packed
from dsv41_numba.formats.packed_rows import PackedRows
from dsv41_numba.memory import as_json, caches, caches_of_layer, token_bytes, totals
from dsv41_numba.numbers import numbers
from dsv41_numba.ops import REFERENCE
from dsv41_numba.ops.quant_fp4 import fp4_quantise_e4m3_ref, fp4_quantise_e8m0_ref
from dsv41_numba.ops.quant_fp8 import fp8_quantise_ref
from dsv41_numba.roles import roles
from dsv41_numba.runtime import backend
from dsv41_numba.show.dry_run import empty_state
from dsv41_numba.stack import AttnV41
from geometries import GEOMETRIES, SMALL, geometry, random_x
from test_real_size import used_bytes

MACHINE = backend.current()
CONFIGS = {"tiny": TINY, "small": SMALL} | GEOMETRIES
# a ratio that divides neither the length nor 890, and an index key of more than one block
RATIO_3 = geometry((3, 3), (0,), (0,), None, head_dim=96, index_head_dim=64, max_seq=50)
MIB = 1 << 20


def bytes_of(state):
    """The arrays of a state: name -> (rows, bytes of a row)."""

    def row_bytes(array):
        planes = (array.codes, array.scales) if isinstance(array, PackedRows) else (array,)
        return sum(plane.dtype.itemsize * int(np.prod(plane.shape[1:])) for plane in planes)

    arrays = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    return {name: (array.shape[0], row_bytes(array)) for name, array in arrays.items() if hasattr(array, "shape")}


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("name", CONFIGS)
def test_memory_is_what_a_state_allocates(name, kind):
    cfg = CONFIGS[name]
    for tokens in sorted({1, 2, 3, cfg.max_seq // 2, cfg.max_seq - 1, cfg.max_seq}):
        shorter = dataclasses.replace(cfg, max_seq=tokens)
        for role in roles(cfg):
            state, found = AttnV41LayerState.new(shorter, role, REFERENCE, kind), caches_of_layer(cfg, role, tokens)
            assert {cache.name: (cache.rows, getattr(cache, f"row_{kind}")) for cache in found} == bytes_of(state)
            assert sum(getattr(cache, kind) for cache in found) == state.nbytes()


@pytest.mark.parametrize("tokens", [1, 4097, FLASH.max_seq])
def test_memory_bf16_of_the_released_geometry_is_what_a_state_would_allocate(tokens):
    cfg, total = dataclasses.replace(FLASH, max_seq=tokens), 0
    for role in roles(cfg):
        state, found = empty_state(cfg, role), caches_of_layer(FLASH, role, tokens)
        assert {cache.name: (cache.rows, cache.row_bf16) for cache in found} == bytes_of(state)
        total += state.nbytes()
    assert totals(caches(FLASH, tokens))["all"][0] == total


@pytest.mark.parametrize("name", CONFIGS)
def test_memory_packed_is_what_the_quantisers_make(name, rng):
    """The codes and scales of one row from each quantiser, counted; sums that are not quantised stay f32."""
    cfg = CONFIGS[name]
    D, Di = cfg.head_dim, cfg.index_head_dim
    row, key = (random_x(rng, dataclasses.replace(cfg, n_layers=1, dim=n, **NO_LAYERS), 1)[0] for n in (D, Di))
    fp8, latent, index = fp8_quantise_ref(row), fp4_quantise_e4m3_ref(row), fp4_quantise_e8m0_ref(key)
    expected = {
        "window": fp8[0].nbytes + fp8[1].nbytes,
        "compress_kv": e2m1_to_packed(latent[0]).nbytes + latent[1].nbytes,
        "index_k": e2m1_to_packed(index[0]).nbytes + index[1].nbytes,
        "kv_state": 4 * D,
        "score_state": 4 * D,
    }
    seen = {cache.name: cache.row_packed for cache in caches(cfg, cfg.max_seq)}
    assert seen == {name: expected[name] for name in seen}
    assert all(cache.packed == cache.rows * expected[cache.name] for cache in caches(cfg, cfg.max_seq))


NO_LAYERS = {"compress_ratios": (0,), "kv_sources": (), "index_sources": (), "candidate_source": None}


def test_memory_of_the_released_geometry_by_hand():
    found = caches(FLASH, 1_048_576)
    rows = {cache.name: (cache.row_bf16, cache.row_packed) for cache in found}
    assert rows["window"] == (1024, 512 + 16)
    assert rows["compress_kv"] == (1024, 256 + 32) and rows["index_k"] == (256, 64 + 4)
    assert token_bytes(found) == (3200, 890)  # 3 x (1280, 356) / 2 + (1280, 356)
    assert totals(found)["window"] == (40 * 128 * 1024, 40 * 128 * 528)
    assert totals(found)["kv_state"] == totals(found)["score_state"] == (3 * 2 * 512 * 4,) * 2
    assert totals(found)["all"] == tuple(n * 1_048_576 + 40 * 128 * r + 24_576 for n, r in ((3200, 1024), (890, 528)))
    assert [cache.layer for cache in found if cache.name == "index_k"] == [2, 8, 14, 20]
    assert list(totals(found)) == ["window", "kv_state", "score_state", "compress_kv", "index_k", "all"]
    told = {row.value for row in numbers("bytes")}  # the numbers page counts the same
    assert {890, 3200, rows["compress_kv"][1], rows["index_k"][1]} <= told


def test_memory_a_ratio_that_divides_nothing():
    found = caches(RATIO_3, 50)
    packed = (96 // 2 + 96 // 16) + (64 // 2 + 64 // 32)
    assert token_bytes(found) == (Fraction(2 * (96 + 64), 3), Fraction(packed, 3))
    assert {cache.name: cache.rows for cache in found if cache.ratio} == {"compress_kv": 16, "index_k": 16}
    assert [cache.rows for cache in caches(RATIO_3, 2) if cache.ratio] == [0, 0]


def test_memory_grows_by_a_tokens_bytes():
    """Over a whole number of groups the totals grow by exactly that, and by nothing else."""
    for cfg, groups in ((FLASH, 1024), (TINY, 4), (GEOMETRIES["odd"], 4)):
        few, more = (totals(caches(cfg, tokens))["all"] for tokens in (groups, 3 * groups))
        bf16, packed = token_bytes(caches(cfg, groups))
        assert (more[0] - few[0], more[1] - few[1]) == (2 * groups * bf16, 2 * groups * packed)


@pytest.mark.parametrize("tokens", [0, -5, 65])
def test_memory_refuses_more_tokens_than_there_are_positions(tokens):
    with pytest.raises(ValueError, match=rf"^tokens: expected a number within 1\.\.64 \(max_seq\), got {tokens}$"):
        caches(TINY, tokens)


def run(capsys, *argv):
    code = main(["memory", *map(str, argv)])
    return code, *capsys.readouterr()


def test_memory_command_prints_every_cache_and_the_totals(capsys):
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert [line[0] for line in lines if "window" in line and line[0] != "window"] == [str(n) for n in range(40)]
    for name, both in totals(caches(FLASH, FLASH.max_seq)).items():
        assert [name, *(f"{n:,}" for n in both)] in lines
    assert lines.count(["index_k", "524,288", "256", "68", "134,217,728", "35,651,584"]) == 3
    assert "1,048,576 tokens" in out
    assert "bf16: values, --cache bf16" in out and "packed: codes and scales, --cache packed" in out
    assert "index keys of 4 layers: 3,200 bytes a token in bf16, 890 packed" in out


def test_memory_command_of_another_config_and_length(capsys, golden, tmp_path):
    code, out, _ = run(capsys, "--config", golden / "tiny-config.json", "--tokens", 21)
    assert code == 0 and "bytes of the caches for 21 tokens" in out and "132.50 packed" in out
    code, out, _ = run(capsys, "--config", golden / "tiny-config.json", "--tokens", 21, "--json")
    found, told = caches(TINY, 21), json.loads(out)
    assert code == 0 and told == json.loads(json.dumps(as_json(TINY, 21, found)))
    assert told["tokens"] == 21 and told["shared_bytes_per_token"] == {"bf16": 480, "packed": 132.5}
    assert told["columns"] == {
        "bf16": "bf16: values, --cache bf16",
        "packed": "packed: codes and scales, --cache packed",
    }
    assert [one["bf16"] for one in told["caches"]] == [cache.bf16 for cache in found]
    assert sum(one["packed"] for one in told["caches"]) == told["totals"]["all"]["packed"]
    assert told["caches"][0] == {
        "layer": 0, "kind": "SWA", "name": "window", "rows": 8, "row_bf16": 128, "row_packed": 66, "ratio": None,
        "bf16": 1024, "packed": 528,
    }  # fmt: skip
    GEOMETRIES["window only"].to_json(tmp_path / "config.json")
    code, out, _ = run(capsys, "--config", tmp_path / "config.json")
    assert code == 0 and "index keys of 0 layers: 0 bytes a token in bf16, 0 packed" in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--tokens", "1048577"], r"tokens: expected a number within 1..1048576 (max_seq), got 1048577"),
        (["--config", "nowhere.json"], "nowhere.json"),
    ],
)
def test_memory_command_refuses_bad_input_in_one_line(capsys, argv, message):
    code, out, err = run(capsys, *argv)
    assert code == 2 and out == "" and len(err.splitlines()) == 1
    assert err.startswith("dsv41 memory: ") and message in err


def array_bytes(state):
    """The bytes of every array that a state has asked for."""
    arrays = [getattr(state, field.name) for field in dataclasses.fields(state)]
    planes = [p for a in arrays for p in ((a.codes, a.scales) if isinstance(a, PackedRows) else (a,))]
    return [plane.nbytes for plane in planes if hasattr(plane, "nbytes")]


@pytest.mark.gpu
@pytest.mark.skipif(MACHINE.name != "gpu", reason=f"the allocator of a GPU is asked: {MACHINE.reason}")
@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("tokens", [65_536, 1_000_003, FLASH.max_seq])
def test_memory_is_what_the_allocator_reports(tokens, kind):
    """Before and after a new sequence. The driver hands out pages of 2 MiB: one array of its own wastes less than one,
    and small arrays lie together in pages of which some may have been there before."""
    from dsv41_numba.tuned import TUNED

    cfg = dataclasses.replace(FLASH, max_seq=tokens)
    model = AttnV41(cfg, lambda layer: None, TUNED, cache=kind)  # its weights are not asked for
    # packed rows are two arrays: codes and scales
    arrays = [n for state in model.states.values() for n in array_bytes(state)]
    expected, pages = totals(caches(FLASH, tokens))["all"][CACHES.index(kind)], 2 * MIB
    assert sum(arrays) == expected
    before = used_bytes()
    sequence = model.new_sequence()
    measured = used_bytes() - before
    assert sum(state.nbytes() for state in sequence.states.values()) == expected
    large = sum(n >= pages for n in arrays)
    small = sum(n for n in arrays if n < pages)
    print(f"{tokens} tokens: {measured} bytes measured, {expected} by the formula, {measured - expected:+}")
    assert expected - small - pages <= measured <= expected + (large + 1) * pages + small
