"""Hold the port to a recording, by two judgements.

alone     each captured stage is computed from the recorded stages before it: a replay hands every stage its recorded
          inputs and carries the state of earlier calls from the recording. A stage whose inputs are not recorded is
          not judged.
chained   everything is computed from the recorded x only. Every layer has its own x, so errors do not add up over
          layers; they do over stages, which is why the measure is the relative L2 error of a stage over the recording.

`rules.RULES` has what each stage may differ by, and why. A NaN never passes.
"""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsv41_numba.compare import APART, ordered
from dsv41_numba.config import AttnV41Cfg
from dsv41_numba.formats.bf16 import as_bf16
from dsv41_numba.formats.fp8_weight import Fp8Weight
from dsv41_numba.formats.packed_rows import PackedRows
from dsv41_numba.layer import AttnV41Run
from dsv41_numba.ops import Ops
from dsv41_numba.ops.packed_rows import pack_values
from dsv41_numba.recording import Recording, RecordingError, stage_order
from dsv41_numba.roles import LayerRole, roles
from dsv41_numba.rules import FLIPS_ALLOWED, RULES, SELECTION_STEPS, bit_patterns, steps_apart, with_bits
from dsv41_numba.stack import AttnV41, Step
from dsv41_numba.weights import AttnV41LayerWeights

CACHE_OF = {"kv": "window", "index_k": "index_k", "latent_q": "compress_kv"}  # stage -> where its rows are written


@dataclass(frozen=True)
class Mismatch:
    """The first element of a stage that breaks its rule: where, expected, got, and both bit patterns."""

    layer: int | None  # None: over all layers
    step: str
    stage: str
    index: tuple[int, ...]
    expected: str
    got: str
    why: str

    def __str__(self) -> str:
        at = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        where = "" if self.layer is None else f"layer {self.layer}, step {self.step}, "
        return f"{where}{self.stage}{at}: expected {self.expected}, got {self.got} ({self.why})"


@dataclass
class Tally:
    """One stage of one layer, or of all layers together, over the whole recording."""

    stage: str
    elements: int = 0
    differ: int = 0
    worst_steps: int = 0
    worst_at: str = ""
    flips: int = 0
    rows_differ: int = 0
    not_judged: int = 0
    error_squared: float = 0.0
    norm_squared: float = 0.0
    allowed_l2: float = 0.0  # of the relative L2 error, where that is what is judged
    mismatch: Mismatch | None = None

    @property
    def relative_l2(self) -> float:
        if self.error_squared == 0.0:
            return 0.0
        return (self.error_squared / self.norm_squared) ** 0.5 if self.norm_squared > 0 else float("inf")

    @property
    def worst(self) -> str:
        """The worst steps as a number, or "apart" where no number of steps means anything."""
        return "apart" if self.worst_steps >= APART else str(self.worst_steps)

    def add(self, other: "Tally") -> None:
        """Take in another tally of the same stage."""
        for name in ("elements", "differ", "flips", "rows_differ", "not_judged", "error_squared", "norm_squared"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if other.worst_steps > self.worst_steps:
            self.worst_steps, self.worst_at = other.worst_steps, other.worst_at
        self.mismatch = self.mismatch or other.mismatch


def worst_number(tallies: Iterable[Tally]) -> Tally | None:
    """Of the stages that are counted in bf16 steps the one that is furthest off; None if none is off at all."""
    numbers = [tally for tally in tallies if RULES[tally.stage].kind == "bf16" and tally.worst_steps]
    return max(numbers, key=lambda tally: tally.worst_steps, default=None)


@dataclass
class Report:
    """Both judgements: stage -> Tally over all layers, and the layers whose sources are not recorded."""

    alone: dict[str, Tally] = field(default_factory=dict)
    chained: dict[str, Tally] = field(default_factory=dict)
    skipped_layers: tuple[int, ...] = ()

    def mismatches(self) -> list[tuple[str, Mismatch]]:
        """(judgement, first mismatch) of each stage that failed, in stage order."""
        found = []
        for name, tallies in (("alone", self.alone), ("chained", self.chained)):
            for tally in tallies.values():
                if tally.mismatch is not None:
                    found.append((name, tally.mismatch))
        return found


def check(
    recording: Recording,
    cfg: AttnV41Cfg,
    weights: Callable[[int], AttnV41LayerWeights],
    ops: Ops,
    index_keys: str = "released",
    layers: Iterable[int] | None = None,
    cache: str = "bf16",
    progress: Callable[[float], None] = lambda done: None,
) -> Report:
    """Replay a recording with an op table and judge it, alone and chained.

    layers    judge only these; all layers run all the same, since they share caches
    cache     "bf16" or "packed"; packed rows are judged by the values that are read from them
    progress  called with the share of the work that is done, 0 to 1
    Raises RecordingError when the recording does not fit the configuration.
    """
    if recording.layers[-1] >= cfg.n_layers:
        raise RecordingError(
            f"{recording.path}: expected layers within 0..{cfg.n_layers - 1}, got layer {recording.layers[-1]}"
        )
    runnable = _with_sources(recording.runnable, roles(cfg))
    judged = set(recording.layers if layers is None else layers) & set(runnable)
    if not judged:
        raise RecordingError(f"{recording.path}: expected a layer to judge, got none of {sorted(recording.layers)}")
    report = Report(skipped_layers=tuple(sorted(set(recording.layers) - set(runnable))))
    model = AttnV41(cfg, weights, ops, index_keys, layers=runnable, cache=cache)
    total, done = 2 * len(recording.steps) * len(runnable), 0
    for judge_type, tallies in ((Alone, report.alone), (Chained, report.chained)):
        judge = judge_type(recording, model, judged)
        for _ in judge.replay():
            done += 1
            progress(done / total)
        tallies.update(judge.by_stage())
    return report


def _with_sources(layers: Iterable[int], all_roles: tuple[LayerRole, ...]) -> tuple[int, ...]:
    """Those layers whose sources are there too."""
    kept: set[int] = set()
    for layer in sorted(layers):
        role = all_roles[layer]
        needed = {role.kv_source, role.index_source, role.obeys_candidates} - {None, layer}
        if needed <= kept:
            kept.add(layer)
    return tuple(sorted(kept))


class _JudgedRun(AttnV41Run):
    """A run that shows every intermediate to a judge and goes on with what the judge hands back."""

    def __init__(self, judge: "Judge", step: str, role: LayerRole) -> None:
        super().__init__()
        self._judge, self._role, self._step = judge, role, step

    def keep(self, name: str, value: Any) -> Any:
        value = super().keep(name, value)
        return value if name == "x" else self._judge.see(self._role, self._step, name, value, self)


class Judge:
    """What both judgements share: a tally for each layer and stage, and how two arrays of a stage are compared.

    recording, model  what to replay, and on what
    layers            the layers to judge; all of the model's run
    """

    def __init__(self, recording: Recording, model: AttnV41, layers: Collection[int]) -> None:
        self.recording, self.model, self.layers = recording, model, layers
        self.tallies: dict[tuple[int, str], Tally] = {}

    def replay(self) -> Iterator[tuple[str, Step]]:
        """Run every step of the recording, from empty caches, yielding (step name, layer's step) as they happen."""
        self.model.reset()
        for step in self.recording.steps:
            x = {layer: self.recording.get(layer, step, "x") for layer in self.model.layers}
            for done in self.model.walk(x, functools.partial(_JudgedRun, self, step)):
                yield step, done

    def see(self, role: LayerRole, step: str, name: str, value: Any, run: AttnV41Run) -> Any:
        """Judge one intermediate as it is made, and hand back what the layer goes on with."""
        raise NotImplementedError

    def limit_over_all(self, tally: Tally) -> tuple[str, str] | None:
        """What one stage over all layers should have kept and did not: (expected, got), or None."""
        raise NotImplementedError

    def by_stage(self) -> dict[str, Tally]:
        """The tallies of all layers together, in stage order, with the limits that hold over the whole recording."""
        stages: dict[str, Tally] = {}
        for (_, name), tally in self.tallies.items():
            stages.setdefault(name, Tally(name)).add(tally)
        for name, tally in stages.items():
            broken = self.limit_over_all(tally)
            if broken and tally.mismatch is None:
                tally.mismatch = Mismatch(None, "all", name, (), *broken, "over the whole recording")
        return {name: stages[name] for name in stage_order(stages)}

    def tally(self, layer: int, name: str) -> Tally:
        return self.tallies.setdefault((layer, name), Tally(name))

    def expected(self, layer: int, step: str, name: str) -> np.ndarray:
        """The recorded array to compare with: the f32 attention output where there is one."""
        if name == "o" and self.recording.has(layer, step, "o_f32"):
            name = "o_f32"
        return self.recording.get(layer, step, name)

    def comparable(self, role: LayerRole, step: str, name: str) -> bool:
        """Whether this file records the stage here and the layer is one to judge."""
        recorded = self.recording.has(role.layer, step, name) or (
            name == "o" and self.recording.has(role.layer, step, "o_f32")
        )
        return recorded and role.layer in self.layers and self.recording.judged(role.layer, step)

    def fail(self, tally: Tally, where: tuple[int, str], why: str, got: Any, expected: Any, at: np.ndarray) -> None:
        """Keep the first mismatch of a stage; `at` marks the elements that break the rule."""
        if tally.mismatch is None:
            index = tuple(int(i) for i in np.argwhere(at)[0])
            tally.mismatch = Mismatch(
                *where, tally.stage, index, with_bits(expected[index]), with_bits(got[index]), why
            )

    def same_shape(self, tally: Tally, where: tuple[int, str], got: np.ndarray, expected: np.ndarray) -> bool:
        if got.shape != expected.shape:
            differ = f"shape {list(expected.shape)}", f"{list(got.shape)}", "shapes differ"
        elif got.dtype != expected.dtype:
            differ = f"type {expected.dtype}", f"{got.dtype}", "types differ"
        else:
            return True
        if tally.mismatch is None:
            tally.mismatch = Mismatch(*where, tally.stage, (), *differ)
        return False

    def compare(self, tally: Tally, where: tuple[int, str], got: np.ndarray, expected: np.ndarray) -> np.ndarray | None:
        """Add one array pair to a tally; returns the steps of each element, or None when the shapes differ."""
        if not self.same_shape(tally, where, got, expected):
            return None
        steps = steps_apart(RULES[tally.stage], got, expected)
        tally.elements += steps.size
        tally.differ += int(np.count_nonzero(bit_patterns(got) != bit_patterns(expected)))
        worst = int(steps.max(initial=0))
        if worst > tally.worst_steps:
            tally.worst_steps, tally.worst_at = worst, f"layer {where[0]} step {where[1]}"
        return steps


class Alone(Judge):
    """Every stage from the recorded stages before it.

    `see` hands the recorded value on, so that all later stages and the caches are made of recorded values; the sets
    below name the layers whose state is.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        layers = set(self.model.layers)
        self.window, self.group, self.cache, self.keys = set(layers), set(layers), set(layers), set(layers)

    def see(self, role: LayerRole, step: str, name: str, value: Any, run: AttnV41Run) -> Any:
        layer, ops = role.layer, self.model.ops
        if self.comparable(role, step, name):
            if self.inputs_recorded(role, step, name):
                self.judge((layer, step), name, ops.to_host(value), self.expected(layer, step, name))
            else:
                self.tally(layer, name).not_judged += 1
        recorded = self.recording.has(layer, step, name)
        self.follow_state(role, step, name, recorded)
        if not recorded:
            return value
        host = self.recording.get(layer, step, name)
        if host.shape != value.shape or host.dtype != ops.to_host(value).dtype:
            return value  # a mismatch, if it is judged; the stages after it could not take the recorded one
        if isinstance(value, PackedRows):
            try:
                given: Any = pack_values(host, value.format).planes(ops.to_device)
            except ValueError:
                return value  # likewise: no codes stand for the recorded values
        else:
            given = ops.to_device(host)
        if name == "topk" and role.is_index_source:
            self.model.shared.topk.value = given  # what the layers that read this selection are judged by
        if name in CACHE_OF:  # it holds what was computed
            start_pos = self.recording.start_pos(step)
            first = start_pos if name == "kv" else start_pos // role.ratio
            ops.write_rows(given, getattr(self.model.states[layer], CACHE_OF[name]), first)
        return given

    def judge(self, where: tuple[int, str], name: str, got: np.ndarray, expected: np.ndarray) -> None:
        tally, rule = self.tally(where[0], name), RULES[name]
        steps = self.compare(tally, where, got, expected)
        if steps is None:
            return
        limit = 1 if rule.kind == "codes" else rule.steps
        tally.flips += int(np.count_nonzero(steps)) if rule.kind == "codes" else 0
        if (steps > limit).any():
            self.fail(tally, where, f"more than {limit} steps apart", got, expected, steps > limit)

    def limit_over_all(self, tally: Tally) -> tuple[str, str] | None:
        if tally.flips <= FLIPS_ALLOWED * tally.elements:
            return None
        return f"at most {FLIPS_ALLOWED:.1%} codes one step apart", f"{tally.flips} of {tally.elements}"

    def inputs_recorded(self, role: LayerRole, step: str, name: str) -> bool:
        """Whether everything that the stage reads comes from the recording."""

        def here(*names: str) -> bool:
            return all(self.recording.has(role.layer, step, other) for other in names)

        layer, source = role.layer, role.index_source
        match name:
            case "qr" | "kv" | "comp_kv" | "comp_score" | "index_w":
                return True  # from x, which is always recorded
            case "q" | "index_q":
                return here("qr")
            case "window":
                return here("kv") and layer in self.window
            case "latent":
                return role.ratio == 1 or (here("comp_kv", "comp_score") and layer in self.group)
            case "index_k" | "latent_q":
                return here("latent")
            case "score":
                publisher = self.model.shared.index_k.layer
                return here("index_q", "index_w") and (publisher is None or publisher in self.keys)
            case "candidates":
                return here("score")
            case "topk" if role.is_index_source:
                mask = role.obeys_candidates
                return here("score") and (mask is None or self.recording.has(mask, step, "candidates"))
            case "topk":
                return source is not None and self.recording.has(source, step, "topk")
            case "idx":
                return not role.ratio or here("topk")
            case "o":
                rows = "kv" if step == "p" else "window"
                return here("q", rows) and (not role.ratio or (here("topk") and role.kv_source in self.cache))
            case "og":
                return here("o")
            case "out":
                return here("og")
        raise AssertionError(name)

    def follow_state(self, role: LayerRole, step: str, name: str, recorded: bool) -> None:
        """Keep the sets of layers whose caches hold recorded values only."""
        layer = role.layer
        if name == "window" and recorded:
            self.window.add(layer)  # the recorded ring replaces whatever was there
        elif name == "kv" and not recorded:
            self.window.discard(layer)
        elif name in ("comp_kv", "comp_score") and not recorded:
            self.group.discard(layer)
        elif name == "latent_q" and not recorded:
            self.cache.discard(layer)
        elif name == "index_k" and not recorded:
            self.keys.discard(layer)
        elif name == "out" and role.ratio > 1:
            x = self.recording.get(layer, step, "x")
            if (self.recording.start_pos(step) + x.shape[0]) % role.ratio == 0:
                self.group.add(layer)  # no unfinished group is left


class Chained(Judge):
    """Everything from the recorded x."""

    def see(self, role: LayerRole, step: str, name: str, value: Any, run: AttnV41Run) -> Any:
        if self.comparable(role, step, name):
            where = (role.layer, step)
            got, expected = self.model.ops.to_host(value), self.expected(role.layer, step, name)
            tally, rule = self.tally(role.layer, name), RULES[name]
            if rule.kind == "selection":
                if self.same_shape(tally, where, got, expected):
                    self.judge_selection(tally, where, role, got, expected, run)
            elif (steps := self.compare(tally, where, got, expected)) is not None:
                tally.flips += int(np.count_nonzero(steps)) if rule.kind == "codes" else 0
                self.add_error(tally, where, got, expected)
        return value

    def add_error(self, tally: Tally, where: tuple[int, str], got: np.ndarray, expected: np.ndarray) -> None:
        got64, expected64 = got.astype(np.float64), expected.astype(np.float64)
        finite = np.isfinite(got64) & np.isfinite(expected64)
        wrong = ~finite & ~(got64 == expected64)  # a NaN, or an infinity on one side
        if wrong.any():
            self.fail(tally, where, "not finite on one side, or NaN", got, expected, wrong)
        tally.error_squared += float(((got64[finite] - expected64[finite]) ** 2).sum())
        tally.norm_squared += float((expected64[finite] ** 2).sum())

    def judge_selection(
        self, tally: Tally, where: tuple[int, str], role: LayerRole, got: np.ndarray, expected: np.ndarray,
        run: AttnV41Run,
    ) -> None:  # fmt: skip
        """Rows that differ are counted. A source's row may differ only where the scores of the swapped positions are
        within one step; its readers, and the gather list, follow it."""
        tally.elements += got.size
        tally.differ += int(np.count_nonzero(got != expected))
        rows = np.flatnonzero((got != expected).any(-1))
        tally.rows_differ += len(rows)
        if not len(rows):
            return
        score = getattr(run, "score", None)
        if score is None or tally.stage == "idx":
            if not self.follows_source(where[1], role):
                self.fail(tally, where, "differs, though its source's selection does not", got, expected,
                          got != expected)  # fmt: skip
            return
        offset = self.model.cfg.window if where[1] != "p" else got.shape[0]
        for row in rows:
            if tally.stage == "candidates":
                scores = self.block_maxima(score[row])
                blocks = np.arange(score.shape[1]) // self.model.cfg.candidate_block_size
                chosen = [np.unique(blocks[mask[row] != 0]) for mask in (got, expected)]
            else:
                scores = score[row]
                chosen = [selection[row][selection[row] >= 0] - offset for selection in (got, expected)]
            swapped = np.setxor1d(chosen[0], chosen[1])
            steps = ordered(as_bf16(scores[swapped]).view(np.uint16))
            tie = (
                len(swapped) > 0
                and len(chosen[0]) == len(chosen[1])  # something came for what went
                and np.isfinite(scores[swapped]).all()
                and np.ptp(steps) <= SELECTION_STEPS
            )
            mask = role.obeys_candidates
            if not tie and not (tally.stage == "topk" and mask is not None and self.mask_differs(mask, where[1])):
                at = np.zeros(got.shape, bool)
                at[row] = got[row] != expected[row]
                self.fail(tally, where, "the scores at the cut are not tied", got, expected, at)

    def block_maxima(self, score: np.ndarray) -> np.ndarray:
        """The largest score of each candidate block of a row."""
        return np.maximum.reduceat(score, np.arange(0, len(score), self.model.cfg.candidate_block_size))

    def mask_differs(self, source: int, step: str) -> bool:
        """Whether the candidate mask of this call is not the recorded one."""
        mask = self.model.shared.candidates.value
        return (
            mask is not None
            and self.recording.has(source, step, "candidates")
            and not np.array_equal(self.model.ops.to_host(mask), self.recording.get(source, step, "candidates"))
        )

    def follows_source(self, step: str, role: LayerRole) -> bool:
        """Whether the selection of this layer's source already differs from the recorded one."""
        source, selection = role.index_source, self.model.shared.topk.value
        return (
            source is not None
            and selection is not None
            and self.recording.has(source, step, "topk")
            and not np.array_equal(self.model.ops.to_host(selection), self.recording.get(source, step, "topk"))
        )

    def limit_over_all(self, tally: Tally) -> tuple[str, str] | None:
        rule = RULES[tally.stage]
        in_fp8 = isinstance(self.model._layer_weights(self.model.layers[0]).wo_b, Fp8Weight)
        tally.allowed_l2 = rule.chained_fp8 if in_fp8 and rule.chained_fp8 is not None else rule.chained
        if tally.relative_l2 <= tally.allowed_l2:
            return None
        return f"a relative L2 error of at most {tally.allowed_l2:.1%}", f"{tally.relative_l2:.3%}"
