"""What survives a call: the state of one layer, and the slots through which layers hand each other things.

::

    AttnV41LayerState        window ring        every layer; slot = position mod window
                             kv_state,          kv sources with ratio >= 2: the group that is not full yet;
                             score_state        slot = position mod ratio, unused slots of score_state at -inf
                             compress_kv,       kv sources: one row a compressed position,
                             index_k            max_seq // ratio rows of which the first (end // ratio) are filled
    SharedV41                compress_kv        the last published cache of compressed rows, and whose it is
                             index_k            likewise the index keys
                             topk               the selection of this call, shifted past the window rows
                             candidates         the mask that later index sources obey, from this call

All are arrays of the op table: NumPy's for REFERENCE, device arrays for PLAIN. With cache="packed" the window, the
compressed rows and the index keys are `PackedRows` of such arrays: the codes and scales that their bf16 values are made
of (`formats.packed_rows`).
"""

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from dsv41_numba.config import AttnV41Cfg
from dsv41_numba.formats.packed_rows import COMPRESSED, INDEX_KEY, WINDOW, PackedRows, RowFormat
from dsv41_numba.ops import Ops
from dsv41_numba.roles import LayerRole

CACHES = ("bf16", "packed")

Value = TypeVar("Value")


@dataclass
class AttnV41LayerState:
    """One layer's caches. bf16 arrays have the op table's bf16 dtype; D = head_dim, r = the layer's ratio.

    window       [window, D] bf16 or packed
    kv_state     [r, D] f32, kv sources with r >= 2, else None
    score_state  [r, D] f32, likewise
    compress_kv  [max_seq // r, D] bf16 or packed, kv sources, else None
    index_k      [max_seq // r, index_head_dim] bf16 or packed, kv sources, else None
    next_pos     the position the next call must start at
    """

    window: Any
    kv_state: Any = None
    score_state: Any = None
    compress_kv: Any = None
    index_k: Any = None
    next_pos: int = 0

    @classmethod
    def new(cls, cfg: AttnV41Cfg, role: LayerRole, ops: Ops, cache: str = "bf16") -> "AttnV41LayerState":
        """Empty caches of one layer: zeros, and -inf in score_state. `cache`: "bf16" or "packed"."""
        if cache not in CACHES:
            raise ValueError(f"cache: expected one of {', '.join(CACHES)}, got {cache!r}")

        def rows(format: RowFormat, N: int, D: int) -> Any:
            return PackedRows.new(format, N, D, ops.zeros) if cache == "packed" else ops.zeros((N, D), ops.bf16)

        state = cls(window=rows(WINDOW, cfg.window, cfg.head_dim))
        if role.is_kv_source:
            groups = cfg.max_seq // role.ratio
            state.compress_kv = rows(COMPRESSED, groups, cfg.head_dim)
            state.index_k = rows(INDEX_KEY, groups, cfg.index_head_dim)
            if role.ratio > 1:
                group = (role.ratio, cfg.head_dim)
                state.kv_state = ops.zeros(group, np.float32)
                state.score_state = ops.to_device(np.full(group, -np.inf, np.float32))
        return state

    def nbytes(self) -> int:
        """Bytes of all arrays of this state."""
        arrays = (self.window, self.kv_state, self.score_state, self.compress_kv, self.index_k)
        return sum(int(array.nbytes) for array in arrays if array is not None)


@dataclass
class Slot(Generic[Value]):
    """One thing that a layer published: the value, the layer, and the end position of the call that did it."""

    what: str
    value: Value | None = None
    layer: int | None = None
    end: int = -1

    def publish(self, value: Value, layer: int, end: int) -> None:
        self.value, self.layer, self.end = value, layer, end

    def read(self, reader: int, source: int | None, end: int) -> Value:
        """The value, if `source` published it in the call that ends at `end`; else a ValueError that says so."""
        if self.value is None or self.layer != source or self.end != end:
            found = "nothing was published" if self.value is None else f"the last came from layer {self.layer}"
            when = "" if self.layer != source else f" for the call that ended at position {self.end}"
            raise ValueError(
                f"layer {reader}: expected the {self.what} of layer {source} for the call that ends at position {end}, "
                f"but {found}{when}; run layer {source} first"
            )
        return self.value


@dataclass
class SharedV41:
    """The slots that the layers of one stack share, in layer order. See the module's picture."""

    compress_kv: Slot[Any] = field(default_factory=lambda: Slot("compressed rows"))
    index_k: Slot[Any] = field(default_factory=lambda: Slot("index keys"))
    topk: Slot[Any] = field(default_factory=lambda: Slot("selection"))
    candidates: Slot[Any] = field(default_factory=lambda: Slot("candidate mask"))
