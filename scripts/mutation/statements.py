"""The operator that cosmic-ray lacks: a statement that is there for what it does, not for its value, is left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import parso
from cosmic_ray.operators.operator import Example, Operator

_Span = tuple[tuple[int, int], tuple[int, int]]


class RemoveStatement(Operator):  # type: ignore[misc]  # its base is untyped
    """Calls, `raise`, and assignments to attributes and items; without another assignment a name would be missed."""

    def mutation_positions(self, node: Any) -> Iterator[_Span]:
        if _acts(node):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        return parso.parse(f"{node.get_first_leaf().prefix}pass")

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (
            Example("x.append(1)\n", "pass\n"),
            Example("if x: raise y\n", "if x: pass\n"),
            Example("x.y = 1\n", "pass\n"),
            Example("x += 1\n", "pass\n"),
        )


def _acts(node: Any) -> bool:
    if node.parent is None or node.parent.type != "simple_stmt":
        return False
    if node.type == "expr_stmt":
        target, sign = node.children[0], node.children[1]
        return bool(sign.type == "operator" and (sign.value != "=" or target.type == "atom_expr"))
    is_call = node.type == "atom_expr" and node.children[-1].get_first_leaf().value == "("
    return bool(is_call or node.type == "raise_stmt")
