"""Mistakes in the exercises of chapter 12, and the first check that reports each."""

from exercises import Mistake

MISTAKES = [
    Mistake(
        id="12a",
        name="scores its own keys",
        changes={"REINDEX, rows_of, rows_of, layer, obeys": "REINDEX, rows_of, layer, layer, obeys"},
        caught_by="small",
    ),
    Mistake(
        id="12a",
        name="lets the candidate source obey its own mask",
        changes={"if 0 <= mask < layer and": "if 0 <= mask <= layer and"},
        caught_by="small",
    ),
    Mistake(
        id="12a",
        name="lets layers that only read obey the mask",
        changes={
            "        if 0 <= mask < layer and selection_of == layer:\n            obeys = mask\n": (
                "        if 0 <= mask < layer:\n            obeys = mask\n"
            ),
            "REUSE, rows_of, -1, selection_of, -1": "REUSE, rows_of, -1, selection_of, obeys",
        },
        caught_by="full",
    ),
    Mistake(
        id="12a",
        name="obeys a mask that comes later",
        changes={"if 0 <= mask < layer and": "if 0 <= mask != layer and"},
        caught_by="full",
    ),
    Mistake(
        id="12a",
        name="writes the layer before the first for no mask",
        changes={
            "            obeys = mask\n": "            obeys = mask\n        if mask < 0:\n            obeys = -2\n"
        },
        caught_by="trap: no mask at all",
    ),
    Mistake(
        id="12a",
        name="lets every REINDEX layer obey",
        changes={"REINDEX, rows_of, rows_of, layer, obeys": "REINDEX, rows_of, rows_of, layer, mask"},
        caught_by="trap: a REINDEX layer below the mask",
    ),
    Mistake(
        id="12a",
        name="lets REINDEX layers alone obey",
        changes={"table[layer] = FULL, layer, layer, layer, obeys": "table[layer] = FULL, layer, layer, layer, -1"},
        caught_by="trap: a FULL layer above the mask",
    ),
    Mistake(
        id="12b",
        name="forgets to publish",
        changes={"                slot = layer\n": "                pass\n"},
        caught_by="small",
    ),
    Mistake(
        id="12b",
        name="publishes in every call",
        changes={"(after > before or owner)": "(after > before or True)"},
        caught_by="full",
    ),
    Mistake(
        id="12b",
        name="lets every index source publish",
        changes={"if role.is_kv_source and": "if role.is_index_source and"},
        caught_by="small",
    ),
    Mistake(
        id="12b",
        name="scores when there is nothing",
        changes={"            if after > 0:\n": "            if True:\n"},
        caught_by="trap: nothing to score yet",
    ),
    Mistake(
        id="12b",
        name="sees only a group that ends with the call",
        changes={"(after > before or owner)": "((start_pos + T) % role.ratio == 0 or owner)"},
        caught_by="trap: a chunk that ends inside a group",
    ),
    Mistake(
        id="12b",
        name="thinks that a group needs a call of its length",
        changes={"(after > before or owner)": "((T >= role.ratio or (start_pos + T) % 2 == 0) or owner)"},
        caught_by="trap: a call that is shorter than a group",
    ),
    Mistake(
        id="12c",
        name="starts every group at the first head",
        changes={"o[m, g * heads + k // D, k % D]": "o[m, k // D, k % D]"},
        caught_by="small",
    ),
    Mistake(
        id="12c",
        name="reads past the group's last column",
        changes={"if m < M and k < K else": "if m < M else"},
        caught_by="error",
    ),
    Mistake(
        id="12c",
        name="splits the heads by stride",
        changes={"o[m, g * heads + k // D, k % D]": "o[m, k // D * og.shape[1] + g, k % D]"},
        caught_by="trap: heads split by stride",
    ),
    Mistake(
        id="12c",
        name="guards the row of o alone",
        changes={"if m < M and k < K else": "if m < M and g * heads + k // D < o.shape[1] else"},
        caught_by="trap: guards the row instead of the group",
    ),
    Mistake(
        id="12c",
        name="has no barrier after the tiles are filled",
        changes={"        cuda.syncthreads()  # both tiles are filled before anyone reads them\n": ""},
        caught_by="small",
    ),
    Mistake(
        id="12c",
        name="writes the number of its row too",
        changes={
            "    if m < M and n0 + tx < N:\n": (
                "    if m < M and n0 < N:\n        og[m, g, n0] = og[m, g, n0]\n    if m < M and n0 + tx < N:\n"
            )
        },
        caught_by="races",
    ),
    Mistake(
        id="12c",
        name="reads o from memory for every product",
        changes={
            "total += x_tile[ty, i] * weight_tile[tx, i]": (
                "if m < M and k0 + i < K:\n                total += "
                "decode_bf16(o[m, g * heads + (k0 + i) // D, (k0 + i) % D]) * weight_tile[tx, i]"
            )
        },
        caught_by="budget",
    ),
]
