"""Exercise 11c: two numbers in one read.

`plain_logits_kernel` is right: logit[t, s] is scale times the dot of q[t] and row idx[t, s], or -inf where the slot is
empty. But it reads one bf16 at a time, and each thread of a block reads the whole q of its token.

q [T, D] and rows [R, D] bf16 (uint16 bits), idx [T, S] int32 and scale come in, D is even and at most 128; logit [T, S]
f32 goes out. One block has one token, one thread one slot.

Write `logits_kernel`, which gets q and rows as words: uint32, two bf16 each, the even dimension in the low half. It
reads each word of a row once, and each word of q once a block, into shared memory. The numbers are small and whole, so
any order of the sums gives the same bits.
"""

import numpy as np
from numba import cuda, float32, uint32

from dsv41_numba.formats.bf16 import bf16_to_f32, decode_bf16
from dsv41_numba.runtime.backend import empty, launch, to_device, to_host

THREADS = 64
MAX_WORDS = 64  # of a row
NEG_INF = np.float32(-np.inf)


def spec(q, rows, idx, scale):
    dot = np.einsum("td,tsd->ts", bf16_to_f32(q), bf16_to_f32(rows)[idx])
    return np.where(idx == -1, NEG_INF, dot * np.float32(scale))


@cuda.jit
def plain_logits_kernel(q, rows, idx, scale, logit):
    t = cuda.blockIdx.x
    for s in range(cuda.threadIdx.x, idx.shape[1], THREADS):
        row = idx[t, s]
        logit[t, s] = NEG_INF
        if row != -1:
            dot = float32(0.0)
            for d in range(q.shape[1]):
                dot += decode_bf16(q[t, d]) * decode_bf16(rows[row, d])
            logit[t, s] = dot * scale


@cuda.jit(device=True)
def low_bf16(word):
    return decode_bf16(word & uint32(0xFFFF))


@cuda.jit(device=True)
def high_bf16(word):
    return decode_bf16(word >> uint32(16))


@cuda.jit
def logits_kernel(q, rows, idx, scale, logit):
    q_words = cuda.shared.array(MAX_WORDS, uint32)
    t = cuda.blockIdx.x
    words = q.shape[1]
    # CUT fill q_words, word m by thread m % THREADS; a barrier; then one slot after the other as in the plain
    #  kernel, with both halves of each word
    for m in range(cuda.threadIdx.x, words, THREADS):
        q_words[m] = q[t, m]
    cuda.syncthreads()  # q is in place before anyone multiplies
    for s in range(cuda.threadIdx.x, idx.shape[1], THREADS):
        row = idx[t, s]
        value = NEG_INF
        if row != -1:
            dot = float32(0.0)
            for m in range(words):
                word = rows[row, m]
                dot += low_bf16(q_words[m]) * low_bf16(word)
                dot += high_bf16(q_words[m]) * high_bf16(word)
            value = dot * scale
        logit[t, s] = value
    # END


def run(q, rows, idx, scale):
    logit = empty(idx.shape, np.float32)
    words = (to_device(q.view(np.uint32)), to_device(rows.view(np.uint32)))
    launch(logits_kernel, len(q), THREADS, *words, to_device(idx), np.float32(scale), logit)
    return to_host(logit)
