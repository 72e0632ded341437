"""`dsv41 walk`: step through the layers, call by call, and show what each one did.

Without `--checkpoint` it walks the tiny checkpoint through scenario A of the recordings. Every stage that is recorded
is compared as it is made, from recorded inputs (`check.Alone`), so the table shows where a fault begins and not where
it ends. With `--checkpoint` it walks other weights on random input, one layer's weights at a time on the host.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from rich.console import Console

from dsv41_numba import report
from dsv41_numba.check import Alone, worst_number
from dsv41_numba.config import AttnV41Cfg
from dsv41_numba.data import golden
from dsv41_numba.formats.bf16 import as_bf16
from dsv41_numba.ops import Ops
from dsv41_numba.ops import table as op_table
from dsv41_numba.recording import STAGES, Recorder, Recording
from dsv41_numba.runtime import backend
from dsv41_numba.stack import AttnV41, Step
from dsv41_numba.weights import Checkpoint

DEFAULT_TOKENS = 16


@dataclass
class Tour:
    """What a walk takes note of while it goes: how long each call took, and the intermediates that --show asked for."""

    args: argparse.Namespace
    ops: Ops
    out: Console
    seconds: dict[tuple[int, str], float] = field(default_factory=dict)
    shown: list[tuple[str, Step, np.ndarray]] = field(default_factory=list)

    def visit(self, name: str, step: Step) -> None:
        """Take note of one layer's call; its arrays are copied now, because the window ring is reused."""
        layer = step.role.layer
        self.seconds[layer, name] = step.seconds
        if self.args.show and layer == self.args.layer and self.args.step in (None, name):
            value = getattr(step.run, self.args.show)
            if value is not None:
                self.shown.append((name, step, np.array(self.ops.to_host(value))))

    def finish(self) -> None:
        """Print what was asked for with --show."""
        for name, step, value in self.shown:
            self.out.print(f"\nlayer {step.role.layer}, step {name}, {self.args.show}: {value.dtype} {value.shape}")
            self.out.print(np.array2string(value, precision=4, max_line_width=self.out.width), markup=False)
        if self.args.show and not self.shown:
            raise ValueError(
                f"--show {self.args.show}: layer {self.args.layer} does not make it in the steps that were walked"
            )


def walk_tiny(args: argparse.Namespace, out: Console, err: Console) -> int:
    """The tiny checkpoint through scenario A; exit code 1 when a stage breaks its rule."""
    cfg = AttnV41Cfg.from_json(golden("tiny-config.json"))
    recording = Recording(
        golden("tiny-A.safetensors" if args.index_keys == "released" else "tiny-A-ownkeys.safetensors")
    )
    _check_selection(args, cfg, range(cfg.n_layers), recording.steps)
    ops = op_table(args.ops)
    checkpoint = Checkpoint(golden("tiny-weights.safetensors"), cfg=cfg)
    model = AttnV41(cfg, checkpoint.layer, ops, args.index_keys, cache=args.cache)
    judge, tour = Alone(recording, model, model.layers), Tour(args, ops, out)
    begin = time.perf_counter()
    calls = len(recording.steps) * cfg.n_layers
    with report.progress(err, f"{cfg.n_layers} layers on the {_machine(ops)}") as update:
        for done, (name, step) in enumerate(judge.replay(), 1):
            update(done / calls)
            tour.visit(name, step)
            if name == args.step and step.role.layer == model.layers[-1]:
                break
    seconds = time.perf_counter() - begin
    steps = tuple(dict.fromkeys(name for _, name in tour.seconds))
    shown_steps = [args.step] if args.step else steps
    table = report.layer_table(_title(ops, args, shown_steps), "compared", "worst steps", "ms")
    for layer in model.layers if args.layer is None else [args.layer]:
        tallies = [tally for (owner, _), tally in judge.tallies.items() if owner == layer]
        compared = sum(tally.elements for tally in tallies)
        worst = worst_number(tallies)
        mark = f"{worst.worst} {worst.stage}" if worst else "0"
        spent = sum(tour.seconds[layer, name] for name in shown_steps)
        table.add_row(*report.layer_cells(model.roles[layer]), str(compared), mark, f"{1e3 * spent:.1f}",
                      end_section=layer + 1 in cfg.kv_sources)  # fmt: skip
    out.print(table)
    report.print_picks(ops, out)
    tour.finish()
    if args.record:
        with report.progress(err, f"recording {args.record}") as update:
            _record_again(model, recording, steps, args.record, update)
        out.print(f"wrote {args.record}")
    stages = judge.by_stage()
    mismatches = [tally.mismatch for tally in stages.values() if tally.mismatch]
    for mismatch in mismatches:
        out.print(f"[bold red]mismatch[/] {mismatch}", soft_wrap=True)
    elements = sum(tally.elements for tally in stages.values())
    out.print(
        f"{'FAIL' if mismatches else 'ok'}: {len(tour.seconds)} layer calls, {elements} elements of {len(stages)} "
        f"stages compared with the official code's, {seconds:.1f} s on the {_machine(ops)}",
        soft_wrap=True,
    )
    return 1 if mismatches else 0


def _record_again(
    model: AttnV41, recording: Recording, steps: Sequence[str], path: str, update: Callable[[float], None]
) -> None:
    """Walk the same inputs once more without a judge, who hands recorded values on, and write what comes out."""
    model.reset()
    recorder = Recorder()
    for done, name in enumerate(steps, 1):
        x = {layer: recording.get(layer, name, "x") for layer in model.layers}
        for step in model.walk(x):
            recorder.add(step.role.layer, name, step.run, model.ops)
        update(done / len(steps))
    recorder.write(path)


def walk_checkpoint(args: argparse.Namespace, out: Console, err: Console) -> int:
    """Other weights on random input, without a comparison."""
    cfg_given = AttnV41Cfg.from_json(args.config) if args.config else None
    checkpoint = Checkpoint(args.checkpoint, cfg=cfg_given, linear=args.linear)
    cfg, ops = checkpoint.cfg, op_table(args.ops)
    tokens = args.tokens or min(DEFAULT_TOKENS, cfg.max_seq)
    steps = ("p", *(f"d{i}" for i in range(args.decode)))
    layers = tuple(args.layers or range(cfg.n_layers))
    _check_selection(args, cfg, layers, steps)
    model = AttnV41(cfg, checkpoint.layer, ops, args.index_keys, layers, args.decode > 0, args.cache)
    tour, recorder = Tour(args, ops, out), Recorder()
    with report.progress(err, f"{len(layers)} layers on the {_machine(ops)}") as update:
        for done, (name, step) in enumerate(_random_walk(model, steps, tokens, args.seed), 1):
            update(done / (len(steps) * len(layers)))
            tour.visit(name, step)
            if args.record:
                recorder.add(step.role.layer, name, step.run, ops)
    table = report.layer_table(_title(ops, args, steps), "ms")
    for layer in layers if args.layer is None else [args.layer]:
        spent = sum(tour.seconds[layer, name] for name in ([args.step] if args.step else steps))
        table.add_row(*report.layer_cells(model.roles[layer]), f"{1e3 * spent:.1f}")
    out.print(table)
    report.print_picks(ops, out)
    tour.finish()
    out.print(
        f"{tokens} tokens and {args.decode} decode steps, random input of seed {args.seed}; nothing to compare with"
    )
    return 0


def _random_walk(model: AttnV41, steps: Iterable[str], tokens: int, seed: int) -> Iterator[tuple[str, Step]]:
    for name in steps:
        x = _RandomInput(model.cfg.dim, tokens if name == "p" else 1, model.position, seed)
        for step in model.walk(x):
            yield name, step


@dataclass(frozen=True)
class _RandomInput:
    """x[layer] made when it is asked for, so that forty layers' inputs never stand in memory together."""

    dim: int
    T: int
    position: int
    seed: int

    def __getitem__(self, layer: int) -> np.ndarray:
        rng = np.random.default_rng([self.seed, layer, self.position])
        return as_bf16(rng.standard_normal((self.T, self.dim)).astype(np.float32))


def _check_selection(args: argparse.Namespace, cfg: AttnV41Cfg, layers: Iterable[int], steps: Iterable[str]) -> None:
    """Refuse a --layer, --step or --show that names nothing."""
    layers, steps = tuple(layers), tuple(steps)
    if args.layer is not None and args.layer not in layers:
        raise ValueError(f"--layer: expected one of {layers[0]}..{layers[-1]}, got {args.layer}")
    if args.step is not None and args.step not in steps:
        raise ValueError(f"--step: expected one of {', '.join(steps)}, got {args.step!r}")
    if args.show is not None and args.show not in STAGES:
        raise ValueError(f"--show: expected one of {', '.join(STAGES)}, got {args.show!r}")
    if args.show is not None and args.layer is None:
        raise ValueError("--show: expected a --layer to show it of, got none")


def _machine(ops: Ops) -> str:
    return "NumPy reference" if ops.name == "reference" else backend.current().name


def _title(ops: Ops, args: argparse.Namespace, steps: Iterable[str]) -> str:
    what = "tiny checkpoint, scenario A" if args.checkpoint is None else str(args.checkpoint)
    what += ", fp8 linears" if args.linear == "fp8" else ""
    what += ", packed caches" if args.cache == "packed" else ""
    steps = tuple(steps)
    span = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    return f"{what}, {ops.name} ops on the {_machine(ops)}, {span}"
