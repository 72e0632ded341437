"""Whole layers: one of each kind, with random weights and caches filled to the context, made on the device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv41_numba.bench.cases import position, random_selection
from dsv41_numba.bench.inputs import Draw
from dsv41_numba.caches import AttnV41LayerState, SharedV41
from dsv41_numba.config import AttnV41Cfg
from dsv41_numba.formats.packed_rows import COMPRESSED, INDEX_KEY, WINDOW, RowFormat
from dsv41_numba.layer import AttnV41Run, OutRun, RopeTable, forward
from dsv41_numba.ops import PLAIN, Ops
from dsv41_numba.ops.rope import freqs_table, rope_freqs, yarn_freqs
from dsv41_numba.roles import LayerRole, roles
from dsv41_numba.runtime.backend import to_device
from dsv41_numba.weights import AttnV41LayerWeights, assemble, tensor_specs


@dataclass(frozen=True)
class LayerCase:
    """One call of one layer, with bf16 or packed caches; T tokens from position pos on."""

    role: LayerRole
    name: str
    T: int
    pos: int
    cache: str = "bf16"

    @property
    def op(self) -> str:
        ratio = f" ratio {self.role.ratio}" if self.role.is_kv_source else ""
        return f"layer {self.role.kind}{ratio}{' packed' if self.cache == 'packed' else ''}"


def layer_cases(
    cfg: AttnV41Cfg, prefills: Sequence[int], contexts: Sequence[int], cache: str = "bf16"
) -> list[LayerCase]:
    """The first layer of each kind (FULL: of each ratio), prefills before decodes."""
    kinds: dict[tuple[str, int], LayerRole] = {}
    for role in roles(cfg):
        kinds.setdefault((role.kind, role.ratio if role.is_kv_source else 0), role)
    calls = [(f"prefill {T}", T, 0) for T in prefills]
    calls += [(f"decode {context}", 1, position(context)) for context in contexts]
    return [LayerCase(role, *call, cache) for role in kinds.values() for call in calls]


class BenchLayer:
    """A layer that can make the same call again and again."""

    def __init__(self, cfg: AttnV41Cfg, case: LayerCase, seed: int = 0) -> None:
        self.cfg, self.case, draw = cfg, case, Draw(seed)
        self.weights = random_layer_weights(cfg, case.role, draw)
        self.rope = rope_rows(cfg, case.role.ratio > 0, case.pos, case.T)
        self.x = draw.bf16(case.T, cfg.dim)
        self.state = filled_state(cfg, case.role, case.pos, draw, case.cache)
        self.shared = self._published(draw)

    def call(self, ops: Ops = PLAIN) -> AttnV41Run:
        """The forward, as if for the first time."""
        role, pos, run = self.case.role, self.case.pos, OutRun()
        self.state.next_pos = pos
        return forward(ops, self.cfg, role, self.weights, self.rope, self.state, self.shared, self.x, pos, run=run)

    def floor(self) -> tuple[int, int]:
        """Bytes and operations of the call."""
        return floor(self.cfg, self.case.role, self.case.T, self.case.pos, self.case.cache)

    def _published(self, draw: Draw) -> SharedV41:
        """What the layers before this one would have published for this call."""
        cfg, role, shared, end = self.cfg, self.case.role, SharedV41(), self.case.pos + self.case.T
        if not role.ratio:
            return shared
        source: AttnV41LayerState = self.state
        if not role.is_kv_source:
            assert role.kv_source is not None
            source = filled_state(cfg, roles(cfg)[role.kv_source], end, draw, self.case.cache)
            shared.compress_kv.publish(source.compress_kv, role.kv_source, end)
        if role.is_index_source and not role.is_kv_source:
            shared.index_k.publish(source.index_k, role.key_source or 0, end)
        if role.obeys_candidates is not None:
            G = end // role.ratio
            blocks = -(-G // cfg.candidate_block_size)
            keep = np.random.default_rng(0).random((self.case.T, blocks)) * blocks < cfg.candidate_topk_blocks
            mask = np.repeat(keep, cfg.candidate_block_size, axis=1)[:, :G].astype(np.uint8)
            shared.candidates.publish(to_device(mask), role.obeys_candidates, end)
        if not role.is_index_source:
            chosen = random_selection(cfg, self.case.T, self.case.pos, role.ratio)
            shared.topk.publish(to_device(chosen), role.index_source or 0, end)
        return shared


def floor(cfg: AttnV41Cfg, role: LayerRole, T: int, pos: int, cache: str = "bf16") -> tuple[int, int]:
    """Bytes and operations of one layer's call: every weight once, the rows and keys that it reads, its products."""
    bytes_, flops = 4 * T * cfg.dim, 0
    D, Di = cfg.head_dim, cfg.index_head_dim
    window_row, row, key = 2 * D, 2 * D, 2 * Di
    if cache == "packed":
        window_row, row, key = WINDOW.row_bytes(D), COMPRESSED.row_bytes(D), INDEX_KEY.row_bytes(Di)
    for name, spec in tensor_specs(cfg, role).items():
        size = int(np.prod(spec.shape))
        bytes_ += size * (2 if spec.dtype == "bf16" else 4)
        rows = (pos + T) // role.ratio - pos // role.ratio if name == "indexer.wk" else T
        flops += 2 * rows * size if len(spec.shape) == 2 else 0
    seen = pos + 1 + np.arange(T, dtype=np.int64)  # positions that each token sees
    reads = int(np.minimum(seen, cfg.window).sum())
    bytes_ += window_row * min(pos + T, cfg.window if pos else T)
    if role.ratio:
        selected = np.minimum(seen // role.ratio, cfg.index_topk)
        reads += int(selected.sum())
        bytes_ += row * min(int(selected.sum()), (pos + T) // role.ratio)
    if role.is_index_source:
        flops += 2 * int((seen // role.ratio).sum()) * cfg.index_n_heads * cfg.index_head_dim
        bytes_ += key * ((pos + T) // role.ratio)
    return bytes_, flops + 4 * cfg.n_heads * cfg.head_dim * reads


def random_layer_weights(cfg: AttnV41Cfg, role: LayerRole, draw: Draw) -> AttnV41LayerWeights:
    """Random weights of one layer, made on the device."""
    arrays: dict[str, Any] = {}
    for name, spec in tensor_specs(cfg, role).items():
        scale = spec.shape[-1] ** -0.5 if len(spec.shape) == 2 else 1.0
        arrays[name] = (draw.bf16 if spec.dtype == "bf16" else draw.f32)(*spec.shape, scale=scale)
    return assemble(arrays)


def filled_state(
    cfg: AttnV41Cfg, role: LayerRole, pos: int, draw: Draw, cache: str = "bf16"
) -> AttnV41LayerState:  # fmt: skip
    """A layer's caches before position pos, full of random rows that went through the quantisers; full length."""

    def rows(format: RowFormat, round_trip: Callable[[Any], Any], N: int, D: int) -> Any:
        x = draw.bf16(N, D)
        return PLAIN.pack_rows(x, format) if cache == "packed" else round_trip(x)

    state = AttnV41LayerState(window=rows(WINDOW, PLAIN.fp8_round_trip, cfg.window, cfg.head_dim), next_pos=pos)
    if role.is_kv_source:
        groups = cfg.max_seq // role.ratio
        state.compress_kv = rows(COMPRESSED, PLAIN.fp4_round_trip_e4m3, groups, cfg.head_dim)
        state.index_k = rows(INDEX_KEY, PLAIN.fp4_round_trip_e8m0, groups, cfg.index_head_dim)
        if role.ratio > 1:
            state.kv_state, state.score_state = (draw.f32(role.ratio, cfg.head_dim) for _ in range(2))
    return state


def rope_rows(cfg: AttnV41Cfg, compressed: bool, pos: int, T: int) -> RopeTable:
    """The rotation table of all positions, of which only the rows that one call reads are filled."""
    freqs = rope_freqs(cfg.rope_dim, cfg.rope_theta)
    if compressed:
        freqs = yarn_freqs(
            cfg.rope_dim, cfg.compress_rope_theta, cfg.original_seq_len, cfg.rope_factor, cfg.beta_fast, cfg.beta_slow
        )
    first = max(pos - max(cfg.compress_ratios), 0)  # a group stands at its first token
    tables = []
    for rows in freqs_table(freqs, np.arange(first, pos + T)):
        table = PLAIN.zeros((cfg.max_seq, cfg.rope_dim // 2), np.float32)
        PLAIN.ring_write(PLAIN.to_device(rows), table, first)
        tables.append(table)
    return RopeTable(*tables)
