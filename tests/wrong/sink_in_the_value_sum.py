"""The sink brings a value of 1, as if it were one more row, where it may only take weight away."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.ops.sparse_attention",
    changes={"        acc_low[h] = float32(0.0)\n": "        acc_low[h] = float32(1.0)\n"},
    replaces=("dsv41_numba.ops.sparse_attention.sparse_attention_kernel",),
)
