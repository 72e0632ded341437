"""How tokens become one row: the weights of a group, and the group that is not full yet."""

import numpy as np

from dsv41_numba.ops.compress import pool_ref, store_partial_ref
from dsv41_numba.show.svg import Picture

LEFT = 16
BAR, GAP, BAR_HEIGHT, BAR_TOP = 34, 12, 150, 74
CELL, CELL_HEIGHT, ROW, ROW_TOP = 86, 44, 60, 92
TOKEN_COLOURS = ("blue", "orange", "green", "purple")


def softmax_of_a_group(ratio: int = 2, dims: int = 12, seed: int = 9) -> Picture:
    """The weights that one group's tokens get, dimension by dimension."""
    rng = np.random.default_rng(seed)
    score = (1.5 * rng.standard_normal((ratio, dims))).astype(np.float32)
    state = np.zeros((ratio, dims), np.float32)
    # a token's weight is what comes out when its own rows are 1 and all others 0
    weight = np.stack(
        [
            pool_ref(np.repeat(np.eye(ratio, dtype=np.float32)[i][:, None], dims, 1), score, state, state, 0)[0]
            for i in range(ratio)
        ]
    )
    picture = Picture(
        max(LEFT + 68 + (BAR + GAP) * dims, 420),
        BAR_TOP + BAR_HEIGHT + 44,
        f"The weights of {ratio} tokens, one softmax a dimension",
        "; ".join(f"dimension {d}: " + ", ".join(f"{w:.2f}" for w in weight[:, d]) for d in range(dims)),
    )
    picture.text(LEFT, 28, f"{ratio} tokens, {dims} dimensions: a softmax each", bold=True, size=15)
    x = float(LEFT)
    for i in range(ratio):
        picture.rect(x, 42, 14, 14, TOKEN_COLOURS[i % len(TOKEN_COLOURS)], radius=2)
        picture.text(x + 20, 54, f"token {i}")
        x += 90
    for share, label in ((1.0, "1"), (0.5, "1/2"), (0.0, "0")):
        y = BAR_TOP + BAR_HEIGHT * (1 - share)
        picture.text(LEFT + 50, y + 4, label, "quiet", 13, anchor="end", mono=True)
        picture.line(LEFT + 56, y, LEFT + 64 + (BAR + GAP) * dims, y)
    for d in range(dims):
        left, below = LEFT + 64 + (BAR + GAP) * d, float(BAR_TOP + BAR_HEIGHT)
        for i in range(ratio):
            height = BAR_HEIGHT * float(weight[i, d])
            below -= height
            tip = f"dimension {d}, token {i}: score {score[i, d]:.3f}, weight {weight[i, d]:.3f}"
            picture.rect(left, below, BAR, height, TOKEN_COLOURS[i % len(TOKEN_COLOURS)], tip=tip)
        picture.text(left + BAR / 2, BAR_TOP + BAR_HEIGHT + 18, d, "quiet", 13, anchor="middle", mono=True)
    picture.text(LEFT + 50, BAR_TOP + BAR_HEIGHT + 18, "dim", "quiet", 13, anchor="end")
    return picture


def partial_group(ratio: int = 2, prefill: int = 3, steps: int = 4) -> Picture:
    """The states of one dimension over a prefill and some decode steps: what waits, and what comes out."""
    positions = np.arange(prefill + steps)
    kv = positions.astype(np.float32)[:, None]
    score = (positions % 3 - 1).astype(np.float32)[:, None]
    kv_state, score_state = np.zeros((ratio, 1), np.float32), np.full((ratio, 1), -np.inf, np.float32)
    calls = [(0, prefill), *((p, 1) for p in range(prefill, prefill + steps))]
    out_left = LEFT + 150
    state_left = max(out_left + max(prefill // ratio, 1) * (CELL + 6) + 44, 330)
    picture = Picture(
        max(state_left + ratio * (CELL + 6) + 10, 540),
        ROW_TOP + ROW * len(calls),
        f"The group not yet full, at ratio {ratio}",
        f"A prefill of {prefill} tokens and {steps} decode steps; a call completes the groups that end in it.",
    )
    picture.text(LEFT, 28, "One dimension: kv is the position, score runs -1, 0, 1", bold=True, size=15)
    for x, label in ((LEFT, "call"), (out_left, "pooled rows"), (state_left, "waiting after it")):
        picture.text(x, ROW_TOP - 34, label, "quiet", 13)
    for slot in range(ratio):
        middle = state_left + (CELL + 6) * slot + CELL / 2
        picture.text(middle, ROW_TOP - 12, f"slot {slot}", "quiet", 13, anchor="middle")
    for row, (start, T) in enumerate(calls):
        y = ROW_TOP + ROW * row
        arguments = kv[start : start + T], score[start : start + T], kv_state, score_state, start
        pooled = pool_ref(*arguments)[:, 0]
        store_partial_ref(*arguments)
        what = f"prefill 0..{T - 1}" if start == 0 else f"decode {start}"
        picture.text(LEFT, y + CELL_HEIGHT / 2 + 5, what, size=14, bold=True)
        for j, value in enumerate(pooled):
            group = start // ratio + j
            tip = f"{what}: pooled row {group} is {value:.4f}"
            _two_lines(
                picture, out_left + (CELL + 6) * j, y, f"row {group}", f"{value:.2f}", "pale-green", "green", tip
            )
        if len(pooled) == 0:
            picture.text(out_left, y + CELL_HEIGHT / 2 + 5, "none", "quiet", 13)
        for slot in range(ratio):
            x = state_left + (CELL + 6) * slot
            tip = f"{what}: slot {slot} holds kv {kv_state[slot, 0]:g}, score {score_state[slot, 0]:g}"
            empty = bool(np.isneginf(score_state[slot, 0]))
            fill, stroke = ("none", "line") if empty else ("pale-blue", "blue")
            lines = f"kv {kv_state[slot, 0]:g}", f"score {score_state[slot, 0]:g}"
            _two_lines(picture, x, y, *lines, fill, stroke, tip)
    return picture


def _two_lines(picture: Picture, x: float, y: float, above: str, below: str, fill: str, stroke: str, tip: str) -> None:
    """A box of two lines; dashed and quiet without a fill."""
    picture.rect(x, y, CELL, CELL_HEIGHT, fill, stroke, 2, dash="4 3" if fill == "none" else "", tip=tip)
    ink = "quiet" if fill == "none" else "ink"
    picture.text(x + CELL / 2, y + 18, above, ink, 13, anchor="middle", mono=True)
    picture.text(x + CELL / 2, y + 36, below, ink, 13, anchor="middle", mono=True)


PICTURES = {"softmax_of_a_group": softmax_of_a_group, "partial_group": partial_group}
