"""Geometries that are not the tiny one: held to a float64 oracle in every stage, by both op tables."""

import pytest

from dsv41_numba.check import check
from dsv41_numba.ops import PLAIN, REFERENCE
from dsv41_numba.recording import Recorder, Recording
from dsv41_numba.stack import AttnV41
from dsv41_numba.tensors import RawTensor, open_tensors, write_tensors
from dsv41_numba.weights import random_weights
from geometries import GEOMETRIES, TOKENS, oracle, random_x

CASES = [(name, "released") for name in GEOMETRIES] + [("odd", "owner"), ("mask at ratio 2", "owner")]


def failures(report):
    return [f"{judgement}: {mismatch}" for judgement, mismatch in report.mismatches()]


@pytest.mark.parametrize(("name", "index_keys"), CASES)
def test_geometries_agree_with_a_float64_oracle_in_every_stage(rng, tmp_path, name, index_keys):
    cfg = GEOMETRIES[name]
    n_prefill, n_decode = TOKENS.get(name, (17, 6))
    weights = [random_weights(cfg, layer, seed_base=7_000_000) for layer in range(cfg.n_layers)]
    x = random_x(rng, cfg, n_prefill + n_decode)
    tensors = oracle(cfg, weights.__getitem__, x, n_prefill, index_keys)
    write_tensors(tmp_path / "r.safetensors", {key: RawTensor.of(key, array) for key, array in tensors.items()})
    recording = Recording(tmp_path / "r.safetensors")
    for ops in (REFERENCE, PLAIN):
        report = check(recording, cfg, weights.__getitem__, ops, index_keys)
        assert failures(report) == [], ops.name
        assert report.skipped_layers == ()
        assert set(report.alone) == {key.split(".")[2] for key in tensors} - {"x"}
        assert not any(tally.not_judged for tally in report.alone.values())


@pytest.mark.parametrize(("name", "index_keys"), [("odd", "released"), ("mask at ratio 2", "owner")])
def test_geometries_a_recorded_walk_has_the_oracles_tensors_and_replays(rng, tmp_path, name, index_keys):
    cfg = GEOMETRIES[name]
    n_prefill, n_decode = (7, 3)
    weights = [random_weights(cfg, layer, seed_base=8_000_000) for layer in range(cfg.n_layers)]
    x = random_x(rng, cfg, n_prefill + n_decode)
    model, recorder = AttnV41(cfg, weights.__getitem__, REFERENCE, index_keys), Recorder()
    for step in ["p", *(f"d{i}" for i in range(n_decode))]:
        now = slice(0, n_prefill) if step == "p" else slice(model.position, model.position + 1)
        for done in model.walk(x[:, now]):
            recorder.add(done.role.layer, step, done.run, REFERENCE)
    recorder.write(tmp_path / "walk.safetensors")
    tensors = oracle(cfg, weights.__getitem__, x, n_prefill, index_keys)
    recorded = {key: tensor.array() for key, tensor in open_tensors(tmp_path / "walk.safetensors").items()}
    assert set(recorded) == set(tensors) | {key.replace(".o", ".o_f32") for key in tensors if key.endswith(".o")}
    for key, expected in tensors.items():
        assert (recorded[key].shape, recorded[key].dtype) == (expected.shape, expected.dtype), key
    report = check(Recording(tmp_path / "walk.safetensors"), cfg, weights.__getitem__, PLAIN, index_keys)
    assert failures(report) == []
