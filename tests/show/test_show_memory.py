"""The picture of the caches' memory: its boxes are the bytes that `dsv41 memory` counts."""

import xml.etree.ElementTree as ElementTree

import pytest

from dsv41_numba.config import FLASH, TINY
from dsv41_numba.memory import caches
from dsv41_numba.show import draw

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("size", "cfg", "tokens"), [("flash", FLASH, 1_048_576), ("flash", FLASH, 4097), ("tiny", TINY, 64)]
)
def test_show_memory_draws_every_growing_cache_to_scale(size, cfg, tokens):
    root = ElementTree.fromstring(draw("memory", size=size, tokens=tokens).svg())
    boxes = [(float(rect.get("width")), rect.find(f"{SVG}title").text) for rect in root.iter(f"{SVG}rect")
             if rect.find(f"{SVG}title") is not None]  # fmt: skip
    growing = [cache for cache in caches(cfg, tokens) if cache.ratio]
    sizes = [cache.bf16 for cache in growing] + [cache.packed for cache in growing]
    assert len(boxes) == len(sizes)
    unit = boxes[0][0] / sizes[0]
    for (width, tip), cache, n in zip(boxes, 2 * growing, sizes, strict=True):
        assert width == pytest.approx(n * unit, rel=1e-4, abs=0.006)  # two decimals are written
        assert tip.startswith(f"layer {cache.layer}, ") and tip.endswith(
            f"{cache.name}, {cache.rows:,} rows, {n:,} bytes"
        )


def test_show_memory_says_what_a_token_costs():
    text = " ".join(element.text for element in ElementTree.fromstring(draw("memory").svg()).iter(f"{SVG}text"))
    assert "bf16: 3,200 bytes a token" in text and "890 bytes a token" in text and "2,727,936 bytes more" in text


def test_show_memory_refuses_another_size():
    with pytest.raises(ValueError, match="size: expected one of flash, tiny, got 'large'"):
        draw("memory", size="large")
