"""The CUDA driver, as far as it takes to launch PTX: a module, its function, and a launch with a list of arguments.

This launches as TensorRT does, so it asks the driver for no more than TensorRT promises: no dynamic shared memory
beyond what every launch may have. It works in the context that is current, which is PyTorch's once a tensor is there.

Source: the CUDA driver API reference, modules and execution control; numbers are those of its header, cuda.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from trtspec.errors import KernelError, MissingDependency

LIBRARY = "libcuda.so.1"
Argument = ctypes.c_void_p | ctypes.c_int32
"""A pointer or a number."""

_LOG_BYTES = 8192
_ERROR_LOG, _ERROR_LOG_BYTES = 5, 6
"""CU_JIT_ERROR_LOG_BUFFER and its size, of the options of a module."""
_LOCAL_BYTES, _REGISTERS = 3, 4
"""CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES and CU_FUNC_ATTRIBUTE_NUM_REGS."""
_INVALID_VALUE = 1
"""CUDA_ERROR_INVALID_VALUE, the answer where there is no such parameter."""
_POINTER, _UINT, _SIZE = ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t
_SIGNATURES = {
    "cuGetErrorName": (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),
    "cuCtxGetCurrent": (ctypes.POINTER(_POINTER),),
    "cuModuleLoadDataEx": (ctypes.POINTER(_POINTER), _POINTER, _UINT, ctypes.POINTER(ctypes.c_int), _POINTER),
    "cuModuleGetFunction": (ctypes.POINTER(_POINTER), _POINTER, ctypes.c_char_p),
    "cuFuncGetAttribute": (ctypes.POINTER(ctypes.c_int), ctypes.c_int, _POINTER),
    "cuFuncGetParamInfo": (_POINTER, _SIZE, ctypes.POINTER(_SIZE), ctypes.POINTER(_SIZE)),
    "cuLaunchKernel": (_POINTER, *(_UINT,) * 7, _POINTER, ctypes.POINTER(_POINTER), ctypes.POINTER(_POINTER)),
}
_SINCE = {"cuFuncGetParamInfo": "CUDA 12.4"}


class DriverError(KernelError):
    """The driver refuses a call: names the call, its answer, and what was asked."""


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel on the device."""

    name: str
    handle: int
    parameter_bytes: tuple[int, ...]
    """Size of each parameter, as the driver has it."""
    registers: int
    spilled_bytes: int
    """Of each thread's local memory."""


class Driver:
    """The library, open."""

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise MissingDependency(f"the CUDA driver cannot be opened ({error}); install NVIDIA's driver") from None
        for name, kinds in _SIGNATURES.items():
            function = getattr(self._library, name, None)
            if function is None:
                since = f", which came with {_SINCE[name]}" if name in _SINCE else ""
                raise MissingDependency(f"{library} has no {name}{since}; install a newer driver of NVIDIA's")
            function.argtypes, function.restype = kinds, ctypes.c_int

    def load(self, name: str, ptx: str) -> Function:
        """A text's function, compiled by the driver for the chip there is. It stays until the process ends."""
        self._check_context()
        module, handle = _POINTER(), _POINTER()
        self._load_module(module, name, ptx)
        self._call("cuModuleGetFunction", name, ctypes.byref(handle), module, name.encode())
        registers, spilled = (self._attribute(name, handle, which) for which in (_REGISTERS, _LOCAL_BYTES))
        return Function(name, handle.value or 0, self._parameter_bytes(name, handle), registers, spilled)

    def launch(
        self,
        function: Function,
        grid: Sequence[int],
        block_x: int,
        shared_bytes: int,
        stream: int,
        arguments: Sequence[Argument],
    ) -> None:
        """Queue one launch. Arguments are those of the function in number and size, or nothing is launched."""
        given = tuple(ctypes.sizeof(item) for item in arguments)
        if given != function.parameter_bytes:
            raise DriverError(
                f"{function.name} takes parameters of {function.parameter_bytes} bytes; given are {given}"
            )
        places = (_POINTER * len(arguments))(*(ctypes.addressof(item) for item in arguments))
        x, y, z = (*grid, 1, 1)[:3]
        what = f"{function.name} with a grid of {[x, y, z]} blocks of {block_x} threads"
        shape = (x, y, z, block_x, 1, 1, shared_bytes)
        self._call("cuLaunchKernel", what, _POINTER(function.handle), *shape, _POINTER(stream), places, None)

    def _check_context(self) -> None:
        context = _POINTER()
        self._call("cuCtxGetCurrent", "the context", ctypes.byref(context))
        if context.value is None:
            raise DriverError("no CUDA context is current; make a tensor on the device first")

    def _load_module(self, module: ctypes.c_void_p, name: str, ptx: str) -> None:
        log = ctypes.create_string_buffer(_LOG_BYTES)
        options = (ctypes.c_int * 2)(_ERROR_LOG, _ERROR_LOG_BYTES)
        values = (_POINTER * 2)(ctypes.addressof(log), _LOG_BYTES)
        text = ctypes.create_string_buffer(ptx.encode())
        code = self._library.cuModuleLoadDataEx(ctypes.byref(module), text, 2, options, values)
        if code:
            said = log.value.decode(errors="replace").strip() or "nothing more is said"
            raise DriverError(f"cuModuleLoadDataEx answers {self._name_of(code)} to the PTX of {name}: {said}")

    def _parameter_bytes(self, name: str, function: ctypes.c_void_p) -> tuple[int, ...]:
        found: list[int] = []
        offset, size = _SIZE(), _SIZE()
        code = 0
        while not code:
            code = self._library.cuFuncGetParamInfo(function, len(found), ctypes.byref(offset), ctypes.byref(size))
            found += [] if code else [size.value]
        if code != _INVALID_VALUE:
            self._check(code, "cuFuncGetParamInfo", name)
        return tuple(found)

    def _attribute(self, name: str, function: ctypes.c_void_p, which: int) -> int:
        value = ctypes.c_int()
        self._call("cuFuncGetAttribute", name, ctypes.byref(value), which, function)
        return value.value

    def _call(self, call: str, what: str, *arguments: object) -> None:
        self._check(getattr(self._library, call)(*arguments), call, what)

    def _check(self, code: int, call: str, what: str) -> None:
        if code:
            raise DriverError(f"{call} answers {self._name_of(code)} for {what}")

    def _name_of(self, code: int) -> str:
        name = ctypes.c_char_p()
        self._library.cuGetErrorName(code, ctypes.byref(name))
        return f"{name.value.decode()} ({code})" if name.value else f"error {code}"
