"""Index keys turned by the number of their group instead of by the position of its first token. Ratio 1 agrees."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.layer",
    changes={
        "eps, *place, state.index_k)": "eps, rope.cos, rope.sin, call.start_pos // role.ratio, 1, state.index_k)",
    },
    replaces=("dsv41_numba.stack.forward",),
)
