"""Fixtures of every test. Outputs start poisoned, also on a GPU, so that what was never written is seen."""

import os
import pathlib
import zlib

os.environ["DSV41_POISON"] = "1"  # before the backend is chosen

import numpy as np
import pytest

from built_site import browser, server, site  # noqa: F401  # fixtures
from dsv41_numba.formats.bf16 import as_bf16

GOLDEN = pathlib.Path(__file__).parent.parent / "data" / "golden"


@pytest.fixture
def rng(request):
    """A generator seeded from the test's id: different in every test, the same in every run."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture
def golden() -> pathlib.Path:
    """The folder of the recordings."""
    return GOLDEN


def random_bf16(rng, *shape, spread=1.0):
    """Signed normal numbers whose size also varies from element to element, as bf16."""
    return as_bf16((rng.standard_normal(shape) * np.exp(rng.standard_normal(shape) * spread)).astype(np.float32))
