"""A sum by halves whose levels do not wait for each other."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.ops.rmsnorm",
    changes={"        cuda.syncthreads()  # this level is done before the next reads it\n": ""},
    replaces=("dsv41_numba.ops.rmsnorm.rmsnorm_kernel",),
)
