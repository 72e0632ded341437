"""How long code is: its lines without docstrings, comments and blank lines."""

import ast
import io
import pathlib
import tokenize
from collections.abc import Sequence

NOT_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
PACKAGE = pathlib.Path(__file__).parent.parent


def code_lines(text: str, functions: Sequence[str] = ()) -> int:
    """The lines of a Python source that hold code; of these functions alone if any are named."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    module = ast.parse(text)
    for node in ast.walk(module):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            lines -= _lines_of(node.body[0])
    if functions:
        found = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
        lines &= set().union(*(_lines_of(found[name]) for name in functions))
    return len(lines)


def _lines_of(node: ast.stmt) -> set[int]:
    decorators = getattr(node, "decorator_list", [])
    return set(range(min([node.lineno, *(d.lineno for d in decorators)]), (node.end_lineno or node.lineno) + 1))


def file_lines(name: str, functions: Sequence[str] = ()) -> int:
    """`code_lines` of a file of the package: "tuned/ptx.py"."""
    return code_lines((PACKAGE / name).read_text(encoding="utf-8"), functions)
