"""AttnV41, the driver: steps through the layers in order, call by call, and keeps their caches.

::

    model = AttnV41(TINY, checkpoint.layer)           # checkpoint = Checkpoint("data/tiny")
    outs = model.prefill(x)                           # x[layer] is [T, dim] bf16: every layer has its own input
    outs = model.decode(x_next)                       # x_next[layer] is [1, dim], or several tokens
    for step in model.walk(x_next):                   # the same, one layer at a time, with every intermediate
        print(step.role, step.run.topk)
    outs = model.prefill(x, chunk=2048)               # a long prompt in pieces

    prompts = [model.new_sequence() for _ in range(3)]  # a batch: the weights are shared, the caches are not
    for step in model.walk_batch(xs, prompts): ...      # xs[i][layer] [T_i, dim]

The attention of a real model is fed by the rest of the model; here the input of each layer is the caller's. What flows
between the layers is the shared attention state: compressed rows, index keys, selection, candidate mask.
"""

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from dsv41_numba.caches import AttnV41LayerState, SharedV41
from dsv41_numba.config import AttnV41Cfg
from dsv41_numba.layer import INDEX_KEYS, AttnV41Run, OutRun, RopeTable, forward
from dsv41_numba.ops import PLAIN, Ops
from dsv41_numba.ops.rope import rope_table
from dsv41_numba.roles import LayerRole, roles
from dsv41_numba.weights import AttnV41LayerWeights


@dataclasses.dataclass(frozen=True)
class Step:
    """One layer's part of a call: its role, every intermediate, the output on the host, and how long it took."""

    role: LayerRole
    run: AttnV41Run
    out: np.ndarray  # [T, dim] bf16
    seconds: float


@dataclasses.dataclass
class AttnV41Sequence:
    """The memory of one sequence: the position its next call starts at, every layer's caches, the shared slots."""

    states: dict[int, AttnV41LayerState]
    shared: SharedV41 = dataclasses.field(default_factory=SharedV41)
    position: int = 0


class AttnV41:
    """The attention of a stack of layers, with its caches.

    cfg         the geometry
    weights     a function layer -> AttnV41LayerWeights (host arrays), such as `Checkpoint.layer`
    ops         the op table: REFERENCE or PLAIN
    index_keys  "released" or "owner", see `layer.forward`
    layers      which layers to run, ascending; all by default. A layer whose source is left out raises ValueError
    cache       "bf16", or "packed": codes and scales, see `formats.packed_rows`; the outputs have the same bits
    keep_weights  keep each layer's weights on the device after its first use; False loads them anew in every call
    """

    def __init__(
        self,
        cfg: AttnV41Cfg,
        weights: Callable[[int], AttnV41LayerWeights],
        ops: Ops = PLAIN,
        index_keys: str = "released",
        layers: Iterable[int] | None = None,
        keep_weights: bool = True,
        cache: str = "bf16",
    ) -> None:
        if index_keys not in INDEX_KEYS:
            raise ValueError(f"index_keys: expected one of {', '.join(INDEX_KEYS)}, got {index_keys!r}")
        self.cfg, self.ops, self.index_keys, self.cache = cfg, ops, index_keys, cache
        self.layers = tuple(range(cfg.n_layers) if layers is None else layers)
        bad = [layer for layer in self.layers if not 0 <= layer < cfg.n_layers]
        if bad or list(self.layers) != sorted(set(self.layers)):
            raise ValueError(f"layers: expected ascending numbers within 0..{cfg.n_layers - 1}, got {self.layers}")
        self.roles = roles(cfg)
        self._load, self._keep = weights, keep_weights
        self._weights: dict[int, AttnV41LayerWeights] = {}
        self._rope = {
            compressed: self._rope_table(compressed)
            for compressed in sorted({self.roles[layer].ratio > 0 for layer in self.layers})
        }
        self.reset()

    def new_sequence(self) -> AttnV41Sequence:
        """Empty caches, position 0."""
        return AttnV41Sequence(
            {layer: AttnV41LayerState.new(self.cfg, self.roles[layer], self.ops, self.cache) for layer in self.layers}
        )

    def reset(self) -> None:
        """Forget the sequence: empty caches, position 0."""
        self.sequence = self.new_sequence()

    @property
    def position(self) -> int:
        """Where the next call starts."""
        return self.sequence.position

    @property
    def states(self) -> dict[int, AttnV41LayerState]:
        """Each layer's caches."""
        return self.sequence.states

    @property
    def shared(self) -> SharedV41:
        """What the layers of the last call published."""
        return self.sequence.shared

    def prefill(self, x: Any, chunk: int | None = None) -> dict[int, np.ndarray]:
        """Start a new sequence with x[layer] [T, dim] bf16, T >= 1 -> the output of each layer, host bf16.

        `chunk` tokens at a time: the scores of a call take T * G numbers, which a long prompt has no room for. With
        index_keys="owner" the bits do not depend on it, except where equal scores meet at a selection's cut: which of
        them torch keeps depends on how many columns there are.
        """
        if chunk is not None and chunk < 1:
            raise ValueError(f"chunk: expected at least 1 token, got {chunk}")
        self.reset()
        if chunk is None or not self.layers:
            return self.decode(x)
        T = x[self.layers[0]].shape[0]
        calls = [
            self.decode({layer: x[layer][first : first + chunk] for layer in self.layers})
            for first in range(0, T, chunk)
        ]
        return {layer: np.concatenate([outs[layer] for outs in calls]) for layer in self.layers}

    def decode(self, x: Any) -> dict[int, np.ndarray]:
        """The tokens that come next, x[layer] [T, dim] bf16, from `position` on -> the output of each layer, host bf16.

        One token is a decode step; several are a piece of a prompt, or guesses to be verified.
        """
        return {step.role.layer: step.out for step in self.walk(x, lambda role: OutRun())}

    def walk(self, x: Any, run: Callable[[LayerRole], AttnV41Run] = lambda role: AttnV41Run()) -> Iterator[Step]:
        """The next call, one layer at a time.

        x[layer] is a host bf16 array [T, dim] (a mapping, or one array [n_layers, T, dim]). `run` makes the record that
        each layer fills; a replay passes its own. The position moves on when the last layer is done.
        """
        return (step for _, step in self._steps([x], [self.sequence], run))

    def walk_batch(self, xs: Sequence[Any], sequences: Sequence[AttnV41Sequence]) -> Iterator[tuple[int, Step]]:
        """The next call of several sequences, layer by layer: yields (which sequence, its step).

        xs[i] is to sequences[i] what x is to `walk`; their lengths and positions may differ. A layer's weights are
        fetched once for all of them. Each sequence gets the bits that it would get alone.
        """
        if len(xs) != len(sequences) or len({id(sequence) for sequence in sequences}) != len(sequences):
            raise ValueError(
                f"sequences: expected {len(xs)} different ones, one for each input, got {len(sequences)} of which "
                f"{len({id(sequence) for sequence in sequences})} differ"
            )
        return self._steps(xs, sequences, lambda role: AttnV41Run())

    def _steps(
        self, xs: Sequence[Any], sequences: Sequence[AttnV41Sequence], run: Callable[[LayerRole], AttnV41Run]
    ) -> Iterator[tuple[int, Step]]:
        tokens = [0] * len(xs)
        for layer in self.layers:
            role, begin = self.roles[layer], time.perf_counter()
            weights, rope = self._layer_weights(layer), self._rope[self.roles[layer].ratio > 0]
            for i, (x, sequence) in enumerate(zip(xs, sequences)):
                tokens[i] = x[layer].shape[0]
                record = forward(
                    self.ops,
                    self.cfg,
                    role,
                    weights,
                    rope,
                    sequence.states[layer],
                    sequence.shared,
                    self.ops.to_device(x[layer]),
                    sequence.position,
                    self.index_keys,
                    run(role),
                )
                out = self.ops.to_host(record.out)  # also waits for a GPU, so that the time is the layer's
                yield i, Step(role, record, out, time.perf_counter() - begin)
                begin = time.perf_counter()
        for T, sequence in zip(tokens, sequences):
            sequence.position += T

    def _layer_weights(self, layer: int) -> AttnV41LayerWeights:
        weights = self._weights.get(layer) or _to_device(self._load(layer), self.ops)
        if self._keep:
            self._weights[layer] = weights
        return weights

    def _rope_table(self, compressed: bool) -> RopeTable:
        """The table of the layers with a ratio (YaRN) or without one (plain), over all positions."""
        cos, sin = rope_table(self.cfg, compressed)
        return RopeTable(self.ops.to_device(cos), self.ops.to_device(sin))


def _to_device(weights: Any, ops: Ops) -> Any:
    """The same dataclass with every array in the op table's place (nested dataclasses too)."""
    changed = {}
    for field in dataclasses.fields(weights):
        value = getattr(weights, field.name)
        if isinstance(value, np.ndarray):
            changed[field.name] = ops.to_device(value)
        elif dataclasses.is_dataclass(value):
            changed[field.name] = _to_device(value, ops)
    return dataclasses.replace(weights, **changed)
