"""RoPE that turns entry i with entry i + R / 2, as other members of the family do. Nothing crashes, norms are kept."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.ops.rope",
    changes={
        """\
                c = cos[pos, p - copied]
                s = turn * sin[pos, p - copied]
""": """\
                half = cos.shape[1] // 2
                low = p - copied < half
                mate = x[t, h, p + half if low else p - half]
                i = 2 * (p - copied if low else p - copied - half)
                sign = -turn if low else turn
""",
        "cuda.libdevice.fsub_rn(cuda.libdevice.fmul_rn(even, c), cuda.libdevice.fmul_rn(odd, s))": (
            "even * cos[pos, i] + decode_bf16(uint16(mate & uint32(0xFFFF))) * sign * sin[pos, i]"
        ),
        "cuda.libdevice.fadd_rn(cuda.libdevice.fmul_rn(even, s), cuda.libdevice.fmul_rn(odd, c))": (
            "odd * cos[pos, i + 1] + decode_bf16(uint16(mate >> uint32(16))) * sign * sin[pos, i + 1]"
        ),
    },
    replaces=("dsv41_numba.ops.rope.rope_kernel",),
)
