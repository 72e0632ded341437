"""Arithmetic as on CUDA, known to translated kernels as `_num`: only what the CPU would do otherwise."""

import operator

from llvmlite import ir
from numba.core import errors, types
from numba.extending import intrinsic

from dsv41_numba.runtime.emulator import layout as at
from dsv41_numba.runtime.emulator.emit import I1, convert, fault_if


@intrinsic
def cast(typingctx, value, target):
    """int32(value) and its like."""
    to = getattr(target, "instance_type", None)
    if not isinstance(value, (types.Number, types.Boolean)) or not isinstance(to, types.Integer):
        raise errors.TypingError(f"cannot convert {value} to {to}")
    return to(value, target), lambda context, builder, sig, args: convert(context, builder, args[0], value, to)


@intrinsic
def rounded_as(typingctx, result, argument):
    """A float64 result of a math function, rounded once to float32 if its argument was one."""
    to = types.float32 if argument == types.float32 else types.float64
    return to(result, argument), lambda context, builder, sig, args: context.cast(builder, args[0], result, to)


@intrinsic
def to_int(typingctx, value):
    """int(value): int64 of a float, an integer as it is."""
    if not isinstance(value, (types.Integer, types.Float, types.Boolean)):
        raise errors.TypingError(f"int() of {value}")
    to = value if isinstance(value, types.Integer) else types.int64
    return to(value), lambda context, builder, sig, args: convert(context, builder, args[0], value, to)


@intrinsic
def bitcast(typingctx, value, target):
    """value.view(dtype) of a number: the same bits as another type of the same size."""
    to = getattr(target, "instance_type", None) or getattr(target, "dtype", None)
    if not isinstance(value, (types.Integer, types.Float)) or not isinstance(to, (types.Integer, types.Float)):
        raise errors.TypingError(f"{value}.view({to}): only numbers can be viewed, as a number type")
    if value.bitwidth != to.bitwidth:
        raise errors.TypingError(f"view of {value} as {to}: the sizes differ")

    def codegen(context, builder, sig, args):
        return builder.bitcast(args[0], context.get_value_type(to))

    return to(value, target), codegen


def _extreme(name, sign):
    """max or min: of a number and NaN the number, of -0 and +0 the larger or smaller, as CUDA's fmaxf and fminf."""

    @intrinsic
    def extreme(typingctx, a, b):
        both = typingctx.unify_types(a, b)
        if not isinstance(both, (types.Integer, types.Float)):
            raise errors.TypingError(f"{name} of {a} and {b}")

        def codegen(context, builder, sig, args):
            x, y = (context.cast(builder, v, k, both) for v, k in zip(args, (a, b)))
            if isinstance(both, types.Integer):
                compare = builder.icmp_signed if both.signed else builder.icmp_unsigned
                return builder.select(compare(sign, x, y), x, y)
            first = builder.or_(builder.fcmp_ordered(sign, x, y), builder.fcmp_unordered("uno", y, y))
            equal = builder.fcmp_ordered("==", x, y)
            whole = ir.IntType(both.bitwidth)
            merge = builder.and_ if name == "max" else builder.or_  # differs from x and y only where both are zeros
            zero = builder.bitcast(merge(builder.bitcast(x, whole), builder.bitcast(y, whole)), x.type)
            return builder.select(equal, zero, builder.select(first, x, y))

        return both(a, b), codegen

    return extreme


fmax, fmin = _extreme("max", ">"), _extreme("min", "<")


def rounding(name):
    """math.floor and its like: on CUDA they give a float; on the CPU Numba gives an int64."""

    @intrinsic
    def rounded(typingctx, value):
        to = value if isinstance(value, types.Float) else types.float64
        if not isinstance(value, (types.Integer, types.Float)):
            raise errors.TypingError(f"{name} of {value}")

        def codegen(context, builder, sig, args):
            x = context.cast(builder, args[0], value, to)
            return builder.call(builder.module.declare_intrinsic(f"llvm.{name}", [x.type]), [x])

        return to(value), codegen

    return rounded


floor, ceil, trunc, rint, roundf = (rounding(name) for name in ("floor", "ceil", "trunc", "rint", "round"))


@intrinsic
def fma(typingctx, a, b, c):
    """a * b + c with one rounding."""
    kind = typingctx.unify_types(a, b, c)
    if not isinstance(kind, types.Float):
        raise errors.TypingError(f"fma of {a}, {b}, {c}")

    def codegen(context, builder, sig, args):
        return builder.fma(*(context.cast(builder, v, k, kind) for v, k in zip(args, sig.args)))

    return kind(a, b, c), codegen


@intrinsic
def fmod(typingctx, a, b):
    """math.fmod, which Numba has on CUDA only."""
    kind = typingctx.unify_types(a, b)
    kind = kind if isinstance(kind, types.Float) else types.float64

    def codegen(context, builder, sig, args):
        return builder.frem(*(context.cast(builder, v, k, kind) for v, k in zip(args, (a, b))))

    return kind(a, b), codegen


def _shift(op, name):
    @intrinsic
    def shift(typingctx, a, b):
        inner = typingctx.resolve_function_type(op, (types.unliteral(a), types.unliteral(b)), {})
        if inner is None or not isinstance(inner.return_type, types.Integer):
            raise errors.TypingError(f"{a} {name} {b}")
        kind = inner.return_type

        def codegen(context, builder, sig, args):
            x = context.cast(builder, args[0], a, kind)
            n = context.cast(builder, args[1], b, kind)
            width = ir.Constant(n.type, kind.bitwidth)
            inside = builder.icmp_unsigned("<", n, width)
            if op is operator.rshift and kind.signed:
                return builder.ashr(x, builder.select(inside, n, ir.Constant(n.type, kind.bitwidth - 1)))
            safe = builder.select(inside, n, ir.Constant(n.type, 0))
            shifted = builder.shl(x, safe) if op is operator.lshift else builder.lshr(x, safe)
            return builder.select(inside, shifted, ir.Constant(x.type, 0))

        return kind(a, b), codegen

    return shift


shl, shr = _shift(operator.lshift, "<<"), _shift(operator.rshift, ">>")  # all bits leave when the amount is too large


@intrinsic
def divisor(typingctx, h, value, site):
    """The value, after a check that an integer divisor is not 0."""

    def codegen(context, builder, sig, args):
        h, v, site = args
        if isinstance(value, types.Integer):
            zero = builder.icmp_signed("==", v, ir.Constant(v.type, 0))
            fault_if(context, builder, zero, h, at.FAULT_DIVIDE, site)
        return v

    return value(h, value, types.intp), codegen


@intrinsic
def select(typingctx, condition, a, b):
    """cuda.selp."""
    kind = typingctx.unify_types(a, b)
    if kind is None:
        raise errors.TypingError(f"selp of {a} and {b}")

    def codegen(context, builder, sig, args):
        test = context.is_true(builder, condition, args[0])
        x, y = (context.cast(builder, v, k, kind) for v, k in zip(args[1:], (a, b)))
        return builder.select(test, x, y)

    return kind(condition, a, b), codegen


def _bits(name, result):
    @intrinsic
    def bits(typingctx, value):
        if not isinstance(value, types.Integer):
            raise errors.TypingError(f"{name} of {value}: an integer is needed")
        # on CUDA these exist for 32 and 64 bits
        wide = types.int32 if value.bitwidth <= 32 else types.int64
        wide = wide if value.signed else {types.int32: types.uint32, types.int64: types.uint64}[wide]
        to = wide if result is None else result

        def codegen(context, builder, sig, args):
            x = context.cast(builder, args[0], value, wide)
            if name == "popc":
                x = builder.ctpop(x)
            elif name == "clz":
                x = builder.ctlz(x, I1(0))
            elif name == "brev":
                return builder.bitreverse(x)
            else:  # ffs: 1 + the index of the lowest set bit, 0 when there is none
                low = builder.add(builder.cttz(x, I1(0)), ir.Constant(x.type, 1))
                none = builder.icmp_signed("==", x, ir.Constant(x.type, 0))
                x = builder.select(none, ir.Constant(x.type, 0), low)
            return context.cast(builder, x, types.uint32 if wide.bitwidth == 32 else types.uint64, to)

        return to(value), codegen

    return bits


popc, clz, ffs, brev = (
    _bits("popc", types.int32),
    _bits("clz", types.int32),
    _bits("ffs", types.int32),
    _bits("brev", None),
)
