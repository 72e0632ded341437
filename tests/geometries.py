"""Geometries that are not the tiny one, a seeded input for any of them, and a layer in float64.

Nothing of the package may lean on the tiny sizes, so these have odd windows, uneven groups, K that no tile divides,
ratios in other orders, layers without a ratio between the others, and no candidate source.
"""

import dataclasses

import numpy as np

from dsv41_numba.config import TINY, AttnV41Cfg
from dsv41_numba.formats.bf16 import as_bf16
from dsv41_numba.formats.e2m1 import e2m1_to_f32, f32_to_e2m1
from dsv41_numba.formats.e4m3 import e4m3_to_f32, f32_to_e4m3
from dsv41_numba.ops.rope import cos_sin
from dsv41_numba.ops.topk import candidate_blocks, select
from dsv41_numba.roles import LayerRole, roles


def geometry(ratios, kv_sources, index_sources, candidate_source, **sizes) -> AttnV41Cfg:
    """The tiny geometry with other layers and sizes."""
    return dataclasses.replace(
        TINY,
        n_layers=len(ratios),
        compress_ratios=ratios,
        kv_sources=kv_sources,
        index_sources=index_sources,
        candidate_source=candidate_source,
        **sizes,
    )


# every role once or twice, in the released order: 0 SWA, 1 and 3 FULL at ratio 2, 4 FULL at ratio 1 with the candidate
# mask, 6 REINDEX, the others REUSE
SMALL = geometry((0, 2, 2, 2, 1, 1, 1, 1), (1, 3, 4), (1, 3, 4, 6), 4)

GEOMETRIES = {
    "odd": geometry(
        (0, 4, 4, 0, 2, 2, 0, 1, 1, 1, 0), (1, 4, 7), (1, 4, 7, 8), 7,
        dim=40, n_heads=6, head_dim=96, rope_dim=10, q_lora_rank=24, o_groups=3, o_lora_rank=7, window=5,
        index_n_heads=5, index_head_dim=64, index_topk=6, candidate_topk_blocks=3, candidate_block_size=3,
        norm_eps=1e-20, original_seq_len=16, rope_factor=3.0, max_seq=41,
    ),
    "no candidates": geometry(
        (2, 0, 2, 2), (0,), (0, 2), None,
        n_heads=3, o_groups=1, head_dim=32, rope_dim=32, q_lora_rank=19, window=6, index_topk=3,
        candidate_topk_blocks=0, candidate_block_size=0, original_seq_len=65536, max_seq=33,
    ),
    "window only": geometry(
        (0,), (), (), None,
        dim=33, n_heads=1, o_groups=1, head_dim=32, rope_dim=2, o_lora_rank=3, window=1, max_seq=20,
    ),
    "one layer of ratio 4": geometry(
        (4,), (0,), (0,), 0,
        n_heads=2, head_dim=64, window=7, index_n_heads=1, index_topk=50, candidate_topk_blocks=1,
        candidate_block_size=1, max_seq=43,
    ),
    "mask at ratio 2": geometry(
        (1, 2, 0, 2, 2, 2), (0, 1), (0, 1, 3, 5), 1,
        o_groups=4, window=3, index_n_heads=7, index_topk=5, candidate_topk_blocks=2, candidate_block_size=4,
        max_seq=40,
    ),
    "larger than a tile": geometry(
        (1, 1), (0,), (0,), None,
        dim=50, n_heads=9, o_groups=9, head_dim=160, rope_dim=64, q_lora_rank=33, o_lora_rank=17, window=37,
        index_n_heads=33, index_head_dim=96, index_topk=45, max_seq=90,
    ),
}  # fmt: skip
TOKENS = {"larger than a tile": (71, 2), "window only": (9, 3)}  # prefill, decode steps; (17, 6) for the others


def random_x(rng: np.random.Generator, cfg: AttnV41Cfg, T: int) -> np.ndarray:
    """An input of its own for each layer: x[layer] is [T, dim] bf16, signed normal numbers."""
    return as_bf16(rng.standard_normal((cfg.n_layers, T, cfg.dim)).astype(np.float32))


def _bf16(values: np.ndarray) -> np.ndarray:
    """Round to bf16, back in float64: what a stage hands to the next one."""
    return as_bf16(np.asarray(values).astype(np.float32)).astype(np.float64)


def _norm(rows: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return _bf16(weight * rows / np.sqrt((rows * rows).mean(-1, keepdims=True) + eps))


def _linear(rows: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return _bf16(rows @ weight.astype(np.float64).T)


def _turn(cfg: AttnV41Cfg, ratio: int, rows: np.ndarray, pos: np.ndarray, way: int = 1) -> np.ndarray:
    """Rotate the last rope_dim entries of rows [n, ..., D], which stand at `pos` [n]; way -1 turns back."""
    R = cfg.rope_dim
    theta = cfg.compress_rope_theta if ratio else cfg.rope_theta
    f32 = np.float32  # the table's roundings are part of the contract: f32 freq, f32 angle, f32 cos and sin
    freq = 1 / np.array([theta ** float(f32(2 * i) / f32(R)) for i in range(R // 2)], f32)
    if ratio:  # YaRN: pairs with fewer turns than beta_slow in the original length are slowed, a ramp between
        low, high = (
            R * np.log(cfg.original_seq_len / (2 * np.pi * beta)) / (2 * np.log(theta))
            for beta in (cfg.beta_fast, cfg.beta_slow)
        )
        low, high = max(np.floor(low), 0), min(np.ceil(high), R - 1)
        keep = 1 - np.clip((np.arange(R // 2, dtype=f32) - f32(low)) / f32(max(high - low, 0.001)), 0, 1)
        freq = freq / f32(cfg.rope_factor) * (1 - keep) + freq * keep
    cos, sin = cos_sin(pos.astype(f32)[:, None] * freq)
    cos, sin = (part.reshape(len(pos), *(1,) * (rows.ndim - 2), -1) for part in (cos, sin))
    even, odd = (rows[..., first::2].astype(np.float32) for first in (-R, 1 - R))
    # f32 products and sums, each rounded, as the contract says
    both = np.stack([even * cos - way * odd * sin, way * even * sin + odd * cos], -1)
    return np.concatenate([rows[..., :-R], _bf16(both.reshape(*rows.shape[:-1], R))], -1)


def _power_of_two(values: np.ndarray) -> np.ndarray:
    """The power of two at or above."""
    fraction, exponent = np.frexp(values)
    return np.ldexp(1.0, exponent - (fraction == 0.5))


def _quantised(rows: np.ndarray, block: int, scale_of, encode, decode) -> np.ndarray:
    blocks = rows.reshape(-1, block)
    scale = scale_of(np.abs(blocks).max(-1, keepdims=True))
    codes = encode((blocks.astype(np.float32) / scale.astype(np.float32)).astype(np.float32))
    return _bf16(decode(codes).astype(np.float64) * scale).reshape(rows.shape)


def _fp8(rows: np.ndarray) -> np.ndarray:
    return _quantised(rows, 32, lambda amax: _power_of_two(np.maximum(amax, 1e-4) / 448), f32_to_e4m3, e4m3_to_f32)


def _fp4(rows: np.ndarray) -> np.ndarray:
    floor = 6 * 2.0**-126
    return _quantised(rows, 32, lambda amax: _power_of_two(np.maximum(amax, floor) / 6), f32_to_e2m1, e2m1_to_f32)


def _fp4_latent(rows: np.ndarray) -> np.ndarray:
    def scale(amax):
        return e4m3_to_f32(f32_to_e4m3((np.maximum(amax, 6 * 2.0**-9).astype(np.float32)) / np.float32(6)))

    return _quantised(rows, 16, scale, f32_to_e2m1, e2m1_to_f32)


def oracle(cfg: AttnV41Cfg, weights, x: np.ndarray, n_prefill: int, index_keys: str) -> dict[str, np.ndarray]:
    """Every stage of every layer and call as a recording's tensors, derived anew in float64 and without any cache.

    Each layer's rows are computed for the whole sequence at once; a call then takes what it may see. x[layer] is
    [prefill + decode steps, dim] bf16.
    """
    table = roles(cfg)
    rows = [_rows_of_layer(cfg, role, weights(role.layer), x[role.layer].astype(np.float64)) for role in table]
    calls = [("p", 0, n_prefill)] + [(f"d{i}", p, p + 1) for i, p in enumerate(range(n_prefill, x.shape[1]))]
    tensors: dict[str, np.ndarray] = {}
    published = None  # the index keys of the layer that published last
    for step, start, end in calls:
        shared: dict[tuple[str, int], np.ndarray] = {}  # selections and masks of this call
        for role, row in zip(table, rows):
            if role.is_kv_source and (end // role.ratio > start // role.ratio or index_keys == "owner"):
                published = row["index_k"]
            call = _call(cfg, role, weights(role.layer), rows, published, shared, start, end)
            for name, value in ({"x": x[role.layer][start:end]} | call).items():
                value = value.astype(np.float32) if value.dtype == np.float64 else value
                in_f32 = name in ("comp_kv", "comp_score", "score") or value.dtype != np.float32
                tensors[f"L{role.layer:02d}.{step}.{name}"] = value if in_f32 else as_bf16(value)
    return tensors


def _rows_of_layer(cfg: AttnV41Cfg, role: LayerRole, w, x: np.ndarray) -> dict[str, np.ndarray]:
    """Steps 1 to 6 and 9 for every position and every complete group."""
    P, ratio, eps = len(x), role.ratio, cfg.norm_eps
    pos = np.arange(P)
    qr = _norm(_linear(x, w.wq_a), w.q_norm, eps)
    q = _turn(cfg, ratio, _linear(qr, w.wq_b).reshape(P, cfg.n_heads, cfg.head_dim), pos)
    rows = {"qr": qr, "q": q, "kv": _fp8(_turn(cfg, ratio, _norm(_linear(x, w.wkv), w.kv_norm, eps), pos))}
    if role.is_kv_source:
        n = P // ratio
        if ratio == 1:
            latent = _linear(x, w.compressor.wkv)
        else:
            rows["comp_kv"], rows["comp_score"] = (
                x @ matrix.astype(np.float64).T for matrix in (w.compressor.wkv, w.compressor.wgate)
            )
            kv, score = (rows[name][: n * ratio].reshape(n, ratio, -1) for name in ("comp_kv", "comp_score"))
            p = np.exp(score - score.max(1, keepdims=True))
            latent = _bf16((p * kv).sum(1) / p.sum(1))
        rows["latent"] = _norm(latent, w.compressor.norm, eps)
        key = _norm(_linear(rows["latent"], w.indexer.wk), w.indexer.k_norm, eps)
        rows["index_k"] = _fp4(_turn(cfg, ratio, key, np.arange(n) * ratio))
        rows["latent_q"] = _fp4_latent(_turn(cfg, ratio, rows["latent"], np.arange(n) * ratio))
    if role.is_index_source:
        index_q = _linear(qr, w.indexer.wq_b).reshape(P, cfg.index_n_heads, cfg.index_head_dim)
        rows["index_q"] = _fp4(_turn(cfg, ratio, index_q, pos))
        scale = np.float32(cfg.index_head_dim**-0.5 * cfg.index_n_heads**-0.5)
        rows["index_w"] = _bf16(_linear(x, w.indexer.weights_proj) * scale)
    return rows


def _call(cfg: AttnV41Cfg, role: LayerRole, w, rows, keys, shared, start: int, end: int) -> dict[str, np.ndarray]:
    """One layer's stages of the call that holds the positions from start to end - 1."""
    own, ratio, T, W = rows[role.layer], role.ratio, end - start, cfg.window
    pos = np.arange(start, end)
    stages = {name: own[name][start:end] for name in ("qr", "q", "kv", "index_q", "index_w") if name in own}
    stages |= {name: own[name][start:end] for name in ("comp_kv", "comp_score") if name in own}
    if role.is_kv_source and end // ratio > start // ratio:
        stages |= {name: own[name][start // ratio : end // ratio] for name in ("latent", "index_k", "latent_q")}
    window = np.zeros((W, cfg.head_dim))
    for p in range(max(end - W, 0), end):
        window[p % W] = own["kv"][p]
    stages["window"] = window
    compressed = own["kv"][:0]
    if ratio:
        compressed = rows[role.kv_source]["latent_q"][: end // ratio]
        n_window_rows = T if start == 0 else W
        if role.is_index_source:
            stages["score"] = _score(own, keys[: end // ratio], pos, ratio)
            _choose(cfg, role, stages, shared, (pos + 1) // ratio, n_window_rows)
        stages["topk"] = shared["topk", role.index_source]
    if start == 0:  # the rows of this call, each query's own window
        lists = [list(range(max(t - W + 1, 0), t + 1)) for t in range(T)]
        slots = np.array([(row + [-1] * W)[: min(T, W)] for row in lists])
    else:
        slots = np.array([[p % W if p >= 0 else -1 for p in range(start - W + 1, start + 1)]])
    stages["idx"] = np.concatenate([slots, stages["topk"]] if ratio else [slots], 1).astype(np.int32)
    every_row = np.concatenate([own["kv"][:end] if start == 0 else window, compressed])
    o = np.zeros((T, cfg.n_heads, cfg.head_dim))
    for t, row in enumerate(stages["idx"]):
        seen = every_row[row[row >= 0]]
        weight = np.exp(stages["q"][t] @ seen.T * cfg.head_dim**-0.5)
        o[t] = weight @ seen / (np.exp(w.attn_sink.astype(np.float64))[:, None] + weight.sum(1, keepdims=True))
    stages["o"] = _bf16(o)
    turned = _turn(cfg, ratio, stages["o"], pos, -1).reshape(T, cfg.o_groups, -1)
    matrices = w.wo_a.astype(np.float64).reshape(cfg.o_groups, cfg.o_lora_rank, -1)
    stages["og"] = _bf16(np.einsum("tgk,grk->tgr", turned, matrices))
    stages["out"] = _linear(stages["og"].reshape(T, -1), w.wo_b)
    return stages


def _score(own: dict[str, np.ndarray], keys: np.ndarray, pos: np.ndarray, ratio: int) -> np.ndarray:
    """bf16 scores, -inf where a group is not complete. Parts of 32 dimensions and heads are added in f32, in order."""
    q = own["index_q"][pos]
    total = np.zeros((len(pos), len(keys)), np.float32)
    for h in range(q.shape[1]):
        dot = np.zeros_like(total)
        for d in range(0, q.shape[2], 32):
            dot += (q[:, h, d : d + 32] @ keys[:, d : d + 32].T).astype(np.float32)
        total += _bf16(np.maximum(_bf16(dot), 0) * own["index_w"][pos, h, None]).astype(np.float32)
    hidden = np.arange(len(keys)) >= ((pos + 1) // ratio)[:, None]
    return np.where(hidden, -np.inf, _bf16(total))


def _choose(cfg: AttnV41Cfg, role: LayerRole, stages, shared, reachable: np.ndarray, n_window_rows: int) -> None:
    """Step 8. The package's functions settle ties, whose order recordings pin; that the sets are right is checked."""
    score = stages["score"].astype(np.float32)
    if role.publishes_candidates:
        size = cfg.candidate_block_size
        mask = candidate_blocks(score, reachable, cfg.candidate_topk_blocks, size)
        for row, kept, n in zip(score, mask, reachable):
            best = [row[b : b + size].max() for b in range(0, len(row), size)]
            if n:
                best[(n - 1) // size] = np.inf
            _check_best(np.array(best), np.flatnonzero(kept[::size]), cfg.candidate_topk_blocks)
        shared["mask", role.layer] = stages["candidates"] = mask
    allowed = score
    if role.obeys_candidates is not None:
        allowed = np.where(shared["mask", role.obeys_candidates] > 0, score, np.float32(-np.inf))
    chosen = select(allowed, cfg.index_topk)
    for row, picked in zip(allowed, chosen):
        _check_best(row, picked[picked >= 0], cfg.index_topk)
    shared["topk", role.layer] = np.where(chosen < 0, -1, chosen + n_window_rows).astype(np.int32)


def _check_best(values: np.ndarray, picked: np.ndarray, k: int) -> None:
    """Whether `picked` are k of the largest values, or all of the finite ones where there are fewer."""
    assert len(picked) == min(k, np.count_nonzero(values > -np.inf))
    left = np.delete(values, picked)
    assert not len(picked) or not len(left) or left.max() <= values[picked].min()
