"""What every rung of the linear ladder shares: checks, the result, and the groups.

A rung computes y[m, g * N + n] = sum_k x[m, g * K + k] * weight[g * N + n, k] for every group g. One group makes it a
linear; several make it the grouped linear, which reads its columns of x where they lie. Both arrive here as three
two-dimensional arrays and the number of groups::

    x [M, groups * K]    weight [groups * N, K]    ->    y [M, groups * N]
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda

from dsv41_numba.ops.checks import address, check_array
from dsv41_numba.ops.grouped_linear import check_groups
from dsv41_numba.runtime import backend
from dsv41_numba.runtime.backend import empty

NO_GPU = (0, 0)
Rung = Callable[[Any, Any, int, Any], None]  # rung(x, weight, groups, y) fills y, which is not empty


@dataclass(frozen=True)
class Sizes:
    """M rows of x; N rows of weight and K columns in each group."""

    M: int
    N: int
    K: int
    groups: int


def sizes(x: Any, weight: Any, groups: int) -> Sizes:
    """The sizes of a rung's operands."""
    return Sizes(x.shape[0], weight.shape[0] // groups, weight.shape[1], groups)


def capability() -> tuple[int, int]:
    """The compute capability of this process's GPU, by which a rung is picked; NO_GPU where kernels run elsewhere."""
    if backend.current().name != "gpu":
        return NO_GPU
    major, minor = cuda.get_current_device().compute_capability
    return major, minor


def linear_by(rung: Rung, x: Any, weight: Any) -> Any:
    """x [M, K] bf16 bits, weight [N, K] bf16 bits -> [M, N] bf16 bits, by one rung; `ops.linear.linear`'s contract."""
    check_array("x", x, np.uint16, (None, None))
    check_array("weight", weight, np.uint16, (None, x.shape[1]))
    y = empty((x.shape[0], weight.shape[0]), np.uint16)
    if y.size > 0:  # a grid of 0 blocks is a launch error
        rung(x, weight, 1, y)
    return y


def grouped_linear_by(rung: Rung, o: Any, weight: Any, n_groups: int) -> Any:
    """o [T, H, D] bf16 bits, weight [n_groups * rank, H / n_groups * D] bf16 bits -> [T, n_groups, rank] bf16 bits."""
    T, H, D = check_groups(o, weight, n_groups)
    og = empty((T, n_groups, weight.shape[0] // n_groups), np.uint16)
    if og.size > 0:
        rung(o.reshape(T, H * D), weight, n_groups, og.reshape(T, weight.shape[0]))
    return og


def on_16_bytes(*arrays: Any) -> bool:
    """Whether these arrays start on multiples of 16 bytes; with rows of 8 elements more, all their rows do."""
    return all(address(a) % 16 == 0 for a in arrays)
