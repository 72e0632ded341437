"""Exercise 01a: name the shapes of the fourteen steps.

A host function. cfg is a geometry, layer one of its layers, and the call brings T tokens that stand at positions
start_pos .. start_pos + T - 1. What comes back is [14, 3] int64: in row i the shape of what step i + 1 makes, filled up
with 0 behind its last axis. A step that this layer does not have, or that makes nothing in this call, is a row of 0.

Four sizes are missing: G, how many compressed positions there are after this call (groups of `ratio` tokens that are
full); n, how many of them this call completes; k, how many positions a query may select; window_slots, how many slots
of the gather list are for the window. A prefill starts at position 0 and its list has no slots that no query could
fill; later calls see the whole ring.
"""

# Check it: dsv41 exercise 01a

import numpy as np

from dsv41_numba.roles import roles
from dsv41_numba.show.dry_run import STEPS, dry_run


def spec(cfg, layer, start_pos, T):
    # the layer's own forward, with arrays that have shapes and no numbers
    run = dry_run(cfg, layer, start_pos, T)
    shapes = np.zeros((14, 3), np.int64)
    for step in STEPS:
        shape = run.shape(step) or ()
        shapes[step - 1, : len(shape)] = shape
    return shapes


def run(cfg, layer, start_pos, T):
    role = roles(cfg)[layer]
    ratio = role.ratio
    G = n = k = window_slots = 0
    # YOUR CODE: G, n, k and window_slots. Layers of ratio 0 have the last alone
    H, D = cfg.n_heads, cfg.head_dim
    by_step = {1: (T, cfg.q_lora_rank), 2: (T, H, D), 3: (T, D)}
    if role.is_kv_source and n > 0:
        by_step |= {4: (n, D), 5: (n, cfg.index_head_dim), 9: (n, D)}
    if role.is_index_source:
        by_step |= {6: (T, cfg.index_n_heads, cfg.index_head_dim), 7: (T, G), 8: (T, k)}
    by_step |= {10: (T, window_slots + k), 11: (T, H, D), 12: (T, H, D)}
    # YOUR CODE: by_step |= {13: ..., 14: ...}: what grouped linear and the last linear make
    shapes = np.zeros((14, 3), np.int64)
    for step, shape in by_step.items():
        shapes[step - 1, : len(shape)] = shape
    return shapes
