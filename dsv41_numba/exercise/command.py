"""`dsv41 exercise`: check a reader's files, list the exercises, or write them into a folder."""

import argparse
import hashlib
import os
import pathlib
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from dsv41_numba.exercise import exercises, find
from dsv41_numba.exercise.checks import check, is_started
from dsv41_numba.exercise.files import exercises_dir, shown, solution_file
from dsv41_numba.exercise.report import print_exercise, print_list
from dsv41_numba.exercise.skeleton import write_all
from dsv41_numba.exercise.spec import Exercise
from dsv41_numba.runtime import backend
from dsv41_numba.runtime.emulator import cache

PATIENCE_S = 120  # checks take seconds; a loop without end would take for ever


def run(args: argparse.Namespace, console: Console) -> int:
    """0 solved, 1 not. Raises ValueError or OSError for what cannot be checked."""
    if args.start is not None:
        return start(pathlib.Path(args.start), console)
    folder = pathlib.Path(args.dir) if args.dir else exercises_dir()
    if args.list:
        print_list([(e, state(e, folder / f"{e.file}.py")) for e in exercises().values()], folder, console)
        return 0
    if args.which is None:
        raise ValueError("ID: expected an exercise such as 04a, a chapter such as 04, or --list or --start DIR")
    if args.gpu:
        os.environ["DSV41_BACKEND"] = "gpu"
        if backend.current().name != "gpu":  # another one was chosen before
            raise ValueError(f"--gpu: expected a CUDA device, got the {backend.current().name}")
    chosen = find(args.which)
    if args.hint is not None:
        for exercise in chosen:
            for number, text in enumerate(exercise.hints[: args.hint], 1):
                console.print(f"{exercise.id}, hint {number}: {text}", markup=False)
        return 0
    solved = [one(e, solution_file(e) if args.solution else folder / f"{e.file}.py", args.gpu, console) for e in chosen]
    if len(chosen) > 1:
        console.print(f"{sum(solved)} of {len(chosen)} exercises solved")
    return 0 if all(solved) else 1


def one(exercise: Exercise, path: pathlib.Path, gpu: bool, console: Console) -> bool:
    """Check one file and print the report. Whether it is solved."""
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: expected the exercise there, got no file; `dsv41 exercise --start {shown(path.parent)}` writes it"
        )
    began = time.perf_counter()
    with _patience(path):
        solved = print_exercise(exercise, path, check(exercise, path, gpu), console)
    seconds = f"in {time.perf_counter() - began:.1f} s{' on the GPU' if gpu else ''}"
    console.print()
    console.print(
        f"[bold green]solved[/] {seconds}"
        if solved
        else f"[bold]not solved[/] yet, checked {seconds}; for a hint: dsv41 exercise {exercise.id} --hint 1"
    )
    console.print()
    if solved and not gpu:
        _mark(exercise, path).touch()
    return solved


def state(exercise: Exercise, path: pathlib.Path) -> str:
    """Of a reader's file: "no file", "not started", "started", or "solved" if it is as when it passed every check."""
    if not path.is_file():
        return "no file"
    if not is_started(exercise, path):
        return "not started"
    return "solved" if _mark(exercise, path).exists() else "started"


def start(folder: pathlib.Path, console: Console) -> int:
    """Write the exercises into a folder, and leave files alone that are there."""
    written, kept = write_all(folder, overwrite=False)
    more = f", {len(kept)} were there and are kept as they are" if kept else ""
    console.print(f"{len(written)} exercises written to {shown(folder)}{more}", soft_wrap=True)
    if written:
        where = "" if folder == exercises_dir() else f" --dir {shown(folder)}"
        console.print(
            f"next: open {shown(written[0])}, then `dsv41 exercise {written[0].name[:3]}{where}`", soft_wrap=True
        )
    return 0


def _mark(exercise: Exercise, path: pathlib.Path) -> pathlib.Path:
    """An empty file beside the compiled kernels, there if exactly this text was found to solve the exercise."""
    text = path.read_bytes() + solution_file(exercise).read_bytes()
    return cache.folder() / f"exercise-{exercise.id}-{hashlib.sha256(text).hexdigest()[:16]}.solved"


@contextmanager
def _patience(path: pathlib.Path) -> Iterator[None]:
    """End the process when the block runs for too long: nothing else stops compiled code."""

    def give_up() -> None:
        print(f"{path}: still running after {PATIENCE_S} s: does a loop never end?", file=sys.stderr, flush=True)
        os._exit(1)

    timer = threading.Timer(PATIENCE_S, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
