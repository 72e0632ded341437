"""RoPE in place has the bits of the plain one, and leaves the entries that do not turn alone."""

import numpy as np
import pytest

from conftest import random_bf16
from dsv41_numba.compare import bf16_array, same_bits
from dsv41_numba.ops.rope import rope_inverse_ref, rope_ref
from dsv41_numba.runtime.backend import to_device, to_host
from dsv41_numba.tuned.rope import rope_in_place, rope_inverse_in_place
from test_rope import table


@pytest.mark.parametrize(
    "T, H, D, R, start_pos, step",
    [(1, 1, 2, 2, 3, 1), (3, 7, 96, 16, 0, 1), (5, 9, 512, 64, 2, 4), (2, 3, 140, 140, 40, 2), (0, 4, 64, 16, 5, 1)],
)
def test_tuned_rope_in_place_equals_the_reference(rng, T, H, D, R, start_pos, step):
    x, (cos, sin) = random_bf16(rng, T, H, D), table(R, 64)
    device = to_device(np.array(x))
    result = rope_in_place(device, to_device(cos), to_device(sin), start_pos, step)
    assert result is device
    assert same_bits(bf16_array(to_host(result)), rope_ref(x, cos, sin, start_pos, step))


@pytest.mark.parametrize("inverse", [False, True])
def test_tuned_rope_in_place_finds_the_position_in_device_memory(rng, inverse):
    x, (cos, sin) = random_bf16(rng, 1, 5, 64), table(16, 64)
    turn, reference = (rope_inverse_in_place, rope_inverse_ref) if inverse else (rope_in_place, rope_ref)
    result = turn(to_device(np.array(x)), to_device(cos), to_device(sin), to_device(np.array([37], np.int64)))
    assert same_bits(bf16_array(to_host(result)), reference(x, cos, sin, 37))


def test_tuned_rope_in_place_refuses_positions_outside_the_table(rng):
    x, (cos, sin) = random_bf16(rng, 3, 2, 16), table(8, 10)
    with pytest.raises(ValueError, match=r"start_pos, step: expected positions within the table's 0\.\.9"):
        rope_in_place(to_device(x), to_device(cos), to_device(sin), 8)
