"""Every number that appears in the project, with its origin and its reason.

No number is written here a second time: a row's value is read from the code, or computed from what is read there.
"""

import importlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv41_numba.config import FLASH, INDEX_BLOCK, LATENT_BLOCK, TINY, WINDOW_BLOCK
from dsv41_numba.formats import bf16, e2m1, e4m3, e8m0
from dsv41_numba.ops.linear import TILE
from dsv41_numba.ops.quant_fp8 import THREADS
from dsv41_numba.ops.rope import rope_freqs

GROUPS = {
    "model": "the released configuration files: the makers of the model chose them, and trained it with them",
    "bytes": "the model's sizes and the formats, multiplied",
    "formats": "the definitions of the formats, drawn at the top of each file in `dsv41_numba/formats`",
    "quantisers": "the official code's kernels, which every bit is held to",
    "kernels": "this project's kernels: chosen to be readable first, then measured",
    "checks": "this project's checks",
}


@dataclass(frozen=True)
class Number:
    """One number. `where` is the constant it is read from, or how it is computed; `why` what it is for."""

    group: str
    value: Any
    where: str
    why: str

    @property
    def shown(self) -> str:
        """The number as a page writes it."""
        return shown(self.value)


def shown(value: Any) -> str:
    """A number in short: 65,536, 0.5, 2^-9, 6 x 2^-9, 1e-4, 3.39e38."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e7):
        return f"{int(value):,}"
    for factor in (1, int(e2m1.E2M1_MAX)):
        fraction, exponent = math.frexp(value / factor)
        if fraction == 0.5 and not -4 < exponent < 4:
            return f"2^{exponent - 1}" if factor == 1 else f"{factor} x 2^{exponent - 1}"
    digits, _, exponent10 = f"{value:.2e}".partition("e")
    digits = digits.rstrip("0").rstrip(".")
    return f"{value:.4g}" if -4 < int(exponent10) < 5 else f"{digits}e{int(exponent10)}"


def _rows() -> list[Number]:
    return _model() + _bytes() + _formats() + _quantisers() + _kernels() + _checks()


def _model() -> list[Number]:
    c = FLASH
    per_turn = round(2 * math.pi / float(rope_freqs(c.rope_dim, c.rope_theta)[-1]))
    candidates = c.candidate_topk_blocks * c.candidate_block_size
    reasons = {
        "dim": "entries of a token's row between layers",
        "n_layers": "layers with attention; released files list ratios of draft blocks behind them, which are cut off",
        "n_heads": "heads of a query; all of them read the same rows",
        "head_dim": "entries of a query's head and of a row that it reads; a row is key and value at once",
        "rope_dim": f"the last entries of a head turn with the position; the first {c.head_dim - c.rope_dim} do not",
        "q_lora_rank": f"the narrow middle from {shown(c.dim)} entries of x to {shown(c.n_heads * c.head_dim)} of q",
        "o_groups": f"groups of heads on the way out: each projects its own {c.n_heads // c.o_groups} heads",
        "o_lora_rank": f"what is left of a group's {shown(c.group_dim)} entries",
        "window": "tokens that every layer sees without compression; the slots of the ring they lie in",
        "index_topk": "compressed positions that a token reads at most",
        "index_n_heads": "heads of the indexer, which selects those positions",
        "index_head_dim": "entries of an index key, which the indexer compares with every token's query",
        "candidate_topk_blocks": f"blocks that later layers select from: {shown(candidates)} positions together",
        "candidate_block_size": "neighbouring positions that are kept or dropped together",
        "candidate_source": "the layer that chooses those blocks for the later ones",
        "norm_eps": "keeps a row of zeros from a division by zero, and changes no row of ordinary numbers; the tiny "
        f"geometry has {shown(TINY.norm_eps)}, so that tests see it",
        "rope_theta": f"base of the rotation in layers with ratio 0: the slowest pair turns once in {shown(per_turn)} "
        "positions",
        "compress_rope_theta": "base of the rotation in the other layers: slower turns, for rows from further away",
        "original_seq_len": "positions before YaRN stretches them; a pair's turns are counted in these",
        "rope_factor": f"how far YaRN stretches: {shown(c.original_seq_len)} x {shown(c.rope_factor)} = "
        f"{shown(c.max_seq)}",
        "beta_fast": "pairs with more turns than this keep their speed",
        "beta_slow": "pairs with fewer turns than this are slowed down by the whole factor",
        "max_seq": "positions that a sequence can have",
    }
    rows = [Number("model", getattr(c, name), f"FLASH.{name}", why) for name, why in reasons.items()]
    for ratio in sorted(set(c.compress_ratios)):
        layers = [layer for layer, its in enumerate(c.compress_ratios) if its == ratio]
        why = (
            f"tokens of a compressed position in layers {layers[0]} to {layers[-1]}"
            if ratio
            else (f"ratio of layers {layers[0]} to {layers[-1]}: no compressed positions, the window alone")
        )
        rows.append(Number("model", ratio, "FLASH.compress_ratios", why))
    block = c.weight_block[0]
    return [*rows, Number("model", block, "FLASH.weight_block", "rows, and columns, of an fp8 weight with one scale")]


def latent_row_bytes() -> int:
    """A compressed row: a 4-bit code an entry, an e4m3 scale a block."""
    return FLASH.head_dim // 2 + FLASH.head_dim // LATENT_BLOCK


def index_row_bytes() -> int:
    """An index key: a 4-bit code an entry, an e8m0 scale a block."""
    return FLASH.index_head_dim // 2 + FLASH.index_head_dim // INDEX_BLOCK


def positions_a_token() -> float:
    """Compressed positions that one token adds, all layers that make them together."""
    return sum(1 / FLASH.compress_ratios[layer] for layer in FLASH.kv_sources)


def _constants(group: str, reasons: dict[str, str]) -> list[Number]:
    """Constants of the package, read by the name that a page shows."""
    return [Number(group, constant(where), where, why) for where, why in reasons.items()]


def constant(where: str) -> Any:
    """The value of "ops.rmsnorm.THREADS"."""
    module, _, name = where.rpartition(".")
    return getattr(importlib.import_module(f"dsv41_numba.{module}"), name)


def _bytes() -> list[Number]:
    c = FLASH
    packed_bytes, bf16_bytes = latent_row_bytes() + index_row_bytes(), 2 * (c.head_dim + c.index_head_dim)
    positions = positions_a_token()
    values = {
        "FLASH.window + FLASH.index_topk": c.window + c.index_topk,
        "FLASH.head_dim / 2 + FLASH.head_dim / LATENT_BLOCK": latent_row_bytes(),
        "FLASH.index_head_dim / 2 + FLASH.index_head_dim / INDEX_BLOCK": index_row_bytes(),
        f"({latent_row_bytes()} + {index_row_bytes()}) x {shown(positions)}": packed_bytes * positions,
        f"2 x (FLASH.head_dim + FLASH.index_head_dim) x {shown(positions)}": bf16_bytes * positions,
        "FLASH.candidate_topk_blocks x FLASH.candidate_block_size": c.candidate_topk_blocks * c.candidate_block_size,
        "FLASH.softmax_scale": c.softmax_scale,
    }
    reasons = (
        "rows that a token reads in sparse attention, at most",
        f"bytes of a compressed row, packed: two codes a byte, and {c.head_dim // LATENT_BLOCK} scales",
        "bytes of an index key, packed",
        f"bytes that one more token adds to all compressed caches, packed: {shown(positions)} rows and keys a "
        "token, all layers together",
        "the same in bf16",
        "positions that a REINDEX layer still selects from",
        f"1 / sqrt({shown(c.head_dim)}), which every logit is multiplied by: a sum of more products is larger",
    )
    return [Number("bytes", value, where, why) for (where, value), why in zip(values.items(), reasons, strict=True)]


def _formats() -> list[Number]:
    positive = np.unique(e4m3.E4M3_VALUES[e4m3.E4M3_VALUES > 0])
    one = np.ones(1, np.float32)
    bias = {"bf16": int(bf16.f32_to_bf16(one)[0]) >> 7, "e4m3": int(e4m3.f32_to_e4m3(one)[0]) >> 3}
    largest = bf16.bf16_to_f32(np.array([0x7F7F], np.uint16))[0]
    return [
        Number("formats", 1 << 16, "2^16", "patterns of a bf16: few enough to try all of them"),
        Number("formats", bias["bf16"], "exponent of 1 in bf16", "the bias: e means 2^(e - bias); of e8m0 too"),
        Number("formats", bias["e4m3"], "exponent of 1 in e4m3", "the bias of e4m3"),
        Number("formats", largest, "bf16 0x7F7F", "the largest bf16, close to float32's largest"),
        *_constants("formats", {
            "formats.e4m3.E4M3_MAX": "the largest e4m3: the next pattern is the NaN, and there is no infinity",
        }),
        Number("formats", positive[-1] + (positive[-1] - positive[-2]) / 2, "E4M3_MAX + half a step",
               "where other libraries part: above it some give NaN, some the largest number; here all beyond "
               f"{shown(e4m3.E4M3_MAX)} is clamped first"),
        Number("formats", positive[0], "e4m3 0x01", "the smallest e4m3 above 0, a subnormal"),
        Number("formats", 2.0**e4m3.MIN_EXPONENT, "e4m3 0x08", "the smallest normal e4m3"),
        Number("formats", e2m1.E2M1_MAX, "formats.e2m1.E2M1_MAX", "the largest e2m1"),
        Number("formats", e8m0.E8M0_VALUES[0], "e8m0 0x00", "the smallest e8m0, a subnormal float32 of its own"),
        *_constants("formats", {"formats.e8m0.E8M0_NAN": "the byte that is no scale: its whole block is NaN"}),
    ]  # fmt: skip


def _quantisers() -> list[Number]:
    largest = Number("quantisers", e2m1.E2M1_MAX * e4m3.E4M3_MAX, "E2M1_MAX x E4M3_MAX",
                     "the largest magnitude of a compressed row: largest code times largest scale")  # fmt: skip
    reasons = {
        "config.WINDOW_BLOCK": "entries of a window row that share an e8m0 scale",
        "config.INDEX_BLOCK": "entries of an index key or query that share an e8m0 scale",
        "config.LATENT_BLOCK": "entries of a compressed row that share an e4m3 scale",
        "ops.quant_fp8.AMAX_FLOOR": "the least that a block's largest entry counts as: zeros need a scale too",
        "ops.quant_fp4.AMAX_FLOOR_E8M0": "the same for fp4 with e8m0 scales: gives the smallest normal float32",
        "ops.quant_fp4.AMAX_FLOOR_E4M3": "the same for fp4 with e4m3 scales: gives the smallest e4m3",
        "ops.topk.HEAP_FACTOR": "where torch's top-k on a CPU takes another way, which orders ties differently: "
        "k times this is at most the number of entries",
    }
    return [*_constants("quantisers", reasons), largest]


def _kernels() -> list[Number]:
    per_block = 2 * THREADS // WINDOW_BLOCK
    return _constants("kernels", {
        "ops.rope.WARP": "threads of a warp",
        "ops.rmsnorm.THREADS": "threads of a row; a power of two, since the tree halves it",
        "ops.quant_fp8.THREADS": f"threads of a block, two entries each: {per_block} whole blocks of entries",
        "ops.linear.TILE": f"rows and columns of a tile: {TILE * TILE} threads; a fetched number serves {TILE}",
        "ops.linear.PADDED": "a tile's row in shared memory, longer than the tile: rows begin in different banks",
        "ops.linear.MAX_GRID_Y": "blocks that a grid can have along y, CUDA's limit",
        "ops.sparse_attention.PADDED_WORDS": "an odd row length: threads that read one column meet different banks",
        "runtime.emulator.translate.SHARED_LIMIT_BYTES": "bytes of shared memory that a block gets on every GPU",
        "tuned.linear_wgmma.SHARED_BYTES": "bytes that a block can ask for on an H200",
        "tuned.linear_wgmma.WARPGROUP": "threads of a warpgroup: four warps, which one wgmma instruction needs",
    })  # fmt: skip


def _checks() -> list[Number]:
    return _constants("checks", {
        "compare.NOISE": "a difference of at most this share of the row's largest magnitude counts as none: where "
        "large terms cancel, float32's noise is left",
        "compare.APART": "steps between a number and a NaN: more than any tolerance forgives",
        "runtime.backend.POISON": "the byte that fills new arrays: what nobody wrote is a NaN in any float",
    })  # fmt: skip


def numbers(group: str = "") -> list[Number]:
    """All rows, or those of one group. Raises ValueError for a group that does not exist."""
    if group and group not in GROUPS:
        raise ValueError(f"group: expected one of {', '.join(GROUPS)}, got {group!r}")
    return [row for row in _rows() if group in ("", row.group)]


def table(group: str) -> str:
    """A group as a Markdown table: the number, where it stands, why it is there."""
    lines = ["| number | in the code | why |", "|---:|---|---|"]
    return "\n".join(lines + [f"| **{row.shown}** | `{row.where}` | {row.why} |" for row in numbers(group)])


def index() -> str:
    """Every number once, ascending, with links to its groups: the page's headings have their ids."""
    found: dict[str, tuple[float, list[str]]] = {}
    for row in numbers():
        _, groups = found.setdefault(row.shown, (float(row.value), []))
        if row.group not in groups:
            groups.append(row.group)
    links = []
    for text, (_, groups) in sorted(found.items(), key=lambda item: item[1][0]):
        each = [f"[{group}](#{group})" for group in groups]
        links.append(f"[{text}](#{groups[0]})" if len(groups) == 1 else f"{text} ({', '.join(each)})")
    return ", ".join(links)
