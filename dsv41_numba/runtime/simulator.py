"""What Numba's own simulator lacks for our kernels: `cuda.libdevice`.

The simulator runs a kernel in Python, thread by thread, so a debugger can step through it. It has no libdevice, so
these NumPy functions, which round to nearest even like the real ones, stand in.
"""

from types import SimpleNamespace

import numpy as np

F = np.float32
LIBDEVICE = SimpleNamespace(
    fadd_rn=lambda x, y: F(x) + F(y),
    fsub_rn=lambda x, y: F(x) - F(y),
    fmul_rn=lambda x, y: F(x) * F(y),
    fdiv_rn=lambda x, y: F(x) / F(y),
    fsqrt_rn=lambda x: np.sqrt(F(x)),
    rintf=lambda x: np.rint(F(x)),
    fabsf=lambda x: np.abs(F(x)),
    fmaxf=lambda x, y: np.fmax(F(x), F(y)),
    fminf=lambda x, y: np.fmin(F(x), F(y)),
    float_as_int=lambda x: F(x).view(np.int32),
    int_as_float=lambda x: np.int32(x).view(F),
)


def install() -> None:
    """Give kernels that run in Numba's simulator a `cuda.libdevice`. Call it once, before the first launch."""
    from numba.cuda.simulator.kernelapi import FakeCUDAModule

    FakeCUDAModule.libdevice = LIBDEVICE  # it has none
