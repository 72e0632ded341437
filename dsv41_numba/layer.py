"""START HERE: one layer's forward, the fourteen steps.

`forward` serves every layer. The layer's role decides which of three paths through steps 4 to 9 it takes::

    SWA      window only: steps 4 to 9 do not exist
    FULL     makes compressed rows and index keys, selects, publishes all three
    REINDEX  selects anew from another layer's compressed rows and index keys
    REUSE    takes another layer's compressed rows and selection as they are

and the op table decides what runs: `REFERENCE` (NumPy), or `PLAIN` (the readable kernels, on a GPU or the emulator).
Shapes: T tokens of this call, H heads of D, Hi index heads of Di, G compressed positions so far, n of them new,
W window, S = window slots + selected positions.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv41_numba.caches import AttnV41LayerState, SharedV41
from dsv41_numba.config import AttnV41Cfg
from dsv41_numba.formats.packed_rows import COMPRESSED, WINDOW, PackedRows, RowFormat
from dsv41_numba.ops import Ops
from dsv41_numba.roles import LayerRole
from dsv41_numba.weights import AttnV41LayerWeights

INDEX_KEYS = ("released", "owner")


@dataclass
class AttnV41Run:
    """The record of one layer's call: every intermediate, under the recordings' names, in the order they are made.

    Arrays belong to the op table (bf16 as it stores them). `window` is the live ring, so it holds this call's value
    until the layer's next call. None: this layer has no such stage.
    """

    x: Any = None
    qr: Any = None
    q: Any = None
    kv: Any = None
    window: Any = None
    comp_kv: Any = None
    comp_score: Any = None
    latent: Any = None
    index_k: Any = None
    latent_q: Any = None
    index_q: Any = None
    index_w: Any = None
    score: Any = None
    candidates: Any = None
    topk: Any = None
    idx: Any = None
    o: Any = None
    og: Any = None
    out: Any = None

    @property
    def keeps_o(self) -> bool:
        """Whether `o` is looked at. If not, an op table may turn it back before it leaves the attention's kernel."""
        return True

    def keep(self, name: str, value: Any) -> Any:
        """Note an intermediate and hand it on. A replay overrides this to judge it, and may hand on another."""
        setattr(self, name, value)
        return value


class OutRun(AttnV41Run):
    """A run of which only `out` is asked for: nothing else is kept, and `o` may never exist."""

    @property
    def keeps_o(self) -> bool:
        return False

    def keep(self, name: str, value: Any) -> Any:
        return super().keep(name, value) if name == "out" else value


@dataclass(frozen=True)
class RopeTable:
    """cos and sin [max_seq, rope_dim / 2] f32, arrays of the op table."""

    cos: Any
    sin: Any


@dataclass(frozen=True)
class LayerCall:
    """What every step of one call needs to know: the machine, the layer, and where in the sequence it is."""

    ops: Ops
    cfg: AttnV41Cfg
    role: LayerRole
    rope: RopeTable
    state: AttnV41LayerState
    shared: SharedV41
    run: AttnV41Run
    start_pos: int
    T: int

    @property
    def end(self) -> int:
        """One past the last position of this call."""
        return self.start_pos + self.T

    @property
    def prefill(self) -> bool:
        return self.start_pos == 0

    @property
    def chunk(self) -> bool:
        """Several tokens that follow others: a piece of a long prompt, or tokens to be verified."""
        return not self.prefill and self.T > 1

    @property
    def n_window_rows(self) -> int:
        """Rows that stand before the compressed ones in the gather list: see `gather_list`."""
        return (0 if self.prefill else self.cfg.window) + (self.T if self.prefill or self.chunk else 0)


def forward(
    ops: Ops,
    cfg: AttnV41Cfg,
    role: LayerRole,
    weights: AttnV41LayerWeights,
    rope: RopeTable,
    state: AttnV41LayerState,
    shared: SharedV41,
    x: Any,
    start_pos: int,
    index_keys: str = "released",
    run: AttnV41Run | None = None,
) -> AttnV41Run:
    """One layer, one call: prefill (start_pos 0), decode (one token after others) or a chunk (several after others).

    With index_keys="owner" a prompt gives the same bits in one prefill, in chunks or token by token, unless equal
    scores meet at a selection's cut: which of them torch keeps depends on how many columns there are. As released, a
    chunk, like a decode step, publishes index keys only if it completes a group.

    x [T, dim] bf16 and `weights` are arrays of the op table; `rope` is the table of the layer's kind (YaRN where it
    has a ratio). Updates `state`, publishes to `shared`, returns the run; its `out` is [T, dim] bf16.
    `index_keys`: "released" scores a decode step that completes no group against the keys published last, as the
    released code does; "owner" lets every source use its own.
    Raises ValueError for a wrong shape or dtype, a position that does not follow, one beyond max_seq, or a slot that
    the layer needs and its source has not filled; nothing is changed then.
    """
    check_call(cfg, role, ops, state, x, start_pos, index_keys)
    run = run or AttnV41Run()
    T = x.shape[0]
    call = LayerCall(ops, cfg, role, rope, state, shared, run, start_pos, T)
    w, keep, eps = weights, run.keep, cfg.norm_eps
    H, D = cfg.n_heads, cfg.head_dim
    check_sources(call, index_keys)

    x = keep("x", x)  # [T, dim]
    # 1, 2: the query, through a low-rank bottleneck
    qr = keep("qr", ops.rmsnorm(ops.linear(x, w.wq_a), w.q_norm, eps))  # [T, q_lora_rank]
    q = ops.linear(qr, w.wq_b).reshape(T, H, D)  # [T, H, D]
    q = keep("q", ops.rope_in_place(q, rope.cos, rope.sin, start_pos))  # [T, H, D]
    # 3: this call's window rows, quantised to fp8 and back, and the ring that holds the last W of them
    window_rows: Any = rows_with_ring(call) if call.chunk else None  # [W + T, D], the ring as the call before left it
    kv = ops.linear(x, w.wkv)  # [T, D]
    kv = keep("kv", ops.kv_rows(kv, w.kv_norm, eps, rope.cos, rope.sin, start_pos, state.window))  # [T, D]
    if call.chunk:
        ops.write_rows(kv, window_rows, cfg.window)
    state.window = keep("window", state.window)  # [W, D]
    if not call.chunk:
        window_rows = kv if call.prefill else state.window  # [T, D], or [W, D] with this token's row among them
    # 4 to 9: the compressed rows, and which of them this call reads
    if role.is_kv_source:
        compress(call, w, x, index_keys)
    if role.is_index_source:
        select(call, w, x, qr)
    compress_rows, topk = new_rows(call, COMPRESSED, 0), None  # SWA: none
    if role.ratio:
        topk = keep("topk", shared.topk.read(role.layer, role.index_source, call.end))  # [T, min(index_topk, G)]
        cache = shared.compress_kv.read(role.layer, role.kv_source, call.end)  # [max_seq // r, D]
        compress_rows = cache[: call.end // role.ratio]  # [G, D]
    # 10: which row each query reads
    idx = keep("idx", ops.gather_list(cfg.window, start_pos, T, topk))  # [T, S]
    # 11, 12: attention over the gathered rows, which are key and value at once; turned back by the query's position
    slots = ops.without_gaps(idx)  # [T, S]
    attended = q, window_rows, compress_rows, slots, w.attn_sink, cfg.softmax_scale
    if run.keeps_o:
        o = keep("o", ops.sparse_attention(*attended))  # [T, H, D]
        o = ops.rope_inverse(o, rope.cos, rope.sin, start_pos)  # [T, H, D]
    else:
        o = ops.attention_turned_back(*attended, rope.cos, rope.sin, start_pos)  # [T, H, D]
    # 13, 14: project each group of heads, then all groups together
    og = keep("og", ops.grouped_linear(o, w.wo_a, cfg.o_groups))  # [T, o_groups, o_lora_rank]
    keep("out", ops.linear(og.reshape(T, cfg.o_groups * cfg.o_lora_rank), w.wo_b))  # [T, dim]
    state.next_pos = call.end
    return run


def compress(call: LayerCall, weights: AttnV41LayerWeights, x: Any, index_keys: str) -> None:
    """Steps 4, 5 and 9 of a FULL layer: new compressed rows and index keys, into the caches, and published."""
    ops, role, state, rope = call.ops, call.role, call.state, call.rope
    keep, eps = call.run.keep, call.cfg.norm_eps
    w, indexer = weights.compressor, weights.indexer
    assert w is not None and indexer is not None  # a FULL layer has both
    n = call.end // role.ratio - call.start_pos // role.ratio  # how many groups this call completes
    # a group stands at the position of its first token; its slot in the caches is its number
    place = rope.cos, rope.sin, call.start_pos, role.ratio
    # 4: one latent row a group
    if role.ratio > 1:
        kv = keep("comp_kv", ops.linear_f32(x, w.wkv))  # [T, D] f32
        score = keep("comp_score", ops.linear_f32(x, w.wgate))  # [T, D] f32
        if n > 0:
            pooled = ops.pool(kv, score, state.kv_state, state.score_state, call.start_pos)  # [n, D] f32
            latent = ops.rmsnorm_f32(pooled, w.norm, eps)  # [n, D]
        ops.store_partial(kv, score, state.kv_state, state.score_state, call.start_pos)
    else:
        latent = ops.rmsnorm(ops.linear(x, w.wkv), w.norm, eps)  # [n, D]
    if n > 0:
        latent = keep("latent", latent)
        # 5: the index keys, from the latent BEFORE its rotation
        key = ops.linear(latent, indexer.wk)  # [n, Di]
        keep("index_k", ops.index_key_rows(key, indexer.k_norm, eps, *place, state.index_k))  # [n, Di]
        # 9: the latent itself, rotated and quantised
        keep("latent_q", ops.latent_rows(latent, *place, state.compress_kv))  # [n, D]
    if n > 0 or index_keys == "owner":  # the released code publishes keys only when a group is complete
        call.shared.index_k.publish(state.index_k, role.layer, call.end)
    call.shared.compress_kv.publish(state.compress_kv, role.layer, call.end)


def select(call: LayerCall, weights: AttnV41LayerWeights, x: Any, qr: Any) -> None:
    """Steps 6 to 8 of a FULL or REINDEX layer: score every compressed position, publish the best index_topk."""
    ops, cfg, role, shared, keep = call.ops, call.cfg, call.role, call.shared, call.run.keep
    T, ratio, w = call.T, role.ratio, weights.indexer
    assert w is not None  # an index source has one
    # 6: index queries and the weight of each index head
    index_q = ops.linear(qr, w.wq_b).reshape(T, cfg.index_n_heads, cfg.index_head_dim)  # [T, Hi, Di]
    index_q = ops.index_query_rows(index_q, call.rope.cos, call.rope.sin, call.start_pos)  # [T, Hi, Di]
    index_q = keep("index_q", index_q)
    index_w = keep("index_w", ops.index_weights(ops.linear(x, w.weights_proj), cfg.index_scale))  # [T, Hi]
    # 7: score[t, g], -inf where group g ends after position start_pos + t
    keys = visible_keys(call)  # [G, Di]
    score = keep("score", ops.index_score(index_q, index_w, keys, call.start_pos, ratio))  # [T, G] f32
    # 8: blocks worth looking into, for the index sources after this one, then the best positions
    if role.publishes_candidates:
        lens = (call.start_pos + 1 + np.arange(T)) // ratio  # [T], positions each query can see
        lens = ops.to_device(lens.astype(np.int32))
        blocks = ops.candidate_blocks(score, lens, cfg.candidate_topk_blocks, cfg.candidate_block_size)
        shared.candidates.publish(keep("candidates", blocks), role.layer, call.end)  # [T, G]
    mask = None  # the layer that makes the mask does not obey it itself
    if role.obeys_candidates is not None:
        mask = shared.candidates.read(role.layer, role.obeys_candidates, call.end)
    chosen = ops.select(score, cfg.index_topk, mask, call.n_window_rows)  # [T, min(index_topk, G)]
    shared.topk.publish(chosen, role.layer, call.end)


def visible_keys(call: LayerCall) -> Any:
    """The G index keys that this layer scores against: those in the slot, whoever published them last.

    With index_keys="owner" that is always the layer's own key source. As released, a decode step that completes no
    group of a ratio >= 2 source publishes nothing, so the slot still holds what the last source of the call before
    put there (in the released geometry layer 20's keys, whose ratio is 1).
    """
    slot, G = call.shared.index_k, call.end // call.role.ratio
    if G == 0:
        return call.ops.zeros((0, call.cfg.index_head_dim), call.ops.bf16)
    if slot.value is None or slot.value.shape[0] < G:
        found = "none" if slot.value is None else f"{slot.value.shape[0]} from layer {slot.layer}"
        raise ValueError(f"layer {call.role.layer}: expected at least {G} published index keys, got {found}")
    return slot.value[:G]


def rows_with_ring(call: LayerCall) -> Any:
    """The rows that a chunk's queries see, [W + T, D], packed if the ring is: it stands in front, with room for this
    call's rows behind it."""
    rows = new_rows(call, WINDOW, call.cfg.window + call.T)
    call.ops.write_rows(call.state.window, rows, 0)
    return rows


def new_rows(call: LayerCall, format: RowFormat, N: int) -> Any:
    """N rows of zeros, [N, D], packed if the layer's caches are."""
    ops, D = call.ops, call.cfg.head_dim
    if isinstance(call.state.window, PackedRows):
        return PackedRows.new(format, N, D, ops.zeros)
    return ops.zeros((N, D), ops.bf16)


def check_call(
    cfg: AttnV41Cfg, role: LayerRole, ops: Ops, state: AttnV41LayerState, x: Any, start_pos: int, index_keys: str
) -> None:
    """Refuse a call that cannot be right, before anything is written."""
    where = f"layer {role.layer}"
    if index_keys not in INDEX_KEYS:
        raise ValueError(f"index_keys: expected one of {', '.join(INDEX_KEYS)}, got {index_keys!r}")
    dtype = getattr(x, "dtype", type(x).__name__)
    if dtype != ops.bf16:
        raise ValueError(f"{where}: x: expected dtype {ops.bf16}, got {dtype}")
    if len(x.shape) != 2 or x.shape[0] < 1 or x.shape[1] != cfg.dim:
        raise ValueError(f"{where}: x: expected shape [T >= 1, {cfg.dim}], got {list(x.shape)}")
    T = x.shape[0]
    if start_pos < 0 or start_pos + T > cfg.max_seq:
        raise ValueError(
            f"{where}: expected positions within 0..{cfg.max_seq - 1} (max_seq), got {start_pos}..{start_pos + T - 1}"
        )
    if start_pos != state.next_pos:
        raise ValueError(
            f"{where}: expected start_pos {state.next_pos}, which follows the call before, got {start_pos}; "
            "a new sequence needs a new state"
        )


def check_sources(call: LayerCall, index_keys: str) -> None:
    """Refuse a consumer before its source, before anything is written."""
    role, shared = call.role, call.shared
    if role.ratio and not role.is_kv_source:
        shared.compress_kv.read(role.layer, role.kv_source, call.end)
    if role.ratio and not role.is_index_source:
        shared.topk.read(role.layer, role.index_source, call.end)
    if role.obeys_candidates is not None:
        shared.candidates.read(role.layer, role.obeys_candidates, call.end)
    if role.is_index_source:
        completes = call.end // role.ratio > call.start_pos // role.ratio
        publishes_keys = role.is_kv_source and (completes or index_keys == "owner")
        if not publishes_keys:
            visible_keys(call)
