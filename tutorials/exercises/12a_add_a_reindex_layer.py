"""Exercise 12a: add the REINDEX layer.

A host function. It gives every layer its role from four entries of a configuration: ratios [n] (tokens a compressed
position, 0 = window only), kv_sources and index_sources (ascending layers), and mask, the layer that publishes the
candidate mask, or -1.

What comes back is [n, 5] int32, a row a layer: its kind, the layer whose rows it reads, the layer whose index keys it
scores, the layer whose selection it uses, the layer whose mask it obeys; -1 where there is no such thing. A layer reads
from the last source at or below it, so a FULL layer reads from itself. SWA, FULL and REUSE are there.
"""

# Check it: dsv41 exercise 12a

import dataclasses

import numpy as np

from dsv41_numba.config import TINY
from dsv41_numba.roles import roles

SWA, FULL, REINDEX, REUSE = range(4)
KINDS = ("SWA", "FULL", "REINDEX", "REUSE")


def spec(ratios, kv_sources, index_sources, mask):
    cfg = dataclasses.replace(
        TINY,
        n_layers=len(ratios),
        compress_ratios=tuple(map(int, ratios)),
        kv_sources=tuple(map(int, kv_sources)),
        index_sources=tuple(map(int, index_sources)),
        candidate_source=None if mask < 0 else mask,
    )
    entries = [(KINDS.index(r.kind), r.kv_source, r.key_source, r.index_source, r.obeys_candidates) for r in roles(cfg)]
    return np.array([[-1 if entry is None else entry for entry in row] for row in entries], np.int32)


def nearest(sources, layer):
    return max(source for source in sources if source <= layer)


def run(ratios, kv_sources, index_sources, mask):
    table = np.full((len(ratios), 5), -1, np.int32)
    for layer, ratio in enumerate(ratios):
        if ratio == 0:
            table[layer, 0] = SWA
            continue
        rows_of, selection_of = nearest(kv_sources, layer), nearest(index_sources, layer)
        obeys = -1
        # YOUR CODE: obeys: the mask's layer, for index sources above it
        if rows_of == layer:
            table[layer] = FULL, layer, layer, layer, obeys
        # YOUR CODE: elif ...: the row of a REINDEX layer, which selects, but takes rows and keys of another layer
        else:
            table[layer] = REUSE, rows_of, -1, selection_of, -1
    return table
