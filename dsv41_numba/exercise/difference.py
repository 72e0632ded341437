"""Compare what a reader's `run` returned with the specification: the first wrong number, and how wrong it is."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv41_numba.compare import NOISE, bf16_array, bf16_steps, ordered
from dsv41_numba.formats.bf16 import BF16

F32_NOISE = NOISE * 2.0**-6  # of the row's largest magnitude, as `compare.NOISE` is for bf16: f32 sums in another order


@dataclass(frozen=True)
class Number:
    """One number of both results, as text. `apart` counts steps between them; None when one is no number."""

    index: str  # "[3, 17]", after the result's number when there are several
    yours: str
    yours_bits: str
    expected: str
    expected_bits: str
    apart: int | None
    is_wrong: bool
    is_written: bool


@dataclass(frozen=True)
class Comparison:
    """Both results side by side. `problem` says how they differ in kind; else `wrong` of `total` numbers are wrong."""

    problem: str = ""
    first: Number | None = None  # that is wrong
    wrong: int = 0
    never_written: int = 0
    total: int = 0
    shown: tuple[Number, ...] = ()  # the first numbers, right or wrong

    @property
    def ok(self) -> bool:
        return not self.problem and self.wrong == 0


def compare(
    yours: Any, expected: Any, steps: int, unwritten: list[np.ndarray] | None = None, show: int = 0
) -> Comparison:
    """Compare results, each an array or several.

    steps: how far an element may be away; unwritten: for each array, which elements no thread has written (none is
    right); show: how many numbers to put into `shown`.
    """
    mine, right = as_arrays(yours), as_arrays(expected)
    if len(mine) != len(right):
        return Comparison(f"expected {_count(len(right))}, got {_count(len(mine))}")
    for k, (a, b) in enumerate(zip(mine, right)):
        if not isinstance(a, np.ndarray) or a.dtype != b.dtype or a.shape != b.shape:
            return Comparison(f"result{_label(k, right)}: expected {_kind(b)}, got {_kind(a)}")
    empty = unwritten or [np.zeros(b.shape, bool) for b in right]
    masks = [wrong_numbers(a, b, steps) | e for a, b, e in zip(mine, right, empty)]

    def number(k: int, i: int) -> Number:
        a, b = (np.ascontiguousarray(arrays[k]).reshape(-1)[i : i + 1] for arrays in (mine, right))
        is_wrong, is_empty = (bool(group[k].reshape(-1)[i]) for group in (masks, empty))
        index = ", ".join(str(int(n)) for n in np.unravel_index(i, right[k].shape)) if right[k].ndim else ""
        return Number(
            f"{_label(k, right)}[{index}]",
            str(_value(a)),
            pattern(a),
            str(_value(b)),
            pattern(b),
            _apart(a, b),
            is_wrong,
            not is_empty,
        )

    places = [(k, i) for k, b in enumerate(right) for i in range(min(b.size, show))][:show]
    wrong = next((number(k, int(np.flatnonzero(mask)[0])) for k, mask in enumerate(masks) if mask.any()), None)
    count, count_empty = (sum(int(m.sum()) for m in group) for group in (masks, empty))
    shown = tuple(number(k, i) for k, i in places)
    return Comparison("", wrong, count, count_empty, sum(b.size for b in right), shown)


def as_arrays(result: Any) -> tuple[Any, ...]:
    """A result as a tuple; bf16 arrays as their bits."""
    results = tuple(result) if isinstance(result, (tuple, list)) else (result,)
    return tuple(r.view(np.uint16) if isinstance(r, np.ndarray) and r.dtype == BF16 else r for r in results)


def wrong_numbers(yours: np.ndarray, expected: np.ndarray, steps: int) -> np.ndarray:
    """Which elements are not as expected. Without steps only the same bits are right; with steps no NaN is."""
    if steps == 0 or yours.size == 0 or (yours.dtype.kind != "f" and yours.dtype != np.uint16):
        return bits(yours) != bits(expected)
    if yours.dtype == np.uint16:
        rows = (a.reshape(1, -1) if a.ndim == 0 else a for a in (yours, expected))
        return (bf16_steps(*(bf16_array(a) for a in rows)) > steps).reshape(yours.shape)
    with np.errstate(invalid="ignore", over="ignore"):
        finite = np.isfinite(yours) & np.isfinite(expected)
        largest = np.abs(np.where(np.isfinite(expected), expected, 0.0))
        largest = largest.max(-1, keepdims=True) if largest.ndim else largest
        near = np.abs(yours.astype(np.float64) - expected) <= F32_NOISE * largest
        return ~np.where(finite, near | (apart(yours, expected) <= steps), yours == expected)


def apart(yours: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Steps between the elements of two arrays: neighbouring numbers of a format are one apart."""
    if yours.dtype == np.uint16:
        return np.abs(ordered(yours) - ordered(expected))
    if yours.dtype.kind == "f":
        sides = []
        for array in (yours, expected):
            whole = bits(array).astype(np.int64)
            sign = 1 << (8 * array.dtype.itemsize - 1)
            magnitude = whole & (sign - 1)
            sides.append(np.where(whole != magnitude, -magnitude, magnitude))
        return np.abs(sides[0] - sides[1])
    return np.abs(yours.astype(np.int64) - expected.astype(np.int64))


def holds(results: tuple[Any, ...], byte: int) -> list[np.ndarray]:
    """For each array of a result, which elements consist of this byte only."""
    return [bits(r) == int.from_bytes([byte] * r.dtype.itemsize, "little") for r in results]


def bits(array: np.ndarray) -> np.ndarray:
    """The elements' bits, as whole numbers of the same size."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").reshape(array.shape)


def pattern(one: np.ndarray) -> str:
    """The bits of an array's only element: "0x3F80"."""
    return f"0x{int(bits(one)[0]):0{2 * one.dtype.itemsize}X}"


def _value(one: np.ndarray) -> Any:
    return bf16_array(one)[0] if one.dtype == np.uint16 else one[0]


def _apart(a: np.ndarray, b: np.ndarray) -> int | None:
    numbers = all((one.dtype.kind in "iub" and one.dtype != np.uint16) or np.isfinite(_value(one)) for one in (a, b))
    return int(apart(a, b)[0]) if numbers else None


def _label(k: int, results: tuple[Any, ...]) -> str:
    return f" {k}" if len(results) > 1 else ""


def _count(n: int) -> str:
    return f"{n} arrays" if n != 1 else "one array"


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}"
    return "None (no return?)" if value is None else f"a value of type {type(value).__name__}, no array"
