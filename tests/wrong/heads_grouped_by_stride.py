"""Group g projects every n_groups-th column instead of a run of neighbouring heads."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.ops.grouped_linear",
    changes={"o[m, g * K + k]": "o[m, k * og.shape[1] + g]"},
    replaces=("dsv41_numba.ops.grouped_linear.grouped_linear_kernel",),
)
