"""Source text for pages: functions and constants of the package's own files, cut out by name."""

import ast
import inspect
import pathlib
from collections.abc import Sequence

from dsv41_numba.pages.execute import ROOT
from dsv41_numba.pages.markdown import fenced


def listing(module: str, *names: str) -> str:
    """A fenced block with these functions, classes, methods ("Class.method") or constants of a module, in this order.

    `listing("dsv41_numba.ops.linear", "doc")` is its docstring, the contract. Titled with the file's path.
    """
    path = module_path(module)
    text = path.read_text(encoding="utf-8")
    title = f'title="{path.relative_to(ROOT).as_posix()}"'
    if names == ("doc",):
        return fenced(inspect.cleandoc(ast.get_docstring(ast.parse(text), clean=False) or ""), f"text {title}")
    if not names:
        raise ValueError(f"{module}: expected names of functions or constants, or 'doc'")
    return fenced(cut(text, *names), f"python {title}")


def module_path(module: str) -> pathlib.Path:
    """The file of a module. Raises ValueError when there is none."""
    base = ROOT.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    raise ValueError(f"module: expected a file of the package, got {module!r}")


def cut(text: str, *names: str) -> str:
    """The parts of a source that define these names, with the comments right above each and inside at the end.

    Raises ValueError for a name that is not there.
    """
    lines, module = text.splitlines(), ast.parse(text)
    found = ""
    nodes = [_find(module, name) for name in names]
    for node, after in zip(nodes, [*nodes[1:], None]):
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        while first > 1 and lines[first - 2].lstrip().startswith("#"):
            first -= 1
        block = lines[first - 1 : last_line(lines, node)]
        indent = len(block[0]) - len(block[0].lstrip())
        found += "\n".join(line[indent:] for line in block) + "\n"
        if after is not None:
            together = isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Assign | ast.AnnAssign)
            found += "" if together else "\n\n"
    return found


def last_line(lines: Sequence[str], node: ast.stmt) -> int:
    """Where a definition ends, with comments that close its body; Python's own end leaves them out."""
    last = at = node.end_lineno or node.lineno
    while at < len(lines):
        text = lines[at]
        if text.strip() and len(text) - len(text.lstrip()) <= node.col_offset:
            break
        at += 1
        if text.strip():
            last = at
    return last


def _find(module: ast.Module, name: str) -> ast.stmt:
    body, found = module.body, None
    for part in name.split("."):
        found = next((node for node in body if part in _names(node)), None)
        if found is None:
            known = ", ".join(known for node in module.body for known in _names(node))
            raise ValueError(f"expected one of {known}, got {name!r}")
        body = getattr(found, "body", [])
    assert found is not None
    return found


def _names(node: ast.stmt) -> list[str]:
    """What a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
