"""Functions that a kernel may call and that need care on the CPU, as expressions over their translated arguments.

Kept as text and pasted into the translated kernel: `{0}` stands for the first argument. A separately compiled function
would cost 50 ms at a kernel's first launch. Nothing here is contracted to fma, so `fmul_rn` and `fadd_rn` are a plain
product and sum.
"""

import math
from typing import Any

F, I, U = "_nb.float32({})", "_nb.int32({})", "_nb.uint32({})"  # noqa: E741
D = "_nb.float64({})"
FD = "_nb.float64(_nb.float32({}))"


def _each(form: str, *kinds: str) -> str:
    """form with each argument converted to its kind."""
    return form.format(*(kind.format(f"{{{i}}}") for i, kind in enumerate(kinds)))


def _rounded_in_double(name: str) -> str:
    """Computed in float64 and rounded once: within half a step of float32, where CUDA's own is within one or two."""
    return _each(f"_nb.float32(math.{name}({{}}))", FD)


LIBDEVICE = {
    # exact operations: the same bits as on a GPU
    "fadd_rn": _each("({} + {})", F, F),
    "fsub_rn": _each("({} - {})", F, F),
    "fmul_rn": _each("({} * {})", F, F),
    "fdiv_rn": _each("({} / {})", F, F),
    "frcp_rn": _each("(_nb.float32(1.0) / {})", F),
    "fsqrt_rn": _each("math.sqrt({})", F),
    "sqrtf": _each("math.sqrt({})", F),
    "fmaf": _each("_num.fma({}, {}, {})", F, F, F),
    "fmaf_rn": _each("_num.fma({}, {}, {})", F, F, F),
    "fmaxf": _each("_num.fmax({}, {})", F, F),
    "fminf": _each("_num.fmin({}, {})", F, F),
    "fabsf": _each("abs({})", F),
    "copysignf": _each("math.copysign({}, {})", F, F),
    "floorf": _each("_num.floor({})", F),
    "ceilf": _each("_num.ceil({})", F),
    "truncf": _each("_num.trunc({})", F),
    "rintf": _each("_num.rint({})", F),
    "nearbyintf": _each("_num.rint({})", F),
    "roundf": _each("_num.roundf({})", F),
    "fmodf": _each("_num.fmod({}, {})", F, F),
    "ldexpf": _each("math.ldexp({}, {})", F, I),
    "scalbnf": _each("math.ldexp({}, {})", F, I),
    "float_as_int": _each("_num.bitcast({}, _nb.int32)", F),
    "int_as_float": _each("_num.bitcast({}, _nb.float32)", I),
    "float2int_rn": _each("_num.cast(_num.rint({}), _nb.int32)", F),
    "float2int_rz": _each("_num.cast({}, _nb.int32)", F),
    "float2int_rd": _each("_num.cast(_num.floor({}), _nb.int32)", F),
    "float2int_ru": _each("_num.cast(_num.ceil({}), _nb.int32)", F),
    "float2uint_rn": _each("_nb.int32(_num.cast(_num.rint({}), _nb.uint32))", F),
    "float2uint_rz": _each("_nb.int32(_num.cast({}, _nb.uint32))", F),
    "float2uint_rd": _each("_nb.int32(_num.cast(_num.floor({}), _nb.uint32))", F),
    "float2uint_ru": _each("_nb.int32(_num.cast(_num.ceil({}), _nb.uint32))", F),
    "float2ll_rn": _each("_num.cast(_num.rint({}), _nb.int64)", F),
    "float2ll_rz": _each("_num.cast({}, _nb.int64)", F),
    "float2ll_rd": _each("_num.cast(_num.floor({}), _nb.int64)", F),
    "float2ll_ru": _each("_num.cast(_num.ceil({}), _nb.int64)", F),
    "saturatef": _each("_num.fmin(_num.fmax({}, _nb.float32(0.0)), _nb.float32(1.0))", F),
    "int2float_rn": _each("_nb.float32({})", I),
    "uint2float_rn": _each("_nb.float32({})", U),
    "isnanf": _each("_nb.int32(math.isnan({}))", F),
    "isinff": _each("_nb.int32(math.isinf({}))", F),
    "finitef": _each("_nb.int32(math.isfinite({}))", F),
    "signbitf": _each("(_num.bitcast({}, _nb.int32) >> 31 & 1)", F),
    "min": _each("_num.fmin({}, {})", I, I),
    "max": _each("_num.fmax({}, {})", I, I),
    "abs": _each("abs({})", I),
    "popc": _each("_num.popc({})", I),
    "clz": _each("_num.clz({})", I),
    "ffs": _each("_num.ffs({})", I),
    "brev": _each("_num.brev({})", I),
    # functions that differ from CUDA's in the last bits
    "rsqrtf": _each("_nb.float32(1.0 / math.sqrt({}))", FD),
    "frsqrt_rn": _each("_nb.float32(1.0 / math.sqrt({}))", FD),
    "exp2f": _each("_nb.float32(2.0 ** {})", FD),
    "exp10f": _each("_nb.float32(10.0 ** {})", FD),
    "powf": _each("_nb.float32(math.pow({}, {}))", F, F),
    "powif": _each("_nb.float32(math.pow({}, {}))", F, D),
    "hypotf": _each("_nb.float32(math.hypot({}, {}))", F, F),
    "atan2f": _each("_nb.float32(math.atan2({}, {}))", F, F),
    "fast_fdividef": _each("({} / {})", F, F),
    "fast_powf": _each("_nb.float32(math.pow({}, {}))", F, F),
    "fast_exp10f": _each("_nb.float32(10.0 ** {})", FD),
}
# math's functions of one number that no CPU rounds correctly in float32 and every C library rounds in its own way
INEXACT = (
    "acos acosh asin asinh atan atanh cos cosh erf erfc exp expm1 gamma lgamma log log10 log1p log2 sin sinh tan "
    "tanh".split()
)
LIBDEVICE |= {f"{name}f": _rounded_in_double(name) for name in INEXACT}
LIBDEVICE["tgammaf"] = LIBDEVICE.pop("gammaf")
LIBDEVICE |= {f"fast_{name}f": LIBDEVICE[f"{name}f"] for name in ["exp", "log", "log2", "log10", "sin", "cos", "tan"]}

# cuda.X(...)
CUDA = {
    "fma": "_num.fma({0}, {1}, {2})",
    "popc": "_num.popc({0})",
    "clz": "_num.clz({0})",
    "ffs": "_num.ffs({0})",
    "brev": "_num.brev({0})",
    "selp": "_num.select({0}, {1}, {2})",
}

# math.X(...): the same name in the translated kernel
MATH = set(
    "acos acosh asin asinh atan atan2 atanh copysign cos cosh degrees erf erfc exp expm1 fabs gamma hypot "
    "isfinite isinf isnan ldexp lgamma log log10 log1p log2 pow radians sin sinh sqrt tan tanh".split()
)

# Python's own, by the function itself
PYTHON: dict[Any, str] = {
    abs: "abs({0})",
    bool: "bool({0})",
    float: "_nb.float64({0})",
    int: "_num.to_int({0})",
    len: "len({0})",
    math.fmod: "_num.fmod({0}, {1})",
    math.floor: "_num.floor({0})",
    math.ceil: "_num.ceil({0})",
}
