"""An fp8 weight as it is stored: a matrix of e4m3 codes, and one e8m0 scale for each block of it.

::

    codes [40, 96]    scale [2, 3]    block (32, 32)
    rows  0..31       s00  s01  s02   value[n, k] = e4m3(codes[n, k]) * 2^(scale[n / 32, k / 32] - 127)
    rows 32..39       s10  s11  s12   the last blocks may be cut off by the matrix' edges
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv41_numba.formats.e4m3 import e4m3_to_f32
from dsv41_numba.formats.e8m0 import e8m0_to_f32


@dataclass(frozen=True, eq=False)
class Fp8Weight:
    """A weight [N, K] of which the codes are kept.

    codes [N, K] uint8, scale [ceil(N / rows), ceil(K / columns)] uint8, block (rows, columns). Host or device arrays.
    """

    codes: Any
    scale: Any
    block: tuple[int, ...] = (32, 32)

    @property
    def shape(self) -> tuple[int, ...]:
        """[N, K]: that of the matrix."""
        return tuple(self.codes.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return int(self.codes.nbytes + self.scale.nbytes)

    def to_f32(self) -> np.ndarray:
        """The values [N, K] of a weight on the host; a product beyond float32 becomes an infinity, NaN stays NaN."""
        (rows, columns), (N, K) = self.block, self.shape
        scale = np.repeat(np.repeat(e8m0_to_f32(self.scale), rows, axis=0)[:N], columns, axis=1)[:, :K]
        with np.errstate(over="ignore"):
            return np.asarray(e4m3_to_f32(self.codes) * scale)
