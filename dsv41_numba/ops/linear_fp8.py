"""Linear with an fp8 weight: the weight stays as it is stored, and the activation is quantised to meet it.

Math       code[m, k], sx[m, b] = fp8 of x, per token in blocks of 32 columns; e4m3(code) * sx is about x
           y[m, n] = sum over blocks b in order of (sum_{k in b} e4m3(code[m, k]) * e4m3(codes[n, k])) * (sx[m, b] * sw)
           sw the scale of the weight's block that holds row n and the columns of b
Shapes     x [M, K] bf16, K a multiple of 32; weight `Fp8Weight`: codes [N, K] e4m3, scale [ceil(N / rows), ceil(K /
           columns)] e8m0, of blocks of `rows` x `columns`, any rows, columns a multiple of 32 -> y [M, N] bf16
           code [M, K] e4m3, sx [M, K / 32] e8m0, as `quant_fp8.fp8_quantise` makes them
Precision  the 32 products of a block and their sum in f32, in order; their sum times sx * sw, a power of two, in f32;
           blocks added in f32 in the order of K; one rounding to bf16. A product of two codes is exact, and so is a
           scaling, unless sx * sw leaves f32's range (2^-149 to 2^127: scales that no weight of a model has). A NaN
           in x, or a NaN code or scale byte 255 in the weight, makes what it meets NaN: an infinity in x likewise
Launch     grid (M / 16, N / 16), rounded up, block (16, 16), 4352 bytes of shared memory, after `fp8_quantise`
Moves      M K + N K bytes of codes, M K / 32 + N K / 1024 of scales (of 32 x 32), 2 M N of y
Errors     ValueError when K is not a multiple of 32 (the activation has whole blocks only), or a weight's block does
           not hold whole blocks of the activation, or an array's dtype, shape or layout is not as above
Source     steps 1, 2, 3, 6 and 14 of the layer as the official code runs them on its fp8 weights. wo_a, step 13, is
           dequantised there too

The block product has to be finished before it is scaled: the scales of the next 32 columns are other numbers. So a tile
of shared memory is one block of K wide, and a thread moves from block to block with one number, its sum so far.
"""

from typing import Any

import numpy as np
from numba import cuda, float32

from dsv41_numba.formats.bf16 import as_bf16, encode_bf16
from dsv41_numba.formats.e4m3 import decode_e4m3, e4m3_to_f32, f32_to_e4m3
from dsv41_numba.formats.e8m0 import decode_e8m0, e8m0_to_f32
from dsv41_numba.formats.fp8_weight import Fp8Weight
from dsv41_numba.ops.checks import check_array, check_count
from dsv41_numba.ops.quant_fp8 import BLOCK, check_blocks, fp8_quantise, fp8_quantise_ref
from dsv41_numba.runtime.backend import empty, launch

TILE = 16  # rows of x and rows of weight a block of threads
PADDED = BLOCK + 4  # floats in a tile's row: 8 rows begin in banks 0, 4, ..., 28, and each on 16 bytes: see `linear`


def linear_fp8_ref(x: np.ndarray, weight: Fp8Weight) -> np.ndarray:
    """x [M, K] bf16, weight [N, K] -> [M, N] bf16.

    The sum within a block is made in float64, where it is exact, and rounded to f32 once; from there on as above.
    """
    check_weight(x, weight)
    (rows, columns), (N, K) = weight.block, weight.shape
    codes, scale = fp8_quantise_ref(x)
    x_values, sx = e4m3_to_f32(codes).astype(np.float64), e8m0_to_f32(scale)
    w_values, sw = e4m3_to_f32(weight.codes).astype(np.float64), e8m0_to_f32(weight.scale)
    y = np.zeros((x.shape[0], N), np.float32)
    for b in range(K // BLOCK):
        at = slice(b * BLOCK, (b + 1) * BLOCK)
        products = (x_values[:, at] @ w_values[:, at].T).astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # scales at the ends of f32's range
            scales = sx[:, b, None] * np.repeat(sw[:, b * BLOCK // columns], rows)[:N]
            y += products * scales
    return as_bf16(y)


@cuda.jit
def linear_fp8_kernel(x_codes, x_scale, codes, scale, rows, columns, y):
    """One block a tile of y, thread (tx, ty) its row ty and column tx; see `linear.linear_kernel` for the grid.

    x_codes [M, K] and x_scale [M, K / 32] are the quantised x; codes, scale and the `rows` x `columns` of a block are
    the weight's.
    """
    x_tile = cuda.shared.array((TILE, BLOCK), float32)
    weight_tile = cuda.shared.array((TILE, PADDED), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    M, K = x_codes.shape
    N = codes.shape[0]
    m, n0 = cuda.blockIdx.x * TILE + ty, cuda.blockIdx.y * TILE
    n = n0 + tx
    total = float32(0.0)
    # ref: for b in range(K // BLOCK):
    for b in range(K // BLOCK):
        # to fill a tile, tx runs along K, the fastest axis of both matrices; past an edge stand zeros
        for k in range(tx, BLOCK, TILE):
            x_tile[ty, k] = float32(0.0)
            weight_tile[ty, k] = float32(0.0)
            if m < M:
                x_tile[ty, k] = decode_e4m3(x_codes[m, b * BLOCK + k])
            if n0 + ty < N:
                weight_tile[ty, k] = decode_e4m3(codes[n0 + ty, b * BLOCK + k])
        cuda.syncthreads()  # both tiles are filled before anyone reads them
        # ref: products = (x_values[:, at] @ w_values[:, at].T).astype(np.float32)
        product = float32(0.0)
        for k in range(BLOCK):
            product += x_tile[ty, k] * weight_tile[tx, k]
        cuda.syncthreads()  # everyone has read the tiles before anyone fills them again
        if m < M and n < N:
            # ref: y += products * scales
            both = decode_e8m0(x_scale[m, b]) * decode_e8m0(scale[n // rows, b * BLOCK // columns])
            total += product * both
    # ref: return as_bf16(y)
    if m < M and n < N:
        y[m, n] = encode_bf16(total)


def linear_of_codes(x_codes: Any, x_scale: Any, weight: Fp8Weight) -> Any:
    """What `fp8_quantise` made of x, and a weight -> y [M, N] bf16 bits; `check_weight` has looked at both."""
    M, N = x_codes.shape[0], weight.shape[0]
    y = empty((M, N), np.uint16)
    if y.size > 0:
        grid = (-(-M // TILE), -(-N // TILE))
        launch(linear_fp8_kernel, grid, (TILE, TILE), x_codes, x_scale, weight.codes, weight.scale, *weight.block, y)
    return y


def linear_fp8(x: Any, weight: Fp8Weight) -> Any:
    """x [M, K] bf16 bits, weight [N, K] -> [M, N] bf16 bits, all device arrays."""
    check_weight(x, weight)
    return linear_of_codes(*fp8_quantise(x), weight)


def check_weight(x: Any, weight: Fp8Weight) -> None:
    """Refuse a weight that is not whole, one that does not fit x, and blocks that do not fit the activation's."""
    if not isinstance(weight, Fp8Weight):
        raise ValueError(f"weight: expected an Fp8Weight, got {type(weight).__name__}")
    if not hasattr(x, "shape") or len(x.shape) != 2:
        raise ValueError(f"x: expected shape [M, K], got {list(getattr(x, 'shape', ())) or type(x).__name__}")
    check_blocks(x, BLOCK)
    check_array("weight.codes", weight.codes, np.uint8, (None, x.shape[1]))
    if len(weight.block) != 2:
        raise ValueError(f"weight.block: expected rows and columns, got {weight.block}")
    rows, columns = weight.block
    check_count("weight.block", rows)
    check_count("weight.block", columns)
    if columns % BLOCK:
        raise ValueError(
            f"weight.block: expected columns that are a multiple of {BLOCK}, the activation's block, got {columns}"
        )
    check_array("weight.scale", weight.scale, np.uint8, (-(-weight.shape[0] // rows), -(-x.shape[1] // columns)))


if __name__ == "__main__":
    rng = np.random.default_rng(8)
    tokens = as_bf16(rng.standard_normal((3, 64)).astype(np.float32))
    matrix = Fp8Weight(f32_to_e4m3(rng.standard_normal((5, 64)).astype(np.float32)), np.array([[127, 125]], np.uint8))
    exact = tokens.astype(np.float64) @ matrix.to_f32().astype(np.float64).T
    print(linear_fp8_ref(tokens, matrix)[0], "of the unquantised activation:", exact[0])
