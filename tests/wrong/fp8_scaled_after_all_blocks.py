"""A fp8 linear that adds the codes' products over all of K first, and scales them by the last block's scales."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.ops.linear_fp8",
    changes={
        "            total += product * both\n": "            total += product\n",
        "    if m < M and n < N:\n        y[m, n] = encode_bf16(total)": (
            "    if m < M and n < N:\n        y[m, n] = encode_bf16(total * both)"
        ),
        "    total = float32(0.0)\n": "    total = float32(0.0)\n    both = float32(0.0)\n",
    },
    replaces=("dsv41_numba.ops.linear_fp8.linear_fp8_kernel",),
)
