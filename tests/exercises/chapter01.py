"""Mistakes in the exercises of chapter 1, and the first check that reports each."""

from exercises import Mistake

MISTAKES = [
    Mistake(
        id="01a",
        name="counts a group that has begun",
        changes={"G = (start_pos + T) // ratio": "G = -(-(start_pos + T) // ratio)"},
        caught_by="small",
    ),
    Mistake(
        id="01a",
        name="selects every position",
        changes={"k = min(cfg.index_topk, G)": "k = G"},
        caught_by="full",
    ),
    Mistake(
        id="01a",
        name="gives a short prefill the whole window",
        changes={"cfg.window if start_pos else min(T, cfg.window)": "cfg.window"},
        caught_by="trap: window slots that no query can fill",
    ),
    Mistake(
        id="01a",
        name="selects index_topk whatever there is",
        changes={"k = min(cfg.index_topk, G)": "k = cfg.index_topk"},
        caught_by="trap: more selected than there are",
    ),
    Mistake(
        id="01a",
        name="reads only the filled slots of the ring",
        changes={"cfg.window if start_pos else min(T, cfg.window)": "min(start_pos + T, cfg.window)"},
        caught_by="trap: a decode before the ring is full",
    ),
    Mistake(
        id="01a",
        name="takes new groups for T over ratio",
        changes={"n = G - start_pos // ratio": "n = T // ratio"},
        caught_by="trap: groups counted from this call's tokens alone",
    ),
    Mistake(
        id="01a",
        name="completes a group in every call",
        changes={"n = G - start_pos // ratio": "n = max(G - start_pos // ratio, 1)"},
        caught_by="trap: a group that is not full yet",
    ),
    Mistake(
        id="01a",
        name="knows ratios 1 and 2 alone",
        changes={"    ratio = role.ratio\n": "    ratio = min(role.ratio, 2)\n"},
        caught_by="trap: takes every ratio for 2 or 1",
    ),
    Mistake(
        id="01b",
        name="lets every query see a whole window",
        changes={"visible = np.minimum(seen, cfg.window).sum()": "visible = T * cfg.window"},
        caught_by="small",
    ),
    Mistake(
        id="01b",
        name="attends to every compressed position",
        changes={"selected = np.minimum(reached, cfg.index_topk).sum()": "selected = reached.sum()"},
        caught_by="full",
    ),
    Mistake(
        id="01b",
        name="scores on every layer with a ratio",
        changes={"        if role.is_index_source:\n": "        if role.ratio:\n"},
        caught_by="trap: counts a score on a layer that takes its selection",
    ),
    Mistake(
        id="01b",
        name="takes ratio 0 for 1",
        changes={
            "    if role.ratio:\n        reached": "    if True:\n        reached",
            "seen // role.ratio": "seen // max(role.ratio, 1)",
        },
        caught_by="trap: compressed positions on a layer of ratio 0",
    ),
    Mistake(
        id="01b",
        name="takes the ring for full after the first call",
        changes={
            "visible = np.minimum(seen, cfg.window).sum()": (
                "visible = T * cfg.window if start_pos else np.minimum(seen, cfg.window).sum()"
            )
        },
        caught_by="trap: a decode before the ring is full",
    ),
    Mistake(
        id="01b",
        name="names a field that the geometry has not",
        changes={"cfg.index_topk).sum()": "cfg.topk).sum()"},
        caught_by="error",
    ),
]
