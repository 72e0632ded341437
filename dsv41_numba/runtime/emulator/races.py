"""The other race check: run the threads in several orders and compare the results.

It needs no history and sees whatever has an effect, but only if it has one with this data and these orders. `racecheck`
names the lines; this one also finds what goes wrong between blocks through atomics.
"""

from typing import Any

import numpy as np

from dsv41_numba.runtime.emulator.errors import Race
from dsv41_numba.runtime.emulator.launch import emulate


def race_check(
    kernel: Any,
    grid: Any,
    block: Any,
    args: tuple[Any, ...],
    orders: tuple[str, ...] = ("reverse", "shuffle"),
    **options: Any,
) -> list[Any]:
    """Launch on copies of `args` with the threads (and blocks) forward and in other orders.

    Returns the arguments after the forward run. Raises Race naming the first element of an argument that differs, and
    whatever a launch raises.
    """

    def run(order: str) -> list[Any]:
        mine = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
        emulate(kernel, order=order, **options)[grid, block](*mine)
        return mine

    forward = run("forward")
    emulated = emulate(kernel, order="forward", **options)
    for order in orders:
        for name, a, b in zip(emulated.translated.kernel.parameters, forward, run(order)):
            if isinstance(a, np.ndarray) and a.tobytes() != b.tobytes():
                bits = [np.ascontiguousarray(x).reshape(-1).view(np.uint8).reshape(x.size, -1) for x in (a, b)]
                differ = np.flatnonzero((bits[0] != bits[1]).any(1))
                at = tuple(int(i) for i in np.unravel_index(differ[0], a.shape))
                raise Race(
                    f"{emulated.name}: {name}{list(at)} is {a[at]} with the threads in forward order "
                    f"but {b[at]} in {order} order; {len(differ)} of {a.size} elements differ"
                )
    return forward
