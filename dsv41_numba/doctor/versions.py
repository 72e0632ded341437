"""The version table that the package was tested with, and how versions are read and written."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass


Version = tuple[int, ...]
Level = tuple[int, int]  # of CUDA: (12, 4)


@dataclass(frozen=True)
class Tested:
    """The version that the tests ran with, and the range that is allowed: at_least <= version < below."""

    version: str
    at_least: Version
    below: Version | None = None

    def allows(self, version: str) -> bool:
        parts = numbers(version)
        return self.at_least <= parts and (self.below is None or parts < self.below)

    def specifier(self) -> str:
        """The range in pip's words."""
        upper = "" if self.below is None else f",<{dotted(self.below)}"
        return f">={dotted(self.at_least)}{upper}"


TESTED = {
    "python": Tested("3.11.7", (3, 11)),
    "numba": Tested("0.68.1", (0, 68), (0, 69)),
    "numpy": Tested("2.4.6", (2, 0), (2, 5)),
    "ml_dtypes": Tested("0.7.0", (0, 5)),
    "numba-cuda": Tested("0.30.4", (0, 30, 4), (0, 31)),
    "cuda-bindings": Tested("13.5.0", (12, 9, 1), (14,)),
}
NUMBA_CUDA_WITHOUT_NUMPY = (2, 5)  # numba-cuda 0.30 uses np.row_stack, which NumPy 2.5 has removed
CUDA_13_CAPABILITY = (7, 5)  # the CUDA 13 toolkit has no code generator for older GPUs
OLDEST_DRIVER = (12, 0)  # numba-cuda 0.30 has no bindings for a driver below


def numbers(version: str) -> Version:
    """(0, 68, 1) of "0.68.1"; reading stops at what is no number, so "2.5.0rc1" is (2, 5, 0)."""
    return tuple(int(part) for part in re.match(r"\d*(?:\.\d+)*", version)[0].split(".") if part)  # type: ignore[index]


def dotted(version: Version) -> str:
    return ".".join(map(str, version))


def one_line(text: Any) -> str | None:
    return " ".join(str(text).split()) or None if text is not None else None
