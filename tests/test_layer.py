"""One layer's forward: who sees what, which rows a query gathers, and what is refused before anything changes."""

import copy
import dataclasses

import numpy as np
import pytest

from dsv41_numba.caches import AttnV41LayerState, SharedV41
from dsv41_numba.compare import same_bits
from dsv41_numba.formats.bf16 import as_bf16
from dsv41_numba.layer import AttnV41Run, RopeTable, forward
from dsv41_numba.ops import PLAIN, REFERENCE
from dsv41_numba.ops.rope import rope_table
from dsv41_numba.recording import STAGES
from dsv41_numba.roles import roles
from dsv41_numba.stack import AttnV41
from dsv41_numba.weights import random_weights
from geometries import SMALL, geometry, random_x

both_tables = pytest.mark.parametrize("ops", [REFERENCE, PLAIN], ids=lambda ops: ops.name)
BY_TOKEN = (
    "qr",
    "q",
    "kv",
    "index_q",
    "index_w",
    "comp_kv",
    "comp_score",
    "idx",
    "topk",
    "candidates",
    "o",
    "og",
    "out",
)
WIDE_WINDOW = geometry((0, 2), (1,), (1,), None, window=128, max_seq=310)


def model_of(cfg, ops, **options):
    return AttnV41(cfg, lambda layer: random_weights(cfg, layer), ops, **options)


def stages_of(model, x):
    """One call of a stack: the stages of each layer as host arrays, copied."""
    return [
        {name: np.array(model.ops.to_host(value)) for name in STAGES if (value := getattr(step.run, name)) is not None}
        for step in model.walk(x)
    ]


@both_tables
@pytest.mark.parametrize("token", [1, 5, 6, 12])
def test_layer_outputs_do_not_depend_on_later_tokens(rng, ops, token):
    x, model = random_x(rng, SMALL, 13), model_of(SMALL, ops)
    before = stages_of(model, x)
    changed = x.copy()
    changed[:, token] = as_bf16(rng.standard_normal((SMALL.n_layers, SMALL.dim)).astype(np.float32))
    model.reset()
    after = stages_of(model, changed)
    for role, old, new in zip(model.roles, before, after):
        for name in set(BY_TOKEN) & set(old):
            assert same_bits(new[name][:token], old[name][:token]), (role.layer, name)
        assert not same_bits(new["out"][token], old["out"][token])
        if role.is_kv_source:  # a group belongs to its last token
            whole = token // role.ratio
            for name in ("latent", "latent_q", "index_k"):
                assert same_bits(new[name][:whole], old[name][:whole]), (role.layer, name)
                assert same_bits(new[name][whole:], old[name][whole:]) == (whole == len(old[name]))
        if role.is_index_source:
            visible = np.arange(old["score"].shape[1]) < ((np.arange(13) + 1) // role.ratio)[:, None]
            assert np.array_equal(np.isfinite(old["score"]), visible)
            assert same_bits(new["score"][:token], old["score"][:token])


@both_tables
def test_layer_query_200_sees_128_rows_of_the_window(rng, ops):
    """Row 72 has no effect on it, row 73 has; slot 44 of the ring then holds row 172, slot 0 row 256."""
    cfg = dataclasses.replace(WIDE_WINDOW, n_layers=1, compress_ratios=(0,), kv_sources=(), index_sources=())
    model, x = model_of(cfg, ops), random_x(rng, cfg, 300)
    (before,) = stages_of(model, x)
    for position, seen in ((72, False), (73, True)):
        changed = x.copy()
        changed[0, position] = -x[0, position]
        model.reset()
        (after,) = stages_of(model, changed)
        assert same_bits(after["out"][200], before["out"][200]) != seen
        assert not same_bits(after["out"][199], before["out"][199])
    assert same_bits(before["window"][44], before["kv"][172])
    assert same_bits(before["window"][0], before["kv"][256])


@both_tables
@pytest.mark.parametrize("n", [127, 128, 129, 255, 256, 257])
def test_layer_ring_of_a_prefill_serves_the_next_step(rng, ops, n):
    """The rows that a decode step gathers from the ring are those that a longer prefill gathers from its own."""
    model, x = model_of(WIDE_WINDOW, ops, index_keys="owner"), random_x(rng, WIDE_WINDOW, n + 1)
    longer = stages_of(model, x)
    model.prefill(x[:, :n])
    step = stages_of(model, x[:, n:])
    for whole, one in zip(longer, step):
        kept = whole["idx"][n][: min(n + 1, 128)]
        rows = np.concatenate([one["window"][slot][None] for slot in one["idx"][0][:128] if slot >= 0])
        assert same_bits(rows, whole["kv"][kept])
        assert same_bits(one["kv"][0], whole["kv"][n])


class Bench:
    """A stack's parts, to call `forward` by hand."""

    def __init__(self, cfg, ops):
        self.cfg, self.ops, self.roles, self.shared = cfg, ops, roles(cfg), SharedV41()
        self.weights = AttnV41(cfg, lambda layer: random_weights(cfg, layer), ops)._layer_weights
        self.rope = {way: RopeTable(*map(ops.to_device, rope_table(cfg, way))) for way in (False, True)}
        self.states = [AttnV41LayerState.new(cfg, role, ops) for role in self.roles]

    def forward(self, layer, x, start_pos, **options):
        role = self.roles[layer]
        x = self.ops.to_device(x) if isinstance(x, np.ndarray) else x
        return forward(
            self.ops, self.cfg, role, self.weights(layer), self.rope[role.ratio > 0], self.states[layer], self.shared,
            x, start_pos, **options,
        )  # fmt: skip

    def memory(self):
        """Everything that a call could change, as bytes."""

        def frozen(value):
            if dataclasses.is_dataclass(value):
                return {field.name: frozen(getattr(value, field.name)) for field in dataclasses.fields(value)}
            is_array = hasattr(value, "dtype")
            return self.ops.to_host(value).tobytes() if is_array else copy.copy(value)

        return [frozen(state) for state in self.states], frozen(self.shared)


def bench_after_5_tokens(rng, ops):
    """A small stack that has seen positions 0 to 4 in every layer."""
    bench = Bench(SMALL, ops)
    x = random_x(rng, SMALL, 5)
    for layer in range(SMALL.n_layers):
        bench.forward(layer, x[layer], 0)
    return bench


def token(rng, T=1, dim=SMALL.dim):
    return as_bf16(rng.standard_normal((T, dim)).astype(np.float32))


# what is wrong: layer, x and start_pos of the call, and the message
WRONG_CALLS = {
    "a gap": (lambda rng: (2, token(rng), 6), r"layer 2: expected start_pos 5, which follows .* got 6"),
    "a step back": (lambda rng: (2, token(rng), 4), r"layer 2: expected start_pos 5, .* got 4; a new sequence needs"),
    "a second prefill": (lambda rng: (0, token(rng, 5), 0), r"layer 0: expected start_pos 5, .* got 0"),
    "a negative position": (lambda rng: (0, token(rng), -1), r"layer 0: expected positions within 0\.\.63 .*got -1"),
    "a position beyond max_seq": (
        lambda rng: (3, token(rng), 64),
        r"layer 3: expected positions within 0\.\.63 \(max_seq\), got 64\.\.64",
    ),
    "a prompt beyond max_seq": (
        lambda rng: (3, token(rng, 65), 0),
        r"layer 3: expected positions within 0\.\.63 \(max_seq\), got 0\.\.64",
    ),
    "float32": (
        lambda rng: (4, token(rng).astype(np.float32), 5),
        r"layer 4: x: expected dtype (bfloat16|uint16), got float32",
    ),
    "no array": (lambda rng: (4, [0.5] * 64, 5), r"layer 4: x: expected dtype (bfloat16|uint16), got list"),
    "another width": (
        lambda rng: (5, token(rng, 1, 32), 5),
        r"layer 5: x: expected shape \[T >= 1, 64\], got \[1, 32\]",
    ),
    "one axis": (lambda rng: (5, token(rng)[0], 5), r"layer 5: x: expected shape \[T >= 1, 64\], got \[64\]"),
    "no tokens": (lambda rng: (5, token(rng, 0), 5), r"layer 5: x: expected shape \[T >= 1, 64\], got \[0, 64\]"),
    "rows of the call before": (
        lambda rng: (2, token(rng), 5),
        r"layer 2: expected the compressed rows of layer 1 for the call that ends at position 6, .* from layer 4",
    ),
    "a selection of the call before": (
        lambda rng: (6, token(rng), 5),
        r"layer 6: expected the compressed rows of layer 4 .* that ended at position 5; run layer 4 first",
    ),
}


@both_tables
@pytest.mark.parametrize("call", WRONG_CALLS)
def test_layer_refuses_a_wrong_call_and_changes_nothing(rng, ops, call):
    make, message = WRONG_CALLS[call]
    bench = bench_after_5_tokens(rng, ops)
    before = bench.memory()
    run = AttnV41Run()
    with pytest.raises(ValueError, match=message):
        bench.forward(*make(rng), run=run)
    assert bench.memory() == before
    assert run == AttnV41Run()
    bench.forward(0, token(rng), 5)  # the sequence goes on


@both_tables
def test_layer_refuses_another_word_for_index_keys(rng, ops):
    bench = bench_after_5_tokens(rng, ops)
    before = bench.memory()
    with pytest.raises(ValueError, match="index_keys: expected one of released, owner, got 'own'"):
        bench.forward(0, token(rng), 5, index_keys="own")
    assert bench.memory() == before


@both_tables
@pytest.mark.parametrize(
    ("layer", "filled", "message"),
    [
        (2, (), "layer 2: expected the compressed rows of layer 1 for the call that ends at position 4, but nothing"),
        (
            2,
            (1, 3),
            "layer 2: expected the compressed rows of layer 1 .* but the last came from layer 3; run layer 1 first",
        ),
        (6, (3,), "layer 6: expected the compressed rows of layer 4 .* but the last came from layer 3"),
        (7, (4,), "layer 7: expected the selection of layer 6 .* but the last came from layer 4"),
    ],
)
def test_layer_refuses_a_consumer_before_its_source(rng, ops, layer, filled, message):
    bench = Bench(SMALL, ops)
    for source in filled:
        bench.forward(source, token(rng, 4), 0)
    before = bench.memory()
    with pytest.raises(ValueError, match=message):
        bench.forward(layer, token(rng, 4), 0)
    assert bench.memory() == before


@both_tables
def test_layer_refuses_an_index_source_without_its_mask(rng, ops):
    """A FULL layer above the candidate source obeys its mask too."""
    cfg = geometry((1, 1, 1), (0, 2), (0, 1, 2), 0)
    bench = Bench(cfg, ops)
    before = bench.memory()
    with pytest.raises(
        ValueError, match=r"layer 2: expected the candidate mask of layer 0 .* but nothing was published"
    ):
        bench.forward(2, token(rng, 4), 0)
    assert bench.memory() == before


@both_tables
def test_layer_refuses_to_score_more_keys_than_were_published(rng, ops):
    """As released, an unfinished group scores the keys published last: those of a larger ratio may be too few."""
    cfg = geometry((2, 4), (0, 1), (0, 1), None, max_seq=32)
    bench = Bench(cfg, ops)
    for layer in (0, 1):
        bench.forward(layer, token(rng, 20), 0)
    before = bench.memory()
    with pytest.raises(ValueError, match="layer 0: expected at least 10 published index keys, got 8 from layer 1"):
        bench.forward(0, token(rng), 20)
    assert bench.memory() == before
    bench.forward(0, token(rng), 20, index_keys="owner")


@both_tables
def test_layer_keeps_an_unfinished_group_for_the_call_that_completes_it(rng, ops):
    """Entry j of ratio r is made by the call that holds position j r + r - 1, and stands at j r (hard case 3)."""
    cfg = geometry((4,), (0,), (0,), None)
    model, x = model_of(cfg, ops, index_keys="owner"), random_x(rng, cfg, 12)
    (whole,) = stages_of(model, x)
    model.prefill(x[:, :6])
    for position in range(6, 12):
        (step,) = stages_of(model, x[:, position : position + 1])
        if (position + 1) % 4:
            assert "latent" not in step and "index_k" not in step
        else:
            entry = position // 4
            assert step["latent_q"].shape == (1, cfg.head_dim)
            for name in ("latent", "latent_q", "index_k"):
                assert same_bits(step[name][0], whole[name][entry]), (position, name)
