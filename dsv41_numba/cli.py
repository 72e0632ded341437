"""The `dsv41` command: walk, exercise, check, roles, memory, stage, show, make-checkpoint, bench, doctor.

Exit codes: 0 all is well, 1 a comparison failed, 2 the input was wrong (one line says what, where, expected and got).
Set DSV41_TRACEBACK=1 to see where an error came from. Each command imports what it needs, so that `--help` is quick.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from dsv41_numba.config import AttnV41Cfg

PLAIN_WIDTH = 118  # columns when the output is not a terminal


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = parser().parse_args(argv)
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get("DSV41_TRACEBACK") == "1":
            raise
        # what our own checks raise is written to be read; anything else is a fault of ours, so its type helps
        ours = isinstance(error, (ValueError, OSError)) or type(error).__module__.startswith("dsv41_numba")
        print(f"dsv41 {args.command}: {'' if ours else type(error).__name__ + ': '}{error}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    """The command line, with every option's help."""
    top = argparse.ArgumentParser(prog="dsv41", description="The DeepSeek-V4.1-Flash attention as Numba CUDA kernels.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    walk = commands.add_parser("walk", help="step through the layers, prefill and decode, compared as it goes")
    walk.add_argument("--layer", type=int, metavar="L", help="show only this layer's calls, one row a call")
    walk.add_argument("--step", metavar="S", help="show only this step: p, d0, d1, ...")
    walk.add_argument("--show", metavar="NAME", help="print an intermediate of each shown call, such as q or topk")
    walk.add_argument("--checkpoint", metavar="DIR", help="walk these weights instead, on random input")
    walk.add_argument("--tokens", type=_positive, metavar="N", help="with --checkpoint: tokens of the prefill")
    walk.add_argument("--decode", type=int, default=0, metavar="N", help="with --checkpoint: decode steps after it")
    walk.add_argument("--layers", type=_layer_range, metavar="A-B", help="with --checkpoint: only these layers")
    walk.add_argument("--seed", type=int, default=0, help="with --checkpoint: of the random input (default 0)")
    walk.add_argument("--config", metavar="C", help="with --checkpoint: a config.json other than DIR's")
    walk.add_argument("--record", metavar="FILE", help="write every intermediate as a recording")
    _linear_option(walk, "with --checkpoint: ")
    _cache_option(walk)
    _machine_options(walk)
    walk.set_defaults(run=_walk)

    exercise = commands.add_parser("exercise", help="check your solution of an exercise; exit code 0 if it is solved")
    exercise.add_argument("which", nargs="?", metavar="ID", help="an exercise such as 04a, or a chapter such as 04")
    exercise.add_argument("--list", action="store_true", help="all exercises and how far you are")
    exercise.add_argument("--start", metavar="DIR", help="write the exercises into DIR; files that are there are kept")
    exercise.add_argument("--dir", metavar="DIR", help="where your files are (default: tutorials/exercises of a "
                          "checkout, else ./exercises)")  # fmt: skip
    exercise.add_argument("--gpu", action="store_true", help="run on the GPU instead of the emulator; without races "
                          "and budget")  # fmt: skip
    exercise.add_argument("--hint", type=int, choices=(1, 2, 3), metavar="N", help="the first N of three hints")
    exercise.add_argument("--solution", action="store_true", help="check the solution instead of your file")
    exercise.set_defaults(run=_exercise)

    check = commands.add_parser("check", help="hold the port to a recording, each stage alone and the whole chain")
    check.add_argument("recording", metavar="RECORDING", help="a safetensors file of captures")
    check.add_argument("--weights", action="append", metavar="W", help="checkpoint file or folder; repeatable, later "
                       "ones override (default: the tiny checkpoint)")  # fmt: skip
    check.add_argument("--config", metavar="C", help="config.json of the geometry (default: the tiny one)")
    check.add_argument("--base", metavar="FILE", help="the recording whose prefill comes before this one")
    check.add_argument("--layers", type=_layer_range, metavar="A-B", help="judge only these layers")
    _linear_option(check)
    _cache_option(check)
    _machine_options(check)
    check.set_defaults(run=_check)

    roles = commands.add_parser("roles", help="what each layer makes, reads and publishes, from a config.json")
    roles.add_argument("config", nargs="?", metavar="CONFIG", help="config.json (default: the released geometry)")
    roles.set_defaults(run=_roles)

    memory = commands.add_parser("memory", help="bytes of every layer's caches, in bf16 and as codes and scales")
    memory.add_argument("--config", metavar="C", help="config.json of the geometry (default: the released one)")
    memory.add_argument("--tokens", type=_positive, metavar="N", help="tokens of the sequence (default: the longest)")
    memory.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    memory.set_defaults(run=_memory)

    stage = commands.add_parser("stage", help="one stage on random input: its contract, and kernel against reference")
    stage.add_argument("name", metavar="NAME", help="such as linear, rope or sparse_attention; `list` lists them all")
    stage.add_argument("--tokens", type=_positive, default=5, metavar="N", help="tokens (default 5)")
    stage.add_argument("--config", metavar="C", help="config.json of the geometry (default: the tiny one)")
    stage.add_argument("--seed", type=int, default=0, help="of the random input (default 0)")
    stage.add_argument(
        "--ops", choices=("plain", "tuned"), default="plain", help="the readable kernel, or the fast one"
    )
    stage.set_defaults(run=_stage)

    show = commands.add_parser("show", help="draw a picture of the site into an SVG file")
    show.add_argument("name", nargs="?", metavar="NAME", help="of the picture")
    show.add_argument("options", nargs="*", metavar="KEY=VALUE", help="options of the picture; --list shows them")
    show.add_argument("--out", metavar="FILE", help="the SVG file (default: NAME.svg)")
    show.add_argument("--list", action="store_true", help="every picture with its options")
    show.set_defaults(run=_show)

    make = commands.add_parser("make-checkpoint", help="write random weights in the released layout")
    make.add_argument("folder", metavar="DIR", help="a folder that does not exist yet, or is empty")
    make.add_argument("--layers", type=_layer_range, metavar="A-B", help="only these layers (default: all)")
    make.add_argument("--seed", type=int, default=0, help="of the weights (default 0)")
    make.add_argument("--config", metavar="C", help="config.json of the geometry (default: the released one)")
    make.set_defaults(run=_make_checkpoint)

    bench = commands.add_parser("bench", help="how fast each op and whole layers are, beside floor, torch and original")
    bench.add_argument("--op", metavar="NAME", help="only ops that begin so: linear, 'linear wq_a', layer")
    bench.add_argument("--case", metavar="NAME", help="only cases that begin so: decode, 'prefill 2048'")
    bench.add_argument("--quick", action="store_true", help="one prefill and one context; without a GPU the emulator")
    bench.add_argument("--json", metavar="FILE", help="write the results here (a full run: data/measurements.json)")
    bench.set_defaults(run=_bench)

    doctor = commands.add_parser("doctor", help="which machine runs the kernels and why, and what is wrong with it")
    doctor.set_defaults(run=_doctor)
    return top


def _machine_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--ops",
        choices=("plain", "tuned", "reference"),
        default="plain",
        help="the readable kernels, the fast ones, or NumPy",
    )
    command.add_argument("--index-keys", choices=("released", "owner"), default="released",
                         help="whose index keys an unfinished group scores against (default: as released)")  # fmt: skip


def _linear_option(command: argparse.ArgumentParser, when: str = "") -> None:
    command.add_argument("--linear", choices=("bf16", "fp8"), default="bf16",
                         help=f"{when}dequantise fp8 weights when they are read, or multiply their codes and quantise "
                         "the activation (default: bf16)")  # fmt: skip


def _cache_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("--cache", choices=("bf16", "packed"), default="bf16",
                         help="keep cached rows as the values they stand for, or as codes and scales "
                         "(default: bf16)")  # fmt: skip


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def _layer_range(text: str) -> range:
    first, _, last = text.partition("-")
    if not first.isdigit() or not (last or first).isdigit() or int(last or first) < int(first):
        raise argparse.ArgumentTypeError(f"expected layers as A-B or one number, got {text!r}")
    return range(int(first), int(last or first) + 1)


def _console(stderr: bool = False) -> "Console":
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=PLAIN_WIDTH)


def _tiny_cfg(path: str | None) -> "AttnV41Cfg":
    """The geometry of a config.json, or the tiny one."""
    from dsv41_numba.config import AttnV41Cfg
    from dsv41_numba.data import golden

    return AttnV41Cfg.from_json(path or golden("tiny-config.json"))


def _walk(args: argparse.Namespace) -> int:
    from dsv41_numba import walk

    if args.checkpoint is None:
        for option in ("tokens", "layers", "config"):
            if getattr(args, option) is not None:
                raise ValueError(f"--{option}: goes with --checkpoint DIR")
        if args.linear != "bf16":
            raise ValueError(f"--linear {args.linear}: goes with --checkpoint DIR; scenario A's weights are bf16")
        return walk.walk_tiny(args, _console(), _console(stderr=True))
    return walk.walk_checkpoint(args, _console(), _console(stderr=True))


def _check(args: argparse.Namespace) -> int:
    from dsv41_numba import report
    from dsv41_numba.check import check
    from dsv41_numba.data import golden
    from dsv41_numba.ops import table
    from dsv41_numba.recording import Recording
    from dsv41_numba.weights import Checkpoint

    cfg, ops, console = _tiny_cfg(args.config), table(args.ops), _console()
    checkpoint = Checkpoint(*(args.weights or [golden("tiny-weights.safetensors")]), cfg=cfg, linear=args.linear)
    recording = Recording(args.recording, args.base)
    with report.progress(_console(stderr=True), f"replaying {recording.path.name}") as update:
        result = check(recording, cfg, checkpoint.layer, ops, args.index_keys, args.layers, args.cache, update)
    report.print_picks(ops, console)
    kinds = ("fp8 linears, " if args.linear == "fp8" else "") + ("packed caches, " if args.cache == "packed" else "")
    return report.print_check(result, recording, f"{kinds}{ops.name}", console)


def _roles(args: argparse.Namespace) -> int:
    from dsv41_numba import report
    from dsv41_numba.config import FLASH, AttnV41Cfg

    cfg = AttnV41Cfg.from_json(args.config) if args.config else FLASH
    report.print_roles(cfg, _console())
    return 0


def _memory(args: argparse.Namespace) -> int:
    from dsv41_numba import memory

    return memory.run(args, _console())


def _stage(args: argparse.Namespace) -> int:
    from dsv41_numba import report
    from dsv41_numba.ops import table
    from dsv41_numba.stages import STAGES, contract, run_stage

    if args.name == "list":
        print("\n".join(STAGES))
        return 0
    if args.name not in STAGES:
        raise ValueError(f"NAME: expected one of {', '.join(STAGES)}, got {args.name!r}")
    cfg = _tiny_cfg(args.config)
    ops, console = table(args.ops), _console()
    result = run_stage(args.name, cfg, args.tokens, args.seed, ops)
    report.print_stage(args.name, contract(args.name, ops), result, console)
    report.print_picks(ops, console)
    return 0 if result.ok else 1


def _exercise(args: argparse.Namespace) -> int:
    from dsv41_numba.exercise import command

    return command.run(args, _console())


def _show(args: argparse.Namespace) -> int:
    from dsv41_numba.show import command

    return command.run(args, _console())


def _make_checkpoint(args: argparse.Namespace) -> int:
    from dsv41_numba import make_checkpoint

    return make_checkpoint.run(args, _console(), _console(stderr=True))


def _bench(args: argparse.Namespace) -> int:
    from dsv41_numba import bench

    return bench.run(args, _console(), _console(stderr=True))


def _doctor(args: Any) -> int:
    from dsv41_numba.doctor import doctor

    return doctor(_console())
