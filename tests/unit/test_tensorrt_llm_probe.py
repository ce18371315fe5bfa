"""The probe, on packages and programs that only look like TensorRT-LLM's."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from builders.build import main
from trtspec.cli import info
from trtspec.executors.tensorrt_llm import probe
from trtspec.executors.tensorrt_llm.probe import DECODING_CLASSES, NEWER, Gpu, Probe


def package(root: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A `tensorrt_llm` of these modules, for this process and its children."""
    for name, text in files.items():
        path = root / "tensorrt_llm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(root))
    monkeypatch.setenv("PYTHONPATH", f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


WHOLE = {
    "__init__.py": "print('[TensorRT-LLM] version: 1.2.1')\n__version__ = '1.2.1'\nclass LLM: ...\n",
    "llmapi/__init__.py": "class MedusaDecodingConfig: ...\nclass NGramDecodingConfig: ...\nclass Other: ...\n",
    "bindings/__init__.py": "",
    "bindings/executor.py": "class Executor: ...\n",
    "builder.py": "def build(): ...\n",
}


def test_without_the_package_it_says_what_to_install() -> None:
    found = probe.probe()
    assert found == Probe()
    assert found.reason is not None and "nvidia.com" in found.reason and "scripts/deploy/Dockerfile" in found.reason


def test_it_finds_both_flows_and_the_classes_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, WHOLE, monkeypatch)
    found = probe.probe()
    assert found == Probe("1.2.1", True, True, ("MedusaDecodingConfig", "NGramDecodingConfig"))
    assert found.reason is None and found.summary == "available: tensorrt-llm 1.2.1, flows engine and pytorch"
    flows = info.machine()["tensorrt_llm"]
    assert flows["decoding"] == ["MedusaDecodingConfig", "NGramDecodingConfig"]
    assert flows["decoding_absent"][-4:] == ["Eagle3DecodingConfig", *NEWER.values()]
    assert len(flows["decoding_absent"]) == len(DECODING_CLASSES) - 2


@pytest.mark.parametrize("gone", ["bindings/executor.py", "builder.py"])
def test_newer_versions_lost_the_engine_flow_in_two_steps(
    gone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = {"__init__.py": WHOLE["__init__.py"].replace("__version__ = '1.2.1'", "__version__ = '1.3.0'")}
    package(tmp_path, {name: text for name, text in (WHOLE | newer).items() if name != gone}, monkeypatch)
    found = probe.probe()
    assert (found.engine_flow, found.pytorch_flow) == (False, True)
    assert found.summary.endswith("flows pytorch; this release is written for 1.2.1 and refuses others")


def test_an_import_that_fails_is_a_sentence_and_harms_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, {"__init__.py": "raise ImportError('libcuda.so.1: cannot open shared object file')"}, monkeypatch)
    found = probe.probe()
    assert found.reason is not None and found.reason.endswith("cannot open shared object file")


def test_an_import_that_kills_the_process_is_a_sentence_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, {"__init__.py": "import os; os.abort()"}, monkeypatch)
    assert "does not import: exit code -6" in str(probe.probe().reason)


def test_gpus_are_read_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho 'NVIDIA H200, 9.0, 143771, 143000, 580.65.06'\necho 'NVIDIA GB10, 12.1, [N/A], [N/A], 580.1'\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert probe.gpus() == (
        Gpu("NVIDIA H200", "9.0", 143771, 143000, "580.65.06"),
        Gpu("NVIDIA GB10", "12.1", 0, 0, "580.1"),
    )
    assert info.machine()["gpus"]["0"] == (
        "NVIDIA H200, compute capability 9.0, 143000 of 143771 MiB free, driver 580.65.06"
    )


def test_a_driver_that_does_not_answer_lists_no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert probe.gpus() == ()


@pytest.mark.parametrize("method", NEWER)
@pytest.mark.parametrize("there", [True, False])
def test_a_newer_method_is_refused_by_what_is_installed(
    there: bool, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    version = "1.3.0" if there else "1.2.1"
    classes = "class NGramDecodingConfig: ...\n" + (f"class {NEWER[method]}: ...\n" if there else "")
    files = {"__init__.py": f"__version__ = '{version}'\nclass LLM: ...\n", "llmapi/__init__.py": classes}
    package(tmp_path, files, monkeypatch)
    assert main(["--method", method, "--dry-run"]) == 2
    found = "has" if there else "has no"
    told = capsys.readouterr().err
    assert f"--method {method}: tensorrt-llm {version} is installed and {found} {NEWER[method]}" in told
    assert ("from 1.3 on" in told, "does not use" in told) == (not there, there)


def test_a_newer_method_is_refused_where_nothing_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--method", "dflash", "--backend", "embedded"]) == 2
    told = capsys.readouterr().err
    assert "--method dflash: TensorRT-LLM has DFlashDecodingConfig from 1.3 on, and this release is written" in told
