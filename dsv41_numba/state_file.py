"""A sequence's memory as a file, so that a long prefill can be resumed: on another day, or by another op table.

::

    model.prefill(x, chunk=2048)
    save_state(model, "prompt.safetensors")
    ...
    load_state(model, "prompt.safetensors")         # the same geometry, layers, index keys and cache; any op table
    outs = model.decode(x_next)                     # the bits of a model that never stopped

A safetensors file (`tensors.write_tensors`: whole or not at all) with tensors `L{layer:02d}.{array}` and, as metadata,
format, version, geometry, index_keys, cache, layers, position and the slot of the index keys. Of an array only the
filled rows are stored, and no tensor where there are none; the others still are as `AttnV41LayerState.new` made them,
and come back so::

    window                  bf16   the first min(position, window) slots
    compress_kv, index_k    bf16   the first position // ratio rows, kv sources
    kv_state, score_state   f32    the first position % ratio slots, kv sources with ratio >= 2

With cache="packed" the three in bf16 are two each, bytes of `formats.packed_rows`: `window.codes`, `window.scales`, ...

Of the shared slots, only the index keys are ever read in a later call than the one that published them: as released, by
a decode step that completes no group (`layer.visible_keys`). So the file says whose they were and where that call
ended; the keys themselves are that layer's cache. Weights are no part of the file: who resumes brings the same ones.
"""

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np

from dsv41_numba.caches import AttnV41LayerState
from dsv41_numba.config import AttnV41Cfg
from dsv41_numba.formats.packed_rows import PackedRows
from dsv41_numba.ops import REFERENCE
from dsv41_numba.roles import LayerRole
from dsv41_numba.stack import AttnV41, AttnV41Sequence
from dsv41_numba.tensors import RawTensor, TensorFile, WeightsError, open_tensors, write_tensors

FORMAT = "dsv41_numba state"
VERSION = 2  # 1 had no packed caches
# A cache's length does not change what is in it, nor do the blocks of a checkpoint's fp8 scales: both may differ
MAY_DIFFER = ("max_seq", "weight_block")
SHOWN_CHARACTERS = 200  # of what a foreign file says


class StateError(ValueError):
    """A file that is no state for this model; the message names the file, what is wrong, expected and got."""

    def __init__(self, path: object, what: str, expected: object, got: object) -> None:
        text = str(got)
        text = text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
        message = f"{path}: {what}: expected {expected}, got {text}"
        super().__init__(message.encode(errors="backslashreplace").decode())  # a name may not be printable


def filled_rows(cfg: AttnV41Cfg, role: LayerRole, position: int) -> dict[str, int]:
    """How many rows of each of a layer's arrays are filled before `position`; arrays without any are left out."""
    rows = {"window": min(position, cfg.window)}
    if role.is_kv_source:
        rows |= dict.fromkeys(("compress_kv", "index_k"), position // role.ratio)
        rows |= dict.fromkeys(("kv_state", "score_state"), position % role.ratio)  # 0 at ratio 1, which has none
    return {name: n for name, n in rows.items() if n}


def save_state(model: AttnV41, path: str | pathlib.Path, sequence: AttnV41Sequence | None = None) -> None:
    """Write a sequence of the model, its own if none is given. A file that was there is replaced, or stays as it is.

    The filled rows are copied to the host first: for the released geometry what `dsv41 memory` says.
    Raises ValueError for a sequence that stands inside a call (a walk that was left half way) or is of another model;
    OSError when the file cannot be written. A process that is killed leaves the old file or the new one, and perhaps
    its unfinished one, whose name begins with a dot.
    """
    sequence = sequence or model.sequence
    _check_sequence(model, sequence)
    tensors = {}
    for layer, state in sequence.states.items():
        for name, rows in filled_rows(model.cfg, model.roles[layer], sequence.position).items():
            for key, array in _stored(layer, name, getattr(state, name)[:rows]).items():
                tensors[key] = RawTensor.of(key, model.ops.to_host(array))
    keys = sequence.shared.index_k
    metadata = {
        "version": VERSION,
        "geometry": dataclasses.asdict(model.cfg),
        "index_keys": model.index_keys,
        "cache": model.cache,
        "layers": model.layers,
        "position": sequence.position,
        "index_k_slot": None if keys.value is None else {"layer": keys.layer, "end": keys.end},
    }
    as_json = {name: json.dumps(value) for name, value in metadata.items()}
    write_tensors(path, tensors, {"format": FORMAT} | as_json)


def load_state(model: AttnV41, path: str | pathlib.Path) -> None:
    """Make a file's sequence the model's own. Raises what `load_sequence` does, and leaves the model as it was then.

    Old and new caches are in memory together for a moment. A `DecodeGraph` of the sequence before stays with that one.
    """
    model.sequence = load_sequence(model, path)


def load_sequence(model: AttnV41, path: str | pathlib.Path) -> AttnV41Sequence:
    """A file's sequence, in arrays of the model's op table; the model itself is not touched.

    Raises StateError (a ValueError) naming the file, what is wrong with it, expected and got: it is truncated or no
    state, of another version, another geometry (`max_seq` may differ if the position fits), other index keys, cache or
    layers, or its tensors are not those that such a state has. OSError when it cannot be opened.
    """
    path = pathlib.Path(path)
    try:
        return _read(model, open_tensors(path))
    except WeightsError as error:  # what the reader of any safetensors file has to say
        fault = str(error).removeprefix(f"{path}: ")
        raise StateError(path, "file", "a whole safetensors file", f"another ({fault})") from None


def _check_sequence(model: AttnV41, sequence: AttnV41Sequence) -> None:
    """Refuse to save what could not be resumed."""
    if tuple(sequence.states) != model.layers:
        raise ValueError(f"sequence: expected the layers {model.layers}, got {tuple(sequence.states)}")
    for layer, state in sequence.states.items():
        if state.next_pos != sequence.position:
            raise ValueError(
                f"sequence: expected every layer at position {sequence.position}, between two calls, got layer {layer} "
                f"at {state.next_pos}"
            )
        empty = AttnV41LayerState.new(model.cfg, model.roles[layer], REFERENCE, model.cache)
        for name in filled_rows(model.cfg, model.roles[layer], sequence.position):
            like, got = getattr(empty, name), getattr(state, name)
            if got is None or tuple(got.shape) != like.shape:
                found = "none" if got is None else list(got.shape)
                raise ValueError(f"sequence: layer {layer}: {name}: expected shape {list(like.shape)}, got {found}")
            if isinstance(got, PackedRows) != isinstance(like, PackedRows):
                raise ValueError(f"sequence: layer {layer}: {name}: expected a {model.cache} cache, got the other kind")
    keys = sequence.shared.index_k
    if keys.value is not None and not any(
        layer == keys.layer and state.index_k is keys.value for layer, state in sequence.states.items()
    ):
        raise ValueError(f"sequence: expected index keys that are the cache of layer {keys.layer}, got others")


def _stored(layer: int, name: str, array: Any) -> dict[str, Any]:
    """Tensor name -> array, of one array of a layer: itself, or the codes and scales of packed rows."""
    key = f"L{layer:02d}.{name}"
    return (
        {f"{key}.codes": array.codes, f"{key}.scales": array.scales} if isinstance(array, PackedRows) else {key: array}
    )


def _read(model: AttnV41, file: TensorFile) -> AttnV41Sequence:
    """Everything is checked before the first array is made."""
    cfg, position = model.cfg, _check_metadata(model, file)
    slot = _index_k_slot(model, file, position)
    rows = {layer: filled_rows(cfg, model.roles[layer], position) for layer in model.layers}
    expected: dict[str, np.ndarray] = {}
    for layer in model.layers:
        empty = AttnV41LayerState.new(cfg, model.roles[layer], REFERENCE, model.cache)
        for name, n in rows[layer].items():
            expected |= _stored(layer, name, getattr(empty, name)[:n])
    for name in sorted(set(expected) ^ set(file)):
        wanted, found = ("one", "none") if name in expected else ("none", "one")
        raise StateError(file.path, repr(name), f"{wanted} in a state of position {position}", found)
    for name, like in expected.items():
        got, wanted = file[name], f"{RawTensor.of(name, like[:0]).dtype} {list(like.shape)}"
        if f"{got.dtype} {list(got.shape)}" != wanted:
            raise StateError(file.path, name, wanted, f"{got.dtype} {list(got.shape)}")
    sequence = AttnV41Sequence(
        {layer: _state(model, layer, file, rows[layer], position) for layer in model.layers}, position=position
    )
    if slot is not None:
        layer, end = slot
        sequence.shared.index_k.publish(sequence.states[layer].index_k, layer, end)
    return sequence


def _state(model: AttnV41, layer: int, file: TensorFile, rows: dict[str, int], position: int) -> AttnV41LayerState:
    """A layer's caches: empty ones on the host, their first rows from the file, then handed to the op table."""
    state = AttnV41LayerState.new(model.cfg, model.roles[layer], REFERENCE, model.cache)
    for name, n in rows.items():
        for key, array in _stored(layer, name, getattr(state, name)).items():
            array[:n] = file[key].array()
    for field in dataclasses.fields(state):
        array = getattr(state, field.name)
        if isinstance(array, PackedRows):
            setattr(state, field.name, array.planes(model.ops.to_device))
        elif isinstance(array, np.ndarray):
            setattr(state, field.name, model.ops.to_device(array))
    state.next_pos = position
    return state


def _check_metadata(model: AttnV41, file: TensorFile) -> int:
    """Whether the file is a state for this model -> its position."""

    def check(what: str, expected: Any, got: Any) -> None:
        if got != expected:
            raise StateError(file.path, what, repr(expected), repr(got))

    check("format", FORMAT, file.metadata.get("format"))
    check("version", VERSION, _value(file, "version"))
    geometry = _value(file, "geometry")
    fields = _plain(dataclasses.asdict(model.cfg))
    if not isinstance(geometry, dict) or set(geometry) != set(fields):
        raise StateError(file.path, "geometry", f"an object with {', '.join(fields)}", repr(geometry))
    for name, value in fields.items():
        if name not in MAY_DIFFER:
            check(f"geometry: {name}", value, geometry[name])
    check("index_keys", model.index_keys, _value(file, "index_keys"))
    check("cache", model.cache, _value(file, "cache"))
    check("layers", _plain(model.layers), _value(file, "layers"))
    position = _value(file, "position")
    if type(position) is not int or not 0 <= position <= model.cfg.max_seq:
        raise StateError(file.path, "position", f"one within 0..{model.cfg.max_seq} (max_seq)", repr(position))
    return position


def _index_k_slot(model: AttnV41, file: TensorFile, position: int) -> tuple[int, int] | None:
    """The layer whose index keys were published last, and where that call ended; None if there were none yet."""
    slot = _value(file, "index_k_slot")
    if slot is None:
        return None
    sources = [layer for layer in model.layers if model.roles[layer].is_kv_source]
    layer, end = (slot.get("layer"), slot.get("end")) if isinstance(slot, dict) else (None, None)
    if type(layer) is not int or layer not in sources or type(end) is not int or not 1 <= end <= position:
        raise StateError(file.path, "index_k_slot", f"a layer of {sources} and an end within 1..{position}", repr(slot))
    return layer, end


def _value(file: TensorFile, name: str) -> Any:
    """One entry of the metadata, which is JSON but for the format."""
    text = file.metadata.get(name)
    if text is None:
        raise StateError(file.path, name, "this entry in the metadata", "none")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise StateError(file.path, name, "JSON", repr(text)) from None


def _plain(value: Any) -> Any:
    """A value as it comes back from JSON: tuples as lists."""
    return json.loads(json.dumps(value))
