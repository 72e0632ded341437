"""What a user of torch would write instead of each op, on the very same device arrays.

Plain calls of torch and cuBLAS, in bf16, without torch.compile: what runs after `pip install torch`. The quantisers and
the partial group have no such counterpart.
"""

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from dsv41_numba.formats.fp8_weight import Fp8Weight
from dsv41_numba.formats.packed_rows import PackedRows
from dsv41_numba.ops import PLAIN
from dsv41_numba.ops.gather import gather_list
from dsv41_numba.runtime import backend

if TYPE_CHECKING:
    from dsv41_numba.bench.layers import BenchLayer

Call = Callable[[], Any]
LAUNCHES_PER_CALL = 12  # about, of the longest composition: so many kernels it queues
LAUNCHES_PER_PRODUCT = 1
LAUNCHES_PER_LAYER = 60
WEIGHTS = ("wq_a", "q_norm", "wq_b", "wkv", "kv_norm", "attn_sink", "wo_a", "wo_b")


def available() -> bool:
    """Whether torch is installed and sees a GPU."""
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def beside(stage: str, arguments: tuple[Any, ...], result: Any) -> Call | None:
    """torch's call for PLAIN's stage with these device arrays; None where there is none.

    A bf16 linear is written into `result`, the array that the stage returned, so that ours and torch's rotate through
    the same memory. Of packed rows and of fp8 weights torch has what they stand for in bf16, as its user would.
    """
    values = [in_bf16(argument) for argument in arguments]
    tensors = [as_torch(a) if hasattr(a, "__cuda_array_interface__") else a for a in values]
    if stage in PRODUCTS:
        return PRODUCTS[stage](*tensors, as_torch(result))
    return COMPOSITIONS[stage](*tensors) if stage in COMPOSITIONS else None


def launches_per_call(stage: str) -> int:
    """About how many kernels `beside`'s call queues, at most."""
    return LAUNCHES_PER_PRODUCT if stage in PRODUCTS else LAUNCHES_PER_CALL


def in_bf16(argument: Any) -> Any:
    """The bf16 bits of packed rows or of an fp8 weight; any other argument itself."""
    if isinstance(argument, PackedRows):
        return PLAIN.to_device(PLAIN.to_host(argument))
    if isinstance(argument, Fp8Weight):
        from dsv41_numba.tuned.linear_fp8_dequantise import dequantised

        return dequantised(argument)
    return argument


def as_torch(array: Any) -> Any:
    """A Numba device array as a torch tensor of the same memory; uint16 is bf16."""
    import torch

    if array.dtype == np.uint16:
        return torch.as_tensor(array.view(np.int16), device="cuda").view(torch.bfloat16)
    return torch.as_tensor(array, device="cuda")


def _linear(x: Any, weight: Any, y: Any) -> Call:
    import torch

    return lambda: torch.matmul(x, weight.mT, out=y)


def _linear_f32(x: Any, weight: Any) -> Call:
    from torch.nn import functional

    return lambda: functional.linear(x.float(), weight)


def _grouped_linear(o: Any, weight: Any, n_groups: int, og: Any) -> Call:
    import torch

    heads = o.view(o.shape[0], n_groups, -1).transpose(0, 1)
    matrices, out = weight.view(n_groups, -1, heads.shape[2]).mT, og.transpose(0, 1)
    return lambda: torch.bmm(heads, matrices, out=out)


def _rmsnorm(x: Any, weight: Any, eps: float) -> Call:
    import torch
    from torch.nn import functional

    weight = weight.to(torch.bfloat16)
    return lambda: functional.rms_norm(x.to(torch.bfloat16), weight.shape, weight, eps)


def _rope(direction: float) -> Callable[..., Call]:
    def make(x: Any, cos: Any, sin: Any, start_pos: int, step: int = 1) -> Call:
        turn = turns(cos, direction * sin, start_pos, x.shape[0], step)
        return lambda: rotate(x, turn)

    return make


def turns(cos: Any, sin: Any, start_pos: int, T: int, step: int = 1) -> Any:
    """The rotations of T rows as complex numbers [T, 1, R / 2]."""
    import torch

    rows = slice(start_pos, start_pos + (T - 1) * step + 1, step)
    return torch.complex(cos[rows], sin[rows])[:, None]


def rotate(x: Any, turn: Any) -> Any:
    """x [T, H, D] bf16 with its last R entries turned."""
    import torch

    R = 2 * turn.shape[-1]
    pairs = torch.view_as_complex(x[..., -R:].float().unflatten(-1, (-1, 2)))
    turned = torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)
    return torch.cat([x[..., :-R], turned], dim=-1)


def fp8_round_trip(x: Any) -> Any:
    """x [T, D] bf16 through e4m3 and back, a power-of-two scale for each 32."""
    import torch

    blocks = x.float().unflatten(-1, (-1, 32))
    scale = torch.exp2(torch.ceil(torch.log2(blocks.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448)))
    return ((blocks / scale).to(torch.float8_e4m3fn).float() * scale).to(x.dtype).flatten(-2)


def attend(q: Any, rows: Any, hidden: Any, sink: Any, scale: float) -> Any:
    """Attention of q [T, H, D] over its own rows [T, S, D], in bf16, with one more column for the sink."""
    import torch

    logits = (q @ rows.transpose(1, 2) * scale).masked_fill_(hidden, float("-inf"))
    return torch.cat([logits, sink], dim=-1).softmax(-1)[..., :-1] @ rows


def _pool(kv: Any, score: Any, kv_state: Any, score_state: Any, start_pos: int) -> Call:
    import torch

    ratio, D = kv_state.shape
    held, groups = start_pos % ratio, (start_pos + kv.shape[0]) // ratio - start_pos // ratio

    def call() -> Any:
        rows = torch.cat([kv_state[:held], kv])[: groups * ratio].view(groups, ratio, D)
        logits = torch.cat([score_state[:held], score])[: groups * ratio].view(groups, ratio, D)
        return (logits.softmax(1) * rows).sum(1)

    return call


def _ring_write(rows: Any, ring: Any, start_pos: int) -> Call:
    import torch

    T, W = rows.shape[0], ring.shape[0]
    kept = rows[max(T - W, 0) :]
    slots = torch.arange(start_pos + max(T - W, 0), start_pos + T, device=ring.device) % W
    return lambda: ring.index_copy_(0, slots, kept)


def _index_weights(projected: Any, scale: float) -> Call:
    return lambda: projected * scale


def _index_score(index_q: Any, index_w: Any, index_k: Any, start_pos: int, ratio: int) -> Call:
    import torch

    T, heads, dims = index_q.shape
    pos = torch.arange(start_pos + 1, start_pos + T + 1, device=index_q.device)
    hidden = torch.arange(index_k.shape[0], device=index_q.device) >= (pos // ratio)[:, None]

    def call() -> Any:
        dots = (index_q.view(T * heads, dims) @ index_k.T).view(T, heads, -1)
        return (dots.relu_() * index_w[..., None]).sum(1).masked_fill_(hidden, float("-inf"))

    return call


def _sparse_attention(q: Any, window_rows: Any, compress_rows: Any, idx: Any, attn_sink: Any, scale: float) -> Call:
    import torch

    everything = torch.cat([window_rows, compress_rows])  # one cache, as a user would keep it
    indices, hidden = idx.clamp(min=0).long(), (idx < 0)[:, None]
    sink = attn_sink.to(q.dtype).view(1, -1, 1).expand(q.shape[0], -1, 1)
    return lambda: attend(q, everything[indices], hidden, sink, scale)


def whole_layer(layer: "BenchLayer") -> Call | None:
    """torch's forward of a layer that makes no rows and no selection: SWA and REUSE."""
    from torch.nn import functional

    cfg, role, T, pos = layer.cfg, layer.case.role, layer.case.T, layer.case.pos
    if role.is_index_source:
        return None
    x, state_window = as_torch(layer.x), as_torch(layer.state.window)
    w = {name: as_torch(getattr(layer.weights, name)) for name in WEIGHTS}
    q_norm, kv_norm = (w[name].to(x.dtype) for name in ("q_norm", "kv_norm"))
    sink = w["attn_sink"].to(x.dtype).view(1, -1, 1).expand(T, -1, 1)
    cos, sin = as_torch(layer.rope.cos), as_torch(layer.rope.sin)
    turn, back = turns(cos, sin, pos, T), turns(cos, -sin, pos, T)
    matrices = w["wo_a"].view(cfg.o_groups, cfg.o_lora_rank, -1)
    n_rows = T if pos == 0 else cfg.window
    topk = backend.to_host(layer.shared.topk.value) if role.ratio else None
    window_idx = _indices(gather_list(cfg.window, pos, T, None), x)
    if topk is not None:
        selected, cache = _indices(topk - n_rows, x), as_torch(layer.shared.compress_kv.value)
    hidden = (_indices(gather_list(cfg.window, pos, T, topk), x) < 0)[:, None]

    def call() -> Any:
        import torch

        qr = functional.rms_norm(functional.linear(x, w["wq_a"]), q_norm.shape, q_norm, cfg.norm_eps)
        q = rotate(functional.linear(qr, w["wq_b"]).view(T, cfg.n_heads, cfg.head_dim), turn)
        kv = functional.rms_norm(functional.linear(x, w["wkv"]), kv_norm.shape, kv_norm, cfg.norm_eps)
        kv = fp8_round_trip(rotate(kv[:, None], turn)[:, 0])
        if pos:
            state_window[pos % cfg.window] = kv[0]
        rows = (state_window if pos else kv)[window_idx.clamp(min=0)]
        if topk is not None:
            rows = torch.cat([rows, cache[selected.clamp(min=0)]], dim=1)
        o = rotate(attend(q, rows, hidden, sink, cfg.softmax_scale), back)
        og = torch.einsum("tgk,grk->tgr", o.view(T, cfg.o_groups, -1), matrices)
        return functional.linear(og.flatten(1), w["wo_b"])

    return call


def _indices(array: np.ndarray, beside: Any) -> Any:
    import torch

    return torch.from_numpy(array.astype(np.int64)).to(beside.device)


PRODUCTS: dict[str, Callable[..., Call]] = {
    "linear": _linear,
    "linear_fp8": _linear,
    "grouped_linear": _grouped_linear,
}
COMPOSITIONS: dict[str, Callable[..., Call]] = {
    "linear_f32": _linear_f32,
    "rmsnorm": _rmsnorm,
    "rmsnorm_f32": _rmsnorm,
    "rope": _rope(1.0),
    "rope_inverse": _rope(-1.0),
    "pool": _pool,
    "ring_write": _ring_write,
    "index_weights": _index_weights,
    "index_score": _index_score,
    "sparse_attention": _sparse_attention,
}
