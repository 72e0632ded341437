"""The index key made from the rotated latent: step 9 before step 5."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.layer",
    changes={
        "ops.linear(latent, indexer.wk)": """\
ops.linear(ops.rope(latent.reshape(n, 1, -1), rope.cos, rope.sin, call.start_pos // role.ratio * role.ratio, role.ratio)
            .reshape(n, -1), indexer.wk)"""
    },
    replaces=("dsv41_numba.stack.forward",),
)
