"""-1 shifted past the window rows like any position: nothing becomes the last window row."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.layer",
    changes={"np.where(chosen < 0, -1, chosen + call.n_window_rows)": "(chosen + call.n_window_rows)"},
    replaces=("dsv41_numba.stack.forward",),
)
