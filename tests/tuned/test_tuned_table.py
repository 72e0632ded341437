import dataclasses

import pytest

from dsv41_numba.check import check
from dsv41_numba.compare import same_bits
from dsv41_numba.config import TINY
from dsv41_numba.ops import PLAIN, REFERENCE, table
from dsv41_numba.recording import Recording
from dsv41_numba.stack import AttnV41
from dsv41_numba.tuned import TUNED
from dsv41_numba.tuned.linear import PICKED
from dsv41_numba.weights import Checkpoint


def test_tuned_table_has_the_keys_of_the_others_and_is_found_by_name():
    assert [table(name) for name in ("reference", "plain", "tuned")] == [REFERENCE, PLAIN, TUNED]
    fields = [field.name for field in dataclasses.fields(TUNED)]
    changed = [name for name in fields if getattr(TUNED, name) is not getattr(PLAIN, name)]
    assert changed == [
        *("name", "linear", "linear_fp8", "linear_f32", "rope_in_place", "index_score", "candidate_blocks", "select"),
        *("gather_list", "without_gaps", "sparse_attention", "grouped_linear"),
        *("kv_rows", "index_key_rows", "latent_rows", "index_query_rows", "attention_turned_back"),
    ]


@pytest.mark.parametrize(("name", "cache"), [("tiny-B", "bf16"), ("tiny-B", "packed"), ("tiny-C", "packed")])
def test_tuned_table_passes_the_recordings(golden, name, cache):
    before = PICKED.total()
    checkpoint = Checkpoint(golden / "tiny-weights.safetensors", cfg=TINY)
    report = check(Recording(golden / f"{name}.safetensors"), TINY, checkpoint.layer, TUNED, cache=cache)
    assert report.mismatches() == []
    assert PICKED.total() > before


def test_tuned_table_gives_the_same_bits_where_the_attention_is_turned_in_its_kernel(golden):
    """`walk` keeps o before it is turned back; `decode` asks for out alone, so its attention turns."""
    recording, checkpoint = (
        Recording(golden / "tiny-B.safetensors"),
        Checkpoint(golden / "tiny-weights.safetensors", cfg=TINY),
    )
    whole, alone = (AttnV41(TINY, checkpoint.layer, TUNED) for _ in range(2))
    for step in recording.steps[:3]:
        x = {layer: recording.get(layer, step, "x") for layer in whole.layers}
        outs = alone.decode(x)
        for done in whole.walk(x):
            assert done.run.o is not None
            assert same_bits(done.out, outs[done.role.layer]), (step, done.role.layer)
