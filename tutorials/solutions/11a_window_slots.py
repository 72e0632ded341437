"""Exercise 11a: the window's part of the gather list.

Which rows of the window does each query read? A prefill (start_pos 0) brings T tokens, and its rows are those T, in
order: query t reads rows t - window + 1 .. t, from row 0 on, oldest first, and -1 fills the columns after its own row.
A decode step (start_pos > 0, T = 1) reads the ring: the row of position p lies in slot p mod window, oldest first, and
-1 stands where the position would be before the first.

start_pos, T and window come in; idx goes out, [T, min(T, window)] int32 for a prefill and [1, window] for a decode
step. One thread writes one element.

Write both cases. The checks look at prompts around the window's length and at rings that have wrapped.
"""

import numpy as np
from numba import cuda, int32

from dsv41_numba.runtime.backend import empty, launch, to_host

THREADS = 64


def spec(start_pos, T, window):
    rows = []
    for pos in range(start_pos, start_pos + T):
        if start_pos == 0:
            row = list(range(max(pos - window + 1, 0), pos + 1))
            rows.append(row + [-1] * (min(T, window) - len(row)))
        else:
            rows.append([-1 if p < 0 else p % window for p in range(pos - window + 1, pos + 1)])
    return np.array(rows, np.int32)


@cuda.jit
def window_slots_kernel(start_pos, window, idx):
    t = cuda.blockIdx.x
    for s in range(cuda.threadIdx.x, idx.shape[1], THREADS):
        slot = int32(-1)
        if start_pos == 0:
            # CUT slot = column s of query t in a prefill; it stays -1 after row t
            row = max(t - window + 1, 0) + s
            if row <= t:
                slot = int32(row)
            # END
        else:
            # CUT slot = column s of a decode step's ring, the newest position start_pos in the last column; it
            #  stays -1 before position 0
            position = start_pos - window + 1 + s
            if position >= 0:
                slot = int32(position % window)
            # END
        idx[t, s] = slot


def run(start_pos, T, window):
    idx = empty((T, min(T, window) if start_pos == 0 else window), np.int32)
    launch(window_slots_kernel, T, THREADS, start_pos, window, idx)
    return to_host(idx)
