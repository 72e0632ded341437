"""The geometry: every size of the attention once, with the two names it has in released configuration files.

A checkpoint comes with two files that say the same: `inference/config.json` (flat, the reference code's names) and the
Hugging Face `config.json` (under `text_config`, longer names, YaRN's numbers under `rope_scaling`). `KEYS` has both
names of every field; `AttnV41Cfg.from_json` reads either file. Nothing else in the package holds a size.
"""

import dataclasses
import json
import math
import pathlib
from typing import Any

import numpy as np

MISSING = object()
NO_CANDIDATES = -1  # what the files write where candidate_source is None
# elements that share a scale: of a window row and a compressed row (head_dim long), of an index key (index_head_dim)
WINDOW_BLOCK, LATENT_BLOCK, INDEX_BLOCK = 32, 16, 32


class ConfigError(ValueError):
    """A field with a value that cannot be; the message names field or key, expected and got."""

    def __init__(self, where: str, expected: str, got: object) -> None:
        super().__init__(f"{where}: expected {expected}, got {got}")
        self.where, self.expected, self.got = where, expected, got


def _keys(reference: str, hugging_face: str, **default: Any) -> Any:
    """A field, with its key in inference/config.json and its path in the Hugging Face config.json."""
    return dataclasses.field(metadata={"keys": (reference, hugging_face)}, **default)


@dataclasses.dataclass(frozen=True)
class AttnV41Cfg:
    """One geometry. Sizes count elements; `*_dim` of a head, `*_rank` of a bottleneck; layers count from 0.

    compress_ratios   per layer: tokens a compressed position, 0 = window only
    kv_sources        layers that make compressed rows and index keys; ascending
    index_sources     layers that select; ascending
    candidate_source  the index source that also publishes the mask of candidate blocks, or None
    max_seq           positions the caches and rotation tables hold
    weight_block      rows and columns that share one scale in an fp8 weight
    Raises ConfigError (a ValueError) naming field, expected and got. How the layers read each other is checked in
    `roles.roles`.
    """

    dim: int = _keys("dim", "hidden_size")
    n_heads: int = _keys("n_heads", "num_attention_heads")
    head_dim: int = _keys("head_dim", "head_dim")
    rope_dim: int = _keys("rope_head_dim", "qk_rope_head_dim")  # the last ones of a head rotate
    q_lora_rank: int = _keys("q_lora_rank", "q_lora_rank")
    o_groups: int = _keys("o_groups", "o_groups")
    o_lora_rank: int = _keys("o_lora_rank", "o_lora_rank")
    window: int = _keys("window_size", "sliding_window")
    index_n_heads: int = _keys("index_n_heads", "index_n_heads")
    index_head_dim: int = _keys("index_head_dim", "index_head_dim")
    index_topk: int = _keys("index_topk", "index_topk")
    candidate_topk_blocks: int = _keys("candidate_topk_blocks", "candidate_topk_blocks")
    candidate_block_size: int = _keys("candidate_block_size", "candidate_block_size")
    candidate_source: int | None = _keys("candidate_source_layer", "candidate_source_layer_id")
    norm_eps: float = _keys("norm_eps", "rms_norm_eps")
    rope_theta: float = _keys("rope_theta", "rope_theta")  # of layers with ratio 0
    compress_rope_theta: float = _keys("compress_rope_theta", "compress_rope_theta")  # of the others, with YaRN
    original_seq_len: int = _keys("original_seq_len", "rope_scaling.original_max_position_embeddings")
    rope_factor: float = _keys("rope_factor", "rope_scaling.factor")
    beta_fast: float = _keys("beta_fast", "rope_scaling.beta_fast")
    beta_slow: float = _keys("beta_slow", "rope_scaling.beta_slow")
    n_layers: int = _keys("n_layers", "num_hidden_layers")
    compress_ratios: tuple[int, ...] = _keys("compress_ratios", "compress_ratios")
    kv_sources: tuple[int, ...] = _keys("kv_source_layers", "kv_source_layer_ids")
    index_sources: tuple[int, ...] = _keys("index_source_layers", "index_source_layer_ids")
    max_seq: int = _keys("max_seq_len", "max_position_embeddings")
    weight_block: tuple[int, ...] = _keys(
        "weight_block_size", "quantization_config.weight_block_size", default=(32, 32)
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check_type(field.name, field.type, getattr(self, field.name))
        at_least_0 = {"original_seq_len"}  # 0: no YaRN
        if self.candidate_source is None:
            at_least_0 |= {"candidate_topk_blocks", "candidate_block_size"}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type is int and value < (0 if field.name in at_least_0 else 1):
                raise ConfigError(field.name, f"at least {0 if field.name in at_least_0 else 1}", value)
        self._check_sizes()
        self._check_rope()
        self._check_layers()

    def _check_sizes(self) -> None:
        """What splitting into groups of heads and into quantiser blocks needs."""
        if self.n_heads % self.o_groups:
            raise ConfigError("n_heads", f"a multiple of o_groups ({self.o_groups})", self.n_heads)
        if self.rope_dim % 2:
            raise ConfigError("rope_dim", "an even number, since pairs rotate", self.rope_dim)
        for name in ("head_dim", "index_head_dim"):
            if self.rope_dim > getattr(self, name):
                raise ConfigError("rope_dim", f"at most {name} ({getattr(self, name)})", self.rope_dim)
        # a window row and a compressed row have head_dim elements, an index key has index_head_dim
        row_block = math.lcm(WINDOW_BLOCK, LATENT_BLOCK)
        for name, block in (("head_dim", row_block), ("index_head_dim", INDEX_BLOCK)):
            if getattr(self, name) % block:
                raise ConfigError(name, f"a multiple of {block}, the quantiser's block", getattr(self, name))
        if len(self.weight_block) != 2 or min(self.weight_block) < 1:
            raise ConfigError("weight_block", "two sizes of at least 1", self.weight_block)

    def _check_rope(self) -> None:
        if self.norm_eps <= 0:
            raise ConfigError("norm_eps", "above 0, or a row of zeros has no norm", self.norm_eps)
        for name in ("rope_theta", "compress_rope_theta"):
            if getattr(self, name) <= 1:
                raise ConfigError(name, "above 1, since YaRN divides by its logarithm", getattr(self, name))
        for name in ("rope_factor", "beta_fast", "beta_slow"):
            if getattr(self, name) <= 0:
                raise ConfigError(name, "above 0", getattr(self, name))

    def _check_layers(self) -> None:
        if len(self.compress_ratios) != self.n_layers:
            raise ConfigError("compress_ratios", f"{self.n_layers}, one a layer", f"{len(self.compress_ratios)}")
        if min(self.compress_ratios) < 0:
            raise ConfigError("compress_ratios", "at least 0 each", self.compress_ratios)
        for name in ("kv_sources", "index_sources"):
            sources = getattr(self, name)
            if list(sources) != sorted(set(sources)):
                raise ConfigError(name, "ascending layers, each once", sources)
            for source in sources:
                if not 0 <= source < self.n_layers:
                    raise ConfigError(name, f"layers within 0..{self.n_layers - 1}", source)
                if self.compress_ratios[source] == 0:
                    raise ConfigError(name, "layers with a compress ratio above 0", f"layer {source} with ratio 0")
        if self.candidate_source is not None and self.candidate_source not in self.index_sources:
            raise ConfigError(
                "candidate_source", f"None or one of the index sources {self.index_sources}", self.candidate_source
            )

    @property
    def softmax_scale(self) -> float:
        """What sparse attention multiplies a logit by, rounded to f32."""
        return float(np.float32(self.head_dim**-0.5))

    @property
    def index_scale(self) -> float:
        """What the index head weights are multiplied by, rounded to f32."""
        return float(np.float32(self.index_head_dim**-0.5 * self.index_n_heads**-0.5))

    @property
    def group_dim(self) -> int:
        """Elements of one group of heads: the columns of wo_a."""
        return self.n_heads // self.o_groups * self.head_dim

    @classmethod
    def from_json(cls, path: str | pathlib.Path) -> "AttnV41Cfg":
        """Read an inference/config.json or a Hugging Face config.json; keys that are not the attention's are ignored.

        Ratios beyond n_layers belong to draft blocks and are cut off. A config without a maximum length gets the one
        that YaRN stretches to (original_seq_len * rope_factor); one that says nothing about candidates has none; one
        without a block size has 32 x 32.
        Raises ConfigError naming file, key, expected and got; OSError when the file cannot be read.
        """
        path = pathlib.Path(path)
        config = _load(path)
        values: dict[str, Any] = {}
        keys: dict[str, str] = {}  # by which the file names each field
        for field in dataclasses.fields(cls):
            keys[field.name], value = _find(path, config, field)
            if value is not MISSING:
                values[field.name] = value
        _fill_in(values)
        try:
            for field in dataclasses.fields(cls):
                if field.name in values:
                    _check_type(field.name, field.type, values[field.name])
                elif field.default is dataclasses.MISSING:
                    raise ConfigError(field.name, "this key", "a file without it")
            values["compress_ratios"] = values["compress_ratios"][: values["n_layers"]]
            return cls(**values)
        except ConfigError as error:
            raise ConfigError(f"{path}: {keys[error.where]}", error.expected, error.got) from None

    def to_json(self, path: str | pathlib.Path) -> None:
        """Write the reference code's flat file."""
        values = {KEYS[field.name][0]: getattr(self, field.name) for field in dataclasses.fields(self)}
        if self.candidate_source is None:
            values["candidate_source_layer"] = NO_CANDIDATES
        pathlib.Path(path).write_text(json.dumps(values, indent=1) + "\n")


KEYS: dict[str, tuple[str, str]] = {field.name: field.metadata["keys"] for field in dataclasses.fields(AttnV41Cfg)}


def _check_type(name: str, kind: Any, value: Any) -> None:
    """Refuse a value of another type than the field's; a whole number also is a float."""
    if kind is int:
        ok, expected = _is_int(value), "a whole number"
    elif kind is float:
        ok = _is_int(value) or (isinstance(value, float) and math.isfinite(value))
        expected = "a finite number"
    elif kind == int | None:
        ok, expected = value is None or _is_int(value), "a layer or None"
    else:
        ok, expected = isinstance(value, tuple) and all(map(_is_int, value)), "whole numbers"
    if not ok:
        raise ConfigError(name, expected, repr(value))


def _is_int(value: Any) -> bool:
    """Whether a value is a whole number that 64 bits hold; a bool is no number."""
    return isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63


def _load(path: pathlib.Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConfigError(str(path), "JSON", f"something else ({error})") from None
    if not isinstance(config, dict):
        raise ConfigError(str(path), "a JSON object", type(config).__name__)
    scaling = _walk(config, "rope_scaling")
    if isinstance(scaling, dict):
        kind = scaling.get("rope_type", scaling.get("type", "yarn"))
        if kind != "yarn":
            raise ConfigError(f"{path}: rope_scaling.rope_type", "'yarn'", repr(kind))
    return config


def _walk(config: dict[str, Any], key: str) -> Any:
    """The value at a dotted path, inside text_config or else beside it; MISSING if there is none."""
    for scope in (config.get("text_config"), config):
        for name in key.split("."):
            scope = scope.get(name, MISSING) if isinstance(scope, dict) else MISSING
        if scope is not MISSING:
            return scope
    return MISSING


def _find(path: pathlib.Path, config: dict[str, Any], field: "dataclasses.Field[Any]") -> tuple[str, Any]:
    """The key by which the file names a field, and the value as the field holds it; MISSING where it has none.

    A value of the wrong type comes back as it is, to be refused under its key. A null counts as missing, but for
    candidate_source, where it says that there is none.
    """
    names = dict.fromkeys(KEYS[field.name])
    found = {name: value for name in names if (value := _walk(config, name)) is not MISSING}
    if not found:
        return " or ".join(names), MISSING
    key, *others = found
    value = found[key]
    for other in others:
        if found[other] != value:
            raise ConfigError(f"{path}: {other}", f"the value of {key}, {value!r}", repr(found[other]))
    if field.name == "candidate_source":
        return key, None if value == NO_CANDIDATES else value
    if isinstance(value, list):
        return key, tuple(value)
    if field.type is float and _is_int(value):
        return key, float(value)
    return key, MISSING if value is None else value


def _fill_in(values: dict[str, Any]) -> None:
    """What a file may leave out because its other values say it."""
    if values.setdefault("candidate_source", None) is None:
        for name in ("candidate_topk_blocks", "candidate_block_size"):
            values.setdefault(name, 0)
    length, factor = values.get("original_seq_len", MISSING), values.get("rope_factor", MISSING)
    if _is_int(length) and isinstance(factor, float) and math.isfinite(length * factor):
        values.setdefault("max_seq", int(length * factor))


FLASH = AttnV41Cfg(
    dim=5120,
    n_heads=64,
    head_dim=512,
    rope_dim=64,
    q_lora_rank=1280,
    o_groups=8,
    o_lora_rank=1024,
    window=128,
    index_n_heads=32,
    index_head_dim=128,
    index_topk=512,
    candidate_topk_blocks=2048,
    candidate_block_size=8,
    candidate_source=20,
    norm_eps=1e-20,
    rope_theta=10000.0,
    compress_rope_theta=160000.0,
    original_seq_len=65536,
    rope_factor=16.0,
    beta_fast=32.0,
    beta_slow=1.0,
    n_layers=40,
    compress_ratios=(0,) * 2 + (2,) * 18 + (1,) * 20,
    kv_sources=(2, 8, 14, 20),
    index_sources=(2, 8, 14, 20, 24, 28, 32, 36),
    max_seq=1048576,
)
"""The released geometry."""

TINY = dataclasses.replace(
    FLASH,
    dim=64,
    n_heads=4,
    head_dim=64,
    rope_dim=16,
    q_lora_rank=32,
    o_groups=2,
    o_lora_rank=16,
    window=8,
    index_n_heads=4,
    index_head_dim=32,
    index_topk=4,
    candidate_topk_blocks=3,
    candidate_block_size=2,
    norm_eps=1e-6,
    original_seq_len=64,
    max_seq=64,
)
"""The same layers, small: the geometry of the recordings."""
