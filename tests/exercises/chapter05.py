"""Mistakes of chapter 5 that its checks must find."""

from exercises import Mistake

A1, A2 = "a1 = pair(x, m0 + g + 8, k0 + 2 * t)", "a2 = pair(x, m0 + g, k0 + 2 * t + 8)"
STORE = """    for r in range(4):
        m, n = m0 + g + r // 2 * 8, n0 + 2 * t + r % 2
        if m < y.shape[0] and n < y.shape[1]:
            y[m, n] = encode_bf16(sums[r])
"""
INDENTED = "".join(f"    {line}\n" for line in STORE.splitlines())

MISTAKES = [
    Mistake(
        id="05a",
        name="rows swapped with columns",
        changes={"a0 = pair(x, m0 + g, k0 + 2 * t)": "a0 = pair(x, m0 + 2 * t, k0 + g)"},
        caught_by="small",
    ),
    Mistake(
        id="05a",
        name="halves of k swapped",
        changes={A1: "a1 = pair(x, m0 + g, k0 + 2 * t + 8)", A2: "a2 = pair(x, m0 + g + 8, k0 + 2 * t)"},
        caught_by="full",
    ),
    Mistake(
        id="05a",
        name="8 rows further down read without pair's guard",
        changes={A1: "a1 = uint32(x[m0 + g + 8, k0 + 2 * t]) | uint32(x[m0 + g + 8, k0 + 2 * t + 1]) << uint32(16)"},
        caught_by="error",
    ),
    Mistake(
        id="05a",
        name="second word of the row read without pair's guard",
        changes={A2: "a2 = uint32(x[m0 + g, k0 + 2 * t + 8]) | uint32(x[m0 + g, k0 + 2 * t + 9]) << uint32(16)"},
        caught_by="trap: reads past the last row",
    ),
    Mistake(
        id="05a",
        name="each word read twice",
        changes={A2: f"{A2} | pair(x, m0 + g, k0 + 2 * t + 8)"},
        caught_by="budget",
    ),
    Mistake(id="05b", name="columns 8 apart", changes={"n0 + 2 * t + r % 2": "n0 + t + r % 2 * 4"}, caught_by="small"),
    Mistake(
        id="05b",
        name="registers 1 and 2 swapped",
        changes={"m0 + g + r // 2 * 8, n0 + 2 * t + r % 2": "m0 + g + r % 2 * 8, n0 + 2 * t + r // 2"},
        caught_by="small",
    ),
    Mistake(
        id="05b",
        name="sums begin anew in every step",
        changes={"b0, b1, sums[0], sums[1], sums[2], sums[3]": "b0, b1, " + ", ".join(["float32(0.0)"] * 4)},
        caught_by="full",
    ),
    Mistake(
        id="05b",
        name="stored inside the loop over K",
        changes={STORE: INDENTED},
        caught_by="trap: nothing is written where K is 0",
    ),
    Mistake(
        id="05b",
        name="guards the pair by its first column",
        changes={"n < y.shape[1]": "n - r % 2 < y.shape[1]"},
        caught_by="trap: writes pairs where N is odd",
    ),
    Mistake(
        id="05c",
        name="the number changes every four rows",
        changes={"(chunk ^ (row // 2 % 4)) * 4": "(chunk ^ (row // 4 % 4)) * 4"},
        caught_by="small",
    ),
    Mistake(
        id="05c",
        name="the number changes every row",
        changes={"(chunk ^ (row // 2 % 4)) * 4": "(chunk ^ (row % 4)) * 4"},
        caught_by="small",
    ),
    Mistake(
        id="05c",
        name="two chunks in one place",
        changes={"(chunk ^ (row // 2 % 4)) * 4": "(chunk | (row // 2 % 4)) * 4"},
        caught_by="small",
    ),
    Mistake(
        id="05c",
        name="no barrier before the slab is read",
        changes={"    cuda.syncthreads()  # the slab is whole before any row of it is read\n": ""},
        caught_by="small",
    ),
]
