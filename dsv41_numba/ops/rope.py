"""RoPE: turn the last entries of each head, pair by pair, by an angle that grows with the position.

Math       (y[2 i], y[2 i + 1]) = (x[2 i] cos - x[2 i + 1] sin, x[2 i] sin + x[2 i + 1] cos), adjacent pairs, for the
           LAST R entries of a head; the entries before them are copied. Row t stands at position start_pos + t step.
           `rope_inverse` turns back: it negates sin.
           angle = position freq[i], freq[i] = theta^(-2 i / R); YaRN divides the slow pairs' freq by a factor, leaves
           the fast ones, and mixes the two on a ramp between.
Shapes     x [T, H, D] bf16, D even; cos, sin [P, R / 2] f32, R <= D; start_pos >= 0, step >= 1 -> y [T, H, D] bf16
Precision  f32 products and their f32 sum, each rounded (no fused multiply-add), then one rounding to bf16: every bit is
           fixed. The table too: f32 freq, f32 angle, and cos and sin of that angle as `cos_sin` says. At far positions
           the rounding of freq and angle is far from exact arithmetic (1e-3), and is part of the contract.
Launch     grid (T, ceil(H / 8)), block (32, min(H, 8)): a warp a head, lane j takes the pairs j, j + 32, ...
Moves      4 T H D bytes, and 4 T R of the table
Errors     ValueError when an array's dtype, shape or layout is not as above, or a position lies outside the table
Source     steps 2, 3, 5, 6, 9 and (inverse) 12 of the layer
"""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import cuda, uint16, uint32

from dsv41_numba.formats.bf16 import as_bf16, decode_bf16, encode_bf16
from dsv41_numba.ops.checks import check_array
from dsv41_numba.runtime.backend import empty, launch

if TYPE_CHECKING:
    from dsv41_numba.config import AttnV41Cfg

WARP = 32
HEADS_PER_BLOCK = 8  # at most
AHEAD = 4  # pairs that a thread fetches before it stores one
TABLE_POSITIONS = 8192  # made at a time: the f64 arrays on the way to a million positions would take gigabytes

# pi / 2 in two f64 parts; the first has 33 bits, so that its product with a number of quarter turns below 2^20 is exact
HALF_PI_HIGH = float.fromhex("0x1.921fb544p+0")
HALF_PI_LOW = float.fromhex("0x1.0b4611a626331p-34")
# cos a = 1 + a^2 (C1 + a^2 (C2 + ...)), sin a = a + a^3 (S1 + a^2 (S2 + ...)) for |a| <= pi / 4: glibc's coefficients
COS_COEFFICIENTS = tuple(
    float.fromhex(c)
    for c in ("-0x1.ffffffd0c621cp-2", "0x1.55553e1068f19p-5", "-0x1.6c087e89a359dp-10", "0x1.99343027bf8c3p-16")
)
SIN_COEFFICIENTS = tuple(
    float.fromhex(c) for c in ("-0x1.555545995a603p-3", "0x1.1107605230bc4p-7", "-0x1.994eb3774cf24p-13")
)


def rope_freqs(rope_dim: int, theta: float) -> np.ndarray:
    """Plain RoPE: radians a position for each pair -> [rope_dim / 2] f32. ValueError when rope_dim is odd."""
    if rope_dim < 2 or rope_dim % 2:
        raise ValueError(f"rope_dim: expected an even number from 2 on, got {rope_dim}")
    exponent = np.arange(0, rope_dim, 2, dtype=np.float32) / np.float32(rope_dim)
    power = np.power(float(theta), exponent.astype(np.float64)).astype(np.float32)
    return np.float32(1.0) / power


def yarn_freqs(
    rope_dim: int, theta: float, original_seq_len: int, factor: float, beta_fast: float, beta_slow: float
) -> np.ndarray:
    """YaRN: pairs that turn more than beta_fast times within original_seq_len keep their freq, those that turn less
    than beta_slow times are slowed by `factor`, a linear ramp joins them -> [rope_dim / 2] f32.

    original_seq_len 0 means that there is no YaRN: the plain freqs.
    """
    freqs = rope_freqs(rope_dim, theta)
    if original_seq_len <= 0:
        return freqs

    def pair_that_turns(times: float) -> float:
        return rope_dim * math.log(original_seq_len / (times * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(pair_that_turns(beta_fast)), 0)
    high = float(min(math.ceil(pair_that_turns(beta_slow)), rope_dim - 1))
    if low == high:
        high += 0.001  # no division by zero
    pair = np.arange(rope_dim // 2, dtype=np.float32)
    ramp = np.clip((pair - np.float32(low)) / np.float32(high - low), 0, 1)
    keep = np.float32(1.0) - ramp
    return freqs / np.float32(factor) * (np.float32(1.0) - keep) + freqs * keep


def cos_sin(angles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of f32 angles within +-2^20, f32, with the bits that the recorded tables have.

    Those are glibc's cosf and sinf: an f64 polynomial whose error, 0.56 of a float32 step at most, is not quite that of
    rounding the exact value: one result in a hundred is its neighbour. NumPy's float32 cos differs more often, and
    from machine to machine; these are plain f64 operations, with the same bits everywhere.
    """
    a = angles.astype(np.float64)
    quarter_turns = np.rint(a * (2 / math.pi))
    a = (a - quarter_turns * HALF_PI_HIGH) - quarter_turns * HALF_PI_LOW
    square = a * a
    c1, c2, c3, c4 = COS_COEFFICIENTS
    s1, s2, s3 = SIN_COEFFICIENTS
    cos = 1 + square * (c1 + square * (c2 + square * (c3 + square * c4)))
    sin = a + a * square * (s1 + square * (s2 + square * s3))
    quadrant = quarter_turns.astype(np.int64) % 4
    return (
        np.choose(quadrant, (cos, -sin, -cos, sin)).astype(np.float32),
        np.choose(quadrant, (sin, cos, -sin, -cos)).astype(np.float32),
    )


def freqs_table(freqs: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """freqs [R / 2] f32, positions [P] int -> cos, sin [P, R / 2] f32."""
    cos, sin = (np.empty((len(positions), len(freqs)), np.float32) for _ in range(2))
    for p0 in range(0, len(positions), TABLE_POSITIONS):
        part = slice(p0, p0 + TABLE_POSITIONS)
        cos[part], sin[part] = cos_sin(positions[part].astype(np.float32)[:, None] * freqs)
    return cos, sin


def rope_table(cfg: "AttnV41Cfg", compressed: bool) -> tuple[np.ndarray, np.ndarray]:
    """The table of positions 0 to max_seq - 1 -> cos, sin [max_seq, rope_dim / 2] f32.

    `compressed`: of the layers with a ratio (YaRN at compress_rope_theta), else of those without (plain, rope_theta).
    """
    if compressed:
        freqs = yarn_freqs(
            cfg.rope_dim,
            cfg.compress_rope_theta,
            cfg.original_seq_len,
            cfg.rope_factor,
            cfg.beta_fast,
            cfg.beta_slow,
        )
    else:
        freqs = rope_freqs(cfg.rope_dim, cfg.rope_theta)
    return freqs_table(freqs, np.arange(cfg.max_seq))


def rope_ref(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, start_pos: int, step: int = 1) -> np.ndarray:
    """x [T, H, D] bf16, cos and sin [P, R / 2] f32 -> [T, H, D] bf16."""
    T, _, D = x.shape
    check_positions(cos, T, start_pos, step)
    tail = x[..., D - 2 * cos.shape[1] :].astype(np.float32)
    pos = start_pos + np.arange(T) * step
    c, s = cos[pos][:, None, :], sin[pos][:, None, :]
    even, odd = tail[..., 0::2], tail[..., 1::2]
    y = x.copy()
    y[..., D - 2 * cos.shape[1] :: 2] = as_bf16(even * c - odd * s)
    y[..., D - 2 * cos.shape[1] + 1 :: 2] = as_bf16(even * s + odd * c)
    return y


def rope_inverse_ref(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, start_pos: int, step: int = 1) -> np.ndarray:
    """`rope_ref` the other way round."""
    return rope_ref(x, cos, -sin, start_pos, step)


def check_positions(cos: Any, T: int, start_pos: int, step: int) -> None:
    """Refuse positions that the table does not have."""
    P = cos.shape[0]
    last = start_pos + (T - 1) * step
    if start_pos < 0 or step < 1 or (T > 0 and last >= P):
        raise ValueError(
            f"start_pos, step: expected positions within the table's 0..{P - 1}, step >= 1, "
            f"got {start_pos}..{last} by {step}"
        )


@cuda.jit(device=True)
def turn_pair(pair, c, s):
    """One pair turned by the angle with this cosine and sine."""
    even = decode_bf16(uint16(pair & uint32(0xFFFF)))
    odd = decode_bf16(uint16(pair >> uint32(16)))
    # the libdevice calls keep the compiler from fusing a product and the sum, which would round once less
    # ref: y[..., D - 2 * cos.shape[1] :: 2] = as_bf16(even * c - odd * s)
    new_even = cuda.libdevice.fsub_rn(cuda.libdevice.fmul_rn(even, c), cuda.libdevice.fmul_rn(odd, s))
    # ref: y[..., D - 2 * cos.shape[1] + 1 :: 2] = as_bf16(even * s + odd * c)
    new_odd = cuda.libdevice.fadd_rn(cuda.libdevice.fmul_rn(even, s), cuda.libdevice.fmul_rn(odd, c))
    return uint32(uint32(encode_bf16(new_even)) | (uint32(encode_bf16(new_odd)) << uint32(16)))


@cuda.jit
def rope_kernel(x, cos, sin, turn, start_pos, step, y):
    """Thread row (32 threads) a head. x and y hold a pair in each uint32, the even entry in its low half.

    A thread fetches 4 pairs before it stores one: y might be x for all that the compiler knows, so it moves no load
    before a store, and a single load at a time leaves memory idle.
    """
    fetched = cuda.local.array(AHEAD, uint32)
    t = cuda.blockIdx.x
    h = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    pairs = x.shape[2]
    copied = pairs - cos.shape[1]
    # the mask changes nothing, but tells the compiler that no index is negative: Numba would add the axis' length to it
    p0 = cuda.threadIdx.x & (WARP - 1)
    # ref: pos = start_pos + np.arange(T) * step
    pos = start_pos + t * step
    if h < x.shape[1]:
        while p0 < pairs:
            for i in range(AHEAD):
                p = p0 + i * WARP
                if p < pairs:
                    fetched[i] = x[t, h, p]
            for i in range(AHEAD):
                p = p0 + i * WARP
                if p < copied:
                    y[t, h, p] = fetched[i]
                elif p < pairs:
                    y[t, h, p] = turn_pair(fetched[i], cos[pos, p - copied], turn * sin[pos, p - copied])
            p0 += WARP * AHEAD


def rope(x, cos, sin, start_pos: int, step: int = 1):
    """x [T, H, D] bf16 bits, cos and sin [P, R / 2] f32, all device arrays -> [T, H, D] bf16 bits."""
    return _launch(x, cos, sin, np.float32(1.0), start_pos, step)


def rope_inverse(x, cos, sin, start_pos: int, step: int = 1):
    """`rope` the other way round: the same arguments, turned back."""
    return _launch(x, cos, sin, np.float32(-1.0), start_pos, step)


def check_operands(x, cos, sin, start_pos: int, step: int) -> tuple[int, int, int]:
    """Refuse operands that do not fit, as the contract says; T, H and D of x."""
    check_array("x", x, np.uint16, (None, None, None))
    check_array("cos", cos, np.float32, (None, None))
    check_array("sin", sin, np.float32, cos.shape)
    T, H, D = x.shape
    if D % 2:
        raise ValueError(f"x: expected an even last axis, which splits into pairs, got {D}")
    if 2 * cos.shape[1] > D:
        raise ValueError(f"cos: expected at most {D // 2} pairs for heads of {D}, got {cos.shape[1]}")
    check_positions(cos, T, start_pos, step)
    return T, H, D


def _launch(x, cos, sin, turn: np.float32, start_pos: int, step: int):
    T, H, D = check_operands(x, cos, sin, start_pos, step)
    y = empty(x.shape, np.uint16)
    if T * H * D > 0:  # a grid of 0 blocks is a launch error
        # pairs as uint32: one load and one store a pair, twice as wide
        args = (x.view(np.uint32), cos, sin, turn, start_pos, step, y.view(np.uint32))
        heads = min(H, HEADS_PER_BLOCK)
        launch(rope_kernel, (T, -(-H // heads)), (WARP, heads), *args)
    return y


if __name__ == "__main__":
    one_hot = as_bf16(np.eye(1, 8, 4, dtype=np.float32).reshape(1, 1, 8))  # 1 at entry 4, the first that turns
    print(rope_ref(one_hot, *freqs_table(rope_freqs(4, 10000), np.arange(2)), 1))  # cos 1, sin 1 at 4 and 5
