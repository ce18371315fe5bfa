"""What launchers tell, and which launches fit which engine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fakes import engine_folder
from tests.fakes.installed import mpi_world
from trtspec import manifest as manifests
from trtspec.errors import ConfigError, EngineFolderError, MissingDependency
from trtspec.executors.tensorrt_llm.engine_spec import FolderSpec
from trtspec.executors.tensorrt_llm.following import check_ranks
from trtspec.executors.tensorrt_llm.world import all_or_none, join
from trtspec.manifest import Manifest
from trtspec.ranks import Ranks, alone, end_all, launched, launcher_files, of_child


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


def test_an_engine_of_several_ranks_is_refused_where_mpi_knows_of_others() -> None:
    with mpi_world(2, rank=1):
        assert join(Ranks(1, 2)).ranks == Ranks(1, 2)
    with (
        mpi_world(1, launched=2),
        pytest.raises(
            ConfigError,
            match=r"made this process rank 0 of 2 and for MPI it is rank 0 of 1: mpi4py uses Fake MPI v1.0, which",
        ),
    ):
        join(launched())


def test_what_to_install_is_told_where_mpi4py_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("raise RuntimeError('cannot load MPI library')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingDependency, match=r"\(cannot load MPI library\); pip install 'trtspec\[tensorrt-llm\]'"):
        join(Ranks(0, 2))


def test_a_rank_that_fails_ends_all(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise EngineFolderError("no such engine")

    with mpi_world(2, rank=1), pytest.raises(SystemExit, match=r"MPI_Abort\(1\)"):
        all_or_none(join(Ranks(1, 2)), fail)
    assert capsys.readouterr().err == "rank 1 of 2: error: no such engine\n"


def test_a_child_that_is_alone_takes_nobodys_rank() -> None:
    told = {"PMI_RANK": "1", "PMIX_RANK": "1", "SLURM_PROCID": "1", "OMPI_COMM_WORLD_RANK": "1", "HOME": "/root"}
    assert alone(told) == {"HOME": "/root"}


def test_a_child_takes_a_rank_of_several_alone() -> None:
    """That of one could not be taken again by the next child."""
    several = {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "7", "HOME": "/root"}
    assert of_child(several) == several
    assert of_child(several | {"PMI_RANK": "0", "PMI_SIZE": "1"}) == {"HOME": "/root"}
    assert of_child({"UCX_TLS": "tcp"}) == {"UCX_TLS": "tcp"}


def test_mpich_is_reached_by_an_open_file() -> None:
    ours, theirs = os.pipe()
    told = {"PMI_FD": str(theirs)}
    with os.fdopen(ours) as reader:
        assert list(launcher_files(told)) == [theirs]
        end_all(told)
        os.close(theirs)
        assert reader.read() == "cmd=abort exitcode=1\n"
    assert list(launcher_files(told)) == []


def test_the_rank_on_a_machine_chooses_among_its_gpus() -> None:
    found = launched({"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1"})
    assert found.place == 1 and launched({"PMI_RANK": "5", "PMI_SIZE": "8"}).place == 5
