"""The same stages for speed, still in Python: what a GPU can do beyond the readable kernels of `ops`.

    linear.py          the ladder, and which rung takes which shape
    linear_fma.py      rung 1: an 8 x 8 piece of y in each thread's registers
    linear_mma.py      rung 2: tensor cores by mma.sync, slabs copied ahead
    linear_wgmma.py    rung 3: tensor cores by wgmma, a copy engine, pairs of blocks that stay
    linear_decode.py   one to four tokens: as fast as weight can be read
    linear_f32.py      a float32 weight as three bf16 on tensor cores
    linear_fp8.py      the rungs of the fp8 linear, and which takes which shape
    linear_fp8_decode.py      one to four tokens: codes become f16 on their way to tensor cores
    linear_fp8_dequantise.py  more tokens: a bf16 product of what the codes stand for
    index_score.py     keys in registers, heads by mma.sync
    operands.py        what the rungs of the linears share

    sparse_attention.py  the rungs of sparse attention, and which takes which shape
    sparse_mma.py        tensor cores by mma.sync, any number of heads
    sparse_wgmma.py      tensor cores by wgmma, gathers ahead, two warpgroups that share a softmax
    sparse_decode.py     a few tokens: their slots split over blocks
    sparse_softmax.py    what the rungs of sparse attention share

    rope.py            the entries that turn, and no others
    rows.py            norm, rotation, quantiser and cache write of a row in one pass
    topk.py            the selection and the candidate blocks, exact, without the host
    topk_ties.py       rows whose cut lies in a tie
    gather.py          the gather list from them
    position.py        numbers that a kernel is given, or finds in device memory
    decode_step.py     a token's way through all layers, as one CUDA graph
    recorded.py        launches as things
    ptx.py             every PTX instruction, with its contract
    emulated.py        what the instructions do, for the emulator
    cluster_launch.py  launches that Numba cannot make

TUNED is the op table: PLAIN with these in place of their plain kernels. Rungs are imported when they are first picked,
because `ptx` needs numba-cuda and the package must work without it.
"""

import dataclasses

from dsv41_numba.ops import PLAIN, by_weight
from dsv41_numba.tuned import gather, index_score, linear, linear_fp8, rope, rows, sparse_attention, topk

TUNED = dataclasses.replace(
    PLAIN,
    name="tuned",
    linear=by_weight(linear.linear, linear_fp8.linear_fp8),
    linear_fp8=linear_fp8.linear_fp8,
    linear_f32=linear.linear_f32,
    grouped_linear=linear.grouped_linear,
    rope_in_place=rope.rope_in_place,
    candidate_blocks=topk.candidate_blocks,
    select=topk.select,
    index_score=index_score.index_score,
    gather_list=gather.gather_list,
    without_gaps=gather.without_gaps,
    sparse_attention=sparse_attention.sparse_attention,
    kv_rows=rows.kv_rows,
    index_key_rows=rows.index_key_rows,
    latent_rows=rows.latent_rows,
    index_query_rows=rows.index_query_rows,
    attention_turned_back=sparse_attention.attention_turned_back,
)
