"""Where the tiny checkpoint and the recordings are: inside an installed package, or beside it in a checkout."""

import pathlib

_PACKAGE = pathlib.Path(__file__).parent


def data_dir() -> pathlib.Path:
    """The data folder. Raises FileNotFoundError when neither place has it."""
    for folder in (_PACKAGE / "data", _PACKAGE.parent / "data"):
        if (folder / "golden").is_dir():
            return folder
    raise FileNotFoundError(
        f"expected the tiny checkpoint and recordings in {_PACKAGE / 'data'} or {_PACKAGE.parent / 'data'}, got neither"
    )


def golden(name: str) -> pathlib.Path:
    """A file of the golden folder, such as "tiny-A.safetensors"."""
    return data_dir() / "golden" / name
