"""Building blocks of the intrinsics: LLVM instructions that several of them write.

`builder` writes LLVM instructions into the kernel's code. `h` is the address of the header (`layout`), `t` the thread's
number in its block, `site` the place in the source. A fault (a bad index, say) is written into the header and the
thread's code returns at once with `FAULT_RESULT`; Numba's exceptions are not used.
"""

from llvmlite import ir
from numba.core import cgutils, types

from dsv41_numba.runtime.emulator import layout as at

I1, I8, I32, I64 = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)


def read_word(builder, h, index):
    """The header's word `index`."""
    return builder.load(builder.gep(h, [I64(index) if isinstance(index, int) else index]))


def at_address(builder, address, llvm_type):
    """A pointer to an LLVM type from an int64."""
    return builder.inttoptr(address, llvm_type.as_pointer())


def to_int64(context, builder, value, numba_type):
    """Any Numba number as int64."""
    return context.cast(builder, value, numba_type, types.int64)


def fault_if(context, builder, bad, h, kind, site, *detail):
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


def convert(context, builder, value, source, target):
    """`context.cast`, but float to integer saturates as PTX's cvt does, where x86 would give garbage."""
    source = types.unliteral(source)
    if not (isinstance(source, types.Float) and isinstance(target, types.Integer)):
        return context.cast(builder, value, source, target)
    # cvt has no 8-bit destination of its own: PTX converts to 16 bits and keeps the low byte
    bits = max(16, target.bitwidth)
    name = f"llvm.fpto{'si' if target.signed else 'ui'}.sat.i{bits}.{context.get_value_type(source).intrinsic_name}"
    saturating = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.IntType(bits), [value.type]), name)
    whole = builder.call(saturating, [value])
    if bits == 64 or source.bitwidth == 64:  # here NaN gives the top bit alone, else 0
        nan = builder.fcmp_unordered("uno", value, value)
        whole = builder.select(nan, ir.Constant(whole.type, 1 << (bits - 1)), whole)
    return builder.trunc(whole, ir.IntType(target.bitwidth)) if target.bitwidth < bits else whole
