"""A fp8 linear that takes the weight's scales to be one a row, like the activation's."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.ops.linear_fp8",
    changes={"scale[n // rows, b": "scale[min(n, scale.shape[0] - 1), b"},
    replaces=("dsv41_numba.ops.linear_fp8.linear_fp8_kernel",),
)
