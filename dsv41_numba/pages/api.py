"""The pages of the API reference: one a part of the package, every module of it below the other."""

from dsv41_numba.pages.execute import ROOT

PACKAGE = "dsv41_numba"
TITLES = {
    "layer": "The layer",
    "ops": "Stages",
    "tuned": "The fast kernels",
    "formats": "Number formats",
    "runtime": "Machines and the emulator",
    "bench": "Measuring",
    "exercise": "Exercises",
    "show": "Pictures",
    "doctor": "Doctor",
    "pages": "The site",
    "tools": "Checking and tools",
}
# modules beside the parts' folders
OF_LAYER = ("layer", "caches", "stack", "state_file", "config", "roles", "weights", "tensors")


def modules() -> list[str]:
    """Every module of the package, the parts' own files before those inside."""
    found = []
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if not name.endswith("__main__") and (path.parent / "__init__.py").is_file():
            found.append(name)
    return sorted(found)


def part_of(module: str) -> str:
    """Which part of the reference a module stands in. Raises ValueError for a folder that no title is known of."""
    names = module.split(".")[1:]
    if names and names[0] in TITLES and (ROOT / PACKAGE / names[0]).is_dir():
        return names[0]
    if len(names) > 1:
        raise ValueError(f"{module}: expected a title for it in pages/api.py")
    return "layer" if not names or names[0] in OF_LAYER else "tools"


def parts_of_api() -> dict[str, list[str]]:
    """The modules of each part."""
    parts: dict[str, list[str]] = {part: [] for part in TITLES}
    for module in modules():
        parts[part_of(module)].append(module)
    order = {f"{PACKAGE}.{name}": at for at, name in enumerate(OF_LAYER)}
    parts["layer"].sort(key=lambda module: order.get(module, -1))
    return parts


def api_pages() -> list[tuple[str, str, str]]:
    """(path, title, Markdown) of each page."""
    return [
        (f"api/{part}.md", TITLES[part], f"# {TITLES[part]}\n\n" + "\n".join(f"::: {module}\n" for module in found))
        for part, found in parts_of_api().items()
    ]


def api_table() -> str:
    """A table of all modules with links into the reference."""
    lines = ["| part | modules |", "|---|---|"]
    for part, found in parts_of_api().items():
        links = ", ".join(f"[`{module.removeprefix(PACKAGE + '.')}`][{module}]" for module in found)
        lines.append(f"| [{TITLES[part]}](api/{part}.md) | {links} |")
    return "\n".join(lines)
