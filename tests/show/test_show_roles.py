"""show role_map, layer and caches: what the pictures say is what roles.py, layer.py and the caches say."""

import re
import types
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from dsv41_numba.bench.layers import BenchLayer, layer_cases
from dsv41_numba.config import FLASH, TINY
from dsv41_numba.data import golden
from dsv41_numba.formats.bf16 import as_bf16
from dsv41_numba.ops import REFERENCE
from dsv41_numba.recording import STAGES
from dsv41_numba.roles import roles
from dsv41_numba.show import draw
from dsv41_numba.show.dry_run import STEP_OF, STEPS, dry_run, dry_walk, empty_state
from dsv41_numba.show.layer import first_of_kinds, layer
from dsv41_numba.show.roles import map_of
from dsv41_numba.stack import AttnV41
from dsv41_numba.weights import Checkpoint
from geometries import GEOMETRIES, SMALL

SVG = "{http://www.w3.org/2000/svg}"
ROLE_TIP = re.compile(r"layer (\d+): (\w+), ratio (\d+), reads (.+)")
STEP_TIP = re.compile(r"step (\d+): (\w+) (\[.+\]|not in this call), made by (.+)")
MARK_TIP = re.compile(r"(\w+) (makes|reads) step (\d+)")
CACHE_TIP = re.compile(r"after (\S+): (\w+) slot (\d+) (?:is empty|holds (\d+))")
ALL = {"flash": FLASH, "tiny": TINY, "small": SMALL} | GEOMETRIES
every_geometry = pytest.mark.parametrize("cfg", ALL.values(), ids=ALL.keys())


def tips(picture, pattern):
    found = (pattern.fullmatch(tip.text) for tip in ET.fromstring(picture.svg()).iter(f"{SVG}title"))
    return [match.groups() for match in found if match]


@every_geometry
def test_show_role_map_says_what_roles_says(cfg):
    found = tips(map_of(cfg), ROLE_TIP)
    assert [(int(number), kind, int(ratio)) for number, kind, ratio, _ in found] == [
        (role.layer, role.kind, role.ratio) for role in roles(cfg)
    ]
    for role, (*_, said) in zip(roles(cfg), found):
        sources = [("rows", role.kv_source), ("keys", role.key_source), ("selection", role.index_source),
                   ("mask", role.obeys_candidates)]  # fmt: skip
        expected = [f"{what} of layer {source}" for what, source in sources if source not in (None, role.layer)]
        assert said == (", ".join(expected) or "no other layer")


@every_geometry
def test_show_role_map_has_an_arrow_for_everything_that_is_read(cfg):
    """Heads are filled paths of one colour a kind of thing; each ends at its reader's box."""
    root = ET.fromstring(map_of(cfg).svg())
    reads = dict.fromkeys(("blue", "orange", "green", "purple"), 0)
    for role in roles(cfg):
        for colour, source in zip(reads, (role.kv_source, role.key_source, role.index_source, role.obeys_candidates)):
            reads[colour] += source not in (None, role.layer)
    heads = [path.get("class") for path in root.iter(f"{SVG}path")]
    assert {colour: heads.count(f"fill-{colour}") for colour in reads} == reads


@pytest.mark.parametrize("size", ["flash", "tiny"])
def test_show_layer_marks_are_what_roles_says(size):
    cfg = {"flash": FLASH, "tiny": TINY}[size]
    marks = {(kind, int(step)): what for kind, what, step in tips(draw("layer", size=size), MARK_TIP)}
    for kind, role in first_of_kinds(cfg).items():
        made = {1, 2, 3, 10, 11, 12, 13, 14}
        made |= {4, 5, 9} if role.is_kv_source else set()
        made |= {6, 7, 8} if role.is_index_source else set()
        read = {9} if role.ratio and not role.is_kv_source else set()
        read |= {5} if role.key_source not in (None, role.layer) else set()
        read |= {8} if role.ratio and not role.is_index_source else set()
        assert {step for (of, step), what in marks.items() if (of, what) == (kind, "makes")} == made, kind
        assert {step for (of, step), what in marks.items() if (of, what) == (kind, "reads")} == read, kind
    for step, _, _, makers in tips(draw("layer", size=size), STEP_TIP):
        assert makers.split() == [kind for kind in first_of_kinds(cfg) if marks.get((kind, int(step))) == "makes"]


@pytest.mark.parametrize(
    ("number", "start_pos", "tokens"), [(2, 0, 21), (2, 20, 1), (20, 20, 1), (24, 9, 4), (1, 0, 3)]
)
def test_show_layer_shapes_are_those_of_the_run(number, start_pos, tokens):
    runs = reference_runs([start_pos, tokens] if start_pos else [tokens])
    boxes = tips(layer("tiny", number, start_pos, tokens), STEP_TIP)
    assert [int(step) for step, *_ in boxes] == list(STEPS)
    for step, name, shape, _ in boxes:
        value = getattr(runs[-1][number], name)
        made = value is not None and dry_run(TINY, number, start_pos, tokens).shape(int(step)) is not None
        assert shape == (str(list(value.shape)) if made else "not in this call"), (step, name)


@pytest.mark.parametrize("size", ["huge", ""])
def test_show_layer_refuses_another_geometry(size):
    with pytest.raises(ValueError, match=f"geometry: expected one of flash, tiny, got '{size}'"):
        draw("layer", size=size)
    with pytest.raises(ValueError, match=r"number: expected a layer within 0\.\.39, got 40"):
        draw("layer", number=40)


def reference_runs(tokens):
    """Real runs of the tiny checkpoint, own index keys: a list of {layer: AttnV41Run}, one a call."""
    model = AttnV41(TINY, Checkpoint(golden("tiny-weights.safetensors"), cfg=TINY).layer, REFERENCE, "owner")
    rng = np.random.default_rng(5)
    calls = []
    for T in tokens:
        x = as_bf16(rng.standard_normal((T, TINY.dim)).astype(np.float32))
        calls.append({step.role.layer: step.run for step in model.walk(dict.fromkeys(model.layers, x))})
    return calls


def test_show_dry_run_has_the_shapes_of_a_real_one():
    tokens = [5, 1, 1, 4, 1]
    starts = np.cumsum([0, *tokens[:-1]])
    dry = dry_walk(TINY, [(int(start), T) for start, T in zip(starts, tokens)], "owner")
    for real, without_numbers in zip(reference_runs(tokens), dry):
        for number, run in real.items():
            for name in STAGES:
                value, shaped = getattr(run, name), getattr(without_numbers[number], name)
                assert (value is None) == (shaped is None), (number, name)
                assert value is None or value.shape == shaped.shape, (number, name)


@pytest.mark.parametrize("case", layer_cases(FLASH, [512, 2048], [4096, 131072]), ids=lambda c: f"{c.op} {c.name}")
def test_show_dry_run_counts_the_operations_that_the_bench_counts(case):
    bytes_, flops = BenchLayer.floor(types.SimpleNamespace(cfg=FLASH, case=case))
    run = dry_run(FLASH, case.role.layer, case.pos, case.T)
    assert sum(call.flops for call in run.calls) == flops
    assert sum(call.bytes for call in run.calls) >= bytes_  # the floor leaves out what goes from step to step
    assert {call.step for call in run.calls} <= set(STEPS) and {*STEP_OF.values()} <= set(STEPS)


def test_show_dry_run_of_the_longest_context_takes_no_memory():
    run = dry_run(FLASH, 20, FLASH.max_seq - 1, 1)
    assert run.shape(7) == (1, FLASH.max_seq) and run.score.strides == (0, 0)
    assert empty_state(FLASH, roles(FLASH)[20]).nbytes() > 1 << 30


@pytest.mark.parametrize(("number", "prefill", "steps"), [(2, 5, 8), (20, 12, 3), (1, 3, 9), (30, 1, 2)])
def test_show_caches_holds_what_the_rules_say(number, prefill, steps):
    """The picture looks rows up by their bytes; slot = position mod window, and a group waits until it is full."""
    role, W = roles(TINY)[number], TINY.window
    slots = {}
    for after, name, slot, n in tips(draw("caches", layer=number, prefill=prefill, steps=steps), CACHE_TIP):
        slots.setdefault(after, {}).setdefault(name, {})[int(slot)] = None if n is None else int(n)
    assert len(slots) == 1 + steps
    for end, after in zip(range(prefill, prefill + steps + 1), slots.values()):
        newest = [max((p for p in range(end) if p % W == slot), default=None) for slot in range(W)]
        assert list(after["ring"].values()) == newest
        assert ("rows" in after) == role.is_kv_source
        assert ("group" in after) == (role.is_kv_source and role.ratio > 1)
        if role.is_kv_source:
            groups = end // role.ratio
            assert [g for g in after["rows"].values() if g is not None] == list(range(groups))
        if "group" in after:
            waiting = range(end // role.ratio * role.ratio, end)
            assert [p for p in after["group"].values() if p is not None] == list(waiting)
