"""What each stage may differ by, and why: the table of the check, and how far apart two arrays are under a rule."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv41_numba.compare import APART, bf16_steps
from dsv41_numba.formats.e2m1 import e2m1_to_f32, f32_to_e2m1
from dsv41_numba.formats.e4m3 import e4m3_to_f32, f32_to_e4m3

FLIPS_ALLOWED = 1e-3  # of a quantiser's elements: its input may be one bf16 step off and fall to the next code
SELECTION_STEPS = 1  # bf16 steps between scores at the cut whose order may change
F32_NOISE = 2.0**-17  # of the row's largest magnitude: the f32 sum of up to 5120 products, in another order


@dataclass(frozen=True)
class Rule:
    """What a stage may differ by.

    kind     "bf16" numbers in steps, "f32" numbers in units of F32_NOISE, "codes" of a quantiser, "exact" bits, or a
             "selection" of positions
    steps    the most steps alone
    chained  the largest relative L2 error chained; a selection is judged by its scores instead
    chained_fp8  the same where a fp8 linear makes the stage; None: no other
    codec    of a quantiser: how its codes count
    """

    kind: str
    steps: int = 0
    chained: float = 1e-3
    chained_fp8: float | None = None
    codec: "Codec | None" = None


@dataclass(frozen=True)
class Codec:
    """A quantiser's number format: values of 32 elements share a power-of-two scale; `sign` is the code's sign bit."""

    encode: Callable[[np.ndarray], np.ndarray]
    decode: Callable[[np.ndarray], np.ndarray]
    largest: float
    sign: int
    block: int = 32

    def ordered(self, values: np.ndarray) -> np.ndarray:
        """The nearest codes of f32 values, as integers that count codes: +0 and -0 are both 0."""
        codes = self.encode(values)
        magnitude = (codes & (self.sign - 1)).astype(np.int32)
        return np.where(codes & self.sign, -magnitude, magnitude)

    def scale(self, blocks: np.ndarray) -> np.ndarray:
        """The coarsest power of two in which each row of already quantised values is exact, [rows, 1] f32."""
        largest = np.abs(blocks).max(-1, keepdims=True)
        finite = np.isfinite(largest) & (largest > 0)
        fine = np.exp2(np.ceil(np.log2(np.where(finite, largest, self.largest) / np.float32(self.largest))))
        # rounding may have taken the largest value down to where half the scale would do as well
        coarse = np.float32(2.0) * fine
        exact = (self.decode(self.encode(blocks / coarse)) * coarse == blocks).all(-1, keepdims=True)
        return np.where(exact, coarse, fine).astype(np.float32)


FP8 = Rule("codes", codec=Codec(f32_to_e4m3, e4m3_to_f32, 448.0, 0x80))
FP4 = Rule("codes", codec=Codec(f32_to_e2m1, e2m1_to_f32, 6.0, 0x8))
BF16_PROBABILITIES = 5e-3  # og and out follow the official kernel, whose probabilities are bf16; ours are f32
# A fp8 linear quantises its input first. What is d off there falls to the next code, s away, with probability d / s:
# a mean square of d s, and the codes of e4m3 are at most 2^-3 of a number apart. Seen: 1.1e-2, from og's 2.8e-3
BF16_PROBABILITIES_FP8 = (BF16_PROBABILITIES * 2.0**-3) ** 0.5

RULES = {
    "qr": Rule("bf16", 2),  # a norm follows a linear: a flipped bit of the linear goes on through a second rounding
    # a rotation adds two rounded numbers and rounds the sum: with K = 1280, 6 of 4.1 million elements of two runs that
    # sum in another order were two steps apart (none at K = 32)
    "q": Rule("bf16", 2),
    "kv": FP8,
    "window": Rule("exact"),
    "comp_kv": Rule("f32", 1),
    "comp_score": Rule("f32", 1),
    "latent": Rule("bf16", 2),  # as qr
    "index_k": FP4,
    "latent_q": Rule("exact"),
    "index_q": FP4,
    # a linear, rounded, times a constant, rounded: one flipped bit times 1.41 is up to two steps, as in qr
    "index_w": Rule("bf16", 2),
    "score": Rule("exact"),
    "candidates": Rule("selection"),
    "topk": Rule("selection"),
    "idx": Rule("selection"),
    "o": Rule("bf16", 1),
    "og": Rule("bf16", 2, BF16_PROBABILITIES),  # a rotation precedes the projection
    "out": Rule("bf16", 1, BF16_PROBABILITIES, BF16_PROBABILITIES_FP8),
}


def steps_apart(rule: Rule, got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """How far two arrays of a stage are apart, in the steps of its kind; int, of their shape."""
    if rule.kind == "bf16":
        return bf16_steps(got, expected)
    if rule.kind == "f32":
        largest = np.abs(np.where(np.isfinite(expected), expected, 0.0)).max(-1, keepdims=True, initial=0.0)
        with np.errstate(invalid="ignore"):
            within = np.abs(got.astype(np.float64) - expected) <= F32_NOISE * largest
        return np.where(got == expected, 0, np.where(within, 1, 2))
    if rule.kind == "codes":
        return code_steps(rule, got, expected)
    differ = (bit_patterns(got) != bit_patterns(expected)).astype(np.int32)
    return np.where(got != got, APART, differ)  # a NaN never passes, not even against the same one


def code_steps(rule: Rule, got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Codes between two arrays of quantised values, counted in the scale of the expected block."""
    codec = rule.codec
    assert codec is not None
    got_f32, expected_f32 = got.astype(np.float32), expected.astype(np.float32)
    no_number = np.isnan(got_f32) | np.isnan(expected_f32)
    got_blocks, blocks = (np.where(no_number, 0, a).reshape(-1, codec.block) for a in (got_f32, expected_f32))
    scale = codec.scale(blocks)
    steps = np.abs(codec.ordered(got_blocks / scale) - codec.ordered(blocks / scale)).reshape(got.shape)
    # other bits of the same code are a difference too; a NaN never passes
    steps = np.where((steps == 0) & (bit_patterns(got) != bit_patterns(expected)), 1, steps)
    return np.where(no_number, APART, steps)


def with_bits(value: Any) -> str:
    """A number and its bit pattern, for a message."""
    value = np.asarray(value)
    if value.dtype.kind in "iub":
        return str(value)
    bits = int(bit_patterns(value.reshape(1))[0])
    return f"{float(value):.9g} (0x{bits:0{2 * value.dtype.itemsize}X})"


def bit_patterns(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
