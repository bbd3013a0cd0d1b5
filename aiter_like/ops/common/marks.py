# SPDX-License-Identifier: MIT
"""The mark of `shuffle_weight`: attributes of a tensor, which nn.Parameter, .to and slices lose. Public functions and
adapters read it here and pass on what it says; nothing below them asks a tensor, so that a call tells all of itself.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

Layout = tuple[int, int]

LAYOUT: Layout = (16, 16)
"""That of `shuffle_weight` unless another is asked for, and of a mark that has none, as AITER's."""


def mark(weights: Tensor, layout: Layout = LAYOUT) -> Tensor:
    """Marks weights as shuffled; returns them."""
    weights.is_shuffled, weights.shuffle_layout = True, layout
    return weights


def marked(weights: Any) -> Any:
    """A tensor in the order of `shuffle_weight`, marked or not, with its mark: where it has none, another tensor of the
    same memory, so that the caller's stays as it is."""
    if not isinstance(weights, Tensor) or layout_of(weights):
        return weights
    return mark(weights.detach(), layout_named(weights) or LAYOUT)


def layout_of(weights: Any) -> Layout | None:
    """The layout in which weights are shuffled by their mark, or None: they have none."""
    return layout_named(weights) or LAYOUT if getattr(weights, "is_shuffled", False) else None


def layouts(w1: Any, w2: Any) -> tuple[Layout | None, Layout | None]:
    """That of each of a layer's matrices."""
    return layout_of(w1), layout_of(w2)


def layout_named(weights: Any) -> Layout | None:
    """The layout that a mark names, or None: there is no mark, or it names none."""
    return getattr(weights, "shuffle_layout", None)


def is_shuffled(op: str, name: str, weights: Any) -> bool:
    """Whether weights are marked, for kernels that read the layout (16, 16).

    Raises:
        ValueError: they are, in another layout.
    """
    layout = layout_of(weights)
    if layout not in (None, LAYOUT):
        raise ValueError(f"{op}: {name} must be shuffled by layout {LAYOUT}, got {layout}")
    return layout is not None


def refuse(op: str, name: str, weights: Any, unless: str = "") -> None:
    """A matrix is not marked; `unless` says what takes one that is."""
    if layout_of(weights):
        raise ValueError(f"{op}: {name} must not be shuffled{unless}, got a result of shuffle_weight")
