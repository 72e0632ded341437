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

    Each query's window, then `topk` as it is.
    """
    slots = prefill_slots(window, T) if start_pos == 0 else ring_slots(window, start_pos, T)
    columns = [slots] if topk is None else [slots, topk]
    return np.ascontiguousarray(np.concatenate(columns, axis=1), np.int32)


def prefill_slots(window: int, T: int) -> np.ndarray:
    """Each query's own window among this call's T rows, oldest first, -1 after the newest -> [T, min(T, window)]."""
    newest = np.arange(T)[:, None]
    slots = np.maximum(newest - window + 1, 0) + np.arange(min(T, window))
    return np.where(slots > newest, -1, slots)


def ring_slots(window: int, start_pos: int, T: int) -> np.ndarray:
    """The ring's slots, oldest first, -1 for positions before the first -> [T, window].

    One token finds its own row in the ring. Of a chunk the ring has the rows before it; its own rows stand behind them.
    """
    position = start_pos + np.arange(T)[:, None] - window + 1 + np.arange(window)
    slots = np.where(position < 0, -1, position % window)
    if T > 1:
        slots = np.where(position < start_pos, slots, window + position - start_pos)
    return slots


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
