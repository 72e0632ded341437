"""What the machine can do at most, measured in the same run: the two rates that every floor is computed from."""

from dataclasses import dataclass

from numba import cuda

from dsv41_numba.bench import torch_ops
from dsv41_numba.bench.inputs import Draw
from dsv41_numba.bench.timing import device_time

COPY_ELEMENTS = 1 << 31  # bf16: 4.3 GB read and as much written, many times any cache
MATRIX_SIZE = 8192


@dataclass(frozen=True)
class Ceilings:
    """copy_gbs: bytes read plus bytes written a second, in 10^9; matrix_tflops: None where torch is not installed."""

    copy_gbs: float
    matrix_tflops: float | None

    def floor_ms(self, bytes_: int, flops: int) -> float:
        """The least time of a call: its bytes over the copy rate, or its operations over the matrix rate."""
        memory = bytes_ / (1e6 * self.copy_gbs)
        return memory if self.matrix_tflops is None else max(memory, flops / (1e9 * self.matrix_tflops))


def measure() -> Ceilings:
    """A large copy on the device, and torch's bf16 matrix product on random numbers (zeros would run faster)."""
    draw = Draw(1)
    return Ceilings(_copy_gbs(draw), _matrix_tflops(draw) if torch_ops.available() else None)


def _copy_gbs(draw: Draw) -> float:
    source, copy = draw.bf16(COPY_ELEMENTS), cuda.device_array(COPY_ELEMENTS, "uint16")
    return 4 * COPY_ELEMENTS / device_time([lambda: copy.copy_to_device(source)]).ms / 1e6


def _matrix_tflops(draw: Draw) -> float:
    x, weight, y = (draw.bf16(MATRIX_SIZE, MATRIX_SIZE) for _ in range(3))
    product = torch_ops.beside("linear", (x, weight), y)
    assert product is not None
    return 2 * MATRIX_SIZE**3 / device_time([product]).ms / 1e9
