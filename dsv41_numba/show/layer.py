"""The fourteen steps of one layer: what each makes, of which shape, and which roles have it."""

from dsv41_numba.config import FLASH, TINY, AttnV41Cfg
from dsv41_numba.roles import LayerRole, roles
from dsv41_numba.show.dry_run import STEP_OF, STEPS, TURN_BACK, DryRun, dry_run
from dsv41_numba.show.svg import Picture

GEOMETRIES = {"flash": FLASH, "tiny": TINY}
KINDS = ("SWA", "FULL", "REINDEX", "REUSE")
WIDTH, LEFT, TOP = 580, 16, 118
BOX_WIDTH, BOX_HEIGHT, ROW = 414, 44, 52
MARK_LEFT, MARK, MARK_GAP = 442, 22, 32
# who makes a step's result -> its colours
COLOURS = {4: ("pale-blue", "blue"), 2: ("pale-green", "green"), 1: ("pale-orange", "orange")}


def geometry(name: str) -> AttnV41Cfg:
    """FLASH or TINY by name."""
    if name not in GEOMETRIES:
        raise ValueError(f"geometry: expected one of {', '.join(GEOMETRIES)}, got {name!r}")
    return GEOMETRIES[name]


def first_of_kinds(cfg: AttnV41Cfg) -> dict[str, LayerRole]:
    """The first layer of each kind that a geometry has."""
    found: dict[str, LayerRole] = {}
    for role in roles(cfg):
        found.setdefault(role.kind, role)
    return {kind: found[kind] for kind in KINDS if kind in found}


def result_name(step: int) -> str:
    """The name of a step's result, as `AttnV41Run` has it."""
    return "o" if step == TURN_BACK else next(name for name, made_in in STEP_OF.items() if made_in == step)


def op_chain(run: DryRun, step: int) -> str:
    """The ops that a step calls, in order: "linear, rmsnorm"; one called twice in a row is named once."""
    names = [call.op for call in run.calls if call.step == step]
    return ", ".join(name for i, name in enumerate(names) if i == 0 or names[i - 1] != name)


def reads(role: LayerRole) -> set[int]:
    """Steps whose results a layer takes from another layer."""
    steps = set()
    if role.kv_source not in (None, role.layer):
        steps.add(9)
    if role.key_source not in (None, role.layer):
        steps.add(5)
    if role.index_source not in (None, role.layer):
        steps.add(8)
    return steps


def layer(size: str = "flash", number: int = 2, start_pos: int = 0, tokens: int = 2048) -> Picture:
    """The fourteen steps of a layer as boxes, with their shapes and the roles that have them."""
    cfg = geometry(size)
    if not 0 <= number < cfg.n_layers:
        raise ValueError(f"number: expected a layer within 0..{cfg.n_layers - 1}, got {number}")
    tokens = min(tokens, cfg.max_seq - start_pos)
    run = dry_run(cfg, number, start_pos, tokens)
    kinds = first_of_kinds(cfg)
    # one finished group a call, so that every step of a kind is in its run
    made = {kind: {call.step for call in dry_run(cfg, role.layer, 0, max(role.ratio, 1)).calls}
            for kind, role in kinds.items()}  # fmt: skip
    role = roles(cfg)[number]
    call = f"{tokens} token{'s' if tokens > 1 else ''} from position {start_pos}"
    picture = Picture(
        WIDTH,
        TOP + ROW * len(STEPS) + 4,
        f"The fourteen steps of layer {number}, {role.kind}",
        f"Shapes of a call of {call}; " + "; ".join(f"{kind} makes {sorted(made[kind])}" for kind in kinds),
    )
    picture.text(LEFT, 28, f"Layer {number}, {role.kind}: {call}", size=16, bold=True)
    legend = [(4, "all roles"), (2, "those that select"), (1, "those that make rows")]
    x = float(LEFT)
    for count, label in legend:
        picture.rect(x, 46, 14, 14, *COLOURS[count], radius=2)
        picture.text(x + 20, 58, label)
        x += 48 + 7 * len(label)
    picture.rect(LEFT, 72, 14, 14, "ink", radius=7)
    picture.text(LEFT + 20, 84, "makes it")
    picture.circle(LEFT + 119, 79, 6, "none", "quiet", 2)
    picture.text(LEFT + 132, 84, "reads another layer's")
    for i, kind in enumerate(kinds):
        middle = MARK_LEFT + MARK_GAP * i + MARK / 2
        # four words in the room of one: every other one stands higher
        picture.text(middle, TOP - 26 + 16 * (i % 2), kind, "ink", 12, True, "middle")
    for step in STEPS:
        y = TOP + ROW * (step - 1)
        makers = [kind for kind in kinds if step in made[kind]]
        fill, stroke = COLOURS[4 if len(makers) == len(kinds) else max(min(len(makers), 2), 1)]
        shape, name = run.shape(step), result_name(step)
        sizes = "not in this call" if shape is None else "[" + ", ".join(map(str, shape)) + "]"
        tip = f"step {step}: {name} {sizes}, made by {' '.join(makers)}"
        picture.rect(LEFT, y, BOX_WIDTH, BOX_HEIGHT, fill, stroke, 4, tip=tip)
        picture.text(LEFT + 26, y + 28, step, "ink", 15, True, "end")
        picture.text(LEFT + 38, y + 19, name, "ink", 15, True, mono=True)
        picture.text(LEFT + BOX_WIDTH - 10, y + 19, sizes, "ink" if shape else "quiet", 14, anchor="end", mono=True)
        picture.text(LEFT + 38, y + 37, op_chain(run, step) or _chain_of(cfg, kinds, step), "quiet", 13)
        for i, (kind, other) in enumerate(kinds.items()):
            middle = MARK_LEFT + MARK_GAP * i + MARK / 2
            if step in made[kind]:
                picture.circle(middle, y + 22, 7, "ink", tip=f"{kind} makes step {step}")
            elif step in reads(other):
                picture.circle(middle, y + 22, 6, "none", "quiet", 2, tip=f"{kind} reads step {step}")
    return picture


def _chain_of(cfg: AttnV41Cfg, kinds: dict[str, LayerRole], step: int) -> str:
    """The ops of a step that the drawn layer has not, as the first layer that has it calls them."""
    for role in kinds.values():
        if chain := op_chain(dry_run(cfg, role.layer, 0, max(role.ratio, 1)), step):
            return chain
    return ""


PICTURES = {"layer": layer}
