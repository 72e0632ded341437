"""bench: what it measures and compares; its times are the GPU's business."""

import argparse
import io
import json
import types

import numba
import numpy as np
import pytest
from rich.console import Console

from dsv41_numba import bench
from dsv41_numba.bench import measure, timing
from dsv41_numba.bench.cases import CONTEXTS, PREFILLS, op_cases, position, random_selection
from dsv41_numba.bench.ceilings import Ceilings
from dsv41_numba.bench.inputs import Draw, noise_bf16_kernel, noise_f32_kernel
from dsv41_numba.bench.layers import BenchLayer, layer_cases
from dsv41_numba.bench.report import ORIGINAL_MS, write_json
from dsv41_numba.bench.verify import SAMPLES, Verdict, checked, take, to_verify, verify
from dsv41_numba.config import FLASH, TINY
from dsv41_numba.data import data_dir
from dsv41_numba.formats.bf16 import bf16_to_f32
from dsv41_numba.ops import PLAIN
from dsv41_numba.roles import roles
from dsv41_numba.runtime import backend
from dsv41_numba.stages import STAGES
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
        arguments = tuple(PLAIN.to_device(a) if isinstance(a, np.ndarray) else a for a in stage.inputs(TINY, 7, rng))
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
    for case in op_cases(TINY, (16,), (32,)):
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


def test_bench_takes_a_sample_again_when_queueing_outlasts_the_sleep(monkeypatch):
    """A clock of our own: a launch takes 20 us to queue and 2 us to run, a round of the sleep 1 us."""
    host, device, slept = 0.0, 0.0, []

    def queue(run_us):
        nonlocal host, device
        host += 20e-6
        device = max(device, host) + run_us * 1e-6

    class Event:
        def record(self):
            self.at = max(device, host)

        def synchronize(self):
            nonlocal host
            host = max(host, device)

    fake = types.SimpleNamespace(
        event=Event, event_elapsed_time=lambda a, b: 1e3 * (b.at - a.at), synchronize=lambda: None
    )
    monkeypatch.setattr(timing, "cuda", fake)
    monkeypatch.setattr(timing, "time", types.SimpleNamespace(perf_counter=lambda: host))

    def sleep(us):
        slept.append(us)
        queue(us)

    monkeypatch.setattr(timing, "sleep_kernel", {(1, 1): sleep})
    found = timing.device_time([lambda: queue(2.0)])
    assert found.ms == pytest.approx(0.002, rel=0.3) and found.samples == timing.SAMPLES
    assert found.calls_per_sample == timing.MOST_CALLS
    assert slept[0] == timing.FIRST_SLEEP_US and max(slept) == 2000  # 51 launches take 1020 us to queue


def test_bench_captures_the_launches_of_a_stage_and_still_runs_them():
    draw = Draw(5)
    x, weight = draw.bf16(3, 40), draw.f32(40)
    with timing.captured_launches() as launches:
        y = PLAIN.rmsnorm(x, weight, 1e-6)
    assert len(launches) == 1 and launches[0].kernel.py_func.__name__ == "rmsnorm_kernel"
    assert verify("rmsnorm", (x, weight, 1e-6), y).ok
    PLAIN.rmsnorm(x, weight, 1e-6)
    assert len(launches) == 1


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
