"""Run the layer without numbers: every array is a shape, and every op says what it would move and multiply.

::

    run = dry_run(FLASH, layer=2, start_pos=0, T=2048)
    run.q.shape, run.calls[0]                          (2048, 64, 512), Call(step=1, op="linear", ...)

The layer is `layer.forward` itself, with an op table that makes arrays of no memory. So shapes, steps and costs of any
geometry come from the code that runs, and a million positions cost nothing.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsv41_numba.caches import AttnV41LayerState, SharedV41
from dsv41_numba.config import AttnV41Cfg
from dsv41_numba.formats.packed_rows import PackedRows, RowFormat
from dsv41_numba.layer import AttnV41Run, RopeTable, forward
from dsv41_numba.ops import Ops
from dsv41_numba.ops.composed import composed
from dsv41_numba.roles import LayerRole, roles
from dsv41_numba.weights import assemble, tensor_specs

BF16 = np.dtype(np.uint16)  # as PLAIN has it: patterns
# the step that makes each of the run's arrays; the first name of a step that has several is its result
STEP_OF = {
    **{"qr": 1, "q": 2, "kv": 3, "window": 3, "latent": 4, "comp_kv": 4, "comp_score": 4, "index_k": 5},
    **{"index_q": 6, "index_w": 6, "score": 7, "topk": 8, "candidates": 8, "latent_q": 9, "idx": 10},
    **{"o": 11, "og": 13, "out": 14},
}
TURN_BACK = 12  # the one step whose result the run does not keep: o again
STEPS = range(1, 15)


@dataclass(frozen=True)
class Call:
    """One op of a step: bytes that must cross memory (each array once), operations of its matrix products."""

    step: int
    op: str
    shape: tuple[int, ...]
    bytes: int
    flops: int


@dataclass
class DryRun(AttnV41Run):
    """The record of a call, its arrays without numbers, and what each op cost."""

    calls: list[Call] = field(default_factory=list)
    keys_of: int | None = None  # the layer whose index keys were scored; None where nothing was
    reads: int = 0  # rows that the queries read, one a filled slot of the gather list
    _step: int = 1

    def keep(self, name: str, value: Any) -> Any:
        setattr(self, name, value)
        if name in STEP_OF:
            self._step = STEP_OF[name]
            self.calls = [Call(self._step, c.op, c.shape, c.bytes, c.flops) if c.step == 0 else c for c in self.calls]
        return value

    def note(self, op: str, result: Any, bytes_: int, flops: int = 0) -> Any:
        """Write an op down. Its step is known when the next result is kept."""
        # what is left of a group is stored after its step's result; other ops come before theirs
        step = {"rope_inverse": TURN_BACK, "store_partial": self._step}.get(op, 0)
        self.calls.append(Call(step, op, result.shape, int(bytes_), int(flops)))
        return result

    def shape(self, step: int) -> tuple[int, ...] | None:
        """The shape of a step's result; None where the layer has no such step, or it made nothing in this call."""
        name = "o" if step == TURN_BACK else next(name for name, made_in in STEP_OF.items() if made_in == step)
        value = getattr(self, name)
        return None if value is None or not any(call.step == step for call in self.calls) else value.shape

    def cost(self, step: int) -> tuple[int, int]:
        """Bytes and operations of a step."""
        of_step = [call for call in self.calls if call.step == step]
        return sum(call.bytes for call in of_step), sum(call.flops for call in of_step)


def array(shape: Sequence[int], dtype: Any = BF16) -> np.ndarray:
    """An array of this shape that takes no memory."""
    return np.broadcast_to(np.zeros((), dtype), tuple(shape))


def dry_run(cfg: AttnV41Cfg, layer: int, start_pos: int, T: int) -> DryRun:
    """One call of one layer, T tokens from position start_pos on, every layer with its own index keys."""
    role = roles(cfg)[layer]
    sources = {role.kv_source, role.index_source, role.obeys_candidates, layer} - {None}
    return dry_walk(cfg, [(start_pos, T)], "owner", sorted(s for s in sources if s is not None))[-1][layer]


def dry_walk(
    cfg: AttnV41Cfg, calls: Sequence[tuple[int, int]], index_keys: str = "released", layers: Sequence[int] | None = None
) -> list[dict[int, DryRun]]:
    """Calls (start_pos, T) of one sequence, one after the other -> for each call every layer's run."""
    shared, walked = SharedV41(), []
    for start_pos, T in calls:
        runs: dict[int, DryRun] = {}
        for role in roles(cfg) if layers is None else [roles(cfg)[layer] for layer in layers]:
            runs[role.layer] = _layer(cfg, role, shared, start_pos, T, index_keys)
        walked.append(runs)
    return walked


def empty_state(cfg: AttnV41Cfg, role: LayerRole) -> AttnV41LayerState:
    """A layer's caches, without memory."""
    return AttnV41LayerState.new(cfg, role, _table(cfg, role, SharedV41(), 0, DryRun()))


def _layer(cfg: AttnV41Cfg, role: LayerRole, shared: SharedV41, start_pos: int, T: int, index_keys: str) -> DryRun:
    run = DryRun()
    ops = _table(cfg, role, shared, start_pos, run)
    weights = assemble(
        {
            name: array(spec.shape, BF16 if spec.dtype == "bf16" else np.float32)
            for name, spec in tensor_specs(cfg, role).items()
        }
    )
    angles = array((cfg.max_seq, cfg.rope_dim // 2), np.float32)
    state = AttnV41LayerState.new(cfg, role, ops)
    state.next_pos = start_pos
    x = array((T, cfg.dim))
    forward(ops, cfg, role, weights, RopeTable(angles, angles), state, shared, x, start_pos, index_keys, run)
    return run


def _table(cfg: AttnV41Cfg, role: LayerRole, shared: SharedV41, start_pos: int, run: DryRun) -> Ops:
    """Ops that only make shapes, and note what they would cost as their contracts say ("Moves")."""
    note = run.note

    def seen(T: int) -> np.ndarray:  # positions up to each token's own
        return start_pos + 1 + np.arange(T, dtype=np.int64)

    def product(op: str, dtype: Any) -> Callable[..., Any]:
        def linear(x: Any, weight: Any) -> Any:
            y = array((x.shape[0], weight.shape[0]), dtype)
            return note(op, y, x.nbytes + weight.nbytes + y.nbytes, 2 * y.size * x.shape[1])

        return linear

    def grouped_linear(o: Any, weight: Any, n_groups: int) -> Any:
        og = array((o.shape[0], n_groups, weight.shape[0] // n_groups))
        return note("grouped_linear", og, o.nbytes + weight.nbytes + og.nbytes, 2 * og.size * weight.shape[1])

    def elementwise(op: str, x: Any, *parameters: Any) -> Any:
        y = array(x.shape)
        return note(op, y, x.nbytes + y.nbytes + sum(p.nbytes for p in parameters if hasattr(p, "nbytes")))

    def turn(op: str, x: Any, cos: Any, sin: Any, start: int, step: int = 1) -> Any:
        return note(op, array(x.shape), 2 * x.nbytes + 8 * x.shape[0] * cos.shape[1])  # of the tables one row a token

    def pool(kv: Any, score: Any, kv_state: Any, score_state: Any, start: int) -> Any:
        ratio, D = kv_state.shape
        pooled = array(((start + len(kv)) // ratio - start // ratio, D), np.float32)
        return note("pool", pooled, 2 * ratio * pooled.nbytes + pooled.nbytes)

    def store_partial(kv: Any, score: Any, kv_state: Any, score_state: Any, start: int) -> None:
        note("store_partial", kv_state, 2 * (kv_state.nbytes + score_state.nbytes))

    def ring_write(rows: Any, ring: Any, start: int) -> None:
        note("ring_write", ring, 2 * min(len(rows), len(ring)) * rows.shape[1] * rows.itemsize)

    def pack_rows(x: Any, format: RowFormat) -> Any:
        N, D = x.shape
        rows = PackedRows.new(format, N, D, array)
        return note("pack_rows", rows, x.nbytes + rows.nbytes)

    def index_score(index_q: Any, index_w: Any, index_k: Any, start: int, ratio: int) -> Any:
        run.keys_of = shared.index_k.layer if len(index_k) else None
        score = array((len(index_q), len(index_k)), np.float32)
        visible = int((seen(len(index_q)) // ratio).sum())
        bytes_ = index_q.nbytes + index_w.nbytes + index_k.nbytes + score.nbytes
        return note("index_score", score, bytes_, 2 * visible * index_q.shape[1] * index_q.shape[2])

    def candidate_blocks(score: Any, lens: Any, topk_blocks: int, block_size: int) -> Any:
        mask = array(score.shape, np.uint8)
        return note("candidate_blocks", mask, score.nbytes + lens.nbytes + mask.nbytes)

    def select(score: Any, k: int, mask: Any = None, offset: int = 0) -> Any:
        chosen = array((len(score), min(k, score.shape[1])), np.int32)
        return note("select", chosen, score.nbytes + chosen.nbytes + (0 if mask is None else mask.nbytes))

    def gather_list(window: int, start: int, T: int, topk: Any) -> Any:
        chosen = array((T, 0), np.int32) if topk is None else topk
        slots = array((T, (window if start else min(T, window)) + chosen.shape[1]), np.int32)
        return note("gather_list", slots, chosen.nbytes + slots.nbytes)

    def without_gaps(idx: Any) -> Any:
        return note("without_gaps", idx, 2 * idx.nbytes)

    def sparse_attention(q: Any, window_rows: Any, compress_rows: Any, idx: Any, sink: Any, scale: float) -> Any:
        T, H, D = q.shape
        window = int(np.minimum(seen(T), cfg.window).sum())
        chosen = int(np.minimum(seen(T) // role.ratio, cfg.index_topk).sum()) if role.ratio else 0
        run.reads = window + chosen
        named = min(window, len(window_rows)) + min(chosen, len(compress_rows))  # rows that someone reads, at most
        bytes_ = 2 * q.nbytes + idx.nbytes + sink.nbytes + 2 * named * D
        return note("sparse_attention", array(q.shape), bytes_, 4 * H * D * run.reads)

    alike = ("rmsnorm", "rmsnorm_f32", "fp8_round_trip", "fp4_round_trip_e8m0", "fp4_round_trip_e4m3", "index_weights")
    same = {op: functools.partial(elementwise, op) for op in alike}
    rope, rope_inverse = functools.partial(turn, "rope"), functools.partial(turn, "rope_inverse")
    return Ops(
        name="dry run",
        bf16=BF16,
        to_device=np.asarray,
        to_host=np.asarray,
        zeros=array,
        linear=product("linear", BF16),
        linear_fp8=product("linear_fp8", BF16),
        linear_f32=product("linear_f32", np.float32),
        rope=rope,
        rope_in_place=rope,
        rope_inverse=rope_inverse,
        pool=pool,
        store_partial=store_partial,
        pack_rows=pack_rows,
        ring_write=ring_write,
        write_rows=ring_write,
        index_score=index_score,
        candidate_blocks=candidate_blocks,
        select=select,
        gather_list=gather_list,
        without_gaps=without_gaps,
        sparse_attention=sparse_attention,
        grouped_linear=grouped_linear,
        **same,
        **composed(
            same["rmsnorm"],
            rope,
            rope_inverse,
            same["fp8_round_trip"],
            same["fp4_round_trip_e8m0"],
            same["fp4_round_trip_e4m3"],
            pack_rows,
            ring_write,
            sparse_attention,
        ),
    )
