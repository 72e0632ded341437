"""The DeepSeek-V4.1-Flash attention as an educational Numba CUDA port. Start reading in `layer.py`.

The public names, in the order in which a forward meets them::

    AttnV41Cfg, FLASH, TINY                                    the geometry
    LayerRole                                                  what each layer makes and reads; `roles.roles` makes them
    AttnV41LayerWeights, CompressorWeights, IndexerWeights     one layer's weights; Checkpoint reads them
    AttnV41LayerState, SharedV41                               what survives a call, and what layers hand each other
    REFERENCE, PLAIN                                           the op tables: NumPy, and the readable kernels
    AttnV41, AttnV41Run                                        the driver, and the record of one layer's intermediates
    save_state, load_state, load_sequence                      a sequence's memory as a file
"""

import os

# Numba reads its simulator switch when it is first imported, so the wish has to be passed on before that.
if os.environ.get("DSV41_BACKEND") == "simulator":
    os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsv41_numba.caches import AttnV41LayerState, SharedV41
    from dsv41_numba.config import FLASH, TINY, AttnV41Cfg
    from dsv41_numba.layer import AttnV41Run
    from dsv41_numba.ops import PLAIN, REFERENCE
    from dsv41_numba.roles import LayerRole
    from dsv41_numba.stack import AttnV41
    from dsv41_numba.state_file import load_sequence, load_state, save_state
    from dsv41_numba.weights import AttnV41LayerWeights, Checkpoint, CompressorWeights, IndexerWeights

__version__ = "0.1.0"

__all__ = [
    "FLASH",
    "PLAIN",
    "REFERENCE",
    "TINY",
    "AttnV41",
    "AttnV41Cfg",
    "AttnV41LayerState",
    "AttnV41LayerWeights",
    "AttnV41Run",
    "Checkpoint",
    "CompressorWeights",
    "IndexerWeights",
    "LayerRole",
    "SharedV41",
    "load_sequence",
    "load_state",
    "save_state",
]

_HOME = {
    "config": ("AttnV41Cfg", "FLASH", "TINY"),
    "roles": ("LayerRole",),
    "weights": ("AttnV41LayerWeights", "Checkpoint", "CompressorWeights", "IndexerWeights"),
    "caches": ("AttnV41LayerState", "SharedV41"),
    "ops": ("REFERENCE", "PLAIN"),
    "layer": ("AttnV41Run",),
    "stack": ("AttnV41",),
    "state_file": ("load_sequence", "load_state", "save_state"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `dsv41 --help` should not wait for Numba."""
    for module, names in _HOME.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
