"""What Numba's own launch cannot do: tensor maps, clusters of blocks, more than 48 KiB of shared memory, overlap.

Thin wrappers of the CUDA driver's calls, through the `cuda.bindings` that numba-cuda brings along.
"""

import ctypes
import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
from numba import cuda

from dsv41_numba.ops.checks import address

MAPS_KEPT = 4096  # 128 bytes each


def check(status: Any) -> None:
    """Raise what a driver call reports."""
    if int(status) != 0:
        raise RuntimeError(f"CUDA driver: {status}")


@functools.lru_cache(MAPS_KEPT)
def tensor_map(address: int, shape: tuple[int, int, int], strides: tuple[int, int], box: tuple[int, int]) -> Any:
    """The copy engine's description of bf16 data, on the device: `tma_load` and `tma_store` take its address.

    shape     batch, rows, columns
    strides   bytes from one batch to the next and from one row to the next; multiples of 16, as the address is
    box       rows and columns of one copy; 64 columns, which lie swizzled in shared memory

    A map holds nothing but these numbers, so one that is kept stays true when the memory is freed and used again.
    """
    from cuda.bindings import driver

    count, word = driver.cuuint64_t, driver.cuuint32_t
    batch, rows, columns = shape
    status, made = driver.cuTensorMapEncodeTiled(
        driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        3,
        address,
        [count(columns), count(rows), count(batch)],  # the fastest axis first
        [count(strides[1]), count(strides[0])],
        [word(box[1]), word(box[0]), word(1)],
        [word(1)] * 3,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,  # zeros past the edges
    )
    check(status)
    return cuda.to_device(np.array([int(word) for word in made.opaque], np.uint64))


def compiled(kernel: Any, signature: tuple[Any, ...], shared_bytes: int) -> Any:
    """The driver's handle of a kernel, compiled for this device and allowed `shared_bytes` of dynamic shared memory."""
    from cuda.bindings import driver

    kernel.compile(signature)
    function = kernel.overloads[signature]._codelibrary.get_cufunc()
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    device = driver.CUdevice(cuda.get_current_device().id)
    check(driver.cuKernelSetAttribute(attribute, shared_bytes, function.handle, device)[0])
    return function


def of_arrays(*arrays: Any) -> list[Any]:
    """The parameters that a kernel's array arguments become: of each owner, parent, sizes, address, shape, strides."""
    values: list[Any] = []
    for array in arrays:
        start = address(array) if array.size else 0
        numbers = [array.size, array.dtype.itemsize, start, *array.shape, *array.strides]
        values += [ctypes.c_void_p(0), ctypes.c_void_p(0), *map(ctypes.c_int64, numbers)]
    return values


class Launch:
    """One launch on the default stream, made ready: calling it takes the host about 5 microseconds.

    `grid` counts blocks, along x or along x, y and z; `block` threads and `cluster` the blocks of a cluster, along x.
    `values` are ctypes numbers, one a parameter. `keep` must live as long as this object. The blocks may start while
    the launch before in the stream still runs: the kernel must wait for its end (`ptx.launch_wait`) before it touches
    memory.
    """

    def __init__(
        self,
        function: Any,
        grid: int | tuple[int, int, int],
        block: int,
        cluster: int,
        shared_bytes: int,
        values: Iterable[Any],
        keep: Any,
    ):
        from cuda.bindings import driver

        self.values, self.keep = list(values), keep
        self.parameters = (ctypes.c_void_p * len(self.values))(*map(ctypes.addressof, self.values))
        self.config = driver.CUlaunchConfig()
        sizes = (grid, 1, 1) if isinstance(grid, int) else grid
        self.config.gridDimX, self.config.gridDimY, self.config.gridDimZ = sizes
        self.config.blockDimX, self.config.blockDimY, self.config.blockDimZ = block, 1, 1
        self.config.sharedMemBytes, self.config.hStream = shared_bytes, 0
        pair, early = driver.CUlaunchAttribute(), driver.CUlaunchAttribute()
        pair.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        size = pair.value.clusterDim
        size.x, size.y, size.z = cluster, 1, 1
        early.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        early.value.programmaticStreamSerializationAllowed = 1
        self.config.attrs, self.config.numAttrs = [pair, early], 2
        self.launch, self.function = driver.cuLaunchKernelEx, driver.CUfunction(int(function.handle))

    def __call__(self) -> None:
        check(self.launch(self.config, self.function, ctypes.addressof(self.parameters), 0)[0])

    def capture(self, builder: Any) -> None:
        """Put the launch into the graph that a `cuda.core` graph builder is building."""
        self.config.hStream = int(builder.stream.handle)
        try:
            check(self.launch(self.config, self.function, ctypes.addressof(self.parameters), 0)[0])
        finally:
            self.config.hStream = 0
