"""Empty slots clamped to row 0, so that loads stay in range, and then not left out."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.ops.sparse_attention",
    changes={"slot_row[t] = idx[token, s0 + t]": "slot_row[t] = max(idx[token, s0 + t], int32(0))"},
    replaces=("dsv41_numba.ops.sparse_attention.sparse_attention_kernel",),
)
