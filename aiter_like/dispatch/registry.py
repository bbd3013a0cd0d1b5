# SPDX-License-Identifier: MIT
"""OPS: every operator by name. Modules of operators are imported when they are asked for, all of them by iteration.

The package's root tells which module declares which operator (ops/index.py); dispatch itself knows no family.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any


class Registry(Mapping):
    """Operator name → Declaration. Iteration and `in` see every operator of `index`, imported or not.

    Attributes:
        declared: the operators whose modules have been imported, and those that users declared.
        index: operator name → module that declares it.
    """

    def __init__(self) -> None:
        self.declared: dict[str, Any] = {}
        self.index: Mapping[str, str] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self.declared and name in self.index:
            importlib.import_module(self.index[name])
        return self.declared[name]

    def __iter__(self) -> Iterator[str]:
        for name in self.index:
            if name not in self.declared:
                importlib.import_module(self.index[name])
        return iter(list(self.declared))

    def names(self) -> list[str]:
        """The names of all operators; imports none."""
        return [*dict.fromkeys((*self.index, *self.declared))]

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self.declared or name in self.index


OPS = Registry()
