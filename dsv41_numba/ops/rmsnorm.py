"""RMSNorm: scale each row to root mean square 1, then by a learned weight per column.

Math       y[r, d] = weight[d] * (x[r, d] * rsqrt(mean_d(x[r, d]^2) + eps))
Shapes     x [R, D] bf16 (`rmsnorm`) or f32 (`rmsnorm_f32`), weight [D] f32, eps a float -> y [R, D] bf16
Precision  all in f32; the kernel sums squares in 128 strided parts, then as a tree; one rounding to bf16 at the end.
           f32 rows are rounded to bf16 first: the released compressor does so between its pooling and its norm
Launch     grid R, block 128; 512 bytes of shared memory
Moves      bf16 in: 4 R D bytes (f32 in: 6 R D); the weight's 4 D stay in cache
Errors     ValueError when an array's dtype, shape or layout is not as above
Source     steps 1, 3, 4 and 5 of the layer: q_norm, kv_norm, the compressor's norm, the indexer's k_norm
"""

import math

import numpy as np
from numba import cuda, float32, uint16

from dsv41_numba.formats.bf16 import as_bf16, decode_bf16, encode_bf16
from dsv41_numba.ops.checks import check_array
from dsv41_numba.runtime.backend import empty, launch

THREADS = 128  # a power of two: the tree halves it
AHEAD = 4  # columns that a thread fetches before it stores one


def rmsnorm_ref(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """x [R, D] bf16, weight [D] f32 -> [R, D] bf16."""
    x = x.astype(np.float32)
    mean = (x * x).mean(-1, keepdims=True, dtype=np.float32)
    scale = np.float32(1.0) / np.sqrt(mean + np.float32(eps))
    return as_bf16(weight * (x * scale))


def rmsnorm_f32_ref(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """x [R, D] f32, weight [D] f32 -> [R, D] bf16."""
    return rmsnorm_ref(as_bf16(x), weight, eps)


@cuda.jit(device=True)
def block_sum(part, partial):
    """The sum of every thread's `part`, returned to all of them. `partial` is shared, one element a thread."""
    t = cuda.threadIdx.x
    partial[t] = part
    cuda.syncthreads()  # every part is in place before anyone adds
    half = THREADS // 2
    while half > 0:
        if t < half:
            partial[t] += partial[t + half]
        cuda.syncthreads()  # this level is done before the next reads it
        half //= 2
    return partial[0]


@cuda.jit
def rmsnorm_kernel(x, weight, eps, y):
    """One block a row; thread t owns columns t, t + 128, ...

    A store ends what the compiler can fetch in advance, since y might be x for all it knows: the last loop fetches 4
    columns before it stores one.
    """
    partial = cuda.shared.array(THREADS, float32)
    x_bits = cuda.local.array(AHEAD, uint16)
    gain = cuda.local.array(AHEAD, float32)
    r = cuda.blockIdx.x
    # the mask changes nothing, but tells the compiler that no index is negative: Numba would add the axis' length to it
    t = cuda.threadIdx.x & (THREADS - 1)
    D = x.shape[1]
    # ref: mean = (x * x).mean(-1, keepdims=True, dtype=np.float32)
    part = float32(0.0)
    d = t
    while d < D:
        x_d = decode_bf16(x[r, d])
        part += x_d * x_d
        d += THREADS
    mean = block_sum(part, partial) / float32(D)
    # ref: scale = np.float32(1.0) / np.sqrt(mean + np.float32(eps))
    scale = float32(1.0) / math.sqrt(mean + eps)
    # ref: return as_bf16(weight * (x * scale))
    d0 = t
    while d0 < D:
        for i in range(AHEAD):
            d = d0 + i * THREADS
            if d < D:
                x_bits[i] = x[r, d]
                gain[i] = weight[d]
        for i in range(AHEAD):
            d = d0 + i * THREADS
            if d < D:
                y[r, d] = encode_bf16(gain[i] * (decode_bf16(x_bits[i]) * scale))
        d0 += AHEAD * THREADS


@cuda.jit
def rmsnorm_f32_kernel(x, weight, eps, y):
    """`rmsnorm_kernel` for f32 rows, each number rounded to bf16 as it is read."""
    partial = cuda.shared.array(THREADS, float32)
    x_row = cuda.local.array(AHEAD, float32)
    gain = cuda.local.array(AHEAD, float32)
    r, t = cuda.blockIdx.x, cuda.threadIdx.x & (THREADS - 1)
    D = x.shape[1]
    part = float32(0.0)
    d = t
    while d < D:
        x_d = decode_bf16(encode_bf16(x[r, d]))
        part += x_d * x_d
        d += THREADS
    mean = block_sum(part, partial) / float32(D)
    scale = float32(1.0) / math.sqrt(mean + eps)
    d0 = t
    while d0 < D:
        for i in range(AHEAD):
            d = d0 + i * THREADS
            if d < D:
                x_row[i] = x[r, d]
                gain[i] = weight[d]
        for i in range(AHEAD):
            d = d0 + i * THREADS
            if d < D:
                y[r, d] = encode_bf16(gain[i] * (decode_bf16(encode_bf16(x_row[i])) * scale))
        d0 += AHEAD * THREADS


def rmsnorm(x, weight, eps: float):
    """x [R, D] bf16 bits, weight [D] f32 -> [R, D] bf16 bits, all device arrays."""
    return _launch(rmsnorm_kernel, np.uint16, x, weight, eps)


def rmsnorm_f32(x, weight, eps: float):
    """x [R, D] f32, weight [D] f32 -> [R, D] bf16 bits, all device arrays."""
    return _launch(rmsnorm_f32_kernel, np.float32, x, weight, eps)


def _launch(kernel, dtype, x, weight, eps: float):
    check_array("x", x, dtype, (None, None))
    check_array("weight", weight, np.float32, (x.shape[1],))
    y = empty(x.shape, np.uint16)
    if x.shape[0] > 0:  # a grid of 0 blocks is a launch error
        launch(kernel, x.shape[0], THREADS, x, weight, np.float32(eps), y)
    return y


if __name__ == "__main__":
    rows = as_bf16(np.random.default_rng(0).standard_normal((3, 100)).astype(np.float32))
    gain = np.linspace(0.5, 1.5, 100, dtype=np.float32)
    print(np.abs(rmsnorm_ref(rows, gain, 1e-6).astype(np.float32) ** 2).mean(-1))
