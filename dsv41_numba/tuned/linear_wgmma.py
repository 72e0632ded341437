"""Linear, rung 3: Hopper's warpgroup products, fed by a copy engine, in pairs of blocks that stay on the GPU.

Math       y[m, n] = sum_k x[m, k] * weight[n, k]
Shapes     x [M, K] bf16, weight [N, K] bf16 -> y [M, N] bf16; any M, N and K multiples of 8
Precision  products of bf16 and their sums in f32, by the tensor cores, in steps of 16 columns; one rounding to bf16
Launch     grid 2 * min(pairs of tiles, pairs of multiprocessors), clusters of 2, block 384 (64-row tiles: 256);
           up to 227 KiB of dynamic shared memory
Moves      2 (M K + N K + M N) bytes; the floor is arithmetic: 2 M N K operations at the rate of wgmma
Errors     ValueError when an array's dtype, shape or layout is not as above
Source     steps 1, 2, 3, 5, 6, 13 and 14 of the layer; compute capability 9.0

Five ideas on top of rung 2:

1. `wgmma`: four warps multiply 64 x 64 by 64 x 256 straight from shared memory; no ldmatrix, no operand registers.
2. TMA: one thread has a copy engine fetch whole boxes, swizzled and with zeros past the edges. A warpgroup of its own,
   the producer, does that and runs up to STAGES slabs ahead. Two mbarriers a stage hold the two sides together: `full`
   counts bytes that landed, `empty` the consumers that are done.
3. Pairs: two blocks, one above the other, share the slab of weight. Each fetches half of it, for both.
4. A persistent grid: every pair of multiprocessors keeps its pair of blocks, which walk over the tiles. The producer
   is fetching the next tile while the last products of this one run.
5. A deferred epilogue: a finished tile becomes bf16 in registers at once, and is stored in passes of 64 columns while
   the tensor cores are on the next tile::

       producer    | fetch tile 0    | fetch tile 1    | fetch tile 2    |
       consumers       | multiply 0      | multiply 1      | multiply 2      |
                                         | store 0 |       | store 1 |       | store 2 |
"""

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

from numba import cuda, types, uint32

from dsv41_numba.ops.checks import address
from dsv41_numba.tuned.cluster_launch import Launch, compiled, tensor_map
from dsv41_numba.tuned.operands import Sizes, on_16_bytes, sizes
from dsv41_numba.tuned.ptx import (
    DESCRIPTOR_LOW,
    accumulators,
    cluster_rank,
    cluster_sync,
    divide,
    fence_async,
    fence_mbarrier_init,
    launch_next,
    launch_wait,
    mbarrier_arrive_in,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_wait,
    pass_columns,
    plus_1,
    prefetch_map,
    registers_less,
    registers_more,
    shared_address,
    tma_load,
    tma_load_pair,
    tma_store,
    tma_stores_read_0,
    tma_stores_read_1,
    trap,
    uniform,
    warpgroup_sync,
    wgmma_wait_0,
    wgmma_wait_1,
)

WARPGROUP = 128  # threads; each warpgroup of consumers takes 64 rows of a tile
SLAB = 64  # columns of K a stage: a row of 128 bytes, as wide as the swizzle
ROW_BYTES = 2 * SLAB
PASS_BYTES = 64 * ROW_BYTES  # a pass of the epilogue: 64 rows x 64 columns of one warpgroup
SHARED_BYTES = 227 * 1024  # what one block can have on compute capability 9.0


@dataclass(frozen=True)
class Tile:
    """A block's piece of y and how it is worked on.

    `walk` pairs of tile rows are walked together, column by column: blocks that run at the same time then share what
    they fetch. `slab_ns` and `besides_ns` are about what one H200 takes for a slab of 64 columns and for the rest of a
    tile; `choose` weighs tiles by them.
    """

    rows: int
    columns: int
    stages: int
    walk: int
    slab_ns: int
    besides_ns: int


TILES = (
    Tile(128, 256, stages=4, walk=8, slab_ns=670, besides_ns=1171),
    Tile(128, 216, stages=4, walk=8, slab_ns=566, besides_ns=1100),
    Tile(128, 192, stages=4, walk=8, slab_ns=516, besides_ns=1047),
    Tile(128, 160, stages=5, walk=4, slab_ns=444, besides_ns=749),
    Tile(128, 64, stages=8, walk=2, slab_ns=205, besides_ns=688),
    Tile(64, 128, stages=8, walk=2, slab_ns=215, besides_ns=688),
)


def choose(size: Sizes, pairs_at_once: int) -> Tile:
    """The tile that should take the least time: rounds of all multiprocessors, times what one tile takes."""

    def nanoseconds(tile: Tile) -> int:
        pairs = size.groups * -(-size.M // (2 * tile.rows)) * -(-size.N // tile.columns)
        return -(-pairs // pairs_at_once) * (-(-size.K // SLAB) * tile.slab_ns + tile.besides_ns)

    return min(TILES, key=nanoseconds)


# ---- device functions ----------------------------------------------------------------------------------------------
@cuda.jit(device=True, forceinline=True)
def tile_at(t, pairs, columns, walk):
    """Tile t -> group, pair of tile rows, tile column: `walk` pairs at a time, column by column.

    ::

        walk = 2    column   0    1    2
        pair 0               0    2    4
        pair 1               1    3    5
        pair 2               6    7    8

    Sums and products are cast back to uint32, because Numba makes 64 bits of them.
    """
    g = divide(t, uint32(pairs * columns))
    t = uint32(t - g * pairs * columns)
    band = divide(t, uint32(walk * columns))
    t = uint32(t - band * walk * columns)
    first = uint32(band * walk)
    height = min(uint32(pairs - first), walk)
    column = divide(t, height)
    return g, uint32(first + t - column * height), column


@functools.cache
def build(tile: Tile) -> tuple[Any, int]:
    """The kernel for one tile shape, and its shared memory in bytes."""
    ROWS, COLUMNS, STAGES, WALK = tile.rows, tile.columns, tile.stages, tile.walk
    CONSUMERS = ROWS // 64  # warpgroups
    # the block's shared memory, in bytes from its start
    X_BYTES = ROWS * ROW_BYTES
    STAGE_BYTES = X_BYTES + COLUMNS * ROW_BYTES  # a stage: the slab of x, then that of weight
    OUT = STAGES * STAGE_BYTES  # two buffers of the epilogue a warpgroup: one is filled, the other being stored
    FULL = OUT + CONSUMERS * 2 * PASS_BYTES  # mbarriers, 8 bytes each
    EMPTY = FULL + 8 * STAGES
    shared_bytes = EMPTY + 8 * STAGES
    HALF = COLUMNS // 2  # the rows of weight that each block of a pair fetches for both
    PASSES, LAST_PASS = len(pass_columns(COLUMNS)), COLUMNS - 64
    if COLUMNS % 8 or not 64 <= COLUMNS <= 256 or shared_bytes > SHARED_BYTES:
        raise ValueError(f"tile: expected 64 to 256 columns, a multiple of 8, and stages that fit, got {tile}")
    sums_declare, sums_multiply, sums_to_bf16, sums_to_shared = accumulators(COLUMNS)

    @cuda.jit(device=True, forceinline=True)
    def next_stage(s, phase):
        """The stage after s, and the parity of its barriers' phase."""
        s = plus_1(s)
        if s == uint32(STAGES):
            return uint32(0), uint32(phase ^ uint32(1))
        return s, phase

    @cuda.jit(device=True, forceinline=True)
    def make_barriers(base):
        for s in range(STAGES):
            mbarrier_init(base + uint32(FULL + 8 * s), uint32(1))  # the producer
            mbarrier_init(base + uint32(EMPTY + 8 * s), uint32(2 * CONSUMERS))  # the consumers of both blocks
        fence_mbarrier_init()

    @cuda.jit(device=True, forceinline=True)
    def produce(base, rank, first, step, map_x, map_weight, slabs, pairs, columns, tiles):
        """Keep the stages full, tile after tile. One thread; the copy engine does the work."""
        s = uint32(0)
        phase = uint32(0)
        t = first
        while t < tiles:
            g, pair, column = tile_at(t, pairs, columns, uint32(WALK))
            row = uint32((pair * uint32(2) + rank) * uint32(ROWS))
            weight_row = uint32(column * uint32(COLUMNS) + rank * uint32(HALF))
            kt = uint32(0)
            while kt < slabs:
                mbarrier_wait(base + uint32(EMPTY) + s * uint32(8), phase ^ uint32(1))
                full = base + uint32(FULL) + s * uint32(8)
                mbarrier_expect(full, uint32(STAGE_BYTES))
                stage = base + s * uint32(STAGE_BYTES)
                k = kt * uint32(SLAB)
                tma_load(stage, map_x, k, row, g, full)
                half = stage + uint32(X_BYTES) + rank * uint32(HALF * ROW_BYTES)
                tma_load_pair(half, map_weight, k, weight_row, g, full)
                s, phase = next_stage(s, phase)
                kt = plus_1(kt)
            t = uint32(t + step)

    @cuda.jit(device=True, forceinline=True)
    def store_pass(p, lead, consumer, out, lane_out, map_y, column, row, g):
        """64 columns of a finished tile: registers -> shared memory -> device memory."""
        if lead:
            tma_stores_read_1()  # the store before the last is done with this buffer
        warpgroup_sync(consumer + uint32(1))  # and everyone knows
        sums_to_shared(lane_out, p)
        fence_async()
        warpgroup_sync(consumer + uint32(1))  # the buffer is filled
        if lead:
            tma_store(out, map_y, column + min(p * uint32(64), uint32(LAST_PASS)), row, g)

    @cuda.jit(device=True, forceinline=True)
    def release(base, s):
        """This warpgroup is done with stage s: thread 0 tells the producer of one block, thread 1 that of the other."""
        thread = uint32(cuda.threadIdx.x) & uint32(WARPGROUP - 1)
        if thread < uint32(2):
            mbarrier_arrive_in(base + uint32(EMPTY) + s * uint32(8), thread)

    @cuda.jit(device=True, forceinline=True)
    def consume(base, rank, consumer, first, step, map_y, slabs, pairs, columns, tiles):
        """Multiply what the producer fetches; store each tile while the next one is multiplied. One warpgroup."""
        tid = uint32(cuda.threadIdx.x)
        lane = tid & uint32(31)
        lead = (tid & uint32(WARPGROUP - 1)) == uint32(0)
        if lead:
            launch_wait()
        x_descriptor = ((base + consumer * uint32(64 * ROW_BYTES)) >> uint32(4)) | uint32(DESCRIPTOR_LOW)
        weight_descriptor = ((base + uint32(X_BYTES)) >> uint32(4)) | uint32(DESCRIPTOR_LOW)
        # where this lane writes: row lane % 16 of its warp's 16, chunk lane // 16, swizzled
        out = base + uint32(OUT) + consumer * uint32(2 * PASS_BYTES)
        lane_row = ((tid >> uint32(5)) & uint32(3)) * uint32(16) + (lane & uint32(15))
        lane_chunk = (lane >> uint32(4)) ^ (lane & uint32(7))
        lane_out = out + lane_row * uint32(ROW_BYTES) + (lane_chunk << uint32(4))
        s = uint32(0)
        phase = uint32(0)
        buffer = uint32(0)  # the one to fill next: 0 or PASS_BYTES
        p = uint32(PASSES)  # the next pass of the tile before; PASSES: it is stored
        row = uint32(0)
        column = uint32(0)
        g = uint32(0)
        t = first
        while t < tiles:
            before = uint32(0)
            kt = uint32(0)
            while kt < slabs:
                mbarrier_wait(base + uint32(FULL) + s * uint32(8), phase)
                at = s * uint32(STAGE_BYTES >> 4)
                sums_multiply(x_descriptor + at, weight_descriptor + at, kt)  # slab 0 overwrites the sums
                if p < uint32(PASSES):  # the tensor cores are busy: time to store
                    store_pass(p, lead, consumer, out + buffer, lane_out + buffer, map_y, column, row, g)
                    p = plus_1(p)
                    buffer = uint32(buffer ^ uint32(PASS_BYTES))
                wgmma_wait_1()  # slab kt - 1 is done, kt goes on
                if kt > uint32(0):
                    release(base, before)
                before = s
                s, phase = next_stage(s, phase)
                kt = plus_1(kt)
            wgmma_wait_0()
            release(base, before)
            while p < uint32(PASSES):  # there were fewer slabs than passes
                store_pass(p, lead, consumer, out + buffer, lane_out + buffer, map_y, column, row, g)
                p = plus_1(p)
                buffer = uint32(buffer ^ uint32(PASS_BYTES))
            sums_to_bf16()
            g, pair, tile_column = tile_at(t, pairs, columns, uint32(WALK))
            row = uint32((pair * uint32(2) + rank) * uint32(ROWS) + consumer * uint32(64))
            column = uint32(tile_column * uint32(COLUMNS))
            p = uint32(0)
            t = uint32(t + step)
        while p < uint32(PASSES):  # the last tile
            store_pass(p, lead, consumer, out + buffer, lane_out + buffer, map_y, column, row, g)
            p = plus_1(p)
            buffer = uint32(buffer ^ uint32(PASS_BYTES))
        if lead:
            tma_stores_read_0()  # shared memory must not go before the stores have read it

    @cuda.jit(launch_bounds=(WARPGROUP * (1 + CONSUMERS), 1))
    def linear_wgmma_kernel(map_x, map_weight, map_y, slabs, pairs, columns, tiles):
        """A pair of blocks walks over pairs of tiles; the maps are device addresses, the rest counts."""
        base = shared_address(cuda.shared.array(0, uint32))
        tid = uint32(cuda.threadIdx.x)
        group = uniform(tid >> uint32(7))
        rank = cluster_rank()  # 0: the upper tile row of the pair, 1: the lower
        first = uint32(cuda.blockIdx.x) >> uint32(1)
        step = uint32(cuda.gridDim.x) >> uint32(1)
        if base & uint32(1023):  # the swizzle counts from multiples of 1024
            trap()
        if tid == uint32(0):
            prefetch_map(map_x)
            prefetch_map(map_weight)
            prefetch_map(map_y)
            make_barriers(base)
        cluster_sync()  # both blocks' barriers exist before either signals them
        if group == uint32(0):
            if CONSUMERS == 2:
                registers_less()
            if tid == uint32(0):
                launch_wait()
                produce(base, rank, first, step, map_x, map_weight, slabs, pairs, columns, tiles)
        else:
            if CONSUMERS == 2:
                registers_more()
            sums_declare()
            launch_next()
            consume(base, rank, group - uint32(1), first, step, map_y, slabs, pairs, columns, tiles)
        cluster_sync()  # neither block leaves while the other may still signal it

    return linear_wgmma_kernel, shared_bytes


# ---- host ----------------------------------------------------------------------------------------------------------
SIGNATURE = (types.uint64,) * 3 + (types.uint32,) * 4


@functools.cache
def compiled_tile(tile: Tile) -> tuple[Any, int]:
    """The driver's handle of one tile's kernel, and its shared memory in bytes."""
    kernel, shared_bytes = build(tile)
    return compiled(kernel, SIGNATURE, shared_bytes), shared_bytes


def fits(x: Any, weight: Any, groups: int, y: Any) -> bool:
    """Whether TMA can reach the operands: rows, also those of one group, on multiples of 16 bytes, and none empty."""
    size = sizes(x, weight, groups)
    return size.K > 0 and size.K % 8 == 0 and size.N % 8 == 0 and on_16_bytes(x, weight, y)


def prepare(x: Any, weight: Any, groups: int, y: Any, tile: Tile | None = None) -> Launch:
    """The launch that fills y (see `operands`), to be called any number of times."""
    size = sizes(x, weight, groups)
    if not fits(x, weight, groups, y):
        raise ValueError(
            f"x, weight: expected K and N multiples of 8, K not 0, rows on multiples of 16 bytes, got {size}"
        )
    pairs_at_once = cuda.get_current_device().MULTIPROCESSOR_COUNT // 2
    tile = tile or choose(size, pairs_at_once)
    function, shared_bytes = compiled_tile(tile)
    M, N, K = size.M, size.N, size.K
    # groups of x and y lie beside each other in a row, groups of weight one below the other
    maps = (
        tensor_map(address(x), (groups, M, K), (2 * K, 2 * groups * K), (tile.rows, SLAB)),
        tensor_map(address(weight), (groups, N, K), (2 * N * K, 2 * K), (tile.columns // 2, SLAB)),
        tensor_map(address(y), (groups, M, N), (2 * N, 2 * groups * N), (64, 64)),
    )
    pairs, columns = -(-M // (2 * tile.rows)), -(-N // tile.columns)
    tiles = groups * pairs * columns
    values: list[Any] = [ctypes.c_uint64(address(a)) for a in maps]
    values += [ctypes.c_uint32(count) for count in (-(-K // SLAB), pairs, columns, tiles)]
    grid, block = 2 * min(tiles, pairs_at_once), WARPGROUP * (1 + tile.rows // 64)
    return Launch(function, grid, block, 2, shared_bytes, values, (x, weight, y, maps))


def launch_wgmma(x: Any, weight: Any, groups: int, y: Any) -> None:
    """Fill y; K and N multiples of 8 (see `operands`)."""
    prepare(x, weight, groups, y)()
