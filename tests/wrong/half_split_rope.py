"""RoPE that turns entry i with entry i + R / 2, as other members of the family do. Nothing crashes, norms are kept."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.ops.rope",
    changes={
        """\
                    y[t, h, p] = turn_pair(fetched[i], cos[pos, p - copied], turn * sin[pos, p - copied])
""": """\
                    half = cos.shape[1] // 2
                    low = p - copied < half
                    mate = x[t, h, p + half if low else p - half]
                    j = 2 * (p - copied if low else p - copied - half)
                    sign = -turn if low else turn
                    even, even_mate = decode_bf16(fetched[i] & uint32(0xFFFF)), decode_bf16(mate & uint32(0xFFFF))
                    odd, odd_mate = decode_bf16(fetched[i] >> uint32(16)), decode_bf16(mate >> uint32(16))
                    new_even = even * cos[pos, j] + even_mate * sign * sin[pos, j]
                    new_odd = odd * cos[pos, j + 1] + odd_mate * sign * sin[pos, j + 1]
                    y[t, h, p] = uint32(encode_bf16(new_even)) | uint32(encode_bf16(new_odd)) << uint32(16)
"""
    },
    replaces=("dsv41_numba.ops.rope.rope_kernel",),
)
