"""A CUDA driver that writes down what it is asked for, made with the C compiler and NVIDIA's own header.

The header comes with Triton, so that calls whose types are not the driver's do not compile here. A module's parameters
are read from the PTX that is loaded. Nothing runs: a launch is a line in the record, with the value of each parameter.
"""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

_SOURCE = r"""
#include <cuda.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static char record[65536];
static int context = 1, refuse_module = 0, refuse_launch = 0;
static size_t sizes[64];
static size_t count;

static void say(const char *format, ...) {
    va_list values;
    va_start(values, format);
    size_t used = strlen(record);
    vsnprintf(record + used, sizeof record - used, format, values);
    va_end(values);
}

const char *fake_record(void) { return record; }
void fake_reset(int with_context, int module_code, int launch_code) {
    record[0] = 0; context = with_context; refuse_module = module_code; refuse_launch = launch_code;
}

CUresult CUDAAPI cuGetErrorName(CUresult error, const char **text) {
    *text = error == CUDA_ERROR_INVALID_PTX ? "CUDA_ERROR_INVALID_PTX" : NULL;
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext *found) {
    *found = context ? (CUcontext)&context : NULL;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int options, CUjit_option *names,
                                    void **values) {
    if (refuse_module) {
        for (unsigned int i = 0; i < options; i++)
            if (names[i] == CU_JIT_ERROR_LOG_BUFFER) strcpy(values[i], "ptxas: no such instruction\n");
        for (unsigned int i = 0; i < options; i++)
            if (names[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) say("log %zu\n", (size_t)values[i]);
        return (CUresult)refuse_module;
    }
    const char *at = strchr(strstr((const char *)image, ".entry"), '('), *end = strchr(at, ')');
    for (count = 0; (at = strstr(at, ".param .")) && at < end; at++) sizes[count++] = at[9] == '6' ? 8 : 4;
    *module = (CUmodule)image;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    *function = (CUfunction)0x7e57000000000001;
    say("function %s\n", name);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    *value = attribute == CU_FUNC_ATTRIBUTE_NUM_REGS ? 40 : attribute == CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES ? 16 : -1;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *size) {
    if (function != (CUfunction)0x7e57000000000001 || index >= count) return CUDA_ERROR_INVALID_VALUE;
    *size = sizes[index];
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLaunchKernel(CUfunction function, unsigned int x, unsigned int y, unsigned int z, unsigned int bx,
                                unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **given,
                                void **extra) {
    if (refuse_launch) return (CUresult)refuse_launch;
    say("launch %d grid %u %u %u block %u %u %u ", function == (CUfunction)0x7e57000000000001, x, y, z, bx, by, bz);
    say("shared %u stream %zu extra %d", shared, (size_t)stream, extra != NULL);
    for (size_t i = 0; i < count; i++)
        if (sizes[i] == 8) say(" p%zu", *(size_t *)given[i]);
        else say(" i%d", *(int *)given[i]);
    say("\n");
    return CUDA_SUCCESS;
}
"""


class RecordingDriver:
    """The library, and what it wrote down."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._library = ctypes.CDLL(self.path)
        self._library.fake_record.restype = ctypes.c_char_p

    @property
    def record(self) -> list[str]:
        text: bytes = self._library.fake_record()
        return text.decode().splitlines()

    def reset(self, *, context: bool = True, module_code: int = 0, launch_code: int = 0) -> None:
        """An empty record, and whether there is a context and calls succeed."""
        self._library.fake_reset(int(context), module_code, launch_code)


def recording_driver(folder: Path, without: str = "") -> RecordingDriver:
    """Compiled into a folder; skips where there is no C compiler. `without` names a call that it does not have."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("no C compiler (cc) for the stand-in of the CUDA driver")
    triton = importlib.util.find_spec("triton")
    assert triton is not None and triton.origin is not None
    include = Path(triton.origin).parent / "backends" / "nvidia" / "include"
    source, library = folder / "libcuda.c", folder / "libcuda.so.1"
    source.write_text(_SOURCE.replace(without, "renamed") if without else _SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-I", str(include), "-o", str(library), str(source)], check=True)
    return RecordingDriver(library)
