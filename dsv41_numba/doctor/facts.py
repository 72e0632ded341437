"""What there is: versions, driver, wheels and environment of this computer, gathered without ever raising."""

import contextlib
import ctypes
import importlib
import importlib.metadata
import importlib.util
import os
import pathlib
import platform as host
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass
from dsv41_numba.doctor.versions import Level, one_line

TOOLKIT_WHEELS = re.compile(r"cuda-toolkit|nvidia-(cuda-(runtime|nvrtc|nvcc|cccl|crt)|nvvm|nvjitlink)(-cu\d+)?")


@dataclass(frozen=True)
class Device:
    """One GPU: its name and its compute capability, such as (9, 0)."""

    name: str
    capability: Level


@dataclass(frozen=True)
class Facts:
    """What `gather` found. Versions are as pip writes them, None where the package is missing."""

    python: str
    platform: str  # sys.platform
    machine: str
    numba: str | None
    llvmlite: str | None
    numpy: str | None
    ml_dtypes: str | None
    numba_cuda: str | None
    cuda_bindings: str | None
    wheels: tuple[tuple[str, str], ...]  # name and version of each CUDA toolkit wheel
    toolkit: Level | None  # what numba-cuda would compile with
    nvjitlink: Level | None
    driver: Level | None  # the CUDA level of the driver; None without a driver
    driver_error: str | None  # why the driver shows no device
    devices: tuple[Device, ...]
    cudasim: bool  # NUMBA_ENABLE_CUDASIM
    wanted: str  # DSV41_BACKEND
    import_error: str | None  # of numba.cuda
    cuda_error: str | None  # what numba.cuda says of a driver that it could not start
    shadowed: tuple[str, ...]  # "numba: ./numba.py" where another file hides the installed package
    backend: str | None  # the machine that was chosen; None when none could be
    reason: str  # of the choice, or why there is none


def gather() -> Facts:
    """The facts of this computer. Never raises; starts the driver (cuInit) but makes no context on a device."""
    versions = {name: _version(name) for name in ("numba", "llvmlite", "numpy", "ml_dtypes")}
    numba_cuda, cuda_bindings = _version("numba-cuda"), _version("cuda-bindings")
    driver, driver_error, devices = _driver()
    cudasim = _cudasim()
    import_error, cuda_error = _numba_cuda_state()
    backend, reason = _choice()
    compiles = numba_cuda is not None and import_error is None and not cudasim
    return Facts(
        python=host.python_version(),
        platform=sys.platform,
        machine=host.machine(),
        **versions,
        numba_cuda=numba_cuda,
        cuda_bindings=cuda_bindings,
        wheels=_toolkit_wheels(),
        toolkit=_toolkit() if compiles else None,
        nvjitlink=_nvjitlink() if cuda_bindings is not None else None,
        driver=driver,
        driver_error=driver_error,
        devices=devices,
        cudasim=cudasim,
        wanted=os.environ.get("DSV41_BACKEND", ""),
        import_error=import_error,
        cuda_error=cuda_error,
        shadowed=_shadowed(),
        backend=backend,
        reason=reason,
    )


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except Exception:  # damaged metadata raises more than PackageNotFoundError
        return None


def _toolkit_wheels() -> tuple[tuple[str, str], ...]:
    found = set()  # a folder that is twice in sys.path lists its wheels twice
    with contextlib.suppress(Exception):
        for wheel in importlib.metadata.distributions():
            name = (wheel.metadata["Name"] or "").lower().replace("_", "-")
            if TOOLKIT_WHEELS.fullmatch(name):
                found.add((name, wheel.version))
    return tuple(sorted(found))


def _driver() -> tuple[Level | None, str | None, tuple[Device, ...]]:
    """The driver's CUDA level, why it shows no device, and its devices: asked directly, so numba may be missing."""
    library = os.environ.get("NUMBA_CUDA_DRIVER") or ("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    try:
        cuda = ctypes.CDLL(library)
        level = ctypes.c_int()
        cuda.cuDriverGetVersion(ctypes.byref(level))
    except Exception as error:
        return None, str(error), ()
    version = (level.value // 1000, level.value % 1000 // 10)
    try:
        return version, None, tuple(_devices(cuda))
    except Exception as error:
        return version, str(error), ()


def _devices(cuda: Any) -> Iterator[Device]:
    def call(function: str, *args: Any) -> None:
        if code := getattr(cuda, function)(*args):
            text = ctypes.c_char_p()
            cuda.cuGetErrorString(code, ctypes.byref(text))
            raise RuntimeError(f"{function}: {(text.value or b'unknown error').decode()} ({code})")

    count, device, number = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    call("cuInit", 0)
    call("cuDeviceGetCount", ctypes.byref(count))
    for ordinal in range(count.value):
        name = ctypes.create_string_buffer(256)
        call("cuDeviceGet", ctypes.byref(device), ordinal)
        call("cuDeviceGetName", name, len(name), device)
        capability = []
        for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
            call("cuDeviceGetAttribute", ctypes.byref(number), attribute, device)
            capability.append(number.value)
        yield Device(name.value.decode(errors="replace"), (capability[0], capability[1]))


def _cudasim() -> bool:
    try:
        return bool(importlib.import_module("numba.core.config").ENABLE_CUDASIM)
    except Exception:
        return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


def _numba_cuda_state() -> tuple[str | None, str | None]:
    """Why `numba.cuda` cannot be imported, and why it could not start the driver; None where it could."""
    try:
        cuda = importlib.import_module("numba.cuda")
    except Exception as error:
        return f"{type(error).__name__}: {error}", None
    try:
        cuda.is_available()  # starts the driver: before it the error is not known
        return None, one_line(cuda.cuda_error())
    except Exception as error:
        return None, one_line(error)


def _toolkit() -> Level | None:
    try:
        major, minor = importlib.import_module("numba.cuda").runtime.get_version()
    except Exception:  # NVRTC is not installed
        return None
    return (major, minor)


def _nvjitlink() -> Level | None:
    try:
        major, minor = importlib.import_module("cuda.bindings.nvjitlink").version()
    except Exception:
        return None
    return (major, minor)


def _shadowed() -> tuple[str, ...]:
    """Installed packages that Python does not find, because another file of the same name comes first."""
    found = []
    for name in ("numba", "numpy", "ml_dtypes"):
        with contextlib.suppress(Exception):
            installed = pathlib.Path(str(importlib.metadata.distribution(name).locate_file(name))).resolve()
            spec = importlib.util.find_spec(name)
            origin = pathlib.Path(spec.origin).resolve() if spec and spec.origin else None
            if origin is not None and origin.parent != installed and installed.is_dir():
                found.append(f"{name}: {origin}")
    with contextlib.suppress(Exception):  # `cuda` is a namespace without a file: an origin is somebody else's module
        spec = importlib.util.find_spec("cuda")
        if _version("cuda-bindings") and spec and spec.origin and not spec.submodule_search_locations:
            found.append(f"cuda: {spec.origin}")
    return tuple(found)


def _choice() -> tuple[str | None, str]:
    """The machine's name and why it was chosen, or None and why there is none."""
    try:
        chosen = importlib.import_module("dsv41_numba.runtime.backend").current()
    except Exception as error:  # BackendError, or whatever a broken numba raises on import
        return None, str(error) or type(error).__name__
    return chosen.name, chosen.reason


def tested_versions(facts: Facts) -> dict[str, str | None]:
    """What is installed of each entry of TESTED."""
    return {
        "python": facts.python,
        "numba": facts.numba,
        "numpy": facts.numpy,
        "ml_dtypes": facts.ml_dtypes,
        "numba-cuda": facts.numba_cuda,
        "cuda-bindings": facts.cuda_bindings,
    }
