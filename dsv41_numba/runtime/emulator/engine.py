"""The scheduler and its helpers: ordinary Python here, compiled once for all kernels, called by address.

A thread is a suspended generator: a few bytes of state. `run_blocks` steps through the blocks; in a block it resumes
one thread after the other, each up to its next barrier, warp by warp. What a GPU does at once happens here one after
the other, so nothing needs a lock, and any order of the threads gives the same result unless the kernel has a race.
"""

from typing import Any

from numba import njit

from dsv41_numba.runtime.emulator import layout as at
from dsv41_numba.runtime.emulator.raw import octets, resume, words, words32

VOTE_BALLOT, VOTE_ANY, VOTE_ALL, VOTE_COUNT, VOTE_BLOCK_OR, VOTE_BLOCK_AND = range(6)
SEVERAL_WARPS = -1  # as a reader in a history: threads of more than one warp; -2 - w: several lanes of warp w
SEVERAL_BLOCKS = -1  # as a block in a history

# for functions that the compiled ones call
inlined: Any = njit(_nrt=False, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)  # type: ignore[call-overload]


def run_blocks(address):
    """Run this worker's blocks. Returns 0, or why it stopped; the header says where."""
    h = words(address, at.HEADER_WORDS)
    first, last = h[at.FIRST], h[at.LAST]
    for k in range(last - first):
        b = last - 1 - k if h[at.BACKWARD] else first + k
        h[at.BLOCK] = b
        h[at.BX], h[at.BY], h[at.BZ] = b % h[at.GDX], b // h[at.GDX] % h[at.GDY], b // (h[at.GDX] * h[at.GDY])
        h[at.INTERVAL] += 1
        h[at.FIRST_INTERVAL] = h[at.INTERVAL]
        # fresh memory holds no useful value: NaN in floats, -1 or the largest number in integers
        octets(h[at.SHARED], h[at.SHARED_BYTES] + h[at.DYNAMIC_BYTES])[:] = 0xFF
        octets(h[at.LOCAL], h[at.LOCAL_BYTES] * h[at.THREADS])[:] = 0xFF
        size = h[at.STATE_BYTES]
        for t in range(h[at.THREADS]):
            state = h[at.STATES] + t * size
            words32(state, 1)[0] = 0  # resume at the beginning
            words(state + h[at.STATE_CONTEXT], 1)[0] = h[at.CONTEXT]
            words(state + h[at.STATE_THREAD], 1)[0] = t
        why = run_block(h)
        if why != 0:
            return why
    return 0


@inlined
def run_block(h):
    """Step the threads of one block to their end."""
    n, size, states, step = h[at.THREADS], h[at.STATE_BYTES], h[at.STATES], h[at.STEP]
    codes = words(h[at.CODES], n)
    codes[:] = -1
    warps = (n + 31) // 32
    order = words32(h[at.ORDER], warps * 32)
    while True:
        for w in range(warps):
            warp = -1
            while True:  # until the lanes of this warp have reached a block barrier or their end
                site, meets, waits, ended, same = -1, 0, 0, 0, True
                for k in range(32):
                    t = order[w * 32 + k]
                    if t < 0:
                        continue
                    warp = t // 32
                    code = codes[t]
                    if code != at.ENDED:
                        h[at.THREAD] = t
                        code = resume(step, states + t * size)
                        if code < 0:
                            return at.FAULTED if code == -1 - at.FAULT_RESULT else at.NUMBA_RAISED
                        codes[t] = code
                    if code == at.ENDED:
                        ended += 1
                        continue
                    meets += code & 3 == at.AT_WARP
                    waits += code & 3 == at.AT_BLOCK
                    same = same and (site < 0 or site == code)
                    site = code
                if meets == 0:
                    break
                if waits or not same or (ended and not h[at.ALLOW_EXIT]):
                    h[at.THREAD] = warp
                    return at.DIVERGENT_WARP
                h[at.WARP_INTERVAL + warp] += 1
            h[at.WARP_INTERVAL + warp] += 1
        h[at.INTERVAL] += 1
        site, live, same = -1, 0, True
        for t in range(n):
            if codes[t] != at.ENDED:
                live += 1
                same = same and (site < 0 or site == codes[t])
                site = codes[t]
        if live == 0:
            return 0
        if live < n and not h[at.ALLOW_EXIT]:
            return at.PARTLY_ENDED
        if not same:
            return at.DIFFERENT_BARRIERS


def vote(address, t, what):
    """The outcome of a vote for thread t: every thread of the warp or block has put 0 or 1 into its cell."""
    h = words(address, at.HEADER_WORDS)
    n = h[at.THREADS]
    if what < VOTE_COUNT:
        row, first = (h[at.WARP_INTERVAL + t // 32] - 1) & 1, t // 32 * 32
        last = min(first + 32, n)
    else:
        row, first, last = 2 + ((h[at.INTERVAL] - 1) & 1), 0, n
    cells = words(h[at.EXCHANGE] + row * n * 8, n)
    bits, count = 0, 0
    for k in range(first, last):
        bits |= cells[k] << ((k - first) & 31)
        count += cells[k]
    if what == VOTE_BALLOT:
        return bits
    if what == VOTE_COUNT:
        return count
    if what in (VOTE_ANY, VOTE_BLOCK_OR):
        return 1 if count > 0 else 0
    return 1 if count == last - first else 0


def note(address, element, kind, t, site):
    """The race check of one access: compare it with the element's history, then write it there. 1 when it is a race."""
    h = words(address, at.HEADER_WORDS)
    regions = words(h[at.REGIONS], h[at.REGION_COUNT] * at.REGION_WORDS)
    for r in range(h[at.REGION_COUNT]):
        start, end = regions[r * at.REGION_WORDS], regions[r * at.REGION_WORDS + 1]
        if start <= element < end:
            i = (element - start) // regions[r * at.REGION_WORDS + 2]
            row = words32(h[at.SHADOW] + (regions[r * at.REGION_WORDS + 3] + i) * (at.ROW * 4), at.ROW)
            return _history(h, row, regions[r * at.REGION_WORDS + 4] == 1, kind, t, site, r, i)
    return 0  # local memory and constants


def count(address, element, kind, t, site):
    """In the place of `note`: add one access to thread t's number if the element is an argument's. Never a fault."""
    h = words(address, at.HEADER_WORDS)
    regions = words(h[at.REGIONS], h[at.REGION_COUNT] * at.REGION_WORDS)
    for r in range(1, h[at.REGION_COUNT]):  # 0 is shared memory
        if regions[r * at.REGION_WORDS] <= element < regions[r * at.REGION_WORDS + 1]:
            words(h[at.SHADOW], (h[at.BLOCK] + 1) * h[at.THREADS] * at.KINDS)[
                (h[at.BLOCK] * h[at.THREADS] + t) * at.KINDS + kind
            ] += 1
            return 0
    return 0


@inlined
def _history(h, row, is_shared, kind, t, site, region, i):
    block, interval, meeting = h[at.BLOCK] + 1, h[at.INTERVAL], h[at.WARP_INTERVAL + t // 32]
    if is_shared:  # another block's use of this memory is no use of this block's
        if row[at.ROW_BLOCK] != block:
            row[at.ROW_BLOCK] = 0
        if row[at.ROW_READ + at.ROW_BLOCK] != block:
            row[at.ROW_READ + at.ROW_BLOCK] = 0
        if kind != at.WRITE and row[at.ROW_BLOCK] == 0:
            return _fault(h, at.FAULT_UNINITIALISED, site, region, i, row, 0)
    both_atomic = kind == at.ATOMIC and row[at.ROW_ATOMIC] == 1
    if not both_atomic and _clash(row, 0, block, interval, meeting, t):
        return _fault(h, at.FAULT_READ_WRITE if kind == at.READ else at.FAULT_WRITE_WRITE, site, region, i, row, 0)
    if kind != at.READ:
        if _clash(row, at.ROW_READ, block, interval, meeting, t):
            return _fault(h, at.FAULT_WRITE_READ, site, region, i, row, at.ROW_READ)
        _remember(row, 0, block, interval, meeting, t, site, both_atomic)
        row[at.ROW_ATOMIC] = 1 if kind == at.ATOMIC else 0
    else:
        _remember(row, at.ROW_READ, block, interval, meeting, t, site, True)
    return 0


@inlined
def _clash(row, part, block, interval, meeting, t):
    """Whether the remembered access is another thread's and no barrier lies between it and now."""
    if row[part + at.ROW_BLOCK] == 0:
        return False
    if row[part + at.ROW_BLOCK] != block:
        return True
    who = row[part + at.ROW_WHO]
    if row[part + at.ROW_INTERVAL] != interval or who == t:
        return False
    warp = who // 32 if who >= 0 else -2 - who
    return who == SEVERAL_WARPS or warp != t // 32 or row[part + at.ROW_WARP_INTERVAL] == meeting


@inlined
def _remember(row, part, block, interval, meeting, t, site, add):
    """Write an access into a history; with `add` it joins those of the same interval, else it replaces them.

    It also replaces those of its own warp that a meeting of the warp lies behind: for this warp they are in order, and
    for the others one thread of it stands for all.
    """
    who, of = t, block
    before = row[part + at.ROW_BLOCK]
    if add and before != 0:
        if before != block:
            of = SEVERAL_BLOCKS
        elif row[part + at.ROW_INTERVAL] == interval and row[part + at.ROW_WHO] != t:
            who = row[part + at.ROW_WHO]
            warp = who // 32 if who >= 0 else -2 - who
            if who == SEVERAL_WARPS or warp != t // 32:
                who = SEVERAL_WARPS
            else:
                who = -2 - t // 32 if row[part + at.ROW_WARP_INTERVAL] == meeting else t
    row[part + at.ROW_BLOCK], row[part + at.ROW_INTERVAL], row[part + at.ROW_WHO] = of, interval, who
    row[part + at.ROW_WARP_INTERVAL], row[part + at.ROW_SITE] = meeting, site


@inlined
def _fault(h, kind, site, region, i, row, part):
    h[at.FAULT], h[at.SITE] = kind, site
    h[at.DETAIL], h[at.DETAIL + 1] = region, i
    h[at.DETAIL + 2], h[at.DETAIL + 3], h[at.DETAIL + 4] = (
        row[part + at.ROW_BLOCK],
        row[part + at.ROW_WHO],
        row[part + at.ROW_SITE],
    )
    return 1
