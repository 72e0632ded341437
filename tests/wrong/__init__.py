"""Planted faults: mistakes that people make in this attention, each of which the suite must catch.

Every module beside this one is one mistake. It does not copy what it spoils: `FAULT` names the source, the passages to
replace, and the package's attributes that get the spoiled version. `tests/test_wrong_kernels.py` says which check must
see it.
"""

import importlib
import importlib.util
import inspect
import pathlib
import sys
from dataclasses import dataclass
from types import ModuleType

import pytest

FOLDER = pathlib.Path(__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))


@dataclass(frozen=True)
class Fault:
    """A mistake in one source file of the package.

    module    the file, as a module's name
    changes   right passage -> wrong one; a right passage that is not there exactly once is an error, so that a fault
              cannot quietly become none when the package changes
    replaces  attributes that get the spoiled version, as "module.attribute"
    """

    module: str
    changes: dict[str, str]
    replaces: tuple[str, ...]

    def source(self) -> str:
        """The file's text with the mistake in it."""
        text = inspect.getsource(importlib.import_module(self.module))
        for right, wrong in self.changes.items():
            count = text.count(right)
            assert count == 1, f"{self.module}: expected this passage once, found it {count} times:\n{right}"
            text = text.replace(right, wrong)
        return text

    def plant(self, monkeypatch: pytest.MonkeyPatch, folder: pathlib.Path) -> ModuleType:
        """Import the spoiled source under another name, and put it to use until the test ends.

        It is a real file, because the emulator reads a kernel's source.
        """
        name = f"wrong_{self.module.rpartition('.')[2]}"
        path = folder / f"{name}.py"
        path.write_text(self.source())
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        for target in self.replaces:
            # import_module, because a stage's function hides its module among the attributes of the ops package
            owner, _, attribute = target.rpartition(".")
            monkeypatch.setattr(importlib.import_module(owner), attribute, getattr(module, attribute))
        return module


def fault(name: str) -> Fault:
    """The fault of one of the modules beside this one."""
    return importlib.import_module(f"wrong.{name}").FAULT
