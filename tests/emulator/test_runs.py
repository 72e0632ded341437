"""What the emulator runs, and that its results are NumPy's or CUDA's."""

import itertools
import math
import os
import pathlib
import subprocess
import sys

import emulator_kernels as kernels
import numpy as np
import pytest
from emulator_kernels import FULL, ROW
from numba import cuda, float32, float64, int8, int16, int32, int64, uint8, uint16, uint32

from dsv41_numba.formats.bf16 import bf16_to_f32, f32_to_bf16
from dsv41_numba.runtime.emulator import EmulatorError, count_barriers, emulate, race_check

ORDERS = [{}, {"order": "reverse"}, {"order": "shuffle"}, {"workers": 2}, {"workers": 1}]


@pytest.fixture(scope="module")
def emulated():
    """The arguments of every simulated kernel after a run on the emulator."""
    done = {}
    for name, (kernel, grid, block, args) in kernels.simulated(np.random.default_rng(5)).items():
        emulate(kernel)[grid, block](*args)
        done |= {f"{name}{i}": np.asarray(a) for i, a in enumerate(args)}
    return done


def test_results_are_those_of_numbas_simulator(emulated, tmp_path):
    here = pathlib.Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent.parent), os.environ.get("PYTHONPATH", "")])
    command = f"import emulator_kernels; emulator_kernels.run_simulator({str(tmp_path / 'out.npz')!r})"
    subprocess.run(
        [sys.executable, "-c", command], check=True, env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": path}
    )
    simulated = np.load(tmp_path / "out.npz")
    assert set(simulated) == set(emulated)
    for name, value in emulated.items():
        assert value.tobytes() == simulated[name].tobytes(), name


@pytest.mark.parametrize("options", ORDERS, ids=str)
def test_gemm_is_numpys_in_any_order(options, emulated):
    _, grid, block, (A, B, C) = kernels.simulated(np.random.default_rng(5))["gemm"]
    emulate(kernels.gemm, **options)[grid, block](A, B, C)
    a, b = bf16_to_f32(A), bf16_to_f32(B)
    acc = np.zeros(C.shape, np.float32)
    for k in range(A.shape[1]):
        acc += a[:, k, None] * b[None, :, k]
    np.testing.assert_array_equal(C, f32_to_bf16(acc))


def test_early_returns_and_lazy_evaluation(emulated):
    x, limits = emulated["returns0"], emulated["returns1"]
    want = [-2 if v < 0 else next((i for i, e in enumerate(x.ravel()) if e > v), -1) for v in limits]
    np.testing.assert_array_equal(emulated["returns2"], want)
    assert (emulated["returns3"][0] == -1).all() and np.ptp(emulated["returns3"][1]) == 0
    y, rows = emulated["lazy2"], (emulated["lazy0"] > 0.5).any(1)
    np.testing.assert_array_equal(y[1], [*rows, 0, 0, 0])
    np.testing.assert_array_equal(y[2], [*~rows, 1, 1, 1])
    np.testing.assert_array_equal(y[4], np.arange(8))


@cuda.jit(device=True)
def neighbours(v):
    a = cuda.shfl_down_sync(FULL, v, 1)
    return a, cuda.shfl_up_sync(FULL, v, 2)


@cuda.jit
def warps(x, y):
    t = cuda.threadIdx.x
    a, b = neighbours(x[t])
    y[0, t] = a
    y[1, t] = b
    y[2, t] = cuda.shfl_sync(FULL, x[t], 3) + 2 * cuda.shfl_xor_sync(uint32(0xFFFFFFFF), x[t], 5)
    k = 0
    while cuda.shfl_sync(-1, k, 0) < 3:
        k += 1
    y[3, t] = k
    x[t] += 1
    y[4, t] = x[t] + cuda.shfl_sync(FULL, x[t], 31 - t % 32)
    y[5, t] = cuda.ballot_sync(FULL, x[t] > 10)
    y[6, t] = cuda.syncthreads_count(int32(x[t] > 10))
    if cuda.any_sync(FULL, t == 40) and not cuda.syncthreads_and(int32(t < 99)):
        y[7, t] = 1
    y[8, t] = (cuda.laneid + cuda.warpsize) if cuda.all_sync(FULL, t >= 32) else -1
    x[t] *= cuda.shfl_sync(FULL, x[t], 0)
    y[9, t] = x[t]
    y[10, t] = cuda.syncthreads_or(int32(t == 63))


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_shuffles_and_votes(dtype):
    with pytest.raises(EmulatorError, match=r"lanes of warp 1|at .*test_runs.py"):  # the `and` splits the block
        emulate(warps)[1, 64](np.arange(64).astype(dtype), np.zeros((11, 64), dtype))


@cuda.jit
def whole_warps(x, y):
    t = cuda.threadIdx.x
    a, b = neighbours(x[t])
    y[0, t] = a
    y[1, t] = b
    y[2, t] = cuda.shfl_sync(FULL, x[t], 3) + 2 * cuda.shfl_xor_sync(uint32(0xFFFFFFFF), x[t], 5)
    k = 0
    while cuda.shfl_sync(-1, k, 0) < 3:
        k += 1
    y[3, t] = k
    x[t] += 1
    y[4, t] = x[t] + cuda.shfl_sync(FULL, x[t], 31 - t % 32)
    y[5, t] = cuda.ballot_sync(FULL, x[t] > 10)
    y[6, t] = cuda.syncthreads_count(int32(x[t] > 10))
    if t >= 0 and not cuda.syncthreads_and(int32(t < 99)):
        y[7, t] = 1
    if cuda.any_sync(FULL, t == 40) and cuda.any_sync(FULL, t == 41):
        y[7, t] = 2
    y[8, t] = (cuda.laneid + cuda.warpsize) if cuda.all_sync(FULL, t >= 32) else -1
    x[t] *= cuda.shfl_sync(FULL, x[t], 0)
    y[9, t] = x[t]
    y[10, t] = cuda.syncthreads_or(int32(t == 63))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
def test_shuffles_votes_and_barriers_inside_expressions(dtype):
    y = np.zeros((11, 64), dtype)
    emulate(whole_warps)[1, 64](np.arange(64).astype(dtype), y)
    x, lane = np.arange(64).astype(dtype), np.arange(64) % 32
    base = np.arange(64) - lane
    np.testing.assert_array_equal(y[0], x[base + np.minimum(lane + 1, 31)])
    np.testing.assert_array_equal(y[1], x[np.where(lane < 2, lane, lane - 2) + base])
    np.testing.assert_array_equal(y[2], x[base + 3] + 2 * x[base + (lane ^ 5)])
    assert (y[3] == 3).all()
    np.testing.assert_array_equal(y[4], x + 1 + x[base + 31 - lane] + 1)
    assert y[5, 0] == y[5, 31] == dtype(np.uint32(0xFFFFFC00).astype(np.int32)) and y[5, 32] == -1
    assert (y[6] == 54).all() and (y[10] == 1).all()
    np.testing.assert_array_equal(y[7], np.where(np.arange(64) >= 32, 2, 0))
    np.testing.assert_array_equal(y[8], np.where(np.arange(64) >= 32, lane + 32, -1))
    np.testing.assert_array_equal(y[9], (x + 1) * (base + 1))


def factory(n, table):
    @cuda.jit
    def kernel(x, y, k):
        acc = cuda.local.array(n, float32)
        index = cuda.local.array((2, n), dtype=int32)
        work = cuda.shared.array(shape=(n, 32), dtype=float32)
        t = cuda.threadIdx.x
        pair = (t, float32(t) * float32(0.5))
        for i in range(n):
            acc[i] = x[t] * table[i]
            index[1, i] = (i + t) % n
            work[i, t] = 0
        cuda.syncthreads()
        for i in range(n):
            work[index[1, i], (t + 1) % 32] += acc[i]
            cuda.syncthreads()
        k = k // 2  # assigning a parameter
        for i in range(n):
            y[i, t] = work[i, t] + pair[1] + k

    return kernel


@pytest.mark.parametrize(
    "n, table", [(4, (1.0, 2.0, 3.0, 4.0)), (3, np.array([5, 6, 7], np.float32))], ids=["tuple", "array"]
)
def test_local_arrays_closures_and_tuples(rng, n, table):
    x, y = rng.random(32).astype(np.float32), np.zeros((n, 32), np.float32)
    emulate(factory(n, table))[1, 32](x, y, 9)
    want = np.zeros_like(y)
    for t in range(32):
        for i in range(n):
            want[(i + t) % n, (t + 1) % 32] += x[t] * np.float32(table[i])
    np.testing.assert_allclose(y, want + np.arange(32) * 0.5 + 4, rtol=1e-6)


def test_atomics_give_the_same_with_any_number_of_workers(rng):
    x = rng.integers(0, 1000, 777)
    for options in ({}, {"workers": 4}):
        counts, top, order = np.zeros(10, np.int64), np.array([-1, 10**6, 0]), np.full(777, -1)
        emulate(kernels.histogram, **options)[7, 128](x, counts, top, order)
        np.testing.assert_array_equal(counts, np.bincount(x % 10, minlength=10))
        assert top.tolist() == [x.max(), x.min(), 777]
        np.testing.assert_array_equal(np.sort(order), np.arange(777))


@cuda.jit
def atomics(f, u, old):
    t = cuda.threadIdx.x
    cuda.atomic.add(f, 0, 0.1)  # converted to float32 before it is added
    cuda.atomic.sub(f, (1,), float32(0.5))
    cuda.atomic.nanmax(f, 2, float32(t))
    cuda.atomic.nanmin(f, 3, float32(t))
    cuda.atomic.max(f, 4, float32(t))
    old[t] = cuda.atomic.exch(u, 0, t)
    cuda.atomic.and_(u, 1, 0xFE)
    cuda.atomic.or_(u, 2, 1 << t)
    cuda.atomic.xor(u, 3, t)
    cuda.atomic.inc(u, 4, 2)
    cuda.atomic.dec(u, 5, 2)
    cuda.atomic.cas(u, 6, t, t + 1)
    cuda.atomic.compare_and_swap(u[7:], 9, t)


def test_every_atomic():
    f = np.array([0, 0, np.nan, np.nan, np.nan], np.float32)
    u, old = np.array([7, 0xFF, 0, 0, 0, 0, 0, 9], np.uint32), np.zeros(4, np.uint32)
    emulate(atomics)[1, 4](f, u, old)
    total = np.float32(0)
    for _ in range(4):
        total += np.float32(0.1)
    assert f[:4].tolist() == [total, -2, 3, 0] and np.isnan(f[4])
    assert old.tolist() == [7, 0, 1, 2] and u.tolist() == [3, 0xFE, 15, 0, 1, 2, 4, 0]


@cuda.jit
def numbers(x, d, ints, longs, bools, floats, k, flag, small):
    i = cuda.threadIdx.x
    ints[0, i] = int32(x[i])
    ints[1, i] = int8(x[i])
    ints[2, i] = int16(x[i])
    ints[3, i] = uint8(x[i])
    ints[4, i] = uint16(x[i])
    ints[5, i] = x[i]  # storing converts too
    ints[6, i] = int32(d[i])
    longs[0, i] = uint32(x[i])
    longs[1, i] = int64(x[i])
    longs[2, i] = int(x[i])
    longs[3, i] = k << small
    longs[4, i] = k >> (i * 20 - 20)
    longs[5, i] = uint32(5) << uint32(i)
    longs[6, i] = len(x) + abs(-3) + x.ndim + int(flag) + int(True)
    bools[i] = x[i] > float32(0.0) or flag
    floats[0, i] = max(x[i], x[(i + 1) % 8], x[0])
    floats[1, i] = min(x[i], d[i])
    floats[2, i] = math.floor(x[i])
    floats[3, i] = math.ceil(x[i]) + float(k)
    floats[4, i] = max(float32(-0.0), float32(0.0)) if i % 2 else min(float32(0.0), float32(-0.0))
    floats[5, i] = cuda.fma(x[i], x[i], float32(-1.0))
    floats[6, i] = cuda.selp(i > 3, x[i], float32(9.0))


def test_numbers_are_converted_as_on_cuda():
    x = np.array([np.nan, 3e9, -3e9, 300.7, -1.5, 1e18, np.inf, 0.5], np.float32)
    d = x.astype(np.float64)
    ints, longs = np.zeros((7, 8), np.int32), np.zeros((7, 8), np.int64)
    bools, floats = np.zeros(8, np.bool_), np.zeros((7, 8), np.float32)
    emulate(numbers)[1, 8](x, d, ints, longs, bools, floats, 5, np.bool_(False), np.int32(70))
    top = 2**31 - 1
    assert ints[0].tolist() == ints[5].tolist() == [0, top, -top - 1, 300, -1, top, top, 0]
    assert ints[1].tolist() == [0, -1, 0, 44, -1, -1, -1, 0]  # cvt.rzi.s16, then the low byte
    assert ints[2].tolist() == [0, 32767, -32768, 300, -1, 32767, 32767, 0]
    assert ints[3].tolist() == [0, 255, 0, 44, 0, 255, 255, 0]
    assert ints[4].tolist() == [0, 65535, 0, 300, 0, 65535, 65535, 0]
    assert ints[6].tolist() == [-top - 1, top, -top - 1, 300, -1, top, top, 0]
    assert longs[0].tolist() == [0, 3000000000, 0, 300, 0, 2**32 - 1, 2**32 - 1, 0]
    assert longs[1].tolist() == longs[2].tolist()
    assert longs[1].tolist() == [-(2**63), 3000000000, -3000000000, 300, -1, int(x[5]), 2**63 - 1, 0]
    assert longs[3].tolist() == [0] * 8 and longs[4].tolist() == [0, 5] + [0] * 6
    assert longs[5].tolist() == [5 << i for i in range(8)] and longs[6].tolist() == [8 + 3 + 1 + 0 + 1] * 8
    np.testing.assert_array_equal(bools, x > 0)
    np.testing.assert_array_equal(floats[0], np.fmax(np.fmax(x, np.roll(x, -1)), x[0]))
    np.testing.assert_array_equal(floats[1], x)
    np.testing.assert_array_equal(floats[2], np.floor(x))
    np.testing.assert_array_equal(floats[3], np.ceil(x) + 5)
    assert np.signbit(floats[4]).tolist() == [True, False] * 4
    np.testing.assert_array_equal(floats[5], (d * d - 1).astype(np.float32))
    np.testing.assert_array_equal(floats[6], np.where(np.arange(8) > 3, x, np.float32(9)))


@cuda.jit
def bit_counts(x, long, y):
    i = cuda.threadIdx.x
    y[0, i] = cuda.popc(x[i])
    y[1, i] = cuda.clz(x[i])
    y[2, i] = cuda.ffs(x[i])
    y[3, i] = cuda.brev(x[i])
    y[4, i] = cuda.popc(long[i])
    y[5, i] = cuda.clz(long[i])


def test_bit_counts():
    x = np.array([0, 1, 0x80000000, 0x00F0], np.uint32)
    y = np.zeros((6, 4), np.int64)
    emulate(bit_counts)[1, 4](x, x.astype(np.uint64) << np.uint64(8), y)
    assert y.tolist() == [
        [0, 1, 1, 4],
        [32, 31, 0, 24],
        [0, 1, 32, 5],
        [0, 0x80000000, 1, 0x0F000000],
        [0, 1, 1, 4],
        [64, 55, 24, 48],
    ]


UNARY = {  # libdevice functions of one float32, and NumPy's
    "fabsf": np.abs, "sqrtf": np.sqrt, "fsqrt_rn": np.sqrt, "frcp_rn": np.reciprocal, "floorf": np.floor,
    "ceilf": np.ceil, "truncf": np.trunc, "rintf": np.rint, "nearbyintf": np.rint,
    "rsqrtf": lambda x: 1 / np.sqrt(x), "expf": np.exp, "fast_expf": np.exp, "exp2f": np.exp2, "logf": np.log,
    "log2f": np.log2, "log10f": np.log10, "log1pf": np.log1p, "expm1f": np.expm1, "sinf": np.sin, "cosf": np.cos,
    "tanf": np.tan, "tanhf": np.tanh, "atanf": np.arctan, "sinhf": np.sinh, "fast_sinf": np.sin, "fast_cosf": np.cos,
}  # fmt: skip
BINARY = {
    "fadd_rn": np.add, "fsub_rn": np.subtract, "fmul_rn": np.multiply, "fdiv_rn": np.divide, "fmaxf": np.fmax,
    "fminf": np.fmin, "copysignf": np.copysign, "fmodf": np.fmod, "powf": np.power, "atan2f": np.arctan2,
}  # fmt: skip
EXACT = {"fabsf", "sqrtf", "fsqrt_rn", "frcp_rn", "floorf", "ceilf", "truncf", "rintf", "nearbyintf"}
EXACT |= {"fadd_rn", "fsub_rn", "fmul_rn", "fdiv_rn", "fmaxf", "fminf", "copysignf", "fmodf"}
INTEGER = {
    "float2int_rn": lambda x: np.rint(x), "float2int_rz": np.trunc, "float2int_rd": np.floor, "float2int_ru": np.ceil,
    "float2uint_rn": np.rint, "float_as_int": lambda x: x.view(np.int32),
    "isnanf": np.isnan, "isinff": np.isinf, "signbitf": np.signbit,
}  # fmt: skip


def generated_kernel(tmp_path, body, parameters):
    """A kernel from text, in a file of its own since its source is read."""
    path = tmp_path / "generated.py"
    path.write_text(
        f"import math\nfrom numba import cuda\n@cuda.jit\ndef kernel({parameters}):\n    " + "\n    ".join(body) + "\n"
    )
    space = {"__name__": "generated"}
    exec(compile(path.read_text(), str(path), "exec"), space)
    return space["kernel"]


def test_libdevice(tmp_path):
    body = ["i = cuda.threadIdx.x", "a, b = x[i], w[i]"]
    body += [f"y[{k}, i] = cuda.libdevice.{name}(a)" for k, name in enumerate(UNARY)]
    body += [f"y[{k + len(UNARY)}, i] = cuda.libdevice.{name}(a, b)" for k, name in enumerate(BINARY)]
    body += [f"z[{k}, i] = cuda.libdevice.{name}(a)" for k, name in enumerate(INTEGER)]
    x = np.linspace(0.05, 3.7, 32).astype(np.float32)
    w = np.linspace(2.5, -1.3, 32).astype(np.float32)
    y, z = np.zeros((len(UNARY) + len(BINARY), 32), np.float32), np.zeros((len(INTEGER), 32), np.int32)
    emulate(generated_kernel(tmp_path, body, "x, w, y, z"))[1, 32](x, w, y, z)
    for k, (name, function) in enumerate((UNARY | BINARY).items()):
        want = function(x) if name in UNARY else function(x, w)
        if name in EXACT:
            np.testing.assert_array_equal(y[k], want.astype(np.float32), err_msg=name)
        else:
            np.testing.assert_allclose(y[k], want, rtol=3e-7, err_msg=name)
    for k, (name, function) in enumerate(INTEGER.items()):
        np.testing.assert_array_equal(z[k], function(x).astype(np.int32), err_msg=name)


MATH = "acos asin atan cos cosh degrees erf erfc exp expm1 fabs gamma isfinite isinf isnan lgamma log log10 log1p log2"
MATH += " radians sin sinh sqrt tan tanh asinh atanh"


MATH2 = "fmod pow atan2 copysign hypot"


def test_math(tmp_path):
    body = ["i = cuda.threadIdx.x", "a, b = x[i], x[i + 1]"]
    body += [f"y[{k}, i] = math.{name}(a)" for k, name in enumerate(MATH.split())]
    body += [f"z[{k}, i] = math.{name}(a, -b)" for k, name in enumerate(MATH2.split())]
    x = np.linspace(0.4, 0.95, 33).astype(np.float32)
    y, z = np.zeros((len(MATH.split()), 32), np.float32), np.zeros((len(MATH2.split()), 32), np.float32)
    emulate(generated_kernel(tmp_path, body, "x, y, z"))[1, 32](x, y, z)
    for k, name in enumerate(MATH.split()):
        np.testing.assert_allclose(y[k], [getattr(math, name)(float(v)) for v in x[:-1]], rtol=2e-6, err_msg=name)
    for k, name in enumerate(MATH2.split()):
        want = [getattr(math, name)(float(v), -float(w)) for v, w in itertools.pairwise(x)]
        np.testing.assert_allclose(z[k], want, rtol=2e-6, err_msg=name)


@cuda.jit(device=True)
def next_one(s, v):
    """A device function with two barriers: the value of the next thread."""
    t = cuda.threadIdx.x
    s[t] = v
    cuda.syncthreads()
    result = s[(t + 1) % s.size]
    cuda.syncthreads()
    return result


@cuda.jit
def control(x, y, n):
    """Barriers in every place where Python has control flow."""
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    k = 0
    while next_one(s, float32(k)) < 3:
        k += 1
        if k == 2:
            continue
        y[0, t] += 1
    for i in range(10, 0, -3):
        cuda.syncthreads()
        if i == 4:
            break
        y[1, t] += i
    else:
        y[1, t] = -1
    i = 0
    while x[i] >= 0 and i < n:
        cuda.syncthreads()
        i += 1
        if i == 2:
            continue
        y[2, t] += 1
    else:
        y[2, t] += 100
    if t % 2 == 0:  # noqa: SIM108
        z = float32(4.0)
    else:
        z = float32(3.0)
    cuda.syncthreads()
    p = q = z
    y[3, t] = p + q
    y[4, t] = (next_one(s, 1.0) if n > 3 else next_one(s, 2.0)) + (x[t] if t < 4 else 0.0)
    y[5, t] = next_one(s, 5.0) < next_one(s, 6.0)
    y[6, t] += next_one(s, x[t]) + x[t] ** 2
    columns = x.T
    y[7, t] = columns[t] + x.size + s.shape[0]


def test_barriers_may_stand_wherever_python_has_control_flow():
    x, y, t = np.arange(32, dtype=np.float32), np.zeros((8, 32), np.float32), np.arange(32)
    emulate(control)[1, 32](x, y, 5)
    want = [2, 17, 104, np.where(t % 2 == 0, 8, 6), 1 + np.where(t < 4, t, 0), 1, np.roll(t, -1) + t**2, t + 64]
    np.testing.assert_array_equal(y, np.stack([np.broadcast_to(w, 32) for w in want]))
    emulate(control, racecheck=True)[1, 32](x, y, 5)


@cuda.jit
def dynamic(x, y):
    s = cuda.shared.array(0, float64)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncthreads()
    y[t] = s[cuda.blockDim.x - 1 - t]


def test_dynamic_shared_memory_and_strided_arrays(rng):
    x, y = rng.random((40, 3)), np.zeros((3, 40)).T
    emulate(dynamic)[1, 40, 0, 320](x[:, 1], y[:, 2])
    np.testing.assert_array_equal(y[:, 2], x[::-1, 1])
    emulate(dynamic)[1, 40, 0, 320](x[::-1, 1], y[:, 2])
    np.testing.assert_array_equal(y[:, 2], x[:, 1])


@cuda.jit
def stale(y):
    s = cuda.shared.array(32, float32)
    a = cuda.local.array(4, int32)
    t = cuda.threadIdx.x
    if t != 5:
        s[t] = t
    cuda.syncthreads()
    y[cuda.blockIdx.x, t] = s[t] + (float32(0.0) if a[t % 4] == -1 else float32(1.0))


def test_memory_starts_without_a_useful_value_in_every_block():
    y = np.zeros((3, 32), np.float32)
    emulate(stale)[3, 32](y)
    assert np.isnan(y[:, 5]).all() and (np.delete(y, 5, 1) == np.delete(np.arange(32), 5)).all()


@cuda.jit(device=True)
def scaled(x, by=2.0, *, plus=0):
    return x * by + plus


@cuda.jit
def scalars(y, a, b, c, d, e):
    y[0] = a
    y[1] = b
    y[2] = c
    y[3] = d
    y[4] = e
    y[5] = a / b
    y[6] = scaled(c) + scaled(plus=1, x=3) + scaled(1, 5)


def test_scalars_keep_their_type_and_device_functions_take_keywords_and_defaults():
    y = np.zeros(7)
    emulate(scalars)[1, 1](y, 0.1, np.float32(0.1), 2**40, np.uint8(200), True)
    assert y.tolist() == [0.1, float(np.float32(0.1)), 2**40, 200, 1, 0.1 / float(np.float32(0.1)), 2**41 + 12]


def test_a_two_block_launch_gives_rows_of_single_blocks(rng):
    x = (rng.standard_normal((3, 150)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    weight, eps = rng.standard_normal(150).astype(np.float32), np.float32(1e-6)
    y = np.zeros_like(x)
    emulate(kernels.rmsnorm)[3, ROW](x, weight, eps, y)
    for r in range(3):
        row = np.zeros((1, 150), np.uint16)
        emulate(kernels.rmsnorm)[1, ROW](x[r : r + 1], weight, eps, row)
        np.testing.assert_array_equal(row[0], y[r])


def test_order_check_passes_and_counts_barriers():
    _, grid, block, args = kernels.simulated(np.random.default_rng(5))["rmsnorm"]
    assert race_check(kernels.rmsnorm, grid, block, args)[3].any()
    assert count_barriers(kernels.rmsnorm) == 3 and count_barriers(kernels.gemm) == 2
