"""Messages: what went wrong, in which kernel, block and thread, at which line of the source."""

import itertools
import linecache
import re
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numba.core import errors

from dsv41_numba.runtime.emulator import layout as at
from dsv41_numba.runtime.emulator.errors import DivergentBarrier, EmulatorError, OutOfBounds, Race, UninitialisedRead

if TYPE_CHECKING:
    from dsv41_numba.runtime.emulator.launch import Config, Emulated

SHOWN_GROUPS = 8


def coordinates(index: int, sizes: tuple[int, int, int]) -> tuple[int, int, int]:
    """(x, y, z) of a linear index, x running fastest."""
    return index % sizes[0], index // sizes[0] % sizes[1], index // (sizes[0] * sizes[1])


def stopped(emulated: "Emulated", why: int, words: np.ndarray, config: "Config", args: tuple[Any, ...]) -> NoReturn:
    """Raise what the scheduler's answer and the header say."""
    block = coordinates(int(words[at.BLOCK]), config.grid)
    if why in (at.DIVERGENT_WARP, at.PARTLY_ENDED, at.DIFFERENT_BARRIERS):
        _divergent(emulated, why, words, config, block)
    thread = coordinates(int(words[at.THREAD]), config.block)
    where = f"{emulated.name}, block {block}, thread {thread}"
    if why == at.NUMBA_RAISED:
        raise EmulatorError(f"{where}: a run-time error in Numba's own code, such as range() with a step of 0")
    site = emulated.translated.sites[int(words[at.SITE])]
    where = f"{where}, {site.file}:{site.line}"
    detail = [int(x) for x in words[at.DETAIL : at.DETAIL + 10]]
    kind = int(words[at.FAULT])
    if kind == at.FAULT_INDEX:
        count = detail[0]
        index, shape = detail[1 : 1 + count], detail[1 + count : 1 + 2 * count]
        dynamic = " (dynamic shared memory: launch with its size)" if shape == [0] else ""
        shown = ", ".join(map(str, index))
        raise OutOfBounds(f"{where}: `{site.text}`: index [{shown}] is outside {site.array} of shape {shape}{dynamic}")
    if kind == at.FAULT_DIVIDE:
        raise EmulatorError(f"{where}: `{site.text}`: integer division by zero")
    if kind == at.FAULT_LANE:
        raise EmulatorError(
            f"{where}: `{site.text}`: reads lane {detail[0]}, which the block's last warp does not have"
        )
    _race(emulated, kind, detail, where, site.text, words, config, args)


def _race(
    emulated: "Emulated",
    kind: int,
    detail: list[int],
    where: str,
    text: str,
    words: np.ndarray,
    config: "Config",
    args: tuple[Any, ...],
) -> NoReturn:
    region, item, other_block, who, other_site = detail[:5]
    label = element_name(emulated, region, item, words, args)
    if kind == at.FAULT_UNINITIALISED:
        raise UninitialisedRead(
            f"{where}: `{text}`: reads {label} of shared memory, "
            "which no thread of the block has written (missing barrier?)"
        )
    what = {
        at.FAULT_WRITE_WRITE: "writes {}, which {} wrote",
        at.FAULT_READ_WRITE: "reads {}, which {} wrote",
        at.FAULT_WRITE_READ: "writes {}, which {} read",
    }[kind].format(label, _party(int(words[at.BLOCK]), other_block, who, config))
    other = emulated.translated.sites[other_site]
    order = "no barrier between" if other_block == int(words[at.BLOCK]) + 1 else "nothing orders blocks"
    raise Race(f"{where}: race: `{text}` {what} at {other.file}:{other.line} `{other.text}`: {order}")


def _party(block: int, other_block: int, who: int, config: "Config") -> str:
    """Who made the earlier access; histories count blocks from 1."""
    if other_block < 0:
        return "several blocks"
    if who >= 0:
        threads = f"thread {coordinates(who, config.block)}"
    else:
        threads = "several threads" if who == -1 else f"several lanes of warp {-2 - who}"
    return threads if other_block == block + 1 else f"block {coordinates(other_block - 1, config.grid)}, {threads}"


def element_name(emulated: "Emulated", region: int, item: int, words: np.ndarray, args: tuple[Any, ...]) -> str:
    """The source's name and the index of an element that the race check watched."""
    if region == 0:
        shared = [a for a in emulated.translated.arrays.values() if a.is_shared]
        offset = item * min(a.dtype.itemsize for a in shared)
        for array in shared:
            size = int(np.prod(array.shape)) * array.dtype.itemsize
            if array.shape != (0,) and array.offset <= offset < array.offset + size:
                index = np.unravel_index((offset - array.offset) // array.dtype.itemsize, array.shape)
                return f"{array.label}[{', '.join(str(int(i)) for i in index)}]"
        return f"byte {offset - int(words[at.SHARED_BYTES])} of dynamic shared memory"
    arrays = [(n, a) for n, a in zip(emulated.translated.kernel.parameters, args) if isinstance(a, np.ndarray)]
    name, value = arrays[region - 1]
    return f"{name}[{', '.join(str(i) for i in index_at(value, item * value.itemsize))}]"


def index_at(array: np.ndarray, offset: int) -> list[int]:
    """The index of the element that lies `offset` bytes above the array's lowest address, whatever its strides."""
    index = [0] * array.ndim
    for axis in sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis])):
        if array.strides[axis] != 0 and array.shape[axis] > 1:
            step, offset = divmod(offset, abs(array.strides[axis]))
            index[axis] = step if array.strides[axis] > 0 else array.shape[axis] - 1 - step
    return index


def _divergent(emulated: "Emulated", why: int, words: np.ndarray, config: "Config", block: tuple[int, ...]) -> NoReturn:
    warp = int(words[at.THREAD])
    what = {
        at.DIVERGENT_WARP: f"lanes of warp {warp} disagree at a warp operation",
        at.PARTLY_ENDED: "part of the block has ended while other threads wait at a barrier",
        at.DIFFERENT_BARRIERS: "threads of the block wait at different barriers",
    }[why]
    start = (int(words[at.CODES]) - words.ctypes.data) // 8
    codes = words[start : start + config.threads]
    members = range(config.threads) if why != at.DIVERGENT_WARP else range(32 * warp, min(32 * warp + 32, len(codes)))
    lines = []
    for code, group in itertools.groupby(members, key=lambda t: int(codes[t])):
        threads = list(group)
        if code == at.ENDED:
            state = "ended"
        else:
            site = emulated.translated.sites[code // 4]
            state = f"at {site.file}:{site.line} `{site.text}`"
        first, last = coordinates(threads[0], config.block), coordinates(threads[-1], config.block)
        lines.append(f"  thread {first}: {state}" if first == last else f"  threads {first} to {last}: {state}")
    more = [f"  and {len(lines) - SHOWN_GROUPS} more groups"] if len(lines) > SHOWN_GROUPS else []
    raise DivergentBarrier("\n".join([f"{emulated.name}, block {block}: {what}", *lines[:SHOWN_GROUPS], *more]))


def refused(emulated: "Emulated", error: errors.NumbaError) -> EmulatorError:
    """Numba could not compile the translated kernel: its reason, at the line of the kernel that is the cause."""
    message = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    origins = emulated.module.origins
    lines = [int(n) for n in re.findall(rf'{re.escape(emulated.module.function)}[^\n]*?", line (\d+)', message)]
    lines += [int(n) for n in re.findall(rf"{re.escape(emulated.module.function)}[^\n]*?\((\d+)[,)]", message)]
    known = [origins[max(o for o in origins if o <= n)] for n in lines if any(o <= n for o in origins)]
    function = emulated.translated.kernel.function
    file, line = known[0] if known else (function.__code__.co_filename, function.__code__.co_firstlineno)
    specific = re.findall(r"(?:TypingError|TypeError|NumbaTypeError|RequireLiteralValue): ([^\n]+)", message)
    plain = [
        text.strip()
        for text in message.splitlines()
        if text.strip() and not re.match(r"\s*(Failed in|During:|File |There are|- Of which|>>>)", text)
    ]
    reason = (specific or plain or ["unknown"])[0]
    reason = re.sub(r"(?<=\w)_(\d+)?(\.\d+)?\b", "", reason)  # the endings of translated variables' names
    reason = re.sub(r"Literal\[int\]\((-?\d+)\)", r"\1", re.sub(r", defined at <.*", "", reason))
    source = linecache.getline(file, line).strip()
    return EmulatorError(f"{file}:{line}: {emulated.name}: `{source}`: {reason}")
