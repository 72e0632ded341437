import json
import re

import numpy as np
import pytest

import dsv41_numba
from dsv41_numba.cli import main
from dsv41_numba.config import TINY
from dsv41_numba.recording import Recording


def run(capsys, *argv):
    """(exit code, stdout, stderr) of one command."""
    code = main([str(a) for a in argv])
    return code, *capsys.readouterr()


def test_every_public_name_can_be_imported():
    for name in dsv41_numba.__all__:
        assert getattr(dsv41_numba, name) is not None


def test_roles_shows_the_released_map(capsys):
    code, out, _ = run(capsys, "roles")
    assert code == 0
    rows = [line for line in out.splitlines() if re.match(r" +\d+ +[A-Z]+ ", line)]
    assert len(rows) == 40
    assert "2 SWA, 4 FULL, 30 REUSE, 4 REINDEX" in out
    assert re.search(r"24 .*REINDEX.*1 .*rows, keys 20, mask 20 .*selection", out)


def test_roles_reads_both_key_styles(capsys, golden, tmp_path):
    hugging_face = tmp_path / "config.json"
    TINY.to_json(hugging_face)
    config = json.loads((golden / "tiny-config.json").read_text())
    config["hidden_size"], config["num_hidden_layers"] = config.pop("dim"), config.pop("n_layers")
    hugging_face.write_text(json.dumps(config))
    assert run(capsys, "roles", hugging_face)[:2] == run(capsys, "roles", golden / "tiny-config.json")[:2]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["roles", "nowhere.json"], "nowhere.json"),
        (["check", "nowhere.safetensors"], "nowhere.safetensors"),
        (["walk", "--layer", "40"], "--layer: expected one of 0..39, got 40"),
        (["walk", "--step", "d99"], "--step: expected one of p, d0"),
        (["walk", "--layer", "2", "--show", "keys"], "--show: expected one of x, qr, q"),
        (["walk", "--show", "q"], "--show: expected a --layer"),
        (["walk", "--tokens", "4"], "--tokens: goes with --checkpoint"),
        (["walk", "--checkpoint", "nowhere"], "nowhere"),
        (["stage", "softmax"], "NAME: expected one of linear"),
        (["walk", "--linear", "fp8"], "--linear fp8: goes with --checkpoint"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, argv, message):
    code, out, err = run(capsys, *argv)
    assert code == 2
    assert out == ""
    assert message in err and len(err.splitlines()) == 1 and err.startswith(f"dsv41 {argv[0]}: ")


@pytest.mark.parametrize(("option", "text"), [("--layers", "7-3"), ("--layers", "x"), ("--tokens", "0")])
def test_a_malformed_option_is_refused_by_the_parser(capsys, option, text):
    with pytest.raises(SystemExit) as stop:
        main(["walk", "--checkpoint", "d", option, text])
    assert stop.value.code == 2
    assert f"argument {option}: expected" in capsys.readouterr().err


def test_walk_and_check_take_packed_caches(capsys, golden, tmp_path):
    file = tmp_path / "walk.safetensors"
    code, out, _ = run(capsys, "walk", "--cache", "packed", "--step", "p", "--record", file)
    assert code == 0 and "scenario A, packed caches, plain ops" in out and "ok: 40 layer calls" in out
    recorded, official = Recording(file), Recording(golden / "tiny-A.safetensors")
    for name in ("kv", "window", "index_k", "latent_q"):  # what packed rows stand for
        assert np.array_equal(recorded.get(2, "p", name), official.get(2, "p", name))
    code, out, _ = run(capsys, "check", golden / "tiny-B.safetensors", "--cache", "packed", "--layers", "20-21")
    assert code == 0 and "tiny-B.safetensors, packed caches, plain ops" in out


def test_stage_prints_its_contract_and_the_comparison(capsys):
    code, out, _ = run(capsys, "stage", "rope", "--tokens", "3")
    assert code == 0
    assert "Math" in out and "Precision" in out and "Source" in out
    assert re.search(r"uint16|bfloat16", out) and "0 differing bits" in out


def test_walk_of_one_prefill_shows_forty_layers_and_an_intermediate(capsys, tmp_path):
    file = tmp_path / "walk.safetensors"
    code, out, _ = run(capsys, "walk", "--ops", "reference", "--step", "p", "--record", file)
    assert code == 0
    assert len([line for line in out.splitlines() if re.match(r" +\d+ +[A-Z]+ ", line)]) == 40
    assert "ok: 40 layer calls" in out
    recording = Recording(file)
    assert recording.steps == ("p",) and recording.layers == tuple(range(40))
    assert recording.get(2, "p", "topk").dtype == np.int32

    code, out, _ = run(capsys, "walk", "--ops", "reference", "--layer", "2", "--step", "p", "--show", "topk")
    assert code == 0
    assert "layer 2, step p, topk: int32 (21, 4)" in out


def test_a_walk_that_was_recorded_passes_its_own_check(capsys, tmp_path):
    file = tmp_path / "walk.safetensors"
    assert run(capsys, "walk", "--ops", "reference", "--record", file)[0] == 0
    code, out, _ = run(capsys, "check", file, "--ops", "reference", "--layers", "2-9")
    assert code == 0, out
    assert "worst bf16 steps 0" in out


def test_check_of_fp8_linears_says_so_and_refuses_weights_that_are_bf16(capsys, golden):
    recording, weights = golden / "tiny-fp8-linear.safetensors", golden / "tiny-fp8-weights.safetensors"
    common = ("check", recording, "--ops", "reference", "--layers", "0-3")
    code, out, _ = run(capsys, *common, "--weights", weights, "--linear", "fp8")
    assert code == 0 and "fp8 linears, reference ops" in out
    assert re.search(r"^ +out .* 2\.5% ", out, re.MULTILINE)
    code, out, _ = run(capsys, *common, "--weights", weights)
    assert code == 1 and "fp8 linears" not in out and "mismatch alone: layer 0, step p, qr" in out
    code, out, err = run(capsys, *common, "--linear", "fp8")
    assert (code, out) == (2, "") and 'wq_a.weight: expected type F8_E4M3, for linear="fp8", found BF16' in err


def test_walk_streams_a_checkpoint_folder_on_random_input(capsys, golden, tmp_path):
    (tmp_path / "config.json").write_text((golden / "tiny-config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes((golden / "tiny-weights.safetensors").read_bytes())
    code, out, _ = run(
        capsys, "walk", "--ops", "reference", "--checkpoint", tmp_path, "--tokens", 9, "--decode", 2, "--layers", "0-3"
    )
    assert code == 0
    assert "9 tokens and 2 decode steps" in out
    code, _, err = run(capsys, "walk", "--ops", "reference", "--checkpoint", tmp_path, "--layers", "3-4")
    assert code == 2
    assert "layer 3: expected the compressed rows of layer 2" in err
