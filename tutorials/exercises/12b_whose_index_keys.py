"""Exercise 12b: whose index keys?

A host function. calls [C, 2] holds start_pos and T of the calls of one sequence, in order; the layers of each call run
in order too. There is one slot for index keys. A layer that makes them (a kv source) puts its cache there, and every
index source scores against what lies in the slot.

owner 0: a kv source publishes only in a call that completes one of its groups of `ratio` tokens. owner 1: it publishes
in every call. What comes back is [C, number of index sources] int32: the layer whose keys each index source scores, -1
where it has no complete group to score yet, end // ratio == 0. A kv source publishes before it scores. What lies in the
slot stays there until somebody publishes again, in this call or in a later one.
"""

# Check it: dsv41 exercise 12b

import numpy as np

from dsv41_numba.roles import roles
from dsv41_numba.show.dry_run import dry_walk


def spec(cfg, calls, owner):
    # the layers' own forward, with arrays that have shapes and no numbers
    walked = dry_walk(cfg, [(int(start_pos), int(T)) for start_pos, T in calls], "owner" if owner else "released")
    keys = [[runs[layer].keys_of for layer in cfg.index_sources] for runs in walked]
    return np.array([[-1 if layer is None else layer for layer in row] for row in keys], np.int32)


def run(cfg, calls, owner):
    table = roles(cfg)
    scored = np.full((len(calls), len(cfg.index_sources)), -1, np.int32)
    slot = -1  # the layer whose keys lie in the slot
    for i, (start_pos, T) in enumerate(calls):
        for j, layer in enumerate(cfg.index_sources):
            role = table[layer]
            # YOUR CODE: who publishes into the slot, and then scored[i, j].
            #  role.is_kv_source and role.ratio say what the layer is
    return scored
