"""The even index in the high 4 bits, packing and unpacking alike: a round trip through both sees nothing."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.formats.e2m1",
    changes={
        "uint8(uint32(even) | (uint32(odd) << uint32(4)))": "uint8(uint32(odd) | (uint32(even) << uint32(4)))",
        "uint32(4 * (i % 2))": "uint32(4 - 4 * (i % 2))",
    },
    replaces=("test_formats.pack_e2m1", "test_formats.unpack_e2m1"),
)
