"""What is measured: every op and whole layers, with the bytes they must move and the operations they must do.

A case's name is its call: "prefill 2048" is 2048 tokens from position 0, "decode" one token where the context does not
matter, "decode 131072" one token at the last odd position within a context of that many (so that a ratio-2 group is
completed). `bytes` and `flops` are the least that the call needs: each input read once, each output written once, and
of a score only what is visible.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv41_numba.bench.inputs import Draw
from dsv41_numba.config import AttnV41Cfg
from dsv41_numba.formats.fp8_weight import Fp8Weight
from dsv41_numba.formats.packed_rows import COMPRESSED, INDEX_KEY, WINDOW
from dsv41_numba.ops import PLAIN
from dsv41_numba.ops.gather import gather_list
from dsv41_numba.ops.quant_fp8 import fp8_quantise
from dsv41_numba.ops.rope import freqs_table, yarn_freqs
from dsv41_numba.runtime.backend import to_device

PREFILLS = (512, 2048, 8192)
CONTEXTS = (4096, 32768, 131072, 1048575)
QUICK_PREFILLS, QUICK_CONTEXTS = (2048,), (131072,)
FUSED_TOKENS = 131072  # 128 MiB of rows of 512: more than the largest cache


@dataclass(frozen=True)
class Case:
    """One call of one op.

    op         the stage, and what it is used for: "linear wq_a"
    arguments  new random arguments for PLAIN's stage, device arrays
    """

    op: str
    name: str
    arguments: Callable[[Draw], tuple[Any, ...]]
    bytes: int
    flops: int = 0

    @property
    def stage(self) -> str:
        return self.op.split()[0]


def op_cases(cfg: AttnV41Cfg, prefills: Sequence[int], contexts: Sequence[int]) -> list[Case]:
    """Every op of the geometry, op by op, prefills before decodes."""
    calls = [(f"prefill {T}", T, 0) for T in prefills] + [("decode", 1, position(min(contexts)))]
    decodes = [(f"decode {context}", position(context)) for context in contexts]
    cases = []
    for make in (_linears, _norms, _ropes, _quantisers, _compressors, _small):
        by_call = [make(cfg, *call) for call in calls]
        cases += [case for of_op in zip(*by_call) for case in of_op]
    for make_context in (_score, _attention):
        cases += [make_context(cfg, name, T, 0) for name, T, pos in calls if pos == 0]
        cases += [make_context(cfg, name, 1, pos) for name, pos in decodes]
    return cases


def stored_cases(cfg: AttnV41Cfg, prefills: Sequence[int], contexts: Sequence[int]) -> list[Case]:
    """What reads codes and scales in place of bf16: the fp8 linears, and score and attention over packed caches."""
    calls = [(f"prefill {T}", T) for T in prefills] + [("decode", 1)]
    by_call = [_fp8_linears(cfg, *call) for call in calls]
    cases = [case for of_op in zip(*by_call) for case in of_op]
    for make in (_score, _attention):
        cases += [make(cfg, f"prefill {T}", T, 0, packed=True) for T in prefills]
        cases += [make(cfg, f"decode {context}", 1, position(context), packed=True) for context in contexts]
    return cases


def _fp8_linears(c: AttnV41Cfg, name: str, T: int) -> list[Case]:
    def linear(what: str, N: int, K: int) -> Case:
        rows, columns = c.weight_block

        def weight(draw: Draw) -> Fp8Weight:
            codes, _ = fp8_quantise(draw.bf16(N, K))
            scale = np.random.default_rng(N).integers(115, 120, (-(-N // rows), -(-K // columns)), np.uint8)
            return Fp8Weight(codes, to_device(scale), c.weight_block)

        bytes_ = 2 * T * (K + N) + N * K + -(-N // rows) * -(-K // columns)
        return Case(f"linear_fp8 {what}", name, lambda draw: (draw.bf16(T, K), weight(draw)), bytes_, 2 * T * N * K)

    o_rank = c.o_groups * c.o_lora_rank
    return [linear("wq_b", c.n_heads * c.head_dim, c.q_lora_rank), linear("wo_b", c.dim, o_rank)]


def fused_cases(cfg: AttnV41Cfg, prefills: Sequence[int]) -> list[Case]:
    """The stages that the layer calls as one on a row's way into a cache; index queries have so many rows a token that
    FUSED_TOKENS // 8 of them pass the largest cache, the others FUSED_TOKENS."""
    calls = [(f"prefill {T}", T) for T in prefills] + [("decode", 1)]
    cases = []
    for name, T in [*calls, (f"prefill {FUSED_TOKENS}", FUSED_TOKENS)]:
        cases += _fused(cfg, name, T)[:3]
    for name, T in [*calls, (f"prefill {FUSED_TOKENS // 8}", FUSED_TOKENS // 8)]:
        cases += _fused(cfg, name, T)[3:]
    return cases


def _fused(c: AttnV41Cfg, name: str, T: int) -> list[Case]:
    """At ratio 1: a group a token."""
    D, Di, Hi = c.head_dim, c.index_head_dim, c.index_n_heads
    table = _turn_table(c, T)

    def norm(draw: Draw, dims: int) -> tuple[Any, ...]:
        return draw.bf16(T, dims), draw.f32(dims), c.norm_eps, *table(), 0

    angles = 4 * T * c.rope_dim
    return [
        Case("kv_rows", name, lambda draw: (*norm(draw, D), draw.bf16(c.window, D)),
             4 * T * D + 2 * min(T, c.window) * D + angles),
        Case("index_key_rows", name, lambda draw: (*norm(draw, Di), 1, draw.bf16(T, Di)), 4 * T * Di + angles),
        Case("latent_rows", name, lambda draw: (draw.bf16(T, D), *table(), 0, 1, draw.bf16(T, D)), 4 * T * D + angles),
        Case("index_query_rows", name, lambda draw: (draw.bf16(T, Hi, Di), *table(), 0), 4 * T * Hi * Di + angles),
    ]  # fmt: skip


def position(context: int) -> int:
    """The last odd position of a context."""
    return (context + 1) // 2 * 2 - 1


def _linears(c: AttnV41Cfg, name: str, T: int, pos: int) -> list[Case]:
    def linear(what: str, N: int, K: int, M: int = T) -> Case:
        return Case(
            f"linear {what}",
            name,
            lambda draw: (draw.bf16(M, K), draw.bf16(N, K, scale=K**-0.5)),
            2 * (M * K + N * K + M * N),
            2 * M * N * K,
        )

    D, Di, o_rank = c.head_dim, c.index_head_dim, c.o_groups * c.o_lora_rank
    groups, K = max(T // 2, 1), c.group_dim
    return [
        linear("wq_a", c.q_lora_rank, c.dim),
        linear("wq_b", c.n_heads * D, c.q_lora_rank),
        linear("wkv", D, c.dim),
        Case(
            "grouped_linear wo_a",
            name,
            lambda draw: (draw.bf16(T, c.n_heads, D), draw.bf16(o_rank, K, scale=K**-0.5), c.o_groups),
            2 * (T * c.n_heads * D + o_rank * K + T * o_rank),
            2 * T * o_rank * K,
        ),
        linear("wo_b", c.dim, o_rank),
        linear("indexer.wq_b", c.index_n_heads * Di, c.q_lora_rank),
        linear("indexer.weights_proj", c.index_n_heads, c.dim),
        linear("indexer.wk", Di, D, groups),
        Case(
            "linear_f32 compressor",
            name,
            lambda draw: (draw.bf16(T, c.dim), draw.f32(D, c.dim, scale=c.dim**-0.5)),
            2 * T * c.dim + 4 * (D * c.dim + T * D),
            2 * T * D * c.dim,
        ),
    ]


def _norms(c: AttnV41Cfg, name: str, T: int, pos: int) -> list[Case]:
    groups = max(T // 2, 1)
    return [
        Case("rmsnorm q", name, lambda draw: (draw.bf16(T, c.q_lora_rank), draw.f32(c.q_lora_rank), c.norm_eps),
             4 * T * c.q_lora_rank),
        Case("rmsnorm kv", name, lambda draw: (draw.bf16(T, c.head_dim), draw.f32(c.head_dim), c.norm_eps),
             4 * T * c.head_dim),
        Case("rmsnorm_f32 latent", name, lambda draw: (draw.f32(groups, c.head_dim), draw.f32(c.head_dim), c.norm_eps),
             6 * groups * c.head_dim),
    ]  # fmt: skip


def _turn_table(c: AttnV41Cfg, positions: int) -> Callable[[], tuple[Any, Any]]:
    """Makes the rotation table of so many positions, once."""
    freqs = yarn_freqs(c.rope_dim, c.compress_rope_theta, c.original_seq_len, c.rope_factor, c.beta_fast, c.beta_slow)

    @functools.cache
    def table() -> tuple[Any, Any]:
        cos, sin = freqs_table(freqs, np.arange(positions))
        return to_device(cos), to_device(sin)

    return table


def _ropes(c: AttnV41Cfg, name: str, T: int, pos: int) -> list[Case]:
    table = _turn_table(c, pos + T)

    def rope(op: str, heads: int, dims: int) -> Case:
        def arguments(draw: Draw) -> tuple[Any, ...]:
            return draw.bf16(T, heads, dims), *table(), pos

        return Case(op, name, arguments, 4 * T * heads * dims + 4 * T * c.rope_dim)

    return [
        rope("rope q", c.n_heads, c.head_dim),
        rope("rope kv", 1, c.head_dim),
        rope("rope index_q", c.index_n_heads, c.index_head_dim),
        rope("rope_inverse o", c.n_heads, c.head_dim),
    ]


def _quantisers(c: AttnV41Cfg, name: str, T: int, pos: int) -> list[Case]:
    index_q, groups = (T, c.index_n_heads, c.index_head_dim), max(T // 2, 1)
    return [
        Case("fp8_round_trip kv", name, lambda draw: (draw.bf16(T, c.head_dim),), 4 * T * c.head_dim),
        Case("fp4_round_trip_e8m0 index_q", name, lambda draw: (draw.bf16(*index_q),), 4 * int(np.prod(index_q))),
        Case(
            "fp4_round_trip_e4m3 latent", name, lambda draw: (draw.bf16(groups, c.head_dim),), 4 * groups * c.head_dim
        ),
    ]


def _compressors(c: AttnV41Cfg, name: str, T: int, pos: int) -> list[Case]:
    def arguments(draw: Draw) -> tuple[Any, ...]:
        return *(draw.f32(rows, c.head_dim) for rows in (T, T, 2, 2)), pos

    groups = (pos + T) // 2 - pos // 2
    state_bytes = 16 * 2 * c.head_dim
    return [
        Case("pool", name, arguments, (8 * 2 + 4) * groups * c.head_dim),
        Case("store_partial", name, arguments, state_bytes),
    ]


def _small(c: AttnV41Cfg, name: str, T: int, pos: int) -> list[Case]:
    written = min(T, c.window)
    return [
        Case("ring_write window", name, lambda draw: (draw.bf16(T, c.head_dim), draw.bf16(c.window, c.head_dim), pos),
             4 * written * c.head_dim),
        Case("index_weights", name, lambda draw: (draw.bf16(T, c.index_n_heads), c.index_scale),
             4 * T * c.index_n_heads),
    ]  # fmt: skip


def _score(c: AttnV41Cfg, name: str, T: int, pos: int, packed: bool = False) -> Case:
    """At ratio 2 for a prefill (as on the first three sources), at ratio 1 for a decode: the longer one."""
    ratio = 2 if pos == 0 else 1
    G, Hi, Di = max((pos + T) // ratio, 1), c.index_n_heads, c.index_head_dim

    def arguments(draw: Draw) -> tuple[Any, ...]:
        index_q = PLAIN.fp4_round_trip_e8m0(draw.bf16(T, Hi, Di))
        keys = draw.bf16(G, Di)
        index_k = PLAIN.pack_rows(keys, INDEX_KEY) if packed else PLAIN.fp4_round_trip_e8m0(keys)
        return index_q, draw.bf16(T, Hi, scale=c.index_scale), index_k, pos, ratio

    visible = sum(min((pos + t + 1) // ratio, G) for t in range(T))
    key_bytes = INDEX_KEY.row_bytes(Di) if packed else 2 * Di
    op = "index_score packed" if packed else "index_score"
    return Case(op, name, arguments, 2 * (T * Hi * Di + T * Hi) + G * key_bytes + 4 * T * G, 2 * visible * Hi * Di)


def _attention(c: AttnV41Cfg, name: str, T: int, pos: int, packed: bool = False) -> Case:
    """The window and index_topk compressed rows, at ratio 1."""
    D, H, G = c.head_dim, c.n_heads, pos + T
    n_rows = T if pos == 0 else c.window

    def arguments(draw: Draw) -> tuple[Any, ...]:
        idx = gather_list(c.window, pos, T, random_selection(c, T, pos, ratio=1))
        rows: list[Any] = [draw.bf16(n_rows, D), draw.bf16(G, D)]
        if packed:
            rows = [PLAIN.pack_rows(x, format) for x, format in zip(rows, (WINDOW, COMPRESSED))]
        return draw.bf16(T, H, D), *rows, to_device(idx), draw.f32(H), c.softmax_scale

    window = sum(min(pos + t + 1, c.window) for t in range(T))
    selected = sum(min(pos + t + 1, c.index_topk) for t in range(T))
    S = min(T, c.window) + min(c.index_topk, G) if pos == 0 else c.window + min(c.index_topk, G)
    row_bytes = [format.row_bytes(D) if packed else 2 * D for format in (WINDOW, COMPRESSED)]
    rows = min(n_rows, window) * row_bytes[0] + min(G, selected) * row_bytes[1]  # each named row once
    return Case("sparse_attention packed" if packed else "sparse_attention", name, arguments,
                4 * T * H * D + 4 * T * S + rows, 4 * H * D * (window + selected))  # fmt: skip


def random_selection(c: AttnV41Cfg, T: int, pos: int, ratio: int) -> np.ndarray:
    """A selection as step 8 publishes it -> [T, min(index_topk, G)] int32: ascending, shifted past the window rows, -1
    at the end. One position of each of index_topk stretches of what the query sees, so they are distinct."""
    G, shift = (pos + T) // ratio, T if pos == 0 else c.window
    k = min(c.index_topk, G)
    visible = ((pos + 1 + np.arange(T)) // ratio)[:, None]
    rng = np.random.default_rng(T + pos)
    begin = np.arange(k) * visible // max(k, 1)
    end = np.arange(1, k + 1) * visible // max(k, 1)
    spread = begin + (rng.random((T, k)) * (end - begin)).astype(np.int64)
    spread = np.where(visible > k, spread, np.arange(k))
    return np.where(spread < visible, spread + shift, -1).astype(np.int32)
