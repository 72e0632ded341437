"""Who makes what for whom: the role of each layer, from the configuration alone.

::

    SWA      ratio 0: window only
    FULL     a kv source, which is also an index source: makes compressed rows, index keys and a selection
    REINDEX  an index source that is no kv source: selects anew from another layer's rows and keys
    REUSE    reads another layer's rows and selection

A layer reads from the nearest source at or below it, so a FULL layer reads from itself. `compress_ratios[layer]` says
which rows a layer reads, not that it makes any: in the released geometry 38 layers have a ratio and 4 make rows.
The candidate source publishes a mask of blocks; every index source above it looks only inside the mask, those below
know nothing of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from dsv41_numba.config import AttnV41Cfg


@dataclass(frozen=True)
class LayerRole:
    """What one layer makes and reads. Layer numbers are absolute; None where there is no such thing.

    layer                the layer's own number
    kind                 "SWA", "FULL", "REINDEX" or "REUSE"
    ratio                tokens a compressed position, 0 on SWA layers
    kv_source            the layer whose compressed rows it reads
    key_source           on index sources: the layer whose index keys it scores
    index_source         the layer whose selection it uses
    publishes_candidates whether it writes the candidate mask
    obeys_candidates     on index sources above the candidate source: that layer
    """

    layer: int
    kind: str
    ratio: int
    kv_source: int | None = None
    key_source: int | None = None
    index_source: int | None = None
    publishes_candidates: bool = False
    obeys_candidates: int | None = None

    @property
    def is_kv_source(self) -> bool:
        """Whether it owns a compressor and makes index keys."""
        return self.kind == "FULL"

    @property
    def is_index_source(self) -> bool:
        """Whether it owns an indexer."""
        return self.kind in ("FULL", "REINDEX")


def roles(cfg: AttnV41Cfg) -> tuple[LayerRole, ...]:
    """The role of every layer, in layer order.

    Raises ValueError naming the layer: a kv source that is no index source (nobody would make its index keys), a layer
    with a ratio below the first source, a layer whose ratio is not that of the source it reads, or an index source
    whose ratio is not that of the candidate mask it obeys.
    """
    for layer in cfg.kv_sources:
        if layer not in cfg.index_sources:
            raise ValueError(f"layer {layer}: expected a kv source to be an index source too, got {cfg.index_sources}")
    return tuple(_role(cfg, layer) for layer in range(cfg.n_layers))


def _role(cfg: AttnV41Cfg, layer: int) -> LayerRole:
    ratio = cfg.compress_ratios[layer]
    if ratio == 0:
        return LayerRole(layer, "SWA", ratio)
    # kv sources are index sources, so the layer that selected for this one scored the keys of the same kv source
    kv_source = _nearest(cfg, layer, "kv source", cfg.kv_sources)
    index_source = _nearest(cfg, layer, "index source", cfg.index_sources)
    if index_source != layer:
        return LayerRole(layer, "REUSE", ratio, kv_source, index_source=index_source)
    mask = cfg.candidate_source
    obeys = mask if mask is not None and mask < layer else None
    if obeys is not None and cfg.compress_ratios[obeys] != ratio:
        raise ValueError(
            f"layer {layer}: expected ratio {cfg.compress_ratios[obeys]}, that of the candidate mask "
            f"of layer {obeys} which it obeys, got {ratio}"
        )
    return LayerRole(
        layer,
        "FULL" if kv_source == layer else "REINDEX",
        ratio,
        kv_source,
        key_source=kv_source,
        index_source=layer,
        publishes_candidates=mask == layer,
        obeys_candidates=obeys,
    )


def _nearest(cfg: AttnV41Cfg, layer: int, what: str, sources: Iterable[int]) -> int:
    """The last source at or below a layer, which must have the layer's ratio."""
    below = [source for source in sources if source <= layer]
    if not below:
        raise ValueError(f"layer {layer}: expected a {what} at or below it, got {tuple(sources)}")
    ratio, theirs = cfg.compress_ratios[layer], cfg.compress_ratios[below[-1]]
    if ratio != theirs:
        raise ValueError(f"layer {layer}: expected ratio {theirs}, that of its {what} {below[-1]}, got {ratio}")
    return below[-1]
