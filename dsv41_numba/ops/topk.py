"""Top-k and candidate blocks: which compressed positions a query attends to. On the host, exact to the set.

Math       keep the k best scores of each row, "NaN first, then greater"; of equal scores at the cut keep those that
           torch's CPU top-k (unsorted) keeps. Its order of work decides, not the index:
             k * 64 > G   nth_element of the GNU C++ library (introselect), the first k entries
             otherwise    its partial_sort: a heap of k
           candidate blocks: the same rule on block maxima, the block of the last reachable position always first
Shapes     topk             score [T, G] f32, k -> [T, min(k, G)] i32: ascending, -1 at the end where a row has fewer
                            than k reachable scores (a score of -inf is not reachable)
           candidate_blocks score [T, G] f32, lens [T] ints (reachable positions of each row) -> [T, G] u8, 1 = keep
           select           score, k, candidates [T, G] u8 or None, offset -> as topk, each position plus offset
Precision  no arithmetic, only comparisons
Launch     none: NumPy settles every row whose set is unique; rows with a tie across the cut run the algorithms below
Moves      4 T G bytes of scores in, 4 T k bytes out
Errors     ValueError when an array's dtype, shape or layout is not as above, a count is below 1, or lens leaves [0, G]
Source     step 8 of the layer; the tie order is that of PyTorch 2.13 on a CPU
"""

import functools
from collections.abc import Callable, MutableSequence, Sequence
from typing import Any

import numba
import numpy as np
from numba.extending import register_jitable

from dsv41_numba.ops.checks import check_array, check_count

HEAP_FACTOR = 64  # a heap of k where k * 64 <= n: cheap as long as k is small beside n
SMALL_RANGE = 3  # introselect sorts a range of at most this many entries
# Up to this many tied scores in a call plain Python takes a millisecond; loading the compiled code takes hundreds.
PYTHON_ENTRIES = 4096


# The two algorithms, over `order`, a permutation of the indices of `values`. Both bring the chosen k to order[:k].
# They are plain Python; `register_jitable` also lets compiled code call them, and compiles nothing by itself.


@register_jitable
def goes_before(a, b):
    """Whether score `a` must be kept sooner than `b`: NaN first, then the greater. Of equal scores neither does."""
    return a > b or (a != a and b == b)


@register_jitable
def settle(values, order, first, count, hole, index):
    """Put `index` into the heap order[first : first + count] whose place `hole` (counted from `first`) is free.

    No entry of the heap goes before its children, so the root is the weakest of all. The hole first sinks to a leaf,
    weaker child after weaker child, and `index` then climbs from there. Climbing from the bottom takes fewer
    comparisons than stopping on the way down, and on equal scores it ends elsewhere: part of the tie order.
    """
    start = hole
    child = 2 * hole + 2  # the right one
    while child < count:
        if goes_before(values[order[first + child]], values[order[first + child - 1]]):
            child -= 1  # the left one is weaker; of two equals the right one moves up
        order[first + hole] = order[first + child]
        hole = child
        child = 2 * hole + 2
    if child == count:  # the last parent of an even heap has a left child only
        order[first + hole] = order[first + child - 1]
        hole = child - 1
    while hole > start:
        parent = (hole - 1) // 2
        if not goes_before(values[order[first + parent]], values[index]):
            break
        order[first + hole] = order[first + parent]
        hole = parent
    order[first + hole] = index


@register_jitable
def heap_select(values, order, first, middle, last):
    """Bring the best of order[first:last] to order[first:middle]: a heap whose root is the next one to be dropped."""
    count = middle - first
    for hole in range(count // 2 - 1, -1, -1):  # from the last parent up to the root
        settle(values, order, first, count, hole, order[first + hole])
    for i in range(middle, last):
        if goes_before(values[order[i]], values[order[first]]):  # an equal newcomer does not replace the root
            newcomer = order[i]
            order[i] = order[first]
            settle(values, order, first, count, 0, newcomer)


@register_jitable
def median_place(values, order, a, b, c):
    """Which of the places a, b, c holds the median. Of equal scores the one that these comparisons meet."""
    if goes_before(values[order[a]], values[order[b]]):
        if goes_before(values[order[b]], values[order[c]]):
            return b
        return c if goes_before(values[order[a]], values[order[c]]) else a
    if goes_before(values[order[a]], values[order[c]]):
        return a
    return c if goes_before(values[order[b]], values[order[c]]) else b


@register_jitable
def partition(values, order, first, last):
    """Split order[first:last] around a pivot and return the place of the split.

    What goes before the pivot ends left of the split, what goes after it right of it. Both scans stop at scores equal
    to the pivot and exchange them: plateaus are cut in the middle, and equal scores change sides.
    """
    pivot = median_place(values, order, first + 1, first + (last - first) // 2, last - 1)
    order[first], order[pivot] = order[pivot], order[first]  # out of the way of the scans
    pivot_value = values[order[first]]
    left, right = first + 1, last
    while True:
        while goes_before(values[order[left]], pivot_value):  # no bounds check: the median stops both scans in time
            left += 1
        right -= 1
        while goes_before(pivot_value, values[order[right]]):
            right -= 1
        if left >= right:
            return left
        order[left], order[right] = order[right], order[left]
        left += 1


@register_jitable
def introselect(values, order, k):
    """Bring the best k to order[:k]: quickselect, with a heap when too many splits were bad."""
    first, last = 0, len(order)
    splits_left = 0  # 2 * floor(log2(n)): good splits halve the range and need half as many
    n = last
    while n > 1:
        n //= 2
        splits_left += 2
    while last - first > SMALL_RANGE:
        if splits_left == 0:
            heap_select(values, order, first, k, last)
            return
        splits_left -= 1
        split = partition(values, order, first, last)
        if split < k:  # place k - 1, the last one to keep, is right of the split
            first = split
        else:
            last = split
    for i in range(first + 1, last):  # insertion sort: equal scores stay as they stand
        index = order[i]
        place = i
        while place > first and goes_before(values[index], values[order[place - 1]]):
            order[place] = order[place - 1]
            place -= 1
        order[place] = index


def choose(values: Sequence[Any], order: MutableSequence[int], k: int) -> None:
    """Bring the k indices that torch's CPU top-k chooses from `values` to order[:k], in no particular order.

    `order` is 0, 1, ..., n - 1 when it comes in; 1 <= k <= n. Lists and arrays will do.
    """
    if k * HEAP_FACTOR > len(order):
        introselect(values, order, k)
    else:
        heap_select(values, order, 0, k, len(order))


@functools.cache
def compiled_choose() -> Callable[..., None]:
    """`choose` as machine code for f32 and i32 arrays, made on first use and then kept on disk."""
    try:
        return numba.njit(cache=True)(choose)
    except RuntimeError:  # neither the package's folder nor a home folder can be written: compile once a process
        return numba.njit(choose)


def chosen_mask(score: np.ndarray, k: int) -> np.ndarray:
    """score [T, G] f32, 1 <= k <= G -> [T, G] bool: the best k of each row, less those at -inf."""
    G = score.shape[1]
    cut = np.partition(score, G - k, axis=1)[:, G - k, None]  # [T, 1], the k-th best; NumPy too sorts NaN as largest
    chosen = (score >= cut) | np.isnan(score)
    # More than k at or above the cut: a tie straddles it. At -inf it does not matter, none of those is kept.
    straddles = (np.count_nonzero(chosen, axis=1) > k) & (cut[:, 0] != -np.inf)
    rows = np.flatnonzero(straddles)
    small = len(rows) * G <= PYTHON_ENTRIES
    for t in rows:
        chosen[t] = False
        if small:
            indices = list(range(G))
            choose(score[t].tolist(), indices, k)
            chosen[t, indices[:k]] = True
        else:
            order = np.arange(G, dtype=np.int32)
            compiled_choose()(score[t].copy(), order, k)  # a copy can always be written: one type, compiled once
            chosen[t, order[:k]] = True
    chosen &= score != -np.inf
    return chosen


def topk(score: np.ndarray, k: int) -> np.ndarray:
    """score [T, G] f32, -inf where not reachable -> [T, min(k, G)] i32: the set ascending, then -1."""
    _check_host("score", score, np.float32, (None, None))
    check_count("k", k)
    T, G = score.shape
    k = min(int(k), G)
    picked = np.full((T, k), -1, np.int32)
    if picked.size > 0:
        chosen = chosen_mask(score, k)
        reachable = np.count_nonzero(chosen, axis=1)
        # Both sides run row by row, left to right, so each row gets its own indices in ascending order.
        picked[np.arange(k) < reachable[:, None]] = np.nonzero(chosen)[1]
    return picked


def candidate_blocks(score: np.ndarray, lens: np.ndarray, topk_blocks: int, block_size: int) -> np.ndarray:
    """The positions that later index sources may still choose from, in whole blocks.

    score [T, G] f32, -inf from lens[t] on; lens [T] ints -> [T, G] u8. A block counts as its largest score. The block
    that holds position lens[t] - 1 counts as +inf, so that the newest positions stay; it is one of the topk_blocks.
    A row with lens 0 keeps nothing. A kept block is kept whole, with positions that are not reachable yet; the last
    block ends at G.
    """
    _check_host("score", score, np.float32, (None, None))
    T, G = score.shape
    _check_host("lens", lens, None, (T,))
    check_count("topk_blocks", topk_blocks)
    check_count("block_size", block_size)
    outside = np.flatnonzero((lens < 0) | (lens > G))
    if len(outside) > 0:
        t = outside[0]
        raise ValueError(f"lens: expected reachable positions from 0 to {G}, got {lens[t]} in row {t}")
    if score.size == 0:
        return np.zeros((T, G), np.uint8)
    block_max = np.maximum.reduceat(score, np.arange(0, G, block_size), axis=1)  # a NaN stays; no padding at the end
    some = np.flatnonzero(lens > 0)
    block_max[some, (lens[some] - 1) // block_size] = np.inf
    kept = chosen_mask(block_max, min(int(topk_blocks), block_max.shape[1]))
    kept[lens == 0] = False
    return np.repeat(kept, block_size, axis=1)[:, :G].astype(np.uint8)


def select(score: np.ndarray, k: int, candidates: np.ndarray | None = None, offset: int = 0) -> np.ndarray:
    """`topk` among the candidates: score [T, G] f32, candidates [T, G] u8 or None for all -> [T, min(k, G)] i32.

    `offset` rows stand before the compressed ones where the selection is used; -1 stays -1.
    """
    if candidates is not None:
        _check_host("score", score, np.float32, (None, None))
        _check_host("candidates", candidates, np.uint8, score.shape)
        score = np.where(candidates != 0, score, np.float32(-np.inf))
    return shifted(topk(score, k), offset)


def shifted(chosen: np.ndarray, offset: int) -> np.ndarray:
    """chosen [T, k] i32 plus offset; nothing, which is -1, stays nothing."""
    return np.where(chosen < 0, -1, chosen + offset).astype(np.int32)


def _check_host(name: str, array: Any, dtype: Any, shape: tuple[int | None, ...]) -> None:
    """`check_array` for arrays that must be NumPy's. dtype None: any integers."""
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{name}: expected a NumPy array, got {type(array).__name__}")
    if dtype is None and array.dtype.kind not in "iu":
        raise ValueError(f"{name}: expected integers, got {array.dtype}")
    check_array(name, array, array.dtype if dtype is None else dtype, shape)


if __name__ == "__main__":
    scores = np.array([[0, -1, 0, 0, 5, 0], [2, -np.inf, 1, -np.inf, -np.inf, -np.inf]], np.float32)
    print(topk(scores, 3))  # a plateau of zeros at the cut: 3 and 5 go with 4; the second row has two scores only
    print(candidate_blocks(scores, np.array([6, 3]), topk_blocks=1, block_size=2))
