"""RMSNorm with the usual 1e-6 built in, where the configuration says 1e-20: small rows vanish."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.ops.rmsnorm",
    changes={
        """\
    # ref: scale = np.float32(1.0) / np.sqrt(mean + np.float32(eps))
    scale = float32(1.0) / math.sqrt(mean + eps)
""": """\
    scale = float32(1.0) / math.sqrt(mean + float32(1e-6))
"""
    },
    replaces=("dsv41_numba.ops.rmsnorm.rmsnorm_kernel",),
)
