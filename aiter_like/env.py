# SPDX-License-Identifier: MIT
"""The environment variables: one typed registry, parsed in one place, printed by `aiter-like doctor`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _paths(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(os.pathsep) if part)


def _switch(text: str) -> bool:
    if text not in ("", "0", "1"):
        raise ValueError("expected 0 or 1")
    return text == "1"


def _jobs(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError("expected a count, 0 = one per core")
    return value


@dataclass(frozen=True)
class Variable:
    """One environment variable: name, parser, default, meaning, and when it is read."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    help: str
    read: str


_REGISTRY = (
    Variable("AITER_LIKE", _switch, False, "0 or 1: whether vLLM, SGLang and transformers are served",
             "when an engine loads its plugins; for transformers, when the interpreter starts"),
    Variable("AITER_LIKE_DISABLE", _names, (), "comma list of operators that engines keep for themselves, and that "
             "only the torch reference serves here",
             "when an operator first sees a shape"),
    Variable("AITER_LIKE_BACKENDS", _names, (), "comma list: order of backends that replaces each operator's own",
             "when an operator first sees a shape"),
    Variable("AITER_LIKE_CACHE_DIR", str, "", "where built modules live (default: $XDG_CACHE_HOME/aiter_like or "
             "~/.cache/aiter_like)", "at each build or load"),
    Variable("AITER_LIKE_PREBUILT_DIR", str, "", "read-only directory of `aiter-like build --output`, searched first",
             "at each build or load"),
    Variable("AITER_LIKE_TOOLCHAIN", str, "", "forces hipcc, clang or nvcc (a name, or a path to one)",
             "at each build"),
    Variable("AITER_LIKE_ARCH", str, "", "target architecture instead of the detected one, e.g. gfx942",
             "when a device is first used"),
    Variable("AITER_LIKE_TUNED", _paths, (), "tuned-table files or directories, highest first, separated by "
             f"'{os.pathsep}'", "when an operator first sees a shape"),
    Variable("AITER_LIKE_RECORD", str, "", "directory into which the shapes of tuned operators are recorded",
             "when an operator first sees a shape"),
    Variable("AITER_LIKE_LOG", str, "", "log level of the aiter_like logger: debug, info, warning, error",
             "when the package first logs"),
    Variable("AITER_LIKE_JOBS", _jobs, 0, "parallel build jobs, 0 = one per core", "at each build"),
    Variable("AITER_LIKE_SIM", str, "", "simulator settings, comma list: check, check=NAME (several: NAME+NAME; all, "
             "with global_race: all), threads=N, fuzz=SEED, devices=N, limit=N, dry, defer, gpu (torch's \"cuda\" is "
             "the simulated MI300X); any value also selects the simulator for CPU tensors where a GPU is present",
             "when the simulator is first used; gpu: when torch is imported"),
)

VARIABLES: dict[str, Variable] = {variable.name: variable for variable in _REGISTRY}


def get(name: str) -> Any:
    """Value of the variable `name`, parsed; its default where it is unset.

    Raises:
        KeyError: `name` is not in the registry.
        ValueError: the text does not parse; the message names variable, text and what is accepted.
    """
    variable = VARIABLES[name]
    text = os.environ.get(name)
    if text is None:
        return variable.default
    try:
        return variable.parse(text)
    except ValueError as error:
        raise ValueError(f"{name}={text!r}: {error} ({variable.help})") from None


def unknown() -> list[str]:
    """Names in the environment that look like ours and are not in the registry."""
    return sorted(name for name in os.environ if name.startswith("AITER_LIKE") and name not in VARIABLES)
