"""Exercise 06b: the YaRN ramp.

A host function, NumPy only. `plain` [R / 2] float32 holds the radians that each pair turns in one position. Pairs that
turn more than `beta_fast` times in `original` positions keep their speed, those that turn less than `beta_slow` times
are divided by `factor`, and a straight ramp over the pair's number joins the two. `pair_that_turns(times)` gives the
number of the pair that turns so often, as a fraction: the ramp begins at the pair below it for beta_fast, and ends at
the pair above it for beta_slow.

`original` 0 means that there is no YaRN. The ramp must not begin before pair 0, nor end after rope_dim - 1, and has to
work where both ends are the same pair. The checks want the same bits of the speeds that come back, float32.
"""

# Check it: dsv41 exercise 06b

import math

import numpy as np

from dsv41_numba.ops.rope import yarn_freqs


def spec(rope_dim, theta, original, factor, beta_fast, beta_slow):
    return yarn_freqs(rope_dim, theta, original, factor, beta_fast, beta_slow)


def run(rope_dim, theta, original, factor, beta_fast, beta_slow):
    exponent = np.arange(0, rope_dim, 2, dtype=np.float32) / np.float32(rope_dim)
    plain = np.float32(1.0) / np.power(float(theta), exponent.astype(np.float64)).astype(np.float32)

    def pair_that_turns(times):
        return rope_dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(theta))

    # YOUR CODE: low and high, the ends of the ramp; keep [R / 2], 1 below low and 0 above high; then the speeds.
    #  Everything in float32; the mixture is plain / factor * (1 - keep) + plain * keep. | leaves: return plain
