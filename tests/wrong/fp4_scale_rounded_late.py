"""fp4 codes made with amax / 6 itself, while its rounded form is kept as the scale; both kinds of scale."""

from wrong import Fault

LAST_LINES = """\
    scale = {decode}({encode}(amax / float32(6.0)))
    if i < N:
        y[i] = {value}
"""
RIGHT = "e2m1_round_trip(x_bits, scale)"
WRONG = "encode_bf16(decode_e2m1(encode_e2m1(decode_bf16(x_bits) / (amax / float32(6.0)))) * scale)"

FAULT = Fault(
    module="dsv41_numba.ops.quant_fp4",
    changes={
        LAST_LINES.format(decode=f"decode_{scale}", encode=f"encode_{scale}", value=RIGHT): LAST_LINES.format(
            decode=f"decode_{scale}", encode=f"encode_{scale}", value=WRONG
        )
        for scale in ("e8m0", "e4m3")
    },
    replaces=(
        "dsv41_numba.ops.quant_fp4.fp4_round_trip_e8m0_kernel",
        "dsv41_numba.ops.quant_fp4.fp4_round_trip_e4m3_kernel",
    ),
)
