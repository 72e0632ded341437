"""Faults that the emulator reports while a kernel runs, each with kernel, block, thread and line."""

import pathlib
import re

import emulator_kernels as kernels
import numpy as np
import pytest
from emulator_kernels import FULL
from numba import cuda, float32, int32

from dsv41_numba.runtime.emulator import (
    Accesses,
    DivergentBarrier,
    EmulatorError,
    OutOfBounds,
    Race,
    UninitialisedRead,
    barrier_places,
    count_accesses,
    emulate,
    race_check,
    without_barrier,
)


def line_of(text, nth=1):
    """The line of this file where a text stands for the nth time."""
    lines = [i for i, line in enumerate(pathlib.Path(__file__).read_text().splitlines(), 1) if text in line]
    return lines[nth - 1]


@cuda.jit(device=True)
def at(a, i):
    return a[i]  # the read


@cuda.jit
def indexed(x, y, which):
    s = cuda.shared.array((4, 8), float32)
    l = cuda.local.array(3, int32)  # noqa: E741
    i = cuda.grid(1)
    s[0, 0] = 1
    l[0] = 1
    if i == 37:
        if which == 0:
            y[i] = x[i + 27]  # too large
        if which == 1:
            y[i] = x[i - 38]  # negative
        if which == 2:
            y[i] = at(x, 64)
        if which == 3:
            s[3, which + 5] = 1  # shared
        if which == 4:
            y[i] += l[which]  # local
        if which == 5:
            row = s[1:3]
            y[i] = row[2, 0]  # view
        if which == 6:
            cuda.atomic.add(y, 64, 1)  # atomic
        if which == 7:
            y[i - 38] += 1  # augmented
        if which == 8:
            y[i] = i // (which - 8)  # division
        if which == 9:
            y[i] = s[4][0]  # row
        if which == 10:
            y[0] = (5, 6, 7)[which]  # tuple


@pytest.mark.parametrize(
    "which, text, part",
    [
        (0, "# too large", "`x[i + 27]`: index [64] is outside x of shape [64]"),
        (1, "# negative", "`x[i - 38]`: index [-1] is outside x of shape [64]"),
        (2, "# the read", "`a[i]`: index [64] is outside a of shape [64]"),
        (3, "# shared", "index [3, 8] is outside s of shape [4, 8]"),
        (4, "# local", "index [4] is outside l of shape [3]"),
        (5, "# view", "index [2, 0] is outside row of shape [2, 8]"),
        (6, "# atomic", "index [64] is outside y of shape [64]"),
        (7, "# augmented", "index [-1] is outside y of shape [64]"),
        (9, "# row", "index [4] is outside s of shape [4]"),
        (10, "# tuple", "index [10] is outside (5, 6, 7) of shape [3]"),
    ],
)
def test_an_index_out_of_range_is_reported(which, text, part):
    with pytest.raises(OutOfBounds) as error:
        emulate(indexed)[2, 32](np.zeros(64), np.zeros(64), which)
    message = str(error.value)
    assert message.startswith(f"indexed, block (1, 0, 0), thread (5, 0, 0), {__file__}:{line_of(text)}: ")
    assert part in message


def test_division_by_zero_is_reported():
    with pytest.raises(EmulatorError, match=rf"thread \(5, 0, 0\), .*:{line_of('# division')}: .*division by zero"):
        emulate(indexed)[2, 32](np.zeros(64), np.zeros(64), 8)


def test_an_error_leaves_nothing_behind():
    y = np.zeros(64)
    emulate(indexed)[2, 32](np.zeros(64), y, 99)
    with pytest.raises(OutOfBounds):
        emulate(indexed, workers=2)[2, 32](np.zeros(64), y, 0)
    emulate(indexed, workers=2)[2, 32](np.zeros(64), y, 99)


@cuda.jit
def misuse(x, y, which):
    s = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = 0
    if which == 0 and i >= 200:
        return
    if which == 1:
        if t < 64:
            x[t] += 1
            cuda.syncthreads()  # left
        else:
            cuda.syncthreads()  # right
            x[t] += 2
    if which == 2 and t % 32 < 16:
        x[t] = cuda.shfl_xor_sync(FULL, x[t], 1)  # half a warp
    if which == 3:
        if t % 2:
            cuda.syncwarp()  # odd
        else:
            cuda.syncwarp()  # even
    if which == 4:
        x[t] = cuda.shfl_sync(FULL, x[t], 9)  # lane
    cuda.syncthreads()  # all
    if which < 4:
        y[i] = x[i]


def test_threads_that_end_before_a_barrier_are_reported():
    x = np.arange(256, dtype=np.float32)
    with pytest.raises(DivergentBarrier) as error:
        emulate(misuse)[2, 128](x, x.copy(), 0)
    message = str(error.value)
    assert "misuse, block (1, 0, 0): part of the block has ended" in message
    assert "threads (72, 0, 0) to (127, 0, 0): ended" in message
    assert f"threads (0, 0, 0) to (71, 0, 0): at {__file__}:{line_of('# all')} `cuda.syncthreads()`" in message
    y = np.zeros_like(x)
    emulate(misuse, allow_exit=True)[2, 128](x, y, 0)
    np.testing.assert_array_equal(y[:200], x[:200])


def test_threads_at_different_barriers_are_reported():
    with pytest.raises(DivergentBarrier) as error:
        emulate(misuse)[2, 128](np.zeros(256), np.zeros(256), 1)
    message = str(error.value)
    assert "threads of the block wait at different barriers" in message
    assert f"threads (64, 0, 0) to (127, 0, 0): at {__file__}:{line_of('# right')}" in message


def test_lanes_that_disagree_are_reported():
    with pytest.raises(DivergentBarrier, match=r"misuse, block \(0, 0, 0\): lanes of warp 0 disagree"):
        emulate(misuse)[2, 128](np.zeros(256), np.zeros(256), 2)
    with pytest.raises(DivergentBarrier, match=rf"(?s)lanes of warp 0 disagree.*:{line_of('# odd')} .*more groups"):
        emulate(misuse)[2, 128](np.zeros(256), np.zeros(256), 3)
    with pytest.raises(EmulatorError, match=rf":{line_of('# lane')}: .*reads lane 9, which the block's last warp"):
        emulate(misuse)[1, 5](np.zeros(256), np.zeros(256), 4)


@cuda.jit
def racy(x, y, which):
    s = cuda.shared.array((2, 64), float32)
    t = cuda.threadIdx.x
    b = cuda.blockIdx.x
    s[0, t] = x[t]  # first
    if which == 0:
        y[b, t] = s[0, (t + 1) % 64]  # no barrier
    cuda.syncthreads()
    if which == 1:
        s[0, 0] = t  # all write
    if which == 2:
        s[1, t] = s[0, 63 - t]  # reads
        s[0, t] = 0  # overwrites
    if which == 3:
        s[0, t] = s[0, t ^ 1]  # within a warp
    if which == 4:
        v = s[0, t ^ 1]
        cuda.syncwarp()
        s[0, t] = v
        cuda.syncwarp()
        y[b, t] = s[0, t ^ 3]
    if which == 5:
        v = s[0, t ^ 32]
        cuda.syncwarp()
        s[0, t] = v  # another warp
    if which == 6:
        y[0, t] = b  # every block
    if which == 7:
        y[b, t] = y[1 - b, t]  # the other block's
    if which == 8:
        cuda.atomic.add(y, (0, 0), 1)
    if which == 9:
        cuda.atomic.add(y, (0, 0), 1)  # atomic and plain
        y[1, t] = y[0, 0]  # plain
    if which == 10:
        y[b, t] = s[1, t]  # never written
    if which == 11:
        y[b, 0] = t  # threads of one block
    if which == 12:
        y[b, t] = x[0] + x[t]
        cuda.syncthreads()
        y[b, (t + 1) % 64] = 5
        cuda.syncthreads()
        y[b, t] += y[b, 63 - t] if t < 32 else float32(0.0)  # both halves
    if which == 13:
        y[b, t] = y[1, 0]  # reads of several blocks, then a write


def run_racy(which, blocks=2, **options):
    x, y = np.arange(64, dtype=np.float32), np.zeros((2, 64), np.float32)
    emulate(racy, racecheck=True, **options)[blocks, 64](x, y, which)
    return y


@pytest.mark.parametrize(
    "which, line, other, part",
    [
        (0, "# no barrier", None, "reads s[0, 1] of shared memory, which no thread of the block has written"),
        (1, "# all write", "# all write", "writes s[0, 0], which thread (0, 0, 0) wrote"),
        (2, "# reads", "# overwrites", "reads s[0, 31], which thread (31, 0, 0) wrote"),
        (3, "# within a warp", "# within a warp", "reads s[0, 0], which thread (0, 0, 0) wrote"),
        (5, "# another warp", "# another warp", "which thread (0, 0, 0) wrote"),
        (6, "# every block", "# every block", "writes y[0, 0], which block (0, 0, 0), thread (0, 0, 0) wrote"),
        (7, "# the other block's", "# the other block's", "nothing orders blocks"),
        (9, "# atomic and plain", "# plain", "writes y[0, 0], which thread (0, 0, 0) read"),
        (10, "# never written", None, "reads s[1, 0] of shared memory, which no thread of the block has written"),
        (11, "# threads of one block", "# threads of one block", "writes y[0, 0], which thread (0, 0, 0) wrote"),
        (12, "# both halves", "# both halves", "writes y[0, 32], which several threads read"),
        (13, "# reads of several blocks", "# reads of several", "y[1, 0]"),
    ],
)
def test_races_are_reported_with_both_lines(which, line, other, part):
    with pytest.raises(Race) as error:
        run_racy(which)
    message = str(error.value)
    print(message)
    assert re.match(r"racy, block \(\d, 0, 0\), thread \(\d+, 0, 0\), ", message)
    assert f"{__file__}:{line_of(line)}: " in message or which == 5
    assert other is None or f"{__file__}:{line_of(other)} " in message or which == 5
    assert part in message or which == 5
    assert isinstance(error.value, UninitialisedRead) == (which in (0, 10))


@pytest.mark.parametrize("which", [4, 8, 99])
def test_no_race_is_reported_where_there_is_none(which):
    run_racy(which)
    run_racy(which, order="reverse")


def test_order_of_threads_shows_races_too():
    x, y = np.arange(64, dtype=np.float32), np.zeros((2, 64), np.float32)
    race_check(racy, 2, 64, (x, y, 4))
    with pytest.raises(Race, match=r"racy: y\[0, 0\] is .* with the threads in forward order but .* in reverse order"):
        race_check(racy, 2, 64, (x, y, 6))


@pytest.mark.parametrize("name", ["gemm", "rmsnorm"])
def test_each_harmful_missing_barrier_is_found_and_intact_kernels_pass(name):
    kernel, grid, block, args = kernels.simulated(np.random.default_rng(5))[name]
    emulate(kernel, racecheck=True)[grid, block](*args)
    places = barrier_places(kernel)
    harmless = set()
    for i, (file, line) in enumerate(places):
        assert file.endswith("emulator_kernels.py") and line > 0
        try:
            emulate(without_barrier(kernel, i), racecheck=True)[grid, block](*args)
        except Race:
            continue
        harmless.add(i)
    # the barrier after the last read protects only a second use of the array, and rmsnorm uses it once
    assert harmless == {"gemm": set(), "rmsnorm": {2}}[name]
    with pytest.raises(ValueError, match="i: expected 0 to"):
        without_barrier(kernel, len(places))


@cuda.jit
def shifted(x, y):
    row = x[0:64]
    y[cuda.threadIdx.x] = row[cuda.threadIdx.x]


@cuda.jit
def root_changes(x, together, y):
    """All lanes read one element; after they met, lane 0 reads it again and writes it."""
    root = cuda.shared.array(1, float32)
    t = cuda.threadIdx.x
    if t == 0:
        root[0] = x[0]
    cuda.syncthreads()
    y[t] = root[0]
    if together:
        cuda.syncwarp()
    if t == 0 and root[0] < x[1]:
        root[0] = x[1]


def test_a_lane_may_change_what_its_warp_read_before_it_met():
    x, y = np.array([1, 2], np.float32), np.zeros(64, np.float32)
    emulate(root_changes, racecheck=True)[1, 32](x, True, y)
    with pytest.raises(Race, match=r"root\[0\], which thread"):
        emulate(root_changes, racecheck=True)[1, 32](x, False, y)
    with pytest.raises(Race, match=r"root\[0\], which"):  # the other warp has not met with this one
        emulate(root_changes, racecheck=True)[1, 64](x, True, y)


def test_racecheck_sees_views_and_arguments_that_overlap():
    x = np.zeros(65)
    emulate(shifted, racecheck=True)[1, 64](x, np.zeros(64))
    with pytest.raises(Race, match=r"`row\[cuda.threadIdx.x\]` reads x\[1\], which thread \(0, 0, 0\) wrote"):
        emulate(shifted, racecheck=True)[1, 64](x, x[1:])
    with pytest.raises(Race, match=r"writes y\[0, 0\], which block \(0, 0, 0\)"):
        emulate(racy, racecheck=True)[2, 64](np.zeros(64, np.float32), np.zeros((64, 2), np.float32)[::-1].T, 6)


@cuda.jit
def busy(x, y, total):
    s = cuda.shared.array(64, float32)
    l = cuda.local.array(2, float32)  # noqa: E741
    t, i = cuda.threadIdx.x, cuda.grid(1)
    s[t] = x[i]
    cuda.syncthreads()
    l[0] = s[63 - t]
    if i < 100:
        y[i] = l[0] + at(x, i)
        y[i] += 1
    if t == 5:
        cuda.atomic.add(total, 0, 1)


def test_reads_and_writes_of_array_arguments_are_counted():
    x, y, total = np.arange(128.0, dtype=np.float32), np.zeros(128, np.float32), np.zeros(1, np.int32)
    counted = count_accesses(busy, 2, 64, (x, y, total))
    assert counted == Accesses(reads=128 + 2 * 100 + 2, writes=2 * 100 + 2, thread_reads=4, thread_writes=3)
    assert total[0] == 2 and y[3] == x[60] + x[3] + 1  # it runs as ever
    assert count_accesses(busy, 1, 64, (x, y, total)).reads == 64 + 2 * 64 + 1  # nothing is left of the launch before
    with pytest.raises(EmulatorError, match="racecheck and count: expected one of them, got both"):
        emulate(busy, racecheck=True, count=True)


def test_counting_finds_faults_as_any_launch():
    with pytest.raises(OutOfBounds, match=r"`x\[i\]`: index \[64\] is outside x of shape \[64\]"):
        count_accesses(busy, 2, 64, (np.zeros(64, np.float32), np.zeros(128, np.float32), np.zeros(1, np.int32)))
