"""Whatever the emulator does not support is an error that names the construct and its line, never a wrong result."""

import math
import pathlib
import re

import numpy as np
import pytest
from numba import cuda, float32, int32, uint32

from dsv41_numba.runtime.emulator import EmulatorError, emulate

FULL = 0xFFFFFFFF
N = 8
TABLE = np.arange(4, dtype=np.float32)


def nothing():
    return 1


@cuda.jit(device=True)
def add(a, b=1):
    return a + b


@cuda.jit(device=True)
def again(a):
    return again(a)


@cuda.jit(device=True)
def sometimes(a):
    if a > 0:
        return 1


@cuda.jit(device=True)
def many(*values):
    return values[0]


# each kernel's refused line ends in `# here`; the text after it is a pattern of the message
@cuda.jit
def has_try(x):
    try:  # here: try is not supported
        x[0] = 1
    except Exception:
        x[0] = 2


@cuda.jit
def has_with(x):
    with x:  # here: with is not supported
        pass


@cuda.jit
def has_lambda(x):
    x[0] = (lambda: 1)()  # here: a call of lambda is not supported


@cuda.jit
def has_def(x):
    def f():  # here: a nested def is not supported
        return 1

    x[0] = f()


@cuda.jit
def has_assert(x):
    assert x[0] == 0  # here: assert is not supported


@cuda.jit
def has_raise(x):
    raise ValueError("no")  # here: raise is not supported


@cuda.jit
def has_yield(x):
    yield x  # here: yield is not supported


@cuda.jit
def has_list(x):
    x[0] = [1, 2][0]  # here: list is not supported


@cuda.jit
def has_comprehension(x):
    x[0] = len([i for i in range(3)])  # here: a list comprehension is not supported  # noqa: C416


@cuda.jit
def has_string(x):
    print(f"{x[0]}")  # here: print is not supported


@cuda.jit
def has_walrus(x):
    if (n := x[0]) > 0:  # here: := is not supported
        x[0] = n


@cuda.jit
def has_matmul(x):
    x[0] = x @ x  # here: @ is not supported


@cuda.jit
def has_in(x):
    x[0] = 1 if 3 in x else 0  # here: in is not supported


@cuda.jit
def has_del(x):
    y = 1
    del y  # here: delete is not supported


@cuda.jit
def has_value(x):
    if x[0] > 0:
        return 1  # here: a kernel returns nothing


@cuda.jit
def has_name(x):
    x[0] = undefined_name  # here: undefined_name is not defined  # noqa: F821


@cuda.jit
def has_python_function(x):
    x[0] = nothing()  # here: nothing is not supported


@cuda.jit
def has_numpy(x):
    x[0] = np.sum(x)  # here: np.sum is not supported


@cuda.jit
def has_math(x):
    x[0] = math.comb(5, 2)  # here: math.comb is not supported


@cuda.jit
def has_method(x):
    x[0] = x.sum()  # here: the method .sum is not supported


@cuda.jit
def has_attribute(x):
    x[0] = x.nbytes  # here: .nbytes is not supported


@cuda.jit
def has_const(x):
    t = cuda.const.array_like(TABLE)  # here: cuda.const.array_like is not supported
    x[0] = t[0]


@cuda.jit
def has_cooperative(x):
    cuda.cg.this_grid().sync()  # here: not supported


@cuda.jit
def has_activemask(x):
    x[0] = cuda.activemask()  # here: cuda.activemask is not supported


@cuda.jit
def has_match(x):
    x[0] = cuda.match_any_sync(FULL, 1)  # here: cuda.match_any_sync is not supported


@cuda.jit
def has_partial_mask(x):
    x[0] = cuda.shfl_sync(0xFFFF, x[0], 0)  # here: only the full warp mask


@cuda.jit
def has_computed_mask(x, m):
    cuda.syncwarp(m)  # here: only the full warp mask


@cuda.jit
def has_vector(x):
    v = cuda.float32x2(1.0, 2.0)  # here: cuda.float32x2 is not supported
    x[0] = v.x


@cuda.jit
def has_libdevice(x):
    x[0] = cuda.libdevice.normcdff(x[0])  # here: libdevice.normcdff is not supported


@cuda.jit
def has_shape(x, n):
    s = cuda.shared.array(n, float32)  # here: a shape of literals and names of constants
    s[0] = x[0]


@cuda.jit
def has_shape_arithmetic(x):
    s = cuda.shared.array(N * 2, float32)  # here: a shape of literals and names of constants
    s[0] = x[0]


@cuda.jit
def has_two_arrays(x):
    if x[0] > 0:  # noqa: SIM108
        s = cuda.shared.array(4, float32)  # here: s is bound to a shared or local array and to something else
    else:
        s = cuda.shared.array(8, float32)
    s[0] = x[0]


@cuda.jit
def has_too_much(x):
    s = cuda.shared.array(12289, float32)
    s[0] = x[0]


@cuda.jit
def has_recursion(x):
    x[0] = again(1)  # here in again: again calls itself


@cuda.jit
def has_half_a_result(x):
    x[0] = sometimes(x[0])  # here in sometimes: returns a value on some of its paths only


@cuda.jit
def has_star(x):
    x[0] = many(1, 2)  # here in many: \*args and \*\*kwargs


@cuda.jit
def has_starred_call(x):
    x[0] = add(*(1, 2))  # here: \*arguments are not supported


@cuda.jit
def has_missing_argument(x):
    x[0] = add(b=2)  # here: add: missing argument a


@cuda.jit
def has_unexpected_argument(x):
    x[0] = add(1, c=2)  # here: add: unexpected argument c


@cuda.jit
def has_surplus_argument(x):
    x[0] = add(1, 2, 3)  # here: add takes 2 positional arguments, got 3


@cuda.jit
def has_late_comparison(x):
    if 0 < 1 < add(x[0]) < add(x[1]):
        x[0] = 1


@cuda.jit
def has_grid(x, n):
    x[cuda.grid(n)] = 1  # here: takes the literal 1, 2 or 3


@cuda.jit
def has_keyword(x):
    x[0] = max(x[0], x[1], key=abs)  # here: pass arguments by position


@cuda.jit
def has_dimension(x):
    x[0] = cuda.threadIdx.w  # here: cuda.threadIdx.w does not exist


@cuda.jit
def has_for_pair(x):
    for i, v in enumerate(x):  # here: a for loop with several variables
        x[i] = v


TRANSLATED = [f for name, f in sorted(globals().items()) if name.startswith("has_")]


def place(kernel):
    """Line and pattern of the `# here` in a kernel's source."""
    code = kernel.py_func.__code__
    lines = pathlib.Path(code.co_filename).read_text().splitlines()
    for number in range(code.co_firstlineno, len(lines)):
        found = re.search(r"# here(?: in (\w+))?: (.*?)(?:  # noqa.*)?$", lines[number - 1])
        if found:
            return number, found[1], found[2]
        if number > code.co_firstlineno + 2 and lines[number - 1].startswith("@"):
            break
    return None, None, None


@pytest.mark.parametrize("kernel", TRANSLATED, ids=lambda k: k.py_func.__name__)
def test_refused_when_translated(kernel):
    with pytest.raises(EmulatorError) as error:
        emulate(kernel)
    message = str(error.value)
    line, inside, pattern = place(kernel)
    print(message)
    if kernel is has_too_much:
        assert "49156 bytes of static shared memory; CUDA allows 49152" in message
    elif kernel is has_late_comparison:
        assert "late in a chain of comparisons" in message
    else:
        assert re.search(pattern, message)
        assert inside or f"test_refusals.py:{line}: " in message
    assert (inside or kernel.py_func.__name__) in message and "test_refusals.py:" in message


@cuda.jit
def types_unsigned_shuffle(x):
    x[0] = cuda.shfl_sync(FULL, x[0], 0)  # here: takes int32, int64, float32 or float64


@cuda.jit
def types_two_kinds(x):
    if x[0] > 0:  # noqa: SIM108
        v = (1, 2)
    else:
        v = 2
    x[0] = v  # here: Cannot unify .* for 'v'$


@cuda.jit
def types_row(x, y):
    y[0] = x  # here: only single elements can be assigned|cannot store


@cuda.jit
def types_slice(x, y):
    y[0:2] = 0  # here: only single elements can be assigned


@cuda.jit
def types_loop(x):
    for v in x:  # here: loop over range
        x[0] = v


@cuda.jit
def types_view(x):
    x[0] = float32(x[0]).view(np.float64)  # here: the sizes differ


@cuda.jit
def types_constant(x):
    TABLE[0] = x[0]  # here: a constant array cannot be written


@cuda.jit
def types_index(x):
    x[float32(1.0)] = 0  # here: only single elements


TYPED = [f for name, f in sorted(globals().items()) if name.startswith("types_")]


@pytest.mark.parametrize("kernel", TYPED, ids=lambda k: k.py_func.__name__)
def test_refused_when_typed_at_the_line_of_the_source(kernel):
    args = [np.zeros(4, np.uint32 if kernel is types_unsigned_shuffle else np.float32)]
    args += [np.zeros(4, np.float32)] * (kernel.py_func.__code__.co_argcount - 1)
    with pytest.raises(EmulatorError) as error:
        emulate(kernel)[1, 32](*args)
    message = str(error.value)
    print(message)
    line, _, pattern = place(kernel)
    assert re.search(pattern, message) and kernel.py_func.__name__ in message and "\n" not in message
    assert f"test_refusals.py:{line}: " in message


@cuda.jit
def copy(x, y):
    s = cuda.shared.array(4, int32)
    i = cuda.grid(1)
    if i < x.size:
        y[i] = x[i]
    s[0] = uint32(1)


X, Y = np.zeros(4, np.float32), np.zeros(4, np.float32)
READ_ONLY = np.zeros(4, np.float32)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    "config, args, message",
    [
        ((1, 2048), (X, Y), "block .2048,. exceeds CUDA's limits"),
        ((1, (1, 1, 65)), (X, Y), "exceeds CUDA's limits"),
        ((1, (32, 33)), (X, Y), "exceeds CUDA's limits"),
        ((1, 0), (X, Y), "exceeds CUDA's limits"),
        ((0, 32), (X, Y), "grid .0,. exceeds CUDA's limits"),
        (((1, 65536), 32), (X, Y), "exceeds CUDA's limits"),
        (((1, 1, 1, 1), 32), (X, Y), "expected 1 to 3 sizes"),
        ((1, 32, 0, 49137), (X, Y), "16 bytes of static and 49137 of dynamic shared memory"),
        ((1, 32), (X,), r"copy takes 2 arguments \(x, y\), got 1"),
        ((1, 32), ([1.0], Y), "x: expected a NumPy array or a number, got list"),
        ((1, 32), (X, None), "y: expected a NumPy array or a number, got NoneType"),
        ((1, 32), (X, READ_ONLY), "y is a read-only array"),
        ((1, 32), (np.array([None]), Y), "x: arrays of object are not supported"),
    ],
)
def test_refused_when_launched(config, args, message):
    with pytest.raises(EmulatorError, match=message) as error:
        emulate(copy)[config](*args)
    assert str(error.value).startswith("copy")


@cuda.jit
def through_a_name(x):
    row = x[0:2]
    row[0] = 1


def test_a_read_only_argument_may_only_be_read():
    emulate(copy)[1, 32](READ_ONLY, Y)
    with pytest.raises(EmulatorError, match="x is a read-only array, and the kernel may write to it"):
        emulate(through_a_name)[1, 1](READ_ONLY)


@cuda.jit
def steps(x, n):
    for i in range(0, 10, n):
        x[0] += i


def test_an_error_inside_numbas_own_code_is_reported():
    with pytest.raises(EmulatorError, match=r"steps, block .0, 0, 0., thread .0, 0, 0.: .*with a step of 0"):
        emulate(steps)[1, 1](np.zeros(1), 0)


def test_bf16_arrays_have_to_be_passed_as_bits():
    import ml_dtypes

    with pytest.raises(EmulatorError, match="pass bf16 as uint16 bits"):
        emulate(copy)[1, 32](X.astype(ml_dtypes.bfloat16), Y)


def test_options_and_kernels_are_checked():
    with pytest.raises(EmulatorError, match="order: expected one of forward, reverse, shuffle, got 'sideways'"):
        emulate(copy, order="sideways")
    with pytest.raises(EmulatorError, match=r"expected a @cuda.jit kernel, got int"):
        emulate(3)
