"""From a Python function to an address: Numba compiles it to object code, which is kept on disk and linked on demand.

Only Numba's compiler is used, not its dispatcher: the scheduler calls a kernel's code by address. So a kernel is
compiled and optimised once, by itself, and starting it in another process means reading one file.
"""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
from numba.core import compiler, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from dsv41_numba.runtime.emulator import cache, engine
from dsv41_numba.runtime.emulator.module import Module


@dataclass(frozen=True)
class Native:
    """Compiled code: its address and, for a kernel, the size and layout of one suspended thread in bytes."""

    address: int
    argument_types: tuple[Any, ...] = ()
    state_bytes: int = 0
    context_offset: int = 0
    thread_offset: int = 0


@functools.cache
def _linker() -> Any:
    """An engine that links object code into this process."""
    cpu_target.target_context.codegen()  # initialises LLVM and registers the math functions that code may call
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        opt=2,
        reloc="static" if llvm.get_process_triple().startswith("x86") else "default",
        codemodel="jitdefault",
        jit=True,
    )
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


def _link(code: bytes, symbol: str) -> int:
    engine_ = _linker()
    engine_.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine_.finalize_object()
    return engine_.get_function_address(symbol)


def _compile(function: Callable[..., Any], arguments: tuple[Any, ...], result: Any, wrapper: bool) -> Any:
    flags: Any = compiler.Flags()
    flags.nrt = False  # nothing is allocated in compiled code, so nothing is counted
    flags.error_model = "numpy"
    flags.no_cpython_wrapper = True
    flags.no_cfunc_wrapper = not wrapper
    typing, target = cpu_target.typing_context, cpu_target.target_context
    typing.refresh()
    target.refresh()
    return compiler.compile_extra(typing, target, function, arguments, result, flags, {})


_built: dict[str, Native] = {}  # what this process has linked, by key


def _build(name: str, key: str, make: Callable[[], tuple[dict[str, Any], bytes]]) -> Native:
    with global_compiler_lock:
        if key not in _built:
            found = cache.load(name, key)
            if found is None:
                found = make()
                cache.store(name, key, *found)
            facts, code = found
            _built[key] = Native(_link(code, facts["symbol"]), (), *facts["state"])
        return _built[key]


def kernel(name: str, key: str, module: Module, argument_types: tuple[Any, ...]) -> Native:
    """The compiled form of a translated kernel, a generator of (context, thread)."""

    def make() -> tuple[dict[str, Any], bytes]:
        # the module's name goes into the symbols, so that those of two kernels never meet
        space: dict[str, Any] = {"__name__": f"emulated_{key}"}
        exec(compile(module.text, f"<{module.function}>", "exec"), space)
        python = space[module.function]
        context = types.CPointer(types.Tuple(argument_types))
        compiled = _compile(python, (context, types.int64), None, wrapper=False)
        target = compiled.target_context
        generator = compiled.signature.return_type
        state = target.get_data_type(generator)
        sizes, arguments = target.target_data, state.elements[1]
        start = state.get_element_offset(sizes, 1)
        facts = {
            "symbol": target.get_generator_desc(generator).llvm_func_name,
            "state": [
                -(-target.get_abi_sizeof(state) // 16) * 16,
                start + arguments.get_element_offset(sizes, 0),
                start + arguments.get_element_offset(sizes, 1),
            ],
        }
        return facts, compiled.library._get_compiled_object()

    return dataclasses.replace(_build(name, key, make), argument_types=argument_types)


ENGINE = {
    "run_blocks": (types.int64,),
    "vote": (types.int64,) * 3,
    "note": (types.int64,) * 5,
    "count": (types.int64,) * 5,
}


@functools.cache
def engine_function(name: str) -> int:
    """The address of one of the engine's functions: C code that takes and returns int64."""

    def make() -> tuple[dict[str, Any], bytes]:
        compiled = _compile(getattr(engine, name), ENGINE[name], types.int64, wrapper=True)
        facts = {"symbol": compiled.fndesc.llvm_cfunc_wrapper_name, "state": []}
        return facts, compiled.library._get_compiled_object()

    return _build(name, cache.key_of("engine", name), make).address
