"""Calls: barriers, warp operations, atomics, shared and local arrays, types and math functions."""

import ast
import copy
import math
import re

import numba
import numpy as np

from dsv41_numba.runtime.emulator import devicelib
from dsv41_numba.runtime.emulator.layout import AT_WARP
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
    hashable,
    is_device_function,
    python_function,
    type_text,
)
from dsv41_numba.runtime.emulator.state import Array, State
from dsv41_numba.runtime.emulator.syntax import call, construct, expression, name

FULL_MASKS = (0xFFFFFFFF, -1)


class Calls(State):
    """Every call of a kernel, by what it calls."""

    def call(self, node: ast.Call, scope: Scope) -> ast.expr:
        """Translate a call."""
        if any(isinstance(a, ast.Starred) for a in node.args):
            scope.fail(node, "*arguments are not supported")
        operation = scope.operation(node)
        if is_device_function(operation):
            return self.paste(python_function(operation), node, scope)
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
            return call("_num.bitcast", *self.in_order([node.func.value, node.args[0]], scope))
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
                result = call("_num.fmin" if target is min else "_num.fmax", result, value)
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
            values = self.in_order(node.args, scope)
            if label not in devicelib.INEXACT or len(values) != 1:
                return ast.Call(expression(f"math.{label}"), values, [])
            value = self.saved(values[0])
            return call("_num.rounded_as", call(f"math.{label}", call("_nb.float64", value)), value)
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
            return call("_num.cast", value, expression(kind))
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
            value = self.named(value)
        self.out.append(ast.Expr(call("_ex.put_warp", name("_h"), name("_t"), value)))
        self.suspend(AT_WARP, node, scope)
        source = expression(SHUFFLES[operation].format(f"({ast.unparse(lane)})"))
        return self.saved(call("_ex.shuffled", name("_h"), name("_t"), value, source, self.site(node, scope)))

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
        put = "_ex.put_warp" if kind == AT_WARP else "_ex.put_block"
        self.out.append(ast.Expr(call(put, name("_h"), name("_t"), truth)))
        self.suspend(kind, node, scope)
        return self.saved(expression(form.format(f"_ex.vote(_h, _t, {what})")))

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

    def stored(
        self, how: str, array: ast.expr, index: ast.expr, value: ast.expr, node: ast.AST, scope: Scope
    ) -> ast.Call:
        """The call that stores value in array[index]."""
        kept = {f"{p}_" for p in self.kernel.parameters if not self.kernel.stores.get(p)}
        kept |= {a.name for a in self.arrays.values()}
        self.written.add(array.id if isinstance(array, ast.Name) and array.id in kept else "?")
        return call(how, name("_h"), name("_t"), array, index, value, self.site(node, scope))

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
