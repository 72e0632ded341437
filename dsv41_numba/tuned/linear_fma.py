"""Linear, rung 1: a thread keeps an 8 x 8 piece of y in registers, and uses each number it reads 8 times.

Math       y[m, n] = sum_k x[m, k] * weight[n, k]
Shapes     x [M, K] bf16, weight [N, K] bf16 -> y [M, N] bf16; any M, N, K
Precision  products and sums in f32, k ascending; one rounding to bf16 at the end
Launch     grid (M / 128, N / 128, groups), rounded up, block (16, 16); 16.5 KiB of shared memory
Moves      2 (M K + N K + M N) bytes; the floor is arithmetic: 2 M N K operations at the f32 rate
Errors     ValueError when an array's dtype, shape or layout is not as above
Source     steps 1, 2, 3, 5, 6, 13 and 14 of the layer; any GPU, and the emulator

The plain kernel reads two numbers from shared memory for every product, and shared memory gives 32 numbers a cycle
where the adders could take 128. Here a thread reads 8 numbers of x and 8 of weight and makes 64 products of them::

                   tx * 4 ..+3         64 + tx * 4 ..+3          columns of the block's 128 x 128 tile
    ty * 4 ..+3      4 x 4                  4 x 4                two runs of 4 each way, because 4 numbers that lie
    64 + ty*4 ..     4 x 4                  4 x 4                side by side are one 16-byte read
"""

from typing import Any

from numba import cuda, float32

from dsv41_numba.formats.bf16 import decode_bf16, encode_bf16
from dsv41_numba.runtime.backend import launch
from dsv41_numba.tuned.operands import sizes

TILE = 128  # rows and columns of y a block
SIDE = 16  # threads along each side of it
SLAB = 16  # columns of K in shared memory at a time
RUN = 4  # neighbouring rows, or columns, of a thread; it has two runs, half a tile apart
PADDED = TILE + 4  # a slab is written down its columns: rows of 128 would put all of one in the same bank


@cuda.jit(device=True)
def place(thread, i):
    """Where in the tile a thread's row, or column, i of 8 stands."""
    return i // RUN * (TILE // 2) + thread * RUN + i % RUN


@cuda.jit(device=True)
def fill_slab(slab, array, first_row, last_row, first_column, k0, K):
    """slab[k, row] = array[first_row + row, first_column + k0 + k], zeros past the edges of the group.

    threadIdx.x reads along K, the fastest axis of the array; the slab is transposed, so that runs of rows lie together.
    """
    k = cuda.threadIdx.x
    for row in range(cuda.threadIdx.y, TILE, SIDE):
        inside = first_row + row < last_row and k0 + k < K
        slab[k, row] = decode_bf16(array[first_row + row, first_column + k0 + k]) if inside else float32(0.0)


@cuda.jit(launch_bounds=(SIDE * SIDE, 2))
def linear_fma_kernel(x, weight, groups, y):
    """One block a tile of y of group blockIdx.z; 256 threads, 64 sums each. Operands: `operands`."""
    x_slab = cuda.shared.array((SLAB, PADDED), float32, 16)
    weight_slab = cuda.shared.array((SLAB, PADDED), float32, 16)
    sums = cuda.local.array((8, 8), float32)
    x_run = cuda.local.array(8, float32)
    tx, ty, g = cuda.threadIdx.x, cuda.threadIdx.y, cuda.blockIdx.z
    M, N, K = x.shape[0], weight.shape[0] // groups, weight.shape[1]
    m0, n0 = cuda.blockIdx.x * TILE, cuda.blockIdx.y * TILE
    for i in range(8):
        for j in range(8):
            sums[i, j] = float32(0.0)
    for k0 in range(0, K, SLAB):
        fill_slab(x_slab, x, m0, M, g * K, k0, K)
        fill_slab(weight_slab, weight, g * N + n0, g * N + N, 0, k0, K)
        cuda.syncthreads()  # both slabs are filled before anyone reads them
        for k in range(SLAB):
            for i in range(8):
                x_run[i] = x_slab[k, place(ty, i)]
            for j in range(8):
                w = weight_slab[k, place(tx, j)]
                for i in range(8):
                    sums[i, j] += x_run[i] * w
        cuda.syncthreads()  # everyone has read the slabs before anyone fills them again
    for i in range(8):
        for j in range(8):
            m, n = m0 + place(ty, i), n0 + place(tx, j)
            if m < M and n < N:
                y[m, g * N + n] = encode_bf16(sums[i, j])


def launch_fma(x: Any, weight: Any, groups: int, y: Any) -> None:
    """Fill y; any sizes (see `operands`)."""
    size = sizes(x, weight, groups)
    grid = (-(-size.M // TILE), -(-size.N // TILE), groups)
    launch(linear_fma_kernel, grid, (SIDE, SIDE), x, weight, groups, y)
