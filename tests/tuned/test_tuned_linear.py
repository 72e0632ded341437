"""The rungs of the linear ladder: on a GPU with PTX, on the emulator with what `tuned.emulated` makes of it."""

import numpy as np
import pytest
from numba import cuda, float32, uint32

from conftest import random_bf16
from dsv41_numba.compare import bf16_array, same_bits, worst_steps
from dsv41_numba.formats.bf16 import as_bf16
from dsv41_numba.ops.grouped_linear import grouped_linear_ref
from dsv41_numba.ops.linear import linear_ref
from dsv41_numba.runtime import backend
from dsv41_numba.runtime.backend import to_device, to_host
from dsv41_numba.tuned import emulated
from dsv41_numba.tuned import linear as ladder
from dsv41_numba.tuned.operands import grouped_linear_by, linear_by
from tolerances import ONE_ROUNDING

pytest.importorskip("numba_cuda", reason="numba-cuda, which the tuned kernels need, is not installed")
ON_GPU = backend.current().name == "gpu"


NO_HOPPER = not ON_GPU or cuda.get_current_device().compute_capability != (9, 0)
needs_hopper = [pytest.mark.gpu, pytest.mark.skipif(NO_HOPPER, reason="no GPU of compute capability 9.0")]
every_rung = pytest.mark.parametrize("name", ["fma", "mma", "decode", pytest.param("wgmma", marks=needs_hopper)])

# M, N, K: the edges of the tiles, several slabs, K that 16-byte copies can take and K that they cannot
SIZES = {
    "fma": [(1, 1, 1), (127, 129, 15), (130, 5, 17)],
    "mma": [(1, 1, 8), (131, 70, 72), (130, 133, 37), (3, 5, 200)],
    "decode": [(1, 37, 520), (2, 9, 1056), (3, 65, 72), (4, 9, 2064), (2, 8, 8), (1, 1, 1), (3, 9, 33), (1, 10, 301)],
}
HOPPER_SIZES = [(1, 8, 8), (127, 264, 72), (2000, 1016, 520), (700, 72, 64)]


def hopper(test):
    for mark in needs_hopper:
        test = mark(test)
    return test


def run(name, x, weight):
    return bf16_array(to_host(linear_by(ladder.rung(name), to_device(x), to_device(weight))))


def run_grouped(name, o, weight, n_groups):
    return bf16_array(to_host(grouped_linear_by(ladder.rung(name), to_device(o), to_device(weight), n_groups)))


def cases():
    return [pytest.param(name, *size, id=f"{name}-{size}") for name, sizes in SIZES.items() for size in sizes]


@pytest.mark.parametrize("name, M, N, K", cases())
def test_tuned_linear_matches_its_reference_and_float64(rng, name, M, N, K):
    x, weight = random_bf16(rng, M, K), random_bf16(rng, N, K)
    y = run(name, x, weight)
    exact = as_bf16((x.astype(np.float64) @ weight.astype(np.float64).T).astype(np.float32))
    assert worst_steps(y, linear_ref(x, weight)) <= ONE_ROUNDING
    assert worst_steps(y, exact) <= ONE_ROUNDING


@hopper
@pytest.mark.parametrize("M, N, K", HOPPER_SIZES)
@pytest.mark.parametrize("tile", range(6))  # TILES, which cannot be imported without numba-cuda
def test_tuned_linear_wgmma_matches_its_reference_with_every_tile(rng, tile, M, N, K):
    from dsv41_numba.tuned import linear_wgmma

    assert len(linear_wgmma.TILES) == 6
    x, weight = random_bf16(rng, M, K), random_bf16(rng, N, K)

    def rung(x, weight, groups, y):
        linear_wgmma.prepare(x, weight, groups, y, tile=linear_wgmma.TILES[tile])()

    y = bf16_array(to_host(linear_by(rung, to_device(x), to_device(weight))))
    assert worst_steps(y, linear_ref(x, weight)) <= ONE_ROUNDING


@every_rung
@pytest.mark.parametrize("T, H, D, n_groups, rank", [(3, 6, 12, 3, 8), (2, 4, 16, 2, 24)])
def test_tuned_grouped_linear_matches_its_reference(rng, name, T, H, D, n_groups, rank):
    o, weight = random_bf16(rng, T, H, D), random_bf16(rng, n_groups * rank, H // n_groups * D)
    og = run_grouped(name, o, weight, n_groups)
    assert og.shape == (T, n_groups, rank)
    assert worst_steps(og, grouped_linear_ref(o, weight, n_groups)) <= ONE_ROUNDING


@every_rung
def test_tuned_grouped_linear_groups_do_not_see_each_other(rng, name):
    """The edges are the group's: past them stand the next group's numbers, here NaN."""
    o, weight = random_bf16(rng, 2, 6, 12), random_bf16(rng, 3 * 8, 24)
    clean = run_grouped(name, o, weight, 3)
    o[:, 2:4], weight[8:16] = np.nan, np.nan
    og = run_grouped(name, o, weight, 3)
    assert same_bits(np.ascontiguousarray(og[:, ::2]), np.ascontiguousarray(clean[:, ::2]))
    assert np.isnan(og[:, 1].astype(np.float32)).all()


@every_rung
def test_tuned_linear_keeps_infinities_and_nan_to_their_row_and_column(name):
    """Past the edges stand zeros on both sides: 0 * inf there would spread a NaN over the whole tile."""
    x, weight = np.ones((3, 40), np.float32), np.ones((8, 40), np.float32)
    x[1, 2], weight[3, 0] = np.inf, np.nan
    expected = np.full((3, 8), 40.0, np.float32)
    expected[1, :], expected[:, 3] = np.inf, np.nan
    np.testing.assert_array_equal(run(name, as_bf16(x), as_bf16(weight)).astype(np.float32), expected)


@every_rung
def test_tuned_linear_with_a_permutation_matrix_copies(rng, name):
    """A column of K that meets the wrong one of the other operand would show."""
    x, order = random_bf16(rng, 3, 72), rng.permutation(72)
    weight = np.zeros((72, 72), np.float32)
    weight[np.arange(72), order] = 1
    assert same_bits(run(name, x, as_bf16(weight)), np.ascontiguousarray(x[:, order]))


@pytest.mark.parametrize("name", ["fma", "mma", "decode"])
def test_tuned_linear_takes_operands_that_start_anywhere(rng, name):
    """Rows are 16 bytes long, but the first does not start on a multiple of 16."""
    x, weight = random_bf16(rng, 3 * 8 + 1), random_bf16(rng, 5 * 8 + 1)
    shifted = (to_device(x)[1:].reshape(3, 8), to_device(weight)[1:].reshape(5, 8))
    y = bf16_array(to_host(linear_by(ladder.rung(name), *shifted)))
    assert worst_steps(y, linear_ref(x[1:].reshape(3, 8), weight[1:].reshape(5, 8))) <= ONE_ROUNDING


@pytest.mark.parametrize("M, N, K", [(0, 3, 8), (3, 0, 8), (3, 5, 0), (0, 0, 0)])
def test_tuned_linear_of_empty_operands(M, N, K):
    """The sum of no products is 0."""
    x, weight = np.zeros((M, K), np.uint16), np.zeros((N, K), np.uint16)
    y = to_host(ladder.linear(to_device(x), to_device(weight)))
    assert same_bits(y, np.zeros((M, N), np.uint16))


def test_tuned_grouped_linear_of_no_tokens_is_no_rows(rng):
    weight = to_device(random_bf16(rng, 10, 12))
    assert to_host(ladder.grouped_linear(to_device(np.zeros((0, 4, 6), np.uint16)), weight, 2)).shape == (0, 2, 5)


def test_tuned_linear_refuses_bad_input(rng):
    x, weight = to_device(random_bf16(rng, 2, 8)), to_device(random_bf16(rng, 3, 8))
    with pytest.raises(ValueError, match=r"weight: expected shape \[\*, 8\], got \[8, 3\]"):
        ladder.linear(x, to_device(np.zeros((8, 3), np.uint16)))
    with pytest.raises(ValueError, match="n_groups: expected a divisor of the 4 heads of o, got 3"):
        ladder.grouped_linear(to_device(np.zeros((2, 4, 6), np.uint16)), weight, 3)
    with pytest.raises(ValueError, match="x: expected 1 to 4 rows, got 5"):
        linear_by(ladder.rung("decode"), to_device(random_bf16(rng, 5, 8)), weight)
    with pytest.raises(ValueError, match=r"expected K and N multiples of 8, .* got Sizes\(M=2, N=3, K=8, groups=1\)"):
        linear_by(ladder.rung("wgmma"), x, weight)


@pytest.mark.parametrize(
    "M, N, K, capability, aligned, rung, reason",
    [
        (2048, 1280, 5120, (9, 0), True, "wgmma", "copy engine can reach every row"),
        (2048, 1284, 5120, (9, 0), True, "mma", "N = 1284 and K = 5120"),
        (2048, 1280, 5124, (9, 0), True, "mma", "N = 1280 and K = 5124"),
        (2048, 1280, 5120, (9, 0), False, "mma", "does not start on a multiple of 16 bytes"),
        (2048, 1280, 5120, (12, 0), True, "mma", "12.0 has mma.sync"),
        (2048, 1280, 5120, (8, 6), True, "mma", "8.6 has mma.sync"),
        (2048, 1280, 5120, (7, 5), True, "fma", "7.5 has no mma.sync"),
        (2048, 1280, 5120, (0, 0), True, "fma", "no GPU"),
        (1, 1280, 5120, (9, 0), True, "decode", "1 of at most 4 tokens"),
        (4, 5, 7, (7, 5), False, "decode", "4 of at most 4 tokens"),
        (5, 8, 8, (9, 0), True, "wgmma", "copy engine"),
        (1, 8, 0, (9, 0), True, "fma", "K is 0"),
    ],
)
def test_tuned_linear_pick_says_which_rung_and_why(M, N, K, capability, aligned, rung, reason):
    choice = ladder.pick(M, N, K, capability, aligned)
    assert choice.rung == rung
    assert reason in choice.reason


@pytest.mark.parametrize(
    "M, N, K, groups, rows, columns",
    [
        (8192, 8192, 8192, 1, 128, 256),
        (2048, 1280, 5120, 1, 128, 160),
        (2048, 32768, 1280, 1, 128, 256),
        (2048, 512, 5120, 1, 128, 64),
        (2048, 1024, 4096, 8, 128, 256),
        (2048, 5120, 8192, 1, 128, 216),
    ],
)
def test_tuned_linear_wgmma_takes_the_tiles_that_were_measured_best(M, N, K, groups, rows, columns):
    from dsv41_numba.tuned.linear_wgmma import choose
    from dsv41_numba.tuned.operands import Sizes

    tile = choose(Sizes(M, N, K, groups), pairs_at_once=66)
    assert (tile.rows, tile.columns) == (rows, columns)


def fragments_kernel(ldmatrix_x4, mma_m16n8k16):
    @cuda.jit
    def kernel(words, sums):
        tile = cuda.shared.array((1, 32, 8), uint32, 16)
        lane = cuda.threadIdx.x
        for i in range(8):
            tile[0, lane, i] = words[lane, i]
        cuda.syncwarp()
        a = ldmatrix_x4(tile, 0, lane & 15, (lane >> 4) * 4)
        b = ldmatrix_x4(tile, 0, 16 + (lane & 7) + (lane >> 4) * 8, (lane >> 3 & 1) * 4)
        c = mma_m16n8k16(a[0], a[1], a[2], a[3], b[0], b[1], float32(1.0), float32(2.0), float32(3.0), float32(4.0))
        for q in range(4):
            sums[lane, q] = c[q]

    return kernel


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="no CUDA device")
def test_tuned_instructions_do_what_their_stand_ins_do(rng):
    """Small integers: every order of summing gives the same bits."""
    from dsv41_numba.tuned import ptx

    values = as_bf16(rng.integers(-8, 9, (32, 16)).astype(np.float32))
    words = to_device(values.view(np.uint32))
    results = []
    for pair in ((ptx.ldmatrix_x4, ptx.mma_m16n8k16), (emulated.ldmatrix_x4, emulated.mma_m16n8k16)):
        sums = to_device(np.full((32, 4), np.nan, np.float32))
        fragments_kernel(*pair)[1, 32](words, sums)
        results.append(to_host(sums))
    assert same_bits(*results)
    product = values[:16].astype(np.float32) @ values[16:24].astype(np.float32).T
    assert results[0][4 * 3 + 1, 2] == product[3 + 8, 2] + 3  # lane 4 g + t: c2 is row g + 8, column 2 t
