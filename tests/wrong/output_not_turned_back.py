"""The attention output is turned on by its position instead of back."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.layer",
    changes={"ops.rope_inverse(o, rope.cos": "ops.rope(o, rope.cos"},
    replaces=("dsv41_numba.stack.forward",),
)
