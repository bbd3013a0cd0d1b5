# SPDX-License-Identifier: MIT
"""The items that a device is asked for: questions, costs, cases, self-checks of operators; each by its kind and
name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FACTS, QUESTION, COST, CASE, VERIFY = "facts", "question", "cost", "case", "verify"
KINDS = (QUESTION, COST, CASE, VERIFY)
"""Those that a user can choose among."""


@dataclass(frozen=True)
class Item:
    """One request to the worker.

    Attributes:
        kind: FACTS or one of KINDS.
        name: of its kind's list; that of FACTS is "device".
    """

    kind: str
    name: str

    @property
    def seconds(self) -> float:
        """How long it may take: a self-check compiles first."""
        return 1800.0 if self.kind == VERIFY else 300.0


def items(only: Sequence[str], kinds: Sequence[str]) -> list[Item]:
    """All of these kinds, or those with one of the texts in their names; what decides most comes first."""
    import aiter_like  # noqa: F401  (declares the operators)
    from aiter_like.cli.sim.hardware.costs import costs
    from aiter_like.dispatch import OPS
    from aiter_like.sim.validation.case import Flag
    from aiter_like.sim.validation.questions import questions
    from aiter_like.sim.validation.unpublished import all_cases

    names = {QUESTION: [one.name for one in questions()], COST: list(costs()),
             CASE: [one.name for one in all_cases() if not isinstance(one, Flag)],  # flags are costs
             VERIFY: [op.name for op in OPS.values()]}
    found = [Item(kind, name) for kind, own in names.items() if kind in kinds for name in own
             if not only or any(text in name for text in only)]
    if not found:
        raise ValueError(f"--only: nothing has {' or '.join(only)} in its name")
    return found
