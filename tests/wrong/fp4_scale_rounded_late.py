"""fp4 codes made with amax / 6 itself, while its rounded form is kept as the scale; both kinds of scale."""

from wrong import Fault

LAST_LINES = """\
    scale = decode_{kind}(fp4_scale_{kind}(amax))
    i = cuda.grid(1)
    if i < x.shape[0]:
        low, high = {round_trip}(word & uint32(0xFFFF), {scale}), {round_trip}(word >> uint32(16), {scale})
"""
HELPER = """\
@cuda.jit(device=True)
def e2m1_round_trip(x_bits, scale):
"""
LATE = """\
@cuda.jit(device=True)
def late_round_trip(x_bits, exact, scale):
    return uint32(encode_bf16(decode_e2m1(encode_e2m1(decode_bf16(x_bits) / exact)) * scale))


"""

FAULT = Fault(
    module="dsv41_numba.ops.quant_fp4",
    changes={HELPER: LATE + HELPER}
    | {
        LAST_LINES.format(kind=kind, round_trip="e2m1_round_trip", scale="scale"): LAST_LINES.format(
            kind=kind, round_trip="late_round_trip", scale=f"max(amax, AMAX_FLOOR_{kind.upper()}) / float32(6.0), scale"
        )
        for kind in ("e8m0", "e4m3")
    },
    replaces=(
        "dsv41_numba.ops.quant_fp4.fp4_round_trip_e8m0_kernel",
        "dsv41_numba.ops.quant_fp4.fp4_round_trip_e4m3_kernel",
    ),
)
