"""show group and show selection: what the pictures say is what the package's code computes."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from dsv41_numba.config import TINY
from dsv41_numba.ops.compress import pool_ref, store_partial_ref
from dsv41_numba.ops.gather import gather_list
from dsv41_numba.ops.topk import candidate_blocks, select
from dsv41_numba.show import draw
from dsv41_numba.show.group import BAR_HEIGHT
from dsv41_numba.show.selection import UNIT, layer_calls, query_scores

SVG = "{http://www.w3.org/2000/svg}"


def tips(name, pattern, **options):
    """Of every shape whose tip matches: the groups of the match, and the shape."""
    root = ET.fromstring(draw(name, **options).svg())
    found = []
    for node in root.iter():
        title = node.find(f"{SVG}title")
        if title is not None and (match := re.fullmatch(pattern, title.text)):
            found.append((match.groups(), node))
    return found


@pytest.mark.parametrize("ratio, dims", [(2, 12), (3, 5)])
def test_show_softmax_of_a_group_fills_each_dimension_with_its_weights(ratio, dims):
    bars = tips(
        "softmax_of_a_group", r"dimension (\d+), token (\d+): score (\S+), weight (\S+)", ratio=ratio, dims=dims
    )
    assert len(bars) == ratio * dims
    score, weight, height = (np.zeros((ratio, dims)) for _ in range(3))
    for (d, i, s, w), bar in bars:
        score[int(i), int(d)], weight[int(i), int(d)] = float(s), float(w)
        height[int(i), int(d)] = float(bar.get("height"))
    exact = np.exp(score) / np.exp(score).sum(0)
    assert weight == pytest.approx(exact, abs=0.003)
    assert height == pytest.approx(BAR_HEIGHT * exact, abs=0.5)
    assert np.ptp(exact[0]) > 0.5  # the dimensions differ


@pytest.mark.parametrize("ratio, prefill, steps", [(2, 3, 4), (4, 6, 3), (3, 2, 5)])
def test_show_partial_group_follows_pool_and_store_partial(ratio, prefill, steps):
    options = {"ratio": ratio, "prefill": prefill, "steps": steps}
    rows = tips("partial_group", r"(.+): pooled row (\d+) is (\S+)", **options)
    slots = tips("partial_group", r"(.+): slot (\d+) holds kv (\S+), score (\S+)", **options)
    kv = np.arange(prefill + steps, dtype=np.float32)[:, None]
    score = (np.arange(prefill + steps, dtype=np.float32) % 3 - 1)[:, None]
    states = np.zeros((ratio, 1), np.float32), np.full((ratio, 1), -np.inf, np.float32)
    all_rows = pool_ref(kv, score, *states, 0)[:, 0]  # in one call
    assert [int(row) for (_, row, _), _ in rows] == list(range(len(all_rows)))
    assert [float(value) for (_, _, value), _ in rows] == pytest.approx(all_rows, abs=1e-4)
    assert len(slots) == ratio * (1 + steps)
    for end in range(prefill, prefill + steps + 1):
        store_partial_ref(kv[:end], score[:end], *states, 0)
        shown = slots[(end - prefill) * ratio : (end - prefill + 1) * ratio]
        assert [float(k) for (_, _, k, _), _ in shown] == list(states[0][:, 0])
        assert [float(s) for (_, _, _, s), _ in shown] == list(states[1][:, 0])
        empty = ["stroke-dasharray" in node.attrib for _, node in shown]
        assert empty == list(np.isneginf(states[1][:, 0]))


@pytest.mark.parametrize(
    "options", [{}, {"seed": 3, "positions": 30, "pos": 25, "k": 5, "topk_blocks": 3, "block_size": 4}]
)
def test_show_score_strip_is_what_select_and_candidate_blocks_answer(options):
    given = {"seed": 5382, "positions": 24, "pos": 19, "k": 6, "topk_blocks": 4, "block_size": 3} | options
    score = query_scores(given["seed"], given["positions"], given["pos"])
    mask = candidate_blocks(score, np.array([given["pos"] + 1]), given["topk_blocks"], given["block_size"])
    chosen = select(score, given["k"], mask)[0]
    bars = tips("score_strip", r"position (\d+): score (\S+), (.+)", **options)
    assert [int(g) for (g, _, _), _ in bars] == list(range(given["positions"]))
    assert [float(value) for (_, value, _), _ in bars] == list(score[0])
    assert [int(g) for (g, _, fate), _ in bars if fate == "chosen"] == list(chosen[chosen >= 0])
    assert all((fate == "not reachable") == (int(g) > given["pos"]) for (g, _, fate), _ in bars)
    assert all(fate != "not a candidate" or not mask[0, int(g)] for (g, _, fate), _ in bars)
    for (_, value, fate), bar in bars:
        if fate != "not reachable":
            assert float(bar.get("height")) == pytest.approx(max(UNIT * abs(float(value)), 3), abs=0.01)
    blocks = tips("score_strip", r"block (\d+): largest score (\S+), (kept|left out)(, pinned)?", **options)
    first = [int(b) * given["block_size"] for (b, _, _, _), _ in blocks]
    assert [kept == "kept" for (_, _, kept, _), _ in blocks] == [bool(mask[0, g]) for g in first]
    assert [float(best) for (_, best, _, _), _ in blocks] == [
        score[0, g : g + given["block_size"]].max() for g in first
    ]
    assert [int(b) for (b, _, _, pin), _ in blocks if pin] == [given["pos"] // given["block_size"]]


def test_show_score_strip_shows_a_tie_a_pin_and_a_position_that_its_block_costs():
    """What chapter 10 says of the picture."""
    fates = {int(g): (float(v), fate) for (g, v, fate), _ in tips("score_strip", r"position (\d+): score (\S+), (.+)")}
    cut = min(value for value, fate in fates.values() if fate == "chosen")
    assert fates[3] == (cut, "tied, left out") and fates[5] == (cut, "chosen")  # not the lowest index
    assert fates[14][0] > cut and fates[14][1] == "not a candidate"
    blocks = tips("score_strip", r"block (\d+): largest score (\S+), (kept|left out)(, pinned)?")
    best = {int(b): float(value) for (b, value, _, _), _ in blocks}
    assert sum(best[6] < value for value in best.values()) >= 4 and blocks[6][0][2:] == ("kept", ", pinned")


@pytest.mark.parametrize("prefill, steps", [(10, 2), (3, 1)])
def test_show_gather_list_is_the_layers(prefill, steps):
    cells = tips("gather_list", r"query (\d+), slot (\d+): (-?\d+), (.+)", prefill=prefill, steps=steps)
    shown = {(int(t), int(s)): (int(i), kind) for (t, s, i, kind), _ in cells}
    runs = layer_calls(prefill, steps, 11)
    assert len(cells) == sum(run.idx.size for run in runs)
    start = 0
    for run in runs:
        T = len(run.idx)
        window = gather_list(TINY.window, start, T, None)
        n_window_rows = T if start == 0 else TINY.window
        for (t, s), i in np.ndenumerate(run.idx):
            kind = "empty slot" if i == -1 else "window row" if s < window.shape[1] else "compressed row"
            assert shown[start + t, s] == (i, kind)
            assert i == -1 or (i < n_window_rows) == (kind == "window row")
        assert (run.idx[:, : window.shape[1]] == window).all()
        assert (run.idx[:, window.shape[1] :] == run.topk).all()
        start += T


def test_show_gather_list_has_a_ring_that_has_wrapped():
    """What chapter 11 says of the picture: a decode step's slots are in the order of positions, not of memory."""
    slots = layer_calls(10, 2, 11)[1].idx[0, : TINY.window]
    assert list(slots) == [p % TINY.window for p in range(3, 11)]
    assert (np.diff(slots) < 0).any()
