# SPDX-License-Identifier: MIT
"""Ours, else the original: the one way in which an engine's function is taken over, counted, and given back.

Every adapter beside this file uses `take` for functions and `replace_attribute` to put them in place.
"""

import functools
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from aiter_like import env
from aiter_like.dispatch import OPS
from aiter_like.errors import UnsupportedError, did_you_mean
from aiter_like.integrations import reach

_log = logging.getLogger("aiter_like")
_is_tracing = torch.compiler.is_dynamo_compiling

# Our checks raise these before anything is written: the call is not for us, the original says whether it is wrong.
_REFUSALS = (UnsupportedError, TypeError, ValueError)
_REASONS_PER_NAME = 8  # shapes differ call by call; later reasons are counted only
_ABSENT = object()

LEFT = object()
"""A function of ours returns this in place of a result for a call that the engine's own serves as well or better."""

# The names under which adapters take what has no name in an index: their `take("engine.name", …)` and rows of layers.
NAMES = frozenset({
    "attention", "diffusion_attention", "experts", "gated_mlp", "kv_cache", "linear", "mla_cache", "mla_decode",
    "mla_prefill", "paged_attention", "rms_norm", "rotary", "sampler",
    "RMSNorm", "GemmaRMSNorm", "SiluAndMul", "SiluAndMulWithClamp", "GeluAndMul", "RotaryEmbedding",
    "Llama3RotaryEmbedding", "LinearScalingRotaryEmbedding", "NTKScalingRotaryEmbedding",
    "DynamicNTKScalingRotaryEmbedding", "DynamicNTKAlphaRotaryEmbedding", "YaRNScalingRotaryEmbedding"})


@dataclass
class Counts:
    """Calls of a taken name: served here, refused and so the original's, and left to the original as its choice."""

    served: int = 0
    fell_back: int = 0
    left: int = 0


_counts: dict[str, Counts] = {}
_denied: dict[str, None] = {}
_told: set[tuple[str, bytes]] = set()
_replaced: list[tuple[str, Any, str, Any, Any]] = []  # owner, object, attribute, what was in its __dict__, ours


def take(name: str, ours: Callable, original: Callable | None, op: str | None = None, *,
         announce: bool = True) -> Callable:
    """`ours`, and `original` for the calls that ours refuses; with the signature, name and docstring of the original.

    Args:
        name: what logs, counters and AITER_LIKE_DISABLE call it, such as "aiter.rms_norm".
        ours: raises UnsupportedError, TypeError or ValueError, before it writes anything, for what it does not take;
            returns LEFT for what it could take and the original does as well.
        original: takes the same arguments; None where there is none, then a refusal is raised.
        op: another name for AITER_LIKE_DISABLE, beside the operators that the code of `ours` names.
        announce: log that it is taken; False where the caller does so for many names at once.

    Returns:
        The function to put in place; `original` itself where AITER_LIKE_DISABLE names it.
    """
    _tell_unknown()
    if original is not None and _is_denied({name, name.rpartition(".")[2], op, getattr(ours, "__name__", None)}, ours):
        if name not in _denied:
            _denied[name] = None
            _log.info("%s: left to the engine (AITER_LIKE_DISABLE)", name)
        return original
    if name not in _counts:
        _counts[name] = Counts()
        if announce:
            _log.info("%s: taken", name)
    counts = _counts[name]

    @functools.wraps(ours if original is None else original)
    def taken(*args: Any, **kwargs: Any) -> Any:
        try:
            result = ours(*args, **kwargs)
        except _REFUSALS as error:
            if not _is_tracing():  # neither a count nor a message belongs into a compiled graph
                counts.fell_back += 1
                _log_fallback(name, error, original is not None)
            if original is None:
                raise
        else:
            if not _is_tracing():
                if result is LEFT:
                    counts.left += 1
                else:
                    counts.served += 1
            if result is not LEFT:
                return result
        return original(*args, **kwargs)

    return taken


def counters() -> dict[str, Counts]:
    """Taken name → its calls so far, those inside compiled graphs left out."""
    return {name: replace(counts) for name, counts in _counts.items()}


def reset_counters() -> None:
    """Count from zero."""
    for counts in _counts.values():
        counts.served = counts.fell_back = counts.left = 0


def denied() -> tuple[str, ...]:
    """Names that were left to the engine by AITER_LIKE_DISABLE."""
    return tuple(_denied)


def forget() -> None:
    """Forget counters and what was logged; functions that were taken go on, uncounted."""
    for past in (_counts, _denied, _told):
        past.clear()
    _tell_unknown.cache_clear()


def replace_attribute(module: Any, attr: str, value: Any, owner: str = "") -> None:
    """Sets an attribute of a module or class, and remembers for `restore_attributes` what was there.

    Args:
        owner: the adapter on whose behalf, so that it can be undone alone.
    """
    _replaced.append((owner, module, attr, vars(module).get(attr, _ABSENT), value))
    setattr(module, attr, value)


def take_attribute(holder: Any, attr: str, name: str, ours: Callable[..., Any], op: str, owner: str) -> None:
    """`take` of what an attribute of a class is, in its place unless it is switched off; a static method stays one."""
    stock = getattr(holder, attr)
    served = take(name, ours, stock, op)
    if served is not stock:
        is_static = isinstance(inspect.getattr_static(holder, attr), staticmethod)
        replace_attribute(holder, attr, staticmethod(served) if is_static else served, owner)


def replaced() -> tuple[str, ...]:
    """The places where `replace_attribute` has put something, as "module.attribute"."""
    return tuple(f"{getattr(module, '__qualname__', getattr(module, '__name__', module))}.{attr}"
                 for _, module, attr, _, _ in _replaced)


def restore_attributes(owner: str | None = None) -> None:
    """Undoes `replace_attribute`, the last first. What somebody has replaced since is left as it is.

    Args:
        owner: only what this adapter replaced; None: everything.
    """
    for entry in reversed(_replaced[:]):
        whose, module, attr, before, value = entry
        if owner not in (None, whose):
            continue
        _replaced.remove(entry)
        if vars(module).get(attr, _ABSENT) is not value:
            _log.warning("%s of %r was replaced again by somebody else, and stays", attr, module)
        elif before is _ABSENT:
            delattr(module, attr)
        else:
            setattr(module, attr, before)


def _is_denied(names: set[str | None], ours: Callable) -> bool:
    """Whether AITER_LIKE_DISABLE names the function, or an operator behind it, which only torch would serve then."""
    listed = env.get("AITER_LIKE_DISABLE")
    return bool(listed) and not (names | {op.name for op in reach.operators(ours)}).isdisjoint(listed)


def unknown_names() -> list[str]:
    """A line about each name in AITER_LIKE_DISABLE that is none: of no operator, function, layer or AITER's."""
    lines = []
    for name in env.get("AITER_LIKE_DISABLE"):
        if name in OPS or name.rpartition(".")[2] in NAMES:
            continue
        from aiter_like.integrations.aiter import names as aiter_names
        from aiter_like.ops.index import PUBLIC

        known = {*OPS.names(), *NAMES, *PUBLIC, *(row.name for row in aiter_names.table())}
        if name.rpartition(".")[2] not in known:
            lines.append(f"AITER_LIKE_DISABLE: {name!r} is no operator, nor a function that engines have taken from "
                         f"them{did_you_mean(name, known)}")
    return lines


@functools.cache
def _tell_unknown() -> None:
    """Once per process, when something is first taken."""
    for line in unknown_names():
        _log.warning("%s", line)


def _log_fallback(name: str, error: Exception, falls_back: bool) -> None:
    """One line per reason; reasons that differ in their numbers only, as in shapes, are one."""
    text = str(error)
    key = (name, text.encode(errors="replace").translate(None, b"0123456789"))
    if falls_back and key not in _told and sum(other == name for other, _ in _told) < _REASONS_PER_NAME:
        _told.add(key)
        reason = "; ".join(line.strip() for line in text.splitlines())
        _log.warning("%s falls back to the engine's own: %s", name, reason)
