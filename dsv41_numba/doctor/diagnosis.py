"""What it means: findings from facts alone, so that made-up facts can test them."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass
from dsv41_numba.doctor.facts import Facts, tested_versions
from dsv41_numba.doctor.versions import (
    CUDA_13_CAPABILITY,
    NUMBA_CUDA_WITHOUT_NUMPY,
    OLDEST_DRIVER,
    TESTED,
    Level,
    dotted,
    numbers,
)


@dataclass(frozen=True)
class Finding:
    """One thing to know. level: "ok", "note", or "problem", which keeps the chosen machine from running kernels."""

    level: str
    what: str
    fix: str = ""
    command: str = ""


def diagnose(facts: Facts) -> list[Finding]:
    """Every finding that the facts give, problems first. Looks at nothing but its argument."""
    order = ("problem", "note", "ok")
    return sorted((finding for check in _CHECKS for finding in check(facts)), key=lambda f: order.index(f.level))


def _check_versions(facts: Facts) -> Iterator[Finding]:
    installed = tested_versions(facts)
    for name, tested in TESTED.items():
        version = installed[name]
        if version is None:
            if name in ("numba", "numpy", "ml_dtypes"):
                yield Finding("problem", f"{name} is not installed.", "Install it.", _pip(name))
        elif name == "numpy" and facts.numba_cuda and numbers(version) >= NUMBA_CUDA_WITHOUT_NUMPY:
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
            f"There is an NVIDIA driver (CUDA {dotted(facts.driver)}) but it shows no device"
            f"{f' ({facts.driver_error})' if facts.driver_error else ''}: {runs}",
            "If there is a GPU, see whether CUDA_VISIBLE_DEVICES hides it and whether nvidia-smi lists it.",
            "nvidia-smi -L",
        )
    elif facts.numba_cuda is None:
        yield Finding(
            _gpu_level(facts),
            f"There is a GPU ({facts.devices[0].name}, driver for CUDA {dotted(facts.driver)}), but numba-cuda is "
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
    level, driver = _gpu_level(facts), dotted(facts.driver)
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
    compiler = f"The toolkit is CUDA {dotted(toolkit)}, but the driver is for CUDA {driver}: a mismatch"
    refused = 'the driver refuses the code with "unsupported PTX version"'
    if toolkit[0] > facts.driver[0]:
        yield Finding(level, f"{compiler}, and {refused}.", f"Install the CUDA {major} set, or a newer driver.",
                      _install(facts, major))  # fmt: skip
    elif toolkit > facts.driver and (facts.nvjitlink is None or facts.nvjitlink < toolkit):
        link = "nvJitLink is missing" if facts.nvjitlink is None else f"nvJitLink is only {dotted(facts.nvjitlink)}"
        yield Finding(level, f"{compiler}, {link}, and {refused}.", "Pin the toolkit to the driver's level.",
                      _pinned(facts, facts.driver))  # fmt: skip
    elif toolkit > facts.driver:
        yield Finding(
            "note",
            f"{compiler} that nvJitLink {dotted(facts.nvjitlink or toolkit)} bridges: it links before the driver sees "
            f"the code. Without it {refused}.",
            "Nothing is needed. To have both alike, pin the toolkit to the driver's level.",
            _pinned(facts, facts.driver),
        )
    elif facts.nvjitlink is not None and facts.nvjitlink < toolkit:
        linker = "nvidia-nvjitlink-cu12" if toolkit[0] == 12 else "nvidia-nvjitlink"
        yield Finding(
            level,
            f"nvJitLink is {dotted(facts.nvjitlink)}, older than the toolkit ({dotted(toolkit)}): it cannot read "
            "what the compiler writes.",
            "Install one as new as the toolkit.",
            f'pip install -U "{linker}>={dotted(toolkit)},<{toolkit[0] + 1}"',
        )
    old = [device for device in facts.devices if device.capability < CUDA_13_CAPABILITY]
    if old and toolkit[0] >= 13:
        yield Finding(
            level,
            f"{old[0].name} has compute capability {dotted(old[0].capability)}; CUDA 13 compiles for "
            f"{dotted(CUDA_13_CAPABILITY)} and up.",
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
    return numbers(facts.cuda_bindings)[0] if facts.cuda_bindings else None


def _major_of(wheel: tuple[str, str]) -> int:
    """CUDA 12 wheels end in -cu12; from 13 on the name has no suffix and the version tells."""
    name, version = wheel
    suffix = re.search(r"-cu(\d+)$", name)
    return int(suffix[1]) if suffix else numbers(version)[0]


def _install(facts: Facts, major: int) -> str:
    """The command that leaves one CUDA: wheels of other majors out (pip would keep them), those of `major` in."""
    others = [name for name, version in facts.wheels if _major_of((name, version)) != major and name != "cuda-toolkit"]
    remove = f"pip uninstall -y {' '.join(others)} && " if others else ""
    package = '"dsv41_numba[gpu]"' if major == 13 else f'"numba-cuda[cu12]{TESTED["numba-cuda"].specifier()}"'
    return f"{remove}pip install {package}"


def _pinned(facts: Facts, level: Level) -> str:
    """`_install` with the toolkit held at one level."""
    return f'{_install(facts, level[0])} "cuda-toolkit=={dotted(level)}.*"'


def _requirement(name: str) -> str:
    return f'"{name}{TESTED[name].specifier()}"'


def _pip(name: str) -> str:
    return f"pip install {_requirement(name)}"


def _unset(variable: str, facts: Facts) -> str:
    return f"Remove-Item Env:{variable}" if facts.platform == "win32" else f"unset {variable}"
