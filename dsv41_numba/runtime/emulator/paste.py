"""Device functions: pasted into the kernel at each call, so that they may hold barriers and shared arrays."""

import ast
from collections.abc import Callable
from typing import Any

from dsv41_numba.runtime.emulator.scope import Scope
from dsv41_numba.runtime.emulator.state import State
from dsv41_numba.runtime.emulator.syntax import always_returns, assign, has_return, in_loop, name, statements


class Paste(State):
    """Calls of device functions, and the returns in them."""

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
