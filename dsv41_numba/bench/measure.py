"""One row of the bench: verify a case, time it, time torch beside it."""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda

from dsv41_numba.bench import torch_ops
from dsv41_numba.bench.cases import Case
from dsv41_numba.bench.inputs import Draw
from dsv41_numba.bench.layers import BenchLayer, LayerCase
from dsv41_numba.bench.timing import Candidate, Time, device_time, device_times, host_time
from dsv41_numba.bench.verify import Verdict, checked, to_verify, verify
from dsv41_numba.config import AttnV41Cfg
from dsv41_numba.ops import Ops, topk
from dsv41_numba.ops.rmsnorm import rmsnorm
from dsv41_numba.runtime import backend
from dsv41_numba.tuned import TUNED
from dsv41_numba.tuned.recorded import graph_of, recorded_launches

ROTATED_BYTES = 1 << 28  # of all argument sets together: several times the largest cache
MOST_SETS = 64
LAUNCHES = 500  # of the launch cost; the queue holds about a thousand


@dataclass(frozen=True)
class Row:
    """What was measured of one case.

    kind     "kernel": the op's launch on the device alone, captured from its launcher and run again, so that neither
             Python nor the allocation of the output counts: both cost the same whatever the kernel is, and more than
             many kernels take. "kernels": all of a layer's. "graph": these
             as one CUDA graph. "call": the whole call by the host's clock, with Python,
             allocation, copies and the selection on the host. "host": a stage that the host does
    time     None: not timed, because the check failed
    verdict  how far it is from the NumPy reference; None: the reference is the same code
    rung     of a tuned linear: which rung of the ladder was picked
    """

    ops: str
    op: str
    case: str
    kind: str
    time: Time | None
    bytes: int
    flops: int
    verdict: Verdict | None = None
    torch: Time | None = None
    rung: str | None = None

    @property
    def ok(self) -> bool:
        return self.verdict is None or self.verdict.ok


def measure_op(
    case: Case,
    ops: Ops,
    draw: Draw,
    on_gpu: bool,
    with_torch: bool,
    check: Callable[..., Verdict] = verify,
) -> list[Row]:
    """Verify one op on a first set of arguments; then time it, on a GPU over enough sets to pass the cache."""
    stage = getattr(ops, case.stage)
    arguments = case.arguments(draw)
    before = to_verify(case.stage, arguments)
    with recorded_launches() as launches:
        result = stage(*arguments)
    verdict = check(case.stage, arguments, result, before)
    row = Row(ops.name, case.op, case.name, "kernel", None, case.bytes, case.flops, verdict)
    if not verdict.ok:
        return [row]
    if not on_gpu:
        return [dataclasses.replace(row, kind="call", time=host_time(lambda: stage(*arguments)))]
    sets = [(arguments, result)]
    size = sum(array_bytes(a) for a in (*arguments, result))
    with recorded_launches() as more:
        for _ in range(min(MOST_SETS, -(-ROTATED_BYTES // max(size, 1))) - 1):
            of_op = len(more)
            arguments = case.arguments(draw)
            del more[of_op:]  # what made the arguments is not the op's
            sets.append((arguments, stage(*arguments)))
    launches += more
    per_call = len(launches) // len(sets)
    ours = Candidate([together(launches[i : i + per_call]) for i in range(0, len(launches), per_call)], per_call)
    beside = [torch_ops.beside(case.stage, *used) for used in sets] if with_torch else []
    theirs = (
        [Candidate([call for call in beside if call], torch_ops.launches_per_call(case.stage))] if any(beside) else []
    )
    times = device_times([ours, *theirs])
    return [dataclasses.replace(row, time=times[0], torch=times[1] if theirs else None)]


def together(launches: list[Any]) -> Callable[[], None]:
    if len(launches) == 1:
        return launches[0]

    def call() -> None:
        for launch in launches:
            launch()

    return call


def measure_layer(case: LayerCase, cfg: AttnV41Cfg, ops: Ops, on_gpu: bool, with_torch: bool) -> list[Row]:
    """Verify every op call of one layer's forward, then time its kernels and the whole call."""
    layer = BenchLayer(cfg, case)
    bytes_, flops = layer.floor()
    verdicts: list[Verdict] = []
    layer.call(checked(ops, verdicts.append))
    worst = max(verdicts, key=lambda verdict: (not verdict.ok, verdict.worst))
    worst = dataclasses.replace(worst, elements=sum(verdict.elements for verdict in verdicts))
    row = Row(ops.name, case.op, case.name, "call", None, bytes_, flops, worst)
    if not worst.ok:
        return [row]
    rows = []
    if on_gpu:
        with recorded_launches() as launches:
            layer.call(ops)
        ours = Candidate([together(launches)], len(launches))
        beside = torch_ops.whole_layer(layer) if with_torch else None
        theirs = [Candidate([beside], torch_ops.LAUNCHES_PER_LAYER)] if beside else []
        if ops is TUNED and case.T == 1:
            theirs.append(Candidate([on_default_stream(graph_of(launches))]))
        times = device_times([ours, *theirs])
        torch_time = times[1] if beside else None
        rows.append(dataclasses.replace(row, kind="kernels", time=times[0], torch=torch_time))
        if ops is TUNED and case.T == 1:
            rows.append(dataclasses.replace(row, kind="graph", time=times[-1], torch=torch_time))
    return [*rows, dataclasses.replace(row, time=host_time(lambda: layer.call(ops)))]


def on_default_stream(graph: Any) -> Callable[[], None]:
    """A CUDA graph on the default stream, where the events are that time it."""
    from cuda.core import Device

    stream = Device(cuda.get_current_device().id).default_stream
    return lambda: graph.launch(stream)


def measure_select(cfg: AttnV41Cfg, name: str, T: int, pos: int, ops: Ops, draw: Draw, with_torch: bool) -> list[Row]:
    """The selection that the host makes from the scores of a ratio-1 layer, and torch's on the device."""
    scores, host = random_scores(T, pos, draw)
    k = min(cfg.index_topk, pos + T)
    torch_time = None
    if with_torch:
        tensor = torch_ops.as_torch(scores)
        torch_time = device_time([lambda: tensor.topk(k, dim=1).indices.sort(dim=1)], torch_ops.LAUNCHES_PER_CALL)
    timed = host_time(lambda: topk.select(host, cfg.index_topk))
    return [Row(ops.name, "select", name, "host", timed, 4 * host.size + 4 * T * k, 0, torch=torch_time)]


def measure_candidates(cfg: AttnV41Cfg, name: str, T: int, pos: int, ops: Ops, draw: Draw) -> list[Row]:
    """The mask of candidate blocks that the host makes from the same scores."""
    _, host = random_scores(T, pos, draw)
    lens = pos + 1 + np.arange(T)
    timed = host_time(lambda: topk.candidate_blocks(host, lens, cfg.candidate_topk_blocks, cfg.candidate_block_size))
    return [Row(ops.name, "candidate_blocks", name, "host", timed, 5 * host.size, 0)]


def random_scores(T: int, pos: int, draw: Draw) -> tuple[Any, np.ndarray]:
    """Random scores [T, G] on the device, and on the host with -inf where position g is not visible."""
    scores = draw.f32(T, pos + T)
    host = np.array(backend.to_host(scores))
    host[np.arange(pos + T)[None, :] > (pos + np.arange(T))[:, None]] = -np.inf
    return scores, host


@cuda.jit
def nothing_kernel(x):
    """A launch that does nothing."""


@dataclass(frozen=True)
class LaunchCost:
    """Microseconds of one launch: what Python takes to queue it, the GPU to run it, and a launcher of the package to
    check its arguments, allocate its output and queue it."""

    python_us: float
    device_us: float
    launcher_us: float


def launch_cost(draw: Draw) -> LaunchCost:
    """One block that does nothing; and rmsnorm of one row, as an example of a launcher."""
    x, weight = draw.bf16(1, 32), draw.f32(32)
    empty = nothing_kernel[1, 32]
    return LaunchCost(
        _queueing_us(lambda: empty(x)),
        1e3 * device_time([lambda: empty(x)]).ms,
        _queueing_us(lambda: rmsnorm(x, weight, 1e-6)),
    )


def _queueing_us(call: Callable[[], Any]) -> float:
    call()
    cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(LAUNCHES):
        call()
    seconds = time.perf_counter() - begin
    cuda.synchronize()
    return 1e6 * seconds / LAUNCHES


def array_bytes(array: Any) -> int:
    """Bytes of an array, of packed rows or of an fp8 weight; 0 for what is none."""
    return int(getattr(array, "nbytes", 0))
