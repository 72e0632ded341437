"""Mistakes in the exercises of chapter 9, and the first check that reports each."""

from exercises import Mistake

MISTAKES = [
    Mistake(
        id="09a",
        name="reads the first group every time",
        changes={"math.exp(score[first + i, d] - top)": "math.exp(score[i, d] - top)"},
        caught_by="small",
    ),
    Mistake(
        id="09a",
        name="does not subtract the largest score",
        changes={"math.exp(score[first + i, d] - top)": "math.exp(score[first + i, d])"},
        caught_by="trap: exp of a large score, which is infinite",
    ),
    Mistake(
        id="09a",
        name="handles the first 256 dimensions only",
        changes={
            "for d in range(cuda.threadIdx.x, D, THREADS):": "for d in range(cuda.threadIdx.x, min(D, 256), 256):"
        },
        caught_by="full",
    ),
    Mistake(
        id="09a",
        name="reads the score twice",
        changes={"kv_sum += weight *": "kv_sum += float32(math.exp(score[first + i, d] - top)) *"},
        caught_by="budget",
    ),
    Mistake(
        id="09a",
        name="reads the weight before it is there",
        changes={"            total += weight\n": "            total += wait\n"},
        caught_by="error",
    ),
    Mistake(
        id="09b",
        name="always reads this call's rows",
        changes={"        return state[i, d]\n": "        return rows[max(i - held, 0), d]\n"},
        caught_by="full",
    ),
    Mistake(
        id="09b",
        name="leaves a slot as it was when its group is complete",
        changes={
            "kv_state[slot, d] = float32(0.0)": "pass",
            "score_state[slot, d] = float32(-math.inf)": "pass",
        },
        caught_by="full",
    ),
    Mistake(
        id="09b",
        name="marks an empty slot with score 0",
        changes={"score_state[slot, d] = float32(-math.inf)": "score_state[slot, d] = float32(0.0)"},
        caught_by="small",
    ),
    Mistake(
        id="09b",
        name="stores the first rows of the call, not the last",
        changes={
            "kv_state[slot, d] = kv[position - start_pos, d]": "kv_state[slot, d] = kv[slot, d]",
            "score_state[slot, d] = score[position - start_pos, d]": "score_state[slot, d] = score[slot, d]",
        },
        caught_by="small",
    ),
    Mistake(
        id="09b",
        name="empties the slots of earlier calls",
        changes={
            "elif position >= start_pos:": "elif position < start_pos:\n            kv_state[slot, d] = float32(0.0)\n"
            "        else:"
        },
        caught_by="trap: a row that an earlier call stored is lost",
    ),
]
