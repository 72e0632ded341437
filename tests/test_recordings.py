"""Every recording of the official code, replayed by both op tables: each stage alone, and the whole chain."""

import pathlib
import re

import pytest

from dsv41_numba.check import check
from dsv41_numba.config import TINY
from dsv41_numba.ops import PLAIN, REFERENCE
from dsv41_numba.recording import Recording
from dsv41_numba.rules import RULES
from dsv41_numba.tensors import open_tensors
from dsv41_numba.weights import Checkpoint

TINY_WEIGHTS = ("tiny-weights",)
D_WEIGHTS = ("tiny-weights", "tiny-D-weights")
RECORDINGS = [
    # recording, weights of which later ones override earlier ones, index_keys, linear
    ("tiny-A", TINY_WEIGHTS, "released", "bf16"),
    ("tiny-B", TINY_WEIGHTS, "released", "bf16"),
    ("tiny-C", TINY_WEIGHTS, "released", "bf16"),
    ("tiny-D", D_WEIGHTS, "released", "bf16"),
    ("tiny-A-ownkeys", TINY_WEIGHTS, "owner", "bf16"),
    ("tiny-B-ownkeys", TINY_WEIGHTS, "owner", "bf16"),
    ("tiny-C-ownkeys", TINY_WEIGHTS, "owner", "bf16"),
    ("tiny-D-ownkeys", D_WEIGHTS, "owner", "bf16"),
    ("tiny-fp8-dequant-run", ("tiny-fp8-weights",), "released", "bf16"),
    ("tiny-fp8-dequant-run", ("tiny-weights", "tiny-fp8-dequant"), "released", "bf16"),
    ("tiny-fp8-linear", ("tiny-fp8-weights",), "released", "fp8"),
]
# where each group of stages.safetensors is held to the code
STAGE_TESTS = {
    "fp8": "test_quant_fp8",
    "fp4e8m0": "test_quant_fp4",
    "fp4e4m3": "test_quant_fp4",
    "fp8w": "test_weights",
    "table": "test_formats",
    "rope": "test_rope",
    "topk": "test_topk",
    "cand": "test_topk",
}


def replay(golden, name, weights, index_keys, ops, linear="bf16", cache="bf16"):
    recording = Recording(golden / f"{name}.safetensors")
    checkpoint = Checkpoint(*(golden / f"{file}.safetensors" for file in weights), cfg=TINY, linear=linear)
    return recording, check(recording, TINY, checkpoint.layer, ops, index_keys, cache=cache)


@pytest.mark.parametrize(("ops", "cache"), [(REFERENCE, "bf16"), (PLAIN, "bf16"), (PLAIN, "packed")])
@pytest.mark.parametrize(("name", "weights", "index_keys", "linear"), RECORDINGS)
def test_recordings_replay_alone_and_chained(golden, name, weights, index_keys, linear, ops, cache):
    recording, report = replay(golden, name, weights, index_keys, ops, linear, cache)
    assert [f"{judgement}: {mismatch}" for judgement, mismatch in report.mismatches()] == []
    assert report.skipped_layers == ()
    recorded = {stage for names in recording.captured.values() for stage in names} - {"x", "o_f32"}
    if index_keys == "released":
        assert recorded == set(RULES)
    for tallies in (report.alone, report.chained):
        assert set(tallies) == recorded
        assert all(tally.elements > 0 for tally in tallies.values())
    # every element that the file itself holds is compared in the chain
    held = open_tensors(recording.path)
    for stage, tally in report.chained.items():
        assert tally.elements == sum(raw.data.size for key, raw in held.items() if key.split(".")[2] == stage)


OTHER_BEHAVIOUR = [
    # recording, weights, index_keys, what fails alone, the first stage that fails chained
    # the other way with index keys: the scores. The file of decode steps does not have layer 20's keys to judge alone
    ("tiny-B", TINY_WEIGHTS, "owner", {"score"}, "score"),
    ("tiny-B-ownkeys", TINY_WEIGHTS, "released", set(), "score"),
    # without the weights that scenario D changes
    ("tiny-D", TINY_WEIGHTS, "released", {"index_k", "index_w"}, "index_k"),
    # fp8 linears quantise their input too, linear="bf16" does not: every linear but wo_a, which is always dequantised
    ("tiny-fp8-linear", ("tiny-fp8-weights",), "released", {"qr", "q", "kv", "index_q", "out"}, "qr"),
]


@pytest.mark.parametrize(("name", "weights", "index_keys", "alone", "chained"), OTHER_BEHAVIOUR)
def test_recordings_of_another_behaviour_fail_where_it_begins(golden, name, weights, index_keys, alone, chained):
    _, report = replay(golden, name, weights, index_keys, REFERENCE)
    failed = [(judgement, mismatch.stage) for judgement, mismatch in report.mismatches()]
    assert {stage for judgement, stage in failed if judgement == "alone"} == alone
    assert next(stage for judgement, stage in failed if judgement == "chained") == chained


def test_recordings_of_single_stages_each_have_a_test(golden):
    groups: dict[str, set[str]] = {}
    for key in open_tensors(golden / "stages.safetensors"):
        group, _, rest = key.partition(".")
        groups.setdefault(group, set()).add(rest)
    assert set(groups) == set(STAGE_TESTS)
    for group, file in STAGE_TESTS.items():
        source = (pathlib.Path(__file__).parent / f"{file}.py").read_text()
        assert "stages" in source and re.search(rf"\b{group}\b", source), (group, file)
