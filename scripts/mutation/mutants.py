"""Mutants of a module: what one small change makes of its text, and which of them are tried.

A *site* is a piece of code that operators change: each gives one mutant, however many operators know it, so that signs,
which have eleven replacements, do not outweigh everything else. Sites are ranked by a hash of the seed and of the code
around them. So the sample depends on the text alone, and an edit in one function leaves those in others as they were.
Annotations and protocols are no sites, for they only tell types, and neither are the keywords of `ASSERTIONS`.
"""

from __future__ import annotations

import ast
import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.operators.provider import OperatorProvider

from scripts.mutation.statements import RemoveStatement

ASSERTIONS = ("strict", "frozen", "slots")
"""What they say of `zip` and of dataclasses holds all the same where it is not asked for: tests of code that is right
cannot tell."""

_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_Span = tuple[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True)
class Source:
    """A module's file."""

    path: Path
    root: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def essence(self) -> str:
        return _essence(self.text)

    @cached_property
    def scopes(self) -> list[_Scope]:
        """Functions and classes, outer ones first."""
        found = [node for node in ast.walk(ast.parse(self.text)) if isinstance(node, _Scope)]
        return sorted(found, key=lambda node: node.lineno)

    def definition_at(self, line: int) -> str:
        return ".".join(node.name for node in self.scopes if node.lineno <= line <= (node.end_lineno or 0))

    def is_protocol(self, line: int) -> bool:
        """It belongs to a class that is there for its type."""
        classes = (node for node in self.scopes if isinstance(node, ast.ClassDef))
        return any(
            isinstance(base, ast.Name) and base.id == "Protocol"
            for node in classes
            for base in node.bases
            if node.lineno <= line <= (node.end_lineno or 0)
        )

    def at_import(self, line: int) -> bool:
        """Outside the bodies of functions."""
        functions = (node for node in self.scopes if not isinstance(node, ast.ClassDef))
        return not any(node.body[0].lineno <= line <= (node.end_lineno or 0) for node in functions)

    @property
    def name(self) -> str:
        return self.path.relative_to(self.root).as_posix()

    @property
    def module(self) -> str:
        parts = self.path.relative_to(self.root).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed text of a module."""

    file: str
    module: str
    line: int
    definition: str
    """The function or class that the change is in, or ""."""
    before: str
    after: str
    """The lines that differ."""
    text: str
    original: str
    at_import: bool
    """It changes what happens when the module is imported, not only what a function does."""

    @property
    def key(self) -> str:
        """Names the mutant as long as its module's text stays."""
        return hashlib.sha256(f"{self.module}\n{self.text}".encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class _Change:
    operator: Operator
    occurrence: int
    rank: str


def sources(root: Path, package: str) -> list[Source]:
    """The modules of a package that have code."""
    files = sorted((root / package).rglob("*.py"))
    return [source for source in (Source(path, root) for path in files) if _has_code(source.text)]


def sample(source: Source, share: float, least: int, seed: int) -> list[Mutant]:
    """Mutants of a share of the module's sites, and of at least so many as long as there are any; in order of lines."""
    found = sites(source, seed)
    wanted = max(round(share * len(found)), min(least, len(found)))
    mutants: list[Mutant] = []
    for span in sorted(found, key=lambda span: found[span][0].rank):
        if len(mutants) == wanted:
            break
        mutants.extend(_first_valid(source, span, found[span]))
    return sorted(mutants, key=lambda mutant: mutant.line)


def sites(source: Source, seed: int) -> Mapping[_Span, Sequence[_Change]]:
    """By the place that they change, all changes that operators know, lowest rank first."""
    # The star among parameters is no sign, though an operator takes it for one.
    nodes = [node for node in ast_nodes(get_ast(source.text)) if not node.parent or node.parent.type != "parameters"]
    found: dict[_Span, list[_Change]] = {}
    left_out = _asserted(source.text)
    for operator in _operators():
        spans = (span for node in nodes for span in operator.mutation_positions(node))
        seen: dict[tuple[str, str], int] = {}
        for occurrence, (start, end) in enumerate(spans):
            if start in left_out or source.is_protocol(start[0]):
                continue
            place = source.definition_at(start[0]), source.lines[start[0] - 1].strip()
            seen[place] = seen.get(place, 0) + 1
            about = "\n".join([str(seed), source.module, *place, type(operator).__name__, str(seen[place])])
            rank = hashlib.sha256(about.encode()).hexdigest()
            found.setdefault((start, end), []).append(_Change(operator, occurrence, rank))
    return {span: sorted(changes, key=lambda change: change.rank) for span, changes in found.items()}


def _operators() -> list[Operator]:
    """All of cosmic-ray's that need no arguments, and ours."""
    provider = OperatorProvider()
    known = [provider[name] for name in provider]
    return [operator() for operator in known if not operator.arguments()] + [RemoveStatement()]


def _first_valid(source: Source, span: _Span, changes: Sequence[_Change]) -> Iterator[Mutant]:
    """The site's mutant; none where no change is Python, or where only annotations change, which nobody evaluates."""
    for change in changes:
        text = mutate_code(source.text, change.operator, change.occurrence)
        if text is None:
            continue
        try:
            changed = _essence(text)
        except SyntaxError:
            continue
        if changed != source.essence:
            line = span[0][0]
            place = source.definition_at(line)
            yield Mutant(
                source.name,
                source.module,
                line,
                place,
                *_difference(source.text, text),
                text,
                source.text,
                source.at_import(line),
            )
            return


def _difference(before: str, after: str) -> tuple[str, str]:
    """The lines of either text without those that are the same at both ends."""
    old, new = before.splitlines(), after.splitlines()
    first = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    most = min(len(old), len(new)) - first
    last = next((i for i in range(most) if old[-1 - i] != new[-1 - i]), most)
    return _joined(old[first : len(old) - last]), _joined(new[first : len(new) - last])


def _joined(lines: Sequence[str]) -> str:
    return " ".join(line.strip() for line in lines)


class _WithoutAnnotations(ast.NodeTransformer):
    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(node.arg)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        node.annotation = ast.Constant(None)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.returns = None
        return node


def _essence(text: str) -> str:
    """What a text says, apart from its annotations; raises `SyntaxError`, also where Python would warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile(text, "mutant", "exec")
    return ast.dump(_WithoutAnnotations().visit(ast.parse(text)))


def _asserted(text: str) -> set[tuple[int, int]]:
    """Where values of `ASSERTIONS` begin."""
    keywords = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.keyword) and node.arg in ASSERTIONS)
    return {(node.value.lineno, node.value.col_offset) for node in keywords}


def _has_code(text: str) -> bool:
    return any(not isinstance(node, ast.Expr) for node in ast.parse(text).body)
