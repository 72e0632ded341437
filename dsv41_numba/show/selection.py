"""Which rows a query reads: its scores with the blocks and the cut, and the gather list that the attention gets."""

import functools

import numpy as np

from dsv41_numba.config import TINY
from dsv41_numba.data import golden
from dsv41_numba.formats.bf16 import as_bf16
from dsv41_numba.layer import AttnV41Run
from dsv41_numba.ops import REFERENCE
from dsv41_numba.ops.index_score import index_score_ref
from dsv41_numba.ops.topk import candidate_blocks, select
from dsv41_numba.show.svg import Picture
from dsv41_numba.stack import AttnV41
from dsv41_numba.weights import Checkpoint

LEFT, BAR, UNIT, TOP = 28, 25, 34, 92  # BAR: width of a position; UNIT: height of a score of 1
FIRST_SOURCE = 2  # the first layer of TINY that selects
CELL, CELL_HEIGHT, LIST_LEFT, LIST_TOP = 36, 26, 90, 108


def query_scores(seed: int = 5382, positions: int = 24, pos: int = 19) -> np.ndarray:
    """[1, positions] f32: what index_score makes of two heads of random signs, one with a negative weight.

    Dots of signs are small whole numbers, so equal scores are frequent, as they are with fp4 codes.
    """
    rng = np.random.default_rng(seed)
    index_q, index_k = (np.sign(rng.standard_normal(shape)) for shape in ((1, 2, 32), (positions, 32)))
    index_w = as_bf16(np.array([[0.25, -0.125]], np.float32))
    return index_score_ref(as_bf16(index_q.astype(np.float32)), index_w, as_bf16(index_k.astype(np.float32)), pos, 1)


def score_strip(
    seed: int = 5382, positions: int = 24, pos: int = 19, k: int = 6, topk_blocks: int = 4, block_size: int = 3
) -> Picture:
    """One query's scores, the candidate blocks with the pin, and the top-k among them."""
    score = query_scores(seed, positions, pos)
    reach = pos + 1
    mask = candidate_blocks(score, np.array([reach]), topk_blocks, block_size)
    chosen = {int(g) for g in select(score, k, mask)[0] if g >= 0}
    cut = min((float(score[0, g]) for g in chosen), default=0.0)
    tied = [g for g in range(positions) if mask[0, g] and score[0, g] == cut]
    highest, lowest = float(score[0, :reach].max()), float(min(score[0, :reach].min(), 0.0))
    base, bottom = TOP + UNIT * highest, TOP + UNIT * (highest - lowest) + 8
    picture = Picture(
        max(LEFT + BAR * positions + 12, 560),
        bottom + 122,
        "One query's scores: candidate blocks, the pin and the cut",
        f"Chosen: {sorted(chosen)}. The cut is at {cut:g}, where {tied} are tied.",
    )
    picture.text(16, 28, f"The query at position {pos}: the best {k} in {topk_blocks} blocks", bold=True, size=15)
    newest = (reach - 1) // block_size
    for first in range(0, positions, block_size):
        block, kept = first // block_size, bool(mask[0, first])
        width = BAR * min(block_size, positions - first) - 4
        best = score[0, first : first + block_size].max()
        tip = f"block {block}: largest score {best:g}, {'kept' if kept else 'left out'}"
        tip += ", pinned" if block == newest else ""
        left = LEFT + BAR * first
        picture.rect(left, TOP - 40, width, bottom - TOP + 66, "pale-green" if kept else "pale", radius=4, tip=tip)
        label = "pinned" if block == newest else f"{best:g}" if np.isfinite(best) else ""
        picture.text(left + width / 2, TOP - 22, label, "ink" if kept else "quiet", 13, anchor="middle", mono=True)
    picture.line(LEFT - 6, base, LEFT + BAR * positions, base, "quiet")
    for g in range(positions):
        left, value = LEFT + BAR * g + 2, float(score[0, g])
        fate, fill, stroke = _fate(g, value, bool(mask[0, g]), chosen, tied)
        tip = f"position {g}: score {value:g}, {fate}"
        if np.isneginf(value):
            picture.rect(left, base - 8, BAR - 8, 16, "none", "quiet", 2, dash="3 3", tip=tip)
        else:
            height = max(UNIT * abs(value), 3.0)
            picture.rect(left, base - height if value >= 0 else base, BAR - 8, height, fill, stroke, 1, 2, tip=tip)
        picture.text(left + BAR / 2 - 4, bottom + 18, g, "quiet", 13, anchor="middle", mono=True)
    y = base - UNIT * cut
    picture.line(LEFT - 6, y, LEFT + BAR * positions, y, "red", 2, dash="6 4")
    taken = len(chosen.intersection(tied))
    told = f"cut at {cut:g}: {len(tied)} tied, {taken} taken" if len(tied) > taken else f"cut at {cut:g}"
    picture.text(LEFT, bottom + 50, told, "red", 14, bold=True)
    x = float(LEFT)
    legend = [("green", "", "chosen"), ("pale-orange", "orange", "tied, left out"), ("blue", "", "not chosen")]
    for fill, stroke, label in [*legend, ("none", "quiet", "not reachable")]:
        picture.rect(x, bottom + 69, 14, 14, fill, stroke or "none", 2, dash="3 3" if fill == "none" else "")
        picture.text(x + 20, bottom + 81, label)
        x += 40 + 7.2 * len(label)
    picture.text(LEFT, bottom + 106, "Green ground: a candidate block, with its largest score. Grey: not one.", "quiet")
    return picture


def _fate(g: int, value: float, candidate: bool, chosen: set[int], tied: list[int]) -> tuple[str, str, str]:
    """What became of a position, and its colours."""
    if g in chosen:
        return "chosen", "green", "none"
    if np.isneginf(value):
        return "not reachable", "none", "none"
    if g in tied:
        return "tied, left out", "pale-orange", "orange"
    return "not chosen" if candidate else "not a candidate", "blue", "none"


@functools.lru_cache(8)
def layer_calls(prefill: int, steps: int, seed: int) -> list[AttnV41Run]:
    """Runs of TINY's first selecting layer, on random input: a prefill, then decode steps."""
    model = AttnV41(TINY, Checkpoint(golden("tiny-weights.safetensors"), cfg=TINY).layer, REFERENCE,
                    layers=[FIRST_SOURCE])  # fmt: skip
    rng = np.random.default_rng(seed)
    runs = []
    for T in (prefill, *[1] * steps):
        x = as_bf16(rng.standard_normal((T, TINY.dim)).astype(np.float32))
        runs += [step.run for step in model.walk({FIRST_SOURCE: x})]
    return runs


def gather_list(prefill: int = 10, steps: int = 2, seed: int = 11) -> Picture:
    """The gather lists of the tiny geometry's first selecting layer: a prefill, and decode steps after it."""
    runs = layer_calls(prefill, steps, seed)
    columns = max(run.idx.shape[1] for run in runs)
    rows = prefill + steps
    picture = Picture(
        max(LIST_LEFT + CELL * columns + 76, 560),
        LIST_TOP + CELL_HEIGHT * rows + 30 * steps + 12,
        f"The gather list of layer {FIRST_SOURCE}, tiny geometry",
        f"A prefill of {prefill} tokens and {steps} decode steps; -1 is an empty slot.",
    )
    picture.text(16, 28, "Which rows each query reads", bold=True, size=15)
    x = 16.0
    legend = [("pale-blue", "blue", "window row"), ("pale-orange", "orange", "compressed row"), ("none", "line", "-1")]
    for fill, stroke, label in [*legend, ("pale-purple", "purple", "the sink, no row")]:
        picture.rect(x, 43, 14, 14, fill, stroke, 2, dash="3 3" if fill == "none" else "")
        picture.text(x + 20, 55, label)
        x += 42 + 7.2 * len(label)
    y, start = float(LIST_TOP), 0
    for number, run in enumerate(runs):
        T, S = run.idx.shape
        window = min(T, TINY.window) if start == 0 else TINY.window
        n_window_rows = T if start == 0 else TINY.window
        what = ("prefill", "its own") if start == 0 else ("decode", "the ring")
        told = f"{what[0]}: rows 0..{n_window_rows - 1} are {what[1]}, rows from {n_window_rows} on are compressed"
        picture.text(16, y - 10, told, "quiet", 13)
        for t in range(T):
            picture.text(16, y + 18, f"query {start + t}", size=13, bold=True)
            for s in range(S):
                i, left = int(run.idx[t, s]), LIST_LEFT + CELL * s
                kind = "empty slot" if i == -1 else "window row" if s < window else "compressed row"
                tip = f"query {start + t}, slot {s}: {i}, {kind}"
                if i == -1:
                    picture.rect(left, y, CELL - 4, CELL_HEIGHT - 4, "none", "line", 2, dash="3 3", tip=tip)
                    picture.text(left + 16, y + 16, "-1", "quiet", 13, anchor="middle", mono=True)
                else:
                    fill, stroke = ("pale-blue", "blue") if s < window else ("pale-orange", "orange")
                    picture.cell(left, y, CELL - 4, CELL_HEIGHT - 4, i, fill, stroke, tip=tip)
            picture.cell(LIST_LEFT + CELL * columns + 8, y, 50, CELL_HEIGHT - 4, "sink", "pale-purple", "purple")
            y += CELL_HEIGHT
        start += T
        y += 30 if number + 1 < len(runs) else 0
    return picture


PICTURES = {"score_strip": score_strip, "gather_list": gather_list}
