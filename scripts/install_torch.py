"""Brings PyTorch into the environment that runs this file; knows pip, and nothing of trtspec.

The first that applies:
1. an installed version in the supported range stays;
2. TRTSPEC_TORCH_INDEX, where set, is the index to install from;
3. the index of CPU builds, if it answers within seconds and the install from there succeeds;
4. pip's own index, after printing how much will be downloaded, because its Linux build brings the CUDA libraries.

Standard library only: it runs before anything is installed. `--check` installs nothing and tells by its exit
status whether a supported version is there.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

FLOOR, CEILING = (2, 6), (2, 14)
"""Supported versions: from, and up to but without."""
SUPPORTED = "torch>=2.6,<2.14"
PINNED = "torch==2.13.0"
"""The version that the tests run with."""
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
ANSWER_SECONDS = 5.0
MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Choice:
    """What to install from where."""

    requirement: str
    index: str | None
    """None is the index that pip is configured for."""
    reason: str


def supported(version: str | None) -> bool:
    """Whether an installed version, such as `2.13.0+cpu`, can be used."""
    match = re.match(r"(\d+)\.(\d+)", version or "")
    return match is not None and FLOOR <= (int(match[1]), int(match[2])) < CEILING


def choose(installed: str | None, override: str | None, cpu_index_answers: Callable[[], bool]) -> Choice | None:
    """The rule; None keeps what is installed. Asks the network only where nothing else decides."""
    if supported(installed):
        return None
    if override:
        return Choice(SUPPORTED, override, "TRTSPEC_TORCH_INDEX is set")
    if cpu_index_answers():
        return Choice(PINNED, CPU_INDEX, "the index of CPU builds answers")
    return Choice(PINNED, None, f"{CPU_INDEX} does not answer within {ANSWER_SECONDS:.0f} seconds")


def installed_version() -> str | None:
    """The version this Python would import, without importing it."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def answers(url: str, seconds: float = ANSWER_SECONDS) -> bool:
    """Whether a GET succeeds in time. A thread, because name resolution obeys no timeout."""
    answered = threading.Event()

    def ask() -> None:
        try:
            with urllib.request.urlopen(url, timeout=seconds):
                answered.set()
        except (OSError, ValueError):
            return

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return answered.is_set()


def size_of(url: str) -> int | None:
    """Bytes behind a file: or http(s): address, or None where that cannot be found out."""
    parts = urllib.parse.urlsplit(url)
    try:
        if parts.scheme == "file":
            return Path(urllib.request.url2pathname(parts.path)).stat().st_size
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=ANSWER_SECONDS) as response:
            length = response.headers["Content-Length"]
            return int(length) if length else None
    except (OSError, ValueError):
        return None


def describe_download(sizes: list[int | None]) -> str:
    """The size of a download in words; what is unknown is said to be."""
    known = [size for size in sizes if size is not None]
    if not known:
        return "unknown size"
    total = f"{sum(known) / MEGABYTE:,.0f} MB in {len(sizes)} files"
    return total if len(known) == len(sizes) else f"at least {total} ({len(sizes) - len(known)} of unknown size)"


def urls_to_fetch(requirement: str) -> list[str]:
    """What pip would install for a requirement; empty where this pip cannot tell."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--report", "-", requirement]
    done = subprocess.run(pip, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    if done.returncode != 0:
        return []
    return [item["download_info"]["url"] for item in json.loads(done.stdout)["install"]]


def install(choice: Choice) -> int:
    """Install with pip and return its exit status."""
    source = choice.index or "pip's default index"
    print(f"bootstrap: PyTorch ({choice.requirement}) from {source}: {choice.reason}", flush=True)
    if choice.index is None:
        size = describe_download([size_of(url) for url in urls_to_fetch(choice.requirement)])
        print(f"bootstrap: this will download {size}; TRTSPEC_TORCH_INDEX names another index", flush=True)
    where = [] if choice.index is None else ["--index-url", choice.index]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", *where, choice.requirement]
    return subprocess.run(pip, check=False).returncode


def install_or_fall_back(choice: Choice, install: Callable[[Choice], int] = install) -> int:
    """Install; where our own choice of index fails, try pip's. The user's choice is not replaced by another."""
    status = install(choice)
    if status == 0 or choice.index != CPU_INDEX:
        return status
    return install(Choice(choice.requirement, None, f"the install from {CPU_INDEX} failed"))


def main(arguments: list[str]) -> int:
    installed = installed_version()
    if arguments == ["--check"]:
        return 0 if supported(installed) else 1
    choice = choose(installed, os.environ.get("TRTSPEC_TORCH_INDEX"), lambda: answers(f"{CPU_INDEX}/"))
    if choice is None:
        print(f"bootstrap: PyTorch {installed} is installed already")
        return 0
    return install_or_fall_back(choice)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
