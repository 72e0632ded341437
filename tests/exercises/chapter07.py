"""Mistakes of chapter 7 that its checks must find."""

from exercises import Mistake

ROW = "t = max(T - W, 0) + cuda.blockIdx.x"
SLOT = "slot = (start_pos + t) % W"
FLOOR = """    if amax < AMAX_FLOOR:
        amax = AMAX_FLOOR
"""
BYTE = "return uint8(exponent + uint32(mantissa > uint32(0)))"

MISTAKES = [
    Mistake(id="07a", name="counts from the call's first row", changes={SLOT: "slot = t % W"}, caught_by="small"),
    Mistake(
        id="07a",
        name="does not wrap",
        changes={SLOT: "slot = start_pos + t - max(T - W, 0)"},
        caught_by="trap: no wrap after the last slot",
    ),
    Mistake(
        id="07a",
        name="copies the first W rows",
        changes={ROW: "t = cuda.blockIdx.x"},
        caught_by="trap: more rows than slots: the first instead of the last",
    ),
    Mistake(
        id="07a",
        name="slot of the block and not of the row",
        changes={SLOT: "slot = (start_pos + cuda.blockIdx.x) % W if start_pos > 0 else t % W"},
        caught_by="trap: more rows than slots: the skipped ones not counted",
    ),
    Mistake(
        id="07a",
        name="reads what lies in the slot, for nothing",
        changes={"ring[slot, d] = rows[t, d]": "ring[slot, d] = rows[t, d] if ring[slot, d] >= 0 else 0"},
        caught_by="budget",
    ),
    Mistake(
        id="07a",
        name="every block copies every row",
        changes={
            "    if d < D:\n        ring[slot, d] = rows[t, d]": "    if d < D:\n        for t in range(T):\n"
            "            ring[(start_pos + t) % W, d] = rows[t, d]"
        },
        caught_by="races",
    ),
    Mistake(id="07b", name="rounds down", changes={BYTE: "return uint8(exponent)"}, caught_by="small"),
    Mistake(
        id="07b",
        name="rounds to the nearest",
        changes={BYTE: "return uint8(exponent + uint32(mantissa >= uint32(0x400000)))"},
        caught_by="small",
    ),
    Mistake(
        id="07b",
        name="always one more",
        changes={BYTE: "return uint8(exponent + uint32(1))"},
        caught_by="trap: one power too high where the quotient is a power of two",
    ),
    Mistake(id="07b", name="no floor", changes={FLOOR: ""}, caught_by="trap: no floor: zeros"),
    Mistake(
        id="07b",
        name="the floor is for zeros alone",
        changes={"if amax < AMAX_FLOOR": "if amax == 0"},
        caught_by="trap: no floor: subnormal numbers",
    ),
    Mistake(
        id="07b",
        name="nothing for infinity and NaN",
        changes={"    if exponent == 255:\n        return uint8(255)\n": ""},
        caught_by="trap: a NaN's byte wraps round to 0",
    ),
    Mistake(
        id="07b",
        name="no barrier before the numbers are compared",
        changes={"as their values do\n    cuda.syncthreads()\n": "as their values do\n"},
        caught_by="small",
    ),
    Mistake(
        id="07c",
        name="one scale for all threads of the block",
        changes={
            "half = NEIGHBOURS // 2": "half = THREADS // 2",
            "t % NEIGHBOURS < half": "t < half",
            "partial[t - t % NEIGHBOURS]": "partial[0]",
        },
        caught_by="small",
    ),
    Mistake(
        id="07c",
        name="the word read again",
        changes={"y[i] = both(word,": "y[i] = both(x[i],"},
        caught_by="budget",
    ),
    Mistake(
        id="07c",
        name="threads beyond the end leave",
        changes={
            "    word = uint32(0)\n    if i < x.shape[0]:\n        word = x[i]\n": "    if i >= x.shape[0]:\n"
            "        return\n    word = x[i]\n"
        },
        caught_by="trap: threads beyond the last word",
    ),
    Mistake(
        id="07c",
        name="no barrier after a level of the tree",
        changes={"        cuda.syncthreads()\n        half //= 2": "        half //= 2"},
        caught_by="full",
    ),
    Mistake(
        id="07c",
        name="magnitudes compared as numbers",
        changes={
            "max(word & uint32(0x7FFF), (word >> uint32(16)) & uint32(0x7FFF))": "min(max(word & uint32(0x7FFF), "
            "(word >> uint32(16)) & uint32(0x7FFF)), uint32(0x7F7F))"
        },
        caught_by="trap: a NaN loses against numbers",
    ),
    Mistake(
        id="07c",
        name="no floor",
        changes={"if amax < AMAX_FLOOR": "if amax < 0"},
        caught_by="trap: no floor",
    ),
]
