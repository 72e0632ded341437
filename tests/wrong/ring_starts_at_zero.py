"""A ring whose rows of one call always begin at slot 0 instead of at their position. Prefills up to W rows agree."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.ops.ring",
    changes={"        ring[(start_pos + t) % W, d] = rows[t, d]\n": "        ring[t % W, d] = rows[t, d]\n"},
    replaces=("dsv41_numba.ops.ring.ring_write_kernel",),
)
