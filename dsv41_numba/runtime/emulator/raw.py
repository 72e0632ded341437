"""For the engine only: memory at an address, and the step of a thread."""

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from dsv41_numba.runtime.emulator.emit import I8, I32, I64, at_address


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
        data = at_address(builder, args[0], context.get_data_type(dtype))
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
        function = at_address(builder, args[0], kind)
        status = builder.call(function, [result, exception, at_address(builder, args[1], I8)])
        failed = builder.icmp_signed("!=", status, I32(0))
        return builder.select(failed, builder.sub(I64(-1), builder.sext(status, I64)), builder.load(result))

    return types.int64(types.intp, types.intp), codegen
