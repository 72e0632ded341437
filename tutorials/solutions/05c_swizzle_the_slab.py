"""Exercise 05c: a slab without bank conflicts.

A slab in shared memory is 64 rows of 16 words; a chunk is 4 neighbouring words of a row, the 16 bytes of one copy.
Shared memory answers 32 neighbouring words, its banks, at once. `ldmatrix` reads the same chunk of 8 neighbouring rows
at a time: where two of these 8 chunks lie in the same banks, they come one after the other. `swizzled(row, chunk)`
says at which word of the row a chunk is kept: 0, 4, 8 or 12. Choose it so that no 8 chunks meet.

The kernel writes x [64, 16] uint32 through `swizzled` into the slab and reads it back by columns of chunks. The
results are ways [8, 4], how many chunks at most lie in the same banks when rows 8 r to 8 r + 7 are read at chunk c, and
y, which must equal x. Without a swizzle, `chunk * 4`, every read takes 4 ways; the best is 1.
"""

import numpy as np
from numba import cuda, int32, uint32

from dsv41_numba.runtime.backend import empty, launch, to_device, to_host


def spec(x):
    return np.ones((8, 4), np.int32), x


@cuda.jit(device=True)
def swizzled(row, chunk):
    # CUT the word at which this chunk of this row is kept. | leaves: return chunk * 4
    return (chunk ^ (row // 2 % 4)) * 4
    # END


@cuda.jit
def slab_kernel(x, y, ways):
    slab = cuda.shared.array((64, 16), uint32)
    thread = cuda.threadIdx.x
    for i in range(thread, 64 * 4, 32):  # a row after the other, as the copies arrive
        for word in range(4):
            slab[i // 4, swizzled(i // 4, i % 4) + word] = x[i // 4, i % 4 * 4 + word]
    cuda.syncthreads()  # the slab is whole before any row of it is read
    for i in range(thread, 64 * 4, 32):  # a column of chunks after the other, as ldmatrix reads
        for word in range(4):
            y[i % 64, i // 64 * 4 + word] = slab[i % 64, swizzled(i % 64, i // 64) + word]
    row, chunk, worst = thread // 4 * 8, thread % 4, int32(0)
    for banks in range(0, 32, 4):
        meet = int32(0)
        for r in range(row, row + 8):
            if (r * 16 + swizzled(r, chunk)) % 32 == banks:
                meet += int32(1)
        worst = max(worst, meet)
    ways[thread // 4, chunk] = worst


def run(x):
    y, ways = empty((64, 16), np.uint32), empty((8, 4), np.int32)
    launch(slab_kernel, 1, 32, to_device(x), y, ways)
    return to_host(ways), to_host(y)
