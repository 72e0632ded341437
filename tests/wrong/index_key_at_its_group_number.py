"""Index keys turned by the number of their group instead of by the position of its first token. Ratio 1 agrees."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.layer",
    changes={
        "ops.rope_in_place(key, rope.cos, rope.sin, group_pos, role.ratio)": (
            "ops.rope_in_place(key, rope.cos, rope.sin, first)"
        )
    },
    replaces=("dsv41_numba.stack.forward",),
)
