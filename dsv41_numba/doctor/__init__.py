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

import functools
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dsv41_numba.doctor.diagnosis import Finding, diagnose
from dsv41_numba.doctor.facts import Facts, gather, tested_versions
from dsv41_numba.doctor.versions import TESTED, dotted

if TYPE_CHECKING:
    from rich.console import Console

SELF_TEST_STEPS = 1  # bf16 steps: the f32 sums of kernel and reference differ in their order


def doctor(console: "Console") -> int:
    """Look, run one kernel, print everything; 1 if something keeps the chosen machine from running kernels, else 0."""
    facts = gather()
    with console.status("running one kernel"):
        findings = [*diagnose(facts), *self_test(facts)]
    report(facts, findings, console)
    return int(any(finding.level == "problem" for finding in findings))


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
    for name, version in tested_versions(facts).items():
        yield name, version or "not installed", f"{TESTED[name].version} ({TESTED[name].specifier()})"
    yield "llvmlite", facts.llvmlite or "not installed", ""
    yield "platform", f"{facts.platform} {facts.machine}", ""
    yield "CUDA wheels", ", ".join(f"{name} {version}" for name, version in facts.wheels) or "none", ""
    yield "CUDA toolkit", dotted(facts.toolkit) if facts.toolkit else "none found", ""
    yield "nvJitLink", dotted(facts.nvjitlink) if facts.nvjitlink else "none found", ""
    yield "NVIDIA driver", f"for CUDA {dotted(facts.driver)}" if facts.driver else "none found", ""
    devices = ", ".join(f"{device.name} (capability {dotted(device.capability)})" for device in facts.devices)
    yield "devices", devices or "none", ""
    yield "DSV41_BACKEND", facts.wanted or "not set", ""
    yield "NUMBA_ENABLE_CUDASIM", "set" if facts.cudasim else "not set", ""
