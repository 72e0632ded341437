"""Values that pass between threads at warp operations and votes, known to translated kernels as `_ex`.

Two rows of 8-byte cells for warps and two for blocks: an exchange writes one row before the threads meet and reads it
after; the next one uses the other row, so a fast thread cannot overwrite what a slow one still has to read. Which row
follows from the count of meetings, which has grown by one between writing and reading.
"""

from llvmlite import ir
from numba.core import errors, types
from numba.extending import intrinsic

from dsv41_numba.runtime.emulator import layout as at
from dsv41_numba.runtime.emulator.emit import I64, at_address, fault_if, read_word, to_int64

SHUFFLED = (types.int32, types.int64, types.float32, types.float64)


def _cell(builder, h, t, row_from, slot, kind, after):
    if kind == at.AT_WARP:
        count = read_word(builder, h, builder.add(builder.lshr(t, I64(5)), I64(at.WARP_INTERVAL)))
        first = 0
    else:
        count, first = read_word(builder, h, at.INTERVAL), 2
    row = builder.add(builder.and_(builder.sub(count, I64(after)), I64(1)), I64(first))
    cell = builder.add(builder.mul(row, read_word(builder, h, at.THREADS)), slot)
    address = builder.add(read_word(builder, h, at.EXCHANGE), builder.shl(cell, I64(3)))
    return at_address(builder, address, row_from)


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
        lane = to_int64(context, builder, lane, sig.args[3])
        inside = builder.icmp_unsigned("<", lane, I64(32))
        other = builder.select(inside, builder.or_(builder.and_(t, I64(-32)), lane), t)
        missing = builder.icmp_signed(">=", other, read_word(builder, h, at.THREADS))
        fault_if(context, builder, missing, h, at.FAULT_LANE, site, lane)
        return builder.load(_cell(builder, h, t, v.type, other, at.AT_WARP, 1))

    return value(h, types.intp, value, lane, types.intp), codegen


@intrinsic
def vote(typingctx, h, t, what):
    """The votes of a warp or block, counted by the engine; `what` is one of the engine's VOTE_ numbers."""

    def codegen(context, builder, sig, args):
        count = at_address(builder, read_word(builder, args[0], at.VOTE), ir.FunctionType(I64, [I64] * 3))
        return builder.call(count, [builder.ptrtoint(args[0], I64), args[1], args[2]])

    return types.int64(h, types.intp, types.intp), codegen
