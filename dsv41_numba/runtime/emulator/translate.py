"""From a kernel's syntax tree to that of a generator.

One CUDA thread becomes one generator of (context, thread number). What changes on the way:

- a barrier or warp operation becomes `yield 4 * site + kind`; the end becomes `yield ENDED`;
- `cuda.threadIdx.x` and its like become variables, computed from the thread's number or read from the header;
- `cuda.shared.array` and `cuda.local.array` become arrays at fixed offsets of the workspace;
- every `a[i]` becomes `_load(...)` or `_store(...)`, which check the index and, when asked, for races;
- device functions are pasted in at each call, so they may do all of this too.

A statement is translated into `self.out`. An expression is translated into an expression, after it has added to
`self.out` the statements that must run before it: those of a device function, or an exchange with its yield. Where
that happens, operands that come earlier are saved in temporaries first, and `and`, `or` and `... if ... else ...`
become if statements, so everything is still evaluated in Python's order and only when Python would.
"""

import ast
import copy
import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numba import cuda

from dsv41_numba.runtime.emulator import devicelib
from dsv41_numba.runtime.emulator.layout import AT_WARP, ENDED
from dsv41_numba.runtime.emulator.scope import (
    ARRAYS,
    ATOMICS,
    BARRIERS,
    FENCES,
    GRID,
    MISSING,
    SHUFFLES,
    VOTES,
    Scope,
    dimensions,
    hashable,
    is_device_function,
    operations,
    type_text,
)

FULL_MASKS = (0xFFFFFFFF, -1)
SIZES = ("shape", "size", "ndim", "strides", "itemsize", "real", "imag", "T")  # attributes of local values
STATEMENTS = (ast.Pass, ast.Break, ast.Continue)
SHARED_LIMIT_BYTES = 48 * 1024


def name(identifier: str) -> ast.Name:
    """A variable that is read."""
    return ast.Name(identifier, ast.Load())


def assign(target: str, value: ast.expr) -> ast.Assign:
    """target = value"""
    return ast.Assign([ast.Name(target, ast.Store())], value)


def expression(text: str) -> ast.expr:
    """The syntax tree of an expression."""
    return ast.parse(text, mode="eval").body


def statements(text: str) -> list[ast.stmt]:
    """The syntax trees of statements."""
    return ast.parse(text).body


def call(function: str, *arguments: ast.expr) -> ast.Call:
    """function(*arguments)"""
    return ast.Call(expression(function), list(arguments), [])


class Suspension(ast.Pass):
    """Placeholder of a yield: what a thread keeps across it is arranged by `module`."""

    def __init__(self, code: int):
        super().__init__()
        self.code = code


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


class Translator:
    """The translation of one kernel. `body` is the generator's, before `module` makes text of it."""

    def __init__(self, function: Callable[..., Any], dropped_barrier: int | None = None):
        self.numbers = itertools.count()
        self.out: list[ast.stmt] = []
        self.sites: list[Site] = []
        self.arrays: dict[tuple[Any, int, int], Array] = {}
        self.constants: dict[str, str] = {}  # text of a constant array -> its name
        self.barriers: dict[tuple[str, int, int], int] = {}  # place of a syncthreads -> its number
        self.dropped_barrier = dropped_barrier
        self.uses_atomics = self.uses_votes = False
        self.written: set[str] = set()  # arrays that are stored to, as far as their names tell
        self.active: list[Callable[..., Any]] = [function]
        self.results: list[str] = []  # for each function being pasted in: where its result goes
        self.kernel = Scope(function, "_")
        if self.kernel.tree.args.defaults or self.kernel.tree.args.kw_defaults:
            self.kernel.fail(self.kernel.tree, "default arguments of a kernel are not supported")
        self.body = self.block(self.kernel.tree.body, self.kernel)
        self.body.append(Suspension(ENDED))
        if self.shared_bytes > SHARED_LIMIT_BYTES:
            self.kernel.fail(
                self.kernel.tree,
                f"{self.shared_bytes} bytes of static shared memory; CUDA allows {SHARED_LIMIT_BYTES}",
            )

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

    # -- statements ---------------------------------------------------------------------------------------------------
    def block(self, body: Sequence[ast.stmt], scope: Scope) -> list[ast.stmt]:
        """The translation of some statements; each generated one remembers the line that it comes from."""
        saved, self.out = self.out, []
        for statement in body:
            self.statement(statement, scope)
            for made in self.out:
                for part in ast.walk(made):
                    if isinstance(part, ast.stmt) and not hasattr(part, "origin"):
                        part.origin = (scope.file, statement.lineno)  # type: ignore[attr-defined]
        made_here, self.out = self.out, saved
        return made_here

    def apart(self, node: ast.expr, scope: Scope) -> tuple[list[ast.stmt], ast.expr]:
        """The translation of an expression, and the statements that must run before it, not yet in `self.out`."""
        saved, self.out = self.out, []
        value = self.expr(node, scope)
        before, self.out = self.out, saved
        return before, value

    def statement(self, s: ast.stmt, scope: Scope) -> None:
        """Translate one statement into `self.out`."""
        match s:
            case ast.Expr(value=ast.Constant()):
                pass
            case ast.Expr():
                value = self.expr(s.value, scope)
                if isinstance(value, ast.Call):
                    self.out.append(ast.Expr(value))
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.Call()) if scope.operation(s.value) in ARRAYS:
                if scope.stores[target] > 1 or target in scope.parameters:
                    scope.fail(s, f"{target} is bound to a shared or local array and to something else")
                scope.rename[target] = self.array(scope.operation(s.value), target, s.value, scope)
            case ast.Assign():
                value = self.expr(s.value, scope)
                if len(s.targets) > 1:
                    value = self.saved(value)
                for place in s.targets:
                    self.store(place, value, scope)
            case ast.AnnAssign(value=ast.expr() as annotated):
                self.store(s.target, self.expr(annotated, scope), scope)
            case ast.AugAssign():
                self.augmented(s, scope)
            case ast.If():
                test = self.expr(s.test, scope)
                self.out.append(ast.If(test, self.block(s.body, scope) or [ast.Pass()], self.block(s.orelse, scope)))
            case ast.While():
                self.loop_while(s, scope)
            case ast.For():
                self.loop_for(s, scope)
            case ast.Return() if scope is self.kernel:
                if s.value is not None and not (isinstance(s.value, ast.Constant) and s.value.value is None):
                    scope.fail(s, "a kernel returns nothing")
                self.out += [Suspension(ENDED), ast.Return(None)]
            case ast.Return():
                self.returned(s, scope)
            case _ if isinstance(s, STATEMENTS):
                self.out.append(copy.copy(s))
            case _:
                scope.fail(s, f"{construct(s)} is not supported in a kernel")

    def store(self, target: ast.expr, value: ast.expr, scope: Scope) -> None:
        """target = value"""
        match target:
            case ast.Name():
                new = scope.rename[target.id]
                if not isinstance(new, ast.Name):
                    raise AssertionError(target.id)
                self.out.append(assign(new.id, value))
            case ast.Tuple():
                if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
                    parts = [self.saved(v) if not isinstance(v, ast.Constant) else v for v in value.elts]
                    parts = [self.named(v) if isinstance(v, ast.Name) else v for v in parts]
                    for t, v in zip(target.elts, parts):
                        self.store(t, v, scope)
                elif all(isinstance(t, ast.Name) for t in target.elts):
                    names = [scope.rename[t.id] for t in target.elts if isinstance(t, ast.Name)]
                    stored: list[ast.expr] = [ast.Name(n.id, ast.Store()) for n in names if isinstance(n, ast.Name)]
                    self.out.append(ast.Assign([ast.Tuple(stored, ast.Store())], value))
                else:
                    whole = self.saved(value)
                    for i, t in enumerate(target.elts):
                        self.store(t, ast.Subscript(whole, ast.Constant(i), ast.Load()), scope)
            case ast.Subscript():
                value = self.saved(value)
                array, index = self.element(target, scope)
                self.out.append(ast.Expr(self.stored("_store", array, index, value, target, scope)))
            case _:
                scope.fail(target, f"assignment to {ast.unparse(target)} is not supported")

    def named(self, node: ast.Name) -> ast.expr:
        """A copy of a variable, for `a, b = b, a`."""
        copied = self.temporary()
        self.out.append(assign(copied, node))
        return name(copied)

    def stored(
        self, how: str, array: ast.expr, index: ast.expr, value: ast.expr, node: ast.AST, scope: Scope
    ) -> ast.Call:
        """The call that stores value in array[index]."""
        self.written.add(array.id if isinstance(array, ast.Name) else "?")
        return call(how, name("_h"), name("_t"), array, index, value, self.site(node, scope))

    def element(self, node: ast.Subscript, scope: Scope) -> tuple[ast.expr, ast.expr]:
        """The translated array and index of a subscript; a slice in it becomes a call of slice()."""
        array, index = self.in_order([node.value, node.slice], scope)
        if isinstance(index, ast.Slice):
            index = slice_call(index)
        elif isinstance(index, ast.Tuple):
            index = ast.Tuple([slice_call(e) if isinstance(e, ast.Slice) else e for e in index.elts], ast.Load())
        return array, index

    def augmented(self, s: ast.AugAssign, scope: Scope) -> None:
        """target op= value: the target is read before the value is computed, and its index computed once."""
        if isinstance(s.target, ast.Name):
            value = self.expr(s.value, scope)
            self.store(s.target, self.binary(scope.rename[s.target.id], s.op, value, s, scope), scope)
        elif isinstance(s.target, ast.Subscript):
            array, index = self.element(s.target, scope)
            array, index = self.saved(array), self.saved(index)
            old = call("_load", name("_h"), name("_t"), array, index, self.site(s.target, scope))
            before, value = self.apart(s.value, scope)
            left = self.saved(old) if before else old
            self.out += before
            new = self.binary(left, s.op, value, s, scope)
            self.out.append(ast.Expr(self.stored("_store", array, copy.deepcopy(index), new, s.target, scope)))
        else:
            scope.fail(s, f"assignment to {ast.unparse(s.target)} is not supported")

    def loop_while(self, s: ast.While, scope: Scope) -> None:
        """while: when the test needs statements of its own, it moves into the loop."""
        before, test = self.apart(s.test, scope)
        body = self.block(s.body, scope)
        if not before:
            self.out.append(ast.While(test, body or [ast.Pass()], self.block(s.orelse, scope)))
        else:
            if s.orelse:
                scope.fail(s, "while ... else with a device function or warp operation in its test")
            leave = ast.If(ast.UnaryOp(ast.Not(), test), [ast.Break()], [])
            self.out.append(ast.While(ast.Constant(True), [*before, leave, *body], []))
        self.after_loop(s, scope)

    def loop_for(self, s: ast.For, scope: Scope) -> None:
        """for x in range(...), or in a tuple."""
        if not isinstance(s.target, ast.Name):
            scope.fail(s, "a for loop with several variables")
        target = scope.rename[s.target.id]
        iterator = self.expr(s.iter, scope)
        if not (isinstance(s.iter, ast.Call) and scope.static(s.iter.func) is range):
            iterator = call("_rt.not_array", iterator)
        body = self.block(s.body, scope) or [ast.Pass()]
        stored = ast.Name(target.id, ast.Store()) if isinstance(target, ast.Name) else target
        self.out.append(ast.For(stored, iterator, body, self.block(s.orelse, scope)))
        self.after_loop(s, scope)

    # -- device functions: pasted in ----------------------------------------------------------------------------------
    def paste(self, function: Callable[..., Any], node: ast.Call, scope: Scope) -> ast.expr:
        """The body of a device function at the place of a call; returns the expression of its result."""
        if function in self.active:
            scope.fail(node, f"{function.__name__} calls itself: recursion is not supported")
        number = next(self.numbers)
        inner = Scope(function, f"_{number}")
        given = self.bind(inner, node, scope)
        for parameter, value in given.items():
            if isinstance(value, (ast.Name, ast.Constant)) and not inner.stores.get(parameter):
                inner.rename[parameter] = value
            else:
                self.out.append(assign(f"{parameter}_{number}", value))
        self.active.append(function)
        result = self.pasted_body(inner, number)
        self.active.pop()
        return result

    def bind(self, inner: Scope, node: ast.Call, scope: Scope) -> dict[str, ast.expr]:
        """The translated argument of each parameter, evaluated in the order in which the call gives them."""
        label, arguments = inner.function.__name__, inner.tree.args
        positional = [a.arg for a in arguments.posonlyargs + arguments.args]
        if len(node.args) > len(positional):
            scope.fail(node, f"{label} takes {len(positional)} positional arguments, got {len(node.args)}")
        names = positional[: len(node.args)] + [k.arg or "**" for k in node.keywords]
        values = self.in_order([*node.args, *(k.value for k in node.keywords)], scope)
        for parameter in names:
            if parameter not in inner.parameters or names.count(parameter) > 1:
                scope.fail(node, f"{label}: unexpected argument {parameter}")
        given = dict(zip(names, values))
        defaults = dict(inner.function.__kwdefaults__ or {})
        defaults |= dict(zip(reversed(positional), reversed(inner.function.__defaults__ or ())))
        for parameter in inner.parameters:
            if parameter not in given:
                if parameter not in defaults:
                    scope.fail(node, f"{label}: missing argument {parameter}")
                given[parameter] = self.constant(defaults[parameter], node, scope)
        return given

    def pasted_body(self, inner: Scope, number: int) -> ast.expr:
        """A body whose only return is its last statement stays as it is. Any other goes into a loop that runs once,
        where a return is an assignment and a break."""
        body = inner.tree.body
        returns = [n for s in body for n in ast.walk(s) if isinstance(n, ast.Return)]
        if not returns:
            self.out += self.block(body, inner)
            return ast.Constant(None)
        if len(returns) == 1 and returns[0] is body[-1]:
            self.out += self.block(body[:-1], inner)
            value = returns[0].value
            return self.expr(value, inner) if value is not None else ast.Constant(None)
        if any((r.value is None) != (returns[0].value is None) for r in returns) or (
            returns[0].value is not None and not always_returns(body)
        ):
            inner.fail(inner.tree, "a device function that returns a value on some of its paths only")
        result = f"_r{number}"
        self.results.append(result)
        inside = self.block(body, inner)
        self.results.pop()
        if any(isinstance(n, (ast.For, ast.While)) and has_return(n) for s in body for n in ast.walk(s)):
            self.out += statements(f"{result}_left = False")
        self.out.append(ast.While(ast.Constant(True), [*inside, ast.Break()], []))
        return name(result) if any(r.value is not None for r in returns) else ast.Constant(None)

    def returned(self, s: ast.Return, scope: Scope) -> None:
        """return, in a pasted function: inside a loop a flag tells the loops around it to end as well."""
        result = self.results[-1]
        if s.value is not None:
            self.out.append(assign(result, self.expr(s.value, scope)))
        if in_loop(s, scope.tree):
            self.out += statements(f"{result}_left = True")
        self.out.append(ast.Break())

    def after_loop(self, loop: ast.stmt, scope: Scope) -> None:
        """Go on leaving a pasted function after one of its loops was left by a return."""
        if scope is not self.kernel and has_return(loop):
            self.out += statements(f"if {self.results[-1]}_left: break")

    # -- expressions --------------------------------------------------------------------------------------------------
    def expr(self, node: ast.expr, scope: Scope) -> ast.expr:
        """Translate one expression."""
        match node:
            case ast.Name() | ast.Attribute():
                return self.reference(node, scope)
            case ast.Call():
                return self.call(node, scope)
            case ast.Subscript():
                return self.subscript(node, scope)
            case ast.BoolOp():
                return self.lazy_bool(node, scope)
            case ast.IfExp():
                return self.lazy_if(node, scope)
            case ast.BinOp():
                left, right = self.in_order([node.left, node.right], scope)
                return self.binary(left, node.op, right, node, scope)
            case ast.Constant(value=value) if type(value) in (bool, int, float, complex, type(None)):
                return ast.Constant(value)
            case ast.Compare():
                if any(isinstance(op, (ast.In, ast.NotIn)) for op in node.ops):
                    scope.fail(node, "in is not supported")
                operands = self.in_order([node.left, *node.comparators], scope, at_once=2)
                return ast.Compare(operands[0], node.ops, operands[1:])
            case ast.UnaryOp():
                return ast.UnaryOp(node.op, self.expr(node.operand, scope))
            case ast.Tuple():
                if any(isinstance(e, ast.Starred) for e in node.elts):
                    scope.fail(node, "*values in a tuple are not supported")
                return ast.Tuple(self.in_order(node.elts, scope), ast.Load())
            case ast.Slice():
                parts = [p for p in (node.lower, node.upper, node.step) if p is not None]
                done = iter(self.in_order(parts, scope))
                return ast.Slice(*(next(done) if p is not None else None for p in (node.lower, node.upper, node.step)))
            case ast.Constant():
                scope.fail(node, f"the constant {node.value!r} is not supported")
            case _:
                scope.fail(node, f"{construct(node)} is not supported in a kernel")

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
        temporary = self.temporary()
        self.out.append(assign(temporary, node))
        return name(temporary)

    def lazy_bool(self, node: ast.BoolOp, scope: Scope) -> ast.expr:
        """a and b, a or b: b's statements run only when b is needed."""
        done = [self.apart(v, scope) for v in node.values]
        self.out += done[0][0]
        if not any(before for before, _ in done[1:]):
            return ast.BoolOp(node.op, [value for _, value in done])
        result = self.temporary()
        self.out.append(assign(result, done[0][1]))
        here = self.out
        for before, value in done[1:]:
            test = name(result) if isinstance(node.op, ast.And) else ast.UnaryOp(ast.Not(), name(result))
            branch = ast.If(test, [*before, assign(result, value)], [])
            here.append(branch)
            here = branch.body
        return name(result)

    def lazy_if(self, node: ast.IfExp, scope: Scope) -> ast.expr:
        """a if test else b: only one of them is evaluated."""
        test = self.expr(node.test, scope)
        (before_a, a), (before_b, b) = self.apart(node.body, scope), self.apart(node.orelse, scope)
        if not before_a and not before_b:
            return ast.IfExp(test, a, b)
        result = self.temporary()
        self.out.append(ast.If(test, [*before_a, assign(result, a)], [*before_b, assign(result, b)]))
        return name(result)

    def binary(self, left: ast.expr, op: ast.operator, right: ast.expr, node: ast.AST, scope: Scope) -> ast.expr:
        """left op right, where CUDA and the CPU agree, else what CUDA does."""
        if isinstance(op, ast.MatMult):
            scope.fail(node, "@ is not supported")
        if isinstance(op, (ast.LShift, ast.RShift)) and small_constant(right) is None:
            return call("_rt.shl" if isinstance(op, ast.LShift) else "_rt.shr", left, right)
        if isinstance(op, (ast.FloorDiv, ast.Mod)) and not small_constant(right):
            right = call("_rt.divisor", name("_h"), right, self.site(node, scope))
        return ast.BinOp(left, op, right)

    def subscript(self, node: ast.Subscript, scope: Scope) -> ast.expr:
        """a[i], read. The shape of an array is a tuple and needs no check."""
        if isinstance(node.value, ast.Attribute) and node.value.attr in ("shape", "strides"):
            array, index = self.in_order([node.value, node.slice], scope)
            return ast.Subscript(array, index, ast.Load())
        array, index = self.element(node, scope)
        return call("_load", name("_h"), name("_t"), array, index, self.site(node, scope))

    def reference(self, node: ast.Name | ast.Attribute, scope: Scope) -> ast.expr:
        """A name or an attribute: a local variable, a thread index, or a Python object outside the kernel."""
        if isinstance(node, ast.Name) and node.id in scope.locals:
            return copy.deepcopy(scope.rename[node.id])
        if isinstance(node, ast.Attribute):
            base = scope.static(node.value)
            if hashable(base) and base in dimensions():
                if node.attr not in ("x", "y", "z"):
                    scope.fail(node, f"{ast.unparse(node)} does not exist")
                return name(f"_{dimensions()[base]}{node.attr}")
        value = scope.static(node)
        if value is cuda.laneid:
            return name("_lane")
        if value is cuda.warpsize:
            return expression("_nb.int32(32)")
        if value is not MISSING:
            return self.constant(value, node, scope)
        if isinstance(node, ast.Attribute) and scope.static(node.value) is MISSING:
            if node.attr not in SIZES:
                scope.fail(node, f".{node.attr} is not supported")
            return ast.Attribute(self.expr(node.value, scope), node.attr, ast.Load())
        scope.fail(node, f"{ast.unparse(node)} is not defined")

    def constant(self, value: Any, node: ast.AST, scope: Scope) -> ast.expr:
        """An expression for a Python object outside the kernel."""
        if value is None or type(value) in (bool, int):
            return ast.Constant(value)
        if type(value) is float:
            return expression(re.sub("inf|nan", r"math.\g<0>", repr(value)))
        if isinstance(value, np.generic) and value.dtype.kind in "biuf":
            text = re.sub("inf|nan", r"math.\g<0>", repr(value.item()))
            return expression(f"{type_text(type(value))}({text})")
        if isinstance(value, tuple):
            return ast.Tuple([self.constant(v, node, scope) for v in value], ast.Load())
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            made = f"np.frombuffer({value.tobytes()!r}, np.dtype({value.dtype.str!r})).reshape({value.shape})"
            return name(self.constants.setdefault(made, f"_array{len(self.constants)}"))
        kind = type_text(value)
        if kind is not None:
            return expression(kind)
        if (hashable(value) and value in operations()) or is_device_function(value):
            scope.fail(node, f"{ast.unparse(node)} can only be called")
        scope.fail(node, f"{ast.unparse(node)} is not supported by the emulator")

    # -- calls --------------------------------------------------------------------------------------------------------
    def call(self, node: ast.Call, scope: Scope) -> ast.expr:
        """Translate a call."""
        if any(isinstance(a, ast.Starred) for a in node.args):
            scope.fail(node, "*arguments are not supported")
        operation = scope.operation(node)
        if is_device_function(operation):
            return self.paste(operation.py_func, node, scope)
        if operation in ARRAYS:
            return self.array(operation, f"{ast.unparse(node)}", node, scope)
        if operation is None:
            return self.plain_call(node, scope)
        if node.keywords:
            scope.fail(node, f"cuda.{operation}: pass arguments by position")
        if operation == "syncthreads":
            place = (scope.file, node.lineno, node.col_offset)
            if self.barriers.setdefault(place, len(self.barriers)) == self.dropped_barrier:
                return ast.Constant(None)
        if operation in BARRIERS:
            if operation == "syncwarp" and node.args:
                self.full_mask(node.args[0], scope)
            self.suspend(BARRIERS[operation], node, scope)
            return ast.Constant(None)
        if operation in FENCES:
            return ast.Constant(None)
        if operation in SHUFFLES:
            return self.shuffle(operation, node, scope)
        if operation in VOTES:
            return self.vote(operation, node, scope)
        if operation in ATOMICS:
            return self.atomic(operation, node, scope)
        if operation in GRID:
            return self.grid(operation, node, scope)
        return self.pasted_text(devicelib.CUDA[operation], node, scope)

    def plain_call(self, node: ast.Call, scope: Scope) -> ast.expr:
        """A call of anything that is not CUDA's own: a type, a math function, a method."""
        target = scope.static(node.func)
        if target is MISSING and isinstance(node.func, ast.Attribute) and scope.static(node.func.value) is MISSING:
            if node.func.attr != "view" or len(node.args) != 1 or node.keywords:
                scope.fail(node, f"the method .{node.func.attr} is not supported")
            return call("_rt.bitcast", *self.in_order([node.func.value, node.args[0]], scope))
        if node.keywords:
            scope.fail(node, f"{ast.unparse(node.func)}: pass arguments by position")
        kind = None if target is MISSING else type_text(target)
        if kind is not None:
            return self.converted(kind, node, scope)
        if target in (min, max):
            values = self.in_order(node.args, scope)
            if len(values) < 2:
                scope.fail(node, "min and max take at least two numbers")
            result = values[0]
            for value in values[1:]:
                result = call("_rt.fmin" if target is min else "_rt.fmax", result, value)
            return result
        if target is range:
            return ast.Call(name("range"), self.in_order(node.args, scope), [])
        label = getattr(target, "__name__", "")
        if (getattr(target, "__module__", "") or "").endswith("cuda.libdevice"):
            if label not in devicelib.LIBDEVICE:
                scope.fail(node, f"libdevice.{label} is not supported by the emulator")
            return self.pasted_text(devicelib.LIBDEVICE[label], node, scope)
        if hashable(target) and target in devicelib.PYTHON:
            return self.pasted_text(devicelib.PYTHON[target], node, scope)
        if getattr(math, label, MISSING) is target and label in devicelib.MATH:
            return ast.Call(expression(f"math.{label}"), self.in_order(node.args, scope), [])
        if target is MISSING and not isinstance(node.func, ast.Name | ast.Attribute):
            scope.fail(node, f"a call of {construct(node.func)} is not supported in a kernel")
        if target is MISSING:
            scope.fail(node, f"{ast.unparse(node.func)} is not defined")
        scope.fail(node, f"{ast.unparse(node.func)} is not supported by the emulator")

    def converted(self, kind: str, node: ast.Call, scope: Scope) -> ast.expr:
        """int32(x), float32(x) and their like."""
        if len(node.args) != 1:
            scope.fail(node, f"{ast.unparse(node.func)} takes one number")
        value = self.expr(node.args[0], scope)
        whole = isinstance(getattr(numba.types, kind.removeprefix("_nb.")), numba.types.Integer)
        if whole and not (isinstance(value, ast.Constant) and type(value.value) is int):
            return call("_rt.cast", value, expression(kind))
        return ast.Call(expression(kind), [value], [])

    def pasted_text(self, text: str, node: ast.Call, scope: Scope) -> ast.expr:
        """An expression of `devicelib` with the call's arguments in their places."""
        wanted = 1 + max(int(i) for i in re.findall(r"{(\d)", text))
        if len(node.args) != wanted or node.keywords:
            scope.fail(node, f"{ast.unparse(node.func)} takes {wanted} arguments by position")
        values = self.in_order(node.args, scope)
        values = [self.saved(v) if text.count(f"{{{i}}}") > 1 else v for i, v in enumerate(values)]
        return expression(text.format(*(f"({ast.unparse(v)})" for v in values)))

    def grid(self, operation: str, node: ast.Call, scope: Scope) -> ast.expr:
        """cuda.grid(n) and cuda.gridsize(n)."""
        match node.args:
            case [ast.Constant(value=int(count))] if 1 <= count <= 3:
                pass
            case _:
                scope.fail(node, f"cuda.{operation} takes the literal 1, 2 or 3")
        form = "_nb.int64(_b{0}) * _bd{0} + _t{0}" if operation == "grid" else "_nb.int64(_bd{0}) * _gd{0}"
        axes = [expression(form.format(axis)) for axis in "xyz"[:count]]
        return axes[0] if count == 1 else ast.Tuple(axes, ast.Load())

    def suspend(self, kind: int, node: ast.AST, scope: Scope) -> None:
        """Let the thread stop here until the others of its block or warp have come."""
        self.site(node, scope)
        self.out.append(Suspension(4 * (len(self.sites) - 1) + kind))

    def full_mask(self, node: ast.expr, scope: Scope) -> None:
        """Refuse a warp operation that does not name all 32 lanes."""
        if isinstance(node, ast.Call) and len(node.args) == 1 and type_text(scope.static(node.func)) is not None:
            node = node.args[0]  # uint32(0xFFFFFFFF)
        value = node.value if isinstance(node, ast.Constant) else scope.static(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            value = -node.operand.value  # type: ignore[operator]
        if not isinstance(value, (int, np.integer)) or int(value) not in FULL_MASKS:
            scope.fail(node, f"only the full warp mask 0xFFFFFFFF is supported, got {ast.unparse(node)}")

    def warp_arguments(self, count: int, node: ast.Call, scope: Scope) -> list[ast.expr]:
        """The arguments of a warp operation after its mask, in variables: they are used on both sides of the yield."""
        if len(node.args) != count + 1:
            scope.fail(node, f"{ast.unparse(node.func)} takes a mask and {count} arguments")
        self.full_mask(node.args[0], scope)
        return [self.saved(v) for v in self.in_order(node.args[1:], scope)]

    def shuffle(self, operation: str, node: ast.Call, scope: Scope) -> ast.expr:
        """Every lane puts its value into the exchange row, all meet, and each takes that of the lane it wants."""
        value, lane = self.warp_arguments(2, node, scope)
        if isinstance(value, ast.Constant):
            value = self.named_constant(value)
        self.out.append(ast.Expr(call("_rt.put_warp", name("_h"), name("_t"), value)))
        self.suspend(AT_WARP, node, scope)
        source = expression(SHUFFLES[operation].format(f"({ast.unparse(lane)})"))
        return self.saved(call("_rt.shuffled", name("_h"), name("_t"), value, source, self.site(node, scope)))

    def named_constant(self, value: ast.expr) -> ast.expr:
        temporary = self.temporary()
        self.out.append(assign(temporary, value))
        return name(temporary)

    def vote(self, operation: str, node: ast.Call, scope: Scope) -> ast.expr:
        """Every thread puts 0 or 1 into the exchange row, all meet, and each counts."""
        self.uses_votes = True
        kind, what, form = VOTES[operation]
        if kind == AT_WARP:
            (value,) = self.warp_arguments(1, node, scope)
        else:
            if len(node.args) != 1:
                scope.fail(node, f"cuda.{operation} takes one argument")
            value = self.expr(node.args[0], scope)
        truth = expression(f"_nb.int64(({ast.unparse(value)}) != 0)")
        put = "_rt.put_warp" if kind == AT_WARP else "_rt.put_block"
        self.out.append(ast.Expr(call(put, name("_h"), name("_t"), truth)))
        self.suspend(kind, node, scope)
        return self.saved(expression(form.format(f"_rt.vote(_h, _t, {what})")))

    def atomic(self, operation: str, node: ast.Call, scope: Scope) -> ast.expr:
        """Read, combine, write: one thread runs at a time, so nothing can come between. The result is the old value."""
        self.uses_atomics = True
        form = ATOMICS[operation]
        swap = operation == "atomic.compare_and_swap"  # takes no index
        count = 1 + ("{2}" in form) + (not swap) + 1
        if len(node.args) != count:
            scope.fail(node, f"cuda.{operation} takes {count} arguments")
        values = self.in_order(node.args, scope)
        if swap:
            values.insert(1, ast.Constant(0))
        array, index, *operands = (self.saved(v) for v in values)
        operands = [self.saved(call("_rt.as_element", copy.deepcopy(array), v)) for v in operands]
        old = self.saved(call("_load_atomic", name("_h"), name("_t"), array, index, self.site(node, scope)))
        new = expression(form.format(*(ast.unparse(v) for v in (old, *operands))))
        self.out.append(ast.Expr(self.stored("_store_atomic", array, copy.deepcopy(index), new, node, scope)))
        return old

    def array(self, operation: str, label: str, node: ast.expr, scope: Scope) -> ast.expr:
        """cuda.shared.array and cuda.local.array: the same array wherever the same line is pasted in, as on CUDA."""
        key = scope.function, node.lineno, node.col_offset
        if key in self.arrays:
            return name(self.arrays[key].name)
        if not isinstance(node, ast.Call):
            raise AssertionError(label)
        given = dict(zip(("shape", "dtype", "alignment"), node.args)) | {k.arg: k.value for k in node.keywords}
        if not {"shape", "dtype"} <= given.keys() <= {"shape", "dtype", "alignment"}:
            scope.fail(node, f"cuda.{operation} takes shape and dtype")
        shape = self.shape(given["shape"], scope)
        kind = type_text(scope.static(given["dtype"]))
        if kind is None:
            scope.fail(node, f"cuda.{operation}: {ast.unparse(given['dtype'])} is not a number type")
        dtype = np.dtype(str(getattr(numba.types, kind.removeprefix("_nb."))))
        is_shared = operation == "shared.array"
        if 0 in shape and not (is_shared and shape == (0,)):
            scope.fail(node, f"cuda.{operation}: a size of 0")
        offset = self._bytes(is_shared) if shape != (0,) else 0
        made = Array(
            f"_{'s' if is_shared else 'l'}{len(self.arrays)}", label, is_shared, shape, dtype, -(-offset // 16) * 16
        )
        self.arrays[key] = made
        return name(made.name)

    def shape(self, node: ast.expr, scope: Scope) -> tuple[int, ...]:
        """A shape as numba-cuda takes it: literals and names of constants, no arithmetic."""
        parts = node.elts if isinstance(node, ast.Tuple) else [node]
        sizes = [p.value if isinstance(p, ast.Constant) else scope.static(p) for p in parts]
        if len(sizes) == 1 and isinstance(sizes[0], tuple):
            sizes = list(sizes[0])
        for size in sizes:
            if not isinstance(size, (int, np.integer)) or isinstance(size, bool):
                scope.fail(node, f"a shape of literals and names of constants is needed, got {ast.unparse(node)}")
            if size < 0:
                scope.fail(node, f"a negative size in {ast.unparse(node)}")
        return tuple(int(size) for size in sizes)  # type: ignore[arg-type]


CONSTRUCTS = {
    "FunctionDef": "a nested def",
    "Try": "try",
    "With": "with",
    "Assert": "assert",
    "Lambda": "lambda",
    "JoinedStr": "a string",
    "ListComp": "a list comprehension",
    "GeneratorExp": "a generator expression",
    "NamedExpr": ":=",
}


def construct(node: ast.AST) -> str:
    """What Python programmers call a kind of syntax."""
    kind = type(node).__name__
    return CONSTRUCTS.get(kind, kind.lower())


def has_return(node: ast.AST) -> bool:
    """Whether a return stands somewhere inside."""
    return any(isinstance(n, ast.Return) for n in ast.walk(node))


def always_returns(body: Sequence[ast.stmt]) -> bool:
    """Whether the end of some statements cannot be reached."""
    match body[-1]:
        case ast.Return():
            return True
        case ast.If(body=then, orelse=[_, *_] as otherwise):
            return always_returns(then) and always_returns(otherwise)
        case ast.While(test=ast.Constant(value=True | 1)) as loop:
            return not any(isinstance(n, ast.Break) for n in ast.walk(loop))
    return False


def in_loop(node: ast.stmt, tree: ast.FunctionDef) -> bool:
    """Whether a statement stands inside a loop of its function."""
    loops = [n for n in ast.walk(tree) if isinstance(n, (ast.For, ast.While))]
    return any(node is inside for loop in loops for inside in ast.walk(loop))


def small_constant(node: ast.expr) -> int | None:
    """The value of a literal in 0..31, bare or in a conversion such as uint32(16), else None."""
    if isinstance(node, ast.Call) and len(node.args) == 1 and ast.unparse(node.func).startswith("_nb."):
        node = node.args[0]
    if isinstance(node, ast.Constant) and type(node.value) is int and 0 <= node.value < 32:
        return node.value
    return None


def slice_call(node: ast.Slice) -> ast.expr:
    """lower:upper:step as a value."""
    parts = [p or ast.Constant(None) for p in (node.lower, node.upper, node.step)]
    return call("slice", *parts)
