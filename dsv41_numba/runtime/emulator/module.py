"""The text of a translated kernel: a Python module with one generator function.

What a thread keeps across a yield costs memory traffic at each step, so nothing is kept that can be had again: the
arguments, the header and the arrays are loaded anew in each run of statements between two yields, and only there where
the run uses them. The state of a matrix product's thread is 136 bytes this way.
"""

import ast
import re
from dataclasses import dataclass

from dsv41_numba.runtime.emulator import layout as at
from dsv41_numba.runtime.emulator.syntax import Suspension, statements
from dsv41_numba.runtime.emulator.translate import Translator

WORDS = {
    **{f"_b{axis}": at.BX + i for i, axis in enumerate("xyz")},
    **{f"_bd{axis}": at.BDX + i for i, axis in enumerate("xyz")},
    **{f"_gd{axis}": at.GDX + i for i, axis in enumerate("xyz")},
}


@dataclass(frozen=True)
class Module:
    """The generated text, the name of its function, and for each of its lines the (file, line) that it comes from."""

    text: str
    function: str
    origins: dict[int, tuple[str, int]]


def assemble(translated: Translator, check: bool, race: bool) -> Module:
    """The module of a translated kernel, with or without the check of indices and of races."""
    parameters = [translated.kernel.rename[p].id + "in" for p in translated.kernel.parameters]  # type: ignore[attr-defined]
    head = [
        f"# generated from {translated.kernel.function.__module__}.{translated.kernel.function.__qualname__}",
        "import math",
        "import numba.types as _nb",
        "import numpy as np",
        "import dsv41_numba.runtime.emulator.exchange as _ex",
        "import dsv41_numba.runtime.emulator.intrinsics as _rt",
        "import dsv41_numba.runtime.emulator.numeric as _num",
        f"_load, _store, _load_atomic, _store_atomic = _rt.accessors({check}, {race})",
    ]
    head += [f"_f{i} = _rt.field({i})" for i in range(len(parameters) + 1)]
    head += [f"{label} = {text}" for text, label in translated.constants.items()]
    loads = {"_h": f"_h = _f{len(parameters)}(_ctx)"}
    for i, parameter in enumerate(translated.kernel.parameters):
        # a parameter that the kernel assigns is a variable; any other is loaded wherever it is used
        label = parameter + ("_in" if translated.kernel.stores.get(parameter) else "_")
        loads[label] = f"{label} = _f{i}(_ctx)"
    for array in translated.arrays.values():
        offset = array.offset if array.shape != (0,) else -(-translated.shared_bytes // 16) * 16
        head.append(
            f"_m{array.name} = _rt.memory({array.is_shared}, {offset}, {array.shape}, _nb.{array.dtype.name})".replace(
                "_nb.bool)", "_nb.boolean)"
            )
        )
        loads[array.name] = f"{array.name} = _m{array.name}(_h, _t)"
    loads |= {word: f"{word} = _rt.index32(_h, {index})" for word, index in WORDS.items()}
    start = [f"{p}_ = {p}_in" for p in translated.kernel.parameters if translated.kernel.stores.get(p)]
    used = {n.id for s in translated.body for n in ast.walk(s) if isinstance(n, ast.Name)}
    start += [f"_t{c} = _rt.thread_index(_h, _t, {i})" for i, c in enumerate("xyz") if f"_t{c}" in used]
    start += ["_lane = _nb.int32(_t & 31)"] * ("_lane" in used)
    body = _reload(statements("\n".join(start)) + translated.body, loads)
    function = "kernel_" + re.sub(r"\W", "_", translated.kernel.function.__name__)
    made = ast.FunctionDef(function, ast.parse("def f(_ctx, _t): pass").body[0].args, body, [])  # type: ignore[attr-defined]
    text = "\n".join(head) + "\n\n\n"
    first = text.count("\n")
    text += ast.unparse(ast.fix_missing_locations(made)) + "\n"
    return Module(text, function, _origins(made, text, first))


def _origins(made: ast.FunctionDef, text: str, first: int) -> dict[int, tuple[str, int]]:
    """Walk the syntax tree and that of its own text together: the same statements, with origins and with lines."""
    again = ast.parse(text).body[-1]
    here = [n for n in ast.walk(made) if isinstance(n, ast.stmt)]
    there = [n for n in ast.walk(again) if isinstance(n, ast.stmt)]
    return {b.lineno: a.origin for a, b in zip(here, there) if hasattr(a, "origin")}


def _load(nodes: list[ast.AST], loads: dict[str, str]) -> list[ast.stmt]:
    """The loads of what some nodes use."""
    used = {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name)}
    needed = [text for label, text in loads.items() if label in used]
    if any("(_h" in text for text in needed) and "_h" not in used:
        needed.insert(0, loads["_h"])
    return statements("\n".join(needed))


def _reload(body: list[ast.stmt], loads: dict[str, str]) -> list[ast.stmt]:
    """Expand suspensions, and put loads before each run of statements that has none."""
    out: list[ast.stmt] = []
    run: list[ast.stmt] = []

    def flush() -> None:
        out.extend(_load(list(run), loads) + run)
        run.clear()

    for s in body:
        if not any(isinstance(n, Suspension) for n in ast.walk(s)):
            run.append(s)
            continue
        flush()
        if isinstance(s, Suspension):
            made = statements(f"yield {s.code}")[0]
            if hasattr(s, "origin"):
                made.origin = s.origin  # type: ignore[attr-defined]
            out.append(made)
            continue
        if not isinstance(s, (ast.If, ast.For, ast.While)):
            raise AssertionError(ast.unparse(s))
        head: ast.expr = s.iter if isinstance(s, ast.For) else s.test
        if isinstance(s, ast.While) and _load([head], loads):
            if s.orelse:  # the else branch stays in place: a flag would be needed to move it
                out.extend(_load([head], loads))
                s.body = [*s.body, *_load([head], loads)]
            else:
                s.body.insert(0, ast.If(ast.UnaryOp(ast.Not(), head), [ast.Break()], []))
                s.test = ast.Constant(True)
        else:
            out.extend(_load([head], loads))
        s.body = _reload(s.body, loads)
        s.orelse = _reload(s.orelse, loads)
        out.append(s)
    flush()
    return out
