"""Mistakes of chapter 2 that its checks must find."""

from exercises import Mistake

WALK = """    d = t
    while d < D:
        x_d = decode_bf16(x[r, d])
        part += x_d * x_d
        d += THREADS
"""
WAIT = "        # CUT place 2: a barrier, or nothing\n        cuda.syncthreads()\n"
LAST = "        # CUT place 5: a barrier, or nothing\n        cuda.syncthreads()\n"

MISTAKES = [
    Mistake(
        id="02a",
        name="no guard",
        changes={WALK: WALK.replace("while d < D:", "for _ in range((D + THREADS - 1) // THREADS):")},
        caught_by="error",
    ),
    Mistake(
        id="02a",
        name="whole strides alone",
        changes={WALK: WALK.replace("while d < D:", "for _ in range(D // THREADS):")},
        caught_by="small",
    ),
    Mistake(
        id="02a",
        name="two columns a thread",
        changes={WALK: WALK.replace("while d < D:", "while d < min(D, 2 * THREADS):")},
        caught_by="trap: column 256 is nobody's",
    ),
    Mistake(
        id="02a",
        name="the last column once more where there is none",
        changes={
            WALK: WALK.replace("while d < D:", "for _ in range((D + THREADS - 1) // THREADS):").replace(
                "x[r, d]", "x[r, min(d, D - 1)]"
            )
        },
        caught_by="small",
    ),
    Mistake(
        id="02a",
        name="reads each number twice",
        changes={"        part += x_d * x_d\n": "        part += x_d * decode_bf16(x[r, d])\n"},
        caught_by="budget",
    ),
    Mistake(
        id="02b",
        name="adds before the parts are in place",
        changes={WAIT: ""},
        caught_by="small",
    ),
    Mistake(
        id="02b",
        name="levels run into each other",
        changes={"            cuda.syncthreads()\n            # END\n            half //= 2": "            half //= 2"},
        caught_by="small",
    ),
    Mistake(
        id="02b",
        name="a barrier inside the if",
        changes={"                # CUT place 3: a barrier, or nothing\n": "                cuda.syncthreads()\n"},
        caught_by="error",
    ),
    Mistake(
        id="02b",
        name="no barrier before the next row",
        changes={LAST: ""},
        caught_by="trap: the next row's parts meet this row's sum",
    ),
    Mistake(
        id="02b",
        name="a barrier too early, before the sum is read",
        changes={
            LAST: "",
            "        for d in range(t, x.shape[1], THREADS):\n            y[r": (
                "        cuda.syncthreads()\n        for d in range(t, x.shape[1], THREADS):\n            y[r"
            ),
        },
        caught_by="trap: the next row's parts meet this row's sum",
    ),
    Mistake(
        id="02c",
        name="four exchanges",
        changes={"range(5)": "range(4)"},
        caught_by="small",
    ),
    Mistake(
        id="02c",
        name="begins at 8",
        changes={"range(5)": "range(4)", "16 >> bit": "8 >> bit"},
        caught_by="full",
    ),
    Mistake(
        id="02c",
        name="every lane stores",
        changes={"    if lane == 0:\n        warp_sums[warp] = part\n": "    warp_sums[warp] = part\n"},
        caught_by="races",
    ),
    Mistake(
        id="02c",
        name="does not wait",
        changes={"    cuda.syncthreads()  # the four sums are in place before anyone adds\n": ""},
        caught_by="races",
    ),
    Mistake(
        id="02c",
        name="the first warp's sum alone",
        changes={"        total += warp_sums[w]\n": "        total = warp_sums[0]\n"},
        caught_by="full",
    ),
]
