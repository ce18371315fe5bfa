"""How a mutant gets into a process: as the code of functions that are there, or as the module that is imported."""

from __future__ import annotations

import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from scripts.mutation.mutants import Mutant


def patch(mutant: Mutant) -> None:
    """Give functions of the module the code that they have in the mutant, which may be that of the module as it is."""
    importlib.import_module(mutant.module)
    before, after = dict(_functions(mutant.original)), dict(_functions(mutant.text))
    changed = {code: after[name] for name, code in before.items() if after[name] != code}
    functions = [thing for thing in gc.get_objects() if type(thing) is FunctionType and thing.__code__ in changed]
    for function in functions:
        function.__code__ = changed[function.__code__]
    if changed and not functions:
        raise RuntimeError(
            f"{mutant.module} has no function of {sorted(name for name in before)} that could be changed"
        )


def _functions(text: str) -> Iterator[tuple[tuple[str, ...], CodeType]]:
    """The code of functions and methods, by their names; what is defined inside them belongs to them."""
    names: dict[tuple[str, ...], int] = {}

    def within(code: CodeType, around: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], CodeType]]:
        for inner in (value for value in code.co_consts if isinstance(value, CodeType)):
            name = (*around, inner.co_name)
            names[name] = names.get(name, 0) + 1
            name = (*name, str(names[name]))  # a property and its setter have one name
            if inner.co_flags & inspect.CO_OPTIMIZED:  # the body of a class is not
                yield name, inner
            else:
                yield from within(inner, name)

    return within(compile(text, "mutant", "exec"), ())


class Planter(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the mutant where its module is asked for."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._mutant.module:
            return None
        return importlib.util.spec_from_file_location(fullname, self._mutant.file, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._mutant.text, self._mutant.file, "exec"), module.__dict__)
