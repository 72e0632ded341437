"""Mistakes of chapter 3 that its checks must find."""

from exercises import Mistake

DECODE = "        y[i] = uint32(uint32(bits[i]) << uint32(16)).view(np.float32)\n"
ROUND = "    return uint16(uint32(bits + uint32(0x7FFF) + last_kept) >> uint32(16))\n"
WORD = "        y[i] = uint32(low) | uint32(uint32(high) << uint32(16))\n"

MISTAKES = [
    Mistake(
        id="03a",
        name="no shift",
        changes={DECODE: "        y[i] = uint32(bits[i]).view(np.float32)\n"},
        caught_by="small",
    ),
    Mistake(
        id="03a",
        name="the pattern as a whole number",
        changes={DECODE: "        y[i] = bits[i]\n"},
        caught_by="small",
    ),
    Mistake(
        id="03a",
        name="shifted by a float16's difference",
        changes={DECODE: DECODE.replace("uint32(16)", "uint32(13)")},
        caught_by="small",
    ),
    Mistake(
        id="03a",
        name="the sign by comparing with 0",
        changes={
            DECODE: (
                "        magnitude = uint32(uint32(bits[i] & 0x7FFF) << uint32(16)).view(np.float32)\n"
                "        y[i] = -magnitude if magnitude > 0 and bits[i] >= 0x8000 else magnitude\n"
            )
        },
        caught_by="trap: -0.0 loses its sign",
    ),
    Mistake(
        id="03a",
        name="subnormals as normal numbers",
        changes={
            DECODE: (
                "        magnitude = uint32(uint32(bits[i] & 0x7FFF) << uint32(16))\n"
                "        if uint32(0) < magnitude < uint32(0x00800000):\n"
                "            magnitude |= uint32(0x00800000)\n"
                "        y[i] = uint32(magnitude | uint32(uint32(bits[i] & 0x8000) << uint32(16))).view(np.float32)\n"
            )
        },
        caught_by="trap: subnormals get a leading 1",
    ),
    Mistake(
        id="03a",
        name="every NaN the same",
        changes={
            DECODE: "        word = uint32(uint32(bits[i]) << uint32(16))\n"
            "        if uint32(word & uint32(0x7FFFFFFF)) > uint32(0x7F800000):\n"
            "            word = uint32(0x7FC00000)\n"
            "        y[i] = word.view(np.float32)\n"
        },
        caught_by="trap: a NaN becomes a number",
    ),
    Mistake(
        id="03a",
        name="writes twice",
        changes={DECODE: "        y[i] = 0.0\n" + DECODE},
        caught_by="budget",
    ),
    Mistake(
        id="03b",
        name="cuts",
        changes={ROUND: "    return uint16(bits >> uint32(16))\n"},
        caught_by="small",
    ),
    Mistake(
        id="03b",
        name="always up",
        changes={ROUND: ROUND.replace("0x7FFF", "0xFFFF").replace(" + last_kept", "")},
        caught_by="small",
    ),
    Mistake(
        id="03b",
        name="tie away from zero",
        changes={ROUND: ROUND.replace("0x7FFF", "0x8000").replace(" + last_kept", "")},
        caught_by="trap: tie away from zero",
    ),
    Mistake(
        id="03b",
        name="tie towards zero",
        changes={ROUND: ROUND.replace(" + last_kept", "")},
        caught_by="trap: tie away from zero",
    ),
    Mistake(
        id="03b",
        name="the sign by comparing with 0",
        changes={
            ROUND: (
                "    magnitude = uint32(uint32(bits & uint32(0x7FFFFFFF)) + uint32(0x7FFF) + last_kept) >> uint32(16)\n"
                "    return uint16(uint32(magnitude) | uint32(0x8000)) if value < 0 else uint16(magnitude)\n"
            )
        },
        caught_by="trap: -0.0 loses its sign",
    ),
    Mistake(
        id="03b",
        name="rounds the mantissa alone",
        changes={
            ROUND: (
                "    m = uint32(uint32(bits & uint32(0x7FFFFF)) + uint32(0x7FFF) + last_kept) >> uint32(16)\n"
                "    return uint16(uint32(uint32(bits >> uint32(16)) & uint32(0xFF80)) | (uint32(m) & uint32(0x7F)))\n"
            )
        },
        caught_by="trap: the carry stops at the exponent",
    ),
    Mistake(
        id="03b",
        name="clamps",
        changes={
            ROUND: ROUND.replace("return uint16(", "code = ").replace(">> uint32(16))", ">> uint32(16)")
            + "    if (code & uint32(0x7FFF)) == uint32(0x7F80):\n        code -= uint32(1)\n    return uint16(code)\n"
        },
        caught_by="trap: the largest instead of infinity",
    ),
    Mistake(
        id="03b",
        name="no NaN",
        changes={"    if value != value:\n": "    if False:\n"},
        caught_by="trap: a NaN becomes infinity",
    ),
    Mistake(
        id="03b",
        name="a NaN cut",
        changes={
            "        return uint16(((bits >> uint32(16)) & uint32(0x8000)) | uint32(0x7FC0))\n": (
                "        return uint16((bits >> uint32(16)) | uint32(0x40))\n"
            )
        },
        caught_by="trap: a NaN is rounded",
    ),
    Mistake(
        id="03b",
        name="subnormals dropped",
        changes={
            ROUND: "    if (bits & uint32(0x7F800000)) == uint32(0):\n        bits &= uint32(0x80000000)\n" + ROUND
        },
        caught_by="trap: subnormals become 0",
    ),
    Mistake(
        id="03c",
        name="halves swapped",
        changes={WORD: "        y[i] = uint32(high) | uint32(uint32(low) << uint32(16))\n"},
        caught_by="small",
    ),
    Mistake(
        id="03c",
        name="low half not cut out",
        changes={"decode_bf16(word & uint32(0xFFFF))": "decode_bf16(word >> uint32(16))"},
        caught_by="small",
    ),
    Mistake(
        id="03c",
        name="reads the word twice",
        changes={"decode_bf16(word >> uint32(16))": "decode_bf16(x[i] >> uint32(16))"},
        caught_by="budget",
    ),
    Mistake(
        id="03c",
        name="shifts 16 bits",
        changes={
            WORD: "        y[i] = uint32(low) | uint32(uint16(high << 16))\n",
            "cuda, uint32": "cuda, uint16, uint32",
        },
        caught_by="small",
    ),
]
