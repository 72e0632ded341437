"""The caches of a long context to scale: kept as bf16, and as codes and scales."""

from collections.abc import Callable
from typing import Any

from dsv41_numba.config import FLASH, TINY
from dsv41_numba.memory import caches, token_bytes
from dsv41_numba.roles import roles
from dsv41_numba.show.svg import Picture

SIZES = {"flash": FLASH, "tiny": TINY}
LEFT, WIDTH, HEIGHT, ROW, TOP = 16, 520, 34, 84, 76
FILLS = (("pale-blue", "blue"), ("pale-orange", "orange"))  # compressed rows, index keys


def memory(size: str = "flash", tokens: int = FLASH.max_seq) -> Picture:
    """The bytes of every cache that grows with the text, layer by layer, as bf16 and packed; the rest in words."""
    if size not in SIZES:
        raise ValueError(f"size: expected one of {', '.join(SIZES)}, got {size!r}")
    cfg = SIZES[size]
    found = caches(cfg, tokens)
    growing, a_token = [cache for cache in found if cache.ratio], token_bytes(found)
    kinds = {role.layer: role.kind for role in roles(cfg)}
    longest = sum(cache.bf16 for cache in growing)
    rest = sum(cache.packed for cache in found) - sum(cache.packed for cache in growing)
    ways = [("bf16", "bf16", a_token[0]), ("packed: codes and scales", "packed", a_token[1])]
    picture = Picture(
        2 * LEFT + WIDTH,
        TOP + ROW * len(ways) + 14,
        f"The shared caches of {tokens:,} tokens, to scale",
        "; ".join(
            f"{name}: "
            + ", ".join(f"layer {cache.layer} {cache.name} {getattr(cache, way):,} bytes" for cache in growing)
            for name, way, _ in ways
        ),
    )
    picture.text(LEFT, 28, f"The shared caches of {tokens:,} tokens, to scale", bold=True, size=15)
    for i, (name, way, bytes_a_token) in enumerate(ways):
        x, y = float(LEFT), TOP + ROW * i
        total = sum(getattr(cache, way) for cache in growing)
        picture.text(LEFT, y - 8, f"{name}: {float(bytes_a_token):,g} bytes a token, {total / 1e6:,.4g} MB", size=13)
        for cache in growing:
            size_of = getattr(cache, way)
            width = WIDTH * size_of / longest
            fill = FILLS[cache.name == "index_k"]
            tip = f"layer {cache.layer}, {kinds[cache.layer]}: {cache.name}, {cache.rows:,} rows, {size_of:,} bytes"
            picture.rect(x, y, width, HEIGHT, *fill, tip=tip)
            if width > 28 and cache.name == "compress_kv":
                picture.text(x + width / 2, y + 22, str(cache.layer), size=13, anchor="middle")
            x += width
    y = TOP + ROW * len(ways) - 20
    picture.text(LEFT, y, "blue: compressed rows of each source layer; orange: its index keys", "quiet", 13)
    picture.text(LEFT, y + 20, f"all layers' windows and unfinished groups, packed: {rest:,} bytes more", "quiet", 13)
    return picture


PICTURES: dict[str, Callable[..., Any]] = {"memory": memory}
