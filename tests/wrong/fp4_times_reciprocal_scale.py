"""A multiplication by 1 / scale for the division: the same for powers of two, one code in a hundred else for e4m3."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.ops.quant_fp4",
    changes={"encode_e2m1(decode_bf16(x_bits) / scale)": "encode_e2m1(decode_bf16(x_bits) * (float32(1.0) / scale))"},
    replaces=("dsv41_numba.ops.quant_fp4.fp4_round_trip_e4m3_kernel",),
)
