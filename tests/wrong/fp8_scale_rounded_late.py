"""fp8 codes made with amax / 448 itself, while the power of two above it is kept as the scale."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.ops.quant_fp8",
    changes={"encode_e4m3(decode_bf16(x_bits) / scale)": "encode_e4m3(decode_bf16(x_bits) / (amax * INVERSE_448))"},
    replaces=("dsv41_numba.ops.quant_fp8.fp8_round_trip_kernel",),
)
