import numpy as np
import pytest

import golden
from conftest import random_bf16
from dsv41_numba.compare import bf16_array, bf16_steps, same_bits, worst_steps
from dsv41_numba.formats.bf16 import as_bf16
from dsv41_numba.ops.sparse_attention import HEADS, MAX_D, SLOTS, sparse_attention, sparse_attention_ref
from dsv41_numba.runtime.backend import to_device, to_host
from tolerances import ONE_ROUNDING


def inputs(rng, T, H, D, W, G, S):
    """q, window_rows, compress_rows, idx and attn_sink; about a fifth of the slots are empty."""
    idx = rng.integers(0, W + G, (T, S)).astype(np.int32)
    idx[rng.random((T, S)) < 0.2] = -1
    sink = rng.standard_normal(H).astype(np.float32)
    return random_bf16(rng, T, H, D), random_bf16(rng, W, D), random_bf16(rng, G, D), idx, sink


def run(q, window_rows, compress_rows, idx, attn_sink, scale):
    device = (to_device(x) for x in (q, window_rows, compress_rows, idx, attn_sink))
    return bf16_array(to_host(sparse_attention(*device, scale)))


def float64_attention(q, window_rows, compress_rows, idx, attn_sink, scale, sink_scale=1.0, sink_value=0.0, empty=-1):
    """The formula in float64, one token at a time, before any rounding. The last three make wrong variants: a scaled
    sink, a sink that brings a value, and another number that means an empty slot."""
    rows = np.concatenate([window_rows, compress_rows]).astype(np.float64)
    o = np.zeros(q.shape)
    for t in range(len(q)):
        row = rows[idx[t][idx[t] != empty]]
        sink = sink_scale * attn_sink.astype(np.float64)[:, None]
        logit = np.concatenate([sink, q[t].astype(np.float64) @ row.T * scale], 1)
        weight = np.exp(logit - logit.max(-1, keepdims=True))
        weight /= weight.sum(-1, keepdims=True)
        o[t] = weight[:, 1:] @ row + weight[:, :1] * sink_value
    return o


@pytest.mark.parametrize(
    "T, H, D, W, G, S",
    [
        (1, 1, 16, 1, 0, 1),
        (3, HEADS - 1, 48, 5, 0, 7),
        (2, HEADS, 64, 8, 21, SLOTS - 1),
        (2, HEADS + 1, 32, 9, 3, SLOTS),
        (1, 6, 96, 7, 40, SLOTS + 1),
        (2, 9, MAX_D - 16, 3, 4, 5),
        (2, 3, 2, 3, 4, 6),
        (1, 2 * HEADS, MAX_D, 128, 512, 640),
    ],
)
def test_sparse_attention_matches_its_reference_and_float64(rng, T, H, D, W, G, S):
    args = (*inputs(rng, T, H, D, W, G, S), D**-0.5)
    o = run(*args)
    steps = worst_steps(o, sparse_attention_ref(*args))
    oracle = worst_steps(o, as_bf16(float64_attention(*args).astype(np.float32)))
    print(f"worst steps {steps} to the reference, {oracle} to float64")
    assert max(steps, oracle) <= ONE_ROUNDING


RECORDINGS = [f"tiny-{scenario}{keys}" for scenario in "ABCD" for keys in ("", "-ownkeys")]


def recorded_inputs(name, layer, step):
    """The inputs of one recorded call; None where a row it may read was not recorded."""
    tensors, key = golden.load(name), f"L{layer:02d}.{step}"
    q, idx = tensors[f"{key}.q"], tensors[f"{key}.idx"]
    window_rows = tensors[f"{key}.kv" if step == "p" else f"{key}.window"]
    compress_rows = window_rows[:0]
    if golden.config()["compress_ratios"][layer] > 0:
        compress_rows = golden.rows_so_far(name, golden.source(layer, "kv_source_layers"), "latent_q", step)
        if compress_rows is None:
            return None
    return q, window_rows, compress_rows, idx, golden.weights(name)[f"layers.{layer}.attn.attn_sink"]


@pytest.mark.parametrize("name", [*RECORDINGS, "tiny-fp8-dequant-run", "tiny-fp8-linear"])
def test_sparse_attention_agrees_with_the_recordings(name):
    compared = elements = differ = 0
    for layer in golden.layers(name, "o_f32"):
        for step in golden.steps(name):
            args = recorded_inputs(name, layer, step)
            if args is None:
                continue  # the ownkeys recordings of B, C and D lack the prefill rows of layers 8 and 14
            steps = bf16_steps(run(*args, golden.config()["head_dim"] ** -0.5), recorded(name, layer, step))
            assert steps.max() <= ONE_ROUNDING, (layer, step)
            compared, elements, differ = compared + 1, elements + steps.size, differ + (steps > 0).sum()
    print(f"{name}: {compared} calls, {differ} of {elements} elements one step off")
    assert compared >= 6
    assert differ <= elements / 1000


def recorded(name, layer, step):
    return golden.load(name)[f"L{layer:02d}.{step}.o_f32"]


def test_sparse_attention_survives_a_leading_tile_of_empty_slots():
    """Hard case 6: one valid key with score 2 behind a whole tile of -1, sink 0: weight e^2 / (e^2 + 1)."""
    q, row = as_bf16(np.full((1, 1, 16), 0.5, np.float32)), as_bf16(np.ones((1, 16), np.float32))
    idx = np.full((1, SLOTS + 1), -1, np.int32)
    idx[0, -1] = 0
    assert float64_attention(q, row, row[:0], idx, np.zeros(1, np.float32), 0.25)[0, 0, 0].round(9) == 0.880797078
    o = run(q, row, row[:0], idx, np.zeros(1, np.float32), 0.25)
    assert (o == as_bf16(np.float32([0.880797078]))).all()


def test_sparse_attention_of_empty_slots_is_exactly_zero(rng):
    q, window, compressed, idx, sink = inputs(rng, 2, 5, 32, 4, 6, SLOTS + 3)
    idx[1] = -1
    o = run(q, window, compressed, idx, sink, 0.2)
    assert not o[1].view(np.uint16).any() and o[0].view(np.uint16).all()
    assert not run(q, window, compressed, idx[:, :0].copy(), sink, 0.2).view(np.uint16).any()


def test_sparse_attention_never_reads_an_empty_slot_as_a_row(rng):
    """Hard case 6: 1e4 in the last window row, where -1 plus the number of window rows would point."""
    q, window, compressed, _, sink = inputs(rng, 1, 3, 64, 128, 4, 1)
    idx = np.concatenate([np.arange(127), np.full(64, -1)]).astype(np.int32)[None]
    before = run(q, window, compressed, idx, sink, 64**-0.5)
    window[127] = 1e4
    assert same_bits(run(q, window, compressed, idx, sink, 64**-0.5), before)
    compressed[:] = np.nan
    assert same_bits(run(q, window, compressed, idx, sink, 64**-0.5), before)


@pytest.mark.parametrize(
    "wrong", [{"sink_value": 1.0}, {"sink_scale": 48**-0.5}, {"empty": None}], ids=["value", "scaled", "empty"]
)
def test_sparse_attention_inputs_tell_a_wrong_formula(rng, wrong):
    """A sink that brings a value, a sink that is scaled, an empty slot that is read: each is seen."""
    args = (*inputs(rng, 3, 5, 48, 6, 9, 12), 48**-0.5)
    with_fault = float64_attention(*args, **wrong)
    assert worst_steps(run(*args), as_bf16(with_fault.astype(np.float32))) > ONE_ROUNDING


def test_sparse_attention_puts_the_sink_into_the_denominator_only(rng):
    """With sink log(n) beside n slots of logit 0, every slot weighs 1 / 2n."""
    q, window, compressed, _, _ = inputs(rng, 1, 4, 32, 3, 5, 1)
    q[:] = 0
    idx = np.arange(8, dtype=np.int32)[None]
    o = run(q, window, compressed, idx, np.full(4, np.log(8), np.float32), 1.0)
    half_mean = np.concatenate([window, compressed]).astype(np.float64).mean(0) / 2
    assert worst_steps(o, np.broadcast_to(as_bf16(half_mean.astype(np.float32)), o.shape)) <= ONE_ROUNDING


@pytest.mark.parametrize("sink", [-np.inf, np.finfo(np.float32).min, -1e4, -80.0, 80.0, 1e4])
def test_sparse_attention_takes_any_sink_below_infinity(rng, sink):
    q, window, compressed, idx, _ = inputs(rng, 3, 2, 32, 4, 6, SLOTS + 9)
    idx[0, :SLOTS], idx[2] = -1, -1
    args = (q, window, compressed, idx, np.full(2, sink, np.float32), 32**-0.5)
    o = run(*args)
    assert worst_steps(o, sparse_attention_ref(*args)) <= ONE_ROUNDING
    assert not o[2].view(np.uint16).any()
    args = (q[:2], *args[1:3], idx[:2], *args[4:])
    assert worst_steps(o[:2], as_bf16(float64_attention(*args).astype(np.float32))) <= ONE_ROUNDING


def test_sparse_attention_keeps_large_logits_finite(rng):
    """The maximum rises by hundreds from tile to tile, and exp of a logit itself would overflow."""
    q, window, compressed, idx, sink = inputs(rng, 2, 4, 64, 8, 300, 3 * SLOTS)
    compressed[:] = as_bf16(np.sort(compressed.astype(np.float32), 0))
    args = (q, window, compressed, np.sort(idx, 1), sink, 4.0)
    assert worst_steps(run(*args), as_bf16(float64_attention(*args).astype(np.float32))) <= ONE_ROUNDING


def test_sparse_attention_does_not_depend_on_the_order_of_the_slots(rng):
    q, window, compressed, idx, sink = inputs(rng, 2, 5, 64, 8, 40, SLOTS + 30)
    shuffled = rng.permuted(idx, axis=1)
    o = run(q, window, compressed, idx, sink, 0.125)
    assert worst_steps(run(q, window, compressed, shuffled, sink, 0.125), o) <= ONE_ROUNDING


def test_sparse_attention_ignores_empty_slots_wherever_they_stand(rng):
    """Within one tile not even a bit changes: the others are still added up in the same order."""
    q, window, compressed, idx, sink = inputs(rng, 1, 3, 48, 4, 9, 20)
    o = run(q, window, compressed, idx, sink, 0.2)
    for place in (0, 7, 20):
        assert same_bits(run(q, window, compressed, np.insert(idx, place, -1, axis=1), sink, 0.2), o)
    many = np.insert(idx, 5, np.full((SLOTS, 1), -1), axis=1)  # now the others lie in two tiles
    assert worst_steps(run(q, window, compressed, many, sink, 0.2), o) <= ONE_ROUNDING


def test_sparse_attention_of_a_token_depends_on_no_other_token_and_no_other_head(rng):
    q, window, compressed, idx, sink = inputs(rng, 3, 6, 32, 4, 9, 20)
    together = run(q, window, compressed, idx, sink, 0.2)
    for t in range(3):
        alone = run(q[t : t + 1], window, compressed, idx[t : t + 1], sink, 0.2)
        assert same_bits(alone, together[t : t + 1])
    for h in range(6):
        assert same_bits(
            run(np.ascontiguousarray(q[:, h : h + 1]), window, compressed, idx, sink[h : h + 1], 0.2),
            np.ascontiguousarray(together[:, h : h + 1]),
        )


def test_sparse_attention_reads_compressed_rows_behind_the_window_rows(rng):
    """However the same rows are divided between the two arrays, not a bit changes."""
    q, window, compressed, idx, sink = inputs(rng, 2, 4, 32, 5, 11, 30)
    rows = np.concatenate([window, compressed])
    o = run(q, window, compressed, idx, sink, 0.2)
    for W in (0, 1, 15, 16):
        assert same_bits(run(q, rows[:W], rows[W:], idx, sink, 0.2), o)


def test_sparse_attention_indexes_beyond_32_bits(rng):
    """The last row starts at element 2^31. Pages of zeros that nothing touches take no memory on a host."""
    D = MAX_D
    compressed = np.zeros((2**31 // D + 1, D), np.uint16)
    q, window, last, _, sink = inputs(rng, 1, 2, D, 3, 1, 1)
    compressed[-1] = last.view(np.uint16)
    idx = np.array([[1, 3 + len(compressed) - 1]], np.int32)
    o = run(q, window, compressed, idx, sink, D**-0.5)
    assert same_bits(o, run(q, window, last, np.array([[1, 3]], np.int32), sink, D**-0.5))


def test_sparse_attention_reference_gives_the_same_in_small_portions(rng, monkeypatch):
    args = (*inputs(rng, 7, 3, 32, 4, 9, 11), 0.2)
    whole = sparse_attention_ref(*args)
    monkeypatch.setitem(sparse_attention_ref.__globals__, "GATHERED_BYTES", 2 * 4 * 11 * 32)
    assert same_bits(sparse_attention_ref(*args), whole)


def test_sparse_attention_of_no_token_is_nothing(rng):
    q, window, compressed, idx, sink = inputs(rng, 2, 3, 16, 4, 6, 5)
    assert run(q[:0], window, compressed, idx[:0], sink, 0.25).shape == (0, 3, 16)


def test_sparse_attention_refuses_bad_input(rng):
    q, window, compressed, idx, sink = (to_device(x) for x in inputs(rng, 2, 3, 16, 4, 6, 5))
    wide = to_device(np.zeros((1, 1, MAX_D + 16), np.uint16))
    with pytest.raises(ValueError, match="q: expected an even number of dimensions, at most 512, got 528"):
        sparse_attention(wide, window, compressed, idx, sink, 0.25)
    with pytest.raises(ValueError, match="q: expected an even number of dimensions, at most 512, got 15"):
        sparse_attention(to_device(np.zeros((2, 3, 15), np.uint16)), window, compressed, idx, sink, 0.25)
    with pytest.raises(ValueError, match=r"window_rows: expected shape \[\*, 16\], got \[4, 15\]"):
        sparse_attention(q, to_device(np.zeros((4, 15), np.uint16)), compressed, idx, sink, 0.25)
    with pytest.raises(ValueError, match=r"compress_rows: expected shape \[\*, 16\], got \[0, 8\]"):
        sparse_attention(q, window, to_device(np.zeros((0, 8), np.uint16)), idx, sink, 0.25)
    with pytest.raises(ValueError, match="idx: expected dtype int32, got int64"):
        sparse_attention(q, window, compressed, to_device(np.zeros((2, 5), np.int64)), sink, 0.25)
    with pytest.raises(ValueError, match=r"idx: expected shape \[2, \*\], got \[3, 5\]"):
        sparse_attention(q, window, compressed, to_device(np.zeros((3, 5), np.int32)), sink, 0.25)
    with pytest.raises(ValueError, match=r"attn_sink: expected shape \[3\], got \[4\]"):
        sparse_attention(q, window, compressed, idx, to_device(np.zeros(4, np.float32)), 0.25)


@pytest.mark.parametrize("index", [10, -2])
def test_sparse_attention_reference_refuses_an_index_out_of_range(rng, index):
    q, window, compressed, idx, sink = inputs(rng, 2, 3, 16, 4, 6, 5)
    idx[1, 2] = index
    with pytest.raises(ValueError, match="idx: expected indices from -1 to 9"):
        sparse_attention_ref(q, window, compressed, idx, sink, 0.25)
