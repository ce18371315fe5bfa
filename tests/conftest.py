"""What holds for all tests: no network of the model hub, slow tests on demand."""

from __future__ import annotations

import ctypes
import os

import pytest

from trtspec.openmp import be_considerate

be_considerate()  # tests share the machine with the processes they start

# Set before anything imports transformers, which reads them once: a test that would reach the hub fails instead,
# and tokenizers do not warn when a test starts a process.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # engines run on the CPU wherever the tests do; scripts/gpu-check is for GPUs

# Kernels are interpreted. Triton reads this when it is imported, which torch may do long before a test of kernels.
os.environ["TRITON_INTERPRET"] = "1"


class _Stack(ctypes.Structure):
    """`stack_t` of Linux."""

    _fields_ = (("ss_sp", ctypes.c_void_p), ("ss_flags", ctypes.c_int), ("ss_size", ctypes.c_size_t))


_DISABLE = 2


@pytest.fixture(autouse=True)
def own_signal_stack() -> None:
    """Handlers run on the stack of their thread. Of all that tests load into one process, something leaves another
    stack for signals behind that it has freed, and the next signal that a test sends itself would crash."""
    ctypes.CDLL(None).sigaltstack(ctypes.byref(_Stack(None, _DISABLE, 0)), None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the slow tests too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all"):
        return
    skip = pytest.mark.skip(reason="slow: runs with ./scripts/test --all")
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(skip)
