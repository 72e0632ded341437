"""Mistakes of chapter 8 that its checks must find."""

from exercises import Mistake

BYTE = "uint8(even | (odd << uint32(4)))"
SCALE = "rows[r, D // 2 + 2 * i // BLOCK]"

MISTAKES = [
    Mistake(
        id="08a",
        name="the even index in the high bits",
        changes={BYTE: "uint8(odd | (even << uint32(4)))"},
        caught_by="trap: high nibble first",
    ),
    Mistake(
        id="08a",
        name="the even code twice",
        changes={BYTE: "uint8(even | (even << uint32(4)))"},
        caught_by="trap: high nibble first",
    ),
    Mistake(id="08a", name="shifted by 3", changes={BYTE: "uint8(even | (odd << uint32(3)))"}, caught_by="small"),
    Mistake(
        id="08a",
        name="a code without its sign",
        changes={BYTE: "uint8(even | (odd & 7) << uint32(4))"},
        caught_by="full",
    ),
    Mistake(
        id="08a",
        name="the codes read again",
        changes={BYTE: "uint8(codes[r, 2 * i] | (odd << uint32(4)))"},
        caught_by="budget",
    ),
    Mistake(
        id="08b",
        name="every tie to the code above",
        changes={f"> float32({mark})": f">= float32({mark})" for mark in ("0.25", "1.25", "2.5", "5.0")},
        caught_by="trap: tie away from zero",
    ),
    Mistake(
        id="08b",
        name="every tie to the code below",
        changes={f">= float32({mark})": f"> float32({mark})" for mark in ("0.75", "1.75", "3.5")},
        caught_by="trap: tie away from zero",
    ),
    Mistake(
        id="08b",
        name="one code more above 6",
        changes={
            "uint32(magnitude > float32(5.0))": "uint32(magnitude > float32(5.0)) + uint32(magnitude > float32(7.0))"
        },
        caught_by="trap: above 6",
    ),
    Mistake(
        id="08b",
        name="the sign by comparison",
        changes={"(float32(value).view(np.uint32) >> uint32(28)) & uint32(8)": "uint32(8) * uint32(value < 0)"},
        caught_by="trap: -0.0 loses its sign",
    ),
    Mistake(id="08b", name="no sign", changes={"uint8(sign | code)": "uint8(code)"}, caught_by="small"),
    Mistake(
        id="08c",
        name="the codes of a byte swapped",
        changes={
            "y[r, 2 * i] = ": "y[r, 2 * (i + 1) - 1] = ",
            "y[r, 2 * i + 1] = ": "y[r, 2 * i] = ",
        },
        caught_by="small",
    ),
    Mistake(
        id="08c",
        name="a scale for 32 numbers",
        changes={SCALE: "rows[r, D // 2 + 2 * i // 32]"},
        caught_by="full",
    ),
    Mistake(
        id="08c",
        name="scales at byte 256",
        changes={SCALE: "rows[r, 256 + 2 * i // BLOCK] if D >= 96 else rows[r, D // 2]"},
        caught_by="trap: scales looked for at byte 256 of a shorter row",
    ),
    Mistake(
        id="08c",
        name="the scale read once for each number",
        changes={"decode_e2m1(codes >> uint32(4)) * scale": f"decode_e2m1(codes >> uint32(4)) * decode_e4m3({SCALE})"},
        caught_by="budget",
    ),
]
