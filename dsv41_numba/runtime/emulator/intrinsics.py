"""What translated kernels call, and know as `_rt`: arguments, thread indices, memory, and the elements of arrays.

These, `numeric` and `exchange` are Numba intrinsics, LLVM instructions written out, and not compiled Python functions,
because each separately compiled function adds about 50 ms to a kernel's first launch.
"""

import operator

from llvmlite import ir
from numba.core import cgutils, errors, types
from numba.extending import intrinsic
from numba.np.numpy_support import as_dtype

from dsv41_numba.runtime.emulator import layout as at
from dsv41_numba.runtime.emulator.emit import I1, I32, I64, at_address, convert, fault_if, read_word, to_int64


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
        return builder.trunc(read_word(builder, args[0], args[1]), I32)

    return types.int32(h, types.intp), codegen


@intrinsic
def thread_index(typingctx, h, t, axis):
    """threadIdx: thread t = x + y * blockDim.x + z * blockDim.x * blockDim.y."""

    def codegen(context, builder, sig, args):
        h, t, _ = args
        t = builder.trunc(t, I32)
        x = builder.trunc(read_word(builder, h, at.BDX), I32)
        if axis.literal_value == 0:
            return builder.urem(t, x)
        y = builder.trunc(read_word(builder, h, at.BDY), I32)
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
            item = as_dtype(dtype).itemsize
            base = builder.add(read_word(builder, h, at.SHARED if is_shared else at.LOCAL), I64(offset))
            if not is_shared:
                base = builder.add(base, builder.mul(t, read_word(builder, h, at.LOCAL_BYTES)))
            sizes = [I64(n) for n in shape]
            if shape == (0,):
                sizes = [builder.udiv(read_word(builder, h, at.DYNAMIC_BYTES), I64(item))]
            strides = [item]
            for n in shape[:0:-1]:
                strides.insert(0, strides[0] * n)
            value = context.make_array(array_type)(context, builder)
            context.populate_array(
                value,
                data=at_address(builder, base, context.get_data_type(dtype)),
                shape=sizes,
                strides=[I64(n) for n in strides],
                itemsize=I64(item),
                meminfo=None,
            )
            return value._getvalue()

        return array_type(h, t), codegen

    return array


def _indices(index):
    """The Numba types of a subscript's parts."""
    return tuple(index.types) if isinstance(index, types.BaseTuple) else (index,)


def _index_values(context, builder, index_type, index):
    parts = cgutils.unpack_tuple(builder, index) if isinstance(index_type, types.BaseTuple) else [index]
    return [
        to_int64(context, builder, p, types.unliteral(k)) if isinstance(types.unliteral(k), types.Integer) else None
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
        fault_if(context, builder, bad, h, at.FAULT_INDEX, site, *detail)


def _note(context, builder, h, t, site, pointer, kind):
    """Tell the race check of an access; the function behind NOTE answers whether it is a fault, and fills it in."""
    note = at_address(builder, read_word(builder, h, at.NOTE), ir.FunctionType(I64, [I64] * 5))
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
                v = convert(context, builder, v, value, array.dtype)
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
    return dtype(array, value), lambda context, builder, sig, args: convert(context, builder, args[1], value, dtype)


@intrinsic
def not_array(typingctx, value):
    """Refuse a whole array where its elements would be visited unseen by the checks."""
    if isinstance(value, types.Array):
        raise errors.TypingError("loop over range(len(array)) instead of the array itself")
    return value(value), lambda context, builder, sig, args: args[0]
