"""Pictures drawn from live arrays: `dsv41 show NAME --out FILE.svg`, and the figures of the site.

Every module beside this one has a table `PICTURES`, name -> function. A function's keyword arguments all have defaults;
it computes what it shows with the package's own code and returns a `Picture`.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

from dsv41_numba.show.svg import Picture


def pictures() -> dict[str, Callable[..., Picture]]:
    """Every picture's function by its name, in alphabetical order."""
    found: dict[str, Callable[..., Picture]] = {}
    for module in pkgutil.iter_modules(__path__):
        for name, function in getattr(importlib.import_module(f"{__name__}.{module.name}"), "PICTURES", {}).items():
            if name in found:
                raise ValueError(f"picture {name!r}: expected one function, got two")
            found[name] = function
    return dict(sorted(found.items()))


def draw(name: str, **options: Any) -> Picture:
    """The picture of this name. Raises ValueError for a name or an option that does not exist."""
    known = pictures()
    if name not in known:
        raise ValueError(f"picture: expected one of {', '.join(known)}, got {name!r}")
    parameters = inspect.signature(known[name]).parameters
    for option in options:
        if option not in parameters:
            expected = ", ".join(parameters) or "none"
            raise ValueError(f"picture {name}: expected options among {expected}, got {option!r}")
    return known[name](**options)
