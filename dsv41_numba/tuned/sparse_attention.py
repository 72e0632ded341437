"""Sparse attention for speed: which rung takes which shape on which GPU, and why.

::

    rung     needs                                     weights        what limits it
    decode   compute capability 8.0 or more,           16 bits        launches, and reading the rows once
             at most 6 tokens
    wgmma    compute capability 9.0, heads a           bf16           the tensor cores, fed by gathers into
             multiple of 64, 512 dimensions                           shared memory
    mma      compute capability 8.0 or more            16 bits        fetching rows and q into shared memory
    plain    any machine                               f32            float32 arithmetic

`sparse_attention` has the contract of the one in `ops.sparse_attention`, with one difference: "weights" above is what
the weights (the exponentials) are rounded to before the value product. wgmma rounds them to bf16 as the official kernel
does, in blocks of 64 slots, each relative to the largest logit up to and including its block, the sink not among them;
the denominator sums them unrounded. That is what `sparse_attention_ref` here computes. decode and mma, which have time
for it, multiply a bf16 weight and then the bf16 of what rounding left of it: as good as f32, and held to the reference
in `ops`. A rung is imported when it is first picked: all but plain need numba-cuda.

Rows may be packed (`formats.packed_rows`). decode and plain read them as they are. A prefill names each row hundreds of
times, so mma and wgmma have all of them unpacked first, once, into bf16 that lives as long as the call: 2 D bytes a
row.
"""

import importlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from dsv41_numba.formats.bf16 import as_bf16
from dsv41_numba.formats.packed_rows import PackedRows
from dsv41_numba.ops import PLAIN, REFERENCE
from dsv41_numba.ops.rope import check_operands as check_turn
from dsv41_numba.ops.sparse_attention import as_values, check_operands
from dsv41_numba.runtime.backend import empty
from dsv41_numba.tuned.linear import Choice
from dsv41_numba.tuned.operands import NO_GPU, capability, on_16_bytes
from dsv41_numba.tuned.rope import rope_inverse_in_place

WGMMA_D = 512  # two warpgroups of 256 columns, which are as many as one wgmma makes
WGMMA_HEADS = 64  # the M of wgmma
WGMMA_PAIRS = 32  # that it turns back, in the last of its columns
DECODE_TOKENS = 6
BLOCK = 64  # slots whose weights are rounded relative to one maximum
LOWEST = np.float32(-1e30)  # below every logit that counts, and finite

PICKED: Counter[tuple[str, str]] = Counter()  # launches of this process by rung and reason


def sparse_attention_ref(
    q: np.ndarray, window_rows: Any, compress_rows: Any, idx: np.ndarray, attn_sink: np.ndarray, scale: float
) -> np.ndarray:
    """The arguments of `ops.sparse_attention.sparse_attention_ref` -> o [T, H, D] bf16, with weights in bf16, block by
    block of 64 slots."""
    rows = np.concatenate([as_values(window_rows), as_values(compress_rows)])
    o = np.zeros(q.shape, np.float32)
    for t in range(len(q)):
        highest = np.full((q.shape[1], 1), LOWEST)
        denominator, total = np.zeros(highest.shape), np.zeros(q.shape[1:])
        for s0 in range(0, idx.shape[1], BLOCK):
            slots = idx[t, s0 : s0 + BLOCK]
            kept = rows[slots[slots >= 0]].astype(np.float64)
            logit = (q[t].astype(np.float64) @ kept.T).astype(np.float32) * np.float32(scale)
            before, highest = highest, np.maximum(highest, logit.max(-1, keepdims=True, initial=LOWEST))
            factor, weight = np.exp(before - highest), np.exp(logit - highest)
            denominator = denominator * factor + weight.sum(-1, keepdims=True, dtype=np.float64)
            total = total * factor + as_bf16(weight).astype(np.float64) @ kept
        sink = np.maximum(attn_sink, np.finfo(np.float32).min)[:, None]
        top = np.maximum(highest, sink)
        denominator = denominator * np.exp(highest - top) + np.exp(sink - top)
        o[t] = total * np.exp(highest - top) / np.where(denominator > 0, denominator, 1)
    return as_bf16(o)


def pick(T: int, H: int, D: int, S: int, scale: float, capability: tuple[int, int], aligned: bool = True) -> Choice:
    """The rung for q [T, H, D] and idx [T, S] on a GPU of this compute capability.

    `aligned` says whether q and the rows start on multiples of 16 bytes. A capability of (0, 0) means no GPU.
    """
    if capability == NO_GPU:
        return Choice("plain", "there is no GPU, and the other rungs are PTX")
    name = "compute capability {}.{}".format(*capability)
    if capability < (8, 0):
        return Choice("plain", f"{name} has no mma.sync for bf16")
    if D % 16:
        return Choice("plain", f"{D} dimensions are no multiple of the 16 that tensor cores take at a time")
    if not aligned:
        return Choice("plain", "an operand does not start on a multiple of 16 bytes, as copies need")
    if S == 0:
        return Choice("plain", "there are no slots")
    if not 0 < scale < np.inf:
        return Choice("plain", f"with scale {scale:g} the largest product is not the largest logit")
    if T <= DECODE_TOKENS:
        return Choice("decode", f"{T} of at most {DECODE_TOKENS} tokens: their slots are split over blocks")
    if capability != (9, 0):
        return Choice("mma", f"{name} has mma.sync for bf16; wgmma is 9.0's alone")
    if D != WGMMA_D or H % WGMMA_HEADS:
        return Choice("mma", f"{name} has wgmma, but {H} heads of {D} do not fill its {WGMMA_HEADS} of {WGMMA_D}")
    return Choice("wgmma", f"{name} has wgmma, and {H} heads of {D} fill it")


def picked(q: Any, window_rows: Any, compress_rows: Any, idx: Any, attn_sink: Any, scale: float) -> Choice:
    """The choice for these arguments of `sparse_attention` on this machine."""
    planes = [rows.codes if isinstance(rows, PackedRows) else rows for rows in (window_rows, compress_rows)]
    operands = [array for array in (q, *planes) if array.size > 0]
    T, H, D = q.shape
    return pick(T, H, D, idx.shape[1], scale, capability(), on_16_bytes(*operands))


def reference(choice: Choice) -> Callable[..., np.ndarray]:
    """The reference that a rung is held to: with weights in bf16, or in f32."""
    return sparse_attention_ref if choice.rung == "wgmma" else REFERENCE.sparse_attention


def rung(name: str) -> Callable[..., None]:
    """The function that fills o: `launch_<name>` of `sparse_<name>`; (*arguments of attention_turned_back, o)."""
    module = importlib.import_module(f"dsv41_numba.tuned.sparse_{name}")
    launch: Callable[..., None] = getattr(module, f"launch_{name}")
    if name == "decode":
        return launch

    def launch_unpacked(q: Any, window_rows: Any, compress_rows: Any, *rest: Any) -> None:
        from dsv41_numba.tuned.packed_rows import unpack_rows

        launch(q, unpack_rows(window_rows), unpack_rows(compress_rows), *rest)

    return launch_unpacked


def sparse_attention_by(
    launch: Callable[..., None],
    q: Any,
    window_rows: Any,
    compress_rows: Any,
    idx: Any,
    attn_sink: Any,
    scale: float,
    cos: Any = None,
    sin: Any = None,
    start_pos: Any = 0,
) -> Any:
    """`attention_turned_back` by one rung, or without cos and sin `sparse_attention`."""
    T, H, D = check_operands(q, window_rows, compress_rows, idx, attn_sink)
    if cos is None:
        cos = sin = empty((1, 0), np.float32)  # no pair turns
    else:
        check_turn(q, cos, sin, 0 if hasattr(start_pos, "shape") else start_pos, 1)
    o = empty((T, H, D), np.uint16)
    if o.size > 0:  # a grid of 0 blocks is a launch error
        launch(q, window_rows, compress_rows, idx, attn_sink, scale, cos, sin, start_pos, o)
    return o


def sparse_attention(q: Any, window_rows: Any, compress_rows: Any, idx: Any, attn_sink: Any, scale: float) -> Any:
    """q [T, H, D] bf16 bits, window_rows [W, D] bf16 bits, compress_rows [G, D] bf16 bits, or both packed,
    idx [T, S] int32, attn_sink [H] f32, all device arrays, and a float -> o [T, H, D] bf16 bits, by the rung that fits
    best."""
    arguments = (q, window_rows, compress_rows, idx, attn_sink, scale)
    choice = _noted(picked(*arguments))
    if choice.rung == "plain":
        return PLAIN.sparse_attention(*arguments)
    return sparse_attention_by(rung(choice.rung), *arguments)


def attention_turned_back(
    q: Any, window_rows: Any, compress_rows: Any, idx: Any, attn_sink: Any, scale: float,
    cos: Any, sin: Any, start_pos: Any,
) -> Any:  # fmt: skip
    """`sparse_attention` whose last R columns are turned back as they are written; cos and sin [P, R / 2] f32.

    start_pos is an integer or, for the few tokens of the decode rung, a device array [1] int64 that holds it.
    """
    arguments, turn = (q, window_rows, compress_rows, idx, attn_sink, scale), (cos, sin, start_pos)
    choice = _noted(picked(*arguments))
    if choice.rung == "plain":
        return rope_inverse_in_place(PLAIN.sparse_attention(*arguments), *turn)
    if choice.rung == "wgmma" and cos.shape[1] != WGMMA_PAIRS:
        return rope_inverse_in_place(sparse_attention_by(rung(choice.rung), *arguments), *turn)
    return sparse_attention_by(rung(choice.rung), *arguments, *turn)


def _noted(choice: Choice) -> Choice:
    PICKED[choice.rung, choice.reason] += 1
    return choice
