"""Exercise 01b: count what a call must do.

A host function. T tokens come to one layer, at positions start_pos .. start_pos + T - 1. What comes back is
[visible, selected, flops], int64:

visible   pairs of query and window row: a query sees itself and at most cfg.window - 1 tokens before it
selected  pairs of query and compressed row: a query that reaches g compressed positions selects at most cfg.index_topk
          of them. Position p reaches those that are full with it: (p + 1) // ratio
flops     operations of the layer's matrix products, where multiply and add count as two. A linear has
          2 * rows * columns * inner; sparse attention multiplies a row twice (as key, as value) for every pair and
          head; the index score has one dot a reached position and index head.

Given are the linears. Write visible, selected, and the operations of attention and score. The checks want exact
numbers.
"""

import numpy as np

from dsv41_numba.roles import roles
from dsv41_numba.show.dry_run import dry_run
from dsv41_numba.weights import tensor_specs


def spec(cfg, layer, start_pos, T):
    role, run = roles(cfg)[layer], dry_run(cfg, layer, start_pos, T)  # the layer's own forward, without numbers
    visible = sum(min(p + 1, cfg.window) for p in range(start_pos, start_pos + T))
    flops = sum(call.flops for call in run.calls)
    return np.array([visible, run.reads - visible if role.ratio else 0, flops], np.int64)


def linear_flops(cfg, role, start_pos, T):
    """The operations of every weight matrix: each row of input meets all of it, but `wk` only new groups."""
    total = 0
    for name, tensor in tensor_specs(cfg, role).items():
        if len(tensor.shape) == 2:
            new_groups = name == "indexer.wk"
            rows = (start_pos + T) // role.ratio - start_pos // role.ratio if new_groups else T
            total += 2 * rows * tensor.shape[0] * tensor.shape[1]
    return total


def run(cfg, layer, start_pos, T):
    role = roles(cfg)[layer]
    flops = linear_flops(cfg, role, start_pos, T)
    visible = selected = 0
    # CUT visible and selected, then what attention and, on index sources, the score add to flops
    seen = start_pos + 1 + np.arange(T, dtype=np.int64)
    visible = np.minimum(seen, cfg.window).sum()
    if role.ratio:
        reached = seen // role.ratio
        selected = np.minimum(reached, cfg.index_topk).sum()
        if role.is_index_source:
            flops += 2 * reached.sum() * cfg.index_n_heads * cfg.index_head_dim
    flops += 4 * cfg.n_heads * cfg.head_dim * (visible + selected)
    # END
    return np.array([visible, selected, flops], np.int64)
