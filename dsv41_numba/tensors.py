"""safetensors files as raw bits: a memory-mapped reader and an atomic writer.

A safetensors file is the length of its header (8 bytes, little-endian), the header (JSON: name -> dtype, shape,
data_offsets counted from the end of the header), and the tensors' bytes without gaps. Reader and writer are our own
because the safetensors package knows neither bf16 nor fp8 in NumPy; each reads what the other wrote.
"""

import contextlib
import json
import math
import mmap
import os
import pathlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from dsv41_numba.formats.bf16 import BF16

LENGTH_BYTES = 8
HEADER_LIMIT_BYTES = 100_000_000  # the format's own limit
MOST_AXES = 64  # NumPy's limit
METADATA = "__metadata__"
SHOWN_CHARACTERS = 200  # of what a damaged header says
NUMPY_TYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "F16": np.float16,
    "U32": np.uint32,
    "I32": np.int32,
    "F32": np.float32,
    "U64": np.uint64,
    "I64": np.int64,
    "F64": np.float64,
    "C64": np.complex64,
}
# types that NumPy does not have, read as bits; a byte of F4 holds two elements
RAW_TYPES: dict[str, Any] = {
    "BF16": np.uint16,
    "F8_E4M3": np.uint8,
    "F8_E5M2": np.uint8,
    "F8_E8M0": np.uint8,
    "F4": np.uint8,
}
STORAGE = {name: np.dtype(kind) for name, kind in {**NUMPY_TYPES, **RAW_TYPES}.items()}
TYPE_NAMES = {np.dtype(kind): name for name, kind in NUMPY_TYPES.items()} | {
    np.dtype(BF16): "BF16",
    np.dtype(ml_dtypes.float8_e4m3fn): "F8_E4M3",
    np.dtype(ml_dtypes.float8_e5m2): "F8_E5M2",
    np.dtype(ml_dtypes.float8_e8m0fnu): "F8_E8M0",
}


class WeightsError(ValueError):
    """A file or tensor that cannot be used; the message names file, tensor, what was expected and what was found."""

    def __init__(self, path: object, tensor: str, expected: str, found: object) -> None:
        text = str(found)
        text = text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
        message = f"{path}: {tensor}: expected {expected}, found {text}"
        super().__init__(message.encode(errors="backslashreplace").decode())  # names may hold what cannot be printed


@dataclass(frozen=True, eq=False)
class RawTensor:
    """One stored tensor.

    dtype  the format's type name, such as BF16, F8_E4M3, F8_E8M0, F4, F32
    shape  the logical shape
    data   the bits, of NumPy's type of that name, or uint16 (BF16) and uint8 (F8_*, F4). Its shape is `shape`, but F4
           has two elements a byte, the even index in the low bits, so its last axis is half as long
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray

    @classmethod
    def of(cls, name: str, array: np.ndarray) -> "RawTensor":
        """A tensor of a host array: NumPy's types, and ml_dtypes' bfloat16, float8_e4m3fn, _e5m2 and _e8m0fnu."""
        dtype = TYPE_NAMES.get(array.dtype)
        if dtype is None:
            raise ValueError(f"{name}: expected a type that safetensors has, got {array.dtype}")
        return cls(name, dtype, array.shape, np.ascontiguousarray(array).view(STORAGE[dtype]).reshape(array.shape))

    def array(self) -> np.ndarray:
        """The host array: BF16 as ml_dtypes.bfloat16, the other types as `data` has them."""
        return self.data.view(BF16) if self.dtype == "BF16" else self.data


def stored_shape(dtype: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the bits of a tensor. ValueError for F4 with an odd last axis, whose rows would share bytes."""
    if dtype != "F4":
        return shape
    if not shape or shape[-1] % 2:
        raise ValueError("an even last axis for F4")
    return (*shape[:-1], shape[-1] // 2)


class TensorFile(Mapping[str, RawTensor]):
    """A safetensors file as a mapping name -> RawTensor. Opening it reads and checks the header, asking for a tensor
    reads that tensor; its array is a read-only view of the file, or a copy where the file does not align it.

    path      the file
    metadata  the header's text, a dict of str
    Raises OSError when the file cannot be opened, and WeightsError when it is truncated or its header lies: not JSON,
    a name twice, offsets outside the file, overlapping or with gaps, a shape that does not need these bytes. A type we
    do not know is an error of its tensor when that is asked for, since other tensors may be meant for other readers.
    """

    def __init__(self, path: str | pathlib.Path) -> None:
        self.path = pathlib.Path(path)
        with open(self.path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < LENGTH_BYTES:
                raise self._fault("header", f"at least {LENGTH_BYTES} bytes, which hold its length", f"{size} bytes")
            bytes_of_file = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        header_bytes = int.from_bytes(bytes_of_file[:LENGTH_BYTES].tobytes(), "little")
        limit = min(size - LENGTH_BYTES, HEADER_LIMIT_BYTES)
        if header_bytes > limit:
            raise self._fault("header", f"at most {limit} bytes in a file of {size}", f"a length of {header_bytes}")
        data_begin = LENGTH_BYTES + header_bytes
        header = self._parse(bytes_of_file[LENGTH_BYTES:data_begin].tobytes())
        self.metadata = self._take_metadata(header)
        self._data = bytes_of_file[data_begin:]
        self._entries = {name: self._entry(name, entry) for name, entry in header.items()}
        self._check_cover()

    def __getitem__(self, name: str) -> RawTensor:
        dtype, shape, begin, end = self._entries[name]
        if dtype not in STORAGE:
            raise self._fault(repr(name), f"one of the types {', '.join(STORAGE)}", dtype)
        data = self._data[begin:end]
        if data.ctypes.data % STORAGE[dtype].itemsize:
            data = data.copy()
            data.flags.writeable = False
        try:
            return RawTensor(name, dtype, shape, data.view(STORAGE[dtype]).reshape(stored_shape(dtype, shape)))
        except ValueError as error:  # an empty tensor whose other axes multiply to more than NumPy counts
            raise self._fault(repr(name), "a shape that NumPy can hold", f"{list(shape)} ({error})") from None

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def _fault(self, tensor: str, expected: str, found: object) -> WeightsError:
        return WeightsError(self.path, tensor, expected, found)

    def _parse(self, text: bytes) -> dict[str, Any]:
        def no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            names = [name for name, _ in pairs]
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise self._fault("header", "each name once", f"{twice!r} {names.count(twice)} times")
            return dict(pairs)

        try:
            header = json.loads(text.decode(), object_pairs_hook=no_name_twice)
        except WeightsError:
            raise
        except (ValueError, RecursionError) as error:
            raise self._fault("header", "JSON", f"something else ({error})") from None
        if not isinstance(header, dict):
            raise self._fault("header", "a JSON object", type(header).__name__)
        return header

    def _take_metadata(self, header: dict[str, Any]) -> dict[str, str]:
        metadata = header.pop(METADATA, {})
        if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
            raise self._fault(METADATA, "an object of strings", repr(metadata))
        return metadata

    def _entry(self, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
        """(dtype, shape, begin, end) of one tensor, with everything checked that needs no other tensor."""
        keys = ("dtype", "shape", "data_offsets")
        if not isinstance(entry, dict) or any(key not in entry for key in keys):
            raise self._fault(repr(name), f"an object with {', '.join(keys)}", repr(entry))
        dtype, shape, offsets = (entry[key] for key in keys)
        if not isinstance(dtype, str):
            raise self._fault(repr(name), "a type name", repr(dtype))
        if not _sizes(shape):
            raise self._fault(repr(name), f"a shape of at most {MOST_AXES} whole numbers from 0", repr(shape))
        if not _sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            raise self._fault(repr(name), "data_offsets [begin, end]", repr(offsets))
        begin, end = offsets
        if end > self._data.size:
            within = f"bytes within the {self._data.size} that follow the header"
            raise self._fault(repr(name), within, f"{begin} to {end}; a truncated file?")
        if dtype in STORAGE:
            try:
                needed = math.prod(stored_shape(dtype, tuple(shape))) * STORAGE[dtype].itemsize
            except ValueError as error:
                raise self._fault(repr(name), str(error), f"shape {shape}") from None
            if needed != end - begin:
                raise self._fault(repr(name), f"{needed} bytes for {dtype} {shape}", f"{end - begin} bytes")
        return dtype, tuple(shape), begin, end

    def _check_cover(self) -> None:
        """The format wants the tensors to fill the rest of the file, without overlap or gap."""
        at = 0
        for name, (_, _, begin, end) in sorted(self._entries.items(), key=lambda item: item[1][2:]):
            if begin != at:
                fault = "an overlap" if begin < at else "a gap"
                raise self._fault(repr(name), f"data from {at} on, where the tensor before ends", f"{fault}: {begin}")
            at = end
        if at != self._data.size:
            raise self._fault("header", f"tensors that fill {self._data.size} bytes", f"{at} bytes of tensors")


def _sizes(value: Any) -> bool:
    """Whether a JSON value is a list of at most MOST_AXES whole numbers from 0, of 63 bits."""
    return (
        isinstance(value, list)
        and len(value) <= MOST_AXES
        and all(type(size) is int and 0 <= size < 1 << 63 for size in value)
    )


def open_tensors(path: str | pathlib.Path) -> TensorFile:
    """Open a safetensors file as a mapping name -> RawTensor; see `TensorFile`."""
    return TensorFile(path)


def write_tensors(
    path: str | pathlib.Path, tensors: Mapping[str, RawTensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a safetensors file, whole or not at all: beside its place first, to the disk, then renamed.

    A process killed meanwhile, or a machine that loses power, leaves the old file or the new one. The widest types come
    first, so that every tensor is aligned. ValueError for a tensor whose data does not fit its type and shape, or that
    is called `__metadata__`.
    """
    path = pathlib.Path(path)
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    at = 0
    ordered = sorted(tensors.items(), key=lambda item: (-STORAGE[item[1].dtype].itemsize, item[0]))
    for name, tensor in ordered:
        if name == METADATA:
            raise ValueError(f"{METADATA}: expected another name for a tensor, this one is the format's")
        expected = STORAGE[tensor.dtype], stored_shape(tensor.dtype, tensor.shape)
        if (tensor.data.dtype, tensor.data.shape) != expected:
            raise ValueError(
                f"{name}: expected data {expected[0]} {list(expected[1])} for {tensor.dtype} {list(tensor.shape)}, "
                f"got {tensor.data.dtype} {list(tensor.data.shape)}"
            )
        end = at + tensor.data.nbytes
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(unfinished, "wb") as file:
            file.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)
            for _, tensor in ordered:
                file.write(np.ascontiguousarray(tensor.data).reshape(-1).view(np.uint8).data)
            file.flush()
            os.fsync(file.fileno())  # or the new name could reach the disk before the bytes
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: pathlib.Path) -> None:
    """Bring a new name to the disk. Where folders cannot be synced it gets there later, and is whole all the same."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
