"""A fp8 linear that adds the blocks of K from the last to the first."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.ops.linear_fp8",
    changes={"range(K // BLOCK):\n        # to fill": "range(K // BLOCK - 1, -1, -1):\n        # to fill"},
    replaces=("dsv41_numba.ops.linear_fp8.linear_fp8_kernel",),
)
