"""Mistakes of chapter 6 that its checks must find."""

from exercises import Mistake

EVEN = "cuda.libdevice.fadd_rn(cuda.libdevice.fmul_rn(even, c), cuda.libdevice.fmul_rn(odd, s))"

MISTAKES = [
    Mistake(
        id="06a",
        name="turns on instead of back",
        changes={"c, s = cos[pos, pair], sin[pos, pair]": "c, s = cos[pos, pair], -sin[pos, pair]"},
        caught_by="small",
    ),
    Mistake(
        id="06a",
        name="negates cos instead of sin",
        changes={"c, s = cos[pos, pair], sin[pos, pair]": "c, s = -cos[pos, pair], -sin[pos, pair]"},
        caught_by="small",
    ),
    Mistake(
        id="06a",
        name="rounds once, at the end",
        changes={EVEN: "float64(even) * float64(c) + float64(odd) * float64(s)", "import cuda": "import cuda, float64"},
        caught_by="trap: rounds once where the contract rounds three times",
    ),
    Mistake(
        id="06a",
        name="forgets where the rows begin",
        changes={"pos = start_pos + t * step": "pos = t * step"},
        caught_by="full",
    ),
    Mistake(
        id="06a",
        name="forgets the step",
        changes={"pos = start_pos + t * step": "pos = start_pos + t"},
        caught_by="trap: takes every row for one position",
    ),
    Mistake(
        id="06a",
        name="reads the table past its end",
        changes={"c, s = cos[pos, pair], sin[pos, pair]": "c, s = cos[pos, pair], sin[pos, pair + 1]"},
        caught_by="error",
    ),
    Mistake(
        id="06b",
        name="the ramp upside down",
        changes={"keep = np.float32(1.0) - ramp": "keep = ramp"},
        caught_by="small",
    ),
    Mistake(
        id="06b",
        name="mixes the periods instead of the speeds",
        changes={
            "return plain / np.float32(factor) * (np.float32(1.0) - keep) + plain * keep": (
                "return plain / (np.float32(factor) * (np.float32(1.0) - keep) + keep)"
            )
        },
        caught_by="small",
    ),
    Mistake(
        id="06b",
        name="slows down without YaRN",
        changes={"        return plain\n": "        return plain / np.float32(factor)\n"},
        caught_by="trap: slows down without YaRN",
    ),
    Mistake(
        id="06b",
        name="lets the ramp begin below 0",
        changes={"max(math.floor(pair_that_turns(beta_fast)), 0)": "math.floor(pair_that_turns(beta_fast))"},
        caught_by="trap: begins the ramp before pair 0",
    ),
    Mistake(
        id="06b",
        name="lets the ramp end anywhere",
        changes={"min(math.ceil(pair_that_turns(beta_slow)), rope_dim - 1)": "math.ceil(pair_that_turns(beta_slow))"},
        caught_by="trap: ends the ramp after rope_dim - 1",
    ),
    Mistake(
        id="06b",
        name="a ramp of no width",
        changes={"        high += 0.001  # no division by zero\n": "        pass\n"},
        caught_by="trap: divides by zero where the ramp has no width",
    ),
    Mistake(
        id="06c",
        name="pairs half a head apart",
        changes={
            "d = copied + 2 * i": "d, far = copied + i, cos.shape[1]",
            "decode_bf16(x[t, h, d + 1])": "decode_bf16(x[t, h, d + far])",
            "y[t, h, d], y[t, h, d + 1] = ": "y[t, h, d], y[t, h, d + far] = ",
        },
        caught_by="small",
    ),
    Mistake(
        id="06c",
        name="turns the first entries",
        changes={
            "for d in range(cuda.threadIdx.x, copied, 32)": (
                "for d in range(cuda.threadIdx.x + 2 * cos.shape[1], x.shape[2], 32)"
            ),
            "d = copied + 2 * i": "d = 2 * i",
        },
        caught_by="trap: turns the first entries instead of the last",
    ),
    Mistake(
        id="06c",
        name="writes an entry twice",
        changes={
            "y[t, h, d], y[t, h, d + 1] = encode_bf16(new_even), encode_bf16(new_odd)": (
                "y[t, h, d] = encode_bf16(new_even)\n        y[t, h, d + 1] = encode_bf16(new_odd)\n"
                "        y[t, h, d] = encode_bf16(new_even)"
            )
        },
        caught_by="budget",
    ),
]
