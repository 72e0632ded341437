import dataclasses
import json
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from conftest import GOLDEN
from dsv41_numba.compare import same_bits
from dsv41_numba.config import TINY
from dsv41_numba.formats.bf16 import as_bf16
from dsv41_numba.formats.e4m3 import e4m3_to_f32
from dsv41_numba.formats.e8m0 import e8m0_to_f32
from dsv41_numba.formats.fp8_weight import Fp8Weight
from dsv41_numba.roles import roles
from dsv41_numba.tensors import RawTensor, WeightsError, open_tensors, write_tensors
from dsv41_numba.weights import Checkpoint, random_weights, tensor_specs

BF16 = ml_dtypes.bfloat16
TINY_WEIGHTS = GOLDEN / "tiny-weights.safetensors"
FP8_WEIGHTS = GOLDEN / "tiny-fp8-weights.safetensors"
FP8_NAMES = {"wq_a", "wq_b", "wkv", "wo_a", "wo_b", "indexer.wq_b"}


def arrays_of(weights, prefix=""):
    """A layer's arrays by their names in the checkpoint, without `layers.L.attn.` and `.weight`."""
    arrays = {}
    for field in dataclasses.fields(weights):
        value = getattr(weights, field.name)
        if dataclasses.is_dataclass(value):
            arrays |= arrays_of(value, f"{field.name}.")
        elif value is not None:
            arrays[prefix + field.name] = value
    return arrays


def assert_same(got, expected):
    got, expected = arrays_of(got), arrays_of(expected)
    assert got.keys() == expected.keys()
    for name in got:
        assert same_bits(got[name], expected[name]), name


def tensors_of_layer(layer, file=TINY_WEIGHTS):
    """The raw tensors of one layer of a golden file, free to be damaged."""
    tensors = open_tensors(file)
    return {name: tensors[name] for name in tensors if name.startswith(f"layers.{layer}.")}


def layer_of(tmp_path, tensors, layer, cfg=TINY):
    """What a checkpoint file of these tensors gives for a layer."""
    path = tmp_path / "made.safetensors"
    write_tensors(path, tensors)
    return Checkpoint(path, cfg=cfg).layer(layer)


def changed(tensor, at, bits):
    """The tensor with one element's bits replaced."""
    data = tensor.data.copy()
    data[at] = bits
    return dataclasses.replace(tensor, data=data)


def file_of(path, header, data=b""):
    """A file with this header, whatever it says."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


# safetensors files


def test_tensors_have_their_raw_types(tmp_path):
    """Hard case 15: types that NumPy does not have come as bits, with the type's name."""
    header = {
        "__metadata__": {"made": "by hand"},
        "f32": entry("F32", [2], 0, 8),
        "bf16": entry("BF16", [1, 2], 8, 12),
        "e4m3": entry("F8_E4M3", [3], 12, 15),
        "e8m0": entry("F8_E8M0", [1], 15, 16),
        "f4": entry("F4", [2, 8], 16, 24),
        "empty": entry("I32", [0, 7], 24, 24),
        "scalar": entry("F64", [], 24, 32),
    }
    f4 = bytes.fromhex("91F23A8010325476")
    data = np.array([1.5, -2], "<f4").tobytes() + b"\x80\x3f\x80\xbf" + b"\x38\x7f\x81" + b"\x7f" + f4 + bytes(8)
    tensors = open_tensors(file_of(tmp_path / "hand.safetensors", header, data))
    assert list(tensors) == list(header)[1:] and len(tensors) == 7 and "f4" in tensors and "f5" not in tensors
    assert tensors.metadata == {"made": "by hand"}
    seen = {name: (t.dtype, t.shape, t.data.dtype.name, t.data.shape) for name, t in tensors.items()}
    assert seen["f32"] == ("F32", (2,), "float32", (2,))
    assert seen["bf16"] == ("BF16", (1, 2), "uint16", (1, 2))
    assert seen["e4m3"] == ("F8_E4M3", (3,), "uint8", (3,))
    assert seen["e8m0"] == ("F8_E8M0", (1,), "uint8", (1,))
    assert seen["f4"] == ("F4", (2, 8), "uint8", (2, 4))
    assert seen["empty"] == ("I32", (0, 7), "int32", (0, 7))
    assert seen["scalar"] == ("F64", (), "float64", ())
    assert tensors["bf16"].array().dtype == BF16 and tensors["bf16"].array().tolist() == [[1.0, -1.0]]
    assert tensors["f4"].data.tobytes() == f4
    assert all(t.data.flags.aligned and not t.data.flags.writeable for t in tensors.values())
    with pytest.raises(KeyError):
        tensors["f5"]


def test_tensors_of_an_unknown_type_name_it(tmp_path):
    header = {"fine": entry("U8", [1], 0, 1), "odd": entry("F6_E2M3", [4], 1, 4)}
    tensors = open_tensors(file_of(tmp_path / "six.safetensors", header, bytes(4)))
    assert tensors["fine"].data.tolist() == [0]
    with pytest.raises(WeightsError, match=r"six.safetensors: 'odd': expected one of the types .*, found F6_E2M3"):
        tensors["odd"]


def test_tensors_are_what_the_safetensors_package_reads(tmp_path, rng):
    arrays = {
        "a": rng.standard_normal((3, 5)).astype(np.float32),
        "b": rng.integers(-9, 9, 7).astype(np.int64),
        "c": rng.integers(0, 255, (2, 1, 3)).astype(np.uint8),
        "d": np.array([True, False, True]),
        "e": rng.standard_normal(2).astype(np.float16),
        "f": np.zeros((0, 4), np.int32),
    }
    save_file(arrays, tmp_path / "theirs.safetensors", metadata={"k": "v"})
    ours = open_tensors(tmp_path / "theirs.safetensors")
    assert ours.metadata == {"k": "v"}
    assert all(same_bits(ours[name].array(), array) for name, array in arrays.items())

    write_tensors(tmp_path / "ours.safetensors", {n: RawTensor.of(n, a) for n, a in arrays.items()}, {"k": "v"})
    theirs = load_file(tmp_path / "ours.safetensors")
    assert theirs.keys() == arrays.keys()
    assert all(same_bits(theirs[name], array) for name, array in arrays.items())


def test_tensors_of_every_type_survive_writing(tmp_path, rng):
    made = [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu, np.float64, np.uint16, np.bool_]
    tensors = {str(np.dtype(t)): RawTensor.of("x", np.arange(6).reshape(2, 3).astype(t)) for t in made}
    tensors["f4"] = RawTensor("f4", "F4", (3, 4), rng.integers(0, 255, (3, 2)).astype(np.uint8))
    tensors["scalar"] = RawTensor.of("scalar", np.array(3.5, np.float32))
    path = tmp_path / "all.safetensors"
    write_tensors(path, tensors)
    read = open_tensors(path)
    assert set(read) == set(tensors)
    for name, tensor in tensors.items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape)
        assert same_bits(read[name].data, tensor.data)
    with safe_open(path, "np") as theirs:  # they can read the header of such a file, and agree with its lengths
        assert theirs.get_slice("bfloat16").get_dtype() == "BF16"
        assert theirs.get_slice("float8_e8m0fnu").get_shape() == [2, 3]
    offsets = [offset for _, _, offset, _ in read._entries.values()]
    assert all(offset % read[name].data.dtype.itemsize == 0 for name, offset in zip(read, offsets))


def test_tensors_are_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "kept.safetensors"
    good = RawTensor.of("x", np.arange(3, dtype=np.int32))
    write_tensors(path, {"x": good})
    before = path.read_bytes()
    bad = dataclasses.replace(good, shape=(4,))
    with pytest.raises(ValueError, match=r"y: expected data int32 \[4\] for I32 \[4\], got int32 \[3\]"):
        write_tensors(path, {"x": good, "y": bad})
    with pytest.raises(ValueError, match="__metadata__"):
        write_tensors(path, {"__metadata__": good})
    with pytest.raises(ValueError, match="x: expected a type that safetensors has, got object"):
        RawTensor.of("x", np.array([None]))
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


X = entry("U8", [4], 0, 4)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"{", "header: expected JSON"),
        (b"\xff\xfe{}", "header: expected JSON"),
        (b'{"a":' * 100000, "header: expected JSON"),
        (b"[]", "header: expected a JSON object, found list"),
        (b'{"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"x":{}}', "expected each name once, found 'x' 2 times"),
        ({"__metadata__": {"a": 1}, "x": X}, "__metadata__: expected an object of strings"),
        ({"x": 3}, "'x': expected an object with dtype, shape, data_offsets, found 3"),
        ({"x": {"dtype": "U8", "shape": [4]}}, "'x': expected an object with dtype, shape, data_offsets"),
        ({"x": X | {"dtype": 8}}, "'x': expected a type name, found 8"),
        ({"x": X | {"shape": [-4]}}, "'x': expected a shape of at most 64 whole numbers from 0"),
        ({"x": X | {"shape": [4.0]}}, "'x': expected a shape of at most 64 whole numbers from 0"),
        ({"x": X | {"shape": [True, 4]}}, "'x': expected a shape of at most 64 whole numbers from 0"),
        ({"x": X | {"shape": [5]}}, r"'x': expected 5 bytes for U8 \[5\], found 4 bytes"),
        ({"x": X | {"dtype": "F32"}}, r"'x': expected 16 bytes for F32 \[4\], found 4 bytes"),
        ({"x": X | {"shape": [1 << 40, 1 << 40]}}, "'x': expected 1208925819614629174706176 bytes"),
        ({"x": X | {"shape": [1 << 63, 0]}}, "'x': expected a shape of at most 64 whole numbers from 0"),
        ({"x": X | {"shape": [1] * 65}}, "'x': expected a shape of at most 64 whole numbers from 0"),
        ({"x": [9] * 100000}, r"'x': expected an object with .* found \[9, [9, ]*\.\.\.$"),
        ({"x": X | {"dtype": "F4", "shape": [8, 1]}}, r"'x': expected an even last axis for F4, found shape \[8, 1\]"),
        ({"x": entry("U8", [5], 0, 5)}, r"'x': expected bytes within the 4 .* found 0 to 5; a truncated file"),
        ({"x": entry("U8", [0], 4, 3)}, r"'x': expected data_offsets \[begin, end\]"),
        ({"x": entry("U8", [4], 0, 4), "y": entry("U8", [2], 1, 3)}, "'y': expected data from 4 on.* an overlap: 1"),
        ({"x": entry("U8", [1], 0, 1), "y": entry("U8", [2], 2, 4)}, "'y': expected data from 1 on.* a gap: 2"),
        ({"x": entry("U8", [3], 0, 3)}, "header: expected tensors that fill 4 bytes, found 3 bytes of tensors"),
    ],
)
def test_tensors_refuse_a_header_that_lies(tmp_path, header, message):
    path = file_of(tmp_path / "lies.safetensors", header, bytes(4))
    with pytest.raises(WeightsError, match=f"lies.safetensors: .*{message}"):
        open_tensors(path)


def test_tensors_refuse_a_shape_beyond_numpy(tmp_path):
    header = {"x": entry("U8", [0, 1 << 62, 1 << 62], 0, 0)}
    tensors = open_tensors(file_of(tmp_path / "deep.safetensors", header))
    with pytest.raises(WeightsError, match="'x': expected a shape that NumPy can hold"):
        tensors["x"]


def test_tensors_refuse_a_file_cut_anywhere(tmp_path):
    whole = tmp_path / "whole.safetensors"
    write_tensors(whole, {"a": RawTensor.of("a", np.arange(5, dtype=np.float32))})
    content = whole.read_bytes()
    cut = tmp_path / "cut.safetensors"
    for length in range(len(content)):
        cut.write_bytes(content[:length])
        with pytest.raises(WeightsError, match=r"cut.safetensors: "):
            open_tensors(cut)


def test_tensors_refuse_a_header_longer_than_the_file(tmp_path):
    path = tmp_path / "long.safetensors"
    for length in (9, 1 << 20, (1 << 64) - 1):
        path.write_bytes(struct.pack("<Q", length) + bytes(8))
        with pytest.raises(WeightsError, match=f"expected at most 8 bytes in a file of 16, found a length of {length}"):
            open_tensors(path)


SMALL_FILE = json.dumps(
    {
        "__metadata__": {"a": "b"},
        "layers.0.attn.wq_a.weight": entry("F8_E4M3", [3, 4], 0, 12),
        "layers.0.attn.wq_a.scale": entry("F8_E8M0", [1, 1], 12, 13),
        "layers.0.attn.q_norm.weight": entry("F32", [3], 13, 25),
        "e": entry("BF16", [0, 9], 25, 25),
        "f": entry("F4", [2, 2], 25, 27),
    }
).encode()
SMALL_FILE = struct.pack("<Q", len(SMALL_FILE)) + SMALL_FILE + bytes(range(27))


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    flips=st.lists(st.tuples(st.integers(0, len(SMALL_FILE) - 1), st.integers(1, 255)), max_size=4),
    cut=st.integers(0, len(SMALL_FILE)),
    is_cut=st.booleans(),
)
@example(flips=[], cut=0, is_cut=False)
def test_tensors_of_a_damaged_file_are_read_or_refused(tmp_path, flips, cut, is_cut):
    content = bytearray(SMALL_FILE)
    for at, mask in flips:
        content[at] ^= mask
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(content[:cut] if is_cut else content)
    try:
        read = list(open_tensors(path).values())
    except WeightsError as error:
        assert str(error).startswith(f"{path}: ")
    else:  # what was read can only be bytes that are in the file
        assert sum(tensor.data.nbytes for tensor in read) <= len(content)
    try:
        Checkpoint(path, cfg=TINY).layer(0)
    except WeightsError as error:
        assert str(path) in str(error)
    else:
        raise AssertionError("a file without wkv gave a layer")


# the checkpoint


@pytest.fixture(scope="module")
def tiny():
    return Checkpoint(TINY_WEIGHTS, cfg=TINY)


def test_checkpoint_gives_every_layer_of_the_tiny_weights(tiny):
    stored = open_tensors(TINY_WEIGHTS)
    seen = 0
    for role in roles(TINY):
        arrays = arrays_of(tiny.layer(role.layer))
        assert arrays.keys() == tensor_specs(TINY, role).keys()
        for name, array in arrays.items():
            suffix = "" if name == "attn_sink" else ".weight"
            assert same_bits(array, stored[f"layers.{role.layer}.attn.{name}{suffix}"].array())
            assert array.flags.c_contiguous and array.flags.aligned and array.flags.writeable
            seen += 1
    assert seen == len(stored)
    compressor = tiny.layer(2).compressor
    assert compressor.wkv.dtype == compressor.wgate.dtype == np.float32
    assert tiny.layer(20).compressor.wkv.dtype == BF16 and tiny.layer(20).compressor.wgate is None
    assert tiny.layer(24).indexer.wk is None and tiny.layer(24).compressor is None
    assert tiny.layer(3).indexer is None


def test_checkpoint_is_what_the_recipe_draws(tiny):
    for layer in range(TINY.n_layers):
        assert_same(random_weights(TINY, layer), tiny.layer(layer))


def test_random_weights_have_the_shapes_of_any_geometry():
    cfg = dataclasses.replace(TINY, n_heads=6, o_groups=3, head_dim=96, dim=72, compress_ratios=(0, 4, 4) + (4,) * 37,
                              kv_sources=(1,), index_sources=(1, 2), candidate_source=None)  # fmt: skip
    for role in roles(cfg)[:4]:
        arrays = arrays_of(random_weights(cfg, role.layer, seed_base=7))
        for name, spec in tensor_specs(cfg, role).items():
            assert arrays[name].shape == spec.shape and arrays[name].dtype.name in ("bfloat16", "float32")
    assert random_weights(cfg, 1).wo_a.shape == (48, 192)
    with pytest.raises(ValueError, match=r"layer: expected one of 0..39, got 40"):
        random_weights(cfg, 40)


def test_checkpoint_dequantises_fp8_exactly():
    checkpoint, expected = Checkpoint(FP8_WEIGHTS, cfg=TINY), open_tensors(GOLDEN / "tiny-fp8-dequant.safetensors")
    seen = 0
    for layer in range(TINY.n_layers):
        for name, array in arrays_of(checkpoint.layer(layer)).items():
            if name in FP8_NAMES:
                assert same_bits(array, expected[f"layers.{layer}.attn.{name}.weight"].array())
                seen += 1
    assert seen == len(expected)


def test_checkpoint_keeps_fp8_as_it_is_stored_where_the_linear_is_fp8():
    stored = open_tensors(FP8_WEIGHTS)
    kept, dequantised = Checkpoint(FP8_WEIGHTS, cfg=TINY, linear="fp8"), Checkpoint(FP8_WEIGHTS, cfg=TINY)
    for layer in (0, 2, 24):
        weights = kept.layer(layer)
        indexer = {"indexer.wq_b": weights.indexer.wq_b} if weights.indexer else {}
        of_codes = {name: getattr(weights, name) for name in ("wq_a", "wq_b", "wkv", "wo_b")} | indexer
        for name, weight in of_codes.items():
            full = f"layers.{layer}.attn.{name}"
            assert isinstance(weight, Fp8Weight) and weight.block == (32, 32)
            assert same_bits(weight.codes, stored[f"{full}.weight"].data)
            assert same_bits(weight.scale, stored[f"{full}.scale"].data)
            assert weight.codes.flags.writeable and weight.codes.flags.owndata
        others = arrays_of(dequantised.layer(layer))
        for name in of_codes:
            assert same_bits(as_bf16(of_codes[name].to_f32()), others.pop(name))
        for name, array in others.items():  # wo_a among them
            owner = weights
            for part in name.split("."):
                owner = getattr(owner, part)
            assert same_bits(owner, array), name


@pytest.mark.parametrize("linear", ["bf16", "fp8"])
@pytest.mark.parametrize(
    ("suffix", "bits", "message"),
    [
        ("weight", 0x7F, r"wq_b.weight: expected numbers, found code 0x7F \(NaN\) at \[1, 0\]"),
        ("weight", 0xFF, r"wq_b.weight: expected numbers, found code 0xFF \(NaN\) at \[1, 0\]"),
        ("scale", 0xFF, r"wq_b.scale: expected powers of two, found byte 0xFF \(NaN\) in block \[1, 0\]"),
    ],
)
def test_checkpoint_refuses_fp8_nan_however_it_is_used(tmp_path, linear, suffix, bits, message):
    tensors = tensors_of_layer(3, FP8_WEIGHTS)
    name = f"layers.3.attn.wq_b.{suffix}"
    tensors[name] = changed(tensors[name], (1, 0), bits)
    write_tensors(tmp_path / "made.safetensors", tensors)
    with pytest.raises(WeightsError, match=message):
        Checkpoint(tmp_path / "made.safetensors", cfg=TINY, linear=linear).layer(3)


def test_checkpoint_refuses_another_type_where_the_linear_is_fp8(tmp_path):
    with pytest.raises(
        WeightsError, match=r'wq_a.weight: expected type F8_E4M3, for linear="fp8", found BF16; linear="bf16" takes it'
    ):
        Checkpoint(TINY_WEIGHTS, cfg=TINY, linear="fp8").layer(0)
    with pytest.raises(ValueError, match="linear: expected one of bf16, fp8, got 'fp4'"):
        Checkpoint(TINY_WEIGHTS, cfg=TINY, linear="fp4")
    tensors = tensors_of_layer(3, FP8_WEIGHTS)
    del tensors["layers.3.attn.wkv.scale"]
    write_tensors(tmp_path / "made.safetensors", tensors)
    with pytest.raises(
        WeightsError, match=r"wkv.weight: expected a tensor layers.3.attn.wkv.scale beside an fp8 weight"
    ):
        Checkpoint(tmp_path / "made.safetensors", cfg=TINY, linear="fp8").layer(3)


def test_checkpoint_dequantises_partial_edge_blocks(tmp_path):
    stages = open_tensors(GOLDEN / "stages.safetensors")
    cfg = dataclasses.replace(TINY, dim=72, q_lora_rank=40)
    tensors = as_tensors(random_weights(cfg, 0), 0)
    tensors["layers.0.attn.wq_a.weight"] = stages["fp8w.weight"]
    tensors["layers.0.attn.wq_a.scale"] = stages["fp8w.scale"]
    assert same_bits(layer_of(tmp_path, tensors, 0, cfg).wq_a, stages["fp8w.dequant"].array())


def as_tensors(weights, layer, prefix=""):
    """A layer's arrays as a checkpoint stores them."""
    tensors = {}
    for name, array in arrays_of(weights).items():
        full = f"{prefix}layers.{layer}.attn.{name}{'' if name == 'attn_sink' else '.weight'}"
        tensors[full] = RawTensor.of(full, array)
    return tensors


def test_checkpoint_block_size_comes_from_the_config(tmp_path, rng):
    cfg = dataclasses.replace(TINY, weight_block=(16, 48))
    tensors = tensors_of_layer(0)
    codes = rng.integers(0, 0x7E, (32, 64)).astype(np.uint8) | rng.choice([0, 0x80], (32, 64)).astype(np.uint8)
    scales = rng.integers(100, 150, (2, 2)).astype(np.uint8)
    tensors["layers.0.attn.wq_a.weight"] = RawTensor("w", "F8_E4M3", (32, 64), codes)
    tensors["layers.0.attn.wq_a.scale"] = RawTensor("s", "F8_E8M0", (2, 2), scales)
    expected = e4m3_to_f32(codes) * np.repeat(np.repeat(e8m0_to_f32(scales), 16, 0), 48, 1)[:, :64]
    assert same_bits(layer_of(tmp_path, tensors, 0, cfg).wq_a, expected.astype(BF16))


def test_checkpoint_dequantises_the_ends_of_the_range(tmp_path):
    """The largest and smallest products that bf16 holds are exact; one step further is an error, not a rounding."""
    tensors = tensors_of_layer(0)
    weight, scale = "layers.0.attn.wq_a.weight", "layers.0.attn.wq_a.scale"
    codes = np.full((32, 64), 0x38, np.uint8)  # 1
    codes[0, 0], codes[0, 32] = 0x0F, 0xF8  # 15 * 2^-9, -256
    tensors[weight] = RawTensor(weight, "F8_E4M3", (32, 64), codes)
    tensors[scale] = RawTensor(scale, "F8_E8M0", (1, 2), np.array([[3, 246]], np.uint8))  # 2^-124, 2^119
    wq_a = layer_of(tmp_path, tensors, 0).wq_a.astype(np.float64)
    assert (wq_a[0, 0], wq_a[1, 1], wq_a[0, 32]) == (15 * 2.0**-133, 2.0**-124, -(2.0**127))
    for at, byte in (([0, 0], 2), ([0, 32], 247)):  # half of bf16's smallest number; -2^128
        tensors[scale] = RawTensor(scale, "F8_E8M0", (1, 2), np.array([[byte, byte]], np.uint8))
        with pytest.raises(WeightsError) as error:
            layer_of(tmp_path, tensors, 0)
        assert f"{weight}: expected code times scale within bf16's range" in str(error.value)
        assert f"times scale byte {byte} at {at}" in str(error.value)


def test_checkpoint_overrides_tensor_by_tensor():
    """Scenario D: a file of a few tensors on top of a whole checkpoint."""
    override = GOLDEN / "tiny-D-weights.safetensors"
    over, base = open_tensors(override), open_tensors(TINY_WEIGHTS)
    checkpoint = Checkpoint(TINY_WEIGHTS, override, cfg=TINY)
    for layer in (2, 3, 14, 20, 24):
        arrays = arrays_of(checkpoint.layer(layer))
        for name, array in arrays.items():
            full = f"layers.{layer}.attn.{name}{'' if name == 'attn_sink' else '.weight'}"
            assert same_bits(array, (over if full in over else base)[full].array())
    other_way = Checkpoint(override, TINY_WEIGHTS, cfg=TINY).layer(14)
    assert_same(other_way, Checkpoint(TINY_WEIGHTS, cfg=TINY).layer(14))


def test_checkpoint_overrides_fp8_with_bf16_and_back(tiny):
    quantised = Checkpoint(FP8_WEIGHTS, cfg=TINY)
    for layer in (0, 20):
        assert_same(Checkpoint(FP8_WEIGHTS, TINY_WEIGHTS, cfg=TINY).layer(layer), tiny.layer(layer))
        assert_same(Checkpoint(TINY_WEIGHTS, FP8_WEIGHTS, cfg=TINY).layer(layer), quantised.layer(layer))


def test_checkpoint_overrides_a_scale_alone(tmp_path):
    name = "layers.0.attn.wkv.scale"
    scale = open_tensors(FP8_WEIGHTS)[name]
    write_tensors(tmp_path / "scale.safetensors", {name: dataclasses.replace(scale, data=scale.data + np.uint8(1))})
    doubled = Checkpoint(FP8_WEIGHTS, tmp_path / "scale.safetensors", cfg=TINY).layer(0).wkv
    single = Checkpoint(FP8_WEIGHTS, cfg=TINY).layer(0).wkv
    assert np.array_equal(doubled.astype(np.float32), 2 * single.astype(np.float32))


def sharded(folder, n_shards=3, prefix="model."):
    """The tiny checkpoint as shards, with an index, a config.json and a tensor that is not attention."""
    tensors = open_tensors(TINY_WEIGHTS)
    weight_map, shards = {}, [{} for _ in range(n_shards)]
    for i, name in enumerate(tensors):
        shards[i % n_shards][prefix + name] = tensors[name]
    shards[0]["lm_head.weight"] = RawTensor.of("x", np.ones((2, 2), np.float32))
    shards[0]["model.layers.0.ffn.gate.weight"] = RawTensor.of("x", np.ones((2, 2), np.float32))
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{n_shards:05d}.safetensors"
        write_tensors(folder / file, shard)
        weight_map |= dict.fromkeys(shard, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    TINY.to_json(folder / "config.json")
    return weight_map


@pytest.mark.parametrize("prefix", ["", "model."])
def test_checkpoint_reads_a_sharded_folder_with_its_config(tmp_path, tiny, prefix):
    sharded(tmp_path, prefix=prefix)
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.cfg == TINY
    for layer in (0, 2, 20, 24, 39):
        assert_same(checkpoint.layer(layer), tiny.layer(layer))


def test_checkpoint_reads_a_folder_with_one_file(tmp_path, tiny):
    (tmp_path / "model.safetensors").write_bytes(TINY_WEIGHTS.read_bytes())
    TINY.to_json(tmp_path / "config.json")
    assert_same(Checkpoint(str(tmp_path)).layer(8), tiny.layer(8))


def test_checkpoint_opens_only_the_shards_of_a_layer(tmp_path, tiny):
    names = open_tensors(TINY_WEIGHTS)
    for layer in (0, 1):
        write_tensors(tmp_path / f"{layer}.safetensors", tensors_of_layer(layer))
    (tmp_path / "1.safetensors").write_bytes(b"not a checkpoint")
    weight_map = {name: f"{layer}.safetensors" for layer in (0, 1) for name in names if f"layers.{layer}." in name}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    checkpoint = Checkpoint(tmp_path, cfg=TINY)
    assert_same(checkpoint.layer(0), tiny.layer(0))
    with pytest.raises(WeightsError, match=r"1.safetensors: header"):
        checkpoint.layer(1)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "index: expected JSON"),
        ("[]", "weight_map: expected an object of tensor names and their shards, found None"),
        ('{"weight_map": {"layers.0.attn.wq_a.weight": 3}}', "weight_map: expected an object"),
        (
            '{"weight_map": {"layers.0.attn.wq_a.weight": "gone.safetensors"}}',
            r"layers.0.attn.wq_a.weight \(of 1\): expected the shard gone.safetensors in .*, found no such file",
        ),
    ],
)
def test_checkpoint_refuses_a_broken_index(tmp_path, index, message):
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(WeightsError, match=f"model.safetensors.index.json: {message}"):
        Checkpoint(tmp_path, cfg=TINY)


def test_checkpoint_refuses_an_index_that_names_what_its_shard_lacks(tmp_path):
    weight_map = sharded(tmp_path)
    name = "model.layers.5.attn.wkv.weight"
    weight_map[name] = next(file for file in set(weight_map.values()) if file != weight_map[name])
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(WeightsError, match=f"{weight_map[name]}: {name}: expected this tensor, as .* says, found none"):
        Checkpoint(tmp_path).layer(5)


def test_checkpoint_refuses_what_is_no_checkpoint(tmp_path):
    with pytest.raises(
        WeightsError, match=r"expected model.safetensors or model.safetensors.index.json, found neither"
    ):
        Checkpoint(tmp_path, cfg=TINY)
    with pytest.raises(FileNotFoundError):
        Checkpoint(tmp_path / "nothing", cfg=TINY)
    with pytest.raises(ValueError, match="paths: expected at least one checkpoint file or folder"):
        Checkpoint(cfg=TINY)
    with pytest.raises(ValueError, match=r"cfg: expected a configuration, or a config.json in"):
        Checkpoint(TINY_WEIGHTS)
    with pytest.raises(ValueError, match=r"layer: expected one of 0..39, got -1"):
        Checkpoint(TINY_WEIGHTS, cfg=TINY).layer(-1)


def test_checkpoint_refuses_one_tensor_under_two_names(tmp_path):
    tensors = tensors_of_layer(0)
    tensors["model.layers.0.attn.wkv.weight"] = tensors["layers.0.attn.wkv.weight"]
    with pytest.raises(WeightsError, match=r"layers.0.attn.wkv.weight: expected one tensor of this name, found .* and"):
        layer_of(tmp_path, tensors, 0)


@pytest.mark.parametrize("layer", [0, 2, 3, 20, 24])
def test_checkpoint_names_each_missing_tensor(tmp_path, layer):
    whole = tensors_of_layer(layer)
    for name in whole:
        tensors = {other: tensor for other, tensor in whole.items() if other != name}
        with pytest.raises(WeightsError) as error:
            layer_of(tmp_path, tensors, layer)
        role = roles(TINY)[layer]
        assert str(error.value) == (
            f"{tmp_path / 'made.safetensors'}: {name}: expected this tensor for layer {layer}, {role.kind} with ratio "
            f"{role.ratio}, found none, among {len(tensors)} of the layer"
        )


def test_checkpoint_names_a_layer_that_is_not_there(tmp_path):
    with pytest.raises(WeightsError, match=r"layers.1.attn.wq_a.weight, .*, found no tensor of this layer"):
        layer_of(tmp_path, tensors_of_layer(0), 1)


@pytest.mark.parametrize(
    ("layer", "donor"),
    [
        (0, "layers.2.attn.compressor.wkv.weight"),  # SWA compresses nothing
        (3, "layers.2.attn.compressor.norm.weight"),  # ratio 2 reads, and makes nothing
        (3, "layers.2.attn.indexer.wq_b.weight"),
        (24, "layers.20.attn.indexer.wk.weight"),  # scores another layer's keys
        (20, "layers.2.attn.compressor.wgate.weight"),  # ratio 1 has no gate
    ],
)
def test_checkpoint_names_a_surplus_tensor(tmp_path, layer, donor):
    tensors = tensors_of_layer(layer)
    name = donor.replace(f".{donor.split('.')[1]}.", f".{layer}.")
    tensors[name] = open_tensors(TINY_WEIGHTS)[donor]
    with pytest.raises(WeightsError, match=f"made.safetensors: {name}: expected no such tensor for layer {layer}, "):
        layer_of(tmp_path, tensors, layer)


def test_checkpoint_names_a_tensor_that_nobody_knows(tmp_path):
    tensors = tensors_of_layer(2)
    tensors["layers.2.attn.compressor.ape"] = RawTensor.of("x", np.zeros((2, 64), np.float32))
    del tensors["layers.2.attn.wkv.weight"]
    with pytest.raises(WeightsError, match=r"layers.2.attn.compressor.ape: expected no such .*; missing: wkv.weight"):
        layer_of(tmp_path, tensors, 2)


def test_checkpoint_names_a_wrong_shape(tmp_path):
    for layer in (2, 20):
        for name, tensor in tensors_of_layer(layer).items():
            tensors = tensors_of_layer(layer)
            shape = (*tensor.shape[:-1], tensor.shape[-1] + 1)
            tensors[name] = RawTensor(name, tensor.dtype, shape, np.ones(shape, tensor.data.dtype))
            with pytest.raises(WeightsError) as error:
                layer_of(tmp_path, tensors, layer)
            expected = f"{name}: expected shape {list(tensor.shape)}, found {list(shape)}"
            assert str(error.value).endswith(expected)


def test_checkpoint_names_a_wrong_type(tmp_path):
    for name, tensor in tensors_of_layer(2).items():
        tensors = tensors_of_layer(2)
        tensors[name] = RawTensor(name, "F16", tensor.shape, np.ones(tensor.shape, np.float16))
        expected = "BF16 or F8_E4M3 or F32" if tensor.dtype == "BF16" else "F32 or BF16"
        with pytest.raises(WeightsError, match=f"{name}: expected type {expected}, found F16"):
            layer_of(tmp_path, tensors, 2)
    tensors = tensors_of_layer(0, FP8_WEIGHTS)
    scale = "layers.0.attn.wo_b.scale"
    tensors[scale] = dataclasses.replace(tensors[scale], dtype="U8")
    with pytest.raises(WeightsError, match=f"{scale}: expected type F8_E8M0, found U8"):
        layer_of(tmp_path, tensors, 0)


@pytest.mark.parametrize("name", sorted(FP8_NAMES))
def test_checkpoint_names_an_fp8_weight_without_its_scale(tmp_path, name):
    tensors = tensors_of_layer(20, FP8_WEIGHTS)
    del tensors[f"layers.20.attn.{name}.scale"]
    expected = f"layers.20.attn.{name}.weight: expected a tensor layers.20.attn.{name}.scale beside an fp8 weight"
    with pytest.raises(WeightsError, match=expected):
        layer_of(tmp_path, tensors, 20)


def test_checkpoint_names_a_scale_that_has_no_fp8_weight(tmp_path):
    tensors = tensors_of_layer(0)
    name = "layers.0.attn.wkv.scale"
    tensors[name] = tensors_of_layer(0, FP8_WEIGHTS)[name]
    with pytest.raises(WeightsError, match=f"{name}: expected no scale beside a weight of type BF16, found one"):
        layer_of(tmp_path, tensors, 0)
    tensors["layers.0.attn.kv_norm.scale"] = tensors.pop(name)
    with pytest.raises(WeightsError, match=r"kv_norm.scale: expected no scale beside a weight of type F32, found one"):
        layer_of(tmp_path, tensors, 0)


def test_checkpoint_names_the_block_of_a_bad_scale(tmp_path):
    """Hard case 13: byte 0xFF is no power of two."""
    name = "layers.0.attn.wq_b.scale"
    tensors = tensors_of_layer(0, FP8_WEIGHTS)
    tensors[name] = changed(tensors[name], (5, 0), 0xFF)
    with pytest.raises(
        WeightsError, match=rf"{name}: expected powers of two, found byte 0xFF \(NaN\) in block \[5, 0\]"
    ):
        layer_of(tmp_path, tensors, 0)
    tensors[name] = RawTensor(name, "F8_E8M0", (8, 2), np.full((8, 2), 127, np.uint8))
    with pytest.raises(WeightsError, match=rf"{name}: expected shape \[8, 1\], found \[8, 2\]"):
        layer_of(tmp_path, tensors, 0)


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_checkpoint_names_an_fp8_nan(tmp_path, code):
    name = "layers.0.attn.wo_a.weight"
    tensors = tensors_of_layer(0, FP8_WEIGHTS)
    tensors[name] = changed(tensors[name], (31, 7), code)
    with pytest.raises(WeightsError, match=rf"{name}: expected numbers, found code 0x{code:02X} \(NaN\) at \[31, 7\]"):
        layer_of(tmp_path, tensors, 0)


@pytest.mark.parametrize("layer", [2, 20])
def test_checkpoint_names_a_nan_or_infinity(tmp_path, layer):
    for name, tensor in tensors_of_layer(layer).items():
        at = tuple(size - 1 for size in tensor.shape)
        nan, infinity = (0x7FC0, 0xFF80) if tensor.dtype == "BF16" else (np.nan, -np.inf)
        tensors = tensors_of_layer(layer)
        tensors[name] = changed(tensor, at, nan)
        with pytest.raises(WeightsError, match=rf"{name}: expected (finite )?numbers, found nan at \["):
            layer_of(tmp_path, tensors, layer)
        tensors[name] = changed(tensor, at, infinity)
        if name.endswith("attn_sink"):  # a head without a sink
            assert layer_of(tmp_path, tensors, layer).attn_sink[-1] == -np.inf
            continue
        with pytest.raises(WeightsError) as error:
            layer_of(tmp_path, tensors, layer)
        assert str(error.value).endswith(f"{name}: expected finite numbers, found -inf at {list(at)}")


def test_checkpoint_widens_and_narrows_only_where_that_is_exact(tmp_path, tiny):
    stored = tensors_of_layer(2)
    other = {}
    for name, tensor in stored.items():
        kept = tensor.array().astype(BF16)  # where f32 is wanted: whatever bf16 holds
        other[name] = RawTensor.of(name, kept.astype(np.float32) if tensor.dtype == "BF16" else kept)
    arrays = arrays_of(layer_of(tmp_path, other, 2))
    for name, array in arrays_of(tiny.layer(2)).items():
        assert same_bits(arrays[name], array if array.dtype == BF16 else array.astype(BF16).astype(np.float32))
    name = "layers.2.attn.wq_a.weight"
    values = other[name].data.copy()
    values[3, 4] = 1.001
    with pytest.raises(WeightsError, match=rf"{name}: expected values that bf16 holds, .* found 1.00\d* at \[3, 4\]"):
        layer_of(tmp_path, {**stored, name: RawTensor.of(name, values)}, 2)


def test_checkpoint_of_another_geometry_names_the_first_difference(tmp_path):
    cfg = dataclasses.replace(TINY, n_heads=6, o_groups=3)
    expected = r"layers.0.attn.wq_b.weight: expected shape \[384, 32\], found \[256, 32\]"
    with pytest.raises(WeightsError, match=expected):
        Checkpoint(TINY_WEIGHTS, cfg=cfg).layer(0)


@pytest.mark.parametrize("name", ["layers.0.attn.\ud800", "layers.0.attn.wkv", "layers.0.attn.wkv.weight.weight"])
def test_checkpoint_names_surplus_tensors_so_that_they_can_be_printed(tmp_path, name):
    path = file_of(tmp_path / "odd.safetensors", {name: X}, bytes(4))
    with pytest.raises(WeightsError, match="expected no such tensor for layer 0") as error:
        Checkpoint(path, cfg=TINY).layer(0)
    assert str(error.value).encode()


@pytest.mark.parametrize(
    "name",
    [f"layers.{'9' * 5000}.attn.wkv.weight", "layers.00.attn.wkv.weight", "layers.-1.attn.wkv", "layers.\u0663.attn.x"],
)
def test_checkpoint_ignores_names_that_are_no_layers(tmp_path, tiny, name):
    path = tmp_path / "more.safetensors"
    write_tensors(path, tensors_of_layer(0) | {name: RawTensor.of("x", np.ones(1, np.float32))})
    assert_same(Checkpoint(path, cfg=TINY).layer(0), tiny.layer(0))
