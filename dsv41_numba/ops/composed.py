"""Stages that the layer calls as one: rows on their way into a cache, and attention that is turned back.

Math       kv_rows           ring[p mod W] = kv = fp8_round_trip(rope(rmsnorm(y), p))             position p of a token
           index_key_rows    cache[g] = index_k = fp4_round_trip_e8m0(rope(rmsnorm(y), g ratio))  of a completed group g
           latent_rows       cache[g] = latent_q = fp4_round_trip_e4m3(rope(latent, g ratio))     likewise
           index_query_rows  index_q = fp4_round_trip_e8m0(rope(y, p))                            all heads of a token
           attention_turned_back   rope_inverse(sparse_attention(...), p)
Shapes     cos, sin [P, R / 2] f32, start_pos >= 0, weight [D] f32, eps a float; ring and cache are changed in place
           kv_rows           y [T, D] bf16, ring [W, D] bf16 -> [T, D] bf16
           index_key_rows    y [n, Di] bf16 of the n groups from start_pos // ratio on, cache [N, Di] bf16 -> [n, Di]
           latent_rows       latent [n, D] bf16 likewise, cache [N, D] bf16 -> [n, D] bf16
           Where the ring or cache is PackedRows, codes and scales are made and kept, and the result is PackedRows too
           index_query_rows  y [T, Hi, Di] bf16 -> [T, Hi, Di] bf16
           attention_turned_back   the arguments of sparse_attention -> [T, H, D] bf16
Precision  that of the stages: a rounding to bf16 after each. Packed rows stand for the same bf16 numbers
Launch     a launch a stage
Moves      4 bytes a number and stage, and once more what is written into a ring or cache
Errors     those of the stages
Source     steps 3, 5, 6, 9 and 11 with 12 of the layer

There is no kernel here: `composed` strings stages of an op table together. `tuned` does each in one pass.
"""

from collections.abc import Callable
from typing import Any

from dsv41_numba.formats.packed_rows import PackedRows

Stage = Callable[..., Any]


def composed(
    rmsnorm: Stage,
    rope: Stage,
    rope_inverse: Stage,
    fp8_round_trip: Stage,
    fp4_round_trip_e8m0: Stage,
    fp4_round_trip_e4m3: Stage,
    pack_rows: Stage,
    write_rows: Stage,
    sparse_attention: Stage,
) -> dict[str, Stage]:
    """The five functions above, of these stages, by name."""

    def turned(rows: Any, cos: Any, sin: Any, start_pos: int, step: int = 1) -> Any:
        T, D = rows.shape
        return rope(rows.reshape(T, 1, D), cos, sin, start_pos, step).reshape(T, D)

    def written(rows: Any, round_trip: Stage, cache: Any, first: int) -> Any:
        """Quantise rows as the cache keeps them, and put them there."""
        quantised = pack_rows(rows, cache.format) if isinstance(cache, PackedRows) else round_trip(rows)
        write_rows(quantised, cache, first)
        return quantised

    def kv_rows(y: Any, weight: Any, eps: float, cos: Any, sin: Any, start_pos: int, ring: Any) -> Any:
        return written(turned(rmsnorm(y, weight, eps), cos, sin, start_pos), fp8_round_trip, ring, start_pos)

    def index_key_rows(
        y: Any, weight: Any, eps: float, cos: Any, sin: Any, start_pos: int, ratio: int, cache: Any
    ) -> Any:
        first = start_pos // ratio
        keys = turned(rmsnorm(y, weight, eps), cos, sin, first * ratio, ratio)
        return written(keys, fp4_round_trip_e8m0, cache, first)

    def latent_rows(latent: Any, cos: Any, sin: Any, start_pos: int, ratio: int, cache: Any) -> Any:
        first = start_pos // ratio
        return written(turned(latent, cos, sin, first * ratio, ratio), fp4_round_trip_e4m3, cache, first)

    def index_query_rows(y: Any, cos: Any, sin: Any, start_pos: int) -> Any:
        return fp4_round_trip_e8m0(rope(y, cos, sin, start_pos))

    def attention_turned_back(
        q: Any, window_rows: Any, compress_rows: Any, idx: Any, attn_sink: Any, scale: float,
        cos: Any, sin: Any, start_pos: int,
    ) -> Any:  # fmt: skip
        o = sparse_attention(q, window_rows, compress_rows, idx, attn_sink, scale)
        return rope_inverse(o, cos, sin, start_pos)

    return {
        "kv_rows": kv_rows,
        "index_key_rows": index_key_rows,
        "latent_rows": latent_rows,
        "index_query_rows": index_query_rows,
        "attention_turned_back": attention_turned_back,
    }
