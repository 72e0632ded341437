import dataclasses

import pytest

from dsv41_numba.config import FLASH, TINY
from dsv41_numba.roles import roles
from dsv41_numba.weights import tensor_specs


def geometry(ratios, kv_sources, index_sources, candidate_source=None):
    return dataclasses.replace(
        TINY,
        n_layers=len(ratios),
        compress_ratios=tuple(ratios),
        kv_sources=tuple(kv_sources),
        index_sources=tuple(index_sources),
        candidate_source=candidate_source,
    )


def layers(predicate, cfg=FLASH):
    return [role.layer for role in roles(cfg) if predicate(role)]


def test_roles_of_the_released_geometry():
    """Hard case 10: a ratio says what a layer reads, not that it has a compressor."""
    owned = {role.layer: tensor_specs(FLASH, role) for role in roles(FLASH)}
    assert [layer for layer, specs in owned.items() if "compressor.wkv" in specs] == [2, 8, 14, 20]
    assert [layer for layer, specs in owned.items() if "compressor.wgate" in specs] == [2, 8, 14]
    assert [layer for layer, specs in owned.items() if "indexer.wk" in specs] == [2, 8, 14, 20]
    assert [layer for layer, specs in owned.items() if "indexer.wq_b" in specs] == [2, 8, 14, 20, 24, 28, 32, 36]
    assert len(layers(lambda role: not role.is_kv_source)) == 36
    assert layers(lambda role: role.kind == "SWA") == [0, 1]
    assert layers(lambda role: role.kind == "REINDEX") == [24, 28, 32, 36]
    assert len(layers(lambda role: role.kind == "REUSE")) == 30


def test_roles_read_the_nearest_source_at_or_below():
    table = roles(FLASH)
    assert [role.layer for role in table] == list(range(40))
    reads = {role.layer: (role.kv_source, role.key_source, role.index_source) for role in table}
    assert reads[1] == (None, None, None)
    assert reads[2] == (2, 2, 2)
    assert reads[7] == (2, None, 2)
    assert reads[19] == (14, None, 14)
    assert reads[23] == (20, None, 20)
    assert reads[24] == (20, 20, 24)
    assert reads[39] == (20, None, 36)
    assert [role.ratio for role in table] == list(FLASH.compress_ratios)


def test_roles_only_index_sources_above_the_candidate_source_obey_it():
    assert layers(lambda role: role.publishes_candidates) == [20]
    assert {role.layer: role.obeys_candidates for role in roles(FLASH) if role.obeys_candidates is not None} == {
        24: 20,
        28: 20,
        32: 20,
        36: 20,
    }
    late = dataclasses.replace(FLASH, candidate_source=28)
    assert layers(lambda role: role.obeys_candidates == 28, late) == [32, 36]
    without = dataclasses.replace(FLASH, candidate_source=None)
    assert layers(lambda role: role.publishes_candidates or role.obeys_candidates is not None, without) == []


def test_roles_of_other_geometries():
    cfg = geometry([0, 4, 0, 4, 4, 3, 0, 1, 1], [1, 5, 7], [1, 4, 5, 7, 8], candidate_source=7)
    assert [role.kind for role in roles(cfg)] == [
        "SWA",
        "FULL",
        "SWA",
        "REUSE",
        "REINDEX",
        "FULL",
        "SWA",
        "FULL",
        "REINDEX",
    ]
    assert [role.kv_source for role in roles(cfg)] == [None, 1, None, 1, 1, 5, None, 7, 7]
    assert layers(lambda role: role.obeys_candidates == 7, cfg) == [8]
    assert {role.kind for role in roles(geometry([0, 0], [], []))} == {"SWA"}


def test_roles_a_full_layer_above_the_candidate_source_obeys_it_too():
    role = roles(geometry([1, 1, 1], [0, 2], [0, 2], candidate_source=0))[2]
    assert (role.kind, role.publishes_candidates, role.obeys_candidates) == ("FULL", False, 0)


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        (geometry([2, 2], [0, 1], [0]), r"layer 1: expected a kv source to be an index source too, got \(0,\)"),
        (geometry([2, 2], [1], [1]), r"layer 0: expected a kv source at or below it, got \(1,\)"),
        (geometry([2, 2], [], [1]), r"layer 0: expected a kv source at or below it, got \(\)"),
        (geometry([2, 2, 1], [0], [0]), "layer 2: expected ratio 2, that of its kv source 0, got 1"),
        (geometry([2, 2, 1], [0], [0, 2]), "layer 2: expected ratio 2, that of its kv source 0, got 1"),
        (
            geometry([2, 1], [0, 1], [0, 1], candidate_source=0),
            "layer 1: expected ratio 2, that of the candidate mask of layer 0 which it obeys, got 1",
        ),
    ],
)
def test_roles_refuse_a_reader_that_finds_nothing_to_read(cfg, message):
    with pytest.raises(ValueError, match=message):
        roles(cfg)
