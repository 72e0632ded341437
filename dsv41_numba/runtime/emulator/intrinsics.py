"""What translated kernels call: each function here becomes a few machine instructions inside the kernel's code.

They are Numba intrinsics, LLVM instructions written out, and not compiled Python functions, because each separately
compiled function adds about 50 ms to a kernel's first launch. A fault (a bad index, say) is written into the header and
the thread's code returns at once with `FAULT_RESULT`; Numba's exceptions are not used.

`h` is the address of the header (`layout`), `t` the thread's number in its block, `site` the place in the source.
"""

import operator

from llvmlite import ir
from numba.core import cgutils, errors, types
from numba.extending import intrinsic

from dsv41_numba.runtime.emulator import layout as at

I1, I8, I32, I64 = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)
HEADER = types.CPointer(types.int64)


def _word(builder, h, index):
    """The header's word `index`."""
    return builder.load(builder.gep(h, [I64(index) if isinstance(index, int) else index]))


def _pointer(builder, address, llvm_type):
    return builder.inttoptr(address, llvm_type.as_pointer())


def _to_int64(context, builder, value, numba_type):
    return context.cast(builder, value, numba_type, types.int64)


# ---- faults --------------------------------------------------------------------------------------------------------
def _fault_if(context, builder, bad, h, kind, site, *detail):
    """When `bad`: fill in the fault and leave the thread's code. The store is one call of a function that all share."""
    with cgutils.if_unlikely(builder, bad):
        name = f"emulator_fault_{len(detail)}"
        fill = builder.module.globals.get(name)
        if fill is None:
            fill = ir.Function(
                builder.module, ir.FunctionType(ir.VoidType(), [h.type] + [I64] * (2 + len(detail))), name
            )
            fill.linkage = "internal"
            fill.attributes.add("noinline")
            fill.attributes.add("cold")
            inner = ir.IRBuilder(fill.append_basic_block())
            for word, value in zip([at.FAULT, at.SITE, *range(at.DETAIL, at.DETAIL + len(detail))], fill.args[1:]):
                inner.store(value, inner.gep(fill.args[0], [I64(word)]))
            inner.ret_void()
        builder.call(fill, [h, I64(kind), site, *detail])
        builder.ret(I32(at.FAULT_RESULT))


# ---- the launch's arguments, the header, shared and local memory ---------------------------------------------------
def field(i):
    """The function that loads argument i from the context, the tuple of all arguments."""

    @intrinsic
    def load(typingctx, context_pointer):
        def codegen(context, builder, sig, args):
            return context.unpack_value(builder, sig.return_type, cgutils.gep_inbounds(builder, args[0], 0, i))

        return context_pointer.dtype.types[i](context_pointer), codegen

    return load


@intrinsic
def index32(typingctx, h, word):
    """A word of the header as int32: the type of cuda.threadIdx.x and its like."""

    def codegen(context, builder, sig, args):
        return builder.trunc(_word(builder, args[0], args[1]), I32)

    return types.int32(h, types.intp), codegen


@intrinsic
def thread_index(typingctx, h, t, axis):
    """threadIdx: thread t = x + y * blockDim.x + z * blockDim.x * blockDim.y."""

    def codegen(context, builder, sig, args):
        h, t, _ = args
        t = builder.trunc(t, I32)
        x = builder.trunc(_word(builder, h, at.BDX), I32)
        if axis.literal_value == 0:
            return builder.urem(t, x)
        y = builder.trunc(_word(builder, h, at.BDY), I32)
        if axis.literal_value == 1:
            return builder.urem(builder.udiv(t, x), y)
        return builder.udiv(t, builder.mul(x, y))

    if not isinstance(axis, types.IntegerLiteral):
        raise errors.RequireLiteralValue("axis")
    return types.int32(h, t, axis), codegen


def memory(is_shared, offset, shape, dtype):
    """The function that gives a shared array (h, t ignored) or thread t's local array; shape (0,) is dynamic shared."""

    @intrinsic
    def array(typingctx, h, t):
        array_type = types.Array(dtype, len(shape), "C")

        def codegen(context, builder, sig, args):
            h, t = args
            item = context.get_abi_sizeof(context.get_data_type(dtype))
            base = builder.add(_word(builder, h, at.SHARED if is_shared else at.LOCAL), I64(offset))
            if not is_shared:
                base = builder.add(base, builder.mul(t, _word(builder, h, at.LOCAL_BYTES)))
            sizes = [I64(n) for n in shape]
            if shape == (0,):
                sizes = [builder.udiv(_word(builder, h, at.DYNAMIC_BYTES), I64(item))]
            strides = [item]
            for n in shape[:0:-1]:
                strides.insert(0, strides[0] * n)
            value = context.make_array(array_type)(context, builder)
            context.populate_array(
                value,
                data=_pointer(builder, base, context.get_data_type(dtype)),
                shape=sizes,
                strides=[I64(n) for n in strides],
                itemsize=I64(item),
                meminfo=None,
            )
            return value._getvalue()

        return array_type(h, t), codegen

    return array


# ---- elements ------------------------------------------------------------------------------------------------------
def _indices(index):
    """The Numba types of a subscript's parts."""
    return tuple(index.types) if isinstance(index, types.BaseTuple) else (index,)


def _index_values(context, builder, index_type, index):
    parts = cgutils.unpack_tuple(builder, index) if isinstance(index_type, types.BaseTuple) else [index]
    return [
        _to_int64(context, builder, p, types.unliteral(k)) if isinstance(types.unliteral(k), types.Integer) else None
        for p, k in zip(parts, _indices(index_type))
    ]


def _check_index(context, builder, h, site, values, sizes):
    """Fault unless 0 <= index < size everywhere: as unsigned numbers negative indices are too large as well."""
    pairs = [(v, n) for v, n in zip(values, sizes) if v is not None]
    if pairs:
        bad = I1(0)
        for v, n in pairs:
            bad = (
                builder.or_(bad, builder.icmp_unsigned(">=", v, n))
                if bad != I1(0)
                else builder.icmp_unsigned(">=", v, n)
            )
        detail = [I64(len(pairs)), *(v for v, _ in pairs), *(n for _, n in pairs)]
        _fault_if(context, builder, bad, h, at.FAULT_INDEX, site, *detail)


def _note(context, builder, h, t, site, pointer, kind):
    """Tell the race check of an access; the function behind NOTE answers whether it is a fault, and fills it in."""
    note = _pointer(builder, _word(builder, h, at.NOTE), ir.FunctionType(I64, [I64] * 5))
    bad = builder.call(note, [builder.ptrtoint(h, I64), builder.ptrtoint(pointer, I64), I64(kind), t, site])
    with cgutils.if_unlikely(builder, builder.icmp_signed("!=", bad, I64(0))):
        builder.ret(I32(at.FAULT_RESULT))


def _element(context, builder, array_type, array, index_type, index, h, t, site, check, kind):
    """The address of one element, checked, and noted when `kind` is an access and not None."""
    value = context.make_array(array_type)(context, builder, array)
    sizes = cgutils.unpack_tuple(builder, value.shape, array_type.ndim)
    strides = cgutils.unpack_tuple(builder, value.strides, array_type.ndim)
    values = _index_values(context, builder, index_type, index)
    if check:
        _check_index(context, builder, h, site, values, sizes)
    pointer = cgutils.get_item_pointer2(
        context, builder, value.data, sizes, strides, array_type.layout, values, wraparound=False
    )
    if kind is not None:
        _note(context, builder, h, t, site, pointer, kind)
    return pointer


def _is_element(array, index):
    parts = [types.unliteral(i) for i in _indices(index)]
    return len(parts) == array.ndim and all(isinstance(i, types.Integer) for i in parts)


def accessors(check, race):
    """load(h, t, array, index, site), store(h, t, array, index, value, site) and the same for atomic operations."""

    def loader(kind):
        @intrinsic(prefer_literal=True)
        def load(typingctx, h, t, array, index, site):
            plain_index = types.unliteral(index)
            if isinstance(array, types.Array) and _is_element(array, index):
                index = plain_index

                def codegen(context, builder, sig, args):
                    h, t, a, i, site = args
                    p = _element(context, builder, array, a, index, i, h, t, site, check, kind if race else None)
                    return context.unpack_value(builder, array.dtype, p, align=None if array.aligned else 1)

                return array.dtype(h, types.intp, array, index, types.intp), codegen
            if isinstance(array, types.BaseTuple) and isinstance(index, types.IntegerLiteral):
                i = index.literal_value
                if not -len(array) <= i < len(array):
                    raise errors.TypingError(f"index {i} is outside a tuple of {len(array)}")

                def codegen(context, builder, sig, args):
                    return builder.extract_value(args[2], i % len(array))

                return array.types[i](h, types.intp, array, index, types.intp), codegen
            if not isinstance(array, (types.Array, types.UniTuple)):
                raise errors.TypingError(f"{array} cannot be indexed with {index}")
            inner = typingctx.resolve_function_type(operator.getitem, (array, plain_index), {})
            if inner is None:
                raise errors.TypingError(f"{array} cannot be indexed with {plain_index}")

            def codegen(context, builder, sig, args):
                h, _, a, i, site = args
                if isinstance(array, types.Array):
                    value = context.make_array(array)(context, builder, a)
                    sizes = cgutils.unpack_tuple(builder, value.shape, array.ndim)
                else:
                    sizes = [I64(len(array))]
                if check:
                    values = _index_values(context, builder, plain_index, i)
                    _check_index(context, builder, h, site, values, sizes)
                i = context.cast(builder, i, plain_index, inner.args[1])
                return context.get_function(operator.getitem, inner)(builder, [a, i])

            return inner.return_type(h, types.intp, array, plain_index, types.intp), codegen

        return load

    def storer(kind):
        @intrinsic
        def store(typingctx, h, t, array, index, value, site):
            if not isinstance(array, types.Array) or not _is_element(array, index):
                raise errors.TypingError(f"only single elements can be assigned, not {array}[{index}]")
            if not array.mutable:
                raise errors.TypingError("a constant array cannot be written")
            if not isinstance(value, (types.Number, types.Boolean)) and value != array.dtype:
                raise errors.TypingError(f"cannot store {value} in an element of {array.dtype}")
            if isinstance(value, types.Complex) and not isinstance(array.dtype, types.Complex):
                raise errors.TypingError(f"cannot store {value} in an element of {array.dtype}")

            def codegen(context, builder, sig, args):
                h, t, a, i, v, site = args
                v = _cast(context, builder, v, value, array.dtype)
                p = _element(context, builder, array, a, index, i, h, t, site, check, kind if race else None)
                context.pack_value(builder, array.dtype, v, p, align=None if array.aligned else 1)
                return context.get_dummy_value()

            return types.void(h, types.intp, array, index, value, types.intp), codegen

        return store

    return loader(at.READ), storer(at.WRITE), loader(at.ATOMIC), storer(at.ATOMIC)


@intrinsic
def as_element(typingctx, array, value):
    """A value in the type of the array's elements: CUDA's atomics convert before they combine."""
    if not isinstance(array, types.Array):
        raise errors.TypingError(f"an atomic operation needs an array, not {array}")
    dtype = array.dtype
    return dtype(array, value), lambda context, builder, sig, args: _cast(context, builder, args[1], value, dtype)


@intrinsic
def not_array(typingctx, value):
    """Refuse a whole array where its elements would be visited unseen by the checks."""
    if isinstance(value, types.Array):
        raise errors.TypingError("loop over range(len(array)) instead of the array itself")
    return value(value), lambda context, builder, sig, args: args[0]


# ---- numbers as on CUDA --------------------------------------------------------------------------------------------
def _cast(context, builder, value, source, target):
    """context.cast, but float to integer saturates as PTX's cvt does, where x86 would give garbage."""
    source, plain = types.unliteral(source), target
    if not (isinstance(source, types.Float) and isinstance(plain, types.Integer)):
        return context.cast(builder, value, source, target)
    # cvt has no 8-bit destination of its own: PTX converts to 16 bits and keeps the low byte
    bits = max(16, plain.bitwidth)
    name = f"llvm.fpto{'si' if plain.signed else 'ui'}.sat.i{bits}.{context.get_value_type(source).intrinsic_name}"
    convert = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.IntType(bits), [value.type]), name)
    whole = builder.call(convert, [value])
    if bits == 64 or source.bitwidth == 64:  # here NaN gives the top bit alone, else 0
        nan = builder.fcmp_unordered("uno", value, value)
        whole = builder.select(nan, ir.Constant(whole.type, 1 << (bits - 1)), whole)
    return builder.trunc(whole, ir.IntType(plain.bitwidth)) if plain.bitwidth < bits else whole


@intrinsic
def cast(typingctx, value, target):
    """int32(value) and its like."""
    to = getattr(target, "instance_type", None)
    if not isinstance(value, (types.Number, types.Boolean)) or not isinstance(to, types.Integer):
        raise errors.TypingError(f"cannot convert {value} to {to}")
    return to(value, target), lambda context, builder, sig, args: _cast(context, builder, args[0], value, to)


@intrinsic
def to_int(typingctx, value):
    """int(value): int64 of a float, an integer as it is."""
    if not isinstance(value, (types.Integer, types.Float, types.Boolean)):
        raise errors.TypingError(f"int() of {value}")
    to = value if isinstance(value, types.Integer) else types.int64
    return to(value), lambda context, builder, sig, args: _cast(context, builder, args[0], value, to)


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
            _fault_if(context, builder, zero, h, at.FAULT_DIVIDE, site)
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


# ---- warp and block exchange ---------------------------------------------------------------------------------------
# Two rows of 8-byte cells for warps and two for blocks: an exchange writes one row before the threads meet and reads it
# after; the next one uses the other row, so a fast thread cannot overwrite what a slow one still has to read. Which row
# follows from the count of meetings, which has grown by one between writing and reading.
SHUFFLED = (types.int32, types.int64, types.float32, types.float64)


def _cell(builder, h, t, row_from, slot, kind, after):
    if kind == at.AT_WARP:
        count = _word(builder, h, builder.add(builder.lshr(t, I64(5)), I64(at.WARP_INTERVAL)))
        first = 0
    else:
        count, first = _word(builder, h, at.INTERVAL), 2
    row = builder.add(builder.and_(builder.sub(count, I64(after)), I64(1)), I64(first))
    cell = builder.add(builder.mul(row, _word(builder, h, at.THREADS)), slot)
    address = builder.add(_word(builder, h, at.EXCHANGE), builder.shl(cell, I64(3)))
    return _pointer(builder, address, row_from)


def putter(kind):
    @intrinsic
    def put(typingctx, h, t, value):
        value = types.unliteral(value)
        if value not in SHUFFLED:
            raise errors.TypingError(f"shfl_sync on CUDA takes int32, int64, float32 or float64, not {value}")

        def codegen(context, builder, sig, args):
            h, t, v = args
            builder.store(v, _cell(builder, h, t, v.type, t, kind, 0))
            return context.get_dummy_value()

        return types.void(h, types.intp, value), codegen

    return put


put_warp, put_block = putter(at.AT_WARP), putter(at.AT_BLOCK)


@intrinsic
def shuffled(typingctx, h, t, value, lane, site):
    """What the lane `lane` of this thread's warp has put; the thread's own value when `lane` is not in 0..31."""
    value = types.unliteral(value)

    def codegen(context, builder, sig, args):
        h, t, v, lane, site = args
        lane = _to_int64(context, builder, lane, sig.args[3])
        inside = builder.icmp_unsigned("<", lane, I64(32))
        other = builder.select(inside, builder.or_(builder.and_(t, I64(-32)), lane), t)
        missing = builder.icmp_signed(">=", other, _word(builder, h, at.THREADS))
        _fault_if(context, builder, missing, h, at.FAULT_LANE, site, lane)
        return builder.load(_cell(builder, h, t, v.type, other, at.AT_WARP, 1))

    return value(h, types.intp, value, lane, types.intp), codegen


@intrinsic
def vote(typingctx, h, t, what):
    """The votes of a warp or block, counted by the engine; `what` is one of the engine's VOTE_ numbers."""

    def codegen(context, builder, sig, args):
        count = _pointer(builder, _word(builder, args[0], at.VOTE), ir.FunctionType(I64, [I64] * 3))
        return builder.call(count, [builder.ptrtoint(args[0], I64), args[1], args[2]])

    return types.int64(h, types.intp, types.intp), codegen


# ---- for the engine ------------------------------------------------------------------------------------------------
@intrinsic
def words(typingctx, address, count):
    """The int64 array of `count` words at an address."""
    return _raw_array(types.int64, address, count)


@intrinsic
def words32(typingctx, address, count):
    """The int32 array of `count` words at an address."""
    return _raw_array(types.int32, address, count)


@intrinsic
def octets(typingctx, address, count):
    """The uint8 array of `count` bytes at an address."""
    return _raw_array(types.uint8, address, count)


def _raw_array(dtype, address, count):
    array_type = types.Array(dtype, 1, "C")

    def codegen(context, builder, sig, args):
        item = I64(dtype.bitwidth // 8)
        value = context.make_array(array_type)(context, builder)
        data = _pointer(builder, args[0], context.get_data_type(dtype))
        context.populate_array(value, data=data, shape=[args[1]], strides=[item], itemsize=item, meminfo=None)
        return value._getvalue()

    return array_type(types.intp, types.intp), codegen


@intrinsic
def resume(typingctx, step, state):
    """Run one thread to its next yield: the yield code, or -1 - status when its code reports a fault.

    `step` is the address of the `next` function that Numba made of the kernel: it takes a place for the result, one for
    an exception's description, and the generator's state.
    """

    def codegen(context, builder, sig, args):
        result = cgutils.alloca_once(builder, I64)
        exception = cgutils.alloca_once(builder, I8.as_pointer())
        kind = ir.FunctionType(I32, [I64.as_pointer(), I8.as_pointer().as_pointer(), I8.as_pointer()])
        function = _pointer(builder, args[0], kind)
        status = builder.call(function, [result, exception, _pointer(builder, args[1], I8)])
        failed = builder.icmp_signed("!=", status, I32(0))
        return builder.select(failed, builder.sub(I64(-1), builder.sext(status, I64)), builder.load(result))

    return types.int64(types.intp, types.intp), codegen
