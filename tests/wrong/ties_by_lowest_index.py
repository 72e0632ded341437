"""Equal scores at the cut go to the lowest index, which any sort would do, and torch's selection does not."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.ops.topk",
    changes={
        "            choose(score[t].tolist(), indices, k)\n": "            indices.sort(key=lambda g: -score[t, g])\n"
    },
    replaces=("dsv41_numba.ops.topk.chosen_mask",),
)
