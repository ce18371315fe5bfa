"""The shape of the code: imports point one way, heavy packages stay where they belong, modules stay small."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("trtspec", "builders", "plugins")
GENERATED = "trtspec.v1"

CORE = frozenset(
    {
        *("trtspec", "types", "errors", "cache", "capabilities", "config"),
        *("cpu", "draft_limits", "followed", "generation", "manifest", "narrowing", "openmp", "ranks", "speculative"),
        *("declared", "settings", "stop_signals", "trailers"),
    }
)
"""Modules of `trtspec` below everything else."""

MAY_IMPORT = {
    "core": {"core"},
    "decoding": {"core", "decoding"},
    "plugins": {"core", "decoding", "plugins"},
    "executors": {"core", "decoding", "plugins", "executors"},
    "service": {"core", "decoding", "plugins", "executors", "service", "v1"},
    "client": {"core", "decoding", "client", "v1"},
    "cli": {"core", "decoding", "plugins", "executors", "service", "client", "cli", "v1"},
    "builders": {"core", "decoding", "plugins", "executors", "builders"},
}
"""By layer, the layers it may import. Only `cli` imports the service, and nobody imports the builders."""

WHERE_ALLOWED = {
    "tensorrt_llm": ("trtspec.executors.tensorrt_llm", "builders"),
    "tensorrt": ("trtspec.executors.tensorrt_llm", "builders", "plugins"),
    "torch": ("trtspec.decoding", "trtspec.executors", "plugins", "builders"),
    "grpc": ("trtspec.service", "trtspec.client", "trtspec.cli"),
}
"""Packages that only some of the code may name, even inside a function: the service process stays free of torch,
decoding of gRPC, and one engine can be replaced by another."""

MOST_MODULE_LINES = 300
MOST_FUNCTION_LINES = 60


@dataclass(frozen=True, slots=True)
class Module:
    name: str
    is_package: bool
    text: str

    @property
    def layer(self) -> str:
        return layer_of(self.name)

    def imports(self) -> Iterator[str]:
        """Full names of what is imported anywhere in the module; `from a import b` gives `a.b`."""
        for node in ast.walk(ast.parse(self.text)):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = self._base(node)
                yield from (f"{base}.{alias.name}" for alias in node.names)

    def _base(self, node: ast.ImportFrom) -> str:
        if node.level == 0:
            return node.module or ""
        parts = self.name.split(".")
        above = parts[: len(parts) - node.level + self.is_package]
        return ".".join([*above, node.module] if node.module else above)


def layer_of(name: str) -> str:
    """The layer of a module of ours, or "" for others."""
    first, _, rest = name.partition(".")
    if first in ("builders", "plugins"):
        return first
    if first != "trtspec":
        return ""
    second = rest.split(".")[0]
    if second == "__main__":
        return "cli"
    return second if second in MAY_IMPORT or second == "v1" else "core"


def modules(root: Path) -> list[Module]:
    found = []
    for path in sorted(file for package in PACKAGES for file in (root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        if not within(name, GENERATED):
            found.append(Module(name, is_package, path.read_text()))
    return found


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def misplaced_core(module: Module) -> Iterator[str]:
    """A new module beside the core ones must be given a layer here, so that the rule stays complete."""
    second = module.name.split(".")[1] if "." in module.name else module.name
    if module.layer == "core" and second not in CORE:
        yield f"{module.name} belongs to no layer; add it to CORE or to MAY_IMPORT"


def wrong_way_imports(module: Module) -> Iterator[str]:
    for target in module.imports():
        layer = layer_of(target)
        if layer and layer not in MAY_IMPORT[module.layer]:
            yield f"{module.name} ({module.layer}) imports {target} ({layer})"


def misplaced_packages(module: Module) -> Iterator[str]:
    for target in module.imports():
        allowed = WHERE_ALLOWED.get(target.split(".")[0])
        if allowed is not None and not any(within(module.name, place) for place in allowed):
            yield f"{module.name} imports {target}, which only {', '.join(allowed)} may"


def too_long(module: Module) -> Iterator[str]:
    lines = len(module.text.splitlines())
    if lines > MOST_MODULE_LINES:
        yield f"{module.name} has {lines} lines; at most {MOST_MODULE_LINES}: there are two ideas in it"
    for node in ast.walk(ast.parse(module.text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            length = node.end_lineno - node.lineno + 1
            if length > MOST_FUNCTION_LINES:
                yield f"{module.name}.{node.name} has {length} lines; at most {MOST_FUNCTION_LINES}"


def undocumented(module: Module) -> Iterator[str]:
    if not ast.get_docstring(ast.parse(module.text)):
        yield f"{module.name} has no docstring: what does it own, and what does it not know?"


RULES = [misplaced_core, wrong_way_imports, misplaced_packages, too_long, undocumented]


@pytest.mark.parametrize("rule", RULES)
def test_our_code_keeps_the_rule(rule: Callable[[Module], Iterator[str]]) -> None:
    found = modules(ROOT)
    assert {"trtspec.types", "builders", "plugins"} <= {module.name for module in found}
    assert [line for module in found for line in rule(module)] == []


PLANTED = {
    "trtspec/decoding/a.py": '"""A."""\nfrom trtspec.executors import base\n',
    "trtspec/executors/b.py": '"""B."""\ndef late():\n    from ..service import server\n',
    "trtspec/service/c.py": '"""C."""\ndef late():\n    import torch.nn\n',
    "trtspec/client.py": '"""D."""\nimport trtspec.service.server\n',
    "trtspec/executors/embedded/e.py": '"""E."""\nimport tensorrt_llm\n',
    "trtspec/cli/f.py": '"""F."""\nimport builders.build\n',
    "builders/g.py": '"""G."""\nfrom trtspec.cli import main\n',
    "builders/h.py": '"""H."""\nfrom trtspec import client\n',
    "trtspec/types.py": '"""I."""\nfrom . import decoding\n',
    "trtspec/helpers.py": '"""J."""\n',
    "plugins/k.py": "x = 1\n",
    "plugins/l.py": '"""L."""\n' + "x = 1\n" * MOST_MODULE_LINES,
    "plugins/m.py": '"""M."""\ndef f():\n' + "    x = 1\n" * MOST_FUNCTION_LINES,
    "trtspec/executors/tensorrt_llm/fine.py": '"""N."""\nimport tensorrt_llm\nfrom trtspec.decoding import stats\n',
    "trtspec/v1/generated_pb2.py": "import builders\n",
}

EXPECTED = [
    "trtspec.helpers belongs to no layer",
    "trtspec.client (client) imports trtspec.service.server (service)",
    "trtspec.decoding.a (decoding) imports trtspec.executors.base (executors)",
    "trtspec.executors.b (executors) imports trtspec.service.server (service)",
    "trtspec.types (core) imports trtspec.decoding (decoding)",
    "trtspec.cli.f (cli) imports builders.build (builders)",
    "builders.g (builders) imports trtspec.cli.main (cli)",
    "builders.h (builders) imports trtspec.client (client)",
    "trtspec.executors.embedded.e imports tensorrt_llm, which only trtspec.executors.tensorrt_llm, builders may",
    "trtspec.service.c imports torch.nn, which only trtspec.decoding, trtspec.executors, plugins, builders may",
    "plugins.l has 301 lines",
    "plugins.m.f has 61 lines",
    "plugins.k has no docstring",
]


def test_every_planted_violation_is_found(tmp_path: Path) -> None:
    for name, text in PLANTED.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = modules(tmp_path)
    complaints = [line.split(";")[0].split(":")[0] for rule in RULES for module in found for line in rule(module)]
    assert sorted(complaints) == sorted(EXPECTED)
