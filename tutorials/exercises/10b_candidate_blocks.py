"""Exercise 10b: the blocks worth looking into, with the newest one pinned.

The positions 0 .. G - 1 are cut into blocks of `block_size`; the last block ends at G. A block counts as its largest
score, and the block that holds the newest position a query can reach counts as +inf, so that it always stays. The best
`topk_blocks` blocks are kept whole, of two equal ones the earlier. A block without a reachable score counts as -inf and
is not kept.

score [T, G] f32, -inf from lens[t] on, lens [T] int32 (how many positions query t can reach), topk_blocks and
block_size come in; mask [T, G] uint8 goes out, 1 = keep. One thread has one block of one query, in both kernels.

Write both bodies: the block's largest score with the pin, and whether fewer than topk_blocks blocks go before this one.
(The project's own rule for equal blocks is torch's, as the page tells.)
"""

# Check it: dsv41 exercise 10b

import numpy as np
from numba import cuda, int32, uint8

from dsv41_numba.runtime.backend import empty, launch, to_device, to_host

THREADS = 32
INF = np.float32(np.inf)


def spec(score, lens, topk_blocks, block_size):
    mask = np.zeros(score.shape, np.uint8)
    starts = np.arange(0, score.shape[1], block_size)
    for t, reach in enumerate(lens):
        block_max = np.maximum.reduceat(score[t], starts)
        if reach > 0:
            block_max[(reach - 1) // block_size] = INF
        for block in np.argsort(-block_max, kind="stable")[:topk_blocks]:
            if block_max[block] != -INF:
                mask[t, block * block_size : (block + 1) * block_size] = 1
    return mask


@cuda.jit
def block_max_kernel(score, lens, block_size, block_max):
    block = cuda.grid(1)
    t = cuda.blockIdx.y
    G = score.shape[1]
    if block < block_max.shape[1]:
        first = block * block_size
        # YOUR CODE: block_max[t, block] = the largest of score[t, first], ... of this block, which may end at G; INF
        #  for the block that holds position lens[t] - 1, if lens[t] is not 0


@cuda.jit
def keep_kernel(block_max, topk_blocks, block_size, mask):
    block = cuda.grid(1)
    t = cuda.blockIdx.y
    blocks = block_max.shape[1]
    if block < blocks:
        kept = uint8(0)
        # YOUR CODE: kept = uint8(1) if this block is above -INF and fewer than topk_blocks blocks go before it: those
        #  with a larger maximum, and earlier ones with the same
        for g in range(block * block_size, min((block + 1) * block_size, mask.shape[1])):
            mask[t, g] = kept


def run(score, lens, topk_blocks, block_size):
    T, G = score.shape
    blocks = -(-G // block_size)
    grid = (-(-blocks // THREADS), T)
    block_max, mask = empty((T, blocks), np.float32), empty((T, G), np.uint8)
    launch(block_max_kernel, grid, THREADS, to_device(score), to_device(lens), block_size, block_max)
    launch(keep_kernel, grid, THREADS, block_max, topk_blocks, block_size, mask)
    return to_host(mask)
