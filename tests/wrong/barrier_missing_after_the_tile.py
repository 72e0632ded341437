"""Tiles that the fast threads fill again while the slow ones still read them; with one tile along K nobody notices."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.ops.linear",
    changes={"    cuda.syncthreads()  # everyone has read the tiles before anyone fills them again\n": ""},
    replaces=("dsv41_numba.ops.linear.linear_kernel",),
)
