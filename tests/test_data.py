"""data/ is what data/README.md says: each file's size and hash, and the recipes of weights and inputs."""

import hashlib
import pathlib
import re

import numpy as np
import pytest

import golden
from dsv41_numba.formats.bf16 import as_bf16

FOLDER = pathlib.Path(__file__).parent.parent / "data"
NOT_LISTED = {"README.md", "measurements.json", "ladder.svg"}  # the last two change with every measurement
# a tensor's seed is 41000000 + 1000 * layer + its place here
WEIGHT_SEEDS = [
    *("wq_a", "q_norm", "wq_b", "wkv", "kv_norm", "attn_sink", "wo_a", "wo_b"),
    *("compressor.wkv", "compressor.wgate", "compressor.norm"),
    *("indexer.wq_b", "indexer.weights_proj", "indexer.wk", "indexer.k_norm"),
]


def listed() -> dict[str, tuple[int, str]]:
    rows = re.findall(r"^\| (\S+) \| .* \| (\d+) \| ([0-9a-f]{64}) \|$", (FOLDER / "README.md").read_text(), re.M)
    return {name: (int(size), digest) for name, size, digest in rows}


def stream(seed, shape):
    return np.random.Generator(np.random.PCG64(seed)).standard_normal(shape)


def test_data_holds_the_listed_files_and_no_others():
    found = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()}
    assert found - NOT_LISTED == set(listed())


@pytest.mark.parametrize("name", sorted(listed()))
def test_data_file_has_the_listed_size_and_hash(name):
    content = (FOLDER / name).read_bytes()
    assert (len(content), hashlib.sha256(content).hexdigest()) == listed()[name]


def test_data_weights_follow_their_recipe():
    for name, stored in golden.load("tiny-weights").items():
        layer, tensor = re.fullmatch(r"layers\.(\d+)\.attn\.(.+?)(?:\.weight)?", name).groups()
        values = stream(41_000_000 + 1000 * int(layer) + WEIGHT_SEEDS.index(tensor), stored.shape)
        if tensor.endswith("norm"):
            values = 1 + 0.1 * values
        elif tensor != "attn_sink":
            values = values / np.sqrt(stored.shape[-1])
        values = values.astype(np.float32)
        expected = values if stored.dtype == np.float32 else as_bf16(values)
        assert stored.tobytes() == expected.tobytes(), name


@pytest.mark.parametrize(("scenario", "seed"), [("A", 51_000_000), ("B", 52_000_000), ("C", 53_000_000)])
def test_data_inputs_follow_their_recipe(scenario, seed):
    recording = golden.load(f"tiny-{scenario}")
    for layer in range(golden.config()["n_layers"]):
        x = np.concatenate([recording[f"L{layer:02d}.{step}.x"] for step in golden.steps(f"tiny-{scenario}")])
        assert x.tobytes() == as_bf16(stream(seed + layer, x.shape).astype(np.float32)).tobytes(), layer


def test_data_inputs_of_scenario_d_repeat_four_rows():
    recording = golden.load("tiny-D")
    for layer in range(golden.config()["n_layers"]):
        x = np.concatenate([recording[f"L{layer:02d}.{step}.x"] for step in golden.steps("tiny-D")])
        assert len(np.unique(x.view(np.uint16), axis=0)) <= 4
