"""Compile kernels to PTX without a GPU (numba-cuda can; its device functions only ask a device for its capability)."""

from contextlib import contextmanager
from types import SimpleNamespace

from numba import cuda

CAPABILITIES = ((7, 5), (8, 0), (9, 0), (10, 0), (12, 0))


@contextmanager
def pretend_device(capability):
    """Let numba-cuda believe that a device of this capability is there; only compiling works on it."""
    from numba.cuda import dispatcher

    real = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=capability)
    try:
        yield
    finally:
        dispatcher.get_current_device = real


def ptx_of(kernel, signature, capability) -> str:
    """The PTX text of a `@cuda.jit` kernel. A fresh dispatcher each time: compiled device functions are kept by it."""
    with pretend_device(capability):
        return cuda.compile_ptx(kernel.py_func, signature, cc=capability)[0]
