"""RoPE in place: only the entries that turn cross memory, an eighth of a head of 512.

Math       that of `ops.rope`, with x as the result
Shapes     x [T, H, D] bf16, D even; cos, sin [P, R / 2] f32, R <= D; start_pos >= 0, step >= 1 -> x
Precision  every bit that of `ops.rope`: the same device function turns the pairs
Launch     grid (T, ceil(H / 32)), block (32, 8): a warp 4 heads, lane j takes the pairs j, j + 32, ... of each
Moves      4 T H R bytes, and 4 T R of the table
Errors     those of `ops.rope`
Source     step 2 of the layer, whose q nobody else needs unturned; step 12 (inverse) where no attention kernel does it
"""

import functools
from typing import Any

import numpy as np
from numba import cuda, uint32

from dsv41_numba.ops.rope import WARP, check_operands, turn_pair
from dsv41_numba.runtime.backend import launch
from dsv41_numba.tuned.position import reader

WARPS = 8  # of a block
AHEAD = 4  # heads of a warp: all are fetched before one is stored


@functools.cache
def rope_in_place_kernel(position_of: Any) -> Any:
    """The kernel that finds start_pos by this function."""

    @cuda.jit
    def turn_kernel(x, cos, sin, turn, start_pos, step):
        """x holds a pair in each uint32, the even entry low. All heads of a token turn by the same angles."""
        fetched = cuda.local.array(AHEAD, uint32)
        t = cuda.blockIdx.x
        H = x.shape[1]
        pos = position_of(start_pos) + t * step
        copied = x.shape[2] - cos.shape[1]
        h0 = cuda.blockIdx.y * WARPS * AHEAD + cuda.threadIdx.y
        for p in range(cuda.threadIdx.x, cos.shape[1], WARP):
            c, s = cos[pos, p], turn * sin[pos, p]
            for i in range(AHEAD):
                h = h0 + i * WARPS
                if h < H:
                    fetched[i] = x[t, h, copied + p]
            for i in range(AHEAD):
                h = h0 + i * WARPS
                if h < H:
                    x[t, h, copied + p] = turn_pair(fetched[i], c, s)

    return turn_kernel


def rope_in_place(x: Any, cos: Any, sin: Any, start_pos: Any, step: int = 1) -> Any:
    """x [T, H, D] bf16 bits, changed and returned; cos and sin [P, R / 2] f32, all device arrays.

    start_pos is an integer, or a device array [1] int64 that holds it.
    """
    return _turned(np.float32(1.0), x, cos, sin, start_pos, step)


def rope_inverse_in_place(x: Any, cos: Any, sin: Any, start_pos: Any, step: int = 1) -> Any:
    """`rope_in_place` the other way round."""
    return _turned(np.float32(-1.0), x, cos, sin, start_pos, step)


def _turned(turn: np.float32, x: Any, cos: Any, sin: Any, start_pos: Any, step: int) -> Any:
    known = not hasattr(start_pos, "shape")
    T, H, D = check_operands(x, cos, sin, start_pos if known else 0, step)
    if T * H * D > 0:  # a grid of 0 blocks is a launch error
        grid = (T, -(-H // (WARPS * AHEAD)))
        kernel = rope_in_place_kernel(reader(start_pos))
        launch(kernel, grid, (WARP, WARPS), x.view(np.uint32), cos, sin, turn, start_pos, step)
    return x
