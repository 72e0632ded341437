"""How far two arrays are apart, in steps of their format.

A bf16 step is the distance to the neighbouring bf16 number. Steps are counted per element; a difference of at most
2^-14 of the row's largest magnitude counts as none, because where large terms cancel only f32 noise is left. A NaN
never passes: not even against a NaN, since no stage of this layer makes one.
"""

import numpy as np

from dsv41_numba.formats.bf16 import BF16

NOISE = 2.0**-14  # of the row's largest magnitude
APART = 1 << 20  # steps of a pair that no tolerance may forgive: a NaN, or an infinity on one side


def ordered(bits: np.ndarray) -> np.ndarray:
    """uint16 bf16 patterns as int32 that count steps: neighbours differ by 1, and +0 and -0 are both 0."""
    magnitude = (bits & np.uint16(0x7FFF)).astype(np.int32)
    return np.where(bits & np.uint16(0x8000), -magnitude, magnitude)


def bf16_steps(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Steps between two bf16 arrays of one shape (rows along the last axis), as int32 of that shape."""
    got_f32, expected_f32 = got.astype(np.float32), expected.astype(np.float32)
    steps = np.abs(ordered(got.view(np.uint16)) - ordered(expected.view(np.uint16)))
    finite = np.isfinite(got_f32) & np.isfinite(expected_f32)
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.abs(got_f32.astype(np.float64) - expected_f32)
    largest = np.abs(np.where(np.isfinite(expected_f32), expected_f32, 0.0)).max(-1, keepdims=True, initial=0.0)
    steps = np.where(finite & (difference <= NOISE * largest), 0, steps)
    same_infinity = (got_f32 == expected_f32) & ~finite
    return np.where(finite | same_infinity, steps, APART).astype(np.int32)


def worst_steps(got: np.ndarray, expected: np.ndarray) -> int:
    """The largest of `bf16_steps`; 0 for empty arrays."""
    return int(bf16_steps(got, expected).max(initial=0))


def same_bits(got: np.ndarray, expected: np.ndarray) -> bool:
    """Whether dtype, shape and every byte agree."""
    return got.dtype == expected.dtype and got.shape == expected.shape and got.tobytes() == expected.tobytes()


def relative_l2(got: np.ndarray, expected: np.ndarray) -> float:
    """||got - expected|| / ||expected|| in f64; infinities must agree exactly and are then left out. NaN gives inf."""
    got64, expected64 = got.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(got64) & np.isfinite(expected64)
    if not np.array_equal(got64[~finite], expected64[~finite]):
        return float("inf")
    error = float(np.linalg.norm(got64[finite] - expected64[finite]))
    norm = float(np.linalg.norm(expected64[finite]))
    return error / norm if norm > 0 else (0.0 if error == 0 else float("inf"))


def bf16_array(bits: np.ndarray) -> np.ndarray:
    """uint16 patterns, as they come from a backend, seen as `ml_dtypes.bfloat16`."""
    return np.ascontiguousarray(bits).view(BF16)
