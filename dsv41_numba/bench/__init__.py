"""`dsv41 bench`: how fast each op and whole layers are, beside the floor, torch and the original's kernels.

::

    cases       what is measured: every op of the geometry, with the bytes and operations that it needs
    layers      whole layers, one of each kind
    stacks      layers together: a decode step of all in one graph, a long prompt in chunks
    ladder      the tuned stages, the stages in one pass, and every rung of the linears at one large size
    inputs      random arrays made on the device
    verify      each case against its NumPy reference, before it is timed
    timing      device time without Python's launches, and host time
    ceilings    the copy and matrix rates of this machine, which floors are computed from
    torch_ops   what a user of torch would write instead
    measure     one row: verify, time, torch
    machine     the GPU, driver and versions that the numbers depend on
    lines       how long the code of a rung is
    report      data/measurements.json, and means over its rows
    screen      the tables

A full run on a GPU writes data/measurements.json; a part of it (`--op`, `--case`, `--quick`) only what `--json` names.
Without a GPU `--quick` times the emulator at a tiny geometry, for those who want to see how the command works.
"""

import argparse
import functools
import pathlib
import time
import warnings
from collections.abc import Callable, Sequence

from numba.core.errors import NumbaPerformanceWarning
from rich.console import Console

from dsv41_numba.bench import ceilings as ceilings_module
from dsv41_numba.bench import torch_ops
from dsv41_numba.bench.cases import (
    CONTEXTS,
    PREFILLS,
    QUICK_CONTEXTS,
    QUICK_PREFILLS,
    Case,
    fused_cases,
    op_cases,
    position,
    stored_cases,
)
from dsv41_numba.bench.inputs import Draw
from dsv41_numba.bench.ladder import (
    LADDER,
    SIZE,
    TUNED_OPS,
    has_ladder,
    measure_fused,
    measure_ladder,
    measure_selection,
    measure_tuned,
)
from dsv41_numba.bench.layers import LayerCase, layer_cases
from dsv41_numba.bench.machine import machine
from dsv41_numba.bench.measure import Row, launch_cost, measure_candidates, measure_layer, measure_op, measure_select
from dsv41_numba.bench.report import Report, write_json
from dsv41_numba.bench.screen import show
from dsv41_numba.bench.stacks import CONTEXT, PROMPT, Stack, measure_decode, measure_prompt
from dsv41_numba.config import FLASH, TINY
from dsv41_numba.data import data_dir
from dsv41_numba.ops import PLAIN, Ops
from dsv41_numba.report import progress
from dsv41_numba.runtime import backend
from dsv41_numba.tuned import TUNED

MEASUREMENTS = "measurements.json"
EMULATOR_PREFILLS, EMULATOR_CONTEXTS = (16,), (32,)

Task = tuple[str, str, Callable[[], list[Row]]]  # op, case, how to measure it


def run(args: argparse.Namespace, out: Console, err: Console) -> int:
    """`dsv41 bench --op NAME --case NAME --quick --json FILE`; 0, 1 when a check failed, 2 without a GPU."""
    chosen = backend.current()
    on_gpu = chosen.name == "gpu"
    if not on_gpu and not args.quick:
        err.print(
            f"dsv41 bench: expected a GPU to measure, got the {chosen.name} ({chosen.reason}); "
            "`dsv41 bench --quick` times the emulator at a tiny geometry",
            soft_wrap=True,
        )
        return 2
    kept = data_dir() / MEASUREMENTS
    target = pathlib.Path(args.json) if args.json else None
    if target and not on_gpu and target.resolve() == kept.resolve():
        raise ValueError(f"--json: expected another file than {kept}, which holds times of a GPU, got {target}")
    stacks: list[Stack] = []
    tasks = _chosen(_tasks(PLAIN, on_gpu, args.quick, stacks), args.op, args.case)
    rows: list[Row] = []
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumbaPerformanceWarning)  # grids of one block are meant here
        ceilings = ceilings_module.measure() if on_gpu else None
        launch = launch_cost(Draw(2)) if on_gpu else None
        with progress(err, f"{len(tasks)} cases on the {chosen.name}") as update:
            for done, (_, _, measure) in enumerate(tasks, 1):
                rows += measure()
                update(done / len(tasks))
    report = Report(rows, machine(), ceilings, launch, time.perf_counter() - begin, stacks)
    show(report, out)
    if on_gpu and not (target or args.quick or args.op or args.case):
        target = kept
    if target:
        write_json(target, report.as_json())
        out.print(f"wrote {target}", soft_wrap=True)
    return 0 if all(row.ok for row in rows) else 1


def _tasks(ops: Ops, on_gpu: bool, quick: bool, stacks: list[Stack]) -> list[Task]:
    """Everything that this machine measures, in the order of the table; `stacks` gets what rows do not say."""
    cfg = FLASH
    prefills: tuple[int, ...] = PREFILLS
    contexts: tuple[int, ...] = CONTEXTS
    if not on_gpu:
        cfg, prefills, contexts = TINY, EMULATOR_PREFILLS, EMULATOR_CONTEXTS
    elif quick:
        prefills, contexts = QUICK_PREFILLS, QUICK_CONTEXTS
    draw, with_torch = Draw(0), on_gpu and torch_ops.available()
    ladder = on_gpu and has_ladder()

    def op_tasks(case: Case) -> list[Task]:
        tasks: list[Task] = [(case.op, case.name, lambda: measure_op(case, ops, draw, on_gpu, with_torch))]
        if ladder and case.op in TUNED_OPS:
            tasks.append((case.op, case.name, lambda: measure_tuned(case, draw, with_torch)))
        return tasks

    def layer_task(case: LayerCase, table: Ops) -> Task:
        return case.op, case.name, lambda: measure_layer(case, cfg, table, on_gpu, with_torch)

    def select_task(name: str, T: int, pos: int) -> Task:
        return "select", name, lambda: measure_select(cfg, name, T, pos, ops, draw, with_torch)

    def candidates_task(name: str, T: int, pos: int) -> Task:
        return "candidate_blocks", name, lambda: measure_candidates(cfg, name, T, pos, ops, draw)

    def selection_task(name: str, T: int, pos: int) -> Task:
        return "select", name, lambda: measure_selection(cfg, name, T, pos, draw)

    def stack_task(name: str, measure: Callable[..., tuple[Row, Stack]]) -> Task:
        def run() -> list[Row]:
            row, stack = measure(cfg)
            stacks.append(stack)
            return [row]

        return "stack", name, run

    calls = [(f"prefill {T}", T, 0) for T in prefills]
    calls += [(f"decode {context}", 1, position(context)) for context in contexts]
    cases = op_cases(cfg, prefills, contexts) + stored_cases(cfg, QUICK_PREFILLS if on_gpu else prefills, contexts)
    tasks = [task for case in cases for task in op_tasks(case)]
    if ladder:
        tasks += [(c.op, c.name, functools.partial(measure_fused, c, draw)) for c in fused_cases(cfg, QUICK_PREFILLS)]
        tasks.append((LADDER, str(SIZE), lambda: measure_ladder(draw, with_torch)))
    tasks += [select_task(*call) for call in calls]
    tasks += [candidates_task(*call) for call in calls]
    if ladder:
        tasks += [selection_task(*call) for call in calls]
    tasks += [layer_task(case, ops) for case in layer_cases(cfg, prefills, contexts)]
    if ladder:  # of the layers with tuned linears and attention, one prefill and one decode
        tasks += [layer_task(case, TUNED) for case in layer_cases(cfg, QUICK_PREFILLS, QUICK_CONTEXTS)]
        longest = contexts[-1]
        if longest not in QUICK_CONTEXTS:
            tasks += [layer_task(case, TUNED) for case in layer_cases(cfg, (), (longest,))]
            tasks.append(stack_task(f"decode {longest}", functools.partial(measure_decode, context=longest)))
        tasks += [layer_task(case, TUNED) for case in layer_cases(cfg, (), (longest,), "packed")]
        packed = functools.partial(measure_decode, context=longest, cache="packed")
        tasks += [stack_task(f"decode {CONTEXT}", measure_decode), stack_task(f"decode {longest}", packed)]
        tasks.append(stack_task(f"prompt {PROMPT}", measure_prompt))
    return tasks


def _chosen(tasks: Sequence[Task], op: str | None, case: str | None) -> list[Task]:
    """The tasks whose op and case begin with the words that were asked for: "linear", "linear wq_a", "decode"."""
    for option, wanted, names in (("--op", op, [t[0] for t in tasks]), ("--case", case, [t[1] for t in tasks])):
        if wanted is not None and not any(_begins(name, wanted) for name in names):
            raise ValueError(f"{option}: expected one of {', '.join(dict.fromkeys(names))}, got {wanted!r}")
    chosen = [t for t in tasks if (op is None or _begins(t[0], op)) and (case is None or _begins(t[1], case))]
    if not chosen:
        raise ValueError(f"--op, --case: expected a case that the op has, got {op!r} and {case!r}")
    return chosen


def _begins(name: str, wanted: str) -> bool:
    return f"{name} ".startswith(f"{wanted} ")
