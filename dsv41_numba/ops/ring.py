"""Ring write: put the rows of this call into a ring of W slots, in place.

Math       ring[p mod W] = the row of position p, for the last min(T, W) of the positions start_pos .. start_pos + T - 1
Shapes     rows [T, D], ring [W, D] of the same dtype (bf16 bits, or any number type), start_pos an int
Precision  a copy
Launch     grid (rows written, D / 256 rounded up), block 256; no shared memory
Moves      2 itemsize D min(T, W) bytes
Errors     ValueError when dtypes, shapes or layouts are not as above, W is 0 or start_pos negative
Source     step 3 of the layer, the window ring (W = window); steps 5 and 9, the caches of index keys and latents

A ring with a slot for every position is a cache that rows are appended to; its caller checks that they fit.
"""

import numpy as np
from numba import cuda

from dsv41_numba.formats.bf16 import BF16
from dsv41_numba.ops.checks import check_array
from dsv41_numba.runtime.backend import launch

THREADS = 256


def ring_write_ref(rows: np.ndarray, ring: np.ndarray, start_pos: int) -> None:
    """rows [T, D], ring [W, D] of the same dtype, changed in place."""
    T, W = len(rows), len(ring)
    skipped = max(T - W, 0)
    for t in range(skipped, T):
        ring[(start_pos + t) % W] = rows[t]


@cuda.jit
def ring_write_kernel(rows, ring, start_pos):
    """One thread a number. blockIdx.x is the row, since only x can count more than 65535; blockIdx.y is along d."""
    T, D = rows.shape
    W = ring.shape[0]
    # ref: skipped = max(T - W, 0)
    # A row that a later one of this call replaces is not written at all: threads run in no order, so if two rows went
    # to one slot either could stay.
    skipped = max(T - W, 0)
    t = skipped + cuda.blockIdx.x
    d = cuda.blockIdx.y * THREADS + cuda.threadIdx.x
    if d < D:
        # ref: ring[(start_pos + t) % W] = rows[t]
        ring[(start_pos + t) % W, d] = rows[t, d]


def ring_write(rows, ring, start_pos: int) -> None:
    """rows [T, D], ring [W, D] of the same dtype (bf16 as uint16 bits), device arrays; ring is changed in place."""
    dtype = getattr(rows, "dtype", np.uint16)
    check_array("rows", rows, np.uint16 if dtype == BF16 else dtype, (None, None))
    check_array("ring", ring, dtype, (None, rows.shape[1]))
    if ring.shape[0] < 1:
        raise ValueError("ring: expected at least 1 slot, got 0")
    if start_pos < 0:
        raise ValueError(f"start_pos: expected a position >= 0, got {start_pos}")
    if rows.size > 0:  # a grid of 0 blocks is a launch error
        grid = (min(rows.shape[0], ring.shape[0]), -(-rows.shape[1] // THREADS))
        launch(ring_write_kernel, grid, THREADS, rows, ring, start_pos)


if __name__ == "__main__":
    slots = np.full((8, 1), -1)
    ring_write_ref(np.arange(21)[:, None], slots, 0)
    print(slots.ravel(), "positions 13 to 20, each in slot position mod 8")
