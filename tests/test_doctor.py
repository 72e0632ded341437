import ctypes
import dataclasses
import io
import pathlib
import re
import tomllib

import pytest
from rich.console import Console

from dsv41_numba import doctor
from dsv41_numba.doctor import TESTED, Facts, Finding, diagnose, gather, report, self_test
from dsv41_numba.doctor import facts as facts_module
from dsv41_numba.doctor.facts import Device

CUDA_12 = (("cuda-toolkit", "12.9.1"), ("nvidia-cuda-nvrtc-cu12", "12.9.86"), ("nvidia-nvjitlink-cu12", "12.9.86"))
CUDA_13 = (("cuda-toolkit", "13.5.0"), ("nvidia-cuda-nvrtc", "13.5.37"), ("nvidia-nvjitlink", "13.5.37"))

LAPTOP = Facts(  # no GPU, no numba-cuda
    python="3.12.4",
    platform="linux",
    machine="x86_64",
    numba="0.68.1",
    llvmlite="0.50.0",
    numpy="2.4.6",
    ml_dtypes="0.7.0",
    numba_cuda=None,
    cuda_bindings=None,
    wheels=(),
    toolkit=None,
    nvjitlink=None,
    driver=None,
    driver_error="libcuda.so.1: cannot open shared object file",
    devices=(),
    cudasim=False,
    wanted="",
    import_error=None,
    cuda_error="CUDA driver library cannot be found.",
    shadowed=(),
    backend="emulator",
    reason="no CUDA device was found",
)
SERVER = dataclasses.replace(  # everything fits
    LAPTOP,
    numba_cuda="0.30.4",
    cuda_bindings="13.5.0",
    wheels=CUDA_13,
    toolkit=(13, 5),
    nvjitlink=(13, 5),
    driver=(13, 5),
    driver_error=None,
    devices=(Device("NVIDIA H200", (9, 0)),),
    cuda_error=None,
    backend="gpu",
    reason="a CUDA device was found",
)
COLAB = dataclasses.replace(SERVER, cuda_bindings="12.9.10", wheels=(), toolkit=(12, 5), nvjitlink=None, driver=(12, 4))


def the(findings, level, word) -> Finding:
    """The one finding of this level that says `word`."""
    (found,) = [f for f in findings if f.level == level and word in f.what]
    return found


def levels(findings) -> set[str]:
    return {finding.level for finding in findings}


def printed(facts, findings, width=110) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    report(facts, findings, console)
    return console.file.getvalue()


def test_doctor_finds_nothing_wrong_where_everything_fits():
    assert diagnose(SERVER) == []


def test_doctor_says_that_no_driver_means_the_emulator_and_is_fine():
    """Hard case 19."""
    findings = diagnose(LAPTOP)
    assert levels(findings) == {"ok"}
    assert "emulator" in the(findings, "ok", "no NVIDIA driver").what
    assert "That is fine" in findings[0].what
    with_numba_cuda = dataclasses.replace(SERVER, driver=None, devices=(), backend="emulator")
    assert levels(diagnose(with_numba_cuda)) == {"ok"}


def test_doctor_names_driver_and_toolkit_when_the_toolkit_is_newer():
    """Hard case 19: driver 12.4, toolkit 12.5."""
    finding = the(diagnose(COLAB), "problem", "unsupported PTX version")
    assert "12.5" in finding.what and "12.4" in finding.what and "mismatch" in finding.what
    assert finding.command == 'pip install "numba-cuda[cu12]>=0.30.4,<0.31" "cuda-toolkit==12.4.*"'


def test_doctor_only_notes_a_newer_toolkit_that_nvjitlink_bridges():
    finding = the(diagnose(dataclasses.replace(COLAB, nvjitlink=(12, 9))), "note", "nvJitLink 12.9 bridges")
    assert "mismatch" in finding.what and "cuda-toolkit==12.4.*" in finding.command
    assert the(diagnose(dataclasses.replace(COLAB, nvjitlink=(12, 3))), "problem", "nvJitLink is only 12.3")


def test_doctor_offers_cuda_12_to_a_driver_older_than_cuda_13():
    findings = diagnose(dataclasses.replace(SERVER, driver=(12, 4)))
    toolkit = the(findings, "problem", "The toolkit is CUDA 13.5, but the driver is for CUDA 12.4")
    bindings = the(findings, "problem", "cuda-bindings 13.5.0 are for CUDA 13, but the driver is for CUDA 12.4")
    assert toolkit.command == bindings.command
    assert toolkit.command == (
        "pip uninstall -y nvidia-cuda-nvrtc nvidia-nvjitlink && "  # pip would leave them beside the new ones
        'pip install "numba-cuda[cu12]>=0.30.4,<0.31"'
    )


def test_doctor_names_both_cudas_when_pip_has_put_in_two():
    """Hard case 19."""
    both = dataclasses.replace(SERVER, wheels=CUDA_13 + CUDA_12[1:])
    finding = the(diagnose(both), "note", "more than one CUDA")
    assert "CUDA 12 (nvidia-cuda-nvrtc-cu12 12.9.86" in finding.what
    assert "CUDA 13 (cuda-toolkit 13.5.0" in finding.what
    assert finding.command == (
        'pip uninstall -y nvidia-cuda-nvrtc-cu12 nvidia-nvjitlink-cu12 && pip install "dsv41_numba[gpu]"'
    )
    mixed = dataclasses.replace(both, toolkit=(12, 9))  # the compiler of one and the bindings of the other
    assert the(diagnose(mixed), "problem", "more than one CUDA")
    without_gpu = dataclasses.replace(LAPTOP, wheels=both.wheels)
    assert levels(diagnose(without_gpu)) == {"note", "ok"}


@pytest.mark.parametrize(("driver", "package"), [((13, 0), "dsv41_numba[gpu]"), ((12, 8), "numba-cuda[cu12]")])
def test_doctor_tells_how_to_install_numba_cuda_for_this_driver(driver, package):
    bare = dataclasses.replace(LAPTOP, driver=driver, devices=SERVER.devices, driver_error=None)
    finding = the(diagnose(bare), "note", "numba-cuda is missing")
    assert package in finding.command
    assert the(diagnose(dataclasses.replace(bare, backend="gpu")), "problem", "numba-cuda is missing") == (
        dataclasses.replace(finding, level="problem")
    )


def test_doctor_asks_for_cuda_bindings_when_they_are_missing():
    """Hard case 18: numba-cuda demands them even where there is no GPU."""
    facts = dataclasses.replace(
        SERVER, cuda_bindings=None, import_error="ImportError: NVIDIA CUDA Python bindings not found.", backend=None
    )
    (finding,) = diagnose(facts)
    assert finding.level == "problem" and "without cuda-bindings" in finding.what
    assert finding.command == 'pip install "dsv41_numba[gpu]"'


def test_doctor_asks_for_a_toolkit_when_numba_cuda_came_without_one():
    facts = dataclasses.replace(SERVER, toolkit=None, nvjitlink=None, wheels=())
    assert "[gpu]" in the(diagnose(facts), "problem", "no CUDA toolkit").command


def test_doctor_wants_an_nvjitlink_as_new_as_the_toolkit():
    finding = the(diagnose(dataclasses.replace(SERVER, nvjitlink=(13, 0))), "problem", "nvJitLink is 13.0, older")
    assert finding.command == 'pip install -U "nvidia-nvjitlink>=13.5,<14"'


def test_doctor_knows_that_cuda_13_has_left_old_gpus_behind():
    facts = dataclasses.replace(SERVER, devices=(Device("Tesla V100", (7, 0)),))
    finding = the(diagnose(facts), "problem", "Tesla V100 has compute capability 7.0")
    assert "numba-cuda[cu12]" in finding.command


def test_doctor_asks_for_a_newer_driver_below_cuda_12():
    finding = the(diagnose(dataclasses.replace(SERVER, driver=(11, 8))), "problem", "needs 12.0")
    assert "driver for CUDA 12" in finding.fix


def test_doctor_pins_numpy_for_numba_cuda():
    finding = the(diagnose(dataclasses.replace(SERVER, numpy="2.5.0rc1")), "problem", "np.row_stack")
    assert finding.command == 'pip install "numpy<2.5"'
    without_gpu = dataclasses.replace(SERVER, numpy="2.5.1", driver=None, devices=(), backend="emulator")
    assert the(diagnose(without_gpu), "note", "np.row_stack")


@pytest.mark.parametrize("version", ["0.67.0", "0.69.0"])
def test_doctor_notes_versions_outside_the_tested_range(version):
    finding = the(diagnose(dataclasses.replace(LAPTOP, numba=version)), "note", f"numba {version} is outside")
    assert finding.command == 'pip install "numba>=0.68,<0.69"'


def test_doctor_says_that_the_simulator_replaces_everything():
    simulated = dataclasses.replace(LAPTOP, cudasim=True, backend="simulator", reason="NUMBA_ENABLE_CUDASIM is set")
    findings = diagnose(simulated)
    assert levels(findings) == {"note"}  # slow, but it works
    finding = the(findings, "note", "simulator replaces GPU and emulator")
    assert "very slow" in finding.what and finding.command == "unset NUMBA_ENABLE_CUDASIM"
    asked_for = the(diagnose(dataclasses.replace(simulated, wanted="simulator")), "note", "debugger")
    assert asked_for.command == "unset DSV41_BACKEND"
    windows = dataclasses.replace(simulated, platform="win32")
    assert the(diagnose(windows), "note", "simulator").command == "Remove-Item Env:NUMBA_ENABLE_CUDASIM"


def test_doctor_explains_a_backend_that_cannot_be():
    invalid = dataclasses.replace(LAPTOP, wanted="tpu", backend=None, reason="expected one of gpu, got 'tpu'")
    finding = the(diagnose(invalid), "problem", "got 'tpu'")
    assert finding.command == "unset DSV41_BACKEND"
    no_gpu = dataclasses.replace(LAPTOP, wanted="gpu", backend=None, reason="no usable CUDA device")
    finding = the(diagnose(no_gpu), "problem", "DSV41_BACKEND=gpu asks for a GPU, but no NVIDIA driver")
    assert finding.command == "unset DSV41_BACKEND"
    conflict = dataclasses.replace(LAPTOP, wanted="emulator", cudasim=True, backend=None, reason="unset one")
    assert the(diagnose(conflict), "problem", "unset one").command == "unset NUMBA_ENABLE_CUDASIM"
    broken = dataclasses.replace(LAPTOP, backend=None, reason="No module named 'x'")
    assert the(diagnose(broken), "problem", "No module named 'x'").command == ""


def test_doctor_knows_macos():
    mac = dataclasses.replace(LAPTOP, platform="darwin", machine="arm64", driver_error="no libcuda")
    assert "emulator" in the(diagnose(mac), "ok", "macOS").what
    stray = dataclasses.replace(mac, numba_cuda="0.20.1", import_error="ImportError: cuda.bindings", backend=None)
    assert the(diagnose(stray), "problem", "without cuda-bindings").command == "pip uninstall -y numba-cuda"


def test_doctor_says_why_a_gpu_is_not_used():
    hidden = dataclasses.replace(SERVER, devices=(), driver_error="cuInit: no device (100)", backend="emulator")
    assert "CUDA_VISIBLE_DEVICES" in the(diagnose(hidden), "note", "cuInit: no device (100)").fix
    disabled = dataclasses.replace(SERVER, backend="emulator", cuda_error="CUDA is disabled")
    assert the(diagnose(disabled), "note", "CUDA is disabled")


def test_doctor_names_a_file_that_hides_a_package():
    hidden = dataclasses.replace(LAPTOP, shadowed=("numba: /home/me/numba.py",), backend=None, import_error="boom")
    assert "/home/me/numba.py" in the(diagnose(hidden), "problem", "hides the installed package numba").what


def test_doctor_finds_a_file_that_hides_a_package(tmp_path, monkeypatch):
    (tmp_path / "ml_dtypes.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(facts_module.sys.modules, "ml_dtypes")
    assert facts_module._shadowed() == (f"ml_dtypes: {tmp_path / 'ml_dtypes.py'}",)


def test_doctor_puts_problems_first():
    facts = dataclasses.replace(COLAB, numba="0.67.0")
    assert [f.level for f in diagnose(facts)] == ["problem", "note"]


def test_doctor_tested_ranges_are_those_that_the_package_asks_for():
    project = tomllib.loads((pathlib.Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    asked = " ".join([*project["dependencies"], *project["optional-dependencies"]["gpu"]])
    for name in ("numba", "numpy", "ml_dtypes", "numba-cuda"):
        (specifier,) = re.findall(rf"\b{name}(?:\[\w+\])?(>=[\d.,<]+)", asked)
        assert specifier.rstrip(",") == TESTED[name].specifier()
    assert project["requires-python"] == TESTED["python"].specifier()


@pytest.mark.parametrize("tested", TESTED.values(), ids=TESTED)
def test_doctor_tested_versions_are_in_their_ranges(tested):
    assert tested.allows(tested.version)
    assert not tested.allows("0.1")
    assert tested.below is None or not tested.allows(".".join(map(str, tested.below)))


def test_doctor_gathers_facts_of_this_machine():
    facts = gather()
    assert facts.numba and facts.numpy and facts.python.startswith("3.")
    assert facts.backend or "problem" in levels(diagnose(facts))


def test_doctor_gathers_even_where_every_import_fails(monkeypatch):
    def broken(name, *_):
        raise AttributeError(f"{name} is broken")

    monkeypatch.setattr(facts_module.importlib, "import_module", broken)
    monkeypatch.setattr(facts_module.importlib.metadata, "version", broken)
    monkeypatch.setattr(facts_module.importlib.metadata, "distributions", broken)
    facts = gather()
    assert facts.backend is None and facts.numba is None and facts.import_error is not None
    assert "problem" in levels(diagnose(facts))


class FakeDriver:
    """libcuda of a machine with one H200; `init` is what cuInit returns."""

    def __init__(self, init=0):
        self.cuInit = lambda _: init

    def cuDriverGetVersion(self, level):
        level._obj.value = 12040
        return 0

    def cuDeviceGetCount(self, count):
        count._obj.value = 1
        return 0

    def cuDeviceGet(self, device, ordinal):
        device._obj.value = ordinal
        return 0

    def cuDeviceGetName(self, name, length, device):
        name.value = b"NVIDIA H200"
        return 0

    def cuDeviceGetAttribute(self, number, attribute, device):
        number._obj.value = {75: 9, 76: 0}[attribute]
        return 0

    def cuGetErrorString(self, code, text):
        text._obj.value = b"no CUDA-capable device is detected"
        return 0


def test_doctor_asks_the_driver_itself(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda _: FakeDriver())
    assert facts_module._driver() == ((12, 4), None, (Device("NVIDIA H200", (9, 0)),))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: FakeDriver(init=100))
    assert facts_module._driver() == ((12, 4), "cuInit: no CUDA-capable device is detected (100)", ())


def test_doctor_self_test_runs_a_kernel():
    (finding,) = self_test(gather())
    assert finding.level == "ok" and re.search(r"\d+\.\d\d s", finding.what)


def test_doctor_self_test_reports_what_went_wrong(monkeypatch):
    monkeypatch.setattr(doctor, "_rmsnorm_steps", lambda: 7)
    assert "7 bf16 steps" in the(self_test(LAPTOP), "problem", "wrong result").what
    monkeypatch.setattr(doctor, "_rmsnorm_steps", lambda: 1 / 0)
    (finding,) = self_test(SERVER)
    assert "ZeroDivisionError" in finding.what and finding.command == "export DSV41_BACKEND=emulator"
    assert self_test(dataclasses.replace(LAPTOP, backend=None)) == []


@pytest.mark.parametrize(("facts", "code"), [(LAPTOP, 0), (SERVER, 0), (COLAB, 1)])
def test_doctor_exit_status_tells_whether_the_chosen_machine_works(monkeypatch, facts, code):
    monkeypatch.setattr(doctor, "gather", lambda: facts)
    monkeypatch.setattr(doctor, "_rmsnorm_steps", lambda: 0)
    console = Console(file=io.StringIO(), width=110)
    assert doctor.doctor(console) == code
    assert f"Kernels run on the {facts.backend}: {facts.reason}." in console.file.getvalue()


def test_doctor_prints_commands_whole_on_their_own_line():
    facts = dataclasses.replace(SERVER, driver=(12, 4), wheels=CUDA_13 * 3)
    findings = diagnose(facts)
    lines = [line.strip() for line in printed(facts, findings, width=60).splitlines()]
    for finding in findings:
        assert finding.command in lines  # neither wrapped nor read as rich markup
