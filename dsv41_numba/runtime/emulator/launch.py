"""emulate(kernel)[grid, block](*args): check the launch, pack the arguments, run the blocks.

A launch of a kernel whose argument types were seen before does little: it lists the arguments' addresses and sizes,
packs them into the context, copies some words into the header of a workspace that is kept, and calls the scheduler. A
launch that takes long enough is split over all cores.
"""

import contextlib
import ctypes
import functools
import itertools
import os
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numba.core import errors, types
from numba.np.numpy_support import from_dtype

from dsv41_numba.runtime.emulator import cache, native, report
from dsv41_numba.runtime.emulator import layout as at
from dsv41_numba.runtime.emulator.errors import EmulatorError
from dsv41_numba.runtime.emulator.module import assemble
from dsv41_numba.runtime.emulator.scope import python_function
from dsv41_numba.runtime.emulator.translate import SHARED_LIMIT_BYTES, Translator

ORDERS = ("forward", "reverse", "shuffle")
WORTH_SPLITTING_NS = 400_000  # a launch shorter than this runs on one core: handing work to others costs some 50 us
PIECES_PER_WORKER = 4  # so that a worker with cheap blocks takes over from one with dear ones
SCALARS: dict[type, tuple[str, Any]] = {  # how a number is packed, and its Numba type
    bool: ("?", types.boolean),
    int: ("q", types.int64),
    float: ("d", types.float64),
    np.bool_: ("?", types.boolean),
    np.float32: ("f", types.float32),
    np.float64: ("d", types.float64),
    **{getattr(np, f"int{n}"): (c, getattr(types, f"int{n}")) for n, c in zip((8, 16, 32, 64), "bhiq")},
    **{getattr(np, f"uint{n}"): (c, getattr(types, f"uint{n}")) for n, c in zip((8, 16, 32, 64), "BHIQ")},
}
C_CONTIGUOUS, ALIGNED, WRITEABLE = 0x1, 0x100, 0x400  # bits of numpy.ndarray.flags.num


@dataclass(frozen=True)
class Config:
    """A checked launch configuration; `words` are those of the header from BDX on."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_bytes: int
    blocks: int
    threads: int
    words: np.ndarray


@dataclass
class Workspace:
    """One worker's memory for one block size: the header with everything after it, and the context."""

    words: np.ndarray
    context: Any
    address: int


@dataclass
class Compiled:
    """The code for one combination of argument types."""

    code: native.Native
    pack: struct.Struct
    spaces: dict[tuple[int, int], list[Workspace]] = field(default_factory=dict)
    ns_per_thread: float = 0.0  # as measured last; 0 before the first launch


@functools.cache
def _scheduler() -> Callable[[int], int]:
    """The compiled `engine.run_blocks`. ctypes lets go of the interpreter's lock, so workers run side by side."""
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(native.engine_function("run_blocks"))


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, "emulator")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork


class Emulated:
    """A kernel made ready: `emulated[grid, block](*args)`.

    Options: `boundscheck` (on) checks every index; `racecheck` watches every access to shared memory and to the array
    arguments, at about 20 times the cost; `count` counts the accesses to the array arguments instead: after a launch
    `counts` has a row for each thread and a column for each kind; `order` "forward", "reverse" or "shuffle" (with
    `seed`) is that of the threads; `workers` is the number of cores, by default as many as pay; `allow_exit` lets
    threads end while others of their block wait at a barrier.
    """

    def __init__(
        self,
        kernel: Any,
        boundscheck: bool = True,
        racecheck: bool = False,
        count: bool = False,
        order: str = "forward",
        workers: int | None = None,
        allow_exit: bool = False,
        seed: int = 0,
    ):
        if order not in ORDERS:
            raise EmulatorError(f"order: expected one of {', '.join(ORDERS)}, got {order!r}")
        if racecheck and count:
            raise EmulatorError("racecheck and count: expected one of them, got both")
        function = python_function(kernel)
        self.name = function.__name__
        self.watches, self.racecheck = racecheck or count, racecheck
        self.counts = np.zeros((0, at.KINDS), np.int64)
        self.order, self.allow_exit, self.seed = order, allow_exit, seed
        self.translated = Translator(function, getattr(kernel, "dropped_barrier", None))
        # one thread at a time makes atomics and histories simple, and keeps the order of float additions the same
        alone = self.watches or order != "forward" or self.translated.uses_atomics
        self.workers = 1 if alone else workers or available_cores()
        self.always_split = workers is not None
        self.module = assemble(self.translated, boundscheck, self.watches)
        self.configs: dict[Any, Config] = {}
        self.compiled: dict[tuple[Any, ...], Compiled] = {}

    def __getitem__(self, config: Any) -> Callable[..., None]:
        return functools.partial(self.launch, config)

    def launch(self, config: Any, *args: Any) -> None:
        """Run kernel[grid, block, stream, dynamic shared bytes](*args); the stream is ignored."""
        try:
            checked = self.configs.get(config) or self.configs.setdefault(config, self.check(config))
        except TypeError:  # a list
            checked = self.check(config)
        kinds: list[Any] = []
        values: list[Any] = []
        for a in args:
            if isinstance(a, np.ndarray):
                kinds.append((a.dtype, a.ndim, a.flags.num & (C_CONTIGUOUS | ALIGNED | WRITEABLE)))
                values += (0, 0, a.size, a.itemsize, a.ctypes.data, *a.shape, *a.strides)
            else:
                kinds.append(type(a))
                values.append(a)
        key = tuple(kinds)
        compiled = self.compiled.get(key) or self.compile(key)
        if self.watches:
            self.run(compiled, checked, values, 0, checked.blocks, args)
            return
        began, first = time.perf_counter_ns(), 0
        if self.workers > 1 and checked.blocks > 1:
            if compiled.ns_per_thread == 0.0:  # the first block shows what a thread costs
                self.run(compiled, checked, values, 0, 1, args)
                first, now = 1, time.perf_counter_ns()
                compiled.ns_per_thread = (now - began) / checked.threads
            cost = compiled.ns_per_thread * checked.threads * (checked.blocks - first)
            if self.always_split or cost > WORTH_SPLITTING_NS:
                self.split(compiled, checked, values, first, args)
                # an upper bound, since it holds the pool's own time too: never a reason to split the next launch
                spent = (time.perf_counter_ns() - began) * self.workers / (checked.threads * checked.blocks)
                compiled.ns_per_thread = min(compiled.ns_per_thread, spent)
                return
        self.run(compiled, checked, values, first, checked.blocks, args)
        compiled.ns_per_thread = (time.perf_counter_ns() - began) / (checked.threads * checked.blocks)

    def split(self, compiled: Compiled, config: Config, values: list[Any], first: int, args: tuple[Any, ...]) -> None:
        """Run the blocks from `first` on on all workers; of several faults the one in the lowest blocks is raised."""
        blocks = config.blocks - first
        pieces = min(blocks, self.workers * PIECES_PER_WORKER)
        edges = [first + blocks * i // pieces for i in range(pieces + 1)]
        work = [
            _pool(self.workers).submit(self.run, compiled, config, values, a, b, args)
            for a, b in itertools.pairwise(edges)
        ]
        failures = [w.exception() for w in work]
        for failure in failures:
            if failure is not None:
                raise failure

    def run(
        self, compiled: Compiled, config: Config, values: list[Any], first: int, last: int, args: tuple[Any, ...]
    ) -> None:
        """Run some of the blocks here."""
        free = compiled.spaces.setdefault((config.threads, config.dynamic_bytes), [])
        space = free.pop() if free else self.workspace(compiled, config)
        words = space.words
        words[at.BDX : at.BDX + len(config.words)] = config.words
        words[at.FIRST], words[at.LAST] = first, last
        try:
            compiled.pack.pack_into(space.context, 0, *values, space.address)
        except struct.error as error:
            raise EmulatorError(f"{self.name}: {error}") from None
        history = self.watch(words, config, args) if self.watches else None
        why = _scheduler()(space.address)
        if why != 0:
            report.stopped(self, why, words, config, args)
        del history
        free.append(space)

    # -- what is done once --------------------------------------------------------------------------------------------
    def check(self, config: Any) -> Config:
        """A launch configuration within CUDA's limits."""
        try:
            grid, block = (tuple(int(n) for n in (d if hasattr(d, "__len__") else (d,))) for d in config[:2])
        except (TypeError, ValueError):
            raise EmulatorError(f"{self.name}: expected [grid, block], got {config!r}") from None
        dynamic = int(config[3]) if len(config) > 3 else 0
        if not (1 <= len(grid) <= 3 and 1 <= len(block) <= 3):
            raise EmulatorError(f"{self.name}: expected 1 to 3 sizes, got grid {grid}, block {block}")
        gx, gy, gz = (*grid, 1, 1)[:3]
        bx, by, bz = (*block, 1, 1)[:3]
        threads = bx * by * bz
        if not (min(bx, by, bz) >= 1 and max(bx, by) <= 1024 and bz <= 64 and threads <= 1024):
            raise EmulatorError(f"{self.name}: block {block} exceeds CUDA's limits of 1024 x 1024 x 64, 1024 in all")
        if not (min(gx, gy, gz) >= 1 and gx < 2**31 and max(gy, gz) <= 65535):
            raise EmulatorError(f"{self.name}: grid {grid} exceeds CUDA's limits of 1 to 2^31 - 1, 65535, 65535")
        shared = self.translated.shared_bytes
        if dynamic < 0 or shared + dynamic > SHARED_LIMIT_BYTES:
            raise EmulatorError(
                f"{self.name}: {shared} bytes of static and {dynamic} of dynamic shared memory; "
                f"CUDA allows {SHARED_LIMIT_BYTES} together"
            )
        blocks = gx * gy * gz
        backward = int(self.order == "reverse")
        words = [bx, by, bz, gx, gy, gz, threads, 0, blocks, backward, int(self.allow_exit), dynamic]
        return Config((gx, gy, gz), (bx, by, bz), dynamic, blocks, threads, np.array(words, np.int64))

    def compile(self, key: tuple[Any, ...]) -> Compiled:
        """The code for some argument types, from memory, from disk, or made now."""
        parameters = self.translated.kernel.parameters
        if len(key) != len(parameters):
            raise EmulatorError(
                f"{self.name} takes {len(parameters)} arguments ({', '.join(parameters)}), got {len(key)}"
            )
        form, kinds = "@", list[Any]()
        for parameter, kind in zip(parameters, key):
            packed, numba_type = self.argument(parameter, kind)
            form += packed
            kinds.append(numba_type)
        arguments = (*kinds, types.CPointer(types.int64))
        for other in self.compiled.values():
            if other.code.argument_types == arguments:
                code = other.code
                break
        else:
            code_key = cache.key_of(self.module.text, repr(arguments))
            try:
                code = native.kernel(self.name, code_key, self.module, arguments)
            except errors.NumbaError as error:
                raise report.refused(self, error) from None
        self.compiled[key] = Compiled(code, struct.Struct(form + "P"))
        return self.compiled[key]

    def argument(self, parameter: str, kind: Any) -> tuple[str, Any]:
        """How an argument is packed, and its Numba type."""
        if not isinstance(kind, tuple):
            if kind not in SCALARS:
                raise EmulatorError(
                    f"{self.name}: {parameter}: expected a NumPy array or a number, got {kind.__name__}"
                )
            return SCALARS[kind]
        dtype, ndim, flags = kind
        written = self.translated.written
        if not flags & WRITEABLE and (f"{parameter}_" in written or "?" in written):
            raise EmulatorError(f"{self.name}: {parameter} is a read-only array, and the kernel may write to it")
        item: Any = None
        with contextlib.suppress(errors.NumbaError):
            item = from_dtype(dtype)
        if not isinstance(item, (types.Number, types.Boolean)):
            hint = " (pass bf16 as uint16 bits)" if dtype.name == "bfloat16" else ""
            raise EmulatorError(f"{self.name}: {parameter}: arrays of {dtype} are not supported{hint}")
        order: Any = "C" if flags & C_CONTIGUOUS else "A"
        return "PPqqP" + "q" * (2 * ndim), types.Array(item, ndim, order, aligned=bool(flags & ALIGNED))

    def workspace(self, compiled: Compiled, config: Config) -> Workspace:
        """A new workspace for blocks of this size."""
        n, code = config.threads, compiled.code
        sizes = {
            at.EXCHANGE: 4 * n * 8,
            at.CODES: n * 8,
            at.ORDER: -(-n // 32) * 32 * 4,
            at.STATES: n * code.state_bytes,
            at.SHARED: self.translated.shared_bytes + config.dynamic_bytes + 16,
            at.LOCAL: n * -(-self.translated.local_bytes // 16) * 16,
        }
        offset, offsets = at.HEADER_WORDS * 8, {}
        for part, size in sizes.items():
            offset = -(-offset // 64) * 64
            offsets[part] = offset
            offset += size
        words = np.zeros(offset // 8 + 9, np.int64)
        words = words[-words.ctypes.data % 64 // 8 :]  # shared and local arrays stand at multiples of 16 bytes
        address = words.ctypes.data
        for part, offset in offsets.items():
            words[part] = address + offset
        context = ctypes.create_string_buffer(compiled.pack.size)
        words[at.STATE_BYTES], words[at.STATE_CONTEXT] = code.state_bytes, code.context_offset
        words[at.STATE_THREAD], words[at.STEP] = code.thread_offset, code.address
        words[at.CONTEXT] = ctypes.addressof(context)
        words[at.SHARED_BYTES] = -(-self.translated.shared_bytes // 16) * 16
        words[at.LOCAL_BYTES] = -(-self.translated.local_bytes // 16) * 16
        if self.translated.uses_votes:
            words[at.VOTE] = native.engine_function("vote")
        if self.watches:
            words[at.NOTE] = native.engine_function("note" if self.racecheck else "count")
        order = words[(offsets[at.ORDER] // 8) :].view(np.int32)[: -(-n // 32) * 32]
        order[:] = self.permutation(n).reshape(-1)
        return Workspace(words, context, address)

    def permutation(self, n: int) -> np.ndarray:
        """The order in which threads run: one row per warp, -1 where the last warp has no lane."""
        order = np.arange(-(-n // 32) * 32, dtype=np.int32).reshape(-1, 32)
        order[order >= n] = -1
        if self.order == "reverse":
            order = order[::-1, ::-1]
        elif self.order == "shuffle":
            rng = np.random.default_rng(self.seed)
            order = rng.permuted(rng.permutation(order), axis=1)
        return order

    def watch(self, words: np.ndarray, config: Config, args: tuple[Any, ...]) -> list[np.ndarray]:
        """Set up the race check or the counting: the regions that are watched, shared memory first, and an empty
        history of each or a 0 for each thread."""
        shared = [a for a in self.translated.arrays.values() if a.is_shared]
        item = min((a.dtype.itemsize for a in shared), default=16)
        start = int(words[at.SHARED])
        bounds = [(start, start + int(words[at.SHARED_BYTES] + words[at.DYNAMIC_BYTES]), item)]
        bounds += [extent(a) for a in args if isinstance(a, np.ndarray)]
        regions, rows = [], 0
        for i, (low, high, item) in enumerate(bounds):
            regions.append((low, high, item, rows, int(i == 0)))
            rows += -(-(high - low) // item)
        table = np.array(regions, np.int64)
        try:
            if self.racecheck:
                history: np.ndarray = np.zeros(rows * at.ROW, np.int32)
            else:
                history = self.counts = np.zeros((config.blocks * config.threads, at.KINDS), np.int64)
        except MemoryError:
            what = f"the race check's history of {rows} elements" if self.racecheck else "counting"
            raise EmulatorError(f"{self.name}: no memory for {what}") from None
        words[at.REGIONS], words[at.REGION_COUNT], words[at.SHADOW] = table.ctypes.data, len(table), history.ctypes.data
        return [table, history]


def extent(array: np.ndarray) -> tuple[int, int, int]:
    """The first address, the end address and the item size of an array, whatever its strides."""
    if array.size == 0:
        return 0, 0, 1
    steps = [(n - 1) * s for n, s in zip(array.shape, array.strides)]
    low = array.ctypes.data + sum(s for s in steps if s < 0)
    return low, array.ctypes.data + sum(s for s in steps if s > 0) + array.itemsize, array.itemsize


@functools.cache
def emulate(kernel: Any, **options: Any) -> Emulated:
    """`emulate(kernel, **options)[grid, block](*args)` runs a `@cuda.jit` kernel on the CPU; `Emulated` has options."""
    return Emulated(kernel, **options)
