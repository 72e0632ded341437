"""Index scores that add up negative dots too."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.ops.index_score",
    changes={
        """\
                        if relu < float32(0.0):  # this way round a NaN stays a NaN
                            relu = float32(0.0)
""": ""
    },
    replaces=("dsv41_numba.ops.index_score.index_score_kernel",),
)
