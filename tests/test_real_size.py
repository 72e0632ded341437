"""The released geometry on a GPU: every kernel, whole layers, the last position, and offsets beyond 2^31 elements.

Where the NumPy reference of a whole array would take minutes, `bench.verify` compares a sample: ends and middle.
"""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dsv41_numba.bench.inputs import Draw
from dsv41_numba.bench.layers import filled_state, random_layer_weights
from dsv41_numba.bench.verify import checked, take, verify
from dsv41_numba.check import check
from dsv41_numba.compare import same_bits, worst_steps
from dsv41_numba.config import FLASH
from dsv41_numba.formats.bf16 import as_bf16
from dsv41_numba.formats.packed_rows import COMPRESSED, WINDOW
from dsv41_numba.ops import PLAIN, REFERENCE, table
from dsv41_numba.recording import Recorder, Recording
from dsv41_numba.roles import roles
from dsv41_numba.rules import RULES
from dsv41_numba.runtime import backend
from dsv41_numba.stack import AttnV41
from dsv41_numba.stages import STAGES, run_stage
from dsv41_numba.weights import random_weights, tensor_specs
from tolerances import ONE_ROUNDING

MACHINE = backend.current()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(MACHINE.name != "gpu", reason=f"the released sizes need a GPU: {MACHINE.reason}"),
]

CFG = FLASH
SHORT = dataclasses.replace(CFG, max_seq=min(CFG.max_seq, 2048))  # for tests that stay near position 0
TOKENS = 200
LAYERS = (0, 2, 3, 20, 24)  # SWA, FULL at ratio 2, REUSE, FULL at ratio 1 with candidates, REINDEX
LAST_LAYERS = (2, 3, 20, 21, 24)
DECODES = 5
# Stages that rotate what a linear made. Where the two terms of a pair cancel, one step of a term is many steps of the
# result, and of 33 million elements some do: judged by their relative error, and their ops each from its own input
ROTATED_LINEARS = ("q", "kv")
# Relative L2 error of a stage from x alone. Sums of 5120 products flip more bf16 bits than the recordings' sums of 64,
# and fp4 has a step of up to a third: a flipped bit in a thousand elements is a flipped code in ten thousand
FAR_FROM_X = 5e-3
FAR = (1 << 31) + 5000  # elements
UNEXPLAINED_BYTES = 256 << 20  # code, local memory, and arrays that numba frees a little later


@pytest.fixture(autouse=True)
def poison_on_the_device(monkeypatch):
    """Outputs start as NaN, without gigabytes of them made on the host."""
    if MACHINE.name != "gpu":
        return
    from numba import cuda
    from numba.cuda.cudadrv.driver import device_memset

    def empty(shape, dtype):
        array = cuda.device_array(shape, dtype)
        if array.size > 0:
            device_memset(array, backend.POISON, array.nbytes)
        return array

    machine = dataclasses.replace(MACHINE, empty=empty)
    monkeypatch.setattr(backend, "current", lambda: machine)


def used_bytes():
    """Bytes taken on the device, after numba has freed what it still holds back."""
    from numba import cuda

    context = cuda.current_context()
    context.memory_manager.deallocations.clear()
    free, total = context.get_memory_info()
    return total - free


@pytest.mark.parametrize("tokens", [TOKENS, 1, 37])
@pytest.mark.parametrize("name", STAGES)
def test_real_size_stage_matches_reference(name, tokens):
    result = run_stage(name, SHORT, tokens, seed=tokens)
    print(f"{name}, {tokens} tokens: {result.worst_steps} {result.unit}, {result.differ} of {result.kernel.size}")
    assert result.ok


def matrices():
    """Every different matrix of the layers that `linear` multiplies with, by its first name."""
    shapes = {}
    for role in roles(CFG):
        for name, spec in tensor_specs(CFG, role).items():
            if len(spec.shape) == 2 and spec.dtype == "bf16" and name != "wo_a":
                shapes.setdefault(spec.shape, name)
    return {name: shape for shape, name in shapes.items()}


@pytest.mark.parametrize("name", matrices())
def test_real_size_linear_matches_reference_for_every_matrix(name):
    N, K = matrices()[name]
    draw = Draw(7)
    for M in (TOKENS, 33):
        x, weight = draw.bf16(M, K), draw.bf16(N, K, scale=K**-0.5)
        y = PLAIN.to_host(PLAIN.linear(x, weight))
        steps = worst_steps(y, REFERENCE.linear(PLAIN.to_host(x), PLAIN.to_host(weight)))
        print(f"{name} [{N}, {K}], {M} rows: {steps} bf16 steps")
        assert steps <= ONE_ROUNDING


def test_real_size_layers_match_the_reference_through_prefill_and_decode(tmp_path):
    with ThreadPoolExecutor() as pool:
        weights = dict(zip(LAYERS, pool.map(lambda layer: random_weights(SHORT, layer), LAYERS)))
    reference, recorder = AttnV41(SHORT, weights.__getitem__, REFERENCE, layers=LAYERS), Recorder()
    rng = np.random.default_rng(0)
    for step in ("p", *(f"d{i}" for i in range(DECODES))):
        shape = (TOKENS if step == "p" else 1, SHORT.dim)
        x = {layer: as_bf16(rng.standard_normal(shape).astype(np.float32)) for layer in LAYERS}
        for done in reference.walk(x):
            recorder.add(done.role.layer, step, done.run, REFERENCE)
    recorder.write(tmp_path / "reference.safetensors")
    verdicts = []
    ops = checked(PLAIN, verdicts.append)
    report = check(Recording(tmp_path / "reference.safetensors"), SHORT, weights.__getitem__, ops)
    for name, tally in report.alone.items():
        chained = report.chained[name]
        print(
            f"{name}: {tally.elements} elements, alone {tally.worst_steps} steps, {tally.flips} flips, "
            f"chained {chained.relative_l2:.2e}, {chained.rows_differ} selections differ"
        )
    print(f"{len(verdicts)} op calls, at most {max(verdict.worst for verdict in verdicts)} steps apart")
    # every op from its own inputs, on a sample
    assert [str(verdict) for verdict in verdicts if not verdict.ok] == []
    # every stage from the recorded stages before it, whole
    for judgement, mismatch in report.mismatches():
        assert judgement == "chained" or mismatch.stage in ROTATED_LINEARS, mismatch
    # everything from x alone
    for name, tally in report.chained.items():
        limit = RULES[name].chained if name in ROTATED_LINEARS else FAR_FROM_X
        assert tally.relative_l2 <= limit, name
        assert tally.rows_differ == 0, name
    assert report.skipped_layers == ()


@pytest.mark.parametrize("G", [20011, 40009])
def test_real_size_selection_beyond_what_candidates_and_topk_keep(G):
    """Above candidate_topk_blocks * candidate_block_size positions the mask begins to drop, above 64 * index_topk the
    top-k changes its algorithm."""
    T, draw = 3, Draw(G)
    index_q = PLAIN.fp4_round_trip_e8m0(draw.bf16(T, CFG.index_n_heads, CFG.index_head_dim))
    index_k = PLAIN.fp4_round_trip_e8m0(draw.bf16(G, CFG.index_head_dim))
    index_w = draw.bf16(T, CFG.index_n_heads, scale=CFG.index_scale)
    start_pos, lens = G - T, G - T + 1 + np.arange(T)
    score = PLAIN.to_host(PLAIN.index_score(index_q, index_w, index_k, start_pos, 1))
    expected = REFERENCE.index_score(*map(PLAIN.to_host, (index_q, index_w, index_k)), start_pos, 1)
    assert same_bits(score, expected)
    size = CFG.candidate_block_size
    mask = PLAIN.candidate_blocks(score, lens, CFG.candidate_topk_blocks, size)
    chosen = PLAIN.select(score, CFG.index_topk, mask)
    for t in range(T):
        block_max = np.array([score[t, g : g + size].max() for g in range(0, G, size)])
        block_max[(lens[t] - 1) // size] = np.inf  # the newest block is always kept
        kept = mask[t, ::size] == 1
        assert np.count_nonzero(kept) == CFG.candidate_topk_blocks < len(kept)
        assert block_max[kept].min() >= block_max[~kept].max()
        picked = chosen[t]
        assert len(set(picked)) == CFG.index_topk and (np.diff(picked) > 0).all() and picked.max() < lens[t]
        assert mask[t, picked].all()
        rest = np.where(mask[t] == 1, score[t], -np.inf)
        rest[picked] = -np.inf
        assert score[t, picked].min() >= rest.max()


def test_real_size_decode_at_the_last_position():
    """Caches of full length, every op of the call held to its reference, and the memory that it takes."""
    before = used_bytes()
    draw = Draw(11)
    weights = {layer: random_layer_weights(CFG, roles(CFG)[layer], draw) for layer in LAST_LAYERS}
    verdicts, most = [], 0

    def see(verdict):
        nonlocal most
        verdicts.append(verdict)
        most = max(most, used_bytes() - before)

    model = AttnV41(CFG, weights.__getitem__, checked(PLAIN, see), layers=LAST_LAYERS)
    model.sequence.position = CFG.max_seq - 1
    for layer in LAST_LAYERS:
        model.states[layer].compress_kv = model.states[layer].index_k = None  # make room first
        model.states[layer] = filled_state(CFG, model.roles[layer], model.position, draw)
    resting = used_bytes() - before
    rng = np.random.default_rng(1)
    x = {layer: as_bf16(rng.standard_normal((1, CFG.dim)).astype(np.float32)) for layer in LAST_LAYERS}
    for step in model.walk(x):
        layer, role, run = step.role.layer, step.role, step.run
        assert np.isfinite(step.out.astype(np.float32)).all()
        if not role.is_index_source:
            continue
        score, G = run.score, CFG.max_seq // role.ratio
        assert score.shape == (1, G)
        allowed = score if role.obeys_candidates is None else np.where(
            model.shared.candidates.value != 0, score, -np.inf
        )  # fmt: skip
        picked = run.topk[0] - CFG.window
        assert len(set(picked)) == CFG.index_topk and allowed[0, picked].min() > -np.inf
        others = np.delete(allowed[0], picked)
        assert allowed[0, picked].min() >= others.max()
        assert picked.max() > G * 3 // 4  # the far end of the cache was read
        state = model.states[layer]
        if role.is_kv_source:  # the last row of the cache is this call's
            assert same_bits(take(state.compress_kv, [G - 1]), PLAIN.to_host(run.latent_q))
            assert same_bits(take(state.index_k, [G - 1]), PLAIN.to_host(run.index_k))
    wrong = [str(verdict) for verdict in verdicts if not verdict.ok]
    assert wrong == []
    caches = sum(state.nbytes() for state in model.states.values())
    sizes = {
        layer: sum(int(np.prod(s.shape)) * (2 if s.dtype == "bf16" else 4) for s in tensor_specs(CFG, role).values())
        for layer, role in enumerate(roles(CFG))
        if layer in LAST_LAYERS
    }
    rope = 2 * 4 * CFG.max_seq * (CFG.rope_dim // 2)
    formula = caches + sum(sizes.values()) + rope
    print(f"{len(verdicts)} op calls, worst {max(verdict.worst for verdict in verdicts)} steps")
    gib = {"at the most": most, "before the call": resting, "by the formula": formula, "caches": caches,
           "weights": sum(sizes.values()), "rotation table": rope}  # fmt: skip
    print("memory, GiB:", ", ".join(f"{what} {size / 2**30:.3f}" for what, size in gib.items()))
    assert formula <= most <= formula + UNEXPLAINED_BYTES


@pytest.mark.parametrize("ops", ["plain", "tuned"])
def test_real_size_packed_caches_give_the_bits_of_bf16_caches(ops):
    """A prefill, decode steps and a chunk, of every kind of layer."""
    draw = Draw(23)
    weights = {layer: random_layer_weights(CFG, roles(CFG)[layer], draw) for layer in LAYERS}
    packed, plain = (
        AttnV41(SHORT, weights.__getitem__, table(ops), "owner", LAYERS, cache=cache) for cache in ("packed", "bf16")
    )
    x = {layer: PLAIN.to_host(draw.bf16(TOKENS + DECODES, CFG.dim)) for layer in LAYERS}
    for first, last in ((0, TOKENS), (TOKENS, TOKENS + 1), (TOKENS + 1, TOKENS + 2), (TOKENS + 2, TOKENS + DECODES)):
        outs, expected = (model.decode({n: x[n][first:last] for n in LAYERS}) for model in (packed, plain))
        assert all(same_bits(outs[layer], expected[layer]) for layer in LAYERS), (first, last)


def far_rows(width):
    """Rows of this width that pass FAR elements."""
    return FAR // width + 3


def cos_sin(draw, T, pairs):
    return draw.f32(T, pairs), draw.f32(T, pairs)


# The kernel's arguments, of which at least one array or the result passes 2^31 elements, as the kernel counts them
FAR_CALLS = {
    "linear": lambda d: (d.bf16(far_rows(1 << 15), 16), d.bf16(1 << 15, 16)),
    "linear_f32": lambda d: (d.bf16(far_rows(1 << 15), 16), d.f32(1 << 15, 16)),
    "grouped_linear": lambda d: (d.bf16(far_rows(1 << 13), 8, 16), d.bf16(1 << 13, 16), 8),
    "rmsnorm": lambda d: (d.bf16(far_rows(512), 512), d.f32(512), 1e-6),
    "rmsnorm_f32": lambda d: (d.f32(far_rows(512), 512), d.f32(512), 1e-6),
    # words of two bf16
    "rope": lambda d: (d.bf16(2 * far_rows(1 << 15), 64, 512), *cos_sin(d, 2 * far_rows(1 << 15), 32), 0),
    "fp8_round_trip": lambda d: (d.bf16(far_rows(512), 512),),
    "fp4_round_trip_e8m0": lambda d: (d.bf16(far_rows(512), 512),),
    "fp4_round_trip_e4m3": lambda d: (d.bf16(far_rows(512), 512),),
    "index_weights": lambda d: (d.bf16(far_rows(32), 32), 0.015625),
    "index_score": lambda d: (
        PLAIN.fp4_round_trip_e8m0(d.bf16(far_rows(1 << 20), 2, 32)),
        d.bf16(far_rows(1 << 20), 2),
        PLAIN.fp4_round_trip_e8m0(d.bf16(1 << 20, 32)),
        1 << 20,
        1,
    ),
    "ring_write": lambda d: (d.bf16(3, 512), d.bf16(far_rows(512), 512), far_rows(512) - 3),
}  # fmt: skip


@pytest.mark.parametrize("stage", FAR_CALLS)
def test_real_size_offsets_pass_31_bits(stage):
    arguments = FAR_CALLS[stage](Draw(13))
    result = getattr(PLAIN, stage)(*arguments)
    assert max(a.size for a in (*arguments, result) if hasattr(a, "size")) > FAR
    verdict = verify(stage, arguments, result)
    print(verdict)
    assert verdict.ok


def test_real_size_offsets_pass_31_bits_in_sparse_attention():
    """Words of two bf16: of q and o, and of the compressed rows, of which the last ones are read."""
    draw, D, H, S = Draw(17), CFG.head_dim, CFG.n_heads, 5
    T, G = 2 * FAR // (H * D) + 3, 2 * FAR // D + 3
    idx = np.random.default_rng(0).integers(G - 1000, G, (T, S)).astype(np.int32) + 4  # past the window rows
    idx[:, 0], idx[0, 1] = -1, 3
    rows = draw.bf16(4, D), draw.bf16(G, D)
    arguments = (draw.bf16(T, H, D), *rows, PLAIN.to_device(idx), draw.f32(H), CFG.softmax_scale)
    assert min(arguments[0].size, rows[1].size) > 2 * FAR
    verdict = verify("sparse_attention", arguments, PLAIN.sparse_attention(*arguments))
    print(verdict)
    assert verdict.ok


@pytest.mark.parametrize("ops", ["plain", "tuned"])
def test_real_size_offsets_pass_31_bits_in_packed_rows(ops):
    """Bytes of codes, of which the last ones are written and read."""
    draw, D, S = Draw(29), CFG.head_dim, 40
    G = 2 * FAR // D + 3
    rows = PLAIN.pack_rows(draw.bf16(4, D), WINDOW), PLAIN.pack_rows(draw.bf16(G, D), COMPRESSED)
    assert rows[1].codes.size > FAR
    idx = np.random.default_rng(0).integers(G - 1000, G, (2, S)).astype(np.int32) + 4  # past the window rows
    idx[:, 0], idx[0, 1] = -1, 3
    arguments = (draw.bf16(2, CFG.n_heads, D), *rows, PLAIN.to_device(idx), draw.f32(CFG.n_heads), CFG.softmax_scale)
    verdict = verify("sparse_attention", arguments, table(ops).sparse_attention(*arguments))
    print(verdict)
    assert verdict.ok


def test_real_size_offsets_pass_31_bits_in_the_compressor():
    """The last groups of a call that long, and the token that is left over."""
    draw, D = Draw(19), CFG.head_dim
    T = FAR // D // 2 * 2 + 3
    kv, score, kv_state, score_state = draw.f32(T, D), draw.f32(T, D), draw.f32(2, D), draw.f32(2, D)
    pooled = PLAIN.pool(kv, score, kv_state, score_state, 0)
    last = [PLAIN.to_host(a[T - 7 : T - 1]) for a in (kv, score)]
    expected = REFERENCE.pool(*last, np.zeros((2, D), np.float32), np.zeros((2, D), np.float32), 0)
    got = PLAIN.to_host(pooled[T // 2 - 3 : T // 2])
    assert np.abs(got - expected).max() <= 2.0**-20 * np.abs(expected).max()
    PLAIN.store_partial(kv, score, kv_state, score_state, 0)
    assert same_bits(PLAIN.to_host(kv_state[:1]), PLAIN.to_host(kv[T - 1 : T]))
    assert same_bits(PLAIN.to_host(score_state[:1]), PLAIN.to_host(score[T - 1 : T]))
    assert np.isneginf(PLAIN.to_host(score_state)[1]).all()
