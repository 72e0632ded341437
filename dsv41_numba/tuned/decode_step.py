"""A decode step whose position is in device memory, and the same step as one CUDA graph for all layers.

Launching costs more than most kernels of a decode step run: Python's part of one launch is longer than theirs. A graph
launches them all at once. But it repeats the arguments that it was captured with, so what changes from token to token
must be found in device memory, and what a step allocates must stay::

    changes with every token          where it is found
    the position                      `position`: read by all that turn, score, gather, or write into a cache
    how many keys, how many blocks    `counts`, made from the position when a step begins

    changes with position mod ratio   a graph for each remainder
    whether a group is complete, its slot, and so which kernels run

The arrays of a captured call have the sizes of the last positions of the caches; the kernels look at the part that the
numbers above tell them to. A selection whose cut lies in a tie is settled on the device like any other, so no step has
to leave the graph.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from dsv41_numba.caches import SharedV41
from dsv41_numba.layer import OutRun, forward
from dsv41_numba.ops import Ops
from dsv41_numba.runtime import backend
from dsv41_numba.runtime.backend import empty, launch, to_device
from dsv41_numba.stack import AttnV41
from dsv41_numba.tuned import TUNED, gather, index_score, topk
from dsv41_numba.tuned.recorded import graph_of, recorded_launches


@cuda.jit
def counts_kernel(position, ratio, block_size, counts):
    """counts[0] = the compressed positions that the token sees, counts[1] = the candidate blocks that they fill."""
    if cuda.threadIdx.x == 0:
        groups = (position[0] + 1) // ratio
        counts[0] = groups
        counts[1] = (groups + block_size - 1) // block_size


class DecodeStep:
    """The kernels of one token through all layers of a model, for whatever position is in device memory.

    The step works on the model's present sequence, which holds at least one token and was filled by TUNED. Raises
    ValueError when it does not, or max_seq leaves no room to capture a step of every kind.
    """

    def __init__(self, model: AttnV41) -> None:
        cfg = model.cfg
        self.model, self.sequence = model, model.sequence
        ratios = sorted({model.roles[layer].ratio for layer in model.layers} - {0})
        self.kinds = math.lcm(*ratios)  # positions with the same remainder need the same kernels
        if model.ops.name != TUNED.name:
            raise ValueError(f"model: expected the ops {TUNED.name}, got {model.ops.name}")
        if model.position < 1:
            raise ValueError("model: expected a sequence of at least 1 token, got none; prefill it first")
        if cfg.max_seq < 2 * self.kinds + 2:
            raise ValueError(f"max_seq: expected at least {2 * self.kinds + 2}, got {cfg.max_seq}")
        self.position = to_device(np.zeros(1, np.int64))
        self.x = to_device(np.zeros((len(model.layers), 1, cfg.dim), np.uint16))
        self.counts = {ratio: empty(2, np.int32) for ratio in ratios}
        self.shared = SharedV41()

    def set_input(self, x: Any) -> None:
        """x[layer] [1, dim] bf16 of the model's next token, and its position, into device memory."""
        rows = np.stack([np.asarray(x[layer]) for layer in self.model.layers]).view(np.uint16)
        if rows.shape != self.x.shape:
            raise ValueError(f"x: expected one row of {self.model.cfg.dim} a layer, got {list(rows.shape[1:])}")
        if self.sequence.position >= self.model.cfg.max_seq:
            raise ValueError(f"x: expected positions below {self.model.cfg.max_seq} (max_seq), got another token")
        _overwrite(self.x, rows)
        self.set_position()

    def set_position(self) -> None:
        """The position of the model's next token into device memory."""
        _overwrite(self.position, np.array([self.sequence.position], np.int64))

    def moved_on(self) -> None:
        """The step is done: the sequence is one token longer."""
        self.sequence.position += 1
        for state in self.sequence.states.values():
            state.next_pos = self.sequence.position

    def positions(self) -> dict[int, int]:
        """Remainder -> the last position that leaves it: the sizes that the caches have there are those of a step."""
        last = self.model.cfg.max_seq
        return {position % self.kinds: position for position in range(last - self.kinds, last)}

    def launch_all(self, at: int) -> dict[int, Any]:
        """Launch every kernel of the step, with the sizes of position `at` -> layer's output [1, dim] bf16 bits.

        `at` leaves the same remainder as the position in device memory. The steps before must have been launched, or
        noted, in order: as released, a step may score against keys that an earlier one published.
        """
        model = self.model
        for ratio, counts in self.counts.items():
            launch(counts_kernel, 1, 32, self.position, ratio, model.cfg.candidate_block_size, counts)
        outs = {}
        for i, layer in enumerate(model.layers):
            role = model.roles[layer]
            run = forward(
                self._ops(role.ratio, at),
                model.cfg,
                role,
                model._layer_weights(layer),
                model._rope[role.ratio > 0],
                dataclasses.replace(self.sequence.states[layer], next_pos=at),  # the same arrays
                self.shared,
                self.x[i],
                at,
                model.index_keys,
                OutRun(),
            )
            outs[layer] = run.out
        return outs

    def _ops(self, ratio: int, at: int) -> Ops:
        """TUNED with stages that find the position in place of those that are told one; `at` is what they are told."""

        def at_position(stage: Callable[..., Any], place: int) -> Callable[..., Any]:
            """The stage with the position in memory for its argument number `place`, which is start_pos."""
            return lambda *arguments: stage(*arguments[:place], self.position, *arguments[place + 1 :])

        def score(index_q: Any, index_w: Any, index_k: Any, start_pos: int, ratio: int) -> Any:
            if not index_score.sizes_fit(index_q, index_k):
                raise ValueError(f"index keys: expected rows that the tuned score takes, got {list(index_k.shape)}")
            scores = empty((1, index_k.shape[0]), np.float32)
            if scores.size > 0:
                index_score.launch_mma(index_q, index_w, index_k, self.position, ratio, scores)
            return scores

        def candidate_blocks(scores: Any, lens: Any, topk_blocks: int, block_size: int) -> Any:
            groups, blocks = self.counts[ratio][:1], self.counts[ratio][1:]
            return topk.candidate_blocks(scores, groups, topk_blocks, block_size, blocks)

        return dataclasses.replace(
            TUNED,
            rope_in_place=at_position(TUNED.rope_in_place, 3),
            kv_rows=at_position(TUNED.kv_rows, 5),
            index_key_rows=at_position(TUNED.index_key_rows, 5),
            latent_rows=at_position(TUNED.latent_rows, 3),
            index_query_rows=at_position(TUNED.index_query_rows, 3),
            attention_turned_back=at_position(TUNED.attention_turned_back, 8),
            pool=lambda *arrays: TUNED.pool(*arrays[:-1], arrays[-1] % ratio),
            store_partial=lambda *arrays: TUNED.store_partial(*arrays[:-1], arrays[-1] % ratio),
            index_score=score,
            candidate_blocks=candidate_blocks,
            select=lambda scores, k, mask, offset: topk.select(scores, k, mask, offset, self.counts[ratio][:1]),
            gather_list=lambda window, start_pos, T, chosen: gather.gather_list_at(
                window, self.position, empty((1, 0), np.int32) if chosen is None else chosen
            ),
        )


class DecodeGraph:
    """`model.decode` of one token as one CUDA graph launch: the same bits, on a GPU.

    ::

        model = AttnV41(cfg, weights, TUNED)
        model.prefill(x)
        graph = DecodeGraph(model)  # of this sequence; a new prefill needs a new one
        outs = graph.decode(x_next)  # as model.decode(x_next)

    launches  kernels of one step, by the position's remainder
    """

    def __init__(self, model: AttnV41) -> None:
        if backend.current().name != "gpu":
            raise ValueError(f"model: expected a GPU for a CUDA graph, got the {backend.current().name}")
        from cuda.core import Device

        self.step = DecodeStep(model)
        _compile_all(model)
        noted: dict[int, tuple[list[Any], dict[int, Any]]] = {}
        positions = self.step.positions()
        for at in [min(positions.values()) - 1, *sorted(positions.values())]:  # the first fills the shared slots
            with recorded_launches(run=False) as launches:
                outs = self.step.launch_all(at)
            noted[at % self.step.kinds] = launches, outs
        self.launches = {kind: len(launches) for kind, (launches, _) in noted.items()}
        device = Device(cuda.get_current_device().id)
        device.set_current()
        self.stream = device.create_stream()
        self.outs = {kind: outs for kind, (_, outs) in noted.items()}
        self._kept = noted  # the arrays of the launches
        self.graphs = {kind: graph_of(launches) for kind, (launches, _) in noted.items()}

    def decode(self, x: Any) -> dict[int, np.ndarray]:
        """One more token, x[layer] [1, dim] bf16 -> the output of each layer, host bf16."""
        self.step.set_input(x)
        cuda.synchronize()  # the input is there before the graph, in another stream, reads it
        kind = self.run()
        self.step.moved_on()
        return {layer: TUNED.to_host(out) for layer, out in self.outs[kind].items()}

    def run(self) -> int:
        """Replay the step for the input in device memory and wait for it; returns the kind of step that it was."""
        kind = self.step.sequence.position % self.step.kinds
        self.graphs[kind].launch(self.stream)
        self.stream.sync()
        return kind


def _compile_all(model: AttnV41) -> None:
    """Run every kernel of every kind of step once, on short caches: nothing may be compiled while a graph is built."""
    ratios = {max(ratio, 1) for ratio in model.cfg.compress_ratios}
    small = dataclasses.replace(model.cfg, max_seq=4 * math.lcm(*ratios) + 4)
    double = AttnV41(small, lambda layer: None, TUNED, model.index_keys, model.layers, cache=model.cache)  # type: ignore[arg-type, return-value]
    double._weights = {layer: model._layer_weights(layer) for layer in model.layers}
    double.sequence.position = 1
    step = DecodeStep(double)
    for at in [min(step.positions().values()) - 1, *sorted(step.positions().values())]:
        _overwrite(step.position, np.array([at], np.int64))
        step.launch_all(at)
    cuda.synchronize()


def _overwrite(device: Any, host: np.ndarray) -> None:
    """New values for a device array that keeps its place."""
    if isinstance(device, np.ndarray):
        device[...] = host
    else:
        device.copy_to_device(host)
