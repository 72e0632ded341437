"""What a translation knows, and how it keeps Python's order of evaluation."""

import ast
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv41_numba.runtime.emulator.scope import Scope
from dsv41_numba.runtime.emulator.syntax import Suspension, assign, name


@dataclass(frozen=True)
class Site:
    """A place in the source that can stop a thread."""

    file: str
    line: int
    text: str
    array: str = ""  # the array that is accessed


@dataclass(frozen=True)
class Array:
    """A shared or local array: `name` in the translated kernel, `label` in the source; `offset` in bytes."""

    name: str
    label: str
    is_shared: bool
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int


class State:
    """The base of the classes that translate; the four methods without a body are theirs."""

    def __init__(self, function: Callable[..., Any], dropped_barrier: int | None = None):
        self.numbers = itertools.count()
        self.out: list[ast.stmt] = []
        self.sites: list[Site] = []
        self.arrays: dict[tuple[Any, int, int], Array] = {}
        self.constants: dict[str, str] = {}  # text of a constant array -> its name
        self.barriers: dict[tuple[str, int, int], int] = {}  # place of a syncthreads -> its number
        self.dropped_barrier = dropped_barrier
        self.uses_atomics = self.uses_votes = False
        self.written: set[str] = set()  # arrays that are stored to; "?" for one that only a variable names
        self.active: list[Callable[..., Any]] = [function]
        self.results: list[str] = []  # for each function being pasted in: where its result goes
        self.kernel = Scope(function, "_")
        if self.kernel.tree.args.defaults or self.kernel.tree.args.kw_defaults:
            self.kernel.fail(self.kernel.tree, "default arguments of a kernel are not supported")

    def block(self, body: Sequence[ast.stmt], scope: Scope) -> list[ast.stmt]:
        """The translation of some statements."""
        raise NotImplementedError

    def expr(self, node: ast.expr, scope: Scope) -> ast.expr:
        """The translation of an expression."""
        raise NotImplementedError

    def constant(self, value: Any, node: ast.AST, scope: Scope) -> ast.expr:
        """An expression for a Python object outside the kernel."""
        raise NotImplementedError

    def paste(self, function: Callable[..., Any], node: ast.Call, scope: Scope) -> ast.expr:
        """The body of a device function at the place of a call."""
        raise NotImplementedError

    def _bytes(self, is_shared: bool) -> int:
        return max(
            (
                a.offset + math.prod(a.shape) * a.dtype.itemsize
                for a in self.arrays.values()
                if a.is_shared == is_shared
            ),
            default=0,
        )

    @property
    def shared_bytes(self) -> int:
        """Static shared memory of a block."""
        return self._bytes(True)

    @property
    def local_bytes(self) -> int:
        """Local arrays of a thread."""
        return self._bytes(False)

    def site(self, node: ast.AST, scope: Scope) -> ast.expr:
        """The number of a new site, as a constant."""
        array = None
        if isinstance(node, ast.Subscript):
            array = node.value
        elif isinstance(node, ast.Call) and node.args:
            array = node.args[0]
        label = ast.unparse(array) if array is not None else ""
        self.sites.append(Site(scope.file, getattr(node, "lineno", 0), ast.unparse(node), label))
        return ast.Constant(len(self.sites) - 1)

    def temporary(self) -> str:
        """A new variable name."""
        return f"_v{next(self.numbers)}"

    def suspend(self, kind: int, node: ast.AST, scope: Scope) -> None:
        """Let the thread stop here until the others of its block or warp have come."""
        self.site(node, scope)
        self.out.append(Suspension(4 * (len(self.sites) - 1) + kind))

    def apart(self, node: ast.expr, scope: Scope) -> tuple[list[ast.stmt], ast.expr]:
        """The translation of an expression, and the statements that must run before it, not yet in `self.out`."""
        saved, self.out = self.out, []
        value = self.expr(node, scope)
        before, self.out = self.out, saved
        return before, value

    def in_order(self, nodes: Sequence[ast.expr], scope: Scope, at_once: int | None = None) -> list[ast.expr]:
        """Translate nodes in evaluation order. When one needs statements, those before it are saved first.
        Of a comparison's operands only the first two (`at_once`) are always evaluated."""
        done: list[ast.expr] = []
        for i, node in enumerate(nodes):
            before, value = self.apart(node, scope)
            if before:
                if at_once is not None and i >= at_once:
                    scope.fail(node, "a device function or warp operation late in a chain of comparisons")
                done = [self.saved(d) for d in done]
                self.out += before
            done.append(value)
        return done

    def saved(self, node: ast.expr) -> ast.expr:
        """The value in a variable, unless it is one already or a constant."""
        if isinstance(node, (ast.Name, ast.Constant)):
            return node
        if isinstance(node, ast.Slice):
            return ast.Slice(*(p and self.saved(p) for p in (node.lower, node.upper, node.step)))
        if isinstance(node, ast.Tuple):
            return ast.Tuple([self.saved(e) for e in node.elts], ast.Load())
        return self.named(node)

    def named(self, value: ast.expr) -> ast.expr:
        """The value in a new variable."""
        temporary = self.temporary()
        self.out.append(assign(temporary, value))
        return name(temporary)
