"""The rungs of sparse attention: on a GPU with PTX, on the emulator with what `tuned.emulated` makes of it.

mma and decode are held to the f32 reference in `ops`. wgmma, whose weights are bf16, is held to
`tuned.sparse_attention.sparse_attention_ref`, which rounds where it does. A weight at a rounding boundary may fall on
its other side all the same, since f32 sums and powers of two differ in their last bits; so a difference of at most
WEIGHT_STEP of a row's largest output counts as none, and all together are held to RELATIVE_L2, which weights that are
not rounded at all would break.
"""

import numpy as np
import pytest
from numba import cuda

import golden
from conftest import random_bf16
from dsv41_numba.compare import bf16_array, bf16_steps, relative_l2, same_bits, worst_steps
from dsv41_numba.formats.bf16 import as_bf16
from dsv41_numba.formats.packed_rows import COMPRESSED, INDEX_KEY, WINDOW, PackedRows
from dsv41_numba.ops import PLAIN
from dsv41_numba.ops.packed_rows import pack_rows_ref
from dsv41_numba.ops.rope import rope_inverse_ref
from dsv41_numba.ops.sparse_attention import sparse_attention_ref as f32_ref
from dsv41_numba.runtime import backend
from dsv41_numba.runtime.backend import to_device, to_host
from dsv41_numba.tuned import sparse_attention as ladder
from dsv41_numba.tuned.sparse_attention import BLOCK, Choice, pick, sparse_attention_by, sparse_attention_ref
from test_packed_rows import every_row
from test_rope import table
from test_sparse_attention import float64_attention, recorded_inputs
from tolerances import ONE_ROUNDING

pytest.importorskip("numba_cuda", reason="numba-cuda, which the tuned kernels need, is not installed")

from dsv41_numba.tuned.packed_rows import unpack_rows

ON_GPU = backend.current().name == "gpu"
NO_HOPPER = not ON_GPU or cuda.get_current_device().compute_capability != (9, 0)

# of the largest output: a weight that moves to the next bf16 moves by at most 2^-7, and so does what it brings
WEIGHT_STEP = 2.0**-7
# rounding all weights to bf16 or not makes 1.5e-3; rounding them in the same places but for a few at a boundary 2e-4
RELATIVE_L2 = 5e-4

on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not ON_GPU, reason="no CUDA device")]
needs_hopper = [pytest.mark.gpu, pytest.mark.skipif(NO_HOPPER, reason="no GPU of compute capability 9.0")]
RUNGS = ["mma", "decode", pytest.param("wgmma", marks=needs_hopper)]
every_rung = pytest.mark.parametrize("name", RUNGS)

# T, H, D, W, G, S: one row; the edges of a tile; several tiles; heads that are no multiple of 16 or of 64
SIZES = {
    "mma": [(1, 1, 64, 1, 0, 1), (2, 5, 64, 7, 9, BLOCK - 1), (1, 67, 48, 0, 90, BLOCK + 1), (2, 3, 64, 3, 4, 130)],
    "decode": [(1, 1, 64, 1, 0, 1), (3, 5, 64, 7, 9, 31), (1, 17, 48, 0, 90, 33), (2, 3, 64, 3, 4, 130)],
    "wgmma": [(1, 64, 512, 1, 0, 1), (3, 64, 512, 7, 9, 63), (1, 128, 512, 0, 90, 65), (140, 64, 512, 50, 70, 130)],
}
# on a GPU also more dimensions, each number of which takes the emulator a minute to compile, and more than 32 parts
GPU_SIZES = {
    "mma": [(3, 66, 512, 50, 60, 200), (2, 5, 16, 7, 0, 33), (2, 3, 144, 9, 9, 130), (1, 64, 400, 9, 9, 65)],
    "decode": [(1, 64, 512, 128, 900, 640), (2, 66, 144, 9, 9, 130), (6, 128, 512, 100, 900, 2100)],
    "wgmma": [(133, 64, 512, 256, 512, 640), (70, 192, 512, 40, 60, 127)],
}


def cases():
    for name, sizes in SIZES.items():
        marks = needs_hopper if name == "wgmma" else []
        yield from (pytest.param(name, *size, id=f"{name}-{size}", marks=marks) for size in sizes)
        marks = [*on_gpu, *marks]
        yield from (pytest.param(name, *size, id=f"{name}-{size}", marks=marks) for size in GPU_SIZES[name])


def inputs(rng, T, H, D, W, G, S):
    """q, window_rows, compress_rows, idx, attn_sink and scale; about a fifth of the slots are empty."""
    idx = rng.integers(0, W + G, (T, S)).astype(np.int32)
    idx[rng.random((T, S)) < 0.2] = -1
    q, window, compressed = (random_bf16(rng, *shape, spread=0.5) for shape in ((T, H, D), (W, D), (G, D)))
    return q, window, compressed, idx, rng.standard_normal(H).astype(np.float32), D**-0.5


def small(rng, name, S=70):
    """A call that every rung takes."""
    H, D = (64, 512) if name == "wgmma" else (5, 64)
    return inputs(rng, 2, H, D, 4, 30, S)


def placed(argument):
    """An argument where kernels find it."""
    if isinstance(argument, PackedRows):
        return argument.planes(to_device)
    return to_device(argument) if isinstance(argument, np.ndarray) else argument


def run(name, *arguments):
    device = [placed(argument) for argument in arguments]
    return bf16_array(to_host(sparse_attention_by(ladder.rung(name), *device)))


def assert_close(name, o, arguments):
    """o is what the rung's reference says."""
    expected = ladder.reference(Choice(name, ""))(*arguments)
    got, wanted = o.astype(np.float32), expected.astype(np.float32)
    floor = WEIGHT_STEP if name == "wgmma" else 0.0
    near = np.abs(got - wanted) <= floor * np.abs(wanted).max(-1, keepdims=True)
    steps = worst_steps(np.where(near, expected, o), expected)
    error = relative_l2(o, expected)
    print(f"{name}: {steps} steps, relative L2 {error:.1e}")
    assert steps <= ONE_ROUNDING and error <= RELATIVE_L2


@pytest.mark.parametrize("name, T, H, D, W, G, S", list(cases()))
def test_tuned_sparse_matches_its_reference(rng, name, T, H, D, W, G, S):
    arguments = inputs(rng, T, H, D, W, G, S)
    assert_close(name, run(name, *arguments), arguments)


@every_rung
@pytest.mark.parametrize("start_pos", [0, 41])
def test_tuned_sparse_turns_back_as_rope_inverse_does(rng, name, start_pos):
    arguments = small(rng, name)
    turn = *table(64 if name == "wgmma" else 16, 64), start_pos
    o = run(name, *arguments)
    assert same_bits(run(name, *arguments, *turn), rope_inverse_ref(o, *turn))


@every_rung
def test_tuned_sparse_of_packed_rows_has_the_bits_of_their_values(rng, name):
    """decode reads them as they are, the others unpack them; mixed ones are read too."""
    q, window, compressed, *rest = small(rng, name)
    packed = pack_rows_ref(window, WINDOW), pack_rows_ref(compressed, COMPRESSED)
    values = [rows.to_bf16() for rows in packed]
    expected = run(name, q, *values, *rest)
    for rows in (packed, (packed[0], values[1]), (values[0], packed[1])):
        assert same_bits(run(name, q, *rows, *rest), expected)


@pytest.mark.parametrize("D, S", [(96, 33), pytest.param(512, 640, marks=on_gpu)])
def test_tuned_sparse_decode_reads_packed_rows_of_other_lengths(rng, D, S):
    """96 dimensions leave room in a tile's rows; slots of both kinds, and empty ones, in one part."""
    q, window, compressed, *rest = inputs(rng, 2, 17, D, 9, 40, S)
    packed = pack_rows_ref(window, WINDOW), pack_rows_ref(compressed, COMPRESSED)
    values = [rows.to_bf16() for rows in packed]
    assert same_bits(run("decode", q, *packed, *rest), run("decode", q, *values, *rest))


@pytest.mark.parametrize("format", [WINDOW, COMPRESSED], ids=lambda format: format.name)
def test_tuned_sparse_unpacks_every_code_and_scale(format):
    """But for 0x7F, e4m3's NaN, which the quantiser gives only under a scale that is NaN itself."""
    rows = every_row(format)
    got, expected = bf16_array(to_host(unpack_rows(rows.planes(to_device)))), rows.to_bf16()
    nan = np.isnan(expected)
    given = (rows.codes & 0x7F != 0x7F) | (rows.scales[:, :1] == 255) if format is WINDOW else np.ones(nan.shape, bool)
    assert nan[given].any() and np.array_equal(np.isnan(got)[given], nan[given])
    assert same_bits(got[~nan], expected[~nan])


def test_tuned_sparse_unpacks_only_what_attention_reads():
    with pytest.raises(ValueError, match="rows: expected window rows or compressed rows, got index keys"):
        unpack_rows(PackedRows.new(INDEX_KEY, 2, 64, backend.empty))
    rows = to_device(np.zeros((2, 64), np.uint16))
    assert unpack_rows(rows) is rows and unpack_rows(PackedRows.new(WINDOW, 0, 64, backend.empty)).shape == (0, 64)


def test_tuned_sparse_decode_finds_the_position_in_device_memory(rng):
    arguments, (cos, sin) = small(rng, "decode"), table(16, 64)
    in_memory = run("decode", *arguments, cos, sin, np.array([29], np.int64))
    assert same_bits(in_memory, run("decode", *arguments, cos, sin, 29))


def test_tuned_sparse_turned_back_takes_any_number_of_pairs(rng):
    for name in RUNGS[:2] if NO_HOPPER else ["wgmma"]:
        arguments, turn = small(rng, name), (*table(32, 64), 7)
        device = [to_device(a) if isinstance(a, np.ndarray) else a for a in (*arguments, *turn)]
        turned = bf16_array(to_host(ladder.attention_turned_back(*device)))
        unturned = bf16_array(to_host(ladder.sparse_attention(*device[:6])))
        assert same_bits(turned, rope_inverse_ref(unturned, *turn))


def test_tuned_sparse_reference_differs_from_the_f32_one_by_the_rounding_of_weights_alone(rng):
    arguments = inputs(rng, 3, 4, 48, 9, 70, 150)
    assert 5e-4 < relative_l2(sparse_attention_ref(*arguments), f32_ref(*arguments)) < 3e-3
    one_row = (*arguments[:3], arguments[3][:, :1], *arguments[4:])  # its weight is 1, which is a bf16
    assert worst_steps(sparse_attention_ref(*one_row), f32_ref(*one_row)) <= ONE_ROUNDING


RECORDINGS = [f"tiny-{scenario}{keys}" for scenario in "ABCD" for keys in ("", "-ownkeys")]


def recorded_calls(name):
    """(layer, step, arguments, recorded o, recorded o_f32) of every call whose rows were recorded."""
    tensors, scale = golden.load(name), golden.config()["head_dim"] ** -0.5
    for layer in golden.layers(name, "o"):
        for step in golden.steps(name):
            arguments = recorded_inputs(name, layer, step)
            if arguments is not None:
                key = f"L{layer:02d}.{step}"
                yield layer, step, (*arguments, scale), tensors[f"{key}.o"], tensors[f"{key}.o_f32"]


@pytest.mark.parametrize("name", [*RECORDINGS, "tiny-fp8-dequant-run", "tiny-fp8-linear"])
def test_tuned_sparse_agrees_with_the_recordings(name):
    """mma and decode with o_f32; the reference with the official o, whose weights are bf16, but for one that flips."""
    calls = elements = differ = flipped = 0
    for layer, step, arguments, o, o_f32 in recorded_calls(name):
        for rung in ("mma", "decode"):
            steps = bf16_steps(run(rung, *arguments), o_f32)
            assert steps.max() <= ONE_ROUNDING, (rung, layer, step)
            calls, elements, differ = calls + 1, elements + steps.size, differ + (steps > 0).sum()
        flipped += (bf16_steps(sparse_attention_ref(*arguments), o) > ONE_ROUNDING).any(-1).sum()
    assert calls > 0 and flipped <= 1
    print(f"{name}: {calls} calls, {differ} of {elements} elements one step off; {flipped} weights of bf16 flipped")


@every_rung
def test_tuned_sparse_without_a_valid_index_is_exactly_zero(rng, name):
    q, window, compressed, idx, sink, scale = small(rng, name)
    idx[1] = -1
    for value in (-np.inf, 0.5, 1e4):
        o = run(name, q, window, compressed, idx, np.full_like(sink, value), scale)
        assert not o[1].view(np.uint16).any()
        assert (o[0].view(np.uint16) != 0).any() or value == 1e4


@every_rung
def test_tuned_sparse_ignores_a_leading_block_of_empty_slots(rng, name):
    """The maximum of nothing so far must not become a weight."""
    q, window, compressed, idx, sink, scale = small(rng, name, S=20)
    leading = np.concatenate([np.full((2, 2 * BLOCK), -1, np.int32), idx], axis=1)
    arguments = (q, window, compressed, leading, sink - 3, scale)
    assert_close(name, run(name, *arguments), arguments)


@every_rung
def test_tuned_sparse_keeps_large_logits_finite(rng, name):
    """The maximum rises by hundreds from tile to tile, and 2 to the power of a logit itself would overflow."""
    q, window, compressed, idx, sink, _ = small(rng, name, S=3 * BLOCK)
    compressed[:] = as_bf16(np.sort(compressed.astype(np.float32), 0))
    idx = np.sort(idx, 1)
    arguments = (q, window, compressed, idx, sink, 4.0)
    o = run(name, *arguments)
    exact = float64_attention(*arguments[:5], 4.0)
    # an f32 logit of 1000 is off by up to 2^-14, and so is every weight
    assert relative_l2(o, as_bf16(exact.astype(np.float32))) <= 3e-3


@every_rung
@pytest.mark.parametrize("sink", [-np.inf, np.finfo(np.float32).min, -1e4, -80.0, 80.0, 1e4])
def test_tuned_sparse_takes_any_sink_below_infinity(rng, name, sink):
    q, window, compressed, idx, sinks, scale = small(rng, name)
    arguments = (q, window, compressed, idx, np.full_like(sinks, sink), scale)
    assert_close(name, run(name, *arguments), arguments)


@every_rung
def test_tuned_sparse_reads_compressed_rows_behind_the_window_rows(rng, name):
    """However the same rows are divided between the two arrays, not a bit changes."""
    q, window, compressed, idx, sink, scale = small(rng, name)
    rows = np.concatenate([window, compressed])
    o = run(name, q, window, compressed, idx, sink, scale)
    for W in (0, 1, 33, 34):
        assert same_bits(run(name, q, rows[:W], rows[W:], idx, sink, scale), o)


@every_rung
def test_tuned_sparse_of_a_token_depends_on_no_other_token(rng, name):
    q, window, compressed, idx, sink, scale = small(rng, name)
    together = run(name, q, window, compressed, idx, sink, scale)
    for t in range(2):
        alone = run(name, q[t : t + 1], window, compressed, idx[t : t + 1], sink, scale)
        assert same_bits(alone, together[t : t + 1])


@every_rung
def test_tuned_sparse_does_not_see_past_its_edges(rng, name):
    """Behind the rows, heads and dimensions stand NaN; so do they in rows that no slot names."""
    q, window, compressed, idx, sink, scale = small(rng, name)
    o = run(name, q, window, compressed, idx, sink, scale)
    compressed = np.concatenate([compressed, np.full_like(compressed[:5], np.nan)])
    assert same_bits(run(name, q, window, compressed, idx, sink, scale), o)


@pytest.mark.parametrize(
    "T, H, D, S, scale, capability, aligned, rung, reason",
    [
        (2048, 64, 512, 640, 0.04, (9, 0), True, "wgmma", "64 heads of 512 fill it"),
        (7, 192, 512, 1, 0.04, (9, 0), True, "wgmma", "192 heads of 512 fill it"),
        (2048, 64, 512, 640, 0.04, (8, 0), True, "mma", "8.0 has mma.sync"),
        (2048, 64, 512, 640, 0.04, (12, 0), True, "mma", "12.0 has mma.sync"),
        (2048, 60, 512, 640, 0.04, (9, 0), True, "mma", "60 heads of 512 do not fill its 64 of 512"),
        (2048, 64, 256, 640, 0.04, (9, 0), True, "mma", "64 heads of 256 do not fill its 64 of 512"),
        (6, 64, 512, 640, 0.04, (9, 0), True, "decode", "6 of at most 6 tokens"),
        (1, 5, 48, 3, 0.04, (8, 6), True, "decode", "1 of at most 6 tokens"),
        (2048, 64, 512, 640, 0.04, (7, 5), True, "plain", "7.5 has no mma.sync"),
        (2048, 64, 512, 640, 0.04, (0, 0), True, "plain", "no GPU"),
        (2048, 64, 500, 640, 0.04, (9, 0), True, "plain", "500 dimensions are no multiple of the 16"),
        (2048, 64, 512, 640, 0.04, (9, 0), False, "plain", "does not start on a multiple of 16 bytes"),
        (1, 64, 512, 0, 0.04, (9, 0), True, "plain", "no slots"),
        (1, 64, 512, 640, -0.04, (9, 0), True, "plain", "scale -0.04"),
    ],
)
def test_tuned_sparse_pick_says_which_rung_and_why(T, H, D, S, scale, capability, aligned, rung, reason):
    choice = pick(T, H, D, S, scale, capability, aligned)
    assert choice.rung == rung
    assert reason in choice.reason


@pytest.mark.parametrize("T", [1, 9])
def test_tuned_sparse_counts_what_it_picked(rng, T):
    arguments = [to_device(a) if isinstance(a, np.ndarray) else a for a in inputs(rng, T, 2, 32, 4, 6, 5)]
    choice, before = ladder.picked(*arguments), ladder.PICKED.total()
    o = bf16_array(to_host(ladder.sparse_attention(*arguments)))
    assert ladder.PICKED.total() == before + 1 and ladder.PICKED[choice.rung, choice.reason] > 0
    if choice.rung == "plain":
        assert same_bits(o, bf16_array(to_host(PLAIN.sparse_attention(*arguments))))


@pytest.mark.parametrize("T, S", [(0, 5), (2, 0)])
def test_tuned_sparse_of_nothing_is_nothing(rng, T, S):
    q, window, compressed, idx, sink, scale = inputs(rng, 2, 3, 16, 4, 6, 5)
    device = (to_device(np.ascontiguousarray(a)) for a in (q[:T], window, compressed, idx[:T, :S], sink))
    assert not to_host(ladder.sparse_attention(*device, scale)).any()


def test_tuned_sparse_refuses_bad_input(rng):
    q, window, compressed, idx, sink, scale = small(rng, "mma")
    device = [to_device(a) for a in (q, window, compressed, idx, sink)]
    with pytest.raises(ValueError, match=r"window_rows: expected shape \[\*, 64\], got \[4, 32\]"):
        sparse_attention_by(ladder.rung("mma"), device[0], to_device(window[:, :32].copy()), *device[2:], scale)
    with pytest.raises(ValueError, match="idx: expected dtype int32, got int64"):
        ladder.sparse_attention(*device[:3], to_device(idx.astype(np.int64)), device[4], scale)
    with pytest.raises(ValueError, match="heads in multiples of 64, of 512 dimensions, got 5 of 64"):
        sparse_attention_by(ladder.rung("wgmma"), *device, scale)
