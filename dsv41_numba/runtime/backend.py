"""Where kernels run: a GPU, the emulator (compiled CPU code) or Numba's simulator. Chosen once per process.

The launchers in `ops/` use the functions below and never ask which machine they are on::

    x = to_device(x_host)                       # a device array on a GPU, a C-contiguous NumPy array elsewhere
    y = empty(x.shape, x.dtype)
    launch(kernel, grid, block, x, y)
    y_host = to_host(y)

bf16 arrays (`ml_dtypes.bfloat16`) become their uint16 bit patterns on the way in, because Numba has no bf16 type.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv41_numba.formats.bf16 import BF16

NAMES = ("gpu", "emulator", "simulator")
POISON = 0xFF  # this byte everywhere is a NaN in every float format and -1 or 255 in integers: never a good result


class BackendError(RuntimeError):
    """The machine that was asked for is not there; the message says what to do."""


@dataclass(frozen=True)
class Backend:
    """One machine: its name, why it was chosen, and how to reach it."""

    name: str
    reason: str
    launch: Callable[..., None]
    to_device: Callable[[np.ndarray], Any]
    to_host: Callable[[Any], np.ndarray]
    empty: Callable[..., Any]
    zeros: Callable[..., Any]


@functools.cache
def current() -> Backend:
    """The backend of this process: `DSV41_BACKEND` if set, else a GPU if there is one, else the emulator."""
    wanted = os.environ.get("DSV41_BACKEND", "")
    if wanted and wanted not in NAMES:
        raise BackendError(f"DSV41_BACKEND: expected one of {', '.join(NAMES)}, got {wanted!r}")
    from numba import cuda
    from numba.core import config

    simulated = bool(config.ENABLE_CUDASIM)  # type: ignore[attr-defined]  # Numba sets it from the environment
    if wanted == "simulator" or (simulated and not wanted):
        if not simulated:
            raise BackendError(
                "DSV41_BACKEND=simulator: numba was imported before dsv41_numba; set NUMBA_ENABLE_CUDASIM=1 as well"
            )
        return _simulator("DSV41_BACKEND=simulator" if wanted else "NUMBA_ENABLE_CUDASIM is set")
    if simulated:
        raise BackendError(f"DSV41_BACKEND={wanted}: NUMBA_ENABLE_CUDASIM is set and would replace it; unset one")
    if wanted == "emulator":
        return emulator("DSV41_BACKEND=emulator")
    # Numba's own CUDA target is no longer kept up to date; the one that is comes with the extra
    missing = "numba-cuda is not installed" if importlib.util.find_spec("numba_cuda") is None else ""
    if not missing and not cuda.is_available():
        missing = "no CUDA device was found"
    if not missing:
        return _gpu("DSV41_BACKEND=gpu" if wanted else "a CUDA device was found")
    if wanted == "gpu":
        raise BackendError(f"DSV41_BACKEND=gpu: {missing}; `dsv41 doctor` says what to do")
    return emulator(missing)


@contextlib.contextmanager
def using(machine: Backend) -> Iterator[None]:
    """Make a machine the current one inside a with block, whatever this process has chosen."""
    global current
    chosen, current = current, lambda: machine  # type: ignore[assignment]
    try:
        yield
    finally:
        current = chosen


def launch(kernel: Any, grid: Any, block: Any, *args: Any) -> None:
    """Run `kernel[grid, block](*args)`. grid and block count blocks and threads, as an int or a tuple of up to 3."""
    current().launch(kernel, grid, block, *args)


def to_device(array: np.ndarray) -> Any:
    """A device copy of a host array (bf16 becomes uint16); without a GPU the array itself, made C-contiguous."""
    return current().to_device(_as_bits(array))


def to_host(array: Any) -> np.ndarray:
    """The NumPy array of a device array (bf16 stays uint16); a host array, or any without a GPU, comes back itself."""
    return current().to_host(array)


def empty(shape: Any, dtype: Any) -> Any:
    """A device array without a value yet: every byte 0xFF, except on a GPU unless `DSV41_POISON=1`."""
    return current().empty(shape, dtype)


def zeros(shape: Any, dtype: Any) -> Any:
    """A device array of zeros."""
    return current().zeros(shape, dtype)


def _as_bits(array: np.ndarray) -> np.ndarray:
    """bf16 arrays seen as uint16; anything else as it is. C-contiguous, aligned and writable, by a copy if need be:
    Numba compiles a kernel anew for an array that is not."""
    array = np.require(array, requirements=["C", "A", "W"])
    return array.view(np.uint16) if array.dtype == BF16 else array


def _poisoned(shape: Any, dtype: Any, byte: int = POISON) -> np.ndarray:
    array: np.ndarray = np.empty(shape, dtype)
    array.reshape(-1).view(np.uint8).fill(byte)
    return array


def poisoned(machine: Backend, byte: int = POISON) -> Backend:
    """A machine whose `empty` fills arrays with this byte, on a GPU too."""
    return dataclasses.replace(machine, empty=lambda shape, dtype: machine.to_device(_poisoned(shape, dtype, byte)))


def _gpu(reason: str) -> Backend:
    from numba import cuda

    def run(kernel: Any, grid: Any, block: Any, *args: Any) -> None:
        kernel[grid, block](*args)

    machine = Backend(
        name="gpu",
        reason=reason,
        launch=run,
        to_device=cuda.to_device,
        to_host=lambda array: array if isinstance(array, np.ndarray) else array.copy_to_host(),
        empty=cuda.device_array,
        zeros=lambda shape, dtype: cuda.to_device(np.zeros(shape, dtype)),
    )
    return poisoned(machine) if os.environ.get("DSV41_POISON") == "1" else machine


def emulator(reason: str) -> Backend:
    """Compiled CPU code."""
    from dsv41_numba.runtime.emulator import emulate

    def run(kernel: Any, grid: Any, block: Any, *args: Any) -> None:
        emulate(kernel)[grid, block](*args)

    return _on_host("emulator", reason, run)


def _simulator(reason: str) -> Backend:
    from dsv41_numba.runtime import simulator

    simulator.install()

    def run(kernel: Any, grid: Any, block: Any, *args: Any) -> None:
        kernel[grid, block](*args)

    return _on_host("simulator", reason, run)


def _on_host(name: str, reason: str, run: Callable[..., None]) -> Backend:
    """A machine whose device memory is the host's."""
    return Backend(
        name=name,
        reason=reason,
        launch=run,
        to_device=lambda array: array,
        to_host=lambda array: array,
        empty=_poisoned,
        zeros=lambda shape, dtype: np.zeros(shape, dtype),
    )
