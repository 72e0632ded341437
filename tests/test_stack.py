"""AttnV41: the ways to drive it agree, and a sequence is the same in one call or step by step."""

import dataclasses
import itertools

import numpy as np
import pytest

from dsv41_numba.compare import relative_l2, same_bits
from dsv41_numba.config import TINY
from dsv41_numba.ops import PLAIN, REFERENCE
from dsv41_numba.recording import STAGES
from dsv41_numba.stack import AttnV41
from dsv41_numba.weights import random_weights
from geometries import GEOMETRIES, SMALL, random_x

both_tables = pytest.mark.parametrize("ops", [REFERENCE, PLAIN], ids=lambda ops: ops.name)
LIMIT = 1e-3  # relative L2 between the tables: the check's


def model_of(cfg, ops, **options):
    return AttnV41(cfg, lambda layer: random_weights(cfg, layer), ops, **options)


def same(outs, others):
    assert list(outs) == list(others)
    return all(same_bits(outs[layer], others[layer]) for layer in outs)


@both_tables
def test_stack_prefill_decode_and_walk_agree(rng, ops):
    x, model, walker = random_x(rng, SMALL, 11), model_of(SMALL, ops), model_of(SMALL, ops)
    assert model.position == 0
    for now in (slice(0, 9), slice(9, 10), slice(10, 11)):
        outs = model.prefill(x[:, now]) if now.start == 0 else model.decode(dict(enumerate(x[:, now])))
        steps = [(step.role, step.out, step.run, step.seconds) for step in walker.walk(x[:, now])]
        assert [role for role, *_ in steps] == list(model.roles)
        for (_, out, run, seconds), host in zip(steps, outs.values()):
            assert same_bits(out, host) and same_bits(ops.to_host(run.out), host)
            assert out.dtype == x.dtype and out.shape == (now.stop - now.start, SMALL.dim)
            assert seconds > 0
        assert model.position == walker.position == now.stop


@both_tables
def test_stack_first_token_may_come_by_decode(rng, ops):
    x, model = random_x(rng, SMALL, 1), model_of(SMALL, ops)
    assert same(model.decode(x), model.prefill(x))


@both_tables
def test_stack_prefill_of_any_length_is_the_beginning_of_a_longer_one(rng, ops):
    """Where no selection has a tie at its cut: which of two equal scores is kept depends on how many there are."""
    longest = 2 * SMALL.window + 1
    x, model = random_x(rng, SMALL, longest), model_of(SMALL, ops)
    whole = model.prefill(x)
    for n in range(1, longest):
        for layer, out in model.prefill(x[:, :n]).items():
            assert same_bits(out, whole[layer][:n]), (n, layer)


@both_tables
@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 16, 19, 22])
def test_stack_owner_keys_make_prefill_and_decode_one(rng, ops, n):
    """prefill(n + 1) equals prefill(n) followed by one decode step, whether a group stays unfinished or not."""
    x, model = random_x(rng, SMALL, n + 1), model_of(SMALL, ops, index_keys="owner")
    whole = model.prefill(x)
    model.prefill(x[:, :n])
    for layer, out in model.decode(x[:, n:]).items():
        assert same_bits(out, whole[layer][n:]), layer


def walked(model, x, prefill):
    """(step, layer) -> stages on the host, of a prefill and then one token after the other."""
    stages = {}
    for step, (start, end) in enumerate([(0, prefill), *((p, p + 1) for p in range(prefill, x.shape[1]))]):
        for done in model.walk(x[:, start:end]):
            run, to_host = done.run, model.ops.to_host
            values = {name: getattr(run, name) for name in STAGES}
            stages[end - 1 if step else "p", done.role.layer] = {
                name: np.array(to_host(value)) for name, value in values.items() if value is not None
            }
    return stages


def test_stack_released_keys_differ_where_a_group_stays_unfinished(rng):
    """And nowhere else: layers 2, 8, 14 at even positions, and the layers that read their selections."""
    x = random_x(rng, TINY, 30)
    released, owner = (walked(model_of(TINY, REFERENCE, index_keys=way), x, 25) for way in ("released", "owner"))
    changed = set()
    for (step, layer), stages in released.items():
        for name, value in stages.items():
            if same_bits(value, owner[step, layer][name]):
                continue
            changed.add((step, layer))
            assert name in ("score", "topk", "idx", "o", "og", "out")
        # a layer follows its selection, and a selection follows its scores
        selection = same_bits(stages.get("topk", x), owner[step, layer].get("topk", x))
        assert same_bits(stages["out"], owner[step, layer]["out"]) == selection
    assert changed == {(position, layer) for position in (26, 28) for layer in range(2, 20)}
    for position in (26, 28):  # both score 13 or 14 keys: layer 20's of the step before, and its own
        for layer in (2, 8, 14):
            assert not same_bits(released[position, layer]["score"], owner[position, layer]["score"])


@both_tables
def test_stack_released_keys_are_those_published_last(rng, ops):
    """Layers 1 and 3 of the small stack score an unfinished group against layer 4's keys, of which they take G."""
    x, model = random_x(rng, SMALL, 17), model_of(SMALL, ops)
    for _ in model.walk(x[:, :16]):
        pass
    last = np.array(ops.to_host(model.states[4].index_k))  # one key a position
    seen = {step.role.layer: step.run for step in model.walk(x[:, 16:])}
    for layer in (1, 3):
        q, w = seen[layer].index_q, seen[layer].index_w
        expected = ops.to_host(ops.index_score(q, w, ops.to_device(last[:8]), 16, 2))
        assert same_bits(seen[layer].score, np.asarray(expected))


@both_tables
def test_stack_runs_a_subset_of_layers(rng, ops):
    x = random_x(rng, SMALL, 8)
    whole = model_of(SMALL, ops, index_keys="owner")
    part = model_of(SMALL, ops, index_keys="owner", layers=(0, 3, 4, 6))
    for now in (slice(0, 7), slice(7, 8)):
        every, some = (model.walk(x[:, now]) for model in (whole, part))
        outs = {step.role.layer: step.out for step in every}
        for step in some:
            assert same_bits(step.out, outs[step.role.layer])
    assert list(part.states) == [0, 3, 4, 6]
    assert model_of(SMALL, ops, layers=()).prefill(x) == {}


@pytest.mark.parametrize("layers", [(1, 0), (0, 0), (-1,), (8,), (0, 1, 9)])
def test_stack_refuses_layers_out_of_order_or_range(layers):
    with pytest.raises(ValueError, match=r"layers: expected ascending numbers within 0\.\.7, got \("):
        model_of(SMALL, REFERENCE, layers=layers)


@pytest.mark.parametrize(("layers", "reader", "source"), [((0, 2), 2, 1), ((1, 4, 7), 7, 6), ((1, 3, 6), 6, 4)])
def test_stack_names_the_source_that_a_subset_lacks(rng, layers, reader, source):
    model = model_of(SMALL, REFERENCE, layers=layers)
    with pytest.raises(
        ValueError, match=rf"layer {reader}: expected the .* of layer {source} .*; run layer {source} first"
    ):
        model.prefill(random_x(rng, SMALL, 3))


def test_stack_refuses_another_word_for_index_keys():
    with pytest.raises(ValueError, match="index_keys: expected one of released, owner, got 'mine'"):
        model_of(SMALL, REFERENCE, index_keys="mine")


@both_tables
def test_stack_gives_the_same_bits_without_keeping_weights(rng, ops):
    loaded = []

    def load(layer):
        loaded.append(layer)
        return random_weights(SMALL, layer)

    x = random_x(rng, SMALL, 7)
    keeps, streams = (AttnV41(SMALL, load, ops, keep_weights=keep) for keep in (True, False))
    outs = [keeps.prefill(x[:, :6]), keeps.decode(x[:, 6:])]
    assert loaded == list(range(8))
    loaded.clear()
    assert same(streams.prefill(x[:, :6]), outs[0]) and same(streams.decode(x[:, 6:]), outs[1])
    assert loaded == 2 * list(range(8))


@both_tables
def test_stack_reset_and_prefill_forget_the_sequence(rng, ops):
    x, other = random_x(rng, SMALL, 9), random_x(rng, SMALL, 12)
    model = model_of(SMALL, ops)
    fresh = [model.prefill(x[:, :8]), model.decode(x[:, 8:])]
    model.prefill(other)
    model.reset()
    assert model.position == 0
    assert not any(np.asarray(ops.to_host(state.window)).any() for state in model.states.values())
    model.prefill(other)
    assert same(model.prefill(x[:, :8]), fresh[0])  # prefill resets by itself
    assert same(model.decode(x[:, 8:]), fresh[1])


def test_stack_walk_that_was_left_half_way_cannot_go_on(rng):
    x, model = random_x(rng, SMALL, 6), model_of(SMALL, REFERENCE)
    for step in model.walk(x[:, :5]):
        if step.role.layer == 3:
            break
    assert model.position == 0
    with pytest.raises(ValueError, match="layer 0: expected start_pos 5, which follows the call before, got 0"):
        model.decode(x[:, 5:])
    model.prefill(x)  # a new sequence can


@both_tables
@pytest.mark.parametrize("cfg", [SMALL, GEOMETRIES["odd"]], ids=["small", "odd"])
def test_stack_prefill_in_chunks_is_the_prefill_in_one_piece(rng, ops, cfg):
    """Hard case 4: bit for bit, whatever the chunk cuts: a group, the window's wrap, a chunk longer than the window."""
    T = 2 * cfg.window + 3
    x, model = random_x(rng, cfg, T + 1), model_of(cfg, ops, index_keys="owner")
    whole = [model.prefill(x[:, :T]), model.decode(x[:, T:])]
    for chunk in (1, 2, 3, cfg.window - 1, cfg.window, cfg.window + 1, T - 1, T, T + 1):
        outs = [model.prefill(x[:, :T], chunk=chunk), model.decode(x[:, T:])]
        assert all(same(*pair) for pair in zip(outs, whole)), chunk
        assert model.position == T + 1


@both_tables
def test_stack_chunks_publish_keys_only_when_they_complete_a_group(rng, ops):
    """As released, two tokens at an even position do; one at an even position does not, in a chunk as in a step."""
    x, released, owner = random_x(rng, SMALL, 12), model_of(SMALL, ops), model_of(SMALL, ops, index_keys="owner")
    for T in (8, 2):  # 0..7, then 8 and 9: every call completes a group of two
        outs = [model.decode(x[:, model.position : model.position + T]) for model in (released, owner)]
        assert same(*outs)
    steps = [{step.role.layer: step.run for step in model.walk(x[:, 10:11])} for model in (released, owner)]
    assert not same_bits(steps[0][1].score, steps[1][1].score)


@both_tables
def test_stack_batch_gives_each_sequence_what_it_gets_alone(rng, ops):
    """Sequences of different lengths, one of them further on than the others; each layer's weights are loaded once."""
    loaded = []

    def load(layer):
        loaded.append(layer)
        return random_weights(SMALL, layer)

    model = AttnV41(SMALL, load, ops, keep_weights=False)
    cuts = [(0, 0, 11, 12), (0, 0, 4, 5), (0, 9, 16, 17)]  # where each sequence is before and after the calls
    xs = [random_x(rng, SMALL, cut[-1]) for cut in cuts]
    sequences = [model.new_sequence() for _ in xs]
    outs = [[], [], []]
    for call in range(3):
        batch = [i for i in range(3) if cuts[i][call] < cuts[i][call + 1]]
        now = [xs[i][:, cuts[i][call] : cuts[i][call + 1]] for i in batch]
        loaded.clear()
        for which, step in model.walk_batch(now, [sequences[i] for i in batch]):
            outs[batch[which]].append(step.out)
        assert loaded == list(range(SMALL.n_layers))
    assert [sequence.position for sequence in sequences] == [12, 5, 17] and model.position == 0
    for x, cut, out in zip(xs, cuts, outs):
        alone = model_of(SMALL, ops)
        calls = [alone.decode(x[:, a:b]) for a, b in itertools.pairwise(cut) if a < b]
        expected = [call[layer] for call in calls for layer in call]
        assert len(out) == len(expected) and all(same_bits(*pair) for pair in zip(out, expected))


def test_stack_batch_refuses_one_sequence_twice(rng):
    model = model_of(SMALL, REFERENCE)
    sequence, x = model.new_sequence(), random_x(rng, SMALL, 2)
    with pytest.raises(ValueError, match=r"sequences: expected 2 different ones, .* got 2 of which 1 differ"):
        model.walk_batch([x, x], [sequence, sequence])
    with pytest.raises(ValueError, match="sequences: expected 2 different ones, one for each input, got 1"):
        model.walk_batch([x, x], [sequence])
    with pytest.raises(ValueError, match="chunk: expected at least 1 token, got 0"):
        model.prefill(x, chunk=0)


def test_stack_fills_max_seq_and_not_more(rng):
    cfg = dataclasses.replace(SMALL, max_seq=9)
    x, model = random_x(rng, cfg, 10), model_of(cfg, REFERENCE)
    model.prefill(x[:, :8])
    model.decode(x[:, 8:9])
    with pytest.raises(ValueError, match=r"layer 0: expected positions within 0\.\.8 \(max_seq\), got 9\.\.9"):
        model.decode(x[:, 9:])
    with pytest.raises(ValueError, match=r"got 0\.\.9"):
        model.prefill(x)


@pytest.mark.parametrize("cfg", [SMALL, GEOMETRIES["odd"]], ids=["small", "odd"])
def test_stack_reference_and_plain_agree(rng, cfg):
    x = random_x(rng, cfg, 22)
    reference, plain = (walked(model_of(cfg, ops), x, 19) for ops in (REFERENCE, PLAIN))
    assert list(reference) == list(plain)
    for layer, name in {(layer, name) for (_, layer), stages in reference.items() for name in stages}:
        got, expected = (
            np.concatenate([part[at][name].ravel() for at in part if at[1] == layer and name in part[at]])
            for part in (plain, reference)
        )
        assert got.dtype == expected.dtype
        assert relative_l2(got, expected) <= (0 if got.dtype.kind in "iu" else LIMIT), (layer, name)


def test_stack_counts_the_bytes_of_a_state():
    model = model_of(SMALL, REFERENCE)
    ring, pair = 8 * 64 * 2, 2 * 2 * 64 * 4
    assert model.states[0].nbytes() == model.states[2].nbytes() == ring
    assert model.states[1].nbytes() == ring + pair + 32 * (64 + 32) * 2
    assert model.states[4].nbytes() == ring + 64 * (64 + 32) * 2
