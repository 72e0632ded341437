"""What holds for every plain kernel alike: no race, no dependence on the order of threads, every barrier needed."""

import functools
import math
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from dsv41_numba.compare import same_bits
from dsv41_numba.runtime.emulator import Race, barrier_places, emulate, race_check, without_barrier
from kernel_cases import CASES, captured, package_kernels

HARMLESS_BARRIERS: dict[tuple[str, int], str] = {}  # (kernel, its barrier's number): why none can tell that it is gone

every_kernel = pytest.mark.parametrize("name", CASES)


def run(name, grid=None, small=False, **options):
    """The arrays of a case after its launch on the emulator, by parameter name."""
    launch = captured(name, small)
    args = launch.fresh_args()
    emulate(launch.kernel, **options)[launch.grid if grid is None else grid, launch.block](*args)
    return launch.by_name(args)


@functools.cache
def plain_run(name):
    return run(name)


def assert_same(got, expected):
    assert {n: same_bits(a, expected[n]) for n, a in got.items()} == dict.fromkeys(expected, True)


def test_kernels_table_has_every_kernel_of_the_package():
    kernels = package_kernels()
    assert set(CASES) == set(kernels)
    for name, kernel in kernels.items():
        assert captured(name).kernel is kernel


@every_kernel
def test_kernels_launch_at_least_three_blocks(name):
    assert math.prod(np.atleast_1d(captured(name).grid)) >= 3


@every_kernel
def test_kernels_write_their_outputs_and_nothing_else(name):
    """Hard case 24: outputs start as 0xFF bytes, which no result has."""
    launch, after = captured(name), plain_run(name)
    before = launch.by_name(launch.fresh_args())
    changed = {n for n, a in before.items() if not same_bits(a, after[n])}
    assert changed == set(CASES[name].outputs)
    if not CASES[name].in_place:
        for output in changed:
            array = after[output]
            never_written = (array.reshape(-1, 1).view(np.uint8) == 0xFF).all(1)
            assert not never_written.any(), f"{output}: element {never_written.argmax()} was never written"


@every_kernel
@pytest.mark.parametrize("options", [{"racecheck": True}, {"boundscheck": False}, {"workers": 3}], ids=str)
def test_kernels_give_the_same_bits_with_any_check_and_on_any_number_of_cores(name, options):
    assert_same(run(name, **options), plain_run(name))


@every_kernel
def test_kernels_do_not_depend_on_the_order_of_threads_and_blocks(name):
    launch = captured(name)
    race_check(launch.kernel, launch.grid, launch.block, launch.args)


@every_kernel
def test_kernels_first_block_does_the_same_alone(name):
    """Hard case 17: no block sees what another left in shared memory."""
    launch, alone, together = captured(name), run(name, grid=1), plain_run(name)
    before = launch.by_name(launch.fresh_args())
    for output in CASES[name].outputs:
        alone_bits, before_bits, together_bits = (
            a[output].reshape(-1).view(np.uint8) for a in (alone, before, together)
        )
        written = alone_bits != before_bits
        assert written.any() or CASES[name].in_place
        assert same_bits(alone_bits[written], together_bits[written])


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """The arrays of every small case after a run on Numba's simulator. In a new process: Numba chooses it at import."""
    path = tmp_path_factory.mktemp("simulator") / "out.npz"
    here = pathlib.Path(__file__).parent
    environment = {name: value for name, value in os.environ.items() if name != "DSV41_BACKEND"}
    environment["NUMBA_ENABLE_CUDASIM"] = "1"
    environment["PYTHONPATH"] = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", f"import kernel_cases; kernel_cases.run_simulator({str(path)!r})"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with np.load(path) as arrays:
        return dict(arrays)


@every_kernel
def test_kernels_have_the_bits_of_numbas_simulator(name, simulated):
    expected = {key.split(".")[1]: a for key, a in simulated.items() if key.split(".")[0] == name}
    got = run(name, small=True)
    assert set(CASES[name].outputs) <= set(got)
    assert_same(dict(zip(expected, got.values(), strict=True)), expected)


@every_kernel
def test_kernels_need_each_of_their_barriers(name):
    """Take out one barrier after another, also those of device functions: the race check finds every one."""
    launch = captured(name)
    harmless = set()
    for i, (file, line) in enumerate(barrier_places(launch.kernel)):
        try:
            run_without = emulate(without_barrier(launch.kernel, i), racecheck=True)
            run_without[launch.grid, launch.block](*launch.fresh_args())
        except Race as found:
            print(f"{pathlib.Path(file).name}:{line} removed: {found}")
        else:
            harmless.add((name, i))
    assert harmless == {place for place in HARMLESS_BARRIERS if place[0] == name}
