"""The index key made from the rotated latent: step 9 before step 5."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.layer",
    changes={
        "ops.linear(latent, indexer.wk)": """\
ops.linear(ops.rope(latent.reshape(n, 1, cfg.head_dim), rope.cos, rope.sin, group_pos, role.ratio)
            .reshape(n, cfg.head_dim), indexer.wk)"""
    },
    replaces=("dsv41_numba.stack.forward",),
)
