"""Exercise 10a: from the dots of all heads to one score.

The score of token t and compressed position g is a sum over the index heads: each head's dot, rounded to bf16, below 0
made 0, times the head's weight, rounded to bf16. The f32 sum, heads in ascending order, is rounded to bf16 once more.

dot [T, H, G] f32 and index_w [T, H] bf16 (uint16 bits) come in, score [T, G] f32 that holds bf16 values goes out. One
thread makes one score.

Write what one head adds to the sum. `decode_bf16(encode_bf16(x))` rounds x to bf16 and gives it back as an f32. The
checks compare bits: every rounding counts, and so does the order of ReLU and weight.
"""

import numpy as np
from numba import cuda, float32

from dsv41_numba.formats.bf16 import as_bf16, bf16_to_f32, decode_bf16, encode_bf16
from dsv41_numba.runtime.backend import empty, launch, to_device, to_host

THREADS = 128


def spec(dot, index_w):
    weight = bf16_to_f32(index_w)
    total = np.zeros((dot.shape[0], dot.shape[2]), np.float32)
    for h in range(dot.shape[1]):
        relu = np.maximum(as_bf16(dot[:, h]).astype(np.float32), 0)
        total += as_bf16(relu * weight[:, h, None]).astype(np.float32)
    return as_bf16(total).astype(np.float32)


@cuda.jit
def score_kernel(dot, index_w, score):
    g = cuda.grid(1)
    t = cuda.blockIdx.y
    if g < score.shape[1]:
        total = float32(0.0)
        for h in range(dot.shape[1]):
            w = decode_bf16(index_w[t, h])
            # CUT round dot[t, h, g] to bf16, make it 0 if it is below 0, multiply by w, round, add to total
            relu = decode_bf16(encode_bf16(dot[t, h, g]))
            if relu < float32(0.0):
                relu = float32(0.0)
            total += decode_bf16(encode_bf16(relu * w))
            # END
        score[t, g] = decode_bf16(encode_bf16(total))


def run(dot, index_w):
    T, G = dot.shape[0], dot.shape[2]
    score = empty((T, G), np.float32)
    launch(score_kernel, (-(-G // THREADS), T), THREADS, to_device(dot), to_device(index_w), score)
    return to_host(score)
