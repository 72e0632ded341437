"""Exercise 06a: turn back.

`rope` turned each adjacent pair of the last R entries of a head by an angle; this kernel undoes it. Row t stands at
position start_pos + t * step, and cos[pos, i] and sin[pos, i] belong to pair i at that position. Say which row of the
table is t's, and turn the pair (even, odd) back. Each product and each sum is rounded to float32 on its own: `fmul_rn`,
`fadd_rn` and `fsub_rn` keep the compiler from fusing them.

x [T, D] bf16 bits, cos and sin [P, R / 2] f32 -> y [T, D] bf16 bits. The checks want the same bits.
"""

import numpy as np
from numba import cuda

from dsv41_numba.formats.bf16 import as_bf16, decode_bf16, encode_bf16
from dsv41_numba.runtime.backend import empty, launch, to_device, to_host


def spec(x, cos, sin, start_pos, step):
    y, copied = x.copy(), x.shape[1] - 2 * cos.shape[1]
    pairs = np.left_shift(x[:, copied:], 16, dtype=np.uint32).view(np.float32).reshape(len(x), -1, 2)
    for t in range(len(x)):
        for i, (even, odd) in enumerate(pairs[t]):
            c, s = cos[start_pos + t * step, i], sin[start_pos + t * step, i]
            matrix = np.array([[c, -s], [s, c]])  # turns (even, odd) on; its transpose turns back
            products = matrix.T * np.array([even, odd])
            y[t, copied + 2 * i : copied + 2 * i + 2] = as_bf16(products[:, 0] + products[:, 1]).view(np.uint16)
    return y


@cuda.jit
def rope_inverse_kernel(x, cos, sin, start_pos, step, y):
    t, pair, copied = cuda.blockIdx.x, cuda.threadIdx.x, x.shape[1] - 2 * cos.shape[1]
    for d in range(pair, copied, cuda.blockDim.x):
        y[t, d] = x[t, d]
    first = copied + 2 * pair
    even, odd = decode_bf16(x[t, first]), decode_bf16(x[t, first + 1])
    # CUT the row of the table, then the pair turned back. | leaves: new_even, new_odd = even, odd
    pos = start_pos + t * step
    c, s = cos[pos, pair], sin[pos, pair]
    new_even = cuda.libdevice.fadd_rn(cuda.libdevice.fmul_rn(even, c), cuda.libdevice.fmul_rn(odd, s))
    new_odd = cuda.libdevice.fsub_rn(cuda.libdevice.fmul_rn(odd, c), cuda.libdevice.fmul_rn(even, s))
    # END
    y[t, first], y[t, first + 1] = encode_bf16(new_even), encode_bf16(new_odd)


def run(x, cos, sin, start_pos, step):
    y = empty(x.shape, np.uint16)
    launch(rope_inverse_kernel, len(x), cos.shape[1], to_device(x), to_device(cos), to_device(sin), start_pos, step, y)
    return to_host(y)
