"""Gather list: which rows each query reads, window first, then the selection. On the host.

Math       idx[t] = the window of query t, oldest first, then topk[t]; -1 = an empty slot
Shapes     gather_list   window, start_pos, T ints, topk [T, k] i32 or None -> idx [T, S] i32
           without_gaps  idx [T, S] i32 -> [T, S] i32
Precision  indices only
Launch     none
Moves      4 T k bytes in, 4 T S out
Errors     none: the layer has checked the call
Source     step 10 of the layer
"""

import numpy as np


def gather_list(window: int, start_pos: int, T: int, topk: np.ndarray | None) -> np.ndarray:
    """window, start_pos, T ints, topk [T, k] int32 as step 8 publishes it or None -> idx [T, S] int32.

    Prefill: columns 0..min(T, window)-1 are the query's own window among this call's T rows, oldest first, -1 after the
    newest. Decode: the ring's slots, oldest first, -1 for positions before the first. A chunk: as decode, each position
    of this call at its row behind the ring's. Then `topk` as it is.
    """
    if start_pos == 0:
        newest = np.arange(T)[:, None]
        slots = np.maximum(newest - window + 1, 0) + np.arange(min(T, window))
        slots = np.where(slots > newest, -1, slots)
    else:
        position = start_pos + np.arange(T)[:, None] - window + 1 + np.arange(window)
        slots = np.where(position < 0, -1, position % window)
        if T > 1:
            slots = np.where(position < start_pos, slots, window + position - start_pos)
    columns = [slots] if topk is None else [slots, topk]
    return np.ascontiguousarray(np.concatenate(columns, axis=1), np.int32)


def without_gaps(idx: np.ndarray) -> np.ndarray:
    """idx [T, S] int32 with each row's -1 moved behind its other entries, which stay in order.

    Where the empty slots stand depends on how the prompt was cut into calls, and with it the order of the attention's
    sums. Behind the others they add nothing to any of them, so that the same rows give the same bits.
    """
    empty = idx < 0
    if not empty.any():
        return idx
    return np.take_along_axis(idx, np.argsort(empty, axis=1, kind="stable"), axis=1)


if __name__ == "__main__":
    print(gather_list(4, 0, 6, np.array([[6, -1]] * 6)))
    print(without_gaps(gather_list(4, 2, 1, None)), "a ring of 4 slots at position 2")
