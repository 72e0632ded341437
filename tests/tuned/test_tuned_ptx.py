"""What the tuned kernels compile to, without a GPU: the instructions they are for, and no memory for what spills."""

import importlib
import pathlib
import re
import subprocess
import sys

import pytest
from numba import cuda, types

from dsv41_numba.tuned.position import given
from ptx import pretend_device

pytest.importorskip("numba_cuda", reason="numba-cuda, which compiles to PTX, is not installed: pip install -e .[gpu]")

TUNED = pathlib.Path(importlib.import_module("dsv41_numba.tuned").__file__).parent
BITS = types.Array(types.uint16, 2, "C")
N = types.int64
AMPERE, HOPPER = (8, 0), (9, 0, "a")  # "a": with what only this one chip has


def sparse_kernel_of(rung, *arguments):
    module = importlib.import_module(f"dsv41_numba.tuned.sparse_{rung}")
    if rung == "wgmma":
        return module.sparse_wgmma_kernel, module.SIGNATURE
    if rung == "mma":
        indices, sinks, angles, words = (
            types.Array(*a, "C") for a in ((types.int32, 2), (types.float32, 1), (types.float32, 2), (types.uint32, 2))
        )
        signature = (BITS, BITS, BITS, indices, sinks, types.float32, N, angles, angles, N, words)
        return module.kernel(*arguments), signature
    which, *arguments = arguments
    if which == "combine":
        return module.combine_kernel(*arguments, given), module.combine_signature(given)
    return module.parts_kernel(*arguments), module.parts_signature(arguments[-1])


def kernel_of(rung, *arguments):
    if rung.startswith("sparse "):
        return sparse_kernel_of(rung.removeprefix("sparse "), *arguments)
    module = importlib.import_module(f"dsv41_numba.tuned.linear_{rung}")
    if rung == "fma":
        return module.linear_fma_kernel, (BITS, BITS, N, BITS)
    if rung == "fp8_decode":
        signature = (BITS, BITS, types.Array(types.uint8, 1, "C"), N, N, types.uint32, types.uint32, BITS)
        return module.kernel(*arguments), signature
    if rung == "fp8_dequantise":
        words = types.Array(types.uint32, 2, "C")
        return module.dequantise_kernel, (words, types.Array(types.uint8, 2, "C"), N, N, words)
    if rung == "wgmma":
        return module.build(module.TILES[arguments[0]])[0], module.SIGNATURE
    signature = {"mma": (BITS, BITS, N, BITS), "decode": (BITS, BITS, N, N, N, BITS)}[rung]
    return module.kernel(*arguments), signature


def compiled(rung, arguments, capability, output="ptx"):
    kernel, signature = kernel_of(rung, *arguments)
    bounds = kernel.targetoptions["launch_bounds"]
    with pretend_device(capability[:2]):
        return cuda.compile(
            kernel.py_func, signature, cc=capability, launch_bounds=bounds, output=output, device=False, abi="numba"
        )[0]


def assembler_report(rung, arguments, capability):
    """What ptxas says of the kernel, linked as numba-cuda links it: from LTO-IR, by nvJitLink."""
    from cuda.bindings import nvjitlink

    code = compiled(rung, arguments, capability, output="ltoir")
    options = [f"-arch={target(capability)}", "-lto", "-verbose"]
    linker = nvjitlink.create(len(options), options)
    nvjitlink.add_data(linker, nvjitlink.InputType.LTOIR, code, len(code), rung)
    nvjitlink.complete(linker)
    report = bytearray(nvjitlink.get_info_log_size(linker))
    nvjitlink.get_info_log(linker, report)
    nvjitlink.destroy(linker)
    return report.decode()


def target(capability):
    return "sm_" + "".join(map(str, capability))


# rung, its kernel, capability, an instruction that it is for
KERNELS = [
    ("fma", (), (7, 5), r"fma\.rn\.f32"),
    # not fma for 12.0: CUDA 13.0's assembler puts its 64 sums on the stack there, 13.5's does not
    ("mma", (True,), AMPERE, r"cp\.async\.cg\.shared\.global"),
    ("mma", (True,), (12, 0), r"mma\.sync\.aligned\.m16n8k16"),
    ("mma", (False,), AMPERE, r"ldmatrix\.sync"),
    ("decode", (1,), (7, 5), r"ld\.global\.nc\.L1::no_allocate\.v4\.u32"),
    ("decode", (2,), (9, 0), r"ld\.global\.nc\.v4\.u32"),
    ("decode", (3,), (9, 0), r"ld\.global\.nc\.v4\.u32"),
    ("decode", (4,), (12, 0), r"ld\.global\.nc\.v4\.u32"),
    *[("fp8_decode", (tokens,), (9, 0), r"cvt\.rn\.f16x2\.e4m3x2") for tokens in (1, 2, 3, 4)],
    ("fp8_decode", (1,), (8, 9), r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.f16\.f16\.f32"),
    ("fp8_decode", (4,), (12, 0), r"cvt\.rn\.satfinite\.e4m3x2\.f32"),
    ("fp8_dequantise", (), (8, 0), r"st\.global"),
    *[("wgmma", (tile,), HOPPER, r"wgmma\.mma_async\.sync\.aligned\.m64n") for tile in range(6)],
    ("sparse mma", (512,), AMPERE, r"ldmatrix\.sync\.aligned\.m8n8\.x4\.trans"),
    ("sparse mma", (512,), (12, 0), r"mma\.sync\.aligned\.m16n8k16"),
    ("sparse mma", (96,), (9, 0), r"ex2\.approx\.ftz\.f32"),
    ("sparse decode", ("parts", 512, True, False), (9, 0), r"griddepcontrol\.wait"),
    ("sparse decode", ("parts", 512, False, False), AMPERE, r"st\.global\.v2\.f32"),
    ("sparse decode", ("parts", 48, False, False), AMPERE, r"st\.global\.v2\.f32"),
    ("sparse decode", ("parts", 512, True, True), (9, 0), r"fma\.rn\.bf16x2"),
    ("sparse decode", ("parts", 96, False, True), AMPERE, r"fma\.rn\.bf16x2"),
    ("sparse decode", ("combine", True), (9, 0), r"ld\.global\.cg\.v4\.f32"),
    ("sparse decode", ("combine", False), AMPERE, r"ld\.global\.cg\.v4\.f32"),
    ("sparse wgmma", (), HOPPER, r"wgmma\.mma_async\.sync\.aligned\.m64n256k16\.f32\.bf16\.bf16"),
]


def kernels(cases):
    parameters = [pytest.param(*case, id=f"{case[0]}{case[1]}-{target(case[2])}") for case in cases]
    return pytest.mark.parametrize("rung, arguments, capability, instruction", parameters)


FIRST_OF_RUNG = {case[0]: case for case in reversed(KERNELS)}.values()


@kernels(FIRST_OF_RUNG)
def test_tuned_kernels_have_their_instruction_and_no_float64(rung, arguments, capability, instruction):
    text = compiled(rung, arguments, capability)
    assert f".target {target(capability)}" in text
    assert re.search(instruction, text)
    assert re.findall(r".*\.f64.*", text) == []


@kernels(KERNELS)
def test_tuned_kernels_do_not_spill(rung, arguments, capability, instruction):
    """The stack would also hold an array that is indexed at run time, or in a loop that LLVM does not unroll."""
    report = assembler_report(rung, arguments, capability)
    print(*re.findall(r".*stack frame.*|.*Used.*", report), sep="\n")
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in report
    # C7504, C7508: setmaxnreg is ignored; C7510, C7514: products wait for each other
    assert re.findall(r".*\(C75\d\d\).*", report) == []


def test_tuned_ptx_text_is_in_one_file():
    with_text = {path.name for path in TUNED.glob("*.py") if re.search(r"InlineAsm|instruction\(", path.read_text())}
    assert with_text == {"ptx.py"}


def test_tuned_ladder_is_imported_without_any_ptx():
    """numba-cuda is not needed before a rung that needs it is picked."""
    code = (
        "import sys, dsv41_numba.tuned.linear, dsv41_numba.tuned.linear_fma, dsv41_numba.tuned.sparse_attention\n"
        "assert 'dsv41_numba.tuned.ptx' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=TUNED.parent.parent)
