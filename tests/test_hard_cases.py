"""Twenty-one faults that people who do this job have met: where each is tested, and the tests with no other home."""

import ast
import collections
import pathlib

import numpy as np
import pytest
from numba import cuda, uint32

import dsv41_numba
from dsv41_numba import stack
from dsv41_numba.check import check
from dsv41_numba.compare import same_bits
from dsv41_numba.config import TINY
from dsv41_numba.ops import REFERENCE
from dsv41_numba.ops.rope import rope_table
from dsv41_numba.recording import Recording
from dsv41_numba.runtime.emulator import EmulatorError, emulate
from dsv41_numba.stack import AttnV41
from dsv41_numba.weights import Checkpoint, random_weights
from geometries import SMALL, random_x

TESTS = pathlib.Path(__file__).parent
HOMES = {
    # 1 YaRN on the wrong layers
    1: [
        "test_rope.py::test_rope_freqs_have_the_published_values",
        "test_rope.py::test_rope_table_takes_yarn_for_compressed_layers_and_plain_for_the_others",
        "test_hard_cases.py::test_hard_case_01_the_other_table_fails_the_recordings",
    ],
    # 2 interleaved against half-split RoPE pairs
    2: [
        "test_rope.py::test_rope_turns_adjacent_entries_of_the_tail",
        "test_rope.py::test_rope_half_split_pairs_would_miss_the_recording",
    ],
    # 3 a compressed entry visible too early, or rotated at its pool index
    3: [
        "test_index_score.py::test_index_score_lets_a_query_see_only_complete_groups",
        "test_layer.py::test_layer_outputs_do_not_depend_on_later_tokens",
        "test_layer.py::test_layer_keeps_an_unfinished_group_for_the_call_that_completes_it",
        "test_hard_cases.py::test_hard_case_03_an_entry_stands_at_its_groups_first_token",
    ],
    # 4 index history lost between prefill chunks
    4: [
        "test_stack.py::test_stack_prefill_in_chunks_is_the_prefill_in_one_piece",
        "test_stack.py::test_stack_chunks_publish_keys_only_when_they_complete_a_group",
    ],
    # 5 the published index-key slot on an unfinished group
    5: [
        "test_stack.py::test_stack_released_keys_differ_where_a_group_stays_unfinished",
        "test_stack.py::test_stack_released_keys_are_those_published_last",
        "test_stack.py::test_stack_owner_keys_make_prefill_and_decode_one",
        "test_recordings.py::test_recordings_replay_alone_and_chained",
        "test_recordings.py::test_recordings_of_another_behaviour_fail_where_it_begins",
    ],
    # 6 leading -1 indices give NaN; -1 plus an offset becomes a real row
    6: [
        "test_sparse_attention.py::test_sparse_attention_survives_a_leading_tile_of_empty_slots",
        "test_sparse_attention.py::test_sparse_attention_of_empty_slots_is_exactly_zero",
        "test_sparse_attention.py::test_sparse_attention_never_reads_an_empty_slot_as_a_row",
    ],
    # 7 ties at the top-k edge
    7: [
        "test_topk.py::test_topk_breaks_ties_by_the_algorithm_not_the_index",
        "test_topk.py::test_topk_chooses_the_recorded_sets",
        "test_topk.py::test_topk_is_the_same_in_100_runs",
        "test_check.py::test_check_accepts_a_tie_at_the_cut_only_chained",
    ],
    # 8 window off by one, ring order after the wrap
    8: [
        "test_gather.py::test_gather_list_of_published_positions",
        "test_gather.py::test_gather_list_of_a_prefill_is_each_querys_own_window",
        "test_layer.py::test_layer_query_200_sees_128_rows_of_the_window",
        "test_layer.py::test_layer_ring_of_a_prefill_serves_the_next_step",
        "test_ring.py::test_ring_write_keeps_the_last_window_of_a_prefill",
        "test_ring.py::test_ring_write_of_prompts_around_the_window",
    ],
    # 9 grouped output projection
    9: [
        "test_grouped_linear.py::test_grouped_linear_takes_contiguous_heads",
        "test_grouped_linear.py::test_grouped_linear_with_one_group_is_linear",
        "test_grouped_linear.py::test_grouped_linear_with_a_group_a_head",
        "test_grouped_linear.py::test_grouped_linear_refuses_bad_input",
    ],
    # 10 layer roles and eps taken from V4 habits
    10: [
        "test_roles.py::test_roles_of_the_released_geometry",
        "test_rmsnorm.py::test_rmsnorm_keeps_small_rows_and_zeros",
        "test_weights.py::test_checkpoint_names_each_missing_tensor",
        "test_weights.py::test_checkpoint_names_a_surplus_tensor",
    ],
    # 11 scale rounded after quantising
    11: [
        "test_quant_fp8.py::test_quant_fp8_takes_its_scale_before_it_rounds",
        "test_quant_fp8.py::test_quant_fp8_again_changes_no_bit",
        "test_quant_fp4.py::test_quant_fp4_again_changes_no_bit",
    ],
    # 12 overflow: NaN or 448
    12: ["test_formats.py::test_formats_e4m3_clamps_before_it_rounds"],
    # 13 e8m0 corners
    13: [
        "test_formats.py::test_formats_e8m0_corners",
        "test_formats.py::test_formats_kernel_decodes_every_code_to_the_hosts_bits",
        "test_weights.py::test_checkpoint_names_the_block_of_a_bad_scale",
    ],
    # 14 nibble order and signed fp4
    14: [
        "test_formats.py::test_formats_the_even_index_lies_in_the_low_nibble",
        "test_formats.py::test_formats_e2m1_ties_go_to_the_even_code",
        "test_formats.py::test_formats_every_byte_of_two_e2m1_survives_on_host_and_backend",
    ],
    # 15 safetensors types without torch
    15: [
        "test_weights.py::test_tensors_have_their_raw_types",
        "test_weights.py::test_tensors_of_an_unknown_type_name_it",
    ],
    # 16 shifts: NumPy 2 keeps the type, Numba widens it
    16: ["test_formats.py::test_formats_kernel_decodes_every_code_to_the_hosts_bits"],
    # 17 simulator shared memory
    17: [
        "test_hard_cases.py::test_hard_case_17_no_line_holds_two_shared_or_local_arrays",
        "test_kernels.py::test_kernels_launch_at_least_three_blocks",
        "test_kernels.py::test_kernels_first_block_does_the_same_alone",
        "test_kernels.py::test_kernels_have_the_bits_of_numbas_simulator",
        "emulator/test_runs.py::test_memory_starts_without_a_useful_value_in_every_block",
    ],
    # 18 the no-GPU install path
    18: [
        "test_doctor.py::test_doctor_says_that_no_driver_means_the_emulator_and_is_fine",
        "test_doctor.py::test_doctor_says_that_the_simulator_replaces_everything",
        "test_doctor.py::test_doctor_self_test_runs_a_kernel",
        "test_doctor.py::test_doctor_knows_macos",
    ],
    # 19 driver older than toolkit
    19: [
        "test_doctor.py::test_doctor_names_driver_and_toolkit_when_the_toolkit_is_newer",
        "test_doctor.py::test_doctor_names_both_cudas_when_pip_has_put_in_two",
    ],
    # 20 the 48 KiB line
    20: [
        "test_hard_cases.py::test_hard_case_20_shared_memory_ends_at_48_kib",
        "emulator/test_refusals.py::test_refused_when_translated",
        "emulator/test_refusals.py::test_refused_when_launched",
    ],
    # 21 float64 and 64-bit creep
    21: ["test_ptx.py::test_ptx_of_every_kernel_has_no_f64_arithmetic"],
}


def test_hard_cases_all_have_a_home_that_exists():
    assert list(HOMES) == list(range(1, 22))
    named = collections.defaultdict(set)
    for homes in HOMES.values():
        assert homes and len(set(homes)) == len(homes)
        for home in homes:
            file, _, name = home.partition("::")
            named[file].add(name)
    for file, names in named.items():
        tree = ast.parse((TESTS / file).read_text())
        assert names <= {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, file
    own = {name for name in globals() if name.startswith("test_hard_case_")}
    assert own <= named["test_hard_cases.py"]


@pytest.mark.parametrize("layer", [0, 3])
def test_hard_case_01_the_other_table_fails_the_recordings(golden, monkeypatch, layer):
    """Layers without a ratio rotate by plain RoPE, the others by YaRN: queries, window rows and compressed rows."""
    monkeypatch.setattr(stack, "rope_table", lambda cfg, compressed: rope_table(cfg, not compressed))
    weights = Checkpoint(golden / "tiny-weights.safetensors", cfg=TINY).layer
    report = check(Recording(golden / "tiny-A.safetensors"), TINY, weights, REFERENCE, layers=[layer])
    failed = [(judgement, mismatch.stage) for judgement, mismatch in report.mismatches()]
    assert {("alone", "q"), ("alone", "kv"), ("chained", "q"), ("chained", "kv")} <= set(failed)


def test_hard_case_03_an_entry_stands_at_its_groups_first_token(rng):
    """Entry 3 of a layer with ratio 2 rotates as position 6, its latent as well as its index key."""
    cfg, x = SMALL, random_x(rng, SMALL, 9)
    model = AttnV41(cfg, lambda layer: random_weights(cfg, layer), REFERENCE)
    run = next(step.run for step in model.walk(x) if step.role.layer == 1)
    w, (cos, sin) = random_weights(cfg, 1), rope_table(cfg, True)

    def rotated(row, position):
        return REFERENCE.rope(row.reshape(1, 1, -1), cos, sin, position).reshape(1, -1)

    key = REFERENCE.rmsnorm(REFERENCE.linear(run.latent[3:4], w.indexer.wk), w.indexer.k_norm, cfg.norm_eps)
    made = {
        position: (
            REFERENCE.fp4_round_trip_e4m3(rotated(run.latent[3], position))[0],
            REFERENCE.fp4_round_trip_e8m0(rotated(key, position))[0],
        )
        for position in (3, 6, 7)
    }
    for position, (latent, index_key) in made.items():
        assert same_bits(run.latent_q[3], latent) == (position == 6)
        assert same_bits(run.index_k[3], index_key) == (position == 6)


def test_hard_case_17_no_line_holds_two_shared_or_local_arrays():
    """Numba's simulator tells arrays apart by file and line."""
    found = 0
    for path in sorted(pathlib.Path(dsv41_numba.__file__).parent.rglob("*.py")):
        calls = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".shared.array", ".local.array"))
        ]
        lines = collections.Counter(line for call in calls for line in range(call.lineno, call.end_lineno + 1))
        assert not [line for line, n in lines.items() if n > 1], path
        found += len(calls)
    assert found > 10  # the scan sees them


@cuda.jit
def rows_with_a_word(y):
    """One word of static shared memory beside rows of a size that the launch chooses."""
    word = cuda.shared.array(1, uint32)
    rows = cuda.shared.array(0, uint32)
    word[0] = 7
    rows[0] = 8
    y[0] = word[0] + rows[0]


def test_hard_case_20_shared_memory_ends_at_48_kib():
    """32 rows of 512 bf16 fit beside a word; 48 rows are the whole 48 KiB, so the word is too much; so are 128 rows."""
    row_bytes = 512 * np.dtype(np.uint16).itemsize
    for rows, fits in ((32, True), (47, True), (48, False), (128, False)):
        y = np.zeros(1, np.uint32)
        launch = emulate(rows_with_a_word)[1, 1, 0, rows * row_bytes]
        if fits:
            launch(y)
            assert y[0] == 15
        else:
            message = f"4 bytes of static and {rows * row_bytes} of dynamic shared memory; CUDA allows 49152"
            with pytest.raises(EmulatorError, match=message):
                launch(y)
