"""The stages of the layer, one file each, and the tables that bind them to a machine.

Every table has the same keys, so `layer.py` runs with any of them::

    REFERENCE   NumPy, bf16 arrays as `ml_dtypes.bfloat16`
    PLAIN       the readable kernels, on whatever machine `runtime.backend` chose; bf16 arrays as uint16 patterns
    TUNED       (in `dsv41_numba.tuned`) PLAIN with faster kernels where there are some

The functions hide the files they come from: `dsv41_numba.ops.rope` is the launcher once this package is imported, and
`from dsv41_numba.ops.rope import rope_kernel` still reaches into the file.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv41_numba.compare import bf16_array
from dsv41_numba.formats.bf16 import BF16
from dsv41_numba.formats.fp8_weight import Fp8Weight
from dsv41_numba.formats.packed_rows import PackedRows
from dsv41_numba.ops.composed import composed
from dsv41_numba.ops.compress import pool, pool_ref, store_partial, store_partial_ref
from dsv41_numba.ops.gather import gather_list, without_gaps
from dsv41_numba.ops.grouped_linear import grouped_linear, grouped_linear_ref
from dsv41_numba.ops.index_score import index_score, index_score_ref, index_weights, index_weights_ref
from dsv41_numba.ops.linear import linear, linear_f32, linear_f32_ref, linear_ref
from dsv41_numba.ops.linear_fp8 import linear_fp8, linear_fp8_ref
from dsv41_numba.ops.packed_rows import pack_rows, pack_rows_ref, write_rows, write_rows_ref
from dsv41_numba.ops.quant_fp4 import (
    fp4_round_trip_e4m3,
    fp4_round_trip_e4m3_ref,
    fp4_round_trip_e8m0,
    fp4_round_trip_e8m0_ref,
)
from dsv41_numba.ops.quant_fp8 import fp8_round_trip, fp8_round_trip_ref
from dsv41_numba.ops.ring import ring_write, ring_write_ref
from dsv41_numba.ops.rmsnorm import rmsnorm, rmsnorm_f32, rmsnorm_f32_ref, rmsnorm_ref
from dsv41_numba.ops.rope import rope, rope_inverse, rope_inverse_ref, rope_ref
from dsv41_numba.ops.sparse_attention import sparse_attention, sparse_attention_ref
from dsv41_numba.ops.topk import candidate_blocks, select
from dsv41_numba.runtime import backend


@dataclass(frozen=True)
class Ops:
    """One op table: where its arrays live, and one callable a stage. Each stage's file is its contract."""

    name: str
    bf16: np.dtype
    to_device: Callable[[np.ndarray], Any]
    to_host: Callable[[Any], np.ndarray]  # bf16 and packed rows come back as ml_dtypes.bfloat16
    zeros: Callable[..., Any]
    linear: Callable[..., Any]  # takes an Fp8Weight too, and is linear_fp8 then
    linear_fp8: Callable[..., Any]
    linear_f32: Callable[..., Any]
    rmsnorm: Callable[..., Any]
    rmsnorm_f32: Callable[..., Any]
    rope: Callable[..., Any]
    rope_in_place: Callable[..., Any]  # of an array that nobody else needs: it may be the one that comes back
    rope_inverse: Callable[..., Any]
    fp8_round_trip: Callable[..., Any]
    fp4_round_trip_e8m0: Callable[..., Any]
    fp4_round_trip_e4m3: Callable[..., Any]
    pool: Callable[..., Any]
    store_partial: Callable[..., Any]
    pack_rows: Callable[..., Any]
    ring_write: Callable[..., Any]
    write_rows: Callable[..., Any]  # ring_write, of packed rows too
    index_weights: Callable[..., Any]
    index_score: Callable[..., Any]
    candidate_blocks: Callable[..., Any]
    select: Callable[..., Any]
    gather_list: Callable[..., Any]
    without_gaps: Callable[..., Any]
    sparse_attention: Callable[..., Any]
    grouped_linear: Callable[..., Any]
    # stages that the layer calls as one: `ops.composed`
    kv_rows: Callable[..., Any]
    index_key_rows: Callable[..., Any]
    latent_rows: Callable[..., Any]
    index_query_rows: Callable[..., Any]
    attention_turned_back: Callable[..., Any]


def _values_to_host(array: Any) -> np.ndarray:
    if isinstance(array, PackedRows):
        return array.planes(backend.to_host).to_bf16()
    host = backend.to_host(array)
    return bf16_array(host) if host.dtype == np.uint16 else host


def _on_host(stage: Callable[..., np.ndarray]) -> Callable[..., Any]:
    """A stage that runs on the host, for arrays that live on the device."""

    @functools.wraps(stage)
    def run(*args: Any) -> Any:
        return backend.to_device(stage(*(backend.to_host(arg) if hasattr(arg, "shape") else arg for arg in args)))

    return run


def by_weight(of_bf16: Callable[..., Any], of_fp8: Callable[..., Any]) -> Callable[..., Any]:
    """The linear of a table: the weight's own storage says which of the two it is."""

    @functools.wraps(of_bf16)
    def linear(x: Any, weight: Any) -> Any:
        return (of_fp8 if isinstance(weight, Fp8Weight) else of_bf16)(x, weight)

    return linear


REFERENCE = Ops(
    name="reference",
    bf16=np.dtype(BF16),
    to_device=np.asarray,
    to_host=lambda array: array.to_bf16() if isinstance(array, PackedRows) else np.asarray(array),
    zeros=np.zeros,
    linear=by_weight(linear_ref, linear_fp8_ref),
    linear_fp8=linear_fp8_ref,
    linear_f32=linear_f32_ref,
    rmsnorm=rmsnorm_ref,
    rmsnorm_f32=rmsnorm_f32_ref,
    rope=rope_ref,
    rope_in_place=rope_ref,
    rope_inverse=rope_inverse_ref,
    fp8_round_trip=fp8_round_trip_ref,
    fp4_round_trip_e8m0=fp4_round_trip_e8m0_ref,
    fp4_round_trip_e4m3=fp4_round_trip_e4m3_ref,
    pool=pool_ref,
    store_partial=store_partial_ref,
    pack_rows=pack_rows_ref,
    ring_write=ring_write_ref,
    write_rows=write_rows_ref,
    index_weights=index_weights_ref,
    index_score=index_score_ref,
    candidate_blocks=candidate_blocks,
    select=select,
    gather_list=gather_list,
    without_gaps=without_gaps,
    sparse_attention=sparse_attention_ref,
    grouped_linear=grouped_linear_ref,
    **composed(
        rmsnorm_ref,
        rope_ref,
        rope_inverse_ref,
        fp8_round_trip_ref,
        fp4_round_trip_e8m0_ref,
        fp4_round_trip_e4m3_ref,
        pack_rows_ref,
        write_rows_ref,
        sparse_attention_ref,
    ),
)

PLAIN = Ops(
    name="plain",
    bf16=np.dtype(np.uint16),
    to_device=backend.to_device,
    to_host=_values_to_host,
    zeros=backend.zeros,
    linear=by_weight(linear, linear_fp8),
    linear_fp8=linear_fp8,
    linear_f32=linear_f32,
    rmsnorm=rmsnorm,
    rmsnorm_f32=rmsnorm_f32,
    rope=rope,
    rope_in_place=rope,
    rope_inverse=rope_inverse,
    fp8_round_trip=fp8_round_trip,
    fp4_round_trip_e8m0=fp4_round_trip_e8m0,
    fp4_round_trip_e4m3=fp4_round_trip_e4m3,
    pool=pool,
    store_partial=store_partial,
    pack_rows=pack_rows,
    ring_write=ring_write,
    write_rows=write_rows,
    index_weights=index_weights,
    index_score=index_score,
    candidate_blocks=_on_host(candidate_blocks),
    select=_on_host(select),
    gather_list=_on_host(gather_list),
    without_gaps=_on_host(without_gaps),
    sparse_attention=sparse_attention,
    grouped_linear=grouped_linear,
    **composed(
        rmsnorm,
        rope,
        rope_inverse,
        fp8_round_trip,
        fp4_round_trip_e8m0,
        fp4_round_trip_e4m3,
        pack_rows,
        write_rows,
        sparse_attention,
    ),
)


def table(name: str) -> Ops:
    """The op table of a name; "tuned" is imported when it is asked for."""
    if name == "tuned":
        from dsv41_numba.tuned import TUNED

        return TUNED
    return {ops.name: ops for ops in (REFERENCE, PLAIN)}[name]
