"""Numbers that a kernel is given, or finds in device memory.

A CUDA graph repeats launches with the arguments they were captured with. What changes from step to step, such as the
position, must then be read from device memory. The kernels that need it are made twice, from one source: around
`given` or around `in_memory`.
"""

from typing import Any

import numpy as np
from numba import cuda


@cuda.jit(device=True)
def given(number):
    """The argument itself."""
    return number


@cuda.jit(device=True)
def in_memory(number):
    """The first element of an array."""
    return number[0]


def reader(number: Any) -> Any:
    """The device function that finds this argument: an integer, or a device array that holds one."""
    return given if isinstance(number, int | np.integer) else in_memory
