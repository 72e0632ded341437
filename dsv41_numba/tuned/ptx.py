"""Every PTX instruction that the tuned kernels use by name; no other file holds PTX text.

Each is a Numba intrinsic: called in a kernel like a function, it becomes that one instruction. `instruction` makes one
from its text. Operands `$0, $1, ...` are numbered with the result first; a constraint is `r` (32 bits), `l` (64 bits),
`f` (float32). Unless a comment says otherwise they are marked as having side effects and as convergent, so that LLVM
leaves them where they stand.

Reading order follows the ladder: what `linear_decode` uses, then `linear_mma`, then `linear_wgmma`; last what sparse
attention adds. An array operand is followed by the indices of one element, and means that element's address. Words in
quotes are PTX's own, to look up in the PTX ISA manual.
"""

import inspect
from collections import namedtuple

from llvmlite import ir
from numba import types
from numba.cuda import cgutils
from numba.cuda.extending import intrinsic

from dsv41_numba.tuned.emulated import STAND_INS

u32, u64, f32 = types.uint32, types.uint64, types.float32
I32, I64, F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
SHARED = 3  # LLVM's number of the shared address space
WORDS = types.UniTuple(types.uint32, 4)
SUMS = types.UniTuple(types.float32, 4)


# ---- how an intrinsic is made --------------------------------------------------------------------------------------
def named(count):
    """Give a function of (typingctx, *operands) a signature with `count` operands, off which Numba reads the arity."""

    def apply(function):
        names = ["typingctx", *(f"operand{i}" for i in range(count))]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        function.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])
        return function

    return apply


def emit(builder, result, text, constraints, operands):
    """One piece of inline assembly; it may read and write memory."""
    kind = ir.FunctionType(result, [operand.type for operand in operands])
    constraints = ",".join(filter(None, [constraints, "~{memory}"]))
    return builder.call(ir.InlineAsm(kind, text, constraints, side_effect=True), operands, attrs=("convergent",))


def instruction(text, constraints="", operands=(), result=None):
    """The intrinsic that emits `text` on numbers of the types `operands`; `result`, if any, is of 32 bits or uint64."""
    prefix = {None: "", types.uint32: "=r", types.int32: "=r", types.uint64: "=l", types.float32: "=f"}[result]

    @intrinsic
    @named(len(operands))
    def emitted(typingctx, *_):
        def codegen(context, builder, signature, values):
            out = context.get_value_type(result) if result else ir.VoidType()
            value = emit(builder, out, text, ",".join(filter(None, [prefix, constraints])), values)
            return value if result else context.get_dummy_value()

        return (result or types.void)(*operands), codegen

    return emitted


def registers_out(text, count, constraints="", operands=()):
    """The intrinsic of (array, *operands): `text` leaves $0 ... in the first `count` elements of a local array."""

    @intrinsic
    @named(1 + len(operands))
    def emitted(typingctx, array, *_):
        def codegen(context, builder, signature, values):
            kind = F32 if array.dtype == types.float32 else I32
            outputs = ",".join(["=f" if kind is F32 else "=r"] * count)
            struct = ir.LiteralStructType([kind] * count)
            found = emit(builder, struct, text, ",".join(filter(None, [outputs, constraints])), values[1:])
            for i, slot in enumerate(slots(context, builder, array, values[0], count)):
                builder.store(builder.extract_value(found, i), slot)
            return context.get_dummy_value()

        return types.void(array, *operands), codegen

    return emitted


def registers_in(text, count, constraints, operands):
    """The intrinsic of (array, *operands): in `text` $0 ... are the first `count` words of a local array."""

    @intrinsic
    @named(1 + len(operands))
    def emitted(typingctx, array, *_):
        def codegen(context, builder, signature, values):
            words = [builder.load(slot) for slot in slots(context, builder, array, values[0], count)]
            inputs = ",".join(["r"] * count + [constraints])
            emit(builder, ir.VoidType(), text, inputs, [*words, *values[1:]])
            return context.get_dummy_value()

        return types.void(array, *operands), codegen

    return emitted


def slots(context, builder, array_type, array, count):
    """The places of the first elements of a local array, by numbers known now: LLVM then keeps them in registers."""
    data = context.make_array(array_type)(context, builder, array).data
    return [builder.gep(data, [I32(i)]) for i in range(count)]


def element_address(context, builder, array_type, array, index_types, indices, shared):
    """The address of one element, as an integer: 64 bits, or 32 within the block's shared memory."""
    view = context.make_array(array_type)(context, builder, array)
    indices = [context.cast(builder, i, kind, types.intp) for i, kind in zip(indices, index_types)]
    pointer = cgutils.get_item_pointer(context, builder, array_type, view, indices)
    if not shared:
        return builder.ptrtoint(pointer, I64)
    return builder.ptrtoint(builder.addrspacecast(pointer, ir.PointerType(pointer.type.pointee, SHARED)), I32)


def four(context, builder, kind, struct):
    """A struct of four values, as the tuple that a kernel sees."""
    return context.make_tuple(builder, kind, [builder.extract_value(struct, i) for i in range(4)])


# ---- 16 bytes at a time --------------------------------------------------------------------------------------------
# The most that one thread loads at once: 8 neighbouring bf16 as 4 words, the lower index in a word's low half.
#
#       array[i, j + ...]   1 | 0    3 | 2    5 | 4    7 | 6
#       result             word 0   word 1   word 2   word 3
#
# The address must be a multiple of 16 bytes, and the memory must not change while the kernel runs ("ld.global.nc").
def load_words(how):
    """The intrinsic of (array, i, j, inside): four uint32 from array[i, j:j+8]; zeros unless `inside`, and no read."""
    text = (
        "{ .reg .pred p; setp.ne.b32 p, $5, 0; mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0; "
        f"@p {how} {{$0,$1,$2,$3}}, [$4]; }}"
    )

    @intrinsic
    @named(4)
    def emitted(typingctx, array, i, j, inside):
        def codegen(context, builder, signature, values):
            address = element_address(context, builder, array, values[0], (i, j), values[1:3], shared=False)
            inside_word = context.cast(builder, values[3], inside, types.uint32)
            struct = ir.LiteralStructType([I32] * 4)
            # "&": the results are written before the address is used, so they must be other registers
            words = emit(builder, struct, text, "=&r,=&r,=&r,=&r,l,r", [address, inside_word])
            return four(context, builder, WORDS, words)

        return WORDS(array, i, j, inside), codegen

    return emitted


load_16_bytes = load_words("ld.global.nc.v4.u32")
load_16_bytes_once = load_words("ld.global.nc.L1::no_allocate.v4.u32")  # what no one on this multiprocessor reads again


# ---- rounding ------------------------------------------------------------------------------------------------------
def pure(text, constraints, operands):
    """The intrinsic of one instruction that touches nothing but its operands, so LLVM may move it; a uint32 results."""

    @intrinsic
    @named(len(operands))
    def emitted(typingctx, *_):
        def codegen(context, builder, signature, values):
            kind = ir.FunctionType(I32, [value.type for value in values])
            return builder.call(ir.InlineAsm(kind, text, constraints, side_effect=False), values)

        return types.uint32(*operands), codegen

    return emitted


# (low, high): two float32 rounded to bf16, to nearest even, in the low and the high half of a word ("cvt")
pack_bf16 = pure("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", (f32, f32))
# the same of two float32 of which negative ones become 0; compute capability 8.0 and up
relu_bf16 = pure("cvt.rn.relu.bf16x2.f32 $0, $2, $1;", "=r,f,f", (f32, f32))
# (a, b): two products of bf16, of the low and of the high halves of two words, each rounded to bf16 once. "fma" with
# -0, the number that changes no product when it is added: "mul.bf16x2" needs compute capability 9.0
multiply_bf16 = pure(
    "{ .reg .b32 nothing; mov.b32 nothing, 0x80008000; fma.rn.bf16x2 $0, $1, $2, nothing; }", "=r,r,r", (u32, u32)
)

# four codes of e4m3 in a word, the first in the lowest byte; compute capability 8.9 and up. f16 holds every one exactly
first_e4m3_as_f16 = pure(  # codes 0 and 1 -> two f16
    "{ .reg .b16 low, high; mov.b32 {low, high}, $1; cvt.rn.f16x2.e4m3x2 $0, low; }", "=r,r", (u32,)
)
last_e4m3_as_f16 = pure(  # codes 2 and 3
    "{ .reg .b16 low, high; mov.b32 {low, high}, $1; cvt.rn.f16x2.e4m3x2 $0, high; }", "=r,r", (u32,)
)
# four float32 -> the nearest codes, clamped to +-448, ties to even; a NaN becomes 0x7F
pack_e4m3 = pure(
    "{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, $2, $1; cvt.rn.satfinite.e4m3x2.f32 high, $4, $3; "
    "mov.b32 $0, {low, high}; }",
    "=r,f,f,f,f",
    (f32, f32, f32, f32),
)


# ---- copies that a thread does not wait for ("cp.async") ------------------------------------------------------------
# 16 bytes from device to shared memory, past the registers. A thread closes what it has issued so far into a group,
# later waits for all but its newest groups; after that, and a barrier, everyone sees the data:
#
#       copy copy commit | copy copy commit | copy copy commit |  copies_wait_1: groups 1 and 2 have arrived
#           group 1             group 2            group 3                        group 3 may be under way
@intrinsic
def copy_16_bytes(typingctx, tile, s, i, j, array, m, k, n_bytes):
    """16 bytes from tile[s, i, j] on = those from array[m, k] on: n_bytes of them, 0 to 16, and zeros for the rest.

    Both addresses are multiples of 16 bytes. With n_bytes = 0 nothing is read.
    """

    def codegen(context, builder, signature, values):
        to = element_address(context, builder, tile, values[0], (s, i, j), values[1:4], shared=True)
        source = element_address(context, builder, array, values[4], (m, k), values[5:7], shared=False)
        count = context.cast(builder, values[7], n_bytes, types.uint32)
        emit(builder, ir.VoidType(), "cp.async.cg.shared.global [$0], [$1], 16, $2;", "r,l,r", [to, source, count])
        return context.get_dummy_value()

    return types.void(tile, s, i, j, array, m, k, n_bytes), codegen


copies_commit = instruction("cp.async.commit_group;")
copies_wait_1 = instruction("cp.async.wait_group 1;")


# ---- tensor cores, one warp ("mma.sync") ----------------------------------------------------------------------------
# A warp multiplies a 16 x 16 by a 16 x 8 matrix; each lane brings and gets a few elements. With lane = 4 g + t:
#
#                k: 2t 2t+1   2t+8 2t+9                        n = g                      n: 2t    2t+1
#       row g     [   a0   ] [   a2   ]      k 2t,   2t+1    [  b0  ]       row g         [  c0     c1  ]
#       row g+8   [   a1   ] [   a3   ]      k 2t+8, 2t+9    [  b1  ]       row g+8       [  c2     c3  ]
#       A: row m, a word two bf16 of K       B: column n, a word two of K    C: f32
def product_of(format):
    """The intrinsic of (a0, a1, a2, a3, b0, b1, c0, c1, c2, c3): those sums plus A times B, whose elements are of this
    format, summed in f32. All 32 lanes call it together."""
    text = (
        f"mma.sync.aligned.m16n8k16.row.col.f32.{format}.{format}.f32 "
        "{$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};"
    )

    @intrinsic
    @named(10)
    def emitted(typingctx, *_):
        def codegen(context, builder, signature, values):
            kind = ir.FunctionType(ir.LiteralStructType([F32] * 4), [I32] * 6 + [F32] * 4)
            # it touches nothing but its operands, so LLVM may move it
            product = ir.InlineAsm(kind, text, "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f", side_effect=False)
            return four(context, builder, SUMS, builder.call(product, values, attrs=("convergent",)))

        return SUMS(*[types.uint32] * 6, *[types.float32] * 4), codegen

    return emitted


mma_m16n8k16 = product_of("bf16")
mma_m16n8k16_f16 = product_of("f16")


@intrinsic
def ldmatrix_x4(typingctx, tile, s, i, j):
    """Four 8 x 8 matrices of bf16 from shared memory, in the shape in which mma.sync wants them ("ldmatrix").

    Lane l names the place tile[s, i, j] where row l % 8 of matrix l // 8 begins, a multiple of 16 bytes. In word q of
    the result lane 4 g + t holds elements 2 t and 2 t + 1 of row g of matrix q. All 32 lanes call it together::

        lanes 0-7      lanes 8-15     lanes 16-23    lanes 24-31        name the rows of
        matrix 0       matrix 1       matrix 2       matrix 3           which come as
        word 0         word 1         word 2         word 3
    """

    def codegen(context, builder, signature, values):
        address = element_address(context, builder, tile, values[0], (s, i, j), values[1:], shared=True)
        text = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0,$1,$2,$3}, [$4];"
        struct = emit(builder, ir.LiteralStructType([I32] * 4), text, "=r,=r,=r,=r,r", [address])
        return four(context, builder, WORDS, struct)

    return WORDS(tile, s, i, j), codegen


# ---- mbarrier: a word of shared memory that threads and the copy engine count down on -------------------------------
# A barrier is in phase 0, 1, 0, 1, ...; a phase ends when all arrivals it was made for are in and all bytes that were
# announced have landed. `mbarrier_wait(b, p)` waits for the end of the last phase of parity p: a barrier nobody has
# used yet counts as if its parity-1 phase had ended. Addresses are those of `shared_address`.
#
#       full   producer: expect n bytes, start copies ......... bytes land | consumers: wait(full, 0)   multiply
#       empty  producer: wait(empty, 1) passes at once       consumers: arrive | producer: wait(empty, 0), next copies
mbarrier_init = instruction("mbarrier.init.shared::cta.b64 [$0], $1;", "r,r", (u32, u32))  # (barrier, arrivals)
mbarrier_expect = instruction(
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "r,r", (u32, u32)
)  # (barrier, bytes)
mbarrier_wait = instruction(
    "{ .reg .pred p; WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; @p bra DONE; bra WAIT; DONE: }",
    "r,r",
    (u32, u32),
)
# (barrier, rank): arrive at the same barrier of that block of the cluster. Not `.release.cluster`, which fences the
# whole device: all that the waiting producer does next is to overwrite what has been read.
mbarrier_arrive_in = instruction(
    "{ .reg .b32 there; mapa.shared::cluster.u32 there, $0, $1; mbarrier.arrive.shared::cluster.b64 _, [there]; }",
    "r,r",
    (u32, u32),
)
# what was made by mbarrier_init is there for the other blocks of the cluster and for the copy engine
fence_mbarrier_init = instruction("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;")


@intrinsic
def shared_address(typingctx, array):
    """The address of array[0] within the block's shared memory: a uint32 that the instructions below take."""

    def codegen(context, builder, signature, values):
        zero = context.get_constant(types.intp, 0)
        return element_address(context, builder, array, values[0], [types.intp], [zero], shared=True)

    return types.uint32(array), codegen


# ---- a cluster: blocks on neighbouring multiprocessors that reach each other's shared memory -------------------------
cluster_rank = instruction("mov.u32 $0, %cluster_ctarank;", result=u32)  # which block of the cluster this one is
cluster_sync = instruction("barrier.cluster.arrive.relaxed; barrier.cluster.wait;")  # every thread of every block


# ---- TMA: one thread has the copy engine move a whole box of a matrix ("cp.async.bulk.tensor") -----------------------
# A tensor map (`cluster_launch.tensor_map`) describes [batch, rows, columns] and the box; the engine computes
# addresses, reads zeros past the edges and skips writes there. A box of 64 bf16 columns is 128 bytes wide and lies
# swizzled, 16-byte chunk c of row r at chunk c ^ (r % 8): neither tensor cores nor stmatrix meet a bank twice.
#
#       row 0   c0 c1 c2 c3 c4 c5 c6 c7
#       row 1   c1 c0 c3 c2 c5 c4 c7 c6
#       row 2   c2 c3 c0 c1 c6 c7 c4 c5      ... row 8 as row 0; the pattern counts from multiples of 1024 bytes
tma_load = instruction(  # (to, map, column, row, batch, barrier that the bytes count on)
    "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [$0], [$1, {$2, $3, $4}], [$5];",
    "r,l,r,r,r,r",
    (u32, u64, u32, u32, u32, u32),
)
tma_load_pair = instruction(  # the same, into both blocks of a pair, and onto both blocks' barriers
    "{ .reg .b16 both; mov.b16 both, 3; "
    "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
    "[$0], [$1, {$2, $3, $4}], [$5], both; }",
    "r,l,r,r,r,r",
    (u32, u64, u32, u32, u32, u32),
)
tma_store = instruction(  # (from, map, column, row, batch), as one group
    "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [$1, {$2, $3, $4}], [$0]; cp.async.bulk.commit_group;",
    "r,l,r,r,r",
    (u32, u64, u32, u32, u32),
)
tma_stores_read_1 = instruction("cp.async.bulk.wait_group.read 1;")  # all stores but the newest have read their source
tma_stores_read_0 = instruction("cp.async.bulk.wait_group.read 0;")
prefetch_map = instruction("prefetch.tensormap [$0];", "l", (u64,))
fence_async = instruction("fence.proxy.async.shared::cta;")  # what this thread wrote is visible to the copy engine


# ---- a launch that overlaps the one before it ("griddepcontrol") -----------------------------------------------------
launch_wait = instruction("griddepcontrol.wait;")  # the launch before this one has ended and its writes are visible
launch_next = instruction("griddepcontrol.launch_dependents;")  # the one after this may start where there is room


# ---- tensor cores, one warpgroup of 4 warps ("wgmma") ----------------------------------------------------------------
warpgroup_sync = instruction("bar.sync $0, 128;", "r", (u32,))  # the 128 threads that name the same barrier, 1 to 15
registers_less = instruction("setmaxnreg.dec.sync.aligned.u32 40;")  # the warpgroup gives registers back ...
registers_more = instruction("setmaxnreg.inc.sync.aligned.u32 232;")  # ... and another takes them
wgmma_wait_1 = instruction("wgmma.wait_group.sync.aligned 1;")  # all products but the newest slab's are done
wgmma_wait_0 = instruction("wgmma.wait_group.sync.aligned 0;")

Accumulators = namedtuple("Accumulators", "declare multiply to_bf16 to_shared")
DESCRIPTOR_HIGH = 1 << 30 | 64  # 128-byte swizzle; 64 x 16 bytes from one group of 8 rows to the next
DESCRIPTOR_LOW = 1 << 16  # with address >> 4 the low word; the rest of it means nothing under this swizzle


def accumulators(columns):
    """Intrinsics over the sums of one warpgroup's 64 x `columns` tile, in registers that exist in the PTX text alone.

    The thread of warp w and lane 4 g + t holds acc[0 .. columns / 2 - 1]: acc[4 j + 2 h + c] is row 16 w + 8 h + g and
    column 8 j + 2 t + c, as in eight-column pieces of mma.sync.
    No LLVM value holds them, so LLVM can neither copy nor spill them: with 128 in flight one copy costs a full wait.

    declare()                     once, before all else, in the kernel or what is inlined into it
    multiply(a, b, keep)          acc = keep * acc + A (64 x 64) @ B (columns x 64)^T, both swizzled in shared memory;
                                  a, b: address >> 4 | DESCRIPTOR_LOW. Starts and returns; `wgmma_wait_*` waits
    to_bf16()                     out[i] = bf16 of acc[2 i], acc[2 i + 1]: frees acc for the next tile
    to_shared(address, p)         columns 64 p ... of out to swizzled shared memory, row 16 w + l % 16 and chunk l // 16
                                  (swizzled) at `address` for lane l; of the last pass the last 64 columns
    """
    acc = ", ".join(f"acc{i}" for i in range(columns // 2))
    declare = instruction(f".reg .f32 acc<{columns // 2}>; .reg .b32 out<{columns // 4}>;")

    lines = ["{ .reg .b64 a, b; .reg .b32 low; .reg .pred p; setp.ne.b32 p, $2, 0; wgmma.fence.sync.aligned;"]
    product = f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16"
    for k in range(4):  # 4 steps of 16 columns, 32 bytes or 2 units of the descriptor each
        lines.append(
            f"add.u32 low, $0, {2 * k}; mov.b64 a, {{low, {DESCRIPTOR_HIGH}}}; "
            f"add.u32 low, $1, {2 * k}; mov.b64 b, {{low, {DESCRIPTOR_HIGH}}}; "
            f"{product} {{{acc}}}, a, b, {'1' if k else 'p'}, 1, 1, 0, 0;"
        )
    multiply = instruction(" ".join([*lines, "wgmma.commit_group.sync.aligned; }"]), "r,r,r", (u32, u32, u32))

    casts = [f"cvt.rn.bf16x2.f32 out{i}, acc{2 * i + 1}, acc{2 * i};" for i in range(columns // 4)]
    to_bf16 = instruction(" ".join(casts))

    lines = ["{ .reg .b32 to; .reg .pred p;"]
    for p, first in enumerate(pass_columns(columns)):
        lines.append(f"setp.ne.u32 p, $1, {p}; @p bra NOT{p};")
        for j in range(4):  # 16 columns, four 8 x 8 matrices; 16 columns on is 2 chunks, and under the swizzle + is ^
            words = ", ".join(f"out{first // 4 + 4 * j + i}" for i in range(4))
            lines.append(f"xor.b32 to, $0, {32 * j}; stmatrix.sync.aligned.m8n8.x4.shared.b16 [to], {{{words}}};")
        lines.append(f"bra END; NOT{p}:")
    to_shared = instruction(" ".join([*lines, "END: }"]), "r,r", (u32, u32))
    return Accumulators(declare, multiply, to_bf16, to_shared)


def pass_columns(columns):
    """The first column of each pass of 64; the last two passes may overlap, and write the same values twice."""
    return [min(first, columns - 64) for first in range(0, columns, 64)]


# ---- sparse attention: numbers and shuffles --------------------------------------------------------------------------
@intrinsic
def exp2(typingctx, x):
    """2^x, within two units in the last place; what is below 2^-126 becomes 0 ("ex2.approx.ftz")."""

    def codegen(context, builder, signature, values):
        kind = ir.FunctionType(F32, [F32])
        power = ir.InlineAsm(kind, "ex2.approx.ftz.f32 $0, $1;", "=f,f", side_effect=False)
        return builder.call(power, values)

    return types.float32(types.float32), codegen


@intrinsic
def ldmatrix_x4_transposed(typingctx, tile, s, i, j):
    """`ldmatrix_x4`, each matrix transposed: lane 4 g + t gets rows 2 t and 2 t + 1 of column g of matrix q.

    So rows that lie one below the other in shared memory come as the K of mma.sync's B: gathered rows as values.
    """

    def codegen(context, builder, signature, values):
        address = element_address(context, builder, tile, values[0], (s, i, j), values[1:], shared=True)
        text = "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0,$1,$2,$3}, [$4];"
        struct = emit(builder, ir.LiteralStructType([I32] * 4), text, "=r,=r,=r,=r,r", [address])
        return four(context, builder, WORDS, struct)

    return WORDS(tile, s, i, j), codegen


@intrinsic
@named(6)
def store_2_floats(typingctx, array, i, j, first, second, inside):
    """array[i, j] = first and array[i, j + 1] = second if `inside`, in one store of 8 bytes on a multiple of 8.

    The condition is part of the instruction: no branch keeps the compiler from moving work past it.
    """

    def codegen(context, builder, signature, values):
        address = element_address(context, builder, array, values[0], (i, j), values[1:3], shared=False)
        inside_word = context.cast(builder, values[5], inside, types.uint32)
        text = "{ .reg .pred p; setp.ne.b32 p, $3, 0; @p st.global.v2.f32 [$0], {$1, $2}; }"
        emit(builder, ir.VoidType(), text, "l,f,f,r", [address, values[3], values[4], inside_word])
        return context.get_dummy_value()

    return types.void(array, i, j, types.float32, types.float32, inside), codegen


@intrinsic
@named(4)
def load_4_floats(typingctx, array, i, j, inside):
    """array[i, j:j+4] on a multiple of 16 bytes, past the first-level cache; zeros unless `inside`, and no read."""

    def codegen(context, builder, signature, values):
        address = element_address(context, builder, array, values[0], (i, j), values[1:3], shared=False)
        inside_word = context.cast(builder, values[3], inside, types.uint32)
        text = (
            "{ .reg .pred p; setp.ne.b32 p, $5, 0; mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0; "
            "@p ld.global.cg.v4.f32 {$0,$1,$2,$3}, [$4]; }"
        )
        struct = ir.LiteralStructType([F32] * 4)
        return four(context, builder, SUMS, emit(builder, struct, text, "=&f,=&f,=&f,=&f,l,r", [address, inside_word]))

    return SUMS(array, i, j, inside), codegen


copies_wait_0 = instruction("cp.async.wait_group 0;")


# ---- sparse attention on Hopper --------------------------------------------------------------------------------------
# Addresses are numbers here: of shared memory 32 bits, of device memory 64.
copy_16_bytes_at = instruction(  # (to, from, 16 or 0): with 0 nothing is read and 16 zeros arrive
    "cp.async.cg.shared.global [$0], [$1], 16, $2;", "r,l,r", (u32, u64, u32)
)
load_index = instruction("ld.global.nc.b32 $0, [$1];", "l", (u64,), types.int32)
load_float = instruction("ld.global.nc.f32 $0, [$1];", "l", (u64,), f32)
mbarrier_arrive = instruction("mbarrier.arrive.shared::cta.b64 _, [$0];", "r", (u32,))
# arrives at the barrier when all copies that this thread has issued are in; does not wait
copies_arrive = instruction("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$0];", "r", (u32,))
# a numbered barrier of two warpgroups, by (number, threads): those who arrive go on, those who sync wait for them
barrier_arrive = instruction("bar.arrive $0, $1;", "r,r", (u32, u32))
barrier_sync = instruction("bar.sync $0, $1;", "r,r", (u32, u32))

AttentionRegisters = namedtuple(
    "AttentionRegisters",
    "declare clear scores_first scores_second scores_read values_of_registers values_of_shared rescale weights_store "
    "write write_turned",
)
V_ROWS = 512 << 16  # low word of the descriptor of values: their columns are K, 8192 bytes from 64 columns to the next


def attention_registers():
    """Intrinsics over one warpgroup's 64 heads: scores of 64 rows (64 x 64) and 256 columns of output (64 x 256).

    As in `accumulators`, the sums are PTX registers with names of their own, acc<128> and score<32>. The thread of warp
    w and lane 4 g + t holds score[4 j + 2 h + c]: head 16 w + 8 h + g, row 8 j + 2 t + c; and acc likewise. What a
    thread holds of 64 x 64 weights, rounded to bf16 and packed two a word, is wgmma's operand A as it stands.

    declare(), clear()                 once, before all else; acc = 0
    scores_first(q, keys)              score = Q K^T over the first 256 of 512 columns ...
    scores_second(q, keys)             ... and the others added; a group of products, started and not waited for.
                                       q, keys: address >> 4 | DESCRIPTOR_LOW of 8 blocks of 64 rows x 64 columns
    scores_read(s)                     waits for all products; s[i] = score[i]
    values_of_registers(p, v)          acc += P V: P 16 words a thread, v: address >> 4 | V_ROWS of 4 blocks of 64 rows
                                       x 64 columns; started, not waited for
    values_of_shared(p, v)             the same with P in shared memory, p: address >> 4 | DESCRIPTOR_LOW
    rescale(upper, lower, always)      acc of heads g and g + 8 of each warp times these. `always` is not 0 and the
                                       branch on it not for this thread to take: it keeps ptxas from moving 128
                                       multiplications in front of the arrival that another warpgroup waits for
    weights_store(p, row, chunk)       P into swizzled shared memory: `row` is the address of row lane % 16 of this
                                       warp's 16, `chunk` 16 times (lane / 16 ^ lane % 8)
    write(upper, lower, o, odd)        acc times these as bf16 to device memory, rows of 1024 bytes: neighbouring lanes
                                       swap a word, so that four lanes write one sector of 32 bytes. o: where lane
                                       4 g + t writes of head g: 16 (t % 2) + 8 (t / 2) bytes in; odd: t % 2
    write_turned(..., cos, sin)        the same with the last 64 columns turned back, pair by pair, once rounded;
                                       cos, sin: the address of element t of the token's row of 32
    """
    acc, score = (", ".join(f"{name}{i}" for i in range(count)) for name, count in (("acc", 128), ("score", 32)))
    declare = instruction(".reg .f32 acc<128>; .reg .f32 score<32>;")
    clear = instruction(" ".join(f"mov.f32 acc{i}, 0f00000000;" for i in range(128)))

    def scores(first, last):
        lines = ["{ .reg .b64 a, b; .reg .b32 low; .reg .pred p; wgmma.fence.sync.aligned;"]
        for block in range(first, last):
            for k in range(4):  # 16 columns, 32 bytes or 2 units of the descriptor; a block is 8192 bytes
                at = 512 * block + 2 * k
                lines.append(
                    f"add.u32 low, $0, {at}; mov.b64 a, {{low, {DESCRIPTOR_HIGH}}}; "
                    f"add.u32 low, $1, {at}; mov.b64 b, {{low, {DESCRIPTOR_HIGH}}}; setp.ne.b32 p, {int(at > 0)}, 0; "
                    f"wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {{{score}}}, a, b, p, 1, 1, 0, 0;"
                )
        end = " wgmma.commit_group.sync.aligned; }" if last == 8 else " }"
        return instruction(" ".join(lines) + end, "r,r", (u32, u32))

    moves = " ".join(f"mov.f32 ${i}, score{i};" for i in range(32))
    scores_read = registers_out("wgmma.wait_group.sync.aligned 0; " + moves, 32)

    product = "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16"
    head = "{ .reg .b64 a, b; .reg .b32 low; .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.fence.sync.aligned;"
    lines = [head]
    for k in range(4):  # 16 rows of V are 2048 bytes
        words = ", ".join(f"${4 * k + i}" for i in range(4))
        lines.append(
            f"add.u32 low, $16, {128 * k}; mov.b64 b, {{low, {DESCRIPTOR_HIGH}}}; "
            f"{product} {{{acc}}}, {{{words}}}, b, p, 1, 1, 1;"
        )
    values_of_registers = registers_in(" ".join([*lines, "wgmma.commit_group.sync.aligned; }"]), 16, "r", (u32,))
    lines = [head]
    for k in range(4):
        lines.append(
            f"add.u32 low, $0, {2 * k}; mov.b64 a, {{low, {DESCRIPTOR_HIGH}}}; "
            f"add.u32 low, $1, {128 * k}; mov.b64 b, {{low, {DESCRIPTOR_HIGH}}}; "
            f"{product} {{{acc}}}, a, b, p, 1, 1, 0, 1;"
        )
    values_of_shared = instruction(" ".join([*lines, "wgmma.commit_group.sync.aligned; }"]), "r,r", (u32, u32))

    multiply = " ".join(f"mul.f32 acc{i}, acc{i}, ${(i >> 1) & 1};" for i in range(128))
    rescale = instruction(
        "{ .reg .pred p; setp.eq.u32 p, $2, 0; @p bra SKIP; " + multiply + " SKIP: }", "f,f,r", (f32, f32, u32)
    )

    lines = ["{ .reg .b32 to, turned;"]
    for k in range(4):
        words = ", ".join(f"${4 * k + i}" for i in range(4))
        lines.append(
            f"xor.b32 turned, $17, {32 * k}; add.u32 to, $16, turned; "
            f"stmatrix.sync.aligned.m8n8.x4.shared.b16 [to], {{{words}}};"
        )
    weights_store = registers_in(" ".join([*lines, "}"]), 16, "r,r", (u32, u32))

    def writes(turned):
        lines = ["{ .reg .f32 x, y, c<2>, s<2>, even, odds, p, q; .reg .b32 w<2>, give, got, a, b; .reg .pred odd;"]
        lines.append("setp.ne.b32 odd, $3, 0;")
        for j in range(0, 32, 2):  # 16 columns, 32 bytes of a row
            turns = turned and j >= 24
            for k in range(2 if turns else 0):
                at = 16 * (j + k - 24)  # 4 pairs of 4 bytes for 8 columns
                lines.append(f"ld.global.nc.f32 c{k}, [$4 + {at}]; ld.global.nc.f32 s{k}, [$5 + {at}];")
            for h in range(2):  # heads g and g + 8
                for k in range(2):
                    i = 4 * (j + k) + 2 * h
                    lines.append(f"mul.f32 x, acc{i}, ${h}; mul.f32 y, acc{i + 1}, ${h}; cvt.rn.bf16x2.f32 w{k}, y, x;")
                    if turns:  # with .rn a product and a sum are never fused
                        lines.append(
                            f"shl.b32 a, w{k}, 16; mov.b32 x, a; and.b32 a, w{k}, 0xffff0000; mov.b32 y, a; "
                            f"mul.rn.f32 even, x, c{k}; mul.rn.f32 p, y, s{k}; add.rn.f32 even, even, p; "
                            f"mul.rn.f32 odds, y, c{k}; mul.rn.f32 q, x, s{k}; sub.rn.f32 odds, odds, q; "
                            f"cvt.rn.bf16x2.f32 w{k}, odds, even;"
                        )
                lines.append(
                    "selp.b32 give, w0, w1, odd; shfl.sync.bfly.b32 got, give, 1, 31, 0xffffffff; "
                    "selp.b32 a, got, w0, odd; selp.b32 b, w1, got, odd; "
                    f"st.global.v2.b32 [$2 + {16 * j + 8192 * h}], {{a, b}};"
                )
        return " ".join([*lines, "}"])

    write = instruction(writes(turned=False), "f,f,l,r", (f32, f32, u64, u32))
    write_turned = instruction(writes(turned=True), "f,f,l,r,l,l", (f32, f32, u64, u32, u64, u64))
    return AttentionRegisters(
        declare,
        clear,
        scores(0, 4),
        scores(4, 8),
        scores_read,
        values_of_registers,
        values_of_shared,
        rescale,
        weights_store,
        write,
        write_turned,
    )


# ---- hints to the compiler -------------------------------------------------------------------------------------------
# A value that all threads of a warp agree on: ptxas then keeps what follows from it in the warp's uniform registers.
uniform = instruction("shfl.sync.idx.b32 $0, $1, 0, 31, -1;", "r", (u32,), u32)
divide = instruction("div.u32 $0, $1, $2;", "r,r", (u32, u32), u32)  # Numba's // floors, with sign, in 64 bits
# The same number, that LLVM cannot see through: it would rather compute it anew in every round of a loop than keep it.
opaque = instruction("mov.b32 $0, $1;", "r", (u32,), u32)
plus_1 = instruction("add.u32 $0, $1, 1;", "r", (u32,), u32)  # LLVM cannot see through it, so it leaves loops rolled
trap = instruction("trap;")  # stop the kernel with an error


# ---- without a GPU --------------------------------------------------------------------------------------------------
for _name, _function in STAND_INS.items():
    globals()[_name].emulated = _function
