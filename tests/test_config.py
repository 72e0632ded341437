import dataclasses
import json

import pytest

from conftest import GOLDEN
from dsv41_numba.config import FLASH, INDEX_BLOCK, KEYS, LATENT_BLOCK, TINY, WINDOW_BLOCK, AttnV41Cfg, ConfigError
from dsv41_numba.ops import quant_fp4, quant_fp8

DRAFT_RATIOS = [0, 0, 0]  # released files list three more ratios than layers
OPTIONAL = {"max_seq", "weight_block"}
ODD = dataclasses.replace(
    TINY,
    dim=72,
    n_heads=6,
    head_dim=96,
    rope_dim=6,
    o_groups=3,
    window=7,
    index_topk=6,
    candidate_topk_blocks=2,
    candidate_block_size=3,
    candidate_source=6,
    n_layers=9,
    compress_ratios=(0, 4, 0, 4, 3, 0, 1, 1, 1),
    kv_sources=(1, 4, 6),
    index_sources=(1, 3, 4, 6, 8),
    max_seq=37,
)


def reference_style(cfg):
    """What inference/config.json says: flat, no maximum length, no block size."""
    config = {KEYS[field.name][0]: getattr(cfg, field.name) for field in dataclasses.fields(cfg)}
    for name in OPTIONAL:
        del config[KEYS[name][0]]
    return config | {"compress_ratios": [*cfg.compress_ratios, *DRAFT_RATIOS], "dtype": "fp8", "n_mtp_layers": 3}


def hugging_face_style(cfg):
    """What config.json says: sizes under text_config, YaRN's under rope_scaling, others' sizes beside them."""
    text = {"model_type": "deepseek_v41_text", "vocab_size": 129280, "rope_scaling": {"rope_type": "yarn"}}
    for field in dataclasses.fields(cfg):
        *parents, key = KEYS[field.name][1].split(".")
        if parents != ["quantization_config"]:
            (text[parents[0]] if parents else text)[key] = getattr(cfg, field.name)
    text["compress_ratios"] = [*cfg.compress_ratios, *DRAFT_RATIOS]
    return {
        "model_type": "deepseek_v41",
        "text_config": text,
        "vision_config": {"hidden_size": 1024, "num_attention_heads": 16, "rope_theta": 1},
        "quantization_config": {"quant_method": "fp8", "weight_block_size": list(cfg.weight_block)},
    }


STYLES = {"reference": reference_style, "hugging_face": hugging_face_style}


def written(tmp_path, config):
    path = tmp_path / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


def test_config_presets_are_the_released_and_the_recorded_geometry():
    assert AttnV41Cfg.from_json(GOLDEN / "tiny-config.json") == TINY
    assert (FLASH.dim, FLASH.n_heads, FLASH.head_dim, FLASH.rope_dim, FLASH.window) == (5120, 64, 512, 64, 128)
    assert FLASH.compress_ratios == (0,) * 2 + (2,) * 18 + (1,) * 20
    assert FLASH.norm_eps == 1e-20


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("cfg", [FLASH, ODD], ids=["released", "odd"])
def test_config_reads_both_released_styles(tmp_path, cfg, style):
    config = STYLES[style](cfg)
    loaded = AttnV41Cfg.from_json(written(tmp_path, config))
    if style == "reference":  # it says no maximum length: the one that YaRN reaches
        assert loaded.max_seq == cfg.original_seq_len * cfg.rope_factor
        loaded = dataclasses.replace(loaded, max_seq=cfg.max_seq)
    assert loaded == cfg
    assert len(config.get("text_config", config)["compress_ratios"]) == cfg.n_layers + 3


def test_config_reads_long_names_without_a_text_config(tmp_path):
    assert AttnV41Cfg.from_json(written(tmp_path, hugging_face_style(FLASH)["text_config"])) == FLASH


def test_config_reads_the_fp8_block_size(tmp_path):
    config = hugging_face_style(FLASH)
    config["quantization_config"]["weight_block_size"] = [128, 64]
    assert AttnV41Cfg.from_json(written(tmp_path, config)).weight_block == (128, 64)


@pytest.mark.parametrize("cfg", [FLASH, TINY, ODD, dataclasses.replace(TINY, candidate_source=None)])
def test_config_survives_to_json(tmp_path, cfg):
    cfg.to_json(tmp_path / "config.json")
    loaded = AttnV41Cfg.from_json(tmp_path / "config.json")
    assert loaded == cfg
    assert isinstance(loaded.rope_theta, float)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("value", [-1, None])
def test_config_without_candidates_says_minus_one_or_null(tmp_path, style, value):
    config = STYLES[style](FLASH)
    config.get("text_config", config)[KEYS["candidate_source"][style != "reference"]] = value
    assert AttnV41Cfg.from_json(written(tmp_path, config)).candidate_source is None


def test_config_without_candidates_may_leave_all_their_keys_out(tmp_path):
    config = reference_style(TINY)
    for name in ("candidate_source", "candidate_topk_blocks", "candidate_block_size"):
        del config[KEYS[name][0]]
    cfg = AttnV41Cfg.from_json(written(tmp_path, config))
    assert (cfg.candidate_source, cfg.candidate_topk_blocks, cfg.candidate_block_size) == (None, 0, 0)


def test_config_without_a_candidate_source_has_no_candidates(tmp_path):
    config = reference_style(TINY)
    del config["candidate_source_layer"]
    assert AttnV41Cfg.from_json(written(tmp_path, config)).candidate_source is None


@pytest.mark.parametrize("name", sorted(set(KEYS) - OPTIONAL - {"candidate_source"}))
def test_config_names_a_missing_key_in_both_styles(tmp_path, name):
    config = reference_style(TINY)
    del config[KEYS[name][0]]
    path = written(tmp_path, config)
    with pytest.raises(ConfigError) as error:
        AttnV41Cfg.from_json(path)
    assert str(error.value) == f"{path}: {' or '.join(dict.fromkeys(KEYS[name]))}: " + (
        "expected this key, got a file without it"
    )


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", sorted(KEYS))
@pytest.mark.parametrize("value", ["16", True, [1.5], {}, 0.5, float("nan"), 10**400], ids=lambda v: repr(v)[:5])
def test_config_names_the_key_of_a_bad_value(tmp_path, name, value, style):
    config = STYLES[style](TINY)
    key = KEYS[name][style != "reference"]
    place = config.get("text_config", config)
    if "." in key:
        parent, leaf = key.split(".")
        place = config[parent] if parent in config else place[parent]
        place[leaf] = value
    else:
        place[key] = value
    if value == 0.5 and name in ("norm_eps", "rope_factor", "beta_fast", "beta_slow"):
        assert getattr(AttnV41Cfg.from_json(written(tmp_path, config)), name) == 0.5
        return
    path = written(tmp_path, config)
    with pytest.raises(ConfigError) as error:
        AttnV41Cfg.from_json(path)
    assert str(error.value).startswith(f"{path}: {key}: expected ")
    assert ", got " in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": 0}, "dim: expected at least 1, got 0"),
        ({"o_groups": 3}, r"n_heads: expected a multiple of o_groups \(3\), got 4"),
        ({"rope_dim": 15}, "rope_dim: expected an even number"),
        ({"rope_dim": 34}, r"rope_dim: expected at most index_head_dim \(32\), got 34"),
        ({"rope_dim": 66, "index_head_dim": 96}, r"rope_dim: expected at most head_dim \(64\), got 66"),
        ({"head_dim": 80}, "head_dim: expected a multiple of 32, the quantiser's block, got 80"),
        ({"index_head_dim": 48}, "index_head_dim: expected a multiple of 32, the quantiser's block, got 48"),
        ({"norm_eps": 0.0}, "norm_eps: expected above 0"),
        ({"norm_eps": float("inf")}, "norm_eps: expected a finite number, got inf"),
        ({"compress_rope_theta": 1.0}, "compress_rope_theta: expected above 1"),
        ({"rope_factor": -16.0}, "rope_factor: expected above 0"),
        ({"original_seq_len": -1}, "original_seq_len: expected at least 0"),
        ({"max_seq": 0}, "max_seq: expected at least 1"),
        ({"window": 8.0}, "window: expected a whole number, got 8.0"),
        ({"kv_sources": [2, 8, 14, 20]}, "kv_sources: expected whole numbers"),
        ({"n_layers": 41}, "compress_ratios: expected 41, one a layer, got 40"),
        ({"compress_ratios": (0, 0, -2) + (2,) * 37}, "compress_ratios: expected at least 0 each"),
        ({"kv_sources": (2, 8, 40)}, "kv_sources: expected layers within 0..39, got 40"),
        ({"kv_sources": (1, 8)}, "kv_sources: expected layers with a compress ratio above 0, got layer 1 with ratio 0"),
        ({"index_sources": (2, 20, 8)}, "index_sources: expected ascending layers, each once"),
        ({"index_sources": (2, 2, 8)}, "index_sources: expected ascending layers, each once"),
        ({"candidate_source": 21}, "candidate_source: expected None or one of the index sources"),
        ({"candidate_block_size": 0}, "candidate_block_size: expected at least 1"),
        ({"weight_block": (32,)}, "weight_block: expected two sizes of at least 1"),
    ],
)
def test_config_refuses_what_cannot_be(changes, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(TINY, **changes)


def test_config_allows_what_the_maths_allows():
    """Odd sizes are right: built above, and here one by one."""
    assert ODD.group_dim == 2 * 96
    for changes in (
        {"window": 1},
        {"index_topk": 1000},
        {"rope_dim": 2},
        {"candidate_source": None, "candidate_topk_blocks": 0, "candidate_block_size": 0},
        {"candidate_block_size": 7},
        {"compress_ratios": (0,) * 40, "kv_sources": (), "index_sources": (), "candidate_source": None},
        {"max_seq": 1},
        {"original_seq_len": 0},
    ):
        dataclasses.replace(TINY, **changes)


def test_config_scales_are_rounded_to_f32():
    assert FLASH.index_scale == 1 / 64
    assert TINY.softmax_scale == 0.125
    assert ODD.softmax_scale == 0.10206207633018494


def test_config_blocks_are_those_of_the_quantisers():
    assert WINDOW_BLOCK == quant_fp8.BLOCK
    assert (INDEX_BLOCK, LATENT_BLOCK) == (quant_fp4.BLOCK_E8M0, quant_fp4.BLOCK_E4M3)


def test_config_refuses_two_names_that_disagree(tmp_path):
    config = reference_style(TINY) | {"hidden_size": 65}
    with pytest.raises(ConfigError, match=r"config.json: hidden_size: expected the value of dim, 64, got 65"):
        AttnV41Cfg.from_json(written(tmp_path, config))
    assert AttnV41Cfg.from_json(written(tmp_path, config | {"hidden_size": 64})).dim == 64


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 100000, "\xff", '"x"'])
def test_config_refuses_a_file_that_is_no_object(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"config.json: expected (JSON|a JSON object), got"):
        AttnV41Cfg.from_json(path)


def test_config_refuses_another_stretching_than_yarn(tmp_path):
    config = hugging_face_style(TINY)
    config["text_config"]["rope_scaling"]["rope_type"] = "linear"
    with pytest.raises(ConfigError, match=r"rope_scaling.rope_type: expected 'yarn', got 'linear'"):
        AttnV41Cfg.from_json(written(tmp_path, config))


def test_config_of_fewer_ratios_than_layers_is_refused(tmp_path):
    config = reference_style(TINY) | {"compress_ratios": list(TINY.compress_ratios[:39])}
    with pytest.raises(ConfigError, match="compress_ratios: expected 40, one a layer, got 39"):
        AttnV41Cfg.from_json(written(tmp_path, config))
