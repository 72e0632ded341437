"""Every planted fault of `wrong/` is caught, and by the check that is meant to: hard case 23."""

import functools
import importlib
from dataclasses import dataclass

import numpy as np
import pytest
from numba import cuda

import golden
import test_formats
import test_quant_fp4
from dsv41_numba.check import Alone
from dsv41_numba.config import AttnV41Cfg
from dsv41_numba.ops import PLAIN
from dsv41_numba.recording import Recording
from dsv41_numba.runtime.emulator import Race, emulate
from dsv41_numba.stack import AttnV41
from dsv41_numba.weights import Checkpoint
from kernel_cases import captured
from wrong import NAMES, Fault, fault

FP8_WEIGHTS = "tiny-fp8-weights"


class StageTest:
    """A test of a stage's own file fails. Its arguments are given by name; every run gets the same `rng`."""

    def __init__(self, test, **arguments):
        self.test, self.arguments = test, arguments
        self.expected = {test}

    def found(self):
        file, _, name = self.test.partition("::")
        test = getattr(importlib.import_module(file), name)
        arguments = dict(self.arguments)
        if "rng" in test.__code__.co_varnames[: test.__code__.co_argcount]:
            arguments["rng"] = np.random.default_rng(23)
        try:
            test(**arguments)
        except AssertionError:
            return {self.test}
        return set()


class PackingTest(StageTest):
    """A test whose own kernel uses the device functions: it gets a new kernel, which looks them up anew."""

    def found(self):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(test_formats, "repack_kernel", cuda.jit(test_formats.repack_kernel.py_func))
            return super().found()


@dataclass(frozen=True)
class Replay:
    """Layers of a recording, judged alone, break the rules of exactly these stages."""

    name: str
    layers: tuple[int, ...]
    expected: set[str]
    linear: str = "bf16"

    def found(self):
        cfg, recording = AttnV41Cfg.from_json(golden.FOLDER / "tiny-config.json"), opened(self.name)
        model = AttnV41(cfg, checkpoint(self.name.startswith("tiny-D"), self.linear).layer, PLAIN, layers=self.layers)
        judge = Alone(recording, model, self.layers)
        for _ in judge.replay():
            pass
        return {stage for stage, tally in judge.by_stage().items() if tally.mismatch}


@functools.cache
def opened(name):
    return Recording(golden.FOLDER / f"{name}.safetensors")


@functools.cache
def checkpoint(with_overrides, linear):
    files = ["tiny-weights", *(["tiny-D-weights"] if with_overrides else [])] if linear == "bf16" else [FP8_WEIGHTS]
    cfg = AttnV41Cfg.from_json(golden.FOLDER / "tiny-config.json")
    return Checkpoint(*(golden.FOLDER / f"{file}.safetensors" for file in files), cfg=cfg, linear=linear)


@dataclass(frozen=True)
class RaceCheck:
    """The emulator's race check stops the kernel's launch in `kernel_cases`."""

    kernel: str
    expected: frozenset[str] = frozenset({"race"})

    def found(self):
        launch = captured(self.kernel)
        try:
            emulate(launch.kernel, racecheck=True)[launch.grid, launch.block](*launch.fresh_args())
        except Race:
            return {"race"}
        return set()


CAUGHT_BY = {
    "half_split_rope": [
        StageTest("test_rope::test_rope_reproduces_the_recorded_rotation_and_its_inverse"),
        Replay("tiny-B", (2, 20), {"q", "kv", "index_k", "latent_q", "index_q", "og"}),
    ],
    "yarn_on_every_layer": [
        StageTest("test_rope::test_rope_table_takes_yarn_for_compressed_layers_and_plain_for_the_others"),
        Replay("tiny-A", (0,), {"q", "kv", "og"}),
    ],
    "output_not_turned_back": [Replay("tiny-A", (0,), {"og"})],
    "window_one_short": [Replay("tiny-A", (0,), {"idx"})],
    "window_in_slot_order": [Replay("tiny-A", (0,), {"idx"})],
    "ring_starts_at_zero": [
        StageTest("test_ring::test_ring_write_token_by_token_equals_one_call"),
        Replay("tiny-A", (0,), {"window"}),
    ],
    "sink_in_the_value_sum": [
        StageTest("test_sparse_attention::test_sparse_attention_puts_the_sink_into_the_denominator_only"),
        Replay("tiny-A", (0,), {"o"}),
    ],
    "sink_scaled": [
        StageTest(
            "test_sparse_attention::test_sparse_attention_matches_its_reference_and_float64",
            T=3,
            H=7,
            D=48,
            W=5,
            G=0,
            S=7,
        ),
        Replay("tiny-A", (0,), {"o"}),
    ],
    "empty_slot_read_as_row_0": [
        StageTest("test_sparse_attention::test_sparse_attention_survives_a_leading_tile_of_empty_slots"),
        Replay("tiny-A", (0,), {"o"}),
    ],
    "empty_selection_shifted": [Replay("tiny-A", (2, 20), {"topk"})],
    "nibbles_swapped": [PackingTest("test_formats::test_formats_every_byte_of_two_e2m1_survives_on_host_and_backend")],
    "fp8_scale_rounded_late": [
        StageTest("test_quant_fp8::test_quant_fp8_takes_its_scale_before_it_rounds"),
        Replay("tiny-A", (0,), {"kv"}),
    ],
    "fp8_scaled_after_all_blocks": [
        StageTest("test_linear_fp8::test_linear_fp8_has_the_bits_of_the_contract"),
        Replay("tiny-fp8-linear", (0, 2, 20), {"qr", "kv"}, "fp8"),
    ],
    "fp8_blocks_backwards": [
        StageTest("test_linear_fp8::test_linear_fp8_adds_blocks_in_the_order_of_k", sums=[30, -30, 0], expected=1),
    ],
    "fp8_weight_scale_a_row": [
        StageTest("test_linear_fp8::test_linear_fp8_scales_a_block_before_it_adds_the_next"),
        Replay("tiny-fp8-linear", (0, 2, 20), {"kv"}, "fp8"),  # elsewhere the scales of neighbours are equal
    ],
    "fp4_scale_rounded_late": [
        StageTest(
            "test_quant_fp4::test_quant_fp4_reproduces_the_recorded_bytes", kind=test_quant_fp4.E8M0, infinite=[3, 4]
        ),
        StageTest(
            "test_quant_fp4::test_quant_fp4_reproduces_the_recorded_bytes", kind=test_quant_fp4.E4M3, infinite=[]
        ),
        Replay("tiny-A", (2, 20), {"index_k", "latent_q", "index_q"}),
    ],
    "fp4_times_reciprocal_scale": [
        StageTest(
            "test_quant_fp4::test_quant_fp4_reproduces_the_recorded_bytes", kind=test_quant_fp4.E4M3, infinite=[]
        ),
    ],
    "barrier_missing_in_the_tree": [RaceCheck("rmsnorm_kernel")],
    "barrier_missing_after_the_tile": [RaceCheck("linear_kernel")],
    "epsilon_of_another_model": [StageTest("test_rmsnorm::test_rmsnorm_keeps_small_rows_and_zeros")],
    "relu_left_out": [
        StageTest(
            "test_index_score::test_index_score_matches_its_reference_to_the_bit",
            T=2,
            Hi=6,
            Di=96,
            G=64,
            start_pos=63,
            ratio=1,
        ),
        Replay("tiny-A", (2, 20), {"score"}),
    ],
    "group_visible_too_early": [
        StageTest("test_index_score::test_index_score_lets_a_query_see_only_complete_groups"),
        Replay("tiny-A", (2, 20), {"score"}),
    ],
    "latent_rotated_before_the_index_key": [Replay("tiny-A", (2, 20), {"index_k"})],
    "index_key_at_its_group_number": [Replay("tiny-A", (2, 20), {"index_k"})],
    "own_index_keys_always": [Replay("tiny-A", (2, 20), {"score"})],
    "ties_by_lowest_index": [
        StageTest("test_topk::test_topk_breaks_ties_by_the_algorithm_not_the_index"),
        Replay("tiny-D", (2, 20), {"topk", "candidates"}),
    ],
    "newest_block_not_pinned": [StageTest("test_topk::test_candidate_blocks_match_the_recorded_cases")],
    "heads_grouped_by_stride": [
        StageTest("test_grouped_linear::test_grouped_linear_takes_contiguous_heads"),
        Replay("tiny-A", (0,), {"og"}),
    ],
}


def test_wrong_kernels_table_has_every_planted_fault():
    assert sorted(CAUGHT_BY) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_wrong_kernels_are_caught_where_they_should_be(name, monkeypatch, tmp_path):
    checks = CAUGHT_BY[name]
    assert [check.found() for check in checks] == [set()] * len(checks)  # the right version passes
    fault(name).plant(monkeypatch, tmp_path)
    assert [check.found() for check in checks] == [check.expected for check in checks]


@pytest.mark.parametrize("passage, count", [("no such passage", 0), ("float32(0.0)", "[2-9]|\\d\\d")])
def test_wrong_kernels_cannot_lose_their_fault(passage, count):
    """A passage that changed in the package is an error, not a fault that has become none."""
    planted = fault("relu_left_out")
    with pytest.raises(AssertionError, match=f"expected this passage once, found it ({count}) times"):
        Fault(planted.module, {passage: ""}, planted.replaces).source()
