"""`dsv41 doctor`: which machine runs the kernels and why, what is wrong with it, and the command that mends it.

Three steps, of which only the first looks at this computer, so that the second can be tested with made-up facts::

    facts = gather()               # versions, driver, wheels, environment; never raises
    findings = diagnose(facts)     # pure: each a sentence, a fix and a command to paste
    report(facts, findings, console)

What goes wrong on a GPU is nearly always that three levels do not fit. The driver's CUDA level (see `nvidia-smi`) is
the highest that it understands. The toolkit (NVVM, NVRTC) writes code of its own level. The bindings (`cuda-bindings`)
call the driver, and their major version must not be above the driver's. numba-cuda normally hands NVVM's output to
nvJitLink, which makes machine code that every driver of the same major runs; without nvJitLink the driver gets PTX
text, and what a newer toolkit wrote is refused with "unsupported PTX version".
"""

import contextlib
import ctypes
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import pathlib
import platform as host
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

Version = tuple[int, ...]
Level = tuple[int, int]  # of CUDA: (12, 4)


@dataclass(frozen=True)
class Tested:
    """The version that the tests ran with, and the range that is allowed: at_least <= version < below."""

    version: str
    at_least: Version
    below: Version | None = None

    def allows(self, version: str) -> bool:
        parts = _numbers(version)
        return self.at_least <= parts and (self.below is None or parts < self.below)

    def specifier(self) -> str:
        """The range in pip's words."""
        upper = "" if self.below is None else f",<{_dotted(self.below)}"
        return f">={_dotted(self.at_least)}{upper}"


TESTED = {
    "python": Tested("3.11.7", (3, 11)),
    "numba": Tested("0.68.1", (0, 68), (0, 69)),
    "numpy": Tested("2.4.6", (2, 0), (2, 5)),
    "ml_dtypes": Tested("0.7.0", (0, 5)),
    "numba-cuda": Tested("0.30.4", (0, 30, 4), (0, 31)),
    "cuda-bindings": Tested("13.5.0", (12, 9, 1), (14,)),
}
NUMBA_CUDA_WITHOUT_NUMPY = (2, 5)  # numba-cuda 0.30 uses np.row_stack, which NumPy 2.5 has removed
CUDA_13_CAPABILITY = (7, 5)  # the CUDA 13 toolkit has no code generator for older GPUs
OLDEST_DRIVER = (12, 0)  # numba-cuda 0.30 has no bindings for a driver below
TOOLKIT_WHEELS = re.compile(r"cuda-toolkit|nvidia-(cuda-(runtime|nvrtc|nvcc|cccl|crt)|nvvm|nvjitlink)(-cu\d+)?")
SELF_TEST_STEPS = 1  # bf16 steps: the f32 sums of kernel and reference differ in their order


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


@dataclass(frozen=True)
class Finding:
    """One thing to know. level: "ok", "note", or "problem", which keeps the chosen machine from running kernels."""

    level: str
    what: str
    fix: str = ""
    command: str = ""


def doctor(console: "Console") -> int:
    """Look, run one kernel, print everything; 1 if something keeps the chosen machine from running kernels, else 0."""
    facts = gather()
    with console.status("running one kernel"):
        findings = [*diagnose(facts), *self_test(facts)]
    report(facts, findings, console)
    return int(any(finding.level == "problem" for finding in findings))


# --- what there is ---


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
        return None, _one_line(cuda.cuda_error())
    except Exception as error:
        return None, _one_line(error)


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


# --- what it means ---


def diagnose(facts: Facts) -> list[Finding]:
    """Every finding that the facts give, problems first. Looks at nothing but its argument."""
    order = ("problem", "note", "ok")
    return sorted((finding for check in _CHECKS for finding in check(facts)), key=lambda f: order.index(f.level))


def _check_versions(facts: Facts) -> Iterator[Finding]:
    installed = _tested_versions(facts)
    for name, tested in TESTED.items():
        version = installed[name]
        if version is None:
            if name in ("numba", "numpy", "ml_dtypes"):
                yield Finding("problem", f"{name} is not installed.", "Install it.", _pip(name))
        elif name == "numpy" and facts.numba_cuda and _numbers(version) >= NUMBA_CUDA_WITHOUT_NUMPY:
            yield Finding(
                _gpu_level(facts),
                f"NumPy {version} does not go with numba-cuda {facts.numba_cuda}, which uses np.row_stack: NumPy 2.5 "
                "has removed it, and the first kernel fails with \"module 'numpy' has no attribute 'row_stack'\".",
                "Install an older NumPy.",
                'pip install "numpy<2.5"',
            )
        elif not tested.allows(version):
            yield Finding(
                "note",
                f"{name} {version} is outside the tested range {tested.specifier()} (tested with {tested.version}).",
                "Should a kernel fail, install a tested version." if name != "python" else "Use a newer Python.",
                "" if name == "python" else _pip(name),
            )


def _check_import(facts: Facts) -> Iterator[Finding]:
    for entry in facts.shadowed:
        name, _, path = entry.partition(": ")
        yield Finding(
            "problem" if facts.import_error or facts.backend is None else "note",
            f"Another file hides the installed package {name}: Python imports {path} instead.",
            "Rename that file, or start from another folder.",
        )
    if facts.numba_cuda and not facts.cuda_bindings:
        yield Finding(
            "problem" if facts.import_error else _gpu_level(facts),
            f"numba-cuda {facts.numba_cuda} is installed without cuda-bindings, and numba.cuda cannot be imported so: "
            "neither a GPU nor the emulator works.",
            "Install them." if not _no_cuda(facts) else "Remove numba-cuda: the emulator does not need it.",
            _install(facts, _major_for(facts)) if not _no_cuda(facts) else "pip uninstall -y numba-cuda",
        )
    elif facts.numba and facts.import_error:
        broken = ["numba", "numpy", *(["numba-cuda"] if facts.numba_cuda else [])]
        yield Finding(
            "problem",
            f"numba.cuda cannot be imported ({facts.import_error}).",
            "Install the tested versions afresh.",
            " ".join(["pip install --force-reinstall", *map(_requirement, broken)]),
        )


def _check_wanted(facts: Facts) -> Iterator[Finding]:
    """DSV41_BACKEND and the simulator switch."""
    if facts.backend is None and not facts.import_error:
        if facts.cudasim and facts.wanted in ("gpu", "emulator"):
            what, variable = f"No machine could be chosen: {facts.reason}.", "NUMBA_ENABLE_CUDASIM"
        elif facts.wanted == "gpu":
            found = "no NVIDIA driver was found" if facts.driver is None else "numba can use no device"
            detail = facts.driver_error or facts.cuda_error
            what = f"DSV41_BACKEND=gpu asks for a GPU, but {found}{f' ({detail})' if detail else ''}."
            variable = "DSV41_BACKEND"
        elif facts.wanted:
            what, variable = f"No machine could be chosen: {facts.reason}.", "DSV41_BACKEND"
        else:
            yield Finding("problem", f"No machine could be chosen: {facts.reason}.")
            return
        yield Finding("problem", what, f"Unset {variable}: the choice is then made by what is there.",
                      _unset(variable, facts))  # fmt: skip
    elif facts.cudasim and facts.wanted == "simulator":
        yield Finding(
            "note",
            "DSV41_BACKEND=simulator: Numba's simulator steps through kernels in Python. It is for a debugger; the "
            "emulator runs the same kernels thousands of times faster.",
            "Unset it when you are done.",
            _unset("DSV41_BACKEND", facts),
        )
    elif facts.cudasim:
        yield Finding(
            "note",
            "NUMBA_ENABLE_CUDASIM is set: Numba's simulator replaces GPU and emulator. It is very slow (about 20 "
            "microseconds a multiply-add) and has no warp operations.",
            "Unset it.",
            _unset("NUMBA_ENABLE_CUDASIM", facts),
        )


def _check_gpu_presence(facts: Facts) -> Iterator[Finding]:
    """Is there a driver, a device, and what is needed to use them?"""
    runs = "the kernels run on the emulator, compiled for the CPU. That is fine: everything but the timings works so."
    if facts.backend not in ("emulator", "gpu"):
        return
    if _no_cuda(facts):
        yield Finding("ok", f"CUDA does not exist on macOS: {runs}")
        if facts.numba_cuda:
            yield Finding(
                "note",
                f"numba-cuda {facts.numba_cuda} is of no use on macOS, where its bindings do not exist.",
                "Remove it.",
                "pip uninstall -y numba-cuda",
            )
    elif facts.driver is None:
        yield Finding("ok", f"There is no NVIDIA driver: {runs}")
    elif not facts.devices:
        yield Finding(
            "note",
            f"There is an NVIDIA driver (CUDA {_dotted(facts.driver)}) but it shows no device"
            f"{f' ({facts.driver_error})' if facts.driver_error else ''}: {runs}",
            "If there is a GPU, see whether CUDA_VISIBLE_DEVICES hides it and whether nvidia-smi lists it.",
            "nvidia-smi -L",
        )
    elif facts.numba_cuda is None:
        yield Finding(
            _gpu_level(facts),
            f"There is a GPU ({facts.devices[0].name}, driver for CUDA {_dotted(facts.driver)}), but numba-cuda is "
            "missing.",
            "Install it." if facts.driver >= OLDEST_DRIVER else _NEWER_DRIVER,
            _install(facts, _major_for(facts)) if facts.driver >= OLDEST_DRIVER else "",
        )
    elif facts.backend == "emulator" and facts.wanted != "emulator":
        yield Finding(
            "note",
            f"There is a GPU ({facts.devices[0].name}), but numba does not use it: "
            f"{facts.cuda_error or 'numba.cuda.is_available() says no'}.",
            "See whether NUMBA_DISABLE_CUDA is set; otherwise install what numba-cuda needs.",
            _install(facts, _major_for(facts)),
        )


def _check_two_majors(facts: Facts) -> Iterator[Finding]:
    """pip adds a second CUDA beside the first without a word, when two packages ask for different ones."""
    majors = {major: [w for w in facts.wheels if _major_of(w) == major] for major in map(_major_of, facts.wheels)}
    if len(majors) < 2:
        return
    listed = " and ".join(
        f"CUDA {major} ({', '.join(f'{name} {version}' for name, version in majors[major])})"
        for major in sorted(majors)
    )
    keep = _major_for(facts) if facts.driver else (_bindings_major(facts) or max(majors))
    mixed = facts.toolkit is not None and _bindings_major(facts) not in (None, facts.toolkit[0])
    yield Finding(
        _gpu_level(facts) if mixed else "note",
        f"Wheels of more than one CUDA are installed: {listed}. A compiler of one and a linker of the other do not go "
        "together.",
        f"Keep CUDA {keep}; if another package needs the other one, give it an environment of its own.",
        _install(facts, keep),
    )


def _check_levels(facts: Facts) -> Iterator[Finding]:
    """Driver, toolkit, bindings and nvJitLink against one another."""
    if facts.numba_cuda is None or facts.driver is None or not facts.devices or facts.cudasim:
        return
    level, driver = _gpu_level(facts), _dotted(facts.driver)
    if facts.driver < OLDEST_DRIVER:
        yield Finding(
            level, f"The driver is for CUDA {driver}; numba-cuda {facts.numba_cuda} needs 12.0.", _NEWER_DRIVER
        )
        return
    major = _major_for(facts)
    bindings = _bindings_major(facts)
    if bindings is not None and bindings > facts.driver[0]:
        yield Finding(
            level,
            f"cuda-bindings {facts.cuda_bindings} are for CUDA {bindings}, but the driver is for CUDA {driver}: they "
            "call functions that it does not have.",
            f"Install the CUDA {major} set, or a newer driver.",
            _install(facts, major),
        )
    toolkit = facts.toolkit
    if toolkit is None:
        if facts.import_error is None and facts.cuda_bindings:
            yield Finding(level, "numba-cuda finds no CUDA toolkit (NVRTC) to compile with.", "Install one.",
                          _install(facts, major))  # fmt: skip
        return
    compiler = f"The toolkit is CUDA {_dotted(toolkit)}, but the driver is for CUDA {driver}: a mismatch"
    refused = 'the driver refuses the code with "unsupported PTX version"'
    if toolkit[0] > facts.driver[0]:
        yield Finding(level, f"{compiler}, and {refused}.", f"Install the CUDA {major} set, or a newer driver.",
                      _install(facts, major))  # fmt: skip
    elif toolkit > facts.driver and (facts.nvjitlink is None or facts.nvjitlink < toolkit):
        link = "nvJitLink is missing" if facts.nvjitlink is None else f"nvJitLink is only {_dotted(facts.nvjitlink)}"
        yield Finding(level, f"{compiler}, {link}, and {refused}.", "Pin the toolkit to the driver's level.",
                      _pinned(facts, facts.driver))  # fmt: skip
    elif toolkit > facts.driver:
        yield Finding(
            "note",
            f"{compiler} that nvJitLink {_dotted(facts.nvjitlink or toolkit)} bridges: it links before the driver sees "
            f"the code. Without it {refused}.",
            "Nothing is needed. To have both alike, pin the toolkit to the driver's level.",
            _pinned(facts, facts.driver),
        )
    elif facts.nvjitlink is not None and facts.nvjitlink < toolkit:
        linker = "nvidia-nvjitlink-cu12" if toolkit[0] == 12 else "nvidia-nvjitlink"
        yield Finding(
            level,
            f"nvJitLink is {_dotted(facts.nvjitlink)}, older than the toolkit ({_dotted(toolkit)}): it cannot read "
            "what the compiler writes.",
            "Install one as new as the toolkit.",
            f'pip install -U "{linker}>={_dotted(toolkit)},<{toolkit[0] + 1}"',
        )
    old = [device for device in facts.devices if device.capability < CUDA_13_CAPABILITY]
    if old and toolkit[0] >= 13:
        yield Finding(
            level,
            f"{old[0].name} has compute capability {_dotted(old[0].capability)}; CUDA 13 compiles for "
            f"{_dotted(CUDA_13_CAPABILITY)} and up.",
            "Install the CUDA 12 set.",
            _install(facts, 12),
        )


_CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _check_import,
    _check_wanted,
    _check_gpu_presence,
    _check_levels,
    _check_two_majors,
    _check_versions,
)
_NEWER_DRIVER = (
    "Install a driver for CUDA 12 or newer (525 or newer on Linux), from your distribution or from nvidia.com."
)


def _gpu_level(facts: Facts) -> str:
    """A fault of the GPU's software stops only those who use the GPU."""
    return "problem" if facts.backend in ("gpu", None) or facts.wanted == "gpu" else "note"


def _no_cuda(facts: Facts) -> bool:
    return facts.platform == "darwin"


def _major_for(facts: Facts) -> int:
    """The CUDA major that suits the driver and the devices."""
    old_device = any(device.capability < CUDA_13_CAPABILITY for device in facts.devices)
    return 12 if (facts.driver is not None and facts.driver < (13, 0)) or old_device else 13


def _bindings_major(facts: Facts) -> int | None:
    return _numbers(facts.cuda_bindings)[0] if facts.cuda_bindings else None


def _major_of(wheel: tuple[str, str]) -> int:
    """CUDA 12 wheels end in -cu12; from 13 on the name has no suffix and the version tells."""
    name, version = wheel
    suffix = re.search(r"-cu(\d+)$", name)
    return int(suffix[1]) if suffix else _numbers(version)[0]


def _install(facts: Facts, major: int) -> str:
    """The command that leaves one CUDA: wheels of other majors out (pip would keep them), those of `major` in."""
    others = [name for name, version in facts.wheels if _major_of((name, version)) != major and name != "cuda-toolkit"]
    remove = f"pip uninstall -y {' '.join(others)} && " if others else ""
    package = '"dsv41_numba[gpu]"' if major == 13 else f'"numba-cuda[cu12]{TESTED["numba-cuda"].specifier()}"'
    return f"{remove}pip install {package}"


def _pinned(facts: Facts, level: Level) -> str:
    """`_install` with the toolkit held at one level."""
    return f'{_install(facts, level[0])} "cuda-toolkit=={_dotted(level)}.*"'


def _requirement(name: str) -> str:
    return f'"{name}{TESTED[name].specifier()}"'


def _pip(name: str) -> str:
    return f"pip install {_requirement(name)}"


def _unset(variable: str, facts: Facts) -> str:
    return f"Remove-Item Env:{variable}" if facts.platform == "win32" else f"unset {variable}"


def _numbers(version: str) -> Version:
    """(0, 68, 1) of "0.68.1"; reading stops at what is no number, so "2.5.0rc1" is (2, 5, 0)."""
    return tuple(int(part) for part in re.match(r"\d*(?:\.\d+)*", version)[0].split(".") if part)  # type: ignore[index]


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


def _one_line(text: Any) -> str | None:
    return " ".join(str(text).split()) or None if text is not None else None


# --- does it work ---

_SELF_TEST_FIX = "Mend what is said above, if anything; otherwise this is a fault of ours. The whole error:"


def self_test(facts: Facts) -> list[Finding]:
    """Run one small kernel on the chosen machine and hold it to its NumPy reference. Never raises."""
    if facts.backend is None:
        return []
    start = time.perf_counter()
    try:
        steps = _rmsnorm_steps()
    except Exception as error:
        first_line = next(iter(str(error).strip().splitlines()), "")  # Numba's errors are pages long
        what = f"The self-test failed on the {facts.backend}: {type(error).__name__}: {first_line}"
    else:
        if steps <= SELF_TEST_STEPS:
            seconds = time.perf_counter() - start
            agrees = f"Self-test: rmsnorm on the {facts.backend} agrees with NumPy ({steps} bf16 steps apart at most)."
            return [Finding("ok", f"{agrees} It took {seconds:.2f} s, compiling included.")]
        what = f"The self-test gave a wrong result on the {facts.backend}: rmsnorm is {steps} bf16 steps from NumPy."
    if facts.backend != "gpu":
        return [Finding("problem", what, _SELF_TEST_FIX, "dsv41 stage rmsnorm")]
    emulator = '$Env:DSV41_BACKEND = "emulator"' if facts.platform == "win32" else "export DSV41_BACKEND=emulator"
    return [Finding("problem", what, "Mend what is said above, if anything; the emulator works meanwhile.", emulator)]


def _rmsnorm_steps() -> int:
    """The largest difference between kernel and reference, in bf16 steps."""
    import numpy as np

    from dsv41_numba.compare import bf16_array, worst_steps
    from dsv41_numba.formats.bf16 import as_bf16
    from dsv41_numba.ops.rmsnorm import rmsnorm, rmsnorm_ref
    from dsv41_numba.runtime.backend import to_device, to_host

    rng = np.random.default_rng(0)
    x = as_bf16(rng.standard_normal((3, 100)).astype(np.float32))
    weight = rng.standard_normal(100).astype(np.float32)
    y = bf16_array(to_host(rmsnorm(to_device(x), to_device(weight), 1e-6)))
    return int(worst_steps(y, rmsnorm_ref(x, weight, 1e-6)))


# --- how it is said ---


def report(facts: Facts, findings: list[Finding], console: "Console") -> None:
    """Print the facts as a table, the chosen machine and why, then each finding with its fix. Commands stand alone on a
    line that is never wrapped, so that they can be pasted."""
    from rich.table import Table
    from rich.text import Text

    say = functools.partial(console.print, markup=False)  # "numba-cuda[cu12]" is no markup
    table = Table(box=None, pad_edge=False)
    for column in ("", "here", "tested with"):
        table.add_column(column)
    for name, here, tested in _rows(facts):
        table.add_row(Text(name), Text(here), Text(tested))
    say(table)
    say()
    if facts.backend is None:
        say("There is no machine to run kernels on.", style="bold red")
    else:
        say(f"Kernels run on the {facts.backend}: {facts.reason}.", style="bold")
    colours = {"ok": "green", "note": "yellow", "problem": "red"}
    for finding in findings:
        say()
        say(Text.assemble((f"{finding.level}: ", colours[finding.level]), f"{finding.what} {finding.fix}".rstrip()))
        if finding.command:
            say(f"    {finding.command}", soft_wrap=True)


def _rows(facts: Facts) -> Iterator[tuple[str, str, str]]:
    """The table: name, what is here, what was tested."""
    for name, version in _tested_versions(facts).items():
        yield name, version or "not installed", f"{TESTED[name].version} ({TESTED[name].specifier()})"
    yield "llvmlite", facts.llvmlite or "not installed", ""
    yield "platform", f"{facts.platform} {facts.machine}", ""
    yield "CUDA wheels", ", ".join(f"{name} {version}" for name, version in facts.wheels) or "none", ""
    yield "CUDA toolkit", _dotted(facts.toolkit) if facts.toolkit else "none found", ""
    yield "nvJitLink", _dotted(facts.nvjitlink) if facts.nvjitlink else "none found", ""
    yield "NVIDIA driver", f"for CUDA {_dotted(facts.driver)}" if facts.driver else "none found", ""
    devices = ", ".join(f"{device.name} (capability {_dotted(device.capability)})" for device in facts.devices)
    yield "devices", devices or "none", ""
    yield "DSV41_BACKEND", facts.wanted or "not set", ""
    yield "NUMBA_ENABLE_CUDASIM", "set" if facts.cudasim else "not set", ""


def _tested_versions(facts: Facts) -> dict[str, str | None]:
    """What is installed of each entry of TESTED."""
    return {
        "python": facts.python,
        "numba": facts.numba,
        "numpy": facts.numpy,
        "ml_dtypes": facts.ml_dtypes,
        "numba-cuda": facts.numba_cuda,
        "cuda-bindings": facts.cuda_bindings,
    }
