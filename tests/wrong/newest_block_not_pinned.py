"""Candidate blocks without the rule that the block of the newest position stays."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.ops.topk",
    changes={"    block_max[some, (lens[some] - 1) // block_size] = np.inf\n": ""},
    replaces=("test_topk.candidate_blocks",),
)
