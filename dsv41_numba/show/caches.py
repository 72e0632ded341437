"""What a layer's caches hold after each call of a sequence: the ring, the group not yet full, the compressed rows."""

import functools

import numpy as np

from dsv41_numba.config import TINY
from dsv41_numba.data import golden
from dsv41_numba.formats.bf16 import as_bf16
from dsv41_numba.ops import REFERENCE
from dsv41_numba.roles import roles
from dsv41_numba.show.svg import Picture
from dsv41_numba.stack import AttnV41
from dsv41_numba.weights import Checkpoint

LEFT, TOP = 110, 92
CELL, HEIGHT, ROW, GAP = 30, 26, 36, 26


def held(layer: int, prefill: int, steps: int, seed: int) -> list[dict[str, list[int]]]:
    """After each call, which position (compressed rows: which group) lies in each slot; -1 where nothing does.

    Nothing is worked out: every row that the layer makes is noted as it comes by, and then looked up in the caches.
    """
    role = roles(TINY)[layer]
    sources = (role.kv_source, role.index_source, role.obeys_candidates)
    needed = sorted({layer, *(source for source in sources if source is not None)})
    weights = Checkpoint(golden("tiny-weights.safetensors"), cfg=TINY).layer
    model = AttnV41(TINY, weights, REFERENCE, "owner", layers=needed)
    rng = np.random.default_rng(seed)
    known: dict[str, list[np.ndarray]] = {"ring": [], "group": [], "rows": [], "keys": []}
    found = []
    for T in (prefill, *[1] * steps):
        x = as_bf16(rng.standard_normal((T, TINY.dim)).astype(np.float32))
        *_, step = [step for step in model.walk(dict.fromkeys(needed, x)) if step.role.layer == layer]
        made = {"ring": step.run.kv, "group": step.run.comp_kv, "rows": step.run.latent_q, "keys": step.run.index_k}
        for name, rows in made.items():
            known[name] += [] if rows is None else [np.array(row) for row in rows]
        state = model.states[layer]
        caches = {"ring": state.window, "group": state.kv_state, "rows": state.compress_kv, "keys": state.index_k}
        after = {name: _numbers(cache, known[name]) for name, cache in caches.items() if cache is not None}
        if state.score_state is not None:  # a slot without a token has score -inf
            empty = np.isneginf(state.score_state).all(-1)
            after["group"] = [-1 if nothing else n for n, nothing in zip(after["group"], empty)]
        found.append(after)
    return found


@functools.lru_cache(8)
def _held(layer: int, prefill: int, steps: int, seed: int) -> tuple[dict[str, list[int]], ...]:
    return tuple(held(layer, prefill, steps, seed))


def _numbers(cache: np.ndarray, known: list[np.ndarray]) -> list[int]:
    """For each row of a cache the number of the made row that it is, -1 for none."""
    places = {row.tobytes(): i for i, row in enumerate(known)}
    return [places.get(np.ascontiguousarray(row).tobytes(), -1) for row in cache]


def caches(layer: int = 2, prefill: int = 5, steps: int = 8, seed: int = 12) -> Picture:
    """The caches of one layer of the tiny geometry after a prefill and each decode step after it."""
    if not 0 <= layer < TINY.n_layers:
        raise ValueError(f"layer: expected one within 0..{TINY.n_layers - 1}, got {layer}")
    role, calls = roles(TINY)[layer], _held(layer, prefill, steps, seed)
    columns = {name: len(slots) for name, slots in calls[0].items()}
    filled = 1 + max((n for call in calls for name in ("rows", "keys") for n in call.get(name, [-1])), default=-1)
    for name in ("rows", "keys"):
        if name in columns:
            columns[name] = filled
    columns.pop("keys", None)  # one beside every compressed row: drawn as one box
    widths = {name: CELL * count for name, count in columns.items()}
    picture = Picture(
        max(LEFT + sum(widths.values()) + GAP * len(widths), 480),
        TOP + ROW * len(calls) + 4,
        f"The caches of layer {layer}, {role.kind}, as they fill",
        "; ".join(
            f"call {i}: " + ", ".join(f"{name} {call[name][:n]}" for name, n in columns.items())
            for i, call in enumerate(calls)
        ),
    )
    picture.text(16, 28, f"Layer {layer}, {role.kind}, ratio {role.ratio}, after each call", size=16, bold=True)
    titles = {"ring": "window ring: position", "group": "group", "rows": "rows and keys: group"}
    x = float(LEFT)
    lefts = {}
    for name, width in widths.items():
        lefts[name] = x
        picture.text(x, 62, titles[name], "quiet", 14)
        for slot in range(columns[name]):
            picture.text(x + CELL * slot + CELL / 2 - 2, 82, slot, "quiet", 12, anchor="middle", mono=True)
        x += width + GAP
    end = 0
    before: dict[str, list[int]] = {name: [-1] * count for name, count in columns.items()}
    for i, call in enumerate(calls):
        y, T = TOP + ROW * i, prefill if i == 0 else 1
        what = f"0..{T - 1}" if i == 0 else f"{end}"
        end += T
        picture.text(16, y + 18, what, "ink", 14, True)
        for name, count in columns.items():
            for slot, n in enumerate(call[name][:count]):
                new = n != before[name][slot]
                fill, stroke = ("none", "line") if n < 0 else ("pale-green", "green") if new else ("pale", "line")
                tip = f"after {what}: {name} slot {slot} " + ("is empty" if n < 0 else f"holds {n}")
                picture.cell(lefts[name] + CELL * slot, y, CELL - 4, HEIGHT, "" if n < 0 else n, fill, stroke, tip=tip)
            before[name] = call[name][:count]
    return picture


PICTURES = {"caches": caches}
