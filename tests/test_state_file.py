"""A state on disk: resumed decode has the bits of decode that never stopped; bad files and kills change nothing."""

import contextlib
import dataclasses
import hashlib
import importlib.util
import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from dsv41_numba import tensors
from dsv41_numba.compare import relative_l2, same_bits
from dsv41_numba.formats.packed_rows import PackedRows
from dsv41_numba.ops import REFERENCE, table
from dsv41_numba.stack import AttnV41
from dsv41_numba.state_file import FORMAT, StateError, filled_rows, load_sequence, load_state, save_state
from dsv41_numba.tensors import RawTensor, open_tensors, write_tensors
from dsv41_numba.weights import random_weights
from geometries import GEOMETRIES, SMALL, geometry, random_x

TABLES = ["reference", "plain"] + (["tuned"] if importlib.util.find_spec("numba_cuda") else [])
every_table = pytest.mark.parametrize("ops", TABLES)
both_caches = pytest.mark.parametrize("cache", ["bf16", "packed"])
both_ways = pytest.mark.parametrize("index_keys", ["released", "owner"])
ARRAYS = ("window", "kv_state", "score_state", "compress_kv", "index_k")
LIMIT = 1e-3  # relative L2 between the tables: the check's
LARGE = geometry((1,), (0,), (0,), None, max_seq=1 << 14)  # a state that takes a while to write


def model_of(cfg, ops="reference", index_keys="released", layers=None, cache="bf16"):
    return AttnV41(cfg, lambda layer: random_weights(cfg, layer), table(ops), index_keys, layers, cache=cache)


def same(outs, others):
    return list(outs) == list(others) and all(same_bits(outs[layer], others[layer]) for layer in outs)


def planes(array):
    """The arrays that an array of a state is made of."""
    return {".codes": array.codes, ".scales": array.scales} if isinstance(array, PackedRows) else {"": array}


def contents(model, sequence=None):
    """Every array of a sequence on the host, copied, and whose keys lie in the slot."""
    sequence = sequence or model.sequence
    arrays = {
        (layer, name + plane): np.array(model.ops.to_host(array))
        for layer, state in sequence.states.items()
        for name in ARRAYS
        if getattr(state, name) is not None
        for plane, array in planes(getattr(state, name)).items()
    }
    keys = sequence.shared.index_k
    return arrays, (keys.layer, keys.end), sequence.position, [state.next_pos for state in sequence.states.values()]


def same_contents(one, other):
    return one[1:] == other[1:] and same(one[0], other[0])


@every_table
@both_ways
@both_caches
@pytest.mark.parametrize(
    ("cfg", "cuts"), [(SMALL, (1, 2, 7, 8, 16, 19)), (GEOMETRIES["odd"], (3, 14))], ids=["small", "odd"]
)
def test_state_resumed_decode_has_the_bits_of_uninterrupted_decode(rng, tmp_path, ops, index_keys, cache, cfg, cuts):
    """After one token, before and after the ring wraps, with a group complete or not; steps, then a chunk."""
    path = tmp_path / "state.safetensors"
    model, resumed = (model_of(cfg, ops, index_keys, cache=cache) for _ in range(2))
    for cut in cuts:
        x = random_x(rng, cfg, cut + 8)
        model.prefill(x[:, :cut])
        save_state(model, path)
        saved = contents(model)
        resumed.prefill(x[:, :5])  # something else, which goes
        load_state(resumed, path)
        assert same_contents(contents(resumed), saved)
        for start, end in [*((p, p + 1) for p in range(cut, cut + 5)), (cut + 5, cut + 8)]:
            assert same(resumed.decode(x[:, start:end]), model.decode(x[:, start:end])), (cut, start)
        assert same_contents(contents(resumed), contents(model))


@every_table
def test_state_of_an_unfinished_prefill_goes_on(rng, tmp_path, ops):
    """A prompt in chunks, saved after each of them and gone on with in a new model each time."""
    x, model = random_x(rng, SMALL, 21), model_of(SMALL, ops)
    whole = model.prefill(x, chunk=6)
    outs = []
    for first in range(0, 21, 6):
        part = model_of(SMALL, ops)
        if first:
            load_state(part, tmp_path / "part")
        outs.append(part.decode(x[:, first : first + 6]))
        save_state(part, tmp_path / "part")
    assert same({layer: np.concatenate([out[layer] for out in outs]) for layer in whole}, whole)


@both_caches
@pytest.mark.parametrize(("writer", "reader"), list(itertools.permutations(TABLES, 2)))
def test_state_saved_by_one_table_loads_in_another(rng, tmp_path, writer, reader, cache):
    x, one, other = random_x(rng, SMALL, 18), *(model_of(SMALL, ops, cache=cache) for ops in (writer, reader))
    one.prefill(x[:, :16])
    save_state(one, tmp_path / "one")
    load_state(other, tmp_path / "one")
    save_state(other, tmp_path / "other")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    assert same_contents(contents(one), contents(other))

    def kinds(states):
        return [(a.dtype, a.shape) for state in states.values() for a in planes(state.window).values()]

    assert kinds(other.states) == kinds(other.new_sequence().states)
    for position in (16, 17):
        outs, expected = (model.decode(x[:, position : position + 1]) for model in (other, one))
        assert max(relative_l2(outs[layer], expected[layer]) for layer in outs) <= LIMIT


@every_table
def test_state_remembers_whose_keys_were_published_last(rng, tmp_path, ops):
    """Step 16 completes no group of 2: layers 1 and 3 score layer 4's keys. Another layer in the file changes bits."""
    x, model = random_x(rng, SMALL, 17), model_of(SMALL, ops)
    model.prefill(x[:, :16])
    assert model.shared.index_k.layer == 4
    save_state(model, tmp_path / "state")
    expected = model.decode(x[:, 16:])
    load_state(model, tmp_path / "state")
    keys = model.shared.index_k
    assert (keys.layer, keys.end) == (4, 16) and keys.value is model.states[4].index_k
    assert same(model.decode(x[:, 16:]), expected)
    rewrite(tmp_path / "state", metadata={"index_k_slot": json.dumps({"layer": 3, "end": 16})})
    load_state(model, tmp_path / "state")
    assert not same(model.decode(x[:, 16:]), expected)
    rewrite(tmp_path / "state", metadata={"index_k_slot": "null"})
    load_state(model, tmp_path / "state")
    with pytest.raises(ValueError, match="layer 1: expected at least 8 published index keys, got none"):
        model.decode(x[:, 16:])


@both_caches
@pytest.mark.parametrize("position", [0, 1, 7, 8, 17])
def test_state_holds_the_filled_rows_and_no_others(rng, tmp_path, position, cache):
    model = model_of(SMALL, cache=cache)
    if position:
        model.prefill(random_x(rng, SMALL, position))
    save_state(model, tmp_path / "state")
    file = open_tensors(tmp_path / "state")
    halves = [("compress_kv", position // 2), ("index_k", position // 2)]
    groups = [("kv_state", position % 2), ("score_state", position % 2)]
    expected = {(f"L{layer:02d}.window", min(position, 8)) for layer in range(8)}
    expected |= {(f"L{layer:02d}.{name}", rows) for layer in (1, 3) for name, rows in halves + groups}
    expected |= {("L04.compress_kv", position), ("L04.index_k", position)}
    if cache == "packed":
        in_f32 = {(name, rows) for name, rows in expected if name.endswith("_state")}
        expected = in_f32 | {(name + end, n) for name, n in expected - in_f32 for end in (".codes", ".scales")}
    assert {(name, tensor.shape[0]) for name, tensor in file.items()} == {(n, rows) for n, rows in expected if rows}
    arrays = contents(model)[0]
    for name, tensor in file.items():
        filled = arrays[int(name[1:3]), name[4:]]
        assert same_bits(tensor.array(), filled[: tensor.shape[0]])
        left = filled[tensor.shape[0] :]  # nothing is lost: the rest is as in a new state
        assert same_bits(left, np.full_like(left, -np.inf if "score" in name else 0))
    loaded = load_sequence(model, tmp_path / "state")
    assert same_contents(contents(model, loaded), contents(model))


def test_state_of_a_longer_or_shorter_limit_loads_if_its_position_fits(rng, tmp_path):
    x, model = random_x(rng, SMALL, 30), model_of(SMALL)
    model.prefill(x[:, :20])
    save_state(model, tmp_path / "state")
    for max_seq in (20, 21, 1000):
        other = model_of(dataclasses.replace(SMALL, max_seq=max_seq, weight_block=(128, 128)))
        load_state(other, tmp_path / "state")
        assert other.states[4].index_k.shape[0] == max_seq
        for position in range(20, min(max_seq, 30)):
            now = x[:, position : position + 1]
            load_state(model, tmp_path / "state") if position == 20 else None
            assert same(other.decode(now), model.decode(now))
    with pytest.raises(StateError, match=r"state: position: expected one within 0\.\.19 \(max_seq\), got 20"):
        load_state(model_of(dataclasses.replace(SMALL, max_seq=19)), tmp_path / "state")


def test_state_of_each_sequence_of_a_batch(rng, tmp_path):
    x, model = random_x(rng, SMALL, 14), model_of(SMALL)
    sequences = [model.new_sequence() for _ in range(2)]
    list(model.walk_batch([x[:, :13], x[:, 3:8]], sequences))
    for i, sequence in enumerate(sequences):
        save_state(model, tmp_path / str(i), sequence)
    assert model.position == 0
    loaded = [load_sequence(model, tmp_path / str(i)) for i in range(2)]
    assert model.position == 0 and [sequence.position for sequence in loaded] == [13, 5]
    now = [x[:, 13:], x[:, 8:9]]
    again = [step.out for _, step in model.walk_batch(now, loaded)]
    assert all(same_bits(out, step.out) for out, (_, step) in zip(again, model.walk_batch(now, sequences)))


def test_state_of_a_subset_of_layers(rng, tmp_path):
    x, layers = random_x(rng, SMALL, 10), (0, 3, 4, 6)
    model, resumed = (model_of(SMALL, layers=layers) for _ in range(2))
    model.prefill(x[:, :8])
    save_state(model, tmp_path / "state")
    load_state(resumed, tmp_path / "state")
    assert same(resumed.decode(x[:, 8:9]), model.decode(x[:, 8:9]))
    with pytest.raises(StateError, match=r"state: layers: expected \[0, 1, .* 7\], got \[0, 3, 4, 6\]"):
        load_state(model_of(SMALL), tmp_path / "state")


def test_state_refuses_to_save_what_cannot_be_resumed(rng, tmp_path):
    x, model, path = random_x(rng, SMALL, 6), model_of(SMALL), tmp_path / "state"
    for step in model.walk(x[:, :5]):
        if step.role.layer == 3:
            break
    with pytest.raises(ValueError, match="every layer at position 0, between two calls, got layer 0 at 5"):
        save_state(model, path)
    model.prefill(x)
    with pytest.raises(ValueError, match=r"sequence: expected the layers \(0, 3\), got \(0, 1, "):
        save_state(model_of(SMALL, layers=(0, 3)), path, model.sequence)
    wider = model_of(dataclasses.replace(SMALL, head_dim=96))
    with pytest.raises(ValueError, match=r"layer 0: window: expected shape \[8, 96\], got \[8, 64\]"):
        save_state(wider, path, model.sequence)
    with pytest.raises(ValueError, match="layer 0: window: expected a packed cache, got the other kind"):
        save_state(model_of(SMALL, cache="packed"), path, model.sequence)
    model.shared.index_k.value = np.array(model.shared.index_k.value)
    with pytest.raises(ValueError, match="expected index keys that are the cache of layer 4, got others"):
        save_state(model, path)
    assert list(tmp_path.iterdir()) == []


# files that are no state


def rewrite(path, metadata=None, arrays=None):
    """The file with other metadata entries or tensors; None takes one away."""
    file = open_tensors(path)
    entries = file.metadata | (metadata or {})
    stored = dict(file) | {n: a if a is None else RawTensor.of(n, a) for n, a in (arrays or {}).items()}
    write_tensors(
        path,
        {name: tensor for name, tensor in stored.items() if tensor is not None},
        {name: text for name, text in entries.items() if text is not None},
    )


@pytest.fixture
def running(rng, tmp_path):
    """A model of 9 tokens, a file of 11, and a check that the model still is where it was."""
    x, model, twin = random_x(rng, SMALL, 12), model_of(SMALL), model_of(SMALL)
    model.prefill(x[:, :11])
    save_state(model, tmp_path / "state")
    for each in (model, twin):
        each.prefill(x[:, :9])
    sequence, before = model.sequence, contents(model)

    def untouched():
        assert model.sequence is sequence and same_contents(contents(model), before)
        return same(model.decode(x[:, 9:10]), twin.decode(x[:, 9:10]))

    return model, tmp_path / "state", untouched


def geometry_with(**changes):
    return json.dumps(dataclasses.asdict(SMALL) | changes)


BAD = {
    "foreign": ({"format": "pt"}, {}, "format: expected 'dsv41_numba state', got 'pt'"),
    "without a format": ({"format": None}, {}, "format: expected 'dsv41_numba state', got None"),
    "older": ({"version": "1"}, {}, "version: expected 2, got 1"),
    "without a version": ({"version": None}, {}, "version: expected this entry in the metadata, got none"),
    "version in words": ({"version": "one"}, {}, "version: expected JSON, got 'one'"),
    "deep": ({"position": "[" * 100_000}, {}, r"position: expected JSON, got '\[\["),
    "other window": ({"geometry": geometry_with(window=9)}, {}, "geometry: window: expected 8, got 9"),
    "other ratios": (
        {"geometry": geometry_with(compress_ratios=[0, 2, 2, 2, 1, 1, 1, 2])}, {},
        r"geometry: compress_ratios: expected \[0, 2.*, 1\], got \[0, 2.*, 2\]",
    ),
    "other theta": ({"geometry": geometry_with(rope_theta=1e5)}, {}, r"rope_theta: expected 10000\.0, got 100000\.0"),
    "half a geometry": ({"geometry": '{"dim": 64}'}, {}, "geometry: expected an object with dim, .*, got {'dim': 64}"),
    "no geometry": ({"geometry": "7"}, {}, "geometry: expected an object with dim, .*, got 7"),
    "owner's keys": ({"index_keys": '"owner"'}, {}, "index_keys: expected 'released', got 'owner'"),
    "packed": ({"cache": '"packed"'}, {}, "cache: expected 'bf16', got 'packed'"),
    "no cache": ({"cache": None}, {}, "cache: expected this entry in the metadata, got none"),
    "other layers": ({"layers": "[0, 1]"}, {}, r"layers: expected \[0, 1, 2.*\], got \[0, 1\]"),
    "before the start": ({"position": "-1"}, {}, r"position: expected one within 0\.\.64 \(max_seq\), got -1"),
    "beyond the end": ({"position": "65"}, {}, r"position: expected one within 0\.\.64 \(max_seq\), got 65"),
    "half a token": ({"position": "1.5"}, {}, r"position: expected one within .*, got 1\.5"),
    "true": ({"position": "true"}, {}, "position: expected one within .*, got True"),
    "another position": (
        {"position": "10", "index_k_slot": "null"}, {}, "'L01.kv_state': expected none .* of position 10, got one"
    ),
    "longer": ({"position": "13"}, {}, r"L01\.compress_kv: expected BF16 \[6, 64\], got BF16 \[5, 64\]"),
    "keys of no source": (
        {"index_k_slot": '{"layer": 2, "end": 11}'}, {},
        r"index_k_slot: expected a layer of \[1, 3, 4\] and an end within 1\.\.11, got {'layer': 2, 'end': 11}",
    ),
    "keys to come": ({"index_k_slot": '{"layer": 4, "end": 12}'}, {}, "index_k_slot: expected .* within 1..11, got"),
    "keys of a word": ({"index_k_slot": '"four"'}, {}, "index_k_slot: expected a layer of .*, got 'four'"),
    "without keys": ({"index_k_slot": None}, {}, "index_k_slot: expected this entry in the metadata, got none"),
    "a tensor short": ({}, {"L05.window": None}, "'L05.window': expected one in a state of position 11, got none"),
    "a tensor more": (
        {}, {"L05.wnidow": np.zeros(3, np.float32)}, "'L05.wnidow': expected none in a state of position 11, got one"
    ),
    "other numbers": (
        {}, {"L00.window": np.zeros((8, 64), np.float32)}, r"L00\.window: expected BF16 \[8, 64\], got F32 \[8, 64\]"
    ),
    "other rows": (
        {}, {"L01.kv_state": np.zeros((2, 64), np.float32)}, r"kv_state: expected F32 \[1, 64\], got F32 \[2, 64\]"
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD)
def test_state_refuses_a_file_that_does_not_fit_and_goes_on(running, fault):
    model, path, untouched = running
    metadata, arrays, message = BAD[fault]
    rewrite(path, metadata, arrays)
    with pytest.raises(StateError, match=f"^{re.escape(str(path))}: .*{message}") as caught:
        load_state(model, path)
    assert len(str(caught.value)) < 1000 and "\n" not in str(caught.value)
    assert untouched()


def test_state_refuses_a_file_cut_anywhere_or_longer(running):
    model, path, untouched = running
    content = path.read_bytes()
    for length in [*range(0, 64), *range(64, len(content), 211), len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(StateError, match="/state: file: expected a whole safetensors file, got another"):
            load_state(model, path)
    path.write_bytes(content + b"\0")
    with pytest.raises(StateError, match=r"expected a whole safetensors file, got another \(header: expected tensors"):
        load_state(model, path)
    path.write_text("a letter, not a state")
    with pytest.raises(StateError, match="expected a whole safetensors file"):
        load_state(model, path)
    with pytest.raises(OSError, match="nowhere"):
        load_state(model, path.with_name("nowhere"))
    assert untouched()
    path.write_bytes(content)
    load_state(model, path)
    assert model.position == 11


def test_state_with_a_damaged_header_loads_or_is_refused(running, rng):
    """Any byte of the header changed: a state of this shape, or a StateError that names the file; nothing else."""
    model, path, untouched = running
    content = bytearray(path.read_bytes())
    refused = 0
    for at in rng.choice(8 + int.from_bytes(content[:8], "little"), 400, replace=False):
        damaged = content.copy()
        damaged[at] ^= rng.integers(1, 256)
        path.write_bytes(damaged)
        try:
            assert load_sequence(model, path).position <= SMALL.max_seq
        except StateError as error:
            refused += 1
            assert str(error).startswith(f"{path}: ")
    assert refused > 300  # what may change unseen: max_seq, weight_block, spaces, the slot
    assert untouched()


def test_state_that_finds_no_room_leaves_the_old_one(running):
    """The device runs out of memory at any of the arrays."""
    model, path, untouched = running
    arrays = sum(getattr(state, name) is not None for state in model.states.values() for name in ARRAYS)
    for room in range(arrays):
        left = iter(range(room))

        def to_device(array, left=left):
            if next(left, None) is None:
                raise MemoryError("out of memory")
            return array

        model.ops = dataclasses.replace(REFERENCE, to_device=to_device)
        with pytest.raises(MemoryError):
            load_state(model, path)
        model.ops = REFERENCE
    assert untouched()


# a write that ends before it is done


class Interrupted(BaseException):
    """No Exception: like a KeyboardInterrupt, nobody catches it on the way."""


@contextlib.contextmanager
def stopped_at(step, stop):
    """Inside, `write_tensors` meets `stop()` at its step number `step`; gives the list of the steps that it took.

    A write is two steps, one of them with half of the bytes written.
    """
    steps = []

    def take(name):
        steps.append(name)
        if len(steps) == step + 1:
            stop()

    class File:
        def __init__(self, *args):
            take("open")
            # without a buffer, what was written is in the file, as it would be after a kill
            self.file = open(*args, buffering=0)  # noqa: SIM115

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.file.close()

        def write(self, data):
            data = memoryview(data)
            self.file.write(data[: len(data) // 2])
            take("half a write")
            self.file.write(data[len(data) // 2 :])
            take("write")

        def __getattr__(self, name):
            return getattr(self.file, name)

    def traced(name, call):
        def traced_call(*args):
            take(name)
            return call(*args)

        return traced_call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensors, "open", File, raising=False)
        patch.setattr(os, "fsync", traced("fsync", os.fsync))
        patch.setattr(os, "replace", traced("replace", os.replace))
        yield steps


def never():
    raise AssertionError


def large_sequence(position):
    """A sequence as full as one of `position` tokens, of random rows."""
    model, rng = model_of(LARGE), np.random.default_rng(position)
    model.sequence.position = position
    for layer, state in model.states.items():
        for name, rows in filled_rows(LARGE, model.roles[layer], position).items():
            array = getattr(state, name)
            array[:rows] = rng.standard_normal((rows, array.shape[1])).astype(array.dtype)
        state.next_pos = position
    return model


@pytest.fixture
def two_files(tmp_path):
    """Two states, their digests, and the place where one of them lies."""
    for position in (9_000, 12_000):
        save_state(large_sequence(position), tmp_path / f"{position}")
    folder = tmp_path / "place"
    folder.mkdir()
    return *(digest(tmp_path / f"{position}") for position in (9_000, 12_000)), folder / "state"


def digest(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def test_state_is_on_the_disk_before_it_gets_its_name(tmp_path):
    with stopped_at(-1, never) as steps:
        save_state(large_sequence(100), tmp_path / "state")
    writes = ["half a write", "write"] * 4  # the header, window, compress_kv, index_k
    assert steps == ["open", *writes, "fsync", "replace", "fsync"]


@pytest.mark.parametrize("error", [OSError("no space left"), Interrupted()], ids=["OSError", "interrupt"])
def test_state_a_failed_write_leaves_the_old_file_or_the_new(two_files, error):
    old, new, path = two_files
    model = large_sequence(12_000)

    def fail():
        raise error

    for step in range(20):
        save_state(large_sequence(9_000), path)
        assert digest(path) == old
        with stopped_at(step, fail) as steps, contextlib.suppress(type(error)):
            save_state(model, path)
        assert digest(path) == (new if "replace" in steps[:step] else old), (step, steps)
        assert list(path.parent.iterdir()) == [path]  # and nothing else
        if step >= len(steps):
            break
    assert step == len(steps) == 12


def killed_writers(path, rounds):
    """Run by the test below as a program of its own: children that die while they write; tells what each left.

    The first die at each step of a write, the others at random moments of a loop of writes.
    """
    models, rng = [large_sequence(position) for position in (9_000, 12_000)], np.random.default_rng(0)
    save_state(models[0], path)
    for i in range(rounds):
        step = i if i < 12 else None
        child = os.fork()
        if child == 0:
            if step is not None:
                with stopped_at(step, lambda: os.kill(os.getpid(), signal.SIGKILL)):
                    save_state(models[1], path)
            while step is None:
                for model in models:
                    save_state(model, path)
            os._exit(1)  # nobody killed it
        if step is None:
            time.sleep(rng.uniform(0, 0.1))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        left = [other for other in pathlib.Path(path).parent.iterdir() if other.name != pathlib.Path(path).name]
        print(i, os.WTERMSIG(status) if os.WIFSIGNALED(status) else "exit", digest(path), len(left), flush=True)
        for other in left:
            other.unlink()
        if step is not None:
            save_state(models[0], path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="killing a writer at a known step needs fork")
def test_state_survives_a_kill_at_any_moment_of_the_write(two_files):
    old, new, path = two_files
    rounds = 60
    code = f"import test_state_file; test_state_file.killed_writers({str(path)!r}, {rounds})"
    paths = os.pathsep.join([str(pathlib.Path(__file__).parent), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == rounds and {line[1] for line in lines} == {str(int(signal.SIGKILL))}
    assert [line[2] for line in lines[:12]] == 11 * [old] + [new]  # the last step comes after the renaming
    assert [int(line[3]) for line in lines[:12]] == [0] + 10 * [1] + [0]  # an unfinished file, once it was opened
    after_random_kills = [line[2] for line in lines[12:]]
    unfinished = sum(int(line[3]) for line in lines[12:])
    print(f"{rounds - 12} random kills: {after_random_kills.count(new)} left the new file, {unfinished} amid a write")
    assert set(after_random_kills) <= {old, new} and unfinished > 0
    model = model_of(LARGE)
    load_state(model, path)
    assert model.position in (9_000, 12_000)
    assert same_contents(contents(model), contents(large_sequence(model.position)))


def test_state_names_are_public_and_the_format_is_told():
    import dsv41_numba

    assert (dsv41_numba.save_state, dsv41_numba.load_state) == (save_state, load_state)
    assert dsv41_numba.load_sequence is load_sequence and FORMAT == "dsv41_numba state"
