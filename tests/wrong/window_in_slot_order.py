"""A decode step that takes the ring's slots as they lie: right until the ring wraps, then no longer oldest first."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.ops.gather",
    changes={
        "position = start_pos + np.arange(T)[:, None] - window + 1 + np.arange(window)": (
            "position = np.arange(window)[None]"
        )
    },
    replaces=("dsv41_numba.ops.gather.ring_slots",),
)
