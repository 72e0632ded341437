"""Mistakes in the exercises of chapter 4."""

from exercises import Mistake

LOAD = "weight_tile[ty, tx] = decode_bf16(weight[n, k]) if n < N and k < K else float32(0.0)"
EDGE = "trap: the last weight read again past the edge"

MISTAKES = [
    Mistake("04a", "no guard for K", {LOAD: LOAD.replace(" and k < K", "")}, "error"),
    Mistake("04a", "the tile transposed", {LOAD: LOAD.replace("[ty, tx]", "[tx, ty]")}, "small"),
    Mistake("04a", "the same rows of weight in every block", {"n = n0 + ty": "n = ty"}, "full"),
    Mistake("04a", "the same columns in every step", {LOAD: LOAD.replace("[n, k]", "[n, tx]")}, "full"),
    Mistake(
        "04a",
        "an index held back at the edge",
        {LOAD: "weight_tile[ty, tx] = decode_bf16(weight[min(n, N - 1), min(k, K - 1)])"},
        EDGE,
    ),
    Mistake(
        "04a",
        "no zero past the edge after the first tile",
        {LOAD: f"if k0 == 0 or k < K:\n            {LOAD}"},
        "trap: a weight of the tile before left in place",
    ),
    Mistake(
        "04a",
        "a whole row of the tile by every thread",
        {
            LOAD: "for c in range(TILE):\n            weight_tile[ty, c] = "
            "decode_bf16(weight[n, k0 + c]) if n < N and k0 + c < K else float32(0.0)"
        },
        "races",
    ),
    Mistake(
        "04a",
        "a read before the guard",
        {LOAD: f"number = weight[min(n, N - 1), min(k, K - 1)]\n        {LOAD.replace('weight[n, k]', 'number')}"},
        "budget",
    ),
    Mistake(
        "04b",
        "threads without a number of y leave early",
        {"    total = float32(0.0)\n": "    if m >= M or n0 + tx >= N:\n        return\n    total = float32(0.0)\n"},
        "error",
    ),
    Mistake("04b", "column tx of the weight tile", {"weight_tile[tx, i]": "weight_tile[i, tx]"}, "small"),
    Mistake(
        "04b",
        "no barrier after the products",
        {"        cuda.syncthreads()  # everyone has read the tiles before anyone fills them again\n": ""},
        "full",
    ),
    Mistake(
        "04b",
        "the sum rounded after each tile",
        {
            "        cuda.syncthreads()  # everyone has read": "        total = decode_bf16(encode_bf16(total))\n"
            "        cuda.syncthreads()  # everyone has read"
        },
        "full",
    ),
    Mistake(
        "04b",
        "an index held back at the edge",
        {LOAD: "weight_tile[ty, tx] = decode_bf16(weight[n, min(k, K - 1)]) if n < N else float32(0.0)"},
        EDGE,
    ),
    Mistake(
        "04b",
        "y written in every step",
        {"    if m < M and n0 + tx < N:\n        y": "        if m < M and n0 + tx < N:\n            y"},
        "budget",
    ),
    Mistake(
        "04c",
        "the right half without its own guard",
        {"        y[m, n] = encode_bf16(total)": "        y[m, n] = y[m, n + 16] = encode_bf16(total)"},
        "error",
    ),
    Mistake("04c", "half of the weight tile", {"weight_tile[tx + TILE, i]": "weight_tile[tx, i]"}, "full"),
    Mistake(
        "04c",
        "an index held back at the edge",
        {"weight[n0 + r, k]) if n0 + r < N and k < K": "weight[n0 + r, min(k, K - 1)]) if n0 + r < N"},
        EDGE,
    ),
    Mistake(
        "04c",
        "x straight from memory",
        {"x0, x1 = x_tile[ty, i],": "x0, x1 = decode_bf16(x[min(m, M - 1), min(k0 + i, K - 1)]),"},
        "budget",
    ),
]
