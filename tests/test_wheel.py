"""The wheel works where there is nothing else: an empty environment, outside the checkout, without PyTorch."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import trtspec
from tests.models import tiny_llama

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parent.parent
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "trtspec", "builders", "plugins")


@dataclass(frozen=True, slots=True)
class Installation:
    """An environment that holds the wheel and its core dependencies."""

    bin: Path
    cwd: Path
    """A folder with nothing in it."""
    source: Path
    """What the wheel was built from."""
    wheel: Path

    def run(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        # PYTHONPATH could bring the checkout back in.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return subprocess.run(
            [str(self.bin / command), *arguments],
            cwd=self.cwd,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def ask(self, code: str) -> object:
        """The JSON that a piece of Python prints."""
        done = self.run("python", "-c", code)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def build_wheel(source: Path, directory: Path) -> Path:
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(directory), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = directory.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    directory = tmp_path_factory.mktemp("wheel")
    source = directory / "source"
    wheel = build_wheel(source, directory)
    environment = directory / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", str(wheel)]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    cwd = directory / "elsewhere"
    cwd.mkdir()
    return Installation(environment / "bin", cwd, source, wheel)


def test_builders_and_plugins_come_from_the_wheel(installation: Installation) -> None:
    site = Path(str(installation.ask("import json, sysconfig; print(json.dumps(sysconfig.get_path('purelib')))")))
    (record,) = site.glob("trtspec-*.dist-info/RECORD")
    recorded = {row[0] for row in csv.reader(record.read_text().splitlines())}
    for package in ("trtspec", "builders", "plugins"):
        file = installation.ask(f"import json, {package}; print(json.dumps({package}.__file__))")
        assert file == str(site / package / "__init__.py")
        assert f"{package}/__init__.py" in recorded


def test_the_wheel_holds_every_module_and_data_file_and_nothing_else(installation: Installation) -> None:
    names = {name for name in zipfile.ZipFile(installation.wheel).namelist() if ".dist-info/" not in name}
    expected = {
        str(path.relative_to(installation.source))
        for package in ("trtspec", "builders", "plugins")
        for path in (installation.source / package).rglob("*")
        if path.suffix in (".py", ".pyi", ".csv", ".html", ".typed") or path.parts[-3] == "demo"
    }
    data = {"trtspec/capabilities.csv", "trtspec/py.typed", "trtspec/service/telemetry/page.html"}
    data |= {"builders/demo/eagle3/drafter.safetensors"}
    assert {"trtspec/v1/inference_pb2.pyi", *data} <= expected
    assert names == expected


def test_the_environment_has_no_torch(installation: Installation) -> None:
    assert installation.ask("import json, importlib.util as u; print(json.dumps(u.find_spec('torch') is None))") is True


def test_the_builder_explains_itself(installation: Installation) -> None:
    done = installation.run("python", "-m", "builders.build", "--help")
    assert done.returncode == 0, done.stderr
    assert "--method" in done.stdout and "ngram" in done.stdout


def test_info_tells_the_version_and_what_is_missing(installation: Installation) -> None:
    done = installation.run("trtspec", "info")
    assert done.returncode == 0, done.stderr
    assert trtspec.__version__ in done.stdout
    assert "trtspec[embedded]" in done.stdout


def test_python_m_trtspec_is_the_same_command(installation: Installation) -> None:
    done = installation.run("trtspec", "--help")
    assert done.returncode == 0, done.stderr
    assert installation.run("python", "-m", "trtspec", "--help").stdout == done.stdout


def test_a_build_without_torch_says_what_to_install(installation: Installation, tmp_path: Path) -> None:
    target = tiny_llama(tmp_path / "model")
    output = tmp_path / "engine"
    done = installation.run(
        "python", "-m", "builders.build", "--method", "ngram", "--target", str(target), "--output", str(output)
    )
    assert done.returncode > 0
    assert "trtspec[embedded]" in done.stderr
    assert "Traceback" not in done.stderr
    assert not output.exists()
