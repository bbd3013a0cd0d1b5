# SPDX-License-Identifier: MIT
"""AMD's own `aiter` is installed: our operators take its names over, in every module where an engine finds them.

A name is taken where its original has the signature of ours; the original stays behind it for what ours refuses.
Modules that do not import are left out, as the engines leave them out.
"""

from __future__ import annotations

import importlib
import inspect
import logging
from types import ModuleType
from typing import Any

import torch

from aiter_like.errors import UnsupportedError
from aiter_like.integrations import takeover
from aiter_like.integrations.aiter import names as aiter_names
from aiter_like.integrations.aiter import shim
from aiter_like.integrations.aiter.names import Name

logger = logging.getLogger("aiter_like")

_OWNER = "aiter"
_TORCH_OPS = "torch.ops.aiter"


def install() -> None:
    """Replaces the attributes; nothing where `aiter` is the shim, which is ours already.

    Raises:
        ImportError: `aiter` does not import.
        UnsupportedError: it has none of the names: another package of that name.
    """
    aiter = importlib.import_module("aiter")
    if shim.is_shim(aiter):
        return
    holders = {"aiter": aiter, _TORCH_OPS: torch.ops.aiter}
    names = []
    for row in aiter_names.table():
        if row.server is not None and not row.is_kept and _take(row, holders):
            names.append(row.name)
    if not names:
        raise UnsupportedError(f"{aiter.__file__} has none of AITER's names with a signature that is served")
    logger.info("aiter: %d names taken: %s", len(names), ", ".join(sorted(set(names))))


def uninstall() -> None:
    """Puts the originals back."""
    takeover.restore_attributes(_OWNER)


def _take(row: Name, holders: dict[str, Any]) -> bool:
    """Takes a name in each of its modules; whether it did. Modules that share a function share ours."""
    taken: list[tuple[Any, Any]] = []  # original, what takes its place
    for path in row.modules:
        holder = _holder(path, holders)
        original = getattr(holder, row.name, None)
        if original is None or any(original is ours for _, ours in taken):  # two paths to one module
            continue
        reason = _difference(row, original)
        if reason:
            logger.debug("%s.%s stays: %s", path, row.name, reason)
            continue
        ours = next((ours for other, ours in taken if other is original), None)
        if ours is None:
            ours = takeover.take(f"{row.modules[0]}.{row.name}", row.value, original, announce=False)
            taken.append((original, ours))
        if ours is not original:  # else AITER_LIKE_DISABLE names it
            takeover.replace_attribute(holder, row.name, ours, owner=_OWNER)
    return any(ours is not original for original, ours in taken)


def _holder(path: str, holders: dict[str, Any]) -> ModuleType | None:
    if path not in holders:
        try:
            holders[path] = importlib.import_module(path)
        except Exception:
            logger.debug("%s does not import", path, exc_info=True)
            holders[path] = None
    return holders[path]


def _difference(row: Name, original: Any) -> str:
    """Why callers of the original could not call ours; "" where they can."""
    try:
        theirs = _signature(original)
    except (TypeError, ValueError) as error:
        return f"no signature: {error}"
    return aiter_names.difference(row.signature, theirs)


def _signature(original: Any) -> inspect.Signature:
    """Of a function, or of an operator in torch.ops, whose schema states no defaults that Python's spelling has not."""
    if not isinstance(original, torch._ops.OpOverloadPacket):
        return inspect.signature(original)
    arguments = getattr(original, original.overloads()[0])._schema.arguments
    return inspect.Signature([
        inspect.Parameter(argument.name, inspect.Parameter.POSITIONAL_OR_KEYWORD,
                          default=argument.default_value if argument.has_default_value() else inspect.Parameter.empty)
        for argument in arguments])
