"""Mistakes in the exercises of chapter 10, and the first check that reports each."""

from exercises import Mistake

MISTAKES = [
    Mistake(
        id="10a",
        name="leaves the ReLU out",
        changes={"relu < float32(0.0)": "relu < float32(-1e30)"},
        caught_by="small",
    ),
    Mistake(
        id="10a",
        name="does not round the weighted dot",
        changes={"total += decode_bf16(encode_bf16(relu * w))": "total += relu * w"},
        caught_by="full",
    ),
    Mistake(
        id="10a",
        name="does not round the dot",
        changes={"relu = decode_bf16(encode_bf16(dot[t, h, g]))": "relu = dot[t, h, g]"},
        caught_by="trap: dot not rounded to bf16",
    ),
    Mistake(
        id="10a",
        name="takes the ReLU the way that loses a NaN",
        changes={
            "            if relu < float32(0.0):\n": "            if not (relu > 0.0):\n",
        },
        caught_by="trap: NaN made 0 by the ReLU",
    ),
    Mistake(
        id="10a",
        name="reads the dot twice",
        changes={
            "            if relu < float32(0.0):": "            if relu < float32(0.0) and dot[t, h, g] < float32(0.0):"
        },
        caught_by="budget",
    ),
    Mistake(
        id="10b",
        name="reads past the last position",
        changes={"for g in range(first, min(first + block_size, G)):": "for g in range(first, first + block_size):"},
        caught_by="full",
    ),
    Mistake(
        id="10b",
        name="keeps one block too many",
        changes={"before < topk_blocks": "before <= topk_blocks"},
        caught_by="small",
    ),
    Mistake(
        id="10b",
        name="does not pin the newest block",
        changes={"if first < lens[t] <= first + block_size:": "if first < lens[t] <= 0:"},
        caught_by="trap: newest block, partly filled, not pinned",
    ),
    Mistake(
        id="10b",
        name="pins the newest block only once it is full",
        changes={"if first < lens[t] <= first + block_size:": "if lens[t] == first + block_size:"},
        caught_by="trap: newest block, partly filled, not pinned",
    ),
    Mistake(
        id="10b",
        name="pins the block of position lens[t]",
        changes={"if first < lens[t] <= first + block_size:": "if first <= lens[t] < first + block_size:"},
        caught_by="trap: pin one block too far when the newest is full",
    ),
    Mistake(
        id="10b",
        name="keeps blocks that nobody reaches",
        changes={"if mine > -INF and before < topk_blocks:": "if before < topk_blocks:"},
        caught_by="trap: fewer blocks than asked for",
    ),
    Mistake(
        id="10b",
        name="writes the first position of the next block too",
        changes={"min((block + 1) * block_size, mask.shape[1])": "min((block + 1) * block_size + 1, mask.shape[1])"},
        caught_by="races",
    ),
    Mistake(
        id="10c",
        name="reads the key again for every head",
        changes={"dot += query[h, d] * key[d]": "dot += query[h, d] * decode_bf16(index_k[g, d])"},
        caught_by="budget",
    ),
    Mistake(
        id="10c",
        name="has every thread copy all queries",
        changes={"for i in range(cuda.threadIdx.x, H * D, THREADS):": "for i in range(H * D):"},
        caught_by="races",
    ),
    Mistake(
        id="10c",
        name="copies one number a thread",
        changes={
            "for i in range(cuda.threadIdx.x, H * D, THREADS):": "for i in range(cuda.threadIdx.x, min(H * D, 64), 64):"
        },
        caught_by="full",
    ),
    Mistake(
        id="10c",
        name="forgets the barrier",
        changes={"    cuda.syncthreads()  # the queries are in place before anyone multiplies\n": ""},
        caught_by="small",
    ),
]
