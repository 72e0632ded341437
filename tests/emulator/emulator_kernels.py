"""Kernels that run on a GPU, in the emulator and (those in SIMULATED) in Numba's simulator, with inputs for each."""

import math

import numpy as np
from numba import cuda, float32, int32, uint16, uint32

TILE = 16
ROW = 64  # threads of the tree kernels
FULL = 0xFFFFFFFF


@cuda.jit(device=True)
def bf16_to_f32(bits):
    return uint32(uint32(bits) << uint32(16)).view(np.float32)


@cuda.jit(device=True)
def f32_to_bf16(x):
    if x != x:
        return uint16(0x7FC0)
    u = np.float32(x).view(np.uint32)
    return uint16((u + uint32(0x7FFF) + ((u >> uint32(16)) & uint32(1))) >> uint32(16))


@cuda.jit
def gemm(A, B, C):
    """C[m, n] = sum_k A[m, k] B[n, k], bf16 in and out."""
    sa = cuda.shared.array((TILE, TILE), float32)
    sb = cuda.shared.array((TILE, TILE), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row = cuda.blockIdx.y * TILE + ty
    col = cuda.blockIdx.x * TILE + tx
    M, K = A.shape
    N = B.shape[0]
    brow = cuda.blockIdx.x * TILE + ty
    acc = float32(0.0)
    for k0 in range(0, K, TILE):
        k = k0 + tx
        sa[ty, tx] = bf16_to_f32(A[row, k]) if row < M and k < K else float32(0.0)
        sb[ty, tx] = bf16_to_f32(B[brow, k]) if brow < N and k < K else float32(0.0)
        cuda.syncthreads()
        for kk in range(TILE):
            acc += sa[ty, kk] * sb[tx, kk]
        cuda.syncthreads()
    if row < M and col < N:
        C[row, col] = f32_to_bf16(acc)


@cuda.jit(device=True)
def block_sum(v, partial):
    """A device function that holds barriers."""
    t = cuda.threadIdx.x
    partial[t] = v
    cuda.syncthreads()
    half = ROW // 2
    while half > 0:
        if t < half:
            partial[t] += partial[t + half]
        cuda.syncthreads()
        half //= 2
    total = partial[0]
    cuda.syncthreads()
    return total


@cuda.jit
def rmsnorm(x, weight, eps, y):
    partial = cuda.shared.array(ROW, float32)
    r, n = cuda.blockIdx.x, x.shape[1]
    part = float32(0.0)
    for i in range(cuda.threadIdx.x, n, ROW):
        v = bf16_to_f32(x[r, i])
        part += v * v
    scale = float32(1.0) / float32(math.sqrt(block_sum(part, partial) / float32(n) + eps))
    for i in range(cuda.threadIdx.x, n, ROW):
        y[r, i] = f32_to_bf16(bf16_to_f32(x[r, i]) * scale * weight[i])


@cuda.jit(device=True)
def first_above(x, limit):
    """Leaves from inside two loops, and at two other places."""
    if limit < float32(0.0):
        return int32(-2)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            if x[i, j] > limit:
                return int32(i * x.shape[1] + j)
    return int32(-1)


@cuda.jit(device=True)
def masked_sum(v, partial, use):
    """Several returns in a function that holds a barrier: all threads take the same one."""
    if not use:
        return float32(-1.0)
    partial[cuda.threadIdx.x] = v
    cuda.syncthreads()
    if partial.shape[0] == 0:
        return float32(-2.0)
    total = float32(0.0)
    for i in range(partial.shape[0]):
        total += partial[i]
    cuda.syncthreads()
    return total


@cuda.jit
def returns(x, limits, index, sums):
    partial = cuda.shared.array(ROW, float32)
    t = cuda.threadIdx.x
    index[t] = first_above(x, limits[t])
    for use in range(2):
        sums[use, t] = masked_sum(limits[t], partial, use == 1)


@cuda.jit
def lazy(x, n, y):
    """Whatever needs statements of its own is still evaluated only when Python would."""
    i = cuda.grid(1)
    limit = float32(0.5)
    y[0, i] = first_above(x, limit) if i < n else int32(-7)  # not evaluated beyond
    inside = i < n and first_above(x[i : i + 1], limit) >= 0  # x[i] would be out of range
    y[1, i] = 1 if inside else 0
    outside = i >= n or first_above(x[i : i + 1], limit) < 0
    y[2, i] = 1 if outside else 0
    k = 0
    while i < n and first_above(x, limit) > k:
        k += 1
    y[3, i] = k
    a, b = k, i
    a, b = b, a
    y[4, i], y[5, i] = a, b


@cuda.jit
def indices(a, b):
    x, y, z = cuda.grid(3)
    sx, sy, sz = cuda.gridsize(3)
    a[z, y, x] = (x + sx * (y + sy * z)) * 64 + sz
    b[z, y, x] = (
        (cuda.blockIdx.x + 10 * cuda.blockIdx.y + 100 * cuda.blockIdx.z) * 1000
        + cuda.threadIdx.x
        + (cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.z * cuda.blockDim.x * cuda.blockDim.y)
    )


@cuda.jit
def integers(x, y):
    """Loops, augmented assignments, shifts, division and remainder of signed numbers."""
    i = cuda.grid(1)
    if i >= x.size:
        return
    v = x[i]
    n = 0
    while v > 0:
        v >>= 1
        n += 1
        if n == 20:
            break
    else:
        n += 100
    y[0, i] = n
    y[1, i] = x[i] // 7 - x[i] % 7
    y[2, i] = -x[i] // 7 + (-x[i]) % 7
    y[3, i] = (x[i] & 0xFF) ^ (x[i] | 3)
    for k in (5, 3, 1):
        if k == 3:
            continue
        y[4, i] += k * x[i]
    y[5, i] = 1 if 3 < x[i] <= 40 else 2


@cuda.jit
def products(x, y):
    """Exact operations by libdevice: not contracted anywhere."""
    i = cuda.grid(1)
    if i < x.shape[0]:
        a, b = x[i, 0], x[i, 1]
        y[0, i] = cuda.libdevice.fadd_rn(cuda.libdevice.fmul_rn(a, a), b)
        y[1, i] = cuda.libdevice.fsub_rn(cuda.libdevice.fmul_rn(a, b), cuda.libdevice.fmul_rn(b, b))
        y[2, i] = cuda.libdevice.fdiv_rn(a, b)


@cuda.jit
def histogram(x, counts, top, order):
    """Atomics; what they return is the old value."""
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(counts, x[i] % 10, 1)
        cuda.atomic.max(top, 0, x[i])
        cuda.atomic.min(top, 1, x[i])
        slot = cuda.atomic.add(top, 2, 1)
        order[slot] = i


def simulated(rng):
    """name -> (kernel, grid, block, arguments): everything that Numba's simulator can run too."""
    bits = lambda *shape: (rng.standard_normal(shape).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)  # noqa: E731
    f32 = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    whole = rng.integers(0, 1000, 50)
    return {
        "gemm": (gemm, (2, 2), (TILE, TILE), (bits(19, 37), bits(23, 37), np.zeros((19, 23), np.uint16))),
        "rmsnorm": (rmsnorm, 3, ROW, (bits(3, 150), f32(150), np.float32(1e-6), np.zeros((3, 150), np.uint16))),
        "returns": (returns, 1, ROW, (f32(5, 3), f32(ROW), np.zeros(ROW, np.int32), np.zeros((2, ROW), np.float32))),
        "lazy": (lazy, 2, 4, (f32(5, 3), 5, np.zeros((6, 8), np.int64))),
        "indices": (indices, (2, 3, 2), (4, 3, 2), (np.zeros((4, 9, 8), np.int64), np.zeros((4, 9, 8), np.int64))),
        "integers": (integers, 4, 16, (whole, np.zeros((6, 50), np.int64))),
        "products": (products, 2, 32, (f32(50, 2), np.zeros((3, 50), np.float32))),
    }


def run_simulator(path):
    """In a process with NUMBA_ENABLE_CUDASIM=1: run `simulated` and save the arguments after it."""
    from dsv41_numba.runtime import simulator

    simulator.install()
    saved = {}
    for name, (kernel, grid, block, args) in simulated(np.random.default_rng(5)).items():
        kernel[grid, block](*args)
        saved |= {f"{name}{i}": a for i, a in enumerate(args)}
    np.savez(path, **saved)
