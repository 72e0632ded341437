"""A query that sees the group it stands in, though later tokens are part of it: an inclusive bound."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.ops.index_score",
    changes={"min((start_pos + t + 1) // ratio, G)": "min((start_pos + t) // ratio + 1, G)"},
    replaces=("dsv41_numba.ops.index_score.index_score_kernel",),
)
