"""What launchers tell, and which launches fit which engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes import engine_folder
from trtspec import manifest as manifests
from trtspec.errors import ConfigError
from trtspec.executors.tensorrt_llm.engine_spec import FolderSpec
from trtspec.executors.tensorrt_llm.following import check_ranks
from trtspec.manifest import Manifest
from trtspec.ranks import Ranks, launched


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Ranks(0, 1)),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, Ranks(3, 4)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, Ranks(1, 2)),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, Ranks(1, 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, Ranks(0, 1)),  # a shell of an allocation, which launched nothing
    ],
)
def test_launchers(environment: dict[str, str], expected: Ranks) -> None:
    assert launched(environment) == expected
    assert expected.leads is (expected.rank == 0)


def engine(folder: Path, flow: str, tp: int) -> Manifest:
    engine_folder(folder)
    FolderSpec("1.2.1", flow, tp, 1, 100, 4, 267).write(folder)
    found = manifests.read(folder)
    return Manifest(**{name: getattr(found, name) for name in Manifest.__slots__} | {"backend": "tensorrt_llm"})


@pytest.mark.parametrize(
    ("flow", "tp", "size", "message"),
    [
        ("engine", 2, 1, r"has 2 ranks and 1 were launched; start it with `mpirun -n 2 trtspec serve"),
        ("engine", 1, 2, r"has 1 ranks and 2 were launched"),
        ("pytorch", 2, 2, r"of the pytorch flow, which starts its own workers; .* `trtllm-llmapi-launch trtspec serve"),
    ],
)
def test_launches_that_do_not_fit_are_refused(tmp_path: Path, flow: str, tp: int, size: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_ranks(tmp_path, engine(tmp_path, flow, tp), Ranks(0, size))


@pytest.mark.parametrize(("flow", "tp", "size"), [("engine", 2, 2), ("engine", 1, 1), ("pytorch", 2, 1)])
def test_launches_that_fit(tmp_path: Path, flow: str, tp: int, size: int) -> None:
    check_ranks(tmp_path, engine(tmp_path, flow, tp), Ranks(0, size))


def test_an_embedded_engine_is_one_process(tmp_path: Path) -> None:
    found = manifests.read(engine_folder(tmp_path))
    check_ranks(tmp_path, found, Ranks())
    with pytest.raises(ConfigError, match="2 processes were launched and .* is an embedded engine, which is one"):
        check_ranks(tmp_path, found, Ranks(0, 2))
