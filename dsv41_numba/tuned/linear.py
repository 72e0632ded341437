"""The linear ladder: which rung takes which shape on which GPU, and why.

::

    rung     needs                                    what limits it
    decode   at most 4 tokens                         memory bandwidth
    wgmma    compute capability 9.0, N and K          the tensor cores, fed by the copy engine
             multiples of 8, 16-byte rows
    mma      compute capability 8.0 or more           the tensor cores, fed by the warps
    fma      any GPU, or the emulator                 float32 arithmetic

`linear`, `linear_f32` and `grouped_linear` have the contracts of those in `ops.linear` and `ops.grouped_linear`. A rung
is imported when it is first picked: all but fma need numba-cuda. A float32 weight has one rung, `tuned.linear_f32`.
"""

import importlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv41_numba.ops import linear_f32 as plain_linear_f32
from dsv41_numba.ops.checks import check_array
from dsv41_numba.runtime.backend import empty
from dsv41_numba.tuned.operands import NO_GPU, Rung, capability, grouped_linear_by, linear_by, on_16_bytes, sizes

DECODE_TOKENS = 4

PICKED: Counter[tuple[str, str]] = Counter()  # launches of this process by rung and reason: what the commands print


@dataclass(frozen=True)
class Choice:
    """The rung that takes a linear, and the reason."""

    rung: str
    reason: str


def pick(M: int, N: int, K: int, capability: tuple[int, int], aligned: bool = True) -> Choice:
    """The rung for x [M, K] and weight [N, K] (of each group) on a GPU of this compute capability.

    `aligned` says whether all operands start on multiples of 16 bytes. A capability of (0, 0) means no GPU.
    """
    if capability == NO_GPU:
        return Choice("fma", "there is no GPU, and the other rungs are PTX")
    if K == 0:
        return Choice("fma", "K is 0: there is nothing to multiply")
    if M <= DECODE_TOKENS:
        return Choice("decode", f"{M} of at most {DECODE_TOKENS} tokens: the time is that of reading weight")
    name = "compute capability {}.{}".format(*capability)
    if capability < (8, 0):
        return Choice("fma", f"{name} has no mma.sync for bf16")
    if capability != (9, 0):
        return Choice("mma", f"{name} has mma.sync for bf16; wgmma is 9.0's alone")
    if not aligned or N % 8 or K % 8:
        odd = f"N = {N} and K = {K} are not both multiples of 8"
        what = odd if N % 8 or K % 8 else "an operand does not start on a multiple of 16 bytes"
        return Choice("mma", f"{name} has wgmma, but {what}, as its copy engine needs")
    return Choice("wgmma", f"{name} has wgmma, and its copy engine can reach every row")


def picked(x: Any, weight: Any, groups: int, y: Any) -> Choice:
    """The choice for these operands (see `operands`) on this machine."""
    size = sizes(x, weight, groups)
    return pick(size.M, size.N, size.K, capability(), on_16_bytes(x, weight, y))


def rung(name: str) -> Rung:
    """The function that fills y: `launch_<name>` of `linear_<name>`."""
    module = importlib.import_module(f"dsv41_numba.tuned.linear_{name}")
    launch: Rung = getattr(module, f"launch_{name}")
    return launch


def launch_picked(x: Any, weight: Any, groups: int, y: Any) -> None:
    """Fill y by the rung that fits best (see `operands`), and count it in PICKED."""
    choice = picked(x, weight, groups, y)
    PICKED[choice.rung, choice.reason] += 1
    rung(choice.rung)(x, weight, groups, y)


def linear(x: Any, weight: Any) -> Any:
    """x [M, K] bf16 bits, weight [N, K] bf16 bits -> [M, N] bf16 bits, all device arrays."""
    return linear_by(launch_picked, x, weight)


def linear_f32(x: Any, weight: Any) -> Any:
    """x [M, K] bf16 bits, weight [N, K] f32 -> [M, N] f32, all device arrays."""
    if capability() < (8, 0) or x.size * weight.size == 0 or x.shape[1] % 8 or not on_16_bytes(x, weight):
        return plain_linear_f32(x, weight)
    check_array("x", x, np.uint16, (None, None))
    check_array("weight", weight, np.float32, (None, x.shape[1]))
    from dsv41_numba.tuned.linear_f32 import launch_f32

    y = empty((x.shape[0], weight.shape[0]), np.float32)
    launch_f32(x, weight, y)
    return y


def grouped_linear(o: Any, weight: Any, n_groups: int) -> Any:
    """o [T, H, D] bf16 bits, weight [n_groups * rank, H / n_groups * D] bf16 bits -> [T, n_groups, rank] bf16 bits."""
    return grouped_linear_by(launch_picked, o, weight, n_groups)
