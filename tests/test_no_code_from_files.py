"""Nothing that is read from a file or from the network can run code: no pickle, no eval, no code of a model's own."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.test_layering import ROOT, Module, modules

RUNNING = frozenset(
    {
        *("pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "jsonpickle", "yaml"),
        *("torch.load", "torch.package", "torch.hub", "numpy.load", "pandas.read_pickle", "runpy", "imp"),
        *("multiprocessing", "xmlrpc", "torch.jit.load", "torch.export.load"),
    }
)
"""Modules and functions that make objects, and so run code, of bytes."""
BUILTINS = frozenset({"eval", "exec", "compile", "__import__"})
SWITCHES = {"trust_remote_code": True, "allow_pickle": True, "weights_only": False}
"""Keywords that let other libraries do so."""

ALLOWED = {
    "trtspec.executors.messages: pickle": "messages between our own processes on a socket pair that nobody else holds",
}


def found(module: Module) -> Iterator[str]:
    tree = ast.parse(module.text)
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
                yield from _running(alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield from _running(f"{node.module}.{alias.name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, _, rest = ast.unparse(node).partition(".")
            yield from _running(f"{names.get(first, first)}.{rest}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BUILTINS:
            yield node.func.id
        elif isinstance(node, ast.keyword) and node.arg in SWITCHES:
            plain = isinstance(node.value, ast.Constant) and node.value.value is not SWITCHES[node.arg]
            yield from () if plain else (node.arg,)


def _running(name: str) -> Iterator[str]:
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        if (prefix := ".".join(parts[:length])) in RUNNING:
            yield prefix


def test_only_named_places_make_objects_of_bytes() -> None:
    places = {f"{module.name}: {name}" for module in modules(ROOT) for name in found(module)}
    assert places == set(ALLOWED)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import pickle", "pickle"),
        ("import pickle as harmless", "pickle"),
        ("from pickle import loads", "pickle"),
        ("from torch import load", "torch.load"),
        ("import torch as t\nt.load(f)", "torch.load"),
        ("import numpy as np\nnp.load(f)", "numpy.load"),
        ("def late():\n    import yaml", "yaml"),
        ("eval(text)", "eval"),
        ("__import__(name)", "__import__"),
        ("load(f, weights_only=False)", "weights_only"),
        ("load(f, trust_remote_code=flag)", "trust_remote_code"),
    ],
)
def test_each_of_them_is_found(code: str, name: str) -> None:
    assert name in set(found(Module("trtspec.x", False, code)))


@pytest.mark.parametrize("code", ["model.eval()", "re.compile(x)", "json.load(f)", "load(f, allow_pickle=False)"])
def test_what_is_harmless_is_not(code: str) -> None:
    assert list(found(Module("trtspec.x", False, code))) == []
