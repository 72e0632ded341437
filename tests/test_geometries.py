"""Recordings of other geometries, made by a float64 oracle and by a walk, replayed by both op tables."""

import numpy as np
import pytest

from dsv41_numba.check import check
from dsv41_numba.ops import PLAIN, REFERENCE
from dsv41_numba.recording import Recorder, Recording
from dsv41_numba.roles import roles
from dsv41_numba.stack import AttnV41
from dsv41_numba.tensors import RawTensor, write_tensors
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
