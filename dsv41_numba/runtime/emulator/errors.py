"""What the emulator raises. Each message names the kernel and a line; at run time the block and thread as well."""


class EmulatorError(Exception):
    """A kernel that the emulator cannot run, a launch that CUDA would refuse, or a fault while a kernel ran."""


class OutOfBounds(EmulatorError, IndexError):
    """An index outside its array; a negative one too, since CUDA would not count it from the end but read elsewhere."""


class DivergentBarrier(EmulatorError):
    """Threads of one block (or lanes of one warp) that wait at different places, or ended while others wait."""


class Race(EmulatorError):
    """Two threads touch one element, one of them writes, and no barrier orders them."""


class UninitialisedRead(Race):
    """A read of a shared element that no thread of the block has written yet."""
