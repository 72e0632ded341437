"""Expressions: names, operators, indices, and what Python evaluates only when needed."""

import ast
import copy
import re
from typing import Any

import numpy as np
from numba import cuda

from dsv41_numba.runtime.emulator.calls import Calls
from dsv41_numba.runtime.emulator.paste import Paste
from dsv41_numba.runtime.emulator.scope import (
    MISSING,
    Scope,
    dimensions,
    hashable,
    is_device_function,
    operations,
    type_text,
)
from dsv41_numba.runtime.emulator.syntax import assign, call, construct, expression, name, slice_call, small_constant

SIZES = ("shape", "size", "ndim", "strides", "itemsize", "real", "imag", "T")  # attributes of local values


class Expressions(Paste, Calls):
    """Everything that has a value."""

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
            return call("_num.shl" if isinstance(op, ast.LShift) else "_num.shr", left, right)
        if isinstance(op, (ast.FloorDiv, ast.Mod)) and not small_constant(right):
            right = call("_num.divisor", name("_h"), right, self.site(node, scope))
        return ast.BinOp(left, op, right)

    def subscript(self, node: ast.Subscript, scope: Scope) -> ast.expr:
        """a[i], read. The shape of an array is a tuple and needs no check."""
        if isinstance(node.value, ast.Attribute) and node.value.attr in ("shape", "strides"):
            array, index = self.in_order([node.value, node.slice], scope)
            return ast.Subscript(array, index, ast.Load())
        array, index = self.element(node, scope)
        return call("_load", name("_h"), name("_t"), array, index, self.site(node, scope))

    def element(self, node: ast.Subscript, scope: Scope) -> tuple[ast.expr, ast.expr]:
        """The translated array and index of a subscript; a slice in it becomes a call of slice()."""
        array, index = self.in_order([node.value, node.slice], scope)
        if isinstance(index, ast.Slice):
            index = slice_call(index)
        elif isinstance(index, ast.Tuple):
            index = ast.Tuple([slice_call(e) if isinstance(e, ast.Slice) else e for e in index.elts], ast.Load())
        return array, index

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
