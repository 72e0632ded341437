"""Names: what a name in a kernel's source stands for, and the syntax tree of a function."""

import ast
import builtins
import contextlib
import functools
import importlib
import inspect
import operator
import textwrap
from collections.abc import Callable
from typing import Any, NoReturn

import numba
import numpy as np
from numba import cuda
from numba.core.typing.templates import builtin_registry

from dsv41_numba.runtime.emulator.errors import EmulatorError
from dsv41_numba.runtime.emulator.layout import AT_BLOCK, AT_WARP

with contextlib.suppress(ImportError):  # Numba imports it late, and Numba's simulator does not have it
    importlib.import_module("numba.cuda.libdevice")

MISSING = object()  # a name that starts at a local variable, or is not bound at all

BARRIERS = {"syncthreads": AT_BLOCK, "syncwarp": AT_WARP}
SHUFFLES = {
    "shfl_sync": "{0} & 31",
    "shfl_xor_sync": "(_t & 31) ^ {0}",
    "shfl_up_sync": "(_t & 31) - {0}",
    "shfl_down_sync": "(_t & 31) + {0}",
}
VOTES = {  # the engine's number of the vote, and the type of its result
    "ballot_sync": (AT_WARP, 0, "_nb.int32({})"),
    "any_sync": (AT_WARP, 1, "({} != 0)"),
    "all_sync": (AT_WARP, 2, "({} != 0)"),
    "syncthreads_count": (AT_BLOCK, 3, "_nb.int32({})"),
    "syncthreads_or": (AT_BLOCK, 4, "_nb.int32({})"),
    "syncthreads_and": (AT_BLOCK, 5, "_nb.int32({})"),
}
ARRAYS = ("shared.array", "local.array")
ATOMICS = {  # the new value of an element, from the old one {0} and the arguments after the index
    "atomic.add": "{0} + {1}",
    "atomic.sub": "{0} - {1}",
    "atomic.max": "_num.select({1} > {0}, {1}, {0})",  # a NaN on either side changes nothing
    "atomic.min": "_num.select({1} < {0}, {1}, {0})",
    "atomic.nanmax": "_num.fmax({0}, {1})",
    "atomic.nanmin": "_num.fmin({0}, {1})",
    "atomic.and_": "{0} & {1}",
    "atomic.or_": "{0} | {1}",
    "atomic.xor": "{0} ^ {1}",
    "atomic.exch": "{1}",
    "atomic.inc": "_num.select({0} >= {1}, _nb.uint32(0), {0} + _nb.uint32(1))",
    "atomic.dec": "_num.select(({0} == 0) | ({0} > {1}), {1}, {0} - _nb.uint32(1))",
    "atomic.cas": "_num.select({0} == {1}, {2}, {0})",
    "atomic.compare_and_swap": "_num.select({0} == {1}, {2}, {0})",
}
FENCES = ("threadfence", "threadfence_block", "threadfence_system")
GRID = ("grid", "gridsize")


def hashable(value: Any) -> bool:
    """Whether a value can be looked up in a table."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


@functools.cache
def operations() -> dict[Any, str]:
    """From Numba's CUDA functions to their names. A table of objects: a kernel may import them under any name."""
    names = [
        *BARRIERS,
        *SHUFFLES,
        *VOTES,
        *ARRAYS,
        *ATOMICS,
        *FENCES,
        *GRID,
        "fma",
        "popc",
        "clz",
        "ffs",
        "brev",
        "selp",
    ]
    found = {}
    for name in names:
        try:
            found[operator.attrgetter(name)(cuda)] = name
        except AttributeError:  # not in this version of numba's cuda
            continue
    return found


@functools.cache
def dimensions() -> dict[Any, str]:
    """From cuda.threadIdx and its like to their short names."""
    return {cuda.threadIdx: "t", cuda.blockIdx: "b", cuda.blockDim: "bd", cuda.gridDim: "gd"}


def is_device_function(value: Any) -> bool:
    """Whether a value is a `@cuda.jit` function, or one that `register_jitable` lets every compiler of Numba's call."""
    if inspect.isfunction(value):
        return any(value is registered for registered, _ in builtin_registry.globals)
    return hasattr(value, "py_func") and (getattr(type(value), "__module__", "") or "").startswith("numba.cuda")


def python_function(kernel: Any) -> Callable[..., Any]:
    """The Python function under `@cuda.jit`."""
    if type(kernel).__name__ == "FakeCUDAKernel":
        raise EmulatorError("NUMBA_ENABLE_CUDASIM is set, so @cuda.jit made a kernel for Numba's simulator; unset it")
    function = getattr(kernel, "py_func", kernel)
    if not inspect.isfunction(function):
        raise EmulatorError(f"expected a @cuda.jit kernel, got {type(kernel).__name__}")
    return function


@functools.cache
def tree_of(function: Callable[..., Any]) -> ast.FunctionDef:
    """The syntax tree of a function, with the line numbers of its file."""
    try:
        lines, first = inspect.getsourcelines(function)
    except OSError as error:
        raise EmulatorError(f"{function.__name__}: its source cannot be read: {error}") from None
    tree = ast.parse(textwrap.dedent("".join(lines)))
    ast.increment_lineno(tree, first - 1)
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise EmulatorError(f"{function.__code__.co_filename}:{first}: {type(definition).__name__} is not supported")
    return definition


class Scope:
    """One function being translated: the kernel, or a device function at one of the places that call it."""

    def __init__(self, function: Callable[..., Any], suffix: str):
        self.function, self.tree, self.file = function, tree_of(function), function.__code__.co_filename
        arguments = self.tree.args
        if arguments.vararg or arguments.kwarg:
            self.fail(self.tree, "*args and **kwargs are not supported")
        self.parameters = [a.arg for a in arguments.posonlyargs + arguments.args + arguments.kwonlyargs]
        stored = [n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        self.stores = {name: stored.count(name) for name in stored}
        self.locals = {*self.parameters, *self.stores}
        self.rename: dict[str, ast.expr] = {n: ast.Name(n + suffix, ast.Load()) for n in self.locals}
        self.cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))

    def static(self, node: ast.expr) -> Any:
        """The Python object that a dotted name refers to, or MISSING.

        An intrinsic that carries an `emulated` device function, as those of `tuned.ptx` do, means that function.
        """
        found = self._static(node)
        return getattr(found, "emulated", found) if type(found).__name__ == "_Intrinsic" else found

    def _static(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name) and node.id not in self.locals:
            if node.id in self.cells:
                return self.cells[node.id].cell_contents
            return self.function.__globals__.get(node.id, getattr(builtins, node.id, MISSING))
        if isinstance(node, ast.Attribute):
            base = self.static(node.value)
            return MISSING if base is MISSING else getattr(base, node.attr, MISSING)
        return MISSING

    def operation(self, node: ast.AST) -> Any:
        """What a call calls: the name of a CUDA operation, a device function, or None."""
        target = self.static(node.func) if isinstance(node, ast.Call) else MISSING
        if hashable(target) and target in operations():
            return operations()[target]
        return target if is_device_function(target) else None

    def fail(self, node: ast.AST, message: str) -> NoReturn:
        """Refuse the kernel, naming the place."""
        line = getattr(node, "lineno", self.function.__code__.co_firstlineno)
        raise EmulatorError(f"{self.function.__code__.co_filename}:{line}: {self.function.__name__}: {message}")


def type_text(value: Any) -> str | None:
    """How the translated kernel writes a Numba or NumPy number type, or None when the value is no such type."""
    if isinstance(value, type) and issubclass(value, np.generic):
        label = value.__name__
    elif (getattr(type(value), "__module__", "") or "").startswith("numba"):
        label = str(value)
    else:
        return None
    label = {"bool": "boolean", "bool_": "boolean"}.get(label, label)
    known = getattr(numba.types, label, None)
    return f"_nb.{label}" if isinstance(known, (numba.types.Number, numba.types.Boolean)) else None
