"""The same stages for speed, still in Python: what a GPU can do beyond the readable kernels of `ops`.

    linear.py          the ladder, and which rung takes which shape
    linear_fma.py      rung 1: an 8 x 8 piece of y in each thread's registers
    linear_mma.py      rung 2: tensor cores by mma.sync, slabs copied ahead
    linear_wgmma.py    rung 3: tensor cores by wgmma, a copy engine, pairs of blocks that stay
    linear_decode.py   one to four tokens: as fast as weight can be read
    operands.py        what the rungs share
    topk.py            the selection and the candidate blocks, exact, without the host
    gather.py          the gather list from them
    ptx.py             every PTX instruction, with its contract
    emulated.py        what the instructions do, for the emulator
    cluster_launch.py  launches that Numba cannot make

TUNED is the op table: PLAIN with these in place of their plain kernels. Rungs are imported when they are first picked,
because `ptx` needs numba-cuda and the package must work without it.
"""

import dataclasses

from dsv41_numba.ops import PLAIN
from dsv41_numba.tuned import gather, linear, topk

TUNED = dataclasses.replace(
    PLAIN,
    name="tuned",
    linear=linear.linear,
    grouped_linear=linear.grouped_linear,
    candidate_blocks=topk.candidate_blocks,
    select=topk.select,
    gather_list=gather.gather_list,
    without_gaps=gather.without_gaps,
)
