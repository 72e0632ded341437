"""The check must be able to fail: a disturbed recording fails in that stage, at that element, and nowhere else."""

import re
import types

import numpy as np
import pytest

from conftest import GOLDEN
from dsv41_numba.check import Chained, Tally, check
from dsv41_numba.compare import APART, bf16_array, bf16_steps, ordered, relative_l2, same_bits, worst_steps
from dsv41_numba.config import TINY
from dsv41_numba.formats.bf16 import BF16, as_bf16
from dsv41_numba.formats.e2m1 import e2m1_to_f32
from dsv41_numba.formats.e4m3 import e4m3_to_f32
from dsv41_numba.ops import REFERENCE
from dsv41_numba.recording import STAGES, Recording, RecordingError
from dsv41_numba.rules import F32_NOISE, FLIPS_ALLOWED, FP4, FP8, RULES, code_steps, steps_apart, with_bits
from dsv41_numba.stack import AttnV41
from dsv41_numba.tensors import RawTensor, open_tensors, write_tensors
from dsv41_numba.weights import Checkpoint

LAYERS = (2, 3, 20, 21, 24)  # those whose stages are recorded
LAST = "d4"  # position 9: it completes a group at ratio 2
# a layer that has the stage, and beyond which nothing reads what is disturbed
PLACES = {
    **dict.fromkeys(("qr", "q", "kv", "window"), 3),
    **dict.fromkeys(("comp_kv", "comp_score", "latent", "index_k", "latent_q"), 2),
    "candidates": 20,
    **dict.fromkeys(("index_q", "index_w", "score", "topk", "idx", "o", "og", "out"), 24),
}
FLOATS = [stage for stage in RULES if RULES[stage].kind != "selection"]
EXACT = [stage for stage in FLOATS if RULES[stage].kind == "exact"]


def order(name):
    """The place of a recorded name in a layer's forward; o_f32 is another o."""
    return STAGES.index(name.removesuffix("_f32"))


def tensors_of(golden, name="tiny-B", last=LAST):
    """The recording's tensors of the layers above up to a step, as host arrays."""
    steps = ["p", *(f"d{i}" for i in range(99))]
    steps = steps[: steps.index(last) + 1]
    return {
        key: np.array(tensor.array())
        for key, tensor in open_tensors(golden / f"{name}.safetensors").items()
        if int(key[1:3]) in LAYERS and key.split(".")[1] in steps
    }


def cut(tensors, stage, step=LAST):
    """The recording as if it ended with this stage: nothing recorded can be made from it. Every x stays."""

    def before(key):
        layer, at, name = key.split(".")
        return at != step or name == "x" or (int(layer[1:]), order(name)) <= (PLACES[stage], order(stage))

    return {key: array for key, array in tensors.items() if before(key)}


def key_of(stage, step=LAST):
    return f"L{PLACES[stage]:02d}.{step}.{'o_f32' if stage == 'o' else stage}"


def write(path, tensors):
    write_tensors(path, {key: RawTensor.of(key, array) for key, array in tensors.items()})
    return Recording(path)


def replay(golden, path, tensors, weights=("tiny-weights",), **options):
    checkpoint = Checkpoint(*(golden / f"{name}.safetensors" for name in weights), cfg=TINY)
    return check(write(path / "r.safetensors", tensors), TINY, checkpoint.layer, REFERENCE, **options)


def failed_stages(report):
    return {mismatch.stage for _, mismatch in report.mismatches()}


def moved(values, steps):
    """bf16 numbers some steps away from zero."""
    return (np.asarray(values).view(np.uint16) + np.int32(steps)).astype(np.uint16).view(BF16)


def code_neighbour(block, at, codes, mantissa_bits):
    """The value some codes above block[at] in magnitude; a code is a step of the number's own binade."""
    value = float(block[at])
    for _ in range(codes):
        value += np.sign(value) * 2.0 ** (np.floor(np.log2(abs(value))) - mantissa_bits)
    return value


def disturb(rng, stage, array, beyond):
    """Move one element in place: beyond what its rule allows, or as far as it allows. Returns its index."""
    rule = RULES[stage]
    rows = array.reshape(-1, array.shape[-1])
    r = rng.integers(len(rows))
    if rule.kind == "bf16":  # the row's largest, of which a step is more than noise
        d = np.abs(rows[r].astype(np.float32)).argmax()
        rows[r, d] = moved(rows[r, d], rule.steps + beyond)
    elif rule.kind == "f32":
        d = rng.integers(rows.shape[1])
        rows[r, d] += np.float32((1.5 if beyond else 0.5) * F32_NOISE * np.abs(rows[r]).max())
    elif rule.kind == "codes":  # not the block's largest, which sets the scale, nor one near its smallest code
        d0 = 32 * rng.integers(rows.shape[1] // 32)
        block = rows[r, d0 : d0 + 32].astype(np.float32)
        size = np.abs(block) / np.abs(block).max()
        fits = np.flatnonzero((size >= 0.25) & (size <= 0.5))
        d = d0 + rng.choice(fits)
        rows[r, d] = code_neighbour(block, d - d0, 1 + beyond, 3 if rule is FP8 else 1)
    else:
        d = rng.choice(np.flatnonzero(np.isfinite(rows[r].astype(np.float32))))
        rows.view(f"u{array.itemsize}")[r, d] ^= 1
    return tuple(int(i) for i in np.unravel_index(r * rows.shape[1] + d, array.shape))


@pytest.mark.parametrize("stage", FLOATS)
def test_check_names_the_element_beyond_its_rule(rng, golden, tmp_path, stage):
    tensors = cut(tensors_of(golden), stage)
    before = tensors[key_of(stage)].copy()
    index = disturb(rng, stage, tensors[key_of(stage)], beyond=True)
    report = replay(golden, tmp_path, tensors)
    assert failed_stages(report) == {stage}
    found = report.alone[stage].mismatch
    assert (found.layer, found.step, found.stage, found.index) == (PLACES[stage], LAST, stage, index)
    assert found.expected == with_bits(tensors[key_of(stage)][index])
    if RULES[stage].kind == "f32":  # the order of the sum may move the last bits
        assert re.fullmatch(r"-?[\d.e-]+ \(0x[0-9A-F]{8}\)", found.got)
    else:
        assert found.got == with_bits(before[index])
    assert str(found).startswith(f"layer {PLACES[stage]}, step {LAST}, {stage}[{', '.join(map(str, index))}]: expected")
    assert report.alone[stage].worst_at == f"layer {PLACES[stage]} step {LAST}"


@pytest.mark.parametrize("stage", [stage for stage in FLOATS if stage not in EXACT])
def test_check_accepts_what_the_rule_allows(rng, golden, tmp_path, stage):
    tensors = cut(tensors_of(golden), stage)
    disturb(rng, stage, tensors[key_of(stage)], beyond=False)
    report = replay(golden, tmp_path, tensors)
    tally = report.alone[stage]
    assert tally.worst_steps == (1 if RULES[stage].kind == "codes" else RULES[stage].steps)
    if tally.flips > FLIPS_ALLOWED * tally.elements:  # index_k: this small recording has fewer than 1,000 of them
        assert stage == "index_k"
        assert str(tally.mismatch) == (
            f"index_k: expected at most 0.1% codes one step apart, got 1 of {tally.elements} (over the whole recording)"
        )
    else:
        assert tally.mismatch is None


@pytest.mark.parametrize("stage", FLOATS)
def test_check_never_accepts_a_nan(rng, golden, tmp_path, stage):
    tensors = cut(tensors_of(golden), stage)
    array = tensors[key_of(stage)]
    index = tuple(int(rng.integers(n)) for n in array.shape)
    array[index] = np.nan
    report = replay(golden, tmp_path, tensors)
    assert [(judgement, m.stage) for judgement, m in report.mismatches()] == [("alone", stage), ("chained", stage)]
    for tallies in (report.alone, report.chained):
        found = tallies[stage].mismatch
        assert (found.layer, found.step, found.index) == (PLACES[stage], LAST, index)
        assert found.expected.startswith("nan (0x")


def test_check_never_accepts_a_nan_that_the_recording_has_too():
    """Not even the same one: no stage of this layer makes one."""
    for stage in FLOATS:
        both = np.full((1, 32), np.nan, np.float32 if RULES[stage].kind == "f32" or stage == "score" else BF16)
        limit = 1 if RULES[stage].kind == "codes" else RULES[stage].steps
        assert (steps_apart(RULES[stage], both, both) > limit).all(), stage


def swap_one(rng, chosen, score, offset):
    """`chosen` [k] with one position replaced by one that was not chosen, ascending."""
    left = np.setdiff1d(np.flatnonzero(np.isfinite(score)), chosen - offset)
    others = np.delete(chosen, rng.integers(len(chosen)))
    return np.sort(np.append(others, rng.choice(left) + offset)).astype(np.int32)


def test_check_names_a_swapped_selection(rng, golden, tmp_path):
    tensors = cut(tensors_of(golden), "topk")
    key, score = key_of("topk"), tensors[key_of("score")][0]
    allowed = np.where(tensors[f"L20.{LAST}.candidates"][0] > 0, score, -np.inf)
    before = tensors[key].copy()
    tensors[key][0] = swap_one(rng, before[0], allowed, TINY.window)
    report = replay(golden, tmp_path, tensors)
    assert [(judgement, m.stage) for judgement, m in report.mismatches()] == [("alone", "topk"), ("chained", "topk")]
    first = int(np.flatnonzero(before[0] != tensors[key][0])[0])
    for tallies in (report.alone, report.chained):
        found = tallies["topk"].mismatch
        assert (found.layer, found.step, found.index) == (24, LAST, (0, first))
        assert (found.expected, found.got) == (str(tensors[key][0, first]), str(before[0, first]))
    assert report.chained["topk"].rows_differ == 1


@pytest.mark.parametrize("stage", ["candidates", "topk", "idx"])
def test_check_names_a_selection_of_another_size(golden, tmp_path, stage):
    """One position fewer is no tie: nothing came in its place."""
    tensors = cut(tensors_of(golden), stage)
    array = tensors[key_of(stage)]
    if stage == "candidates":
        array[0, np.flatnonzero(array[0])[:2]] = 0
    elif stage == "topk":
        array[0] = [*array[0, 1:], -1]
    else:
        array[0, 3] = -1
    report = replay(golden, tmp_path, tensors)
    assert [(judgement, m.stage) for judgement, m in report.mismatches()] == [("alone", stage), ("chained", stage)]


def test_check_accepts_a_tie_at_the_cut_only_chained(golden, tmp_path):
    tensors = tensors_of(golden, "tiny-D", "p")
    score, chosen = tensors["L02.p.score"], tensors["L02.p.topk"]
    offset = len(score)
    row, drop, take = next(
        (t, a, b)
        for t in range(len(score))
        for a in chosen[t][chosen[t] >= 0] - offset
        for b in np.setdiff1d(np.flatnonzero(np.isfinite(score[t])), chosen[t] - offset)
        if score[t, a] == score[t, b]
    )
    chosen[row] = np.sort(np.append(chosen[row][chosen[row] != drop + offset], take + offset))
    tensors = {key: array for key, array in tensors.items() if not key.startswith("L02.p.idx")}
    report = replay(golden, tmp_path, tensors, ("tiny-weights", "tiny-D-weights"))
    assert report.chained["topk"].mismatch is None
    assert report.chained["topk"].rows_differ == 1
    found = report.alone["topk"].mismatch
    assert (found.layer, found.step, found.index[0]) == (2, "p", row)
    # the readers of layer 2 are recorded as they were, and its chain is the same
    assert {m.stage for judgement, m in report.mismatches() if judgement == "chained"} == set()


@pytest.mark.parametrize(("steps", "accepted"), [(0, True), (1, True), (2, False), (-1, True), (-2, False)])
def test_check_forgives_one_step_between_the_swapped_scores(golden, tmp_path, steps, accepted):
    judge = judge_of(golden, tmp_path)
    # 6 positions, the best two of them: 0 and 3 here, 0 and 5 there
    cut_score = as_bf16(np.array([0.7109375], np.float32))
    score = np.array([[3, 0.1, -np.inf, cut_score[0], -2, moved(cut_score, steps)[0]]], np.float32)
    got, expected = (np.array([[a, b]], np.int32) + TINY.window for a, b in ((0, 3), (0, 5)))
    tally = Tally("topk")
    judge.judge_selection(tally, (2, "d0"), judge.model.roles[2], got, expected, types.SimpleNamespace(score=score))
    assert (tally.mismatch is None) == accepted
    assert (tally.rows_differ, tally.differ, tally.elements) == (1, 1, 2)


def test_check_does_not_forgive_a_swap_with_what_cannot_be_seen(golden, tmp_path):
    judge = judge_of(golden, tmp_path)
    score = np.array([[1, -np.inf, -np.inf, 2]], np.float32)
    got, expected = (np.array([[a, b]], np.int32) + TINY.window for a, b in ((0, 3), (2, 3)))
    tally = Tally("topk")
    judge.judge_selection(tally, (2, "d0"), judge.model.roles[2], got, expected, types.SimpleNamespace(score=score))
    assert tally.mismatch.index == (0, 0) and "not tied" in tally.mismatch.why


def judge_of(golden, tmp_path):
    checkpoint = Checkpoint(golden / "tiny-weights.safetensors", cfg=TINY)
    recording = write(tmp_path / "r.safetensors", tensors_of(golden))
    return Chained(recording, AttnV41(TINY, checkpoint.layer, REFERENCE, layers=LAYERS), LAYERS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The report of the recording with nothing missing."""
    report = replay(GOLDEN, tmp_path_factory.mktemp("whole"), tensors_of(GOLDEN))
    assert not any(tally.not_judged for tally in report.alone.values())
    return report


@pytest.mark.parametrize(
    ("key", "not_judged"),
    [
        ("L24.d4.qr", {"q": 1, "index_q": 1}),
        ("L03.p.kv", {"window": 1, "o": 1}),
        ("L03.d3.kv", {"window": 1}),  # the recorded ring stands in for what comes after
        ("L03.d2.window", {"o": 1}),
        ("L02.d3.comp_kv", {"latent": 1}),  # its group is completed by d4
        ("L02.d4.comp_score", {"latent": 1}),
        ("L02.d4.latent", {"index_k": 1, "latent_q": 1}),
        ("L02.d4.latent_q", {"o": 2}),  # of layers 2 and 3
        ("L20.p.latent_q", {"o": 18}),  # of layers 20, 21 and 24, from here on
        ("L02.d4.index_k", {"score": 1}),
        ("L20.d3.index_k", {"score": 4}),  # of layers 20 and 24, d3 and d4
        ("L24.d4.index_w", {"score": 1}),
        ("L20.d4.score", {"candidates": 1, "topk": 1}),
        ("L20.d4.candidates", {"topk": 1}),  # of layer 24
        ("L20.d4.topk", {"topk": 1, "idx": 1, "o": 1}),  # the selection of layer 21, the others of layer 20
        ("L24.d4.q", {"o": 1}),
        ("L24.d4.o", {"og": 1}),
        ("L24.d4.og", {"out": 1}),
    ],
)
def test_check_does_not_judge_alone_what_it_has_no_inputs_for(golden, tmp_path, whole, key, not_judged):
    tensors = tensors_of(golden)
    del tensors[key]
    report = replay(golden, tmp_path, tensors)
    assert report.mismatches() == []
    assert {name: tally.not_judged for name, tally in report.alone.items() if tally.not_judged} == not_judged
    # the others are judged as before; without o there still is o_f32 to compare with
    fewer = {name for name, tally in report.alone.items() if tally.elements < whole.alone[name].elements}
    assert fewer == ({*not_judged, key.split(".")[2]} if key != "L24.d4.o" else {"og"})
    assert not any(tally.not_judged for tally in report.chained.values())


@pytest.mark.parametrize("stage", RULES)
def test_check_names_a_shape_that_differs(golden, tmp_path, stage):
    tensors = cut(tensors_of(golden), stage)
    array = tensors[key_of(stage)]
    for key in {key_of(stage), f"L{PLACES[stage]:02d}.{LAST}.{stage}"}:
        tensors[key] = np.ascontiguousarray(tensors[key][..., :-1])
    report = replay(golden, tmp_path, tensors)
    shorter = [*array.shape[:-1], array.shape[-1] - 1]
    assert [(judgement, m.stage) for judgement, m in report.mismatches()] == [("alone", stage), ("chained", stage)]
    for tallies in (report.alone, report.chained):
        found = tallies[stage].mismatch
        assert (found.layer, found.step, found.index) == (PLACES[stage], LAST, ())
        assert (found.expected, found.got) == (f"shape {shorter}", f"{list(array.shape)}")


@pytest.mark.parametrize("stage", ["qr", "comp_kv", "window", "topk"])
def test_check_names_a_type_that_differs(golden, tmp_path, stage):
    tensors = cut(tensors_of(golden), stage)
    array = tensors[key_of(stage)]
    tensors[key_of(stage)] = array.astype(np.int64 if stage == "topk" else np.float64)
    report = replay(golden, tmp_path, tensors)
    assert [(judgement, m.stage) for judgement, m in report.mismatches()] == [("alone", stage), ("chained", stage)]
    found = report.alone[stage].mismatch
    assert str(tensors[key_of(stage)].dtype) in found.expected and str(array.dtype) in found.got


def test_check_judges_only_the_layers_it_is_asked_for(rng, golden, tmp_path):
    tensors = cut(tensors_of(golden), "q")
    disturb(rng, "q", tensors[key_of("q")], beyond=True)
    assert failed_stages(replay(golden, tmp_path, tensors, layers=[2, 20])) == set()
    assert failed_stages(replay(golden, tmp_path, tensors, layers=[3])) == {"q"}


def test_check_skips_layers_whose_source_is_not_recorded(golden, tmp_path):
    tensors = {key: array for key, array in tensors_of(golden).items() if not key.startswith("L20")}
    report = replay(golden, tmp_path, tensors, index_keys="owner", layers=[2, 3])
    assert report.skipped_layers == (21, 24)


def test_check_reports_its_progress_from_0_to_1(golden, tmp_path):
    shares = []
    replay(golden, tmp_path, tensors_of(golden, last="d0"), progress=shares.append)
    assert shares == sorted(shares) and shares[0] > 0 and shares[-1] == 1.0


def with_keys_renamed(tensors, old, new):
    return {key.replace(old, new): array for key, array in tensors.items()}


def without(tensors, pattern):
    return {key: array for key, array in tensors.items() if not re.search(pattern, key)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t | {"layers.2.x": t["L02.p.x"]}, r"expected keys like L02\.p\.topk, got 'layers\.2\.x'"),
        (lambda t: t | {"L2.p.x": t["L02.p.x"]}, r"expected keys like L02\.p\.topk, got 'L2\.p\.x'"),
        (lambda t: t | {"L02.q0.x": t["L02.p.x"]}, r"expected keys like L02\.p\.topk, got 'L02\.q0\.x'"),
        (lambda t: {}, "expected a recording, got no tensors"),
        (lambda t: without(t, r"\.d1\."), r"expected the steps p d0 d1 d2 d3, got \['d0', 'd2', 'd3', 'd4', 'p'\]"),
        (lambda t: without(t, r"\.p\."), "has no prefill"),
        (lambda t: without(t, r"d3\.x"), "expected the input x of at least one layer in every step, got none"),
        (lambda t: with_keys_renamed(t, "L24", "L99"), r"expected layers within 0\.\.39, got layer 99"),
        (lambda t: without(t, "L02|L20"), "expected a layer to judge, got none of"),
    ],
)
def test_recording_faults_are_one_clear_error(golden, tmp_path, change, message):
    with pytest.raises(RecordingError, match=message) as error:
        replay(golden, tmp_path, change(tensors_of(golden)))
    assert str(tmp_path / "r.safetensors") in str(error.value)
    assert "\n" not in str(error.value)


def test_recording_names_captures_of_stages_that_are_not_ours(golden, tmp_path):
    tensors = tensors_of(golden)
    recording = write(tmp_path / "r.safetensors", tensors | {"L02.p.topkk": tensors["L02.p.topk"]})
    assert recording.unknown == ("L02.p.topkk",)


def test_recording_of_decode_steps_takes_its_prefill_from_a_base(golden, tmp_path):
    tensors = tensors_of(golden)
    prefill, rest = without(tensors, r"\.d\d"), without(tensors, r"\.p\.")
    for name, part in (("one.safetensors", prefill), ("one-rest.safetensors", rest), ("lone.safetensors", rest)):
        write_tensors(tmp_path / name, {key: RawTensor.of(key, array) for key, array in part.items()})
    beside = Recording(tmp_path / "one-rest.safetensors")
    given = Recording(tmp_path / "lone.safetensors", tmp_path / "one.safetensors")
    for recording in (beside, given):
        assert (recording.steps, recording.layers, recording.n_prefill) == (
            ("p", "d0", "d1", "d2", "d3", "d4"),
            LAYERS,
            5,
        )
        assert recording.has(2, "p", "q") and not recording.judged(2, "p") and recording.judged(2, "d0")
        assert same_bits(recording.get(3, "p", "out"), tensors["L03.p.out"])
        assert (recording.start_pos("p"), recording.start_pos("d0"), recording.start_pos("d4")) == (0, 5, 9)
    with pytest.raises(RecordingError, match="expected no base, since it has its own prefill"):
        Recording(tmp_path / "one.safetensors", tmp_path / "one-rest.safetensors")
    with pytest.raises(RecordingError, match=r"expected tensor L02\.d0\.banana, got none"):
        beside.get(2, "d0", "banana")


def test_compare_bf16_steps_count_every_neighbour():
    bits = np.arange(0x7F80, dtype=np.uint16)  # 0 up to the largest, then down from -0
    assert (np.diff(ordered(bits)) == 1).all()
    assert (np.diff(ordered(bits | np.uint16(0x8000))) == -1).all()
    assert ordered(np.array([0x0000, 0x8000], np.uint16)).tolist() == [0, 0]
    values = bits.view(BF16)[1:, None]  # rows of one element each: nothing else is larger
    assert (bf16_steps(values[1:], values[:-1]) == 1).all()
    assert (bf16_steps(-values[:-3], -values[3:]) == 3).all()
    smallest = np.array([[0x0001]], np.uint16).view(BF16)
    assert bf16_steps(smallest, -smallest).item() == 2


def test_compare_bf16_steps_forgive_noise_of_the_row():
    row = as_bf16(np.array([[1024.0, 0.0625, 0.0625, 0.25]], np.float32))  # 2^-14 of the largest is 0.0625
    other = as_bf16(np.array([[1024.0, 0.0, 0.126, 0.3125]], np.float32))
    assert bf16_steps(other, row).tolist() == [[0, 129, 0, 0]] or bf16_steps(other, row).tolist()[0][1] == 0
    assert bf16_steps(other, row)[0, 2] > 0
    assert bf16_steps(other[:, 3:], row[:, 3:]).item() == 32  # alone in its row


def test_compare_bf16_steps_of_nan_and_infinity():
    inf, nan, one = (as_bf16(np.array([[value]], np.float32)) for value in (np.inf, np.nan, 1.0))
    assert bf16_steps(inf, inf).item() == 0
    for a, b in ((nan, one), (one, nan), (nan, nan), (inf, -inf), (inf, one), (one, inf)):
        assert bf16_steps(a, b).item() == APART
    assert worst_steps(one[:0], one[:0]) == 0 and worst_steps(nan, nan) == APART


def test_compare_same_bits_and_relative_l2():
    a = np.array([3.0, -4.0, 0.0], np.float32)
    assert same_bits(a, a.copy()) and not same_bits(a, a * np.float32([1, 1, -1]))  # -0
    assert not same_bits(a, a.astype(np.float64)) and not same_bits(a, a[None])
    assert relative_l2(a + np.float32([0, 0, 0.5]), a) == pytest.approx(0.1)
    assert relative_l2(a, a) == 0.0 and relative_l2(a, 0 * a) == np.inf and relative_l2(0 * a, 0 * a) == 0.0
    with_inf = np.array([3.0, np.inf, 4.0])
    assert relative_l2(with_inf + np.array([0, 0, 0.5]), with_inf) == pytest.approx(0.1)
    assert relative_l2(a, with_inf) == np.inf and relative_l2(with_inf, with_inf * [1, -1, 1]) == np.inf
    assert relative_l2(np.array([np.nan, 1]), np.array([np.nan, 1])) == np.inf
    assert bf16_array(np.array([0x3F80, 0xC000], np.uint16)).tolist() == [1.0, -2.0]


def test_rules_f32_steps_are_units_of_the_rows_largest():
    expected = np.array([[8.0, 1.0, -3.0, 0.0]], np.float32)
    noise = np.float32(8 * F32_NOISE)
    got = expected + noise * np.float32([[0, 1, -1.25, 0.5]])
    assert steps_apart(RULES["comp_kv"], got, expected).tolist() == [[0, 1, 2, 1]]
    got[0, 0] = np.nan
    assert steps_apart(RULES["comp_kv"], got, expected)[0, 0] == 2


@pytest.mark.parametrize(("rule", "decode", "n_codes"), [(FP8, e4m3_to_f32, 127), (FP4, e2m1_to_f32, 8)])
@pytest.mark.parametrize("exponent", [-40, -3, 0, 5])
def test_rules_code_steps_count_codes_at_any_scale(rng, rule, decode, n_codes, exponent):
    """Every pair of codes, both signs, in blocks that hold the largest and the smallest code, which pin the scale."""
    codes = np.arange(n_codes, dtype=np.uint8)
    values = decode(codes)
    a, b = (m.ravel() for m in np.meshgrid(np.arange(1 - n_codes, n_codes), np.arange(1 - n_codes, n_codes)))
    rows = -(-len(a) // 30)
    expected, got = np.zeros((2, rows * 30), np.float32)
    expected[: len(a)], got[: len(a)] = (np.sign(i) * values[np.abs(i)] for i in (a, b))
    ends = np.tile([[-values[-1], values[1]]], (rows, 1))
    expected, got = (np.hstack([ends, m.reshape(rows, 30)]) * np.float32(2.0**exponent) for m in (expected, got))
    steps = code_steps(rule, as_bf16(got), as_bf16(expected))[:, 2:].ravel()[: len(a)]
    np.testing.assert_array_equal(steps, np.abs(a - b))


def test_rules_code_steps_see_a_sign_of_zero_and_a_scale_of_its_own():
    zero = as_bf16(np.zeros((1, 32), np.float32))
    assert (code_steps(FP8, -zero, zero) == 1).all() and (code_steps(FP8, zero, zero) == 0).all()
    block = as_bf16(np.full((1, 32), 0.5, np.float32))
    block[0, 0], other = 6.0, block.copy()
    other[0, 3] = 0.25  # half a code: no value of this block's scale
    assert code_steps(FP4, other, block)[0, 3] == 1
