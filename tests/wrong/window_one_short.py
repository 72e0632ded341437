"""A prefill window of 127 rows instead of 128: radius taken for size. Shapes stay, and short prompts never see it."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.ops.gather",
    changes={"np.maximum(newest - window + 1, 0)": "np.maximum(newest - window + 2, 0)"},
    replaces=("dsv41_numba.ops.gather.prefill_slots",),
)
