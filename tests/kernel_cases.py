"""Every plain kernel of the package with a small launch, captured from its launcher.

`CASES` says how to call the launcher of each kernel. Nothing of the launch is written down by hand: `captured` lets the
launcher make it and takes it from the backend, so grids, blocks and argument types are those that users get.
"""

import dataclasses
import importlib
import pkgutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from dsv41_numba import formats, ops
from dsv41_numba.formats.bf16 import f32_to_bf16
from dsv41_numba.formats.fp8_weight import Fp8Weight
from dsv41_numba.ops import PLAIN
from dsv41_numba.ops.linear_fp8 import linear_of_codes
from dsv41_numba.ops.quant_fp4 import fp4_quantise_e4m3, fp4_quantise_e8m0
from dsv41_numba.ops.quant_fp8 import fp8_quantise
from dsv41_numba.runtime import backend

Rng = np.random.Generator


@dataclasses.dataclass(frozen=True)
class Launch:
    """One launch: `kernel[grid, block](*args)`, with NumPy arrays whose outputs are not written yet."""

    kernel: Any
    grid: Any
    block: Any
    args: tuple[Any, ...]

    def fresh_args(self) -> list[Any]:
        """The arguments, arrays copied."""
        return [a.copy() if isinstance(a, np.ndarray) else a for a in self.args]

    def by_name(self, args: list[Any]) -> dict[str, np.ndarray]:
        """The arrays among some arguments, by the kernel's parameter names."""
        code = self.kernel.py_func.__code__
        names = code.co_varnames[: code.co_argcount]
        return {name: a for name, a in zip(names, args, strict=True) if isinstance(a, np.ndarray)}


@dataclasses.dataclass(frozen=True)
class Case:
    """A kernel's launcher on seeded inputs.

    call      sizes beside the edges of a tile, several tiles along the axis that is summed, at least 3 blocks
    outputs   the parameters that the kernel writes
    in_place  whether it writes only parts of them
    small     for Numba's simulator, which takes 20 us a multiply-add: 2 blocks will do; None: as `call`
    """

    call: Callable[[Rng], Any]
    outputs: tuple[str, ...]
    in_place: bool = False
    small: Callable[[Rng], Any] | None = None


def bf16(rng: Rng, *shape: int) -> np.ndarray:
    """Signed bf16 bits of uneven size."""
    return f32_to_bf16((rng.standard_normal(shape) * np.exp(rng.standard_normal(shape))).astype(np.float32))


def f32(rng: Rng, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def call_rope(rng: Rng) -> None:
    """9 heads for blocks of 8; 33 pairs that turn after 2 that are copied, for 32 lanes."""
    PLAIN.rope(bf16(rng, 3, 9, 70), f32(rng, 12, 33), f32(rng, 12, 33), 4, 3)


def call_pool(rng: Rng) -> None:
    """4 groups of 2, the first with one row from the state."""
    PLAIN.pool(f32(rng, 7, 257), f32(rng, 7, 257), f32(rng, 2, 257), f32(rng, 2, 257), 3)


def call_store_partial(rng: Rng) -> None:
    """A slot that an earlier call filled, one that this call fills, one to be reset."""
    PLAIN.store_partial(f32(rng, 1, 257), f32(rng, 1, 257), f32(rng, 3, 257), f32(rng, 3, 257), 4)


def call_index_score(rng: Rng, T: int, Hi: int, Di: int, G: int, start_pos: int) -> None:
    PLAIN.index_score(bf16(rng, T, Hi, Di), bf16(rng, T, Hi), bf16(rng, G, Di), start_pos, 1)


def call_sparse_attention(rng: Rng, T: int, H: int, D: int, S: int) -> None:
    """About a fifth of the slots are empty."""
    W, G = 5, 6
    idx = rng.integers(0, W + G, (T, S)).astype(np.int32)
    idx[rng.random((T, S)) < 0.2] = -1
    PLAIN.sparse_attention(bf16(rng, T, H, D), bf16(rng, W, D), bf16(rng, G, D), idx, f32(rng, H), D**-0.5)


def call_linear_fp8(rng: Rng, M: int, N: int, K: int) -> None:
    """Codes without NaN: 0x7F and 0xFF are beyond the drawn magnitudes."""
    codes = [rng.integers(0, 0x7F, (rows, K), np.uint8) | rng.choice([0, 0x80], (rows, K)).astype(np.uint8)
             for rows in (M, N)]  # fmt: skip
    scales = [rng.integers(120, 130, (rows, K // 32), np.uint8) for rows in (M, -(-N // 32))]
    linear_of_codes(codes[0], scales[0], Fp8Weight(codes[1], scales[1]))


def pairs(rng: Rng, *shape: int) -> np.ndarray:
    """As `bf16`, the first of two never negative: two codes of -6 would be the byte that outputs start as."""
    bits = bf16(rng, *shape)
    bits[..., 0::2] &= 0x7FFF
    return bits


CASES: dict[str, Case] = {
    "linear_kernel": Case(
        lambda r: PLAIN.linear(bf16(r, 17, 33), bf16(r, 31, 33)),
        ("y",),
        small=lambda r: PLAIN.linear(bf16(r, 3, 17), bf16(r, 17, 17)),
    ),
    # 264 words of 4 columns for steps of 256, 9 rows of weight for blocks of 4
    "linear_few_kernel": Case(
        lambda r: PLAIN.linear(bf16(r, 2, 1056), bf16(r, 9, 1056)),
        ("y",),
        small=lambda r: PLAIN.linear(bf16(r, 1, 1056), bf16(r, 5, 1056)),
    ),
    "linear_f32_kernel": Case(
        lambda r: PLAIN.linear_f32(bf16(r, 15, 17), f32(r, 33, 17)),
        ("y",),
        small=lambda r: PLAIN.linear_f32(bf16(r, 17, 17), f32(r, 2, 17)),
    ),
    "linear_fp8_kernel": Case(
        lambda r: call_linear_fp8(r, 17, 33, 96), ("y",), small=lambda r: call_linear_fp8(r, 2, 17, 64)
    ),
    "fp8_quantise_kernel": Case(
        lambda r: fp8_quantise(bf16(r, 33, 32)), ("codes", "scale"), small=lambda r: fp8_quantise(bf16(r, 17, 32))
    ),
    "grouped_linear_kernel": Case(
        lambda r: PLAIN.grouped_linear(bf16(r, 17, 6, 9), bf16(r, 45, 18), 3),
        ("og",),
        small=lambda r: PLAIN.grouped_linear(bf16(r, 2, 4, 9), bf16(r, 10, 18), 2),
    ),
    "rmsnorm_kernel": Case(
        lambda r: PLAIN.rmsnorm(bf16(r, 3, 257), f32(r, 257), 1e-6),
        ("y",),
        small=lambda r: PLAIN.rmsnorm(bf16(r, 2, 257), f32(r, 257), 1e-6),
    ),
    "rmsnorm_f32_kernel": Case(
        lambda r: PLAIN.rmsnorm_f32(f32(r, 3, 255), f32(r, 255), 1e-20),
        ("y",),
        small=lambda r: PLAIN.rmsnorm_f32(f32(r, 2, 255), f32(r, 255), 1e-20),
    ),
    "rope_kernel": Case(call_rope, ("y",)),
    "fp8_round_trip_kernel": Case(
        lambda r: PLAIN.fp8_round_trip(bf16(r, 33, 32)), ("y",), small=lambda r: PLAIN.fp8_round_trip(bf16(r, 17, 32))
    ),
    "fp4_round_trip_e8m0_kernel": Case(
        lambda r: PLAIN.fp4_round_trip_e8m0(bf16(r, 33, 32)),
        ("y",),
        small=lambda r: PLAIN.fp4_round_trip_e8m0(bf16(r, 17, 32)),
    ),
    "fp4_round_trip_e4m3_kernel": Case(
        lambda r: PLAIN.fp4_round_trip_e4m3(bf16(r, 65, 16)),
        ("y",),
        small=lambda r: PLAIN.fp4_round_trip_e4m3(bf16(r, 33, 16)),
    ),
    "fp4_quantise_e8m0_kernel": Case(
        lambda r: fp4_quantise_e8m0(pairs(r, 33, 32)),
        ("codes", "scale"),
        small=lambda r: fp4_quantise_e8m0(pairs(r, 17, 32)),
    ),
    "fp4_quantise_e4m3_kernel": Case(
        lambda r: fp4_quantise_e4m3(pairs(r, 65, 16)),
        ("codes", "scale"),
        small=lambda r: fp4_quantise_e4m3(pairs(r, 33, 16)),
    ),
    "pool_kernel": Case(call_pool, ("pooled",)),
    "store_partial_kernel": Case(call_store_partial, ("kv_state", "score_state"), in_place=True),
    "ring_write_kernel": Case(
        lambda r: PLAIN.ring_write(bf16(r, 9, 257), bf16(r, 7, 257), 5), ("ring",), in_place=True
    ),
    "index_weights_kernel": Case(lambda r: PLAIN.index_weights(bf16(r, 37, 15), 0.3), ("index_w",)),
    # one head more than a tile, and a second tile of keys that only the last query sees
    "index_score_kernel": Case(
        lambda r: call_index_score(r, 3, 33, 40, 65, 62),
        ("score",),
        small=lambda r: call_index_score(r, 2, 3, 33, 5, 3),
    ),
    "sparse_attention_kernel": Case(
        lambda r: call_sparse_attention(r, 2, 9, 66, 65),
        ("o",),
        small=lambda r: call_sparse_attention(r, 2, 2, 10, 33),
    ),
}


def package_kernels() -> dict[str, Any]:
    """Name -> kernel, for every `@cuda.jit` kernel in the modules of `ops` and `formats`; no device functions."""
    kernels = {}
    for package in (ops, formats):
        for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(info.name)
            for name, value in vars(module).items():
                if is_kernel(value) and value.py_func.__module__ == module.__name__:
                    assert name not in kernels, f"two kernels are called {name}"
                    kernels[name] = value
    return kernels


def is_kernel(value: Any) -> bool:
    """Whether a value is what `@cuda.jit` makes of a kernel."""
    is_dispatcher = type(value).__module__.startswith("numba.cuda") and hasattr(value, "targetoptions")
    return is_dispatcher and not value.targetoptions["device"]


@contextmanager
def recording_backend() -> Iterator[list[Launch]]:
    """A backend of NumPy arrays that keeps launches instead of running them."""
    launches: list[Launch] = []
    recorder = backend.Backend(
        name="recorder",
        reason="a test captures launches",
        launch=lambda kernel, grid, block, *args: launches.append(Launch(kernel, grid, block, args)),
        to_device=lambda array: array,
        to_host=lambda array: array,
        empty=poisoned,
        zeros=np.zeros,
    )
    current, backend.current = backend.current, lambda: recorder
    try:
        yield launches
    finally:
        backend.current = current


def poisoned(shape: Any, dtype: Any) -> np.ndarray:
    """An array of 0xFF bytes: what is never written is seen."""
    array = np.empty(shape, dtype)
    array.reshape(-1).view(np.uint8).fill(0xFF)
    return array


def captured(name: str, small: bool = False) -> Launch:
    """The one launch of a case; the same in every run and process."""
    case = CASES[name]
    with recording_backend() as launches:
        (case.small if small and case.small else case.call)(np.random.default_rng(zlib.crc32(name.encode())))
    (launch,) = launches
    return launch


def run_simulator(path: str) -> None:
    """In a process with NUMBA_ENABLE_CUDASIM=1: run every small case, save all arrays as they are afterwards."""
    from dsv41_numba.runtime import simulator

    simulator.install()
    saved = {}
    for name in CASES:
        launch = captured(name, small=True)
        launch.kernel[launch.grid, launch.block](*launch.args)
        saved |= {f"{name}.{i}": a for i, a in enumerate(launch.args) if isinstance(a, np.ndarray)}
    np.savez(path, **saved)
