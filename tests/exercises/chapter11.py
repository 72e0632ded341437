"""Mistakes in the exercises of chapter 11, and the first check that reports each."""

from exercises import Mistake

MISTAKES = [
    Mistake(
        id="11a",
        name="takes one row more than the window",
        changes={"max(t - window + 1, 0)": "max(t - window, 0)"},
        caught_by="small",
    ),
    Mistake(
        id="11a",
        name="starts the ring at slot 0",
        changes={"slot = int32(position % window)": "slot = int32(s)"},
        caught_by="full",
    ),
    Mistake(
        id="11a",
        name="counts an empty slot from the end of the ring",
        changes={"if position >= 0:": "if position >= -window:"},
        caught_by="trap: slots of positions before the first",
    ),
    Mistake(
        id="11b",
        name="leaves the sink out",
        changes={"denominator = float32(1.0)": "denominator = float32(0.0)"},
        caught_by="small",
    ),
    Mistake(
        id="11b",
        name="gives the sink a row",
        changes={"    highest = sink[t]\n": "    highest = sink[t]\n    acc = rows[0, min(d, D - 1)]\n"},
        caught_by="small",
    ),
    Mistake(
        id="11b",
        name="forgets the barrier after the tile",
        changes={
            "        cuda.syncthreads()  # everyone is done with the tile before the next overwrites it\n": "",
        },
        caught_by="full",
    ),
    Mistake(
        id="11b",
        name="has every thread fill the whole tile",
        changes={
            "        if d < slots:\n": "        for s in range(slots):\n",
            "            tile_logit[d] = logit[t, s0 + d]\n": "            tile_logit[s] = logit[t, s0 + s]\n",
            "            tile_row[d] = idx[t, s0 + d]\n": "            tile_row[s] = idx[t, s0 + s]\n",
        },
        caught_by="races",
    ),
    Mistake(
        id="11b",
        name="starts at -inf and adds the sink at the end",
        changes={
            "    highest = sink[t]\n    denominator = float32(1.0)\n": (
                "    highest = NEG_INF\n    denominator = float32(0.0)\n"
            ),
            "    if d < D:\n        o[t, d] =": (
                "    denominator += float32(math.exp(sink[t] - highest))\n    if d < D:\n        o[t, d] ="
            ),
        },
        caught_by="trap: a leading tile of empty slots: -inf minus -inf",
    ),
    Mistake(
        id="11b",
        name="does not rescale what was summed",
        changes={"factor = float32(math.exp(highest - tile_highest))": "factor = float32(1.0)"},
        caught_by="small",
    ),
    Mistake(
        id="11b",
        name="looks at empty slots for the largest logit",
        changes={
            "            if tile_row[s] != -1:\n                tile_highest = max(": (
                "            if True:\n                tile_highest = max("
            )
        },
        caught_by="trap: the largest logit taken from an empty slot",
    ),
    Mistake(
        id="11b",
        name="reads a row where there is none to read",
        changes={
            "            if tile_row[s] != -1:\n                weight": "            if True:\n                weight",
        },
        caught_by="error",
    ),
    Mistake(
        id="11c",
        name="reads a word of the row twice",
        changes={"high_bf16(q_words[m]) * high_bf16(word)": "high_bf16(q_words[m]) * high_bf16(rows[row, m])"},
        caught_by="budget",
    ),
    Mistake(
        id="11c",
        name="swaps the halves of one operand",
        changes={
            "low_bf16(q_words[m]) * low_bf16(word)": "high_bf16(q_words[m]) * low_bf16(word)",
            "high_bf16(q_words[m]) * high_bf16(word)": "low_bf16(q_words[m]) * high_bf16(word)",
        },
        caught_by="small",
    ),
    Mistake(
        id="11c",
        name="copies as many words as there are slots",
        changes={"(cuda.threadIdx.x, words, THREADS):": "(cuda.threadIdx.x, min(words, idx.shape[1]), THREADS):"},
        caught_by="trap: fewer slots than threads, fewer than words",
    ),
]
