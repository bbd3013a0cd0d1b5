# SPDX-License-Identifier: MIT
"""Serves vLLM, SGLang and transformers, by AITER_LIKE=1: their plugin entry points call `install`.

Importing this imports no engine; the adapters beside it are the only files that do, each when its engine is there.
"""

import importlib
import importlib.util
import logging
import sys
import threading
from dataclasses import dataclass
from types import ModuleType

from aiter_like import env, log
from aiter_like.integrations import takeover, versions

logger = logging.getLogger("aiter_like")

# Engine → its adapter here, which has install() and uninstall(). AMD's own aiter comes first: the engines look into it.
_ADAPTERS = {"aiter": "aiter.overlay", "vllm": "vllm", "sglang": "sglang", "sglang.multimodal_gen": "sglang.diffusion",
             "transformers": "transformers"}
_USERS_OF_AITER = ("vllm", "sglang")

_lock = threading.RLock()
_installed: dict[str, ModuleType] = {}
_installing: set[str] = set()  # adapters that load a part of their engine may be asked for by that
_failed: dict[str, str] = {}
_log_before: list[tuple[int, list[logging.Handler]]] = []


@dataclass(frozen=True)
class Status:
    """The state of the integrations in this process.

    Attributes:
        enabled: the switch AITER_LIKE.
        engines: engine → "on", "not loaded", or "off: …" with the reason.
        taken: name of a taken operator → its calls served here, and its calls left to the engine's own.
        denied: names that AITER_LIKE_DISABLE leaves to the engine.
    """

    enabled: bool
    engines: dict[str, str]
    taken: dict[str, takeover.Counts]
    denied: tuple[str, ...]


def install(only: str | None = None) -> bool:
    """Puts our operators in place in every engine that is loaded, where AITER_LIKE=1; silent and inert otherwise.

    It may be called again, by every process and after another engine was loaded: what is in place stays as it is.
    An engine that cannot be served is left as it was; one warning says which and why.

    Args:
        only: this engine alone: others may be half loaded, and call `install` themselves.

    Returns:
        Whether an engine is served.
    """
    with _lock:
        try:
            if not env.get("AITER_LIKE"):
                return False
            _show_messages()
        except ValueError as error:
            if "" not in _failed:
                _failed[""] = str(error)
                logger.warning("engines keep their own operators: %s", error)
            return False
        known = _installed.keys() | _failed.keys() | _installing
        failures = {engine: reason for engine in _ADAPTERS if engine not in known and only in (None, engine)
                    and _is_wanted(engine) and (reason := _install(engine))}
        _failed.update(failures)
        if failures:
            logger.warning("these keep their own operators: %s",
                         "; ".join(f"{engine} ({reason})" for engine, reason in failures.items()))
        return bool(_installed)


def uninstall() -> None:
    """Undoes `install`, the last first. A function that somebody holds already keeps serving."""
    with _lock:
        for engine in reversed(list(_installed)):
            _uninstall(engine, _installed.pop(engine))
        takeover.restore_attributes()
        takeover.forget()
        _failed.clear()
        while _log_before:
            level, logger.handlers[:] = _log_before.pop()
            logger.setLevel(level)


def status() -> Status:
    """Tells what is in place, and the calls so far."""
    try:
        enabled = env.get("AITER_LIKE")
    except ValueError:
        enabled = False
    engines = {}
    for engine in _ADAPTERS:
        state = "on" if engine in _installed else "not loaded" if engine not in sys.modules else "off"
        engines[engine] = f"off: {_failed[engine]}" if engine in _failed else state
    return Status(enabled, engines, takeover.counters(), takeover.denied())


def _is_wanted(engine: str) -> bool:
    """Whether the engine is loaded, or, AITER, about to be: engines import it at their first use of it."""
    if importlib.util.find_spec(f"{__name__}.{_ADAPTERS[engine]}") is None:
        return False
    if engine == "aiter" and any(user in sys.modules for user in _USERS_OF_AITER):
        return "aiter" in sys.modules or importlib.util.find_spec("aiter") is not None
    return engine in sys.modules


def _install(engine: str) -> str:
    """Installs one adapter; why that failed, or ""."""
    adapter = None
    _installing.add(engine)
    try:
        versions.check(engine)
        adapter = importlib.import_module(f"{__name__}.{_ADAPTERS[engine]}")
        adapter.install()
    except Exception as error:
        logger.debug("%s cannot be served", engine, exc_info=True)
        _uninstall(engine, adapter, has_failed=True)
        return f"{type(error).__name__}: {error}"
    finally:
        _installing.discard(engine)
    _installed[engine] = adapter
    return ""


def _uninstall(engine: str, adapter: ModuleType | None, has_failed: bool = False) -> None:
    """`has_failed`: it was not installed as a whole; what keeps it from being undone is what kept it from that."""
    try:
        if adapter is not None:
            adapter.uninstall()
    except Exception:
        level = logging.DEBUG if has_failed else logging.WARNING
        logger.log(level, "%s: not everything could be undone", engine, exc_info=True)
    takeover.restore_attributes(engine)


def _show_messages() -> None:
    """One line per operator taken, on stderr, unless the process has set the level of this package itself."""
    if not _log_before:
        before = logger.level, list(logger.handlers)
        log.configure("info" if logger.level == logging.NOTSET else "")
        _log_before.append(before)
