"""-1 shifted past the window rows like any position: nothing becomes the last window row."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.ops.topk",
    changes={"np.where(chosen < 0, -1, chosen + offset)": "(chosen + offset)"},
    replaces=("dsv41_numba.ops.topk.shifted",),
)
