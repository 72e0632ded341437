"""The sink is scaled by head_dim**-0.5 like the logits beside it."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.ops.sparse_attention",
    changes={"max(attn_sink[h0 + head], LOWEST)": "max(attn_sink[h0 + head] * scale, LOWEST)"},
    replaces=("dsv41_numba.ops.sparse_attention.sparse_attention_kernel",),
)
