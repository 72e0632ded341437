"""One RoPE table for all layers: those without a ratio must have the plain one. Short prompts still look fine."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.ops.rope",
    changes={"    if compressed:\n": "    if True:\n"},
    replaces=("test_rope.rope_table", "dsv41_numba.stack.rope_table"),
)
