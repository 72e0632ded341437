"""Linear, rung 2: tensor cores. A warp multiplies 16 x 16 by 16 x 8 pieces while the next slabs are on their way.

Math       y[m, n] = sum_k x[m, k] * weight[n, k]
Shapes     x [M, K] bf16, weight [N, K] bf16 -> y [M, N] bf16; any M, N, K
Precision  products of bf16 and their sums in f32, by the tensor cores, in steps of 16 columns; one rounding to bf16
Launch     grid (M / 128, N / 128, groups), rounded up, block 128; 48 KiB of shared memory; two blocks a multiprocessor
Moves      2 (M K + N K + M N) bytes; the floor is arithmetic: 2 M N K operations at the rate of mma.sync
Errors     ValueError when an array's dtype, shape or layout is not as above
Source     steps 1, 2, 3, 5, 6, 13 and 14 of the layer; compute capability 8.0 and up

Three ideas on top of rung 1:

1. `mma_m16n8k16`: one instruction of a warp makes 2048 products. A warp's 64 x 64 tile is 4 x 8 such pieces, and a
   block's 128 x 128 tile is 2 x 2 warps.
2. `copy_16_bytes`: copies go to shared memory without waiting. Three slabs of 32 columns are in shared memory: one is
   multiplied, the next has arrived or is arriving, the third is being asked for.
3. A swizzle instead of padding: `ldmatrix_x4` reads 16 bytes from each of 8 rows at a time. Rows are 64 bytes, so these
   would share banks; 16-byte chunk c of row r is kept at chunk c ^ (r / 2 % 4)::

       row 0   c0 c1 c2 c3        row 1   c0 c1 c2 c3          one line: all 32 banks
       row 2   c1 c0 c3 c2        row 3   c1 c0 c3 c2
       row 4   c2 c3 c0 c1        row 5   c2 c3 c0 c1
       row 6   c3 c2 c1 c0        row 7   c3 c2 c1 c0          c0 of 8 rows: 8 different places in a line
"""

import functools
from typing import Any

from numba import cuda, float32, uint16, uint32

from dsv41_numba.runtime.backend import launch
from dsv41_numba.tuned.operands import on_16_bytes, sizes
from dsv41_numba.tuned.ptx import (
    copies_commit,
    copies_wait_1,
    copy_16_bytes,
    ldmatrix_x4,
    mma_m16n8k16,
    pack_bf16,
)

TILE = 128  # rows and columns of y a block
WARP_TILE = 64  # of them a warp
THREADS = 128
SLAB = 32  # columns of K a stage
STAGES = 3
TILES_SHAPE = (STAGES, 2 * TILE, SLAB // 2)  # words of two bf16; rows 0-127 are x, rows 128-255 weight
CHUNK = 8  # bf16 in 16 bytes; 4 words
CHUNKS = SLAB // CHUNK  # of a row of a slab: 4

# Lanes and rows are split by & and >>: Python's % and // ask for the sign first, which costs registers, and this kernel
# has none to spare.


@cuda.jit(device=True)
def swizzled(row, chunk):
    """The word at which a 16-byte chunk of a row of `tiles` begins."""
    return (chunk ^ (row >> 1 & 3)) * 4


@cuda.jit(device=True)
def copy_slab(tiles, s, first_tile_row, array, first_row, last_row, first_column, k0, K):
    """Ask for tiles[s, first_tile_row + row] = array[first_row + row, first_column + k0 ...], zeros past the edges."""
    chunk = cuda.threadIdx.x & 3
    k = k0 + chunk * CHUNK
    for i in range(TILE * CHUNKS // THREADS):
        row = (cuda.threadIdx.x >> 2) + i * (THREADS // CHUNKS)
        inside = first_row + row < last_row and k < K
        m, column = (first_row + row, first_column + k) if inside else (0, 0)
        copy_16_bytes(tiles, s, first_tile_row + row, swizzled(row, chunk), array, m, column, 16 if inside else 0)


@cuda.jit(device=True)
def fill_slab(tiles, s, first_tile_row, array, first_row, last_row, first_column, k0, K):
    """`copy_slab` for rows that do not start on multiples of 16 bytes: element by element, and waiting for each."""
    chunk = cuda.threadIdx.x & 3
    for i in range(TILE * CHUNKS // THREADS):
        row = (cuda.threadIdx.x >> 2) + i * (THREADS // CHUNKS)
        for word in range(4):
            pair = uint32(0)
            for half in range(2):
                k = k0 + chunk * CHUNK + 2 * word + half
                if first_row + row < last_row and k < K:
                    bits = uint32(array[first_row + row, first_column + k])
                    pair |= uint32(bits << uint32(16 * half))
            tiles[s, first_tile_row + row, swizzled(row, chunk) + word] = pair


@cuda.jit(device=True)
def spot(row, word):
    """Where word `word` of row `row` of the finished 128 x 128 tile of y stands, in the same shared memory.

    Four rows of `tiles` hold one of y. The lanes of a warp write 8 rows and 4 words at once: the rows' words are turned
    by 4 banks a row, so that these meet no bank twice.
    """
    turned = word ^ (row & 7) * 4
    return row >> 6, (row & 63) * 4 + (turned >> 4), turned & 15


def build(load_slab):
    """The kernel that fills its slabs by `copy_slab` or `fill_slab`."""

    @cuda.jit(launch_bounds=(THREADS, 2))
    def linear_mma_kernel(x, weight, groups, y):
        """One block a tile of y of group blockIdx.z. Operands: `operands`."""
        tiles = cuda.shared.array(TILES_SHAPE, uint32, 128)
        sums = cuda.local.array((4, 8, 4), float32)  # c0 to c3 of each 16 x 8 piece
        a = cuda.local.array((4, 4), uint32)  # a0 to a3 of each 16 rows of x
        g = cuda.blockIdx.z
        M, N, K = x.shape[0], weight.shape[0] // groups, weight.shape[1]
        m0, n0 = cuda.blockIdx.x * TILE, cuda.blockIdx.y * TILE
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        warp_m, warp_n = (warp >> 1) * WARP_TILE, (warp & 1) * WARP_TILE
        for i in range(4):
            for j in range(8):
                for c in range(4):
                    sums[i, j, c] = float32(0.0)
        for s in range(STAGES - 1):
            if s * SLAB < K:
                load_slab(tiles, s, 0, x, m0, M, g * K, s * SLAB, K)
                load_slab(tiles, s, TILE, weight, g * N + n0, g * N + N, 0, s * SLAB, K)
            copies_commit()
        s = 0
        for k0 in range(0, K, SLAB):
            copies_wait_1()  # this thread's copies of slab k0 are in
            cuda.syncthreads()  # everyone's are, and everyone is done with the slab before it, whose place is free
            free = s - 1 if s > 0 else STAGES - 1
            k_ahead = k0 + (STAGES - 1) * SLAB
            if k_ahead < K:  # else zeros might arrive after y has taken the slabs' place
                load_slab(tiles, free, 0, x, m0, M, g * K, k_ahead, K)
                load_slab(tiles, free, TILE, weight, g * N + n0, g * N + N, 0, k_ahead, K)
            copies_commit()  # past the last slab an empty group: the count of groups stays right
            for chunk in range(0, CHUNKS, 2):  # 16 columns of K
                for i in range(4):
                    row = warp_m + i * 16 + (lane & 15)
                    words = ldmatrix_x4(tiles, s, row, swizzled(row, chunk + (lane >> 4)))
                    for q in range(4):
                        a[i, q] = words[q]
                for j in range(0, 8, 2):  # b0, b1 of 8 columns of y and b0, b1 of the next 8
                    row = TILE + warp_n + j * 8 + (lane >> 4) * 8 + (lane & 7)
                    b = ldmatrix_x4(tiles, s, row, swizzled(row, chunk + (lane >> 3 & 1)))
                    for i in range(4):
                        multiply(sums, i, j, a, b[0], b[1])
                        multiply(sums, i, j + 1, a, b[2], b[3])
            s = s + 1 if s < STAGES - 1 else 0
        cuda.syncthreads()  # everyone is done with the slabs: y takes their place
        for i in range(4):
            for j in range(8):
                row, word = warp_m + i * 16 + (lane >> 2), (warp_n + j * 8) // 2 + (lane & 3)
                tiles[spot(row, word)] = pack_bf16(sums[i, j, 0], sums[i, j, 1])
                tiles[spot(row + 8, word)] = pack_bf16(sums[i, j, 2], sums[i, j, 3])
        cuda.syncthreads()  # the tile of y is whole before it is written out by rows
        for i in range(cuda.threadIdx.x, TILE * TILE // 2, THREADS):
            row, word = i // (TILE // 2), i % (TILE // 2)
            m, n = m0 + row, n0 + 2 * word
            pair = tiles[spot(row, word)]
            if m < M and n < N:
                y[m, g * N + n] = uint16(pair)
                if n + 1 < N:
                    y[m, g * N + n + 1] = uint16(pair >> uint32(16))

    return linear_mma_kernel


@cuda.jit(device=True, forceinline=True)
def multiply(sums, i, j, a, b0, b1):
    """sums[i, j] += the 16 rows of x in a[i] times 8 rows of weight."""
    c = mma_m16n8k16(
        a[i, 0], a[i, 1], a[i, 2], a[i, 3], b0, b1, sums[i, j, 0], sums[i, j, 1], sums[i, j, 2], sums[i, j, 3]
    )  # fmt: skip
    sums[i, j, 0], sums[i, j, 1], sums[i, j, 2], sums[i, j, 3] = c


@functools.cache
def kernel(aligned: bool) -> Any:
    """The kernel for rows that start on multiples of 16 bytes, or for any rows."""
    return build(copy_slab if aligned else fill_slab)


def launch_mma(x: Any, weight: Any, groups: int, y: Any) -> None:
    """Fill y; any sizes (see `operands`)."""
    size = sizes(x, weight, groups)
    aligned = on_16_bytes(x, weight) and size.K % CHUNK == 0
    grid = (-(-size.M // TILE), -(-size.N // TILE), groups)
    launch(kernel(aligned), grid, THREADS, x, weight, groups, y)
