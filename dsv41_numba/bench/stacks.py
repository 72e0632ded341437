"""Layers together: one token through all of them as a CUDA graph, and a long prompt through one of each kind in chunks.

Weights and caches are random, and every layer has an input of its own, as in the layers' rows.
"""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda

from dsv41_numba.bench.cases import position
from dsv41_numba.bench.inputs import Draw
from dsv41_numba.bench.layers import filled_state, floor, random_layer_weights
from dsv41_numba.bench.measure import Row
from dsv41_numba.bench.timing import Time, host_time
from dsv41_numba.bench.verify import Verdict, spread, take, verify
from dsv41_numba.config import AttnV41Cfg
from dsv41_numba.layer import AttnV41Run, OutRun, forward
from dsv41_numba.ops import REFERENCE
from dsv41_numba.roles import roles
from dsv41_numba.runtime import backend
from dsv41_numba.stack import AttnV41
from dsv41_numba.tuned import TUNED
from dsv41_numba.tuned.decode_step import DecodeGraph

PROMPT, CHUNK = 32768, 2048
CONTEXT = 131072


@dataclass(frozen=True)
class Stack:
    """What a row does not say: layers, tokens a second, launches of one step (of each kind), bytes on the device and of
    them those of the caches."""

    what: str
    layers: int
    tokens_per_s: float
    launches: tuple[int, ...]
    memory_bytes: int
    cache_bytes: int


def measure_decode(cfg: AttnV41Cfg, context: int = CONTEXT, cache: str = "bf16") -> tuple[Row, Stack]:
    """One token through all layers at the end of a context, by the host's clock: the mean of the kinds of steps.

    Held to the same step launched kernel by kernel: the same bits.
    """
    cfg, draw, before = dataclasses.replace(cfg, max_seq=context), Draw(3), used_bytes()
    model = random_model(cfg, range(cfg.n_layers), draw, cache)
    kinds = int(np.lcm.reduce([role.ratio for role in roles(cfg) if role.ratio]))
    start = context - kinds  # completes no group: a step that can be made twice leaves the same caches
    move_to(model, start)
    for layer in model.layers:
        model.sequence.states[layer] = filled_state(cfg, model.roles[layer], start, draw, cache)
    x = np.stack([backend.to_host(draw.bf16(1, cfg.dim)) for _ in model.layers]).view(REFERENCE.bf16)
    expected = model.decode(dict(zip(model.layers, x)))
    move_to(model, start)
    graph = DecodeGraph(model)
    got = graph.decode(dict(zip(model.layers, x)))
    differ = sum(int(np.count_nonzero(got[n].view(np.uint16) != expected[n].view(np.uint16))) for n in model.layers)
    verdict = Verdict("decode", sum(out.size for out in got.values()), differ, 0)
    floors = [floor(cfg, model.roles[layer], 1, position(context), cache) for layer in model.layers]
    bytes_, flops = np.sum(floors, axis=0)
    name = f"stack {len(model.layers)} layers{' packed' if cache == 'packed' else ''}"
    row = Row(TUNED.name, name, f"decode {context}", "graph", None, int(bytes_), int(flops), verdict)

    def every_kind() -> None:
        for kind in range(kinds):
            model.sequence.position = start + kind
            graph.step.set_position()
            graph.run()

    of_all = host_time(every_kind)
    row = dataclasses.replace(row, time=Time.of([of_all.low_ms / kinds, of_all.ms / kinds, of_all.high_ms / kinds], 1))
    assert row.time is not None
    launches = tuple(graph.launches[kind] for kind in sorted(graph.launches))
    rate, used = 1e3 / row.time.ms, used_bytes() - before
    return row, Stack(f"{name}, {row.case}", len(model.layers), rate, launches, used, cache_bytes(model))


def measure_prompt(cfg: AttnV41Cfg, tokens: int = PROMPT, chunk: int = CHUNK) -> tuple[Row, Stack]:
    """A prompt in chunks through one layer of each kind, and the last layers' sources; by the host's clock.

    Of the first, the middle and the last chunk, scores and selections of sampled rows are held to the references.
    """
    cfg, draw, before = dataclasses.replace(cfg, max_seq=tokens), Draw(4), used_bytes()
    model = random_model(cfg, one_of_each(cfg), draw)
    verdicts: list[Verdict] = []
    starts = range(0, tokens, chunk)
    for first, layer, run in walk(model, starts, chunk, draw, whole=True):
        if model.roles[layer].is_index_source and first in (starts[0], starts[len(starts) // 2], starts[-1]):
            verdicts += selection_verdicts(model, layer, first, run)
    begin = time.perf_counter()
    for _ in walk(model, starts, chunk, draw, whole=False):
        pass
    cuda.synchronize()
    seconds = time.perf_counter() - begin
    worst = max(verdicts, key=lambda verdict: (not verdict.ok, verdict.worst))
    worst = dataclasses.replace(worst, elements=sum(verdict.elements for verdict in verdicts))
    floors = [floor(cfg, model.roles[layer], chunk, first) for first in starts for layer in model.layers]
    bytes_, flops = np.sum(floors, axis=0)
    name = f"stack {len(model.layers)} layers"
    row = Row(TUNED.name, name, f"prompt {tokens}", "call", None, int(bytes_), int(flops), worst)
    if worst.ok:
        row = dataclasses.replace(row, time=Time.of([1e3 * seconds], 1))
    what, rate, used = f"{name}, prompt {tokens} by {chunk}", tokens / seconds, used_bytes() - before
    return row, Stack(what, len(model.layers), rate, (), used, cache_bytes(model))


def one_of_each(cfg: AttnV41Cfg) -> list[int]:
    """The first layer of each kind (FULL of each ratio), and the layers that it reads from."""
    chosen: set[int] = set()
    kinds: set[tuple[str, int]] = set()
    for role in roles(cfg):
        kind = role.kind, role.ratio if role.is_kv_source else 0
        if kind not in kinds:
            kinds.add(kind)
            sources = {role.layer, role.kv_source, role.index_source, role.obeys_candidates, role.key_source}
            chosen |= {source for source in sources if source is not None}
    return sorted(chosen)


def random_model(cfg: AttnV41Cfg, layers: Sequence[int], draw: Draw, cache: str = "bf16") -> AttnV41:
    """A stack of TUNED with random weights, every source with its own index keys."""
    all_roles = roles(cfg)
    weights = {layer: random_layer_weights(cfg, all_roles[layer], draw) for layer in layers}
    return AttnV41(cfg, weights.__getitem__, TUNED, "owner", layers, cache=cache)


def move_to(model: AttnV41, start: int) -> None:
    """Let the next call begin at a position; the caches stay as they are."""
    model.sequence.position = start
    for state in model.sequence.states.values():
        state.next_pos = start


def walk(
    model: AttnV41, starts: Sequence[int], chunk: int, draw: Draw, whole: bool
) -> Iterator[tuple[int, int, AttnV41Run]]:
    """A new sequence in chunks of random inputs, which stay on the device: (first position, layer, run)."""
    model.reset()
    x = [draw.bf16(chunk, model.cfg.dim) for _ in model.layers]
    for first in starts:
        for i, layer in enumerate(model.layers):
            role = model.roles[layer]
            yield first, layer, forward(
                model.ops, model.cfg, role, model._layer_weights(layer), model._rope[role.ratio > 0],
                model.states[layer], model.shared, x[i], first, model.index_keys, AttnV41Run() if whole else OutRun(),
            )  # fmt: skip


def selection_verdicts(model: AttnV41, layer: int, first: int, run: AttnV41Run) -> list[Verdict]:
    """The scores and the selection of some rows of one call beside NumPy's and torch's."""
    cfg, role, shared = model.cfg, model.roles[layer], model.shared
    T = run.x.shape[0]
    keys: Any = shared.index_k.value
    keys = keys[: (first + T) // role.ratio]
    found = [verify("index_score", (run.index_q, run.index_w, keys, first, role.ratio), run.score)]
    rows = spread(T)
    mask = None if role.obeys_candidates is None else take(shared.candidates.value, rows)
    offset = T if first == 0 else cfg.window + T
    expected = REFERENCE.select(take(run.score, rows), cfg.index_topk, mask, offset)
    differ = int(np.count_nonzero(take(shared.topk.value, rows) != expected))
    return [*found, Verdict("select", expected.size, differ, 0)]


def cache_bytes(model: AttnV41) -> int:
    """Bytes of a model's caches."""
    return sum(state.nbytes() for state in model.states.values())


def used_bytes() -> int:
    """Bytes of the GPU's memory that are taken."""
    free, total = cuda.current_context().get_memory_info()
    return int(total - free)
