"""Weights: the released checkpoint layout, read layer by layer.

::

    tensor_specs   which tensors a layer's role has, their shapes and types: the table that the rest follows
    Checkpoint     files and folders, later ones overriding earlier ones -> the weights of one layer at a time
    random_weights the recipe of the tiny checkpoint, for any geometry
"""

import json
import pathlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dsv41_numba.config import AttnV41Cfg
from dsv41_numba.formats.bf16 import BF16, as_bf16
from dsv41_numba.formats.e4m3 import E4M3_NAN, e4m3_to_f32
from dsv41_numba.formats.e8m0 import E8M0_NAN, e8m0_to_f32
from dsv41_numba.formats.fp8_weight import Fp8Weight
from dsv41_numba.roles import LayerRole, roles
from dsv41_numba.tensors import RawTensor, TensorFile, WeightsError


@dataclass(frozen=True, eq=False)
class CompressorWeights:
    """What makes compressed rows, on FULL layers. At ratio 1 wkv is bf16 and there is no gate, above that both are f32.

    wkv [head_dim, dim], norm [head_dim] f32, wgate [head_dim, dim] or None
    """

    wkv: Any
    norm: Any
    wgate: Any = None


@dataclass(frozen=True, eq=False)
class IndexerWeights:
    """What selects, on FULL and REINDEX layers; wk and k_norm, which make index keys, on FULL layers only.

    wq_b [index_n_heads * index_head_dim, q_lora_rank] bf16, weights_proj [index_n_heads, dim] bf16,
    wk [index_head_dim, head_dim] bf16 or None, k_norm [index_head_dim] f32 or None
    """

    wq_b: Any
    weights_proj: Any
    wk: Any = None
    k_norm: Any = None


@dataclass(frozen=True, eq=False)
class AttnV41LayerWeights:
    """The attention weights of one layer, under the checkpoint's names. Matrices are [out, in].

    wq_a [q_lora_rank, dim] bf16, q_norm [q_lora_rank] f32, wq_b [n_heads * head_dim, q_lora_rank] bf16,
    wkv [head_dim, dim] bf16, kv_norm [head_dim] f32, attn_sink [n_heads] f32,
    wo_a [o_groups * o_lora_rank, n_heads / o_groups * head_dim] bf16, wo_b [dim, o_groups * o_lora_rank] bf16
    Those of FP8_LINEARS may be an `Fp8Weight` of this shape instead.
    """

    wq_a: Any
    q_norm: Any
    wq_b: Any
    wkv: Any
    kv_norm: Any
    attn_sink: Any
    wo_a: Any
    wo_b: Any
    compressor: CompressorWeights | None = None
    indexer: IndexerWeights | None = None


# The matrices that linear="fp8" keeps as codes: those that the official code multiplies so. wo_a is not among them
FP8_LINEARS = ("wq_a", "wq_b", "wkv", "wo_b", "indexer.wq_b")
LINEARS = ("bf16", "fp8")


@dataclass(frozen=True)
class TensorSpec:
    """What a layer expects of one tensor.

    shape   the logical shape
    dtype   "bf16" or "f32": what the layer computes with
    finite  whether infinities are a fault
    """

    shape: tuple[int, ...]
    dtype: str
    finite: bool = True


def tensor_specs(cfg: AttnV41Cfg, role: LayerRole) -> dict[str, TensorSpec]:
    """The tensors of a layer with this role, by name without `layers.L.attn.` and `.weight`."""
    D, Di, rank = cfg.head_dim, cfg.index_head_dim, cfg.q_lora_rank
    o_rows = cfg.o_groups * cfg.o_lora_rank
    specs = {
        "wq_a": TensorSpec((rank, cfg.dim), "bf16"),
        "q_norm": TensorSpec((rank,), "f32"),
        "wq_b": TensorSpec((cfg.n_heads * D, rank), "bf16"),
        "wkv": TensorSpec((D, cfg.dim), "bf16"),
        "kv_norm": TensorSpec((D,), "f32"),
        "attn_sink": TensorSpec((cfg.n_heads,), "f32", finite=False),  # -inf: this head has no sink
        "wo_a": TensorSpec((o_rows, cfg.group_dim), "bf16"),
        "wo_b": TensorSpec((cfg.dim, o_rows), "bf16"),
    }
    if role.is_kv_source:
        gated = role.ratio > 1
        specs["compressor.wkv"] = TensorSpec((D, cfg.dim), "f32" if gated else "bf16")
        if gated:
            specs["compressor.wgate"] = TensorSpec((D, cfg.dim), "f32")
        specs["compressor.norm"] = TensorSpec((D,), "f32")
    if role.is_index_source:
        specs["indexer.wq_b"] = TensorSpec((cfg.index_n_heads * Di, rank), "bf16")
        specs["indexer.weights_proj"] = TensorSpec((cfg.index_n_heads, cfg.dim), "bf16")
    if role.is_kv_source:
        specs["indexer.wk"] = TensorSpec((Di, D), "bf16")
        specs["indexer.k_norm"] = TensorSpec((Di,), "f32")
    return specs


def assemble(arrays: Mapping[str, Any]) -> AttnV41LayerWeights:
    """The dataclasses of the arrays of `tensor_specs`, wherever those live."""

    def part(prefix: str) -> dict[str, Any]:
        return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}

    compressor, indexer = part("compressor."), part("indexer.")
    return AttnV41LayerWeights(
        **{name: array for name, array in arrays.items() if "." not in name},
        compressor=CompressorWeights(**compressor) if compressor else None,
        indexer=IndexerWeights(**indexer) if indexer else None,
    )


@dataclass(frozen=True)
class _Place:
    """Where a tensor is: the file, and its name there, which may begin with `model.`."""

    path: pathlib.Path
    name: str


ATTENTION_NAME = re.compile(r"(?:model\.)?(layers\.(0|[1-9][0-9]{0,8})\.attn\.(.+))")
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"


class Checkpoint:
    """The attention weights of a released checkpoint, read layer by layer.

    paths   folders (config.json and model.safetensors, or shards with model.safetensors.index.json) and single files.
            Of several, later ones override earlier ones tensor by tensor; a weight takes the place of an earlier
            weight and its scale
    cfg     the geometry; None reads the config.json of the last folder
    linear  "bf16": every fp8 weight is dequantised when its layer is read. "fp8": those of FP8_LINEARS come as an
            `Fp8Weight`, codes and scales as they are stored; one that is stored as something else is an error
    Names may begin with `model.`; what is not attention is ignored.
    Raises OSError when a file cannot be opened, ConfigError for the config, WeightsError for the rest.
    """

    def __init__(
        self, *paths: str | pathlib.Path, cfg: AttnV41Cfg | None = None, linear: Literal["bf16", "fp8"] = "bf16"
    ) -> None:
        self.paths = tuple(pathlib.Path(path) for path in paths)
        if not self.paths:
            raise ValueError("paths: expected at least one checkpoint file or folder, got none")
        if linear not in LINEARS:
            raise ValueError(f"linear: expected one of {', '.join(LINEARS)}, got {linear!r}")
        self.linear = linear
        self.cfg = cfg if cfg is not None else AttnV41Cfg.from_json(self._config_path())
        self.roles = roles(self.cfg)
        self._files: dict[pathlib.Path, TensorFile] = {}
        self._places: dict[int, dict[str, _Place]] = {}
        for path in self.paths:
            for layer, places in self._places_of(path).items():
                merged = self._places.setdefault(layer, {})
                for name in places:
                    if name.endswith(".weight"):
                        merged.pop(name.removesuffix("weight") + "scale", None)
                merged.update(places)

    def layer(self, layer: int) -> AttnV41LayerWeights:
        """The weights of one layer, host arrays of their own: bf16 matrices as ml_dtypes.bfloat16, f32 for the rest.

        Only this layer's tensors are read. fp8 weights are dequantised, which is exact, or kept (see `linear`); bf16 is
        widened where f32 is wanted, f32 narrowed where bf16 is wanted and holds every value.
        Raises WeightsError: missing or surplus tensors for the layer's role, a wrong shape or type, fp8 without a
        scale, a scale byte 0xFF, NaN or infinity, a value that bf16 would round.
        """
        if not 0 <= layer < self.cfg.n_layers:
            raise ValueError(f"layer: expected one of 0..{self.cfg.n_layers - 1}, got {layer}")
        specs = tensor_specs(self.cfg, self.roles[layer])
        places = self._places.get(layer, {})
        self._check_names(layer, specs, places)
        arrays: dict[str, Any] = {}
        for name, spec in specs.items():
            weight = self._stored(places[_weight_name(name)])
            scale = self._stored(places[f"{name}.scale"]) if f"{name}.scale" in places else None
            convert = _keep_codes if self.linear == "fp8" and name in FP8_LINEARS else _convert
            arrays[name] = convert(weight, scale, spec, self.cfg.weight_block)
        return assemble(arrays)

    def _check_names(self, layer: int, specs: Mapping[str, TensorSpec], places: Mapping[str, _Place]) -> None:
        """Refuse a layer that lacks a tensor of its role, or has one that its role does not have."""
        role = self.roles[layer]
        what = f"for layer {layer}, {role.kind} with ratio {role.ratio}"
        missing = [name for name in map(_weight_name, specs) if name not in places]
        known = {_weight_name(name) for name in specs} | {f"{name}.scale" for name in specs}
        surplus = [name for name in places if name not in known]
        if surplus:
            path = ", ".join(str(path) for path in dict.fromkeys(places[name].path for name in surplus))
            found = ", ".join(places[name].name for name in surplus)
            also = f"; missing: {', '.join(missing)}" if missing else ""
            raise WeightsError(path, found, f"no such tensor {what}", f"{len(surplus)} of them{also}")
        if missing:
            names = ", ".join(f"layers.{layer}.attn.{name}" for name in missing)
            found = f"none, among {len(places)} of the layer" if places else "no tensor of this layer"
            raise WeightsError(", ".join(map(str, self.paths)), names, f"this tensor {what}", found)

    def _config_path(self) -> pathlib.Path:
        for folder in reversed(self.paths):
            if (folder / "config.json").is_file():
                return folder / "config.json"
        where = ", ".join(map(str, self.paths))
        raise ValueError(f"cfg: expected a configuration, or a config.json in {where}, got none")

    def _places_of(self, path: pathlib.Path) -> dict[int, dict[str, _Place]]:
        """The attention tensors of one file or folder: layer -> name without `layers.L.attn.` -> place."""
        places: dict[int, dict[str, _Place]] = {}
        for name, shard in self._names_of(path):
            match = ATTENTION_NAME.fullmatch(name)
            if match is None:
                continue
            in_layer = places.setdefault(int(match[2]), {})
            if match[3] in in_layer:
                raise WeightsError(path, match[1], "one tensor of this name", f"{in_layer[match[3]].name} and {name}")
            in_layer[match[3]] = _Place(shard, name)
        return places

    def _names_of(self, path: pathlib.Path) -> Iterable[tuple[str, pathlib.Path]]:
        """Every tensor name of one file or folder, with the file that holds it. Shards are not opened."""
        if path.is_dir() and not (path / SINGLE_NAME).is_file():
            return _read_index(path)
        file = path / SINGLE_NAME if path.is_dir() else path
        return [(name, file) for name in self._open(file)]

    def _open(self, path: pathlib.Path) -> TensorFile:
        if path not in self._files:
            self._files[path] = TensorFile(path)
        return self._files[path]

    def _stored(self, place: _Place) -> "_Stored":
        file = self._open(place.path)
        if place.name not in file:
            raise WeightsError(place.path, place.name, f"this tensor, as {INDEX_NAME} says", "none")
        return _Stored(place.path, file[place.name])


def _weight_name(name: str) -> str:
    """The stored name of a spec's tensor."""
    return name if name == "attn_sink" else f"{name}.weight"


def _read_index(folder: pathlib.Path) -> list[tuple[str, pathlib.Path]]:
    """The names and shards of a folder's index; every shard that it names must be there."""
    path = folder / INDEX_NAME
    if not path.is_file():
        raise WeightsError(folder, "folder", f"{SINGLE_NAME} or {INDEX_NAME}", "neither")
    try:
        index = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise WeightsError(path, "index", "JSON", f"something else ({error})") from None
    shards = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
        raise WeightsError(path, "weight_map", "an object of tensor names and their shards", repr(shards)[:80])
    for shard in dict.fromkeys(shards.values()):
        if not (folder / shard).is_file():
            names = [name for name in shards if shards[name] == shard]
            raise WeightsError(path, f"{names[0]} (of {len(names)})", f"the shard {shard} in {folder}", "no such file")
    return [(name, folder / shard) for name, shard in shards.items()]


@dataclass(frozen=True)
class _Stored:
    """A tensor and the file it came from, for messages."""

    path: pathlib.Path
    raw: RawTensor

    def fault(self, expected: str, found: object) -> WeightsError:
        return WeightsError(self.path, self.raw.name, expected, found)

    def check(self, dtypes: tuple[str, ...], shape: tuple[int, ...]) -> None:
        if self.raw.dtype not in dtypes:
            raise self.fault(f"type {' or '.join(dtypes)}", self.raw.dtype)
        if self.raw.shape != shape:
            raise self.fault(f"shape {list(shape)}", list(self.raw.shape))


def _convert(weight: _Stored, scale: _Stored | None, spec: TensorSpec, block: tuple[int, ...]) -> np.ndarray:
    """A stored tensor as the layer computes with it, an array of its own. Exact, or WeightsError."""
    in_bf16 = spec.dtype == "bf16"
    weight.check(("BF16", "F8_E4M3", "F32") if in_bf16 else ("F32", "BF16"), spec.shape)
    if weight.raw.dtype == "F8_E4M3":
        return _dequantise(weight, _checked_scale(weight, scale, spec, block), block)
    if scale is not None:
        raise scale.fault(f"no scale beside a weight of type {weight.raw.dtype}", "one")
    values = weight.raw.array()
    bad = ~np.isfinite(values) if spec.finite else np.isnan(values)
    if bad.any():
        at = _first(bad)
        raise weight.fault("finite numbers" if spec.finite else "numbers", f"{values[at]} at {list(at)}")
    if not in_bf16:
        return values.astype(np.float32)
    if weight.raw.dtype == "BF16":
        return values.copy()
    bits, exact = _narrow(values)
    if not exact.all():
        at = _first(~exact)
        raise weight.fault("values that bf16 holds, in which this matrix is used", f"{values[at]} at {list(at)}")
    return bits.view(BF16)


def _keep_codes(weight: _Stored, scale: _Stored | None, spec: TensorSpec, block: tuple[int, ...]) -> Fp8Weight:
    """A stored tensor for the fp8 linear: the bytes of the file, copied."""
    if weight.raw.dtype != "F8_E4M3":
        raise weight.fault('type F8_E4M3, for linear="fp8"', f'{weight.raw.dtype}; linear="bf16" takes it')
    weight.check(("F8_E4M3",), spec.shape)
    checked = _checked_scale(weight, scale, spec, block)
    return Fp8Weight(weight.raw.data.copy(), checked.raw.data.copy(), block)


def _checked_scale(weight: _Stored, scale: _Stored | None, spec: TensorSpec, block: tuple[int, ...]) -> _Stored:
    """The scale of an fp8 weight, after a look at both: it is there, it fits, and neither has a NaN."""
    if scale is None:
        raise weight.fault(f"a tensor {weight.raw.name.removesuffix('weight')}scale beside an fp8 weight", "none")
    scale.check(("F8_E8M0",), tuple(-(-size // of) for size, of in zip(spec.shape, block)))
    codes, scales = weight.raw.data, scale.raw.data
    if (scales == E8M0_NAN).any():
        raise scale.fault("powers of two", f"byte 0xFF (NaN) in block {list(_first(scales == E8M0_NAN))}")
    is_nan = (codes & E4M3_NAN) == E4M3_NAN
    if is_nan.any():
        at = _first(is_nan)
        raise weight.fault("numbers", f"code 0x{codes[at]:02X} (NaN) at {list(at)}")
    return scale


def _dequantise(weight: _Stored, scale: _Stored, block: tuple[int, ...]) -> np.ndarray:
    """codes [out, in] e4m3 times scales [ceil(out / rows), ceil(in / columns)] e8m0 -> [out, in] bf16, exactly.

    A code has 4 significant bits and a scale is a power of two, so the product fits bf16 unless it leaves its range.
    """
    codes, scales = weight.raw.data, scale.raw.data
    rows, columns = block
    bits = np.empty(codes.shape, np.uint16)
    for i, row_of_scales in enumerate(e8m0_to_f32(scales)):  # a row of blocks at a time: the f32 copy stays small
        chunk = codes[i * rows : (i + 1) * rows]
        with np.errstate(over="ignore"):
            values = e4m3_to_f32(chunk) * np.repeat(row_of_scales, columns)[: codes.shape[1]]
        bits[i * rows : (i + 1) * rows], exact = _narrow(values)
        if not exact.all():
            row, column = _first(~exact)
            raise weight.fault(
                "code times scale within bf16's range",
                f"code 0x{chunk[row, column]:02X} times scale byte {scales[i, column // columns]} "
                f"at [{i * rows + row}, {column}]",
            )
    return bits.view(BF16)


def _narrow(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """f32 -> the upper half of each as uint16, and where that is the same finite number."""
    bits = values.view(np.uint32)
    return (bits >> np.uint32(16)).astype(np.uint16), ((bits & np.uint32(0xFFFF)) == 0) & np.isfinite(values)


def _first(mask: np.ndarray) -> tuple[int, ...]:
    """The index of the first True."""
    return tuple(int(i) for i in np.unravel_index(int(mask.argmax()), mask.shape))


# the order of the recipe's streams
RANDOM_STREAMS = (
    "wq_a",
    "q_norm",
    "wq_b",
    "wkv",
    "kv_norm",
    "attn_sink",
    "wo_a",
    "wo_b",
    "compressor.wkv",
    "compressor.wgate",
    "compressor.norm",
    "indexer.wq_b",
    "indexer.weights_proj",
    "indexer.wk",
    "indexer.k_norm",
)


def random_weights(cfg: AttnV41Cfg, layer: int, seed_base: int = 41_000_000) -> AttnV41LayerWeights:
    """Random weights of one layer, the same on every machine. With the tiny geometry they are the tiny checkpoint.

    Each tensor has its own PCG64 stream of standard normals, seed seed_base + 1000 * layer + its place in
    RANDOM_STREAMS: norms are 1 + 0.1 v, the sink is v, matrices are v / sqrt(columns), rounded to f32, then to bf16
    where the layer computes in bf16.
    """
    if not 0 <= layer < cfg.n_layers:
        raise ValueError(f"layer: expected one of 0..{cfg.n_layers - 1}, got {layer}")
    arrays = {}
    for name, spec in tensor_specs(cfg, roles(cfg)[layer]).items():
        seed = seed_base + 1000 * layer + RANDOM_STREAMS.index(name)
        values = np.random.Generator(np.random.PCG64(seed)).standard_normal(spec.shape)
        if len(spec.shape) == 2:
            values /= np.sqrt(spec.shape[1])
        elif name.endswith("norm"):
            values = 1 + 0.1 * values
        narrowed = values.astype(np.float32)
        arrays[name] = as_bf16(narrowed) if spec.dtype == "bf16" else narrowed
    return assemble(arrays)
