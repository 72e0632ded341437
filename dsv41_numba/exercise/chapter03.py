"""Chapter 3: bf16 patterns: decoding, rounding, and two of them in a word."""

import numpy as np

from dsv41_numba.exercise.spec import Draw, Exercise, Inputs, Trap
from dsv41_numba.formats.bf16 import as_bf16


def patterns(*bits: int) -> Draw:
    """These bf16 patterns."""
    return lambda rng: (np.array(bits, np.uint16),)


def normal_patterns(count: int) -> Draw:
    """bf16 patterns of either sign, neither zero, subnormal, infinite nor NaN."""

    def inputs(rng: np.random.Generator) -> Inputs:
        exponent, rest = rng.integers(1, 255, count), rng.integers(0, 256, count)
        return (((rest & 0x80) << 8 | exponent << 7 | rest & 0x7F).astype(np.uint16),)

    return inputs


def floats(*bits: int) -> Draw:
    """The float32 of these bits."""
    return lambda rng: (np.array(bits, np.uint32).view(np.float32),)


def no_carries(count: int) -> Draw:
    """Normal float32 of either sign whose rounding neither reaches the exponent nor is a tie."""

    def inputs(rng: np.random.Generator) -> Inputs:
        sign, exponent = rng.integers(0, 2, count), rng.integers(1, 254, count)
        upper, lower = rng.integers(0, 0x7F, count), rng.integers(0, 0x10000, count)
        lower += lower == 0x8000
        return ((sign << 31 | exponent << 23 | upper << 16 | lower).astype(np.uint32).view(np.float32),)

    return inputs


def half_way_marks(rng: np.random.Generator) -> Inputs:
    """All 65,536 upper halves, each with the bit below its last set: the half-way marks, and NaNs among the rest."""
    upper: np.ndarray = np.arange(1 << 16, dtype=np.uint32)
    return (((upper << np.uint32(16)) | np.uint32(0x8000)).view(np.float32),)


def scaled(count: int, scale: float) -> Draw:
    """Normal numbers as bf16 bits, and a scale."""
    return lambda rng: (as_bf16(rng.standard_normal(count).astype(np.float32)).view(np.uint16), scale)


EXERCISES = [
    Exercise(
        id="03a",
        file="03a_decode_a_pattern",
        title="decode a pattern",
        level="A",
        small=patterns(0x3F80, 0xBF80, 0x4000, 0x4040, 0x3DCD, 0xC2F7, 0x7F7F, 0x0080),
        full=(normal_patterns(2011),),
        traps=(
            Trap("-0.0 loses its sign", patterns(0x0000, 0x8000)),
            Trap("subnormals get a leading 1", patterns(0x0001, 0x8001, 0x007F, 0x8040)),
            Trap("infinity becomes a number", patterns(0x7F80, 0xFF80)),
            Trap("a NaN becomes a number", patterns(0x7FC0, 0xFFC0, 0x7F81)),
            Trap("some pattern of the 65,536", patterns(*range(1 << 16))),
        ),
        hints=(
            "A bf16 is a float32 without its lower 16 bits. What stands there after decoding is 16 zeros.",
            "Make it 32 bits wide first, then shift it up by 16: uint32(bits[i]) << uint32(16).",
            "The shift may come out wider than 32 bits. uint32(...) around it, and .view(np.float32) behind that.",
        ),
        kernels=("decode_kernel",),
    ),
    Exercise(
        id="03b",
        file="03b_round_to_nearest_even",
        title="round to nearest even",
        level="B",
        small=floats(0x3F800000, 0x3DCCCCCD, 0xC2F6E979, 0x3F808001, 0x3F807FFF, 0x40490FDB, 0xC0490FDB, 0x7F7F0000),
        full=(no_carries(3001),),
        traps=(
            Trap("-0.0 loses its sign", floats(0x80000000, 0x00000000, 0x80000001)),
            Trap("the carry stops at the exponent", floats(0x3FFFC000, 0xBFFFFFFF, 0x40FF9000)),
            Trap("the largest instead of infinity", floats(0x7F7FFFFF, 0xFF7FC000, 0x7F800000, 0xFF800000)),
            Trap("a NaN becomes infinity", floats(0x7F800001, 0xFF800001, 0x7FC00000)),
            Trap("a NaN is rounded", floats(0x7FFFFFFF, 0xFFFFFFFF, 0x7FC12345)),
            Trap("subnormals become 0", floats(0x00018001, 0x80400001, 0x00008001, 0x007F0000, 0x007FFFFF)),
            Trap("tie away from zero", half_way_marks),
        ),
        hints=(
            "Adding to the bits before cutting them rounds: a carry out of the lower half raises the upper half by 1. "
            "Which constant carries as soon as the lower half is above 0x8000?",
            "0x7FFF does. For exactly 0x8000 the carry is wanted where L is 1: add L as well. L is bit 16.",
            "Take care of NaN first, with value != value. Everything else, the way into infinity too, is "
            "(bits + 0x7FFF + L) >> 16.",
        ),
        kernels=("encode_kernel",),
    ),
    Exercise(
        id="03c",
        file="03c_two_in_a_word",
        title="two in a word",
        level="C",
        small=scaled(8, 0.75),
        full=(scaled(2002, -1.7), scaled(258, 1e-3)),
        hints=(
            "The low half is word & 0xFFFF, the high half word >> 16. Both are patterns that decode_bf16 takes.",
            "A word is put together with |: the high pattern shifted up by 16, and the low one as it is.",
            "encode_bf16 gives a uint16: make it uint32 before the shift. Read x[i] once, into a name.",
        ),
        kernels=("scale_kernel",),
    ),
]
