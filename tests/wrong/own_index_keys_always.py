"""Every source scores its own index keys, where the released code reads the keys published last."""

from wrong import Fault

FAULT = Fault(
    module="dsv41_numba.layer",
    changes={'    if n > 0 or index_keys == "owner":': "    if True:"},
    replaces=("dsv41_numba.stack.forward",),
)
