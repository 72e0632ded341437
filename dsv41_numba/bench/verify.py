"""Hold a stage to its NumPy reference on a sample of its output, at sizes where the whole would take minutes.

`verify` compares one call: the tokens at both ends and in the middle, and of a matrix the first and last rows. A sample
of that kind meets every edge of a launch's grid. `checked` makes an op table that verifies every call as it is made, so
that a whole layer is verified by running it once.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv41_numba.compare import bf16_array
from dsv41_numba.formats.fp8_weight import Fp8Weight
from dsv41_numba.formats.packed_rows import PackedRows, RowFormat
from dsv41_numba.ops import PLAIN, REFERENCE, Ops
from dsv41_numba.ops.composed import composed
from dsv41_numba.ops.packed_rows import same_planes
from dsv41_numba.rules import steps_apart
from dsv41_numba.runtime import backend
from dsv41_numba.stages import STAGES
from dsv41_numba.tuned import sparse_attention as tuned_attention

MATRIX_ROWS = 128  # of each end of a weight matrix: output columns
ROWS = 24  # of a linear that is compared by whole rows
KEYS = 1024  # of each end of the index keys
# Of a row's largest output. Where f32 sums are taken in another order, a weight may round to the next bf16: that moves
# it, and what it brings, by at most 2^-7.
WEIGHT_STEP = 2.0**-7
FUSED = ("kv_rows", "index_key_rows", "latent_rows", "index_query_rows")
SMALL_BYTES = 1 << 24  # an array up to this size is fetched whole, since a slice costs 100 us


@dataclass(frozen=True)
class Verdict:
    """How far a sample of a stage's output is from its reference, in the steps of its rule."""

    stage: str
    elements: int
    worst: int
    limit: int

    @property
    def ok(self) -> bool:
        return self.worst <= self.limit

    def __str__(self) -> str:
        found = f"{self.worst} steps apart, {self.limit} allowed"
        return f"{self.stage}: {found}, {self.elements} elements compared"


def verify(stage: str, arguments: tuple[Any, ...], result: Any, before: np.ndarray | None = None) -> Verdict:
    """Compare one call of a PLAIN stage with its reference.

    arguments  what it was called with, device arrays
    before     of a stage that writes an argument: `to_verify` of its arguments before the call
    """
    if stage == "store_partial":
        kv, score, kv_state, score_state, start_pos = arguments
        expected = _host(before)
        REFERENCE.store_partial(_host(kv), _host(score), expected, _host(score_state), start_pos)
        got = _host(kv_state)
    else:
        got, expected = SAMPLES[stage](arguments, result)
    return _verdict(stage, got, expected)


def verify_rows(stage: str, arguments: tuple[Any, ...], result: Any, before: None = None) -> Verdict:
    """`verify` of a linear by whole rows: a tile of any place in y has some of them."""
    x, weight, *groups = arguments
    tokens = spread(x.shape[0])
    expected = getattr(REFERENCE, stage)(take(x, tokens), _host(weight), *groups)
    return _verdict(stage, take(result, tokens), expected)


def verify_attention(stage: str, arguments: tuple[Any, ...], result: Any, before: np.ndarray | None = None) -> Verdict:
    """`verify` of the tuned sparse attention, by the reference of the rung that was picked.

    Where that rounds weights to bf16, a difference of at most WEIGHT_STEP of the row's largest counts as none.
    """
    reference = tuned_attention.reference(tuned_attention.picked(*arguments))
    got, expected = _sparse_attention(reference)(arguments, result)
    if reference is tuned_attention.sparse_attention_ref:
        values, wanted = got.astype(np.float32), expected.astype(np.float32)
        near = np.abs(values - wanted) <= WEIGHT_STEP * np.abs(wanted).max(-1, keepdims=True)
        got = np.where(near, expected, got)
    return _verdict(stage, got, expected)


def _verdict(stage: str, got: np.ndarray, expected: np.ndarray) -> Verdict:
    steps = steps_apart(STAGES[stage].rule, got, expected)
    return Verdict(stage, int(steps.size), int(steps.max(initial=0)), STAGES[stage].rule.steps)


def spread(n: int) -> list[int]:
    """At most ROWS of n rows, both ends among them, at distances that no tile is a multiple of."""
    return sorted({(n - 1) * i // (ROWS - 1) for i in range(ROWS)})


def to_verify(stage: str, arguments: tuple[Any, ...]) -> np.ndarray | None:
    """What `verify` must know of the arguments before the call: the state of the stage that changes one."""
    return np.array(_host(arguments[2])) if stage == "store_partial" else None


def checked(ops: Ops, see: Callable[[Verdict], None]) -> Ops:
    """`ops` with every stage verified as it is called; `see` gets each verdict."""

    def wrap(stage: str) -> Callable[..., Any]:
        run = getattr(ops, stage)
        check = verify_attention if run is tuned_attention.sparse_attention else verify

        def call(*arguments: Any) -> Any:
            before = to_verify(stage, arguments)
            result = run(*arguments)
            if all(0 not in a.shape for a in arguments[:1]):
                see(check(stage, arguments, result, before))
            return result

        return call

    def rope_in_place(x: Any, *others: Any) -> Any:
        before = backend.to_device(np.array(backend.to_host(x)))
        result = ops.rope_in_place(x, *others)
        if 0 not in x.shape:
            see(verify("rope", (before, *others), result))
        return result

    def attention_turned_back(*arguments: Any) -> Any:
        *attended, cos, sin, start_pos = arguments
        o = wrapped["sparse_attention"](*attended)
        result = ops.attention_turned_back(*arguments)
        see(verify("rope_inverse", (o, cos, sin, start_pos), result))
        return result

    def fused(name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            result = getattr(ops, name)(*arguments)
            see(same_as_plain(name, arguments, result))
            return result

        return call

    def pack_rows(x: Any, format: RowFormat) -> Any:
        rows = ops.pack_rows(x, format)
        sample = _some(x.shape[0])
        expected = REFERENCE.pack_rows(take(x, sample), format)
        see(_same_planes("pack_rows", take(rows, sample), expected))
        return rows

    def write_rows(rows: Any, ring: Any, start_pos: int) -> None:
        ops.write_rows(rows, ring, start_pos)
        for pair in same_planes(rows, ring):
            see(verify("ring_write", (*pair, start_pos), None))

    wrapped: dict[str, Any] = {stage: wrap(stage) for stage in STAGES}
    wrapped |= {"rope_in_place": rope_in_place, "pack_rows": pack_rows, "write_rows": write_rows}
    parts = {name: wrapped[name] for name in inspect.signature(composed).parameters}
    by_parts = composed(**parts)
    for name in FUSED:
        plain = getattr(ops, name) is getattr(PLAIN, name)
        wrapped[name] = by_parts[name] if plain else fused(name)
    if ops.attention_turned_back is PLAIN.attention_turned_back:
        wrapped["attention_turned_back"] = by_parts["attention_turned_back"]
    else:
        wrapped["attention_turned_back"] = attention_turned_back
    return dataclasses.replace(ops, **wrapped)


def same_as_plain(name: str, arguments: Sequence[Any], result: Any) -> Verdict:
    """A fused stage beside the plain stages one after the other, each of which has its own reference: the same bits.

    The plain ones write into the call's own cache, of which the result may be a part: it is fetched before.
    """
    if isinstance(result, PackedRows):
        packed = result.planes(lambda plane: np.array(backend.to_host(plane)))
        return _same_planes(name, packed, getattr(PLAIN, name)(*arguments).planes(backend.to_host))
    got = np.array(backend.to_host(result))
    expected = backend.to_host(getattr(PLAIN, name)(*arguments))
    differ = int(np.count_nonzero(got != expected))
    return Verdict(name, expected.size, differ, 0)


def _same_planes(name: str, got: PackedRows, expected: PackedRows) -> Verdict:
    """The same codes and the same scales, of rows on the host."""
    pairs = same_planes(got, expected)
    return Verdict(name, expected.nbytes, sum(int(np.count_nonzero(a != b)) for a, b in pairs), 0)


def take(array: Any, rows: Iterable[int]) -> Any:
    """Some rows of a device array, or of packed rows, on the host: bf16 as ml_dtypes.bfloat16."""
    wanted = np.asarray(list(rows), np.int64)
    if isinstance(array, PackedRows):
        return array.planes(lambda plane: take(plane, wanted))
    if array.size * array.dtype.itemsize <= SMALL_BYTES:
        return _host(array)[wanted]
    starts = np.flatnonzero(np.diff(wanted, prepend=wanted[:1] - 2) != 1)
    runs = [wanted[a:b] for a, b in zip(starts, [*starts[1:], len(wanted)])]
    parts = [_host(array[int(run[0]) : int(run[-1]) + 1]) for run in runs]
    return np.concatenate(parts) if parts else _host(array[:0])


def _host(array: Any) -> np.ndarray:
    host = backend.to_host(array)
    return bf16_array(host) if host.dtype == np.uint16 else host


def _some(n: int) -> list[int]:
    """Tokens to look at: both ends and the middle."""
    return sorted({0, min(1, n - 1), n // 2, max(n - 2, 0), n - 1})


def _ends(n: int, size: int) -> np.ndarray:
    """The first and last `size` of n."""
    return np.arange(n) if n <= 2 * size else np.r_[:size, n - size : n]


Pair = tuple[np.ndarray, np.ndarray]


def _linear(reference: Callable[..., np.ndarray]) -> Callable[[tuple[Any, ...], Any], Pair]:
    def sample(arguments: tuple[Any, ...], y: Any) -> Pair:
        x, weight = arguments
        tokens, columns = _some(x.shape[0]), _ends(weight.shape[0], MATRIX_ROWS)
        return take(y, tokens)[:, columns], reference(take(x, tokens), take(weight, columns))

    return sample


def _linear_fp8(arguments: tuple[Any, ...], y: Any) -> Pair:
    """Whole blocks of the weight's rows, so that they keep their scales."""
    x, weight = arguments
    tokens, size = _some(x.shape[0]), weight.block[0]
    blocks = _ends(-(-weight.shape[0] // size), MATRIX_ROWS // size)
    columns = np.array([n for b in blocks for n in range(b * size, min((b + 1) * size, weight.shape[0]))])
    some = Fp8Weight(take(weight.codes, columns), take(weight.scale, blocks), weight.block)
    return take(y, tokens)[:, columns], REFERENCE.linear_fp8(take(x, tokens), some)


def _grouped_linear(arguments: tuple[Any, ...], og: Any) -> Pair:
    o, weight, n_groups = arguments
    rank, tokens = weight.shape[0] // n_groups, _some(o.shape[0])
    ranks = _ends(rank, MATRIX_ROWS // n_groups)
    rows = (np.arange(n_groups)[:, None] * rank + ranks).reshape(-1)
    return take(og, tokens)[:, :, ranks], REFERENCE.grouped_linear(take(o, tokens), take(weight, rows), n_groups)


def _by_row(reference: Callable[..., np.ndarray]) -> Callable[[tuple[Any, ...], Any], Pair]:
    """Stages that make a row of y from a row of their first argument and the others, which are small."""

    def sample(arguments: tuple[Any, ...], y: Any) -> Pair:
        x, *others = arguments
        rows = _some(x.shape[0])
        others = [_host(a) if hasattr(a, "shape") else a for a in others]
        return take(y, rows), reference(take(x, rows), *others)

    return sample


def _rope(reference: Callable[..., np.ndarray]) -> Callable[[tuple[Any, ...], Any], Pair]:
    def sample(arguments: tuple[Any, ...], y: Any) -> Pair:
        x, cos, sin, start_pos, *step = arguments
        tokens = _some(x.shape[0])
        positions = [start_pos + t * (step[0] if step else 1) for t in tokens]
        pairs = zip(take(x, tokens), take(cos, positions), take(sin, positions))
        return take(y, tokens), np.concatenate([reference(row[None], c[None], s[None], 0) for row, c, s in pairs])

    return sample


def _pool(arguments: tuple[Any, ...], pooled: Any) -> Pair:
    *arrays, start_pos = arguments
    return _host(pooled), REFERENCE.pool(*map(_host, arrays), start_pos)


def _ring_write(arguments: tuple[Any, ...], _: Any) -> Pair:
    """That the rows are there. That no other slot changed is a matter of small tests."""
    rows, ring, start_pos = arguments
    T, W = rows.shape[0], ring.shape[0]
    kept = [t for t in _some(T) if t >= T - W]
    slots = [take(ring, [(start_pos + t) % W]) for t in kept]
    return np.concatenate(slots), take(rows, kept)


def _index_score(arguments: tuple[Any, ...], score: Any) -> Pair:
    index_q, index_w, index_k, start_pos, ratio = arguments
    G = index_k.shape[0]
    parts = [range(G)] if G <= 2 * KEYS else [range(KEYS), range(G - KEYS, G)]
    got, expected = [], []
    for t in _some(index_q.shape[0]):
        q, w, row = take(index_q, [t]), take(index_w, [t]), take(score, [t])
        for keys in parts:
            got.append(row[:, keys[0] : keys[-1] + 1].reshape(-1))
            # seen from the first of these keys, the query stands that many groups earlier
            pos = start_pos + t - keys[0] * ratio
            expected.append(REFERENCE.index_score(q, w, take(index_k, keys), pos, ratio).reshape(-1))
    return np.concatenate(got), np.concatenate(expected)


def _sparse_attention(reference: Callable[..., np.ndarray]) -> Callable[[tuple[Any, ...], Any], Pair]:
    def sample(arguments: tuple[Any, ...], o: Any) -> Pair:
        q, window_rows, compress_rows, idx, attn_sink, scale = arguments
        W, tokens = window_rows.shape[0], _some(q.shape[0])
        expected = []
        for t in tokens:
            slots = take(idx, [t])
            used = np.unique(slots[slots >= 0])  # only the rows that this query names, numbered anew
            window, compressed = take(window_rows, used[used < W]), take(compress_rows, used[used >= W] - W)
            renumbered = np.where(slots < 0, -1, np.searchsorted(used, slots)).astype(np.int32)
            expected.append(reference(take(q, [t]), window, compressed, renumbered, _host(attn_sink), scale))
        return take(o, tokens), np.concatenate(expected)

    return sample


SAMPLES: dict[str, Callable[[tuple[Any, ...], Any], Pair]] = {
    "linear": _linear(REFERENCE.linear),
    "linear_fp8": _linear_fp8,
    "linear_f32": _linear(REFERENCE.linear_f32),
    "grouped_linear": _grouped_linear,
    "rmsnorm": _by_row(REFERENCE.rmsnorm),
    "rmsnorm_f32": _by_row(REFERENCE.rmsnorm_f32),
    "rope": _rope(REFERENCE.rope),
    "rope_inverse": _rope(REFERENCE.rope_inverse),
    "fp8_round_trip": _by_row(REFERENCE.fp8_round_trip),
    "fp4_round_trip_e8m0": _by_row(REFERENCE.fp4_round_trip_e8m0),
    "fp4_round_trip_e4m3": _by_row(REFERENCE.fp4_round_trip_e4m3),
    "index_weights": _by_row(REFERENCE.index_weights),
    "index_score": _index_score,
    "pool": _pool,
    "ring_write": _ring_write,
    "sparse_attention": _sparse_attention(REFERENCE.sparse_attention),
}
