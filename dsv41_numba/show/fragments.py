"""Which lane of a warp holds which element of the tensor core's operands: `mma_m16n8k16`'s fragments.

Nothing is written down here: one warp loads numbered matrices with the package's own `ldmatrix_x4` and multiplies with
its `mma_m16n8k16` (`tuned.emulated`), and the pictures show what arrived where.
"""

import functools
from dataclasses import dataclass

import numpy as np
from numba import cuda, float32, uint32

from dsv41_numba.formats.bf16 import as_bf16
from dsv41_numba.runtime.backend import empty, launch, to_device, to_host
from dsv41_numba.show.svg import Picture
from dsv41_numba.tuned.emulated import ldmatrix_x4, mma_m16n8k16

LANES = 32
M, N, K = 16, 8, 16  # of the instruction

WIDTH, LEFT, TOP, ROW, COLUMN = 640, 72, 104, 26, 68
FILLS = ("pale-blue", "pale-orange", "pale-green", "pale-purple")  # register 0 to 3
WHAT = {  # operand -> rows, columns, in words
    "A": ("x: row m", "columns k of one word"),
    "B": ("weight: row n", "columns k of one word"),
    "C": ("y: row m", "column n"),
}


@cuda.jit
def fragments_kernel(x, weight, a_words, b_words, sums):
    """One warp. x [16, 8] and weight [8, 8] words of two bf16 along K -> what each lane holds: [32, 4] each."""
    x_tile = cuda.shared.array((1, 16, 8), uint32)
    weight_tile = cuda.shared.array((1, 8, 8), uint32)
    lane = cuda.threadIdx.x
    for i in range(lane, 16 * 8, 32):
        x_tile[0, i // 8, i % 8] = x[i // 8, i % 8]
    for i in range(lane, 8 * 8, 32):
        weight_tile[0, i // 8, i % 8] = weight[i // 8, i % 8]
    cuda.syncthreads()  # both tiles are whole before any lane's words come from them
    a = ldmatrix_x4(x_tile, 0, lane % 16, lane // 16 * 4)
    b = ldmatrix_x4(weight_tile, 0, lane % 8, lane // 8 % 2 * 4)  # matrices 2 and 3 are 0 and 1 again
    zero = float32(0.0)
    c = mma_m16n8k16(a[0], a[1], a[2], a[3], b[0], b[1], zero, zero, zero, zero)
    for r in range(4):
        a_words[lane, r], b_words[lane, r], sums[lane, r] = a[r], b[r], c[r]


@dataclass(frozen=True)
class Held:
    """Where one element of an operand is: half 0 is the low half of a word; C's registers hold one number each."""

    lane: int
    register: int
    half: int = 0


@functools.cache
def fragment_maps() -> dict[str, dict[tuple[int, int], Held]]:
    """Operand "A", "B" or "C" -> (row, column) -> where it is. Rows are of x, weight and y, columns are k, k and n."""
    a_words, b_words, _ = _run(np.arange(M * K).reshape(M, K), np.arange(N * K).reshape(N, K))
    maps: dict[str, dict[tuple[int, int], Held]] = {"A": {}, "B": {}, "C": {}}
    for operand, words, registers in (("A", a_words, 4), ("B", b_words, 2)):
        numbers = words.view(np.uint16).reshape(LANES, 4, 2)
        for lane, register, half in np.ndindex(LANES, registers, 2):
            maps[operand][divmod(int(numbers[lane, register, half]), K)] = Held(lane, register, half)
    x, weight = np.zeros((M, K), np.float32), np.zeros((N, K), np.float32)
    x[:, 0], x[:, 1], weight[:, 0], weight[:, 1] = N * np.arange(M), 1, 1, np.arange(N)  # y[m, n] = 8 m + n
    _, _, sums = _run(as_bf16(x).view(np.uint16), as_bf16(weight).view(np.uint16))
    for lane, register in np.ndindex(LANES, 4):
        maps["C"][divmod(int(sums[lane, register]), N)] = Held(lane, register)
    return maps


def _run(x: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    words = [to_device(bits.astype(np.uint16).view(np.uint32)) for bits in (x, weight)]
    held = [empty((LANES, 4), dtype) for dtype in (np.uint32, np.uint32, np.float32)]
    launch(fragments_kernel, 1, LANES, *words, *held)
    a_words, b_words, sums = (to_host(array) for array in held)
    return a_words, b_words, sums


def fragments(operand: str = "A", lane: int = 5) -> Picture:
    """One operand, a box a register: the lane that holds it and the register's name; `lane`'s own are framed."""
    if operand not in WHAT:
        raise ValueError(f"operand: expected one of {', '.join(WHAT)}, got {operand!r}")
    held = fragment_maps()[operand]
    rows_are, columns_are = WHAT[operand]
    wide = 1 if operand == "C" else 2  # elements of a box
    rows, columns = (1 + max(axis) for axis in zip(*held))
    name, registers = operand.lower(), 1 + max(place.register for place in held.values())
    picture = Picture(
        WIDTH,
        TOP + ROW * rows + 20,
        f"{operand} of mma m16n8k16: which lane holds what",
        f"Boxes are registers of {operand}; the number is the lane. Lane {lane} holds "
        + ", ".join(sorted({f"{name}{p.register}" for p in held.values() if p.lane == lane})),
    )
    picture.text(16, 28, f"{operand}: the number is the lane, the colour the register", bold=True, size=15)
    for register in range(registers):
        x: float = 16 + 84 * register
        picture.cell(x, 42, 20, 20, "", FILLS[register])
        picture.text(x + 28, 57, f"{name}{register}", mono=True)
    picture.text(WIDTH - 16, 57, f"framed: lane {lane}", "red", anchor="end")
    picture.text(16, TOP - 22, rows_are, "quiet", 12)
    picture.text(LEFT + COLUMN * columns / wide, TOP - 22, columns_are, "quiet", 12, anchor="end")
    for column in range(0, columns, wide):
        label = column if wide == 1 else f"{column} {column + 1}"
        picture.text(LEFT + COLUMN * (column / wide + 0.5), TOP - 6, label, "quiet", 12, anchor="middle", mono=True)
    framed = []
    for row in range(rows):
        picture.text(LEFT - 12, TOP + ROW * row + 18, row, "quiet", 12, anchor="end", mono=True)
        for column in range(0, columns, wide):
            place = held[row, column]
            x, y = LEFT + COLUMN * column / wide, TOP + ROW * row
            what = f"row {row}, column {column}" + (f" and {column + 1}" if wide == 2 else "")
            tip = f"{what}: lane {place.lane}, {name}{place.register}"
            picture.cell(x, y, COLUMN, ROW, "", FILLS[place.register], tip=tip)
            picture.text(x + 24, y + 18, place.lane, size=14, bold=place.lane == lane, anchor="middle", mono=True)
            picture.text(x + 60, y + 18, f"{name}{place.register}", "quiet", 12, anchor="end", mono=True)
            if place.lane == lane:
                framed.append((x, y))
    for x, y in framed:  # above the boxes beside it
        picture.rect(x + 1, y + 1, COLUMN - 2, ROW - 2, stroke="red", radius=2, thick=2)
    return picture


PICTURES = {"fragments": fragments}
