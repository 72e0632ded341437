"""fp8 codes made with amax / 448 itself, while the power of two above it is kept as the scale."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.ops.quant_fp8",
    changes={
        "def e4m3_round_trip(x_bits, scale)": "def e4m3_round_trip(x_bits, exact, scale)",
        "encode_e4m3(decode_bf16(x_bits) / scale)": "encode_e4m3(decode_bf16(x_bits) / exact)",
        "e4m3_round_trip(word & uint32(0xFFFF), scale)": (
            "e4m3_round_trip(word & uint32(0xFFFF), max(amax, AMAX_FLOOR) * INVERSE_448, scale)"
        ),
        "e4m3_round_trip(word >> uint32(16), scale)": (
            "e4m3_round_trip(word >> uint32(16), max(amax, AMAX_FLOOR) * INVERSE_448, scale)"
        ),
    },
    replaces=("dsv41_numba.ops.quant_fp8.fp8_round_trip_kernel",),
)
