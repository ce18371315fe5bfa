"""What holds for all tests: no network of the model hub, slow tests on demand."""

from __future__ import annotations

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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the slow tests too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all"):
        return
    skip = pytest.mark.skip(reason="slow: runs with ./scripts/test --all")
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(skip)
