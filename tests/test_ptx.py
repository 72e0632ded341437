"""Every plain kernel compiles for every supported GPU generation, without a GPU, and computes nothing in float64."""

import re

import numba
import numpy as np
import pytest

from kernel_cases import CASES, captured
from ptx import CAPABILITIES, ptx_of

pytest.importorskip("numba_cuda", reason="numba-cuda, which compiles to PTX, is not installed: pip install -e .[gpu]")


@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda c: "sm_{}{}".format(*c))
@pytest.mark.parametrize("name", CASES)
def test_ptx_of_every_kernel_has_no_f64_arithmetic(name, capability):
    """Hard case 21: a bare literal is float64. The argument types are those of the launcher's own launch."""
    launch = captured(name)
    signature = tuple(numba.typeof(argument) for argument in launch.args)
    assert not any(isinstance(a, np.ndarray) and not a.flags.c_contiguous for a in launch.args)
    assert numba.float64 not in signature
    text = ptx_of(launch.kernel, signature, capability)
    assert ".target sm_{}{}".format(*capability) in text
    assert len(re.findall(r"^\.visible \.entry ", text, re.MULTILINE)) == 1
    assert re.findall(r".*\.f64.*", text) == []
