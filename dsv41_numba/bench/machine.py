"""What the numbers depend on: the GPU, its driver, the versions, the date."""

import datetime
import importlib.metadata
import pathlib
import platform
from typing import Any

from numba import cuda

import dsv41_numba
from dsv41_numba.doctor.facts import gather

PACKAGES = ("numba", "numba-cuda", "numpy", "torch")


def machine() -> dict[str, Any]:
    """What the numbers depend on: the GPU, its driver, the versions, the date."""
    facts, versions = gather(), dict[str, str | None](dsv41_numba=dsv41_numba.__version__)
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    found: dict[str, Any] = {
        "backend": facts.backend,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": versions,
    }
    if facts.backend == "gpu":
        total = cuda.current_context().get_memory_info()[1]
        device = cuda.get_current_device()
        name = device.name.decode() if isinstance(device.name, bytes) else str(device.name)
        found |= {
            "gpu": name,
            "capability": list(device.compute_capability),
            "multiprocessors": device.MULTIPROCESSOR_COUNT,
            "memory_bytes": int(total),
            "driver_cuda": list(facts.driver) if facts.driver else None,
            "driver": driver_version(),
            "toolkit_cuda": list(facts.toolkit) if facts.toolkit else None,
        }
    return found


def driver_version() -> str | None:
    """The driver's own version, where its kernel module says it or nvidia-smi's library does."""
    module = pathlib.Path("/sys/module/nvidia/version")
    try:
        return module.read_text().strip()
    except OSError:
        pass
    try:
        import ctypes

        nvml, text = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.create_string_buffer(96)
        nvml.nvmlInit_v2()
        nvml.nvmlSystemGetDriverVersion(text, len(text))
        return text.value.decode() or None
    except (OSError, AttributeError):
        return None
