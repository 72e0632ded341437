"""What the caches of a sequence take: per layer and cache, in bf16 and packed, from the configuration alone.

::

    cache          rows for N tokens    a row in bf16             a row packed
    window         window               head_dim bf16             head_dim e4m3 codes, an e8m0 scale every 32
    compress_kv    N // ratio           head_dim bf16             head_dim e2m1 codes, an e4m3 scale every 16
    index_k        N // ratio           index_head_dim bf16       index_head_dim e2m1 codes, an e8m0 scale every 32
    kv_state,      ratio                head_dim f32              the same: sums under way are not quantised
    score_state

Every layer has a window; the others belong to the kv sources, the last two to those with ratio >= 2. bf16 is what
cache="bf16" allocates for max_seq = N: the quantised values, widened again. Packed is what cache="packed" does, rows of
`formats.packed_rows`: a byte a scale, a byte an e4m3 code, a byte two e2m1 codes. Both hold the same values. The caches
that grow with the text, `compress_kv` and `index_k`, are shared by the layers, so they are also told as bytes a token.
Weights, rotation tables and what a call needs for a moment come on top.
"""

import argparse
import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from dsv41_numba.config import FLASH, AttnV41Cfg
from dsv41_numba.formats.packed_rows import COMPRESSED, INDEX_KEY, WINDOW
from dsv41_numba.roles import LayerRole, roles

BF16_BYTES, F32_BYTES = 2, 4
BF16_COLUMN = "bf16: values, --cache bf16"
PACKED_COLUMN = "packed: codes and scales, --cache packed"


@dataclass(frozen=True)
class Cache:
    """One array of one layer: how many rows, and the bytes of a row in bf16 (kv_state and score_state: f32) and packed.

    ratio  tokens a row, for the caches that grow with the text; None for those that do not
    """

    layer: int
    name: str
    rows: int
    row_bf16: int
    row_packed: int
    ratio: int | None = None

    @property
    def bf16(self) -> int:
        """Bytes of the array with cache="bf16"."""
        return self.rows * self.row_bf16

    @property
    def packed(self) -> int:
        """Bytes of the array with cache="packed"."""
        return self.rows * self.row_packed


def caches_of_layer(cfg: AttnV41Cfg, role: LayerRole, tokens: int) -> list[Cache]:
    """The arrays of one layer's state for `tokens` positions, in the order of `AttnV41LayerState`."""
    D, Di, ratio = cfg.head_dim, cfg.index_head_dim, role.ratio
    found = [Cache(role.layer, "window", cfg.window, D * BF16_BYTES, WINDOW.row_bytes(D))]
    if not role.is_kv_source:
        return found
    if ratio > 1:
        found += [Cache(role.layer, n, ratio, D * F32_BYTES, D * F32_BYTES) for n in ("kv_state", "score_state")]
    return [
        *found,
        Cache(role.layer, "compress_kv", tokens // ratio, D * BF16_BYTES, COMPRESSED.row_bytes(D), ratio),
        Cache(role.layer, "index_k", tokens // ratio, Di * BF16_BYTES, INDEX_KEY.row_bytes(Di), ratio),
    ]


def caches(cfg: AttnV41Cfg, tokens: int) -> list[Cache]:
    """The arrays of all layers' states for `tokens` positions, in layer order.

    Raises ValueError when `tokens` is not within 1..max_seq.
    """
    if not 1 <= tokens <= cfg.max_seq:
        raise ValueError(f"tokens: expected a number within 1..{cfg.max_seq} (max_seq), got {tokens}")
    return [cache for role in roles(cfg) for cache in caches_of_layer(cfg, role, tokens)]


def token_bytes(found: Iterable[Cache]) -> tuple[Fraction, Fraction]:
    """Bytes that one more token adds to the shared caches, on average: (bf16, packed)."""
    growing = [(cache, cache.ratio) for cache in found if cache.ratio]
    bf16 = sum((Fraction(cache.row_bf16, ratio) for cache, ratio in growing), Fraction())
    return bf16, sum((Fraction(cache.row_packed, ratio) for cache, ratio in growing), Fraction())


def totals(found: Iterable[Cache]) -> dict[str, tuple[int, int]]:
    """name -> (bf16, packed) bytes of all layers' arrays of that name, and their sum as "all"."""
    found = list(found)
    sums = {}
    for name in [*dict.fromkeys(cache.name for cache in found), "all"]:
        alike = [cache for cache in found if name in (cache.name, "all")]
        sums[name] = sum(cache.bf16 for cache in alike), sum(cache.packed for cache in alike)
    return sums


def run(args: argparse.Namespace, out: Console) -> int:
    """`dsv41 memory`: a table, or JSON."""
    cfg = AttnV41Cfg.from_json(args.config) if args.config else FLASH
    tokens = cfg.max_seq if args.tokens is None else args.tokens
    found = caches(cfg, tokens)
    if args.json:
        print(json.dumps(as_json(cfg, tokens, found), indent=1))
    else:
        print_memory(cfg, tokens, found, out)
    return 0


def as_json(cfg: AttnV41Cfg, tokens: int, found: list[Cache]) -> dict[str, Any]:
    """What the table says, as one object."""
    kinds = {role.layer: role.kind for role in roles(cfg)}
    bf16, packed = token_bytes(found)
    return {
        "tokens": tokens,
        "columns": {"bf16": BF16_COLUMN, "packed": PACKED_COLUMN},
        "caches": [
            dataclasses.asdict(cache) | {"kind": kinds[cache.layer], "bf16": cache.bf16, "packed": cache.packed}
            for cache in found
        ],
        "totals": {name: {"bf16": both[0], "packed": both[1]} for name, both in totals(found).items()},
        "shared_bytes_per_token": {"bf16": float(bf16), "packed": float(packed)},
    }


def print_memory(cfg: AttnV41Cfg, tokens: int, found: list[Cache], console: Console) -> None:
    """One row a layer and cache, the sum of each cache, and what a token adds."""
    table = Table(title=f"bytes of the caches for {_grouped(tokens)} tokens", title_justify="left", box=SIMPLE_HEAD)
    for name in ("layer", "role", "ratio", "cache", "rows", "a row: bf16", "packed", "all rows: bf16", "packed"):
        table.add_column(name, justify="left" if name in ("role", "cache") else "right")
    last = {cache.layer: cache for cache in found}
    table_of_roles = roles(cfg)
    for cache in found:
        role, first = table_of_roles[cache.layer], cache.name == "window"
        table.add_row(
            *((str(role.layer), role.kind, str(role.ratio)) if first else ("", "", "")),
            cache.name,
            *map(_grouped, (cache.rows, cache.row_bf16, cache.row_packed, cache.bf16, cache.packed)),
            end_section=cache is found[-1] or (cache is last[cache.layer] and cache.layer + 1 in cfg.kv_sources),
        )
    for name, both in totals(found).items():
        table.add_row("", "", "", name, "", "", "", *map(_grouped, both))
    console.print(table)
    console.print(f"{BF16_COLUMN}; {PACKED_COLUMN}; kv_state and score_state are f32 in both")
    bf16, packed = token_bytes(found)
    sources = len({cache.layer for cache in found if cache.ratio})
    console.print(
        f"the compressed rows and index keys of {sources} layers: {_number(bf16)} bytes a token in bf16, "
        f"{_number(packed)} packed"
    )


def _grouped(number: int) -> str:
    return f"{number:,}"


def _number(value: Fraction) -> str:
    """Whole numbers as such, others with two digits."""
    return _grouped(int(value)) if value.denominator == 1 else f"{float(value):,.2f}"
