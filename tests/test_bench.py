"""bench: what it measures and compares; its times are the GPU's business."""

import argparse
import dataclasses
import functools
import io
import json
import types

import numba
import numpy as np
import pytest
from rich.console import Console

from dsv41_numba import bench
from dsv41_numba.bench import ladder, measure, timing
from dsv41_numba.bench.cases import CONTEXTS, PREFILLS, fused_cases, op_cases, position, random_selection, stored_cases
from dsv41_numba.bench.ceilings import Ceilings
from dsv41_numba.bench.inputs import Draw, noise_bf16_kernel, noise_f32_kernel
from dsv41_numba.bench.layers import BenchLayer, layer_cases
from dsv41_numba.bench.lines import PACKAGE, code_lines, file_lines
from dsv41_numba.bench.measure import LaunchCost, Row
from dsv41_numba.bench.report import ORIGINAL_MS, Report, write_json
from dsv41_numba.bench.screen import show
from dsv41_numba.bench.timing import Candidate, Time
from dsv41_numba.bench.verify import (
    FUSED,
    ROWS,
    SAMPLES,
    Verdict,
    checked,
    spread,
    take,
    to_verify,
    verify,
    verify_rows,
)
from dsv41_numba.config import FLASH, TINY
from dsv41_numba.data import data_dir
from dsv41_numba.formats.bf16 import bf16_to_f32
from dsv41_numba.ops import PLAIN
from dsv41_numba.roles import roles
from dsv41_numba.runtime import backend
from dsv41_numba.stages import STAGES, placed
from dsv41_numba.tuned import TUNED, cluster_launch, recorded
from dsv41_numba.tuned.recorded import recorded_launches
from ptx import CAPABILITIES, ptx_of

GPU = backend.current().name == "gpu"
no_gpu = pytest.mark.skipif(GPU, reason="what the command does without a GPU")


def run(**options):
    args = argparse.Namespace(**{"op": None, "case": None, "quick": False, "json": None, **options})
    out, err = (Console(file=io.StringIO(), width=160, highlight=False) for _ in range(2))
    return bench.run(args, out, err), out.file.getvalue(), err.file.getvalue()


@no_gpu
def test_bench_says_in_one_line_that_there_is_no_gpu():
    code, out, err = run()
    assert code == 2 and out == ""
    assert err.count("\n") == 1 and "expected a GPU to measure, got the" in err


@no_gpu
def test_bench_quick_times_the_emulator_and_says_so(tmp_path):
    code, out, _ = run(quick=True, json=str(tmp_path / "e.json"))
    assert code == 0
    assert f"{backend.current().name}, compiled CPU code: these times say nothing about a GPU" in out
    saved = json.loads((tmp_path / "e.json").read_text())
    assert saved["machine"]["backend"] == backend.current().name and saved["ceilings"] is None
    stages = {result["op"].split()[0] for result in saved["results"]}
    assert stages == STAGES.keys() | {"select", "candidate_blocks", "layer"}
    for result in saved["results"]:
        assert result["ms"] > 0 and result["low_ms"] <= result["ms"] <= result["high_ms"]
        if result["kind"] != "host":
            assert result["check"]["elements"] > 0 and result["check"]["worst"] <= result["check"]["limit"]


@no_gpu
def test_bench_never_writes_an_emulators_times_among_the_measurements():
    kept = data_dir() / "measurements.json"
    before = kept.read_bytes() if kept.exists() else None
    with pytest.raises(ValueError, match="--json: expected another file than"):
        run(quick=True, json=str(kept))
    assert run(quick=True, op="linear wkv")[0] == 0
    assert (kept.read_bytes() if kept.exists() else None) == before


@no_gpu
def test_bench_picks_ops_and_cases_by_their_first_words():
    _, out, _ = run(quick=True, op="linear", case="decode")
    assert "linear wq_a" in out and "linear_f32" not in out and "prefill" not in out
    with pytest.raises(ValueError, match=r"--op: expected one of linear wq_a, .*, got 'linera'"):
        run(quick=True, op="linera")
    with pytest.raises(ValueError, match=r"--case: expected one of prefill 16, decode, decode 32, got 'decode 3'"):
        run(quick=True, case="decode 3")
    with pytest.raises(ValueError, match="--op, --case: expected a case that the op has"):
        run(quick=True, op="linear", case="decode 32")


@no_gpu
def test_bench_does_not_time_what_is_wrong(monkeypatch):
    right = PLAIN.linear

    def wrong(x, weight):
        y = right(x, weight)
        y[-1, -1] ^= 0x40  # one element, the last
        return y

    monkeypatch.setattr(bench, "PLAIN", measure.dataclasses.replace(PLAIN, linear=wrong))
    code, out, _ = run(quick=True, op="linear wkv", case="prefill")
    assert code == 1
    assert "FAIL not timed: linear wkv, prefill 16: linear: " in out
    code, out, _ = run(quick=True, op="layer SWA", case="prefill")
    assert code == 1 and "FAIL not timed: layer SWA, prefill 16: linear: " in out


def test_bench_verifies_every_stage_and_finds_a_wrong_one(rng):
    assert SAMPLES.keys() | {"store_partial"} == STAGES.keys()
    for name, stage in STAGES.items():
        arguments = tuple(placed(PLAIN, argument) for argument in stage.inputs(TINY, 7, rng))
        before = to_verify(name, arguments)
        result = getattr(PLAIN, name)(*arguments)
        verdict = verify(name, arguments, result, before)
        assert verdict.ok and verdict.elements > 0, verdict
        spoiled = PLAIN.to_host(arguments[stage.in_place] if stage.in_place is not None else result).copy()
        row = (3 + 7 - 1) % 8 if name == "ring_write" else -1
        spoiled.view(f"u{spoiled.itemsize}")[row] ^= 1 << (8 * spoiled.itemsize - 4)
        spoiled = PLAIN.to_device(spoiled)
        if stage.in_place is not None:
            arguments = (*arguments[: stage.in_place], spoiled, *arguments[stage.in_place + 1 :])
        assert not verify(name, arguments, spoiled, before).ok, name


def test_bench_verifies_every_op_call_of_every_layer():
    for case in layer_cases(TINY, (9,), (32,)):
        verdicts: list[Verdict] = []
        layer = BenchLayer(TINY, case)
        layer.call(checked(PLAIN, verdicts.append))
        called = {verdict.stage for verdict in verdicts}
        assert all(verdict.ok for verdict in verdicts)
        assert {"linear", "rmsnorm", "rope", "fp8_round_trip", "ring_write", "sparse_attention"} <= called
        assert ("index_score" in called) == case.role.is_index_source
        assert ("pool" in called) == (case.op == "layer FULL ratio 2")


@pytest.mark.parametrize("ops", [PLAIN, TUNED], ids=lambda ops: ops.name)
def test_bench_verifies_layers_with_packed_caches_and_finds_a_wrong_one(ops):
    for case in layer_cases(TINY, (9,), (32,), "packed"):
        verdicts: list[Verdict] = []
        BenchLayer(TINY, case).call(checked(ops, verdicts.append))
        called = {verdict.stage for verdict in verdicts}
        assert all(verdict.ok for verdict in verdicts) and case.op.endswith(" packed")
        assert ({"pack_rows", "ring_write"} if ops is PLAIN else {"kv_rows"}) <= called
        assert "fp8_round_trip" not in called

    def flipped(stage, *arguments):
        rows = getattr(ops, stage)(*arguments)
        rows.codes.reshape(-1)[-1] ^= 1
        return rows

    for stage in ("pack_rows",) if ops is PLAIN else ("kv_rows", "latent_rows"):
        verdicts.clear()
        wrong = dataclasses.replace(ops, **{stage: functools.partial(flipped, stage)})
        if backend.current().name == "emulator":  # device arrays of a GPU are not changed like this
            BenchLayer(TINY, layer_cases(TINY, (9,), (), "packed")[1]).call(checked(wrong, verdicts.append))
            assert stage in {verdict.stage for verdict in verdicts if not verdict.ok}


def test_bench_verifies_what_reads_codes_by_what_they_stand_for():
    cases = {(case.op, case.name): case for case in stored_cases(TINY, (9,), (32,))}
    assert {op for op, _ in cases} == set(ladder.TUNED_OPS[-4:])
    plain = {(case.op, case.name): case for case in op_cases(TINY, (9,), (32,))}
    for (op, name), case in cases.items():
        arguments = case.arguments(Draw(5))
        result = getattr(PLAIN, case.stage)(*arguments)
        verdict = verify(case.stage, arguments, result)
        assert verdict.ok and verdict.elements > 0, (op, name, verdict)
        in_bf16 = plain[op.removesuffix(" packed").replace("_fp8", ""), name]
        assert case.bytes < in_bf16.bytes and case.flops == in_bf16.flops
        stored = arguments[2 if op == "index_score packed" else 1]  # other codes under the same scales
        codes = PLAIN.to_host(stored.codes) ^ 0x80  # the sign of each, or of every second
        other = dataclasses.replace(stored, codes=PLAIN.to_device(codes))
        others = tuple(other if argument is stored else argument for argument in arguments)
        assert not verify(case.stage, others, result).ok


def test_bench_verifies_the_fused_stages_of_a_tuned_layer_and_finds_a_wrong_one():
    case = layer_cases(TINY, (9,), (32,))[2]
    assert case.op == "layer FULL ratio 2" and case.pos == 0
    verdicts: list[Verdict] = []
    BenchLayer(TINY, case).call(checked(TUNED, verdicts.append))
    called = {verdict.stage for verdict in verdicts}
    assert all(verdict.ok for verdict in verdicts)
    assert {*FUSED, "sparse_attention", "rope_inverse"} <= called and not {"rmsnorm_f32", "pool"} - called

    def flipped(name, *arguments):
        rows = getattr(TUNED, name)(*arguments)
        rows.reshape(-1)[-1] ^= 1
        return rows

    for name in (*FUSED, "attention_turned_back"):
        verdicts.clear()
        wrong = dataclasses.replace(TUNED, **{name: functools.partial(flipped, name)})
        if backend.current().name == "emulator":  # device arrays of a GPU are not changed like this
            BenchLayer(TINY, case).call(checked(wrong, verdicts.append))
            bad = {verdict.stage for verdict in verdicts if not verdict.ok}
            assert bad == {"rope_inverse" if name == "attention_turned_back" else name}


@no_gpu
def test_bench_times_a_fused_stage_beside_the_plain_ones(monkeypatch):
    fixed_times(monkeypatch)
    cases = fused_cases(TINY, (9,))
    assert [case.name for case in cases if case.op == "kv_rows"] == ["prefill 9", "decode", "prefill 131072"]
    assert [case.name for case in cases if case.op == "index_query_rows"] == ["prefill 9", "decode", "prefill 16384"]
    for case in cases:
        if "131072" not in case.name and "16384" not in case.name:
            plain, fused = ladder.measure_fused(case, Draw(1))
            assert (plain.ops, plain.verdict, fused.ops) == ("plain", None, "tuned")
            assert fused.ok and fused.verdict.elements > 0 and fused.verdict.worst == 0


def test_bench_layers_can_be_called_again():
    for case in layer_cases(TINY, (9,), (32,)):
        layer = BenchLayer(TINY, case)
        first, second = (PLAIN.to_host(layer.call().out).copy() for _ in range(2))
        assert np.isfinite(first.astype(np.float32)).all()
        if case.op != "layer FULL ratio 2" or case.pos == 0:  # its partial group is used up by the first call
            assert (first == second).all()


def test_bench_has_one_layer_of_each_kind_at_the_released_geometry():
    cases = layer_cases(FLASH, PREFILLS, CONTEXTS)
    layers = {case.op: case.role.layer for case in cases}
    assert layers == {
        "layer SWA": 0, "layer FULL ratio 2": 2, "layer REUSE": 3, "layer FULL ratio 1": 20, "layer REINDEX": 24
    }  # fmt: skip
    assert len(cases) == 5 * 7 and {case.pos for case in cases} == {0, 4095, 32767, 131071, 1048575}


def test_bench_floors_are_those_of_the_design():
    """With 4.3 TB/s and 785 TFLOP/s: milliseconds computed by hand."""
    ceilings = Ceilings(4300.0, 785.0)
    cases = {(case.op, case.name): case for case in op_cases(FLASH, PREFILLS, CONTEXTS)}
    for key, floor in {
        ("linear wq_a", "prefill 2048"): 0.034,
        ("linear wq_b", "prefill 2048"): 0.219,
        ("linear wkv", "prefill 2048"): 0.0137,
        ("grouped_linear wo_a", "prefill 2048"): 0.175,
        ("linear wo_b", "prefill 2048"): 0.219,
        ("index_score", "prefill 2048"): 0.011,
        ("linear wq_b", "decode"): 0.0195,
        ("grouped_linear wo_a", "decode"): 0.0156,
        ("linear wo_b", "decode"): 0.0195,
        ("index_score", "decode 131072"): 0.008,
        ("rope q", "prefill 2048"): 0.0625,
        ("rmsnorm q", "prefill 2048"): 0.0024,
    }.items():
        assert ceilings.floor_ms(cases[key].bytes, cases[key].flops) == pytest.approx(floor, rel=0.05), key
    assert Ceilings(4300.0, None).floor_ms(43, 10**18) == pytest.approx(1e-8)


def test_bench_counts_no_more_bytes_than_the_arrays_have():
    for case in op_cases(TINY, (16,), (32,)) + stored_cases(TINY, (16,), (32,)):
        arguments = case.arguments(Draw(3))
        result = getattr(PLAIN, case.stage)(*arguments)
        arrays = sum(measure.array_bytes(a) for a in (*arguments, result))
        assert 0 < case.bytes <= arrays * (2 if STAGES[case.stage].in_place is not None else 1), case


def test_bench_originals_figures_belong_to_cases():
    names = {(case.op, case.name) for case in op_cases(FLASH, PREFILLS, CONTEXTS)}
    names |= {(case.op, case.name) for case in layer_cases(FLASH, PREFILLS, CONTEXTS)}
    names |= {(op, name.split()[0]) for op, name in names}
    assert ORIGINAL_MS.keys() <= names


@pytest.mark.parametrize(("T", "pos", "ratio"), [(40, 0, 2), (40, 0, 1), (1, 33, 1), (1, 3, 2)])
def test_bench_selections_are_ones_that_a_layer_could_publish(T, pos, ratio):
    chosen = random_selection(TINY, T, pos, ratio)
    G, shift = (pos + T) // ratio, T if pos == 0 else TINY.window
    assert chosen.shape == (T, min(TINY.index_topk, G)) and chosen.dtype == np.int32
    for t, row in enumerate(chosen):
        visible = (pos + t + 1) // ratio
        real = row[row >= 0] - shift
        assert len(real) == min(visible, row.size) and (row[len(real) :] == -1).all()
        assert (np.diff(real) > 0).all() and (real >= 0).all() and (real < visible).all()


def test_bench_inputs_are_random_and_repeat():
    a, b, c = (bf16_to_f32(backend.to_host(Draw(seed).bf16(700, 33, scale=2.0))) for seed in (1, 1, 2))
    assert (a == b).all() and abs(np.corrcoef(a.ravel(), c.ravel())[0, 1]) < 0.03
    assert abs(a.mean()) < 0.05 and a.std() == pytest.approx(2.0, rel=0.03) and len(np.unique(a)) > 300
    draw = Draw(1)
    first, second = (backend.to_host(draw.f32(1000)) for _ in range(2))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.15
    assert Draw(1).f32(0, 3).shape == (0, 3)


@pytest.mark.parametrize("capability", CAPABILITIES[:1] + CAPABILITIES[-1:])
def test_bench_kernels_compile_without_f64(capability):
    pytest.importorskip("numba_cuda", reason="numba-cuda, which compiles to PTX, is not installed")
    for kernel, dtype in ((noise_bf16_kernel, numba.uint16), (noise_f32_kernel, numba.float32)):
        text = ptx_of(kernel, (numba.uint32, numba.float32, numba.types.Array(dtype, 1, "C")), capability)
        assert ".f64" not in text
    assert "nanosleep" in ptx_of(timing.sleep_kernel, (numba.int64,), capability)


def test_bench_takes_any_rows():
    rows = PLAIN.to_device(np.arange(60, dtype=np.float32).reshape(20, 3))
    for wanted in ([], [0], [19, 3, 4, 5], [7, 7], list(range(20))):
        assert (take(rows, wanted)[:, 0] == [3 * row for row in wanted]).all()


class Clock:
    """A host and a device of our own: a launch takes 20 us to queue, a round of the sleep kernel 1 us."""

    def __init__(self, monkeypatch):
        self.host, self.device, self.slept, self.ran = 0.0, 0.0, [], []
        clock = self

        class Event:
            def record(self):
                self.at = max(clock.device, clock.host)

            def synchronize(self):
                clock.host = max(clock.host, clock.device)

        fake = types.SimpleNamespace(
            event=Event, event_elapsed_time=lambda a, b: 1e3 * (b.at - a.at), synchronize=lambda: None
        )
        monkeypatch.setattr(timing, "cuda", fake)
        monkeypatch.setattr(timing, "time", types.SimpleNamespace(perf_counter=lambda: self.host))
        monkeypatch.setattr(timing, "sleep_kernel", {(1, 1): self.sleep})

    def queue(self, run_us, name=None):
        self.ran.append(name)
        self.host += 20e-6
        self.device = max(self.device, self.host) + run_us * 1e-6

    def sleep(self, us):
        self.slept.append(us)
        self.queue(us, "sleep")


def test_bench_takes_a_sample_again_when_queueing_outlasts_the_sleep(monkeypatch):
    clock = Clock(monkeypatch)
    found = timing.device_time([lambda: clock.queue(2.0)])
    assert found.ms == pytest.approx(0.002, rel=0.3) and found.samples == timing.SAMPLES
    assert found.calls_per_sample == timing.MOST_CALLS
    assert clock.slept[0] == timing.FIRST_SLEEP_US and max(clock.slept) == 2000  # 51 launches take 1020 us to queue


def test_bench_measures_what_it_compares_in_turns(monkeypatch):
    clock = Clock(monkeypatch)
    quick, slow = ([lambda us=us, name=name: clock.queue(us, name)] for us, name in ((3e3, "quick"), (150e3, "slow")))
    a, b = timing.device_times([Candidate(quick), Candidate(slow)])
    assert (a.ms, b.ms) == (pytest.approx(3.0, rel=0.01), pytest.approx(150.0, rel=0.01))
    assert (a.samples, b.samples) == (timing.SAMPLES, timing.FEWEST_SAMPLES)
    assert a.calls_per_sample == b.calls_per_sample == 1
    ran = [name for name in clock.ran if name != "sleep"]
    assert ran[:8] == [*["quick"] * 3, *["slow"] * 3, "quick", "slow"] and set(ran[8:]) == {"quick"}


def test_bench_takes_one_sample_of_a_call_that_outlasts_the_budget(monkeypatch):
    clock = types.SimpleNamespace(now=0.0)
    monkeypatch.setattr(timing, "time", types.SimpleNamespace(perf_counter=lambda: clock.now))
    monkeypatch.setattr(timing, "cuda", types.SimpleNamespace(synchronize=lambda: None))
    for seconds, samples in (
        (0.001, timing.SAMPLES),
        (0.15, timing.FEWEST_SAMPLES),
        (0.3, timing.FEWEST_SAMPLES),
        (2, 1),
    ):
        found = timing.host_time(lambda s=seconds: setattr(clock, "now", clock.now + s))
        assert (found.ms, found.samples) == (pytest.approx(1e3 * seconds), samples)


def test_bench_captures_the_launches_of_a_stage_and_still_runs_them():
    draw = Draw(5)
    x, weight = draw.bf16(3, 40), draw.f32(40)
    with recorded_launches() as launches:
        y = PLAIN.rmsnorm(x, weight, 1e-6)
    assert len(launches) == 1 and launches[0].kernel.py_func.__name__ == "rmsnorm_kernel"
    assert verify("rmsnorm", (x, weight, 1e-6), y).ok
    PLAIN.rmsnorm(x, weight, 1e-6)
    assert len(launches) == 1


def test_bench_captures_launches_that_do_not_go_through_the_backend(monkeypatch):
    ran = []
    monkeypatch.setattr(cluster_launch.Launch, "__call__", ran.append)
    before, prepared = cluster_launch.Launch.__call__, object.__new__(cluster_launch.Launch)
    draw = Draw(5)
    x, weight = draw.bf16(3, 40), draw.f32(40)
    with recorded_launches() as launches:
        PLAIN.rmsnorm(x, weight, 1e-6)
        prepared()
    assert [type(launch) for launch in launches] == [recorded.Launch, cluster_launch.Launch]
    assert launches[1] is prepared and ran == [prepared] and cluster_launch.Launch.__call__ is before


def test_bench_holds_the_tuned_selection_to_the_hosts(monkeypatch):
    monkeypatch.setattr(ladder, "device_time", lambda calls, launches: Time(launches, 1.9, 2.1, 7, 5))
    rows = ladder.measure_selection(TINY, "decode 60", 1, 59, Draw(3))
    assert [(row.op, row.kind, row.verdict.elements, row.time.ms) for row in rows] == [
        ("select", "kernel", TINY.index_topk, 2),
        ("select ties", "kernel", TINY.index_topk, 2),
        ("candidate_blocks", "kernel", 60, 4),
    ]
    monkeypatch.setattr(ladder.topk, "select", lambda score, k, **columns: PLAIN.select(score, k, None, 1))
    wrong = ladder.measure_selection(TINY, "decode 60", 1, 59, Draw(3))[0]
    assert not wrong.ok and wrong.time is None and wrong.verdict.worst > 0


def fixed_times(monkeypatch):
    """Without a GPU: what is measured takes 2 ms, then 3 ms, and so on, in the order of the candidates."""

    def times(candidates):
        assert all(len(candidate.calls) == 1 for candidate in candidates)
        return [Time(2.0 + i, 1.9, 2.1, 7, 5) for i in range(len(candidates))]

    for module in (measure, ladder):
        monkeypatch.setattr(module, "device_times", times)
    monkeypatch.setattr(measure, "ROTATED_BYTES", 1)


@no_gpu
def test_bench_ladder_checks_and_times_every_rung(monkeypatch):
    fixed_times(monkeypatch)
    monkeypatch.setattr(ladder, "rungs", lambda: ("plain", "fma"))
    monkeypatch.setattr(ladder.torch_ops, "beside", lambda stage, arguments, result: lambda: None)
    rows = ladder.measure_ladder(Draw(1), with_torch=True, size=24)
    assert [(row.rung, row.ops, row.time.ms) for row in rows] == [
        ("plain", "plain", 2.0), ("fma", "tuned", 3.0), ("cublas", "torch", 4.0)
    ]  # fmt: skip
    assert all(row.op == "ladder" and row.case == "24" and row.flops == 2 * 24**3 and row.torch.ms == 4 for row in rows)
    assert [row.verdict.elements for row in rows[:2]] == [24 * 24] * 2 and rows[2].verdict is None
    monkeypatch.setattr(ladder, "rung", lambda name: lambda x, weight, groups, y: None)  # leaves y as it was
    plain, fma = ladder.measure_ladder(Draw(1), with_torch=False, size=24)
    assert plain.ok and plain.torch is None and not fma.ok and fma.time is None


@no_gpu
def test_bench_tuned_rows_say_which_rung_was_picked(monkeypatch):
    fixed_times(monkeypatch)
    cases = [case for case in op_cases(TINY, (9,), (32,)) if case.op in ladder.COMPARED]
    assert len(cases) == 2 * len(ladder.COMPARED)
    for case in cases[:1] + cases[6:7]:
        (row,) = ladder.measure_tuned(case, Draw(1), with_torch=False)
        assert (row.op, row.case, row.ops, row.rung, row.kind) == (case.op, case.name, "tuned", "fma", "kernel")
        assert row.ok and row.verdict.elements > 0 and row.time.ms == 2.0
    assert cases[6].stage == "grouped_linear"


def test_bench_measures_the_tuned_linears_beside_the_plain_ones(monkeypatch):
    monkeypatch.setattr(bench.torch_ops, "available", lambda: False)
    for has, quick in ((False, True), (True, True), (True, False)):
        monkeypatch.setattr(bench, "has_ladder", lambda has=has: has)
        names = [(op, case) for op, case, _ in bench._tasks(PLAIN, True, quick, [])]
        calls = ("prefill 2048", "decode") if quick else ("prefill 512", "prefill 2048", "prefill 8192", "decode")
        for op in ladder.COMPARED:
            assert [case for name, case in names if name == op] == [c for c in calls for _ in range(1 + has)]
        assert names.count(("ladder", "8192")) == has
        for op in ladder.TUNED_OPS[-4:]:
            assert names.count((op, "prefill 2048")) == 1 + has
        longest = "decode 131072" if quick else "decode 1048575"
        assert names.count(("layer FULL ratio 1 packed", longest)) == has
        assert names.count(("layer FULL ratio 1", longest)) == 1 + has
        stacks = [case for name, case in names if name == "stack"]
        assert len(stacks) == has * (3 if quick else 4) and stacks.count("decode 131072") == has * (1 + quick)
        assert names.count(("layer REUSE", "prefill 2048")) == names.count(("layer SWA", "decode 131072")) == 1 + has


@no_gpu
def test_bench_has_no_ladder_without_a_gpu():
    assert not ladder.has_ladder()


def test_bench_compares_whole_rows_at_uneven_distances(rng):
    for n in (1, 2, 23, 24, 25, 512, 2048, 8192):
        rows = spread(n)
        assert rows[0] == 0 and rows[-1] == n - 1 and len(rows) == min(n, ROWS)
    assert len({row % 64 // 8 for row in spread(2048)}) == 8  # rows of every eighth of a tile
    x, weight = (Draw(3).bf16(rows, 40) for rows in (70, 600))
    y = PLAIN.linear(x, weight)
    verdict = verify_rows("linear", (x, weight), y)
    assert verdict.ok and verdict.elements == ROWS * 600
    spoiled = PLAIN.to_host(y).view(np.uint16).copy()
    spoiled[spread(70)[7], 301] ^= 0x40  # in the middle, where `verify` of a linear does not look
    spoiled = PLAIN.to_device(spoiled)
    assert verify("linear", (x, weight), spoiled).ok and not verify_rows("linear", (x, weight), spoiled).ok


def test_bench_counts_lines_that_hold_code():
    text = '''"""Two lines
of a docstring."""

# a comment
LIMIT = 3  # code

@decorated(
    LIMIT
)
def f(x):
    """Not code."""
    # nor this
    text = """these
    are"""

    return x


class C:
    "No code."
    value = 1
'''
    assert code_lines(text) == 1 + 4 + 2 + 1 + 2
    assert code_lines(text, ["f"]) == 4 + 2 + 1
    with pytest.raises(KeyError):
        code_lines(text, ["g"])


def test_bench_counts_the_lines_of_files_that_exist():
    assert {(PACKAGE / name).is_file() for source in ladder.SOURCES.values() for name in source.files} == {True}
    counts = [source.lines for source in ladder.SOURCES.values()]
    assert 20 < counts[0] < file_lines("ops/linear.py") and counts == sorted(counts)


def row(op, case, ms, ops="plain", kind="kernel", rung=None, torch_ms=None, **more):
    beside = Time(torch_ms, torch_ms, torch_ms, 20, 5) if torch_ms else None
    return Row(ops, op, case, kind, Time(ms, ms, ms, 20, 5), 10**6, 10**9, rung=rung, torch=beside, **more)


def made_up_report():
    rows = [
        row("linear wq_a", "prefill 2048", 5.77 / 2, torch_ms=0.04),
        row("linear wq_a", "prefill 2048", 0.05, ops="tuned", rung="wgmma", torch_ms=0.04),
        row("linear wo_b", "prefill 2048", 36.1 / 8, torch_ms=0.2),
        row("linear wo_b", "prefill 2048", 0.1, ops="tuned", rung="wgmma", torch_ms=0.2),
        row("linear wo_b", "decode", 0.02, ops="tuned", rung="decode", torch_ms=0.03),
        row("layer REUSE", "prefill 2048", 100.0, kind="kernels"),
        row("layer REUSE", "prefill 2048", 1.0, ops="tuned", kind="kernels", torch_ms=2.0),
        row("ladder", "1000", 1.0, rung="plain", torch_ms=0.25, verdict=Verdict("linear", 9, 1, 1)),
        row("ladder", "1000", 0.25, ops="torch", rung="cublas", torch_ms=0.25),
    ]
    return Report(rows, {"gpu": "G", "date": "d"}, Ceilings(4000.0, 800.0), LaunchCost(1.0, 2.0, 3.0), 1.25)


def test_bench_means_are_over_the_rows_that_they_name():
    prefill, decode, original = made_up_report().means
    assert prefill.what == "tuned linears, prefill 2048, beside torch" and prefill.rows == 2
    assert prefill.geometric_mean == pytest.approx((0.8 * 2.0) ** 0.5)
    assert (prefill.lowest, prefill.lowest_at) == (pytest.approx(0.8), "linear wq_a")
    assert (decode.rows, decode.geometric_mean) == (1, pytest.approx(1.5))
    assert original.what == "plain kernels beside the original's" and original.rows == 2
    assert original.geometric_mean == pytest.approx(4) and original.lowest == pytest.approx(2)
    assert original.lowest_at == "linear wq_a, prefill 2048"
    assert Report([], {}, None, None, 0.0).means == []


def test_bench_file_has_a_row_a_line_and_the_ladder_apart(tmp_path):
    path = tmp_path / "m.json"
    write_json(path, made_up_report().as_json())
    text = path.read_text()
    saved = json.loads(text)
    assert sum(line.startswith('  {"op": ') for line in text.splitlines()) == len(saved["results"]) == 7
    assert sum(line.startswith('  {"rung": ') for line in text.splitlines()) == len(saved["ladder"]) == 2
    plain, cublas = saved["ladder"]
    assert (plain["size"], plain["tflops"], plain["share_of_cublas"]) == (1000, 1.0, 0.25)
    assert plain["lines"] > 20 and plain["samples"] == 20 and plain["check"]["worst"] == 1
    assert (cublas["tflops"], cublas["share_of_cublas"], cublas["lines"], cublas["check"]) == (4.0, 1.0, None, None)
    assert saved["results"][1]["rung"] == "wgmma" and saved["results"][0]["original_ms"] == 5.77
    assert saved["means"][0]["geometric_mean"] == 1.2649  # five digits
    assert list(saved) == list(made_up_report().as_json())


def test_bench_screen_shows_rungs_ladder_and_means():
    console = Console(file=io.StringIO(), width=200, highlight=False)
    show(made_up_report(), console)
    shown = console.file.getvalue()
    assert "tuned wgmma" in shown and "ladder: 1000 x 1000 x 1000" in shown
    assert (
        "tuned linears, prefill 2048, beside torch: 1.265 times as fast, the geometric mean of 2; lowest 0.800" in shown
    )
    plain = next(line.split() for line in shown.splitlines() if line.split()[:1] == ["plain"])
    assert plain == ["plain", "1.00", "0", "%", "1.0", "25.0", "%", str(ladder.SOURCES["plain"].lines)]
    assert "1 s in all" in shown


def test_bench_results_are_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "m.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1} and list(tmp_path.iterdir()) == [path]


def test_bench_positions_complete_a_group():
    assert [position(context) for context in (*CONTEXTS, 32)] == [4095, 32767, 131071, 1048575, 31]
    assert roles(FLASH)[2].ratio == 2


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason=f"needs a GPU to time: {backend.current().reason}")
def test_bench_times_an_op_on_the_gpu(tmp_path):
    code, out, _ = run(op="rmsnorm q", case="decode", json=str(tmp_path / "g.json"))
    assert code == 0 and "ceilings: copy" in out and "launch:" in out
    (result,) = json.loads((tmp_path / "g.json").read_text())["results"]
    assert result["kind"] == "kernel" and 0 < result["floor_ms"] < result["ms"] < 1


@pytest.mark.gpu
@pytest.mark.skipif(not (GPU and ladder.has_ladder()), reason="needs a GPU of compute capability 8.0 or more")
def test_bench_times_a_tuned_linear_and_the_ladder_on_the_gpu(tmp_path):
    code, _, _ = run(quick=True, op="linear wkv", json=str(tmp_path / "g.json"))
    results = json.loads((tmp_path / "g.json").read_text())["results"]
    assert code == 0 and [(r["ops"], r["case"]) for r in results] == [
        (ops, case) for case in ("prefill 2048", "decode") for ops in ("plain", "tuned")
    ]
    assert results[1]["rung"] in ("mma", "wgmma") and results[3]["rung"] == "decode"
    assert results[1]["ms"] < results[0]["ms"]
    rows = ladder.measure_ladder(Draw(1), with_torch=False, size=1024)
    assert [row.rung for row in rows] == list(ladder.rungs()) and all(row.ok for row in rows)
    assert all(row.time.ms > 0 for row in rows)
