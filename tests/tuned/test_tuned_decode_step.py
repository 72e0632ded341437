"""A decode step that finds its position in device memory: the bits of an ordinary one, without a graph and with one."""

import dataclasses

import numpy as np
import pytest

from dsv41_numba.compare import same_bits
from dsv41_numba.config import TINY
from dsv41_numba.ops import PLAIN
from dsv41_numba.runtime import backend
from dsv41_numba.stack import AttnV41
from dsv41_numba.tuned import TUNED
from dsv41_numba.weights import random_weights
from geometries import random_x

pytest.importorskip("numba_cuda", reason="numba-cuda, whose intrinsics hold the PTX, is not installed")

from dsv41_numba.tuned.decode_step import DecodeGraph, DecodeStep
from dsv41_numba.tuned.recorded import recorded_launches

CFG = dataclasses.replace(TINY, max_seq=48)
SOURCES = (1, 2, 3, 20, 21, 24, 25)  # window only; sources and readers at ratio 2 and 1, the mask and who obeys it


def filled(x, T, index_keys="released", layers=SOURCES, cache="bf16"):
    model = AttnV41(CFG, lambda layer: random_weights(CFG, layer), TUNED, index_keys, layers, cache=cache)
    model.prefill(x[:, :T])
    return model


def primed(step):
    """The step, with the shared slots as a step before would have left them."""
    with recorded_launches(run=False):
        step.launch_all(min(step.positions().values()) - 1)
    return step


@pytest.mark.parametrize("index_keys, cache", [("released", "bf16"), ("owner", "bf16"), ("released", "packed")])
@pytest.mark.parametrize("T", [1, 2, 7, 19])
def test_decode_step_has_the_bits_of_an_ordinary_one(rng, T, index_keys, cache):
    x = random_x(rng, CFG, T + 5)
    eager, model = (filled(x, T, index_keys, cache=cache) for _ in range(2))
    step = primed(DecodeStep(model))
    for position in range(T, T + 5):
        now = x[:, position : position + 1]
        step.set_input(now)
        outs = step.launch_all(step.positions()[position % step.kinds])
        step.moved_on()
        expected = eager.decode(now)
        assert list(outs) == list(expected)
        for layer, out in outs.items():
            assert same_bits(TUNED.to_host(out), expected[layer]), (position, layer)
    assert model.position == T + 5
    assert same(eager.decode(x[:, :1]), model.decode(x[:, :1]))  # and an ordinary step may follow


def same(outs, others):
    return all(same_bits(outs[layer], others[layer]) for layer in others)


def test_decode_step_needs_a_filled_sequence_room_and_the_tuned_table(rng):
    x = random_x(rng, CFG, 3)
    with pytest.raises(ValueError, match="model: expected a sequence of at least 1 token"):
        DecodeStep(AttnV41(CFG, lambda layer: random_weights(CFG, layer), TUNED, layers=(0,)))
    plain = AttnV41(CFG, lambda layer: random_weights(CFG, layer), PLAIN, layers=(0,))
    plain.prefill(x)
    with pytest.raises(ValueError, match="model: expected the ops tuned, got plain"):
        DecodeStep(plain)
    step = DecodeStep(filled(x, 3, layers=(0, 1)))
    with pytest.raises(ValueError, match=f"x: expected one row of {CFG.dim} a layer, got"):
        step.set_input(x)
    step.sequence.position = CFG.max_seq
    with pytest.raises(ValueError, match=r"x: expected positions below 48 \(max_seq\)"):
        step.set_input(x[:, :1])


@pytest.mark.skipif(backend.current().name == "gpu", reason="what is said without a GPU")
def test_decode_graph_needs_a_gpu(rng):
    with pytest.raises(ValueError, match="expected a GPU for a CUDA graph, got the emulator"):
        DecodeGraph(filled(random_x(rng, CFG, 2), 2, layers=(0,)))


@pytest.mark.gpu
@pytest.mark.skipif(backend.current().name != "gpu", reason="CUDA graphs need a GPU")
@pytest.mark.parametrize("index_keys", ["released", "owner"])
def test_decode_graph_has_the_bits_of_an_ordinary_step(rng, index_keys):
    layers = tuple(range(CFG.n_layers))
    x = random_x(rng, CFG, 19)
    eager, model = (filled(x, 9, index_keys, layers) for _ in range(2))
    graph = DecodeGraph(model)
    for position in range(9, 19):
        now = x[:, position : position + 1]
        outs, expected = graph.decode(now), eager.decode(now)
        assert list(outs) == list(expected) and same(outs, expected), position
    print(f"{graph.launches} launches")
    assert model.position == 19
    assert all(np.isfinite(out.astype(np.float32)).all() for out in outs.values())
