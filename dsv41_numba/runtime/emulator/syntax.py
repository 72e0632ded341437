"""Small pieces of syntax tree, and questions about them."""

import ast
from collections.abc import Sequence


def name(identifier: str) -> ast.Name:
    """A variable that is read."""
    return ast.Name(identifier, ast.Load())


def assign(target: str, value: ast.expr) -> ast.Assign:
    """target = value"""
    return ast.Assign([ast.Name(target, ast.Store())], value)


def expression(text: str) -> ast.expr:
    """The syntax tree of an expression."""
    return ast.parse(text, mode="eval").body


def statements(text: str) -> list[ast.stmt]:
    """The syntax trees of statements."""
    return ast.parse(text).body


def call(function: str, *arguments: ast.expr) -> ast.Call:
    """function(*arguments)"""
    return ast.Call(expression(function), list(arguments), [])


class Suspension(ast.Pass):
    """Placeholder of a yield: what a thread keeps across it is arranged by `module`."""

    def __init__(self, code: int):
        super().__init__()
        self.code = code


CONSTRUCTS = {
    "FunctionDef": "a nested def",
    "Try": "try",
    "With": "with",
    "Assert": "assert",
    "Lambda": "lambda",
    "JoinedStr": "a string",
    "ListComp": "a list comprehension",
    "GeneratorExp": "a generator expression",
    "NamedExpr": ":=",
}


def construct(node: ast.AST) -> str:
    """What Python programmers call a kind of syntax."""
    kind = type(node).__name__
    return CONSTRUCTS.get(kind, kind.lower())


def has_return(node: ast.AST) -> bool:
    """Whether a return stands somewhere inside."""
    return any(isinstance(n, ast.Return) for n in ast.walk(node))


def always_returns(body: Sequence[ast.stmt]) -> bool:
    """Whether the end of some statements cannot be reached."""
    match body[-1]:
        case ast.Return():
            return True
        case ast.If(body=then, orelse=[_, *_] as otherwise):
            return always_returns(then) and always_returns(otherwise)
        case ast.While(test=ast.Constant(value=True | 1)) as loop:
            return not any(isinstance(n, ast.Break) for n in ast.walk(loop))
    return False


def in_loop(node: ast.stmt, tree: ast.FunctionDef) -> bool:
    """Whether a statement stands inside a loop of its function."""
    loops = [n for n in ast.walk(tree) if isinstance(n, (ast.For, ast.While))]
    return any(node is inside for loop in loops for inside in ast.walk(loop))


def small_constant(node: ast.expr) -> int | None:
    """The value of a literal in 0..31, bare or in a conversion such as uint32(16), else None."""
    if isinstance(node, ast.Call) and len(node.args) == 1 and ast.unparse(node.func).startswith("_nb."):
        node = node.args[0]
    if isinstance(node, ast.Constant) and type(node.value) is int and 0 <= node.value < 32:
        return node.value
    return None


def slice_call(node: ast.Slice) -> ast.expr:
    """lower:upper:step as a value."""
    parts = [p or ast.Constant(None) for p in (node.lower, node.upper, node.step)]
    return call("slice", *parts)
