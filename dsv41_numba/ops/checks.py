"""What every launcher checks before it launches: a wrong argument is one clear ValueError, on any backend."""

import math
from typing import Any

import numpy as np


def check_array(name: str, array: Any, dtype: Any, shape: tuple[int | None, ...]) -> None:
    """Refuse an array that is not C-contiguous `dtype` of `shape` (None matches any size), naming what differs."""
    dtype = np.dtype(dtype)
    if not hasattr(array, "dtype") or not hasattr(array, "shape"):
        raise ValueError(f"{name}: expected a {dtype} array, got {type(array).__name__}")
    if array.dtype != dtype:
        hint = " (pass bf16 through backend.to_device)" if array.dtype.name == "bfloat16" else ""
        raise ValueError(f"{name}: expected dtype {dtype}, got {array.dtype}{hint}")
    if len(array.shape) != len(shape) or any(want not in (None, got) for want, got in zip(shape, array.shape)):
        wanted = ", ".join("*" if size is None else str(size) for size in shape)
        raise ValueError(f"{name}: expected shape [{wanted}], got {list(array.shape)}")
    strides = [array.dtype.itemsize * math.prod(array.shape[axis + 1 :]) for axis in range(len(array.shape))]
    if 0 not in array.shape and any(
        size > 1 and stride != want for size, stride, want in zip(array.shape, array.strides, strides)
    ):
        raise ValueError(f"{name}: expected a C-contiguous array, got strides {tuple(array.strides)} in bytes")


def check_count(name: str, count: Any) -> None:
    """Refuse anything but an integer of at least 1."""
    if not isinstance(count, int | np.integer) or isinstance(count, bool) or count < 1:
        raise ValueError(f"{name}: expected an integer of at least 1, got {count!r}")


def address(array: Any) -> int:
    """Where an array's first element lies, on the device or, on the emulator, on the host."""
    return array.ctypes.data if isinstance(array, np.ndarray) else array.device_ctypes_pointer.value
