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
from collections.abc import Callable, Sequence
from typing import Any

from dsv41_numba.runtime.emulator.expressions import Expressions
from dsv41_numba.runtime.emulator.layout import ENDED
from dsv41_numba.runtime.emulator.scope import ARRAYS, Scope
from dsv41_numba.runtime.emulator.syntax import Suspension, assign, call, construct, name

STATEMENTS = (ast.Pass, ast.Break, ast.Continue)
SHARED_LIMIT_BYTES = 48 * 1024


class Translator(Expressions):
    """The translation of one kernel. `body` is the generator's, before `module` makes text of it."""

    def __init__(self, function: Callable[..., Any], dropped_barrier: int | None = None):
        super().__init__(function, dropped_barrier)
        self.body = self.block(self.kernel.tree.body, self.kernel)
        self.body.append(Suspension(ENDED))
        if self.shared_bytes > SHARED_LIMIT_BYTES:
            self.kernel.fail(
                self.kernel.tree,
                f"{self.shared_bytes} bytes of static shared memory; CUDA allows {SHARED_LIMIT_BYTES}",
            )

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
