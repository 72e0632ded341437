"""What the API reference shows of a module: griffe, which reads it for mkdocstrings, asks here.

Docstrings go through `as_markdown`, and what a module's demo under `if __name__ == "__main__"` assigns is left out.
"""

import ast
from typing import Any

import griffe

from dsv41_numba.pages.markdown import as_markdown


class Readable(griffe.Extension):
    """Docstrings as they were laid out; no names of demos."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called once for each module, class, function and constant."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)

    def on_module_members(self, *, node: Any, mod: griffe.Module, **kwargs: Any) -> None:
        """Called for each module once its members are known."""
        for demo in node.body:
            if isinstance(demo, ast.If) and "__name__" in ast.unparse(demo.test):
                for name, member in list(mod.members.items()):
                    if not member.is_alias and demo.lineno <= (member.lineno or 0) <= (demo.end_lineno or 0):
                        del mod.members[name]
