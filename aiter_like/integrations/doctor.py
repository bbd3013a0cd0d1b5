# SPDX-License-Identifier: MIT
"""`aiter-like doctor --engine …`: whether an engine is served, by which plugin, and what is taken or denied."""

import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import logging
import os
import re
import site
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from aiter_like import env, integrations
from aiter_like.integrations import takeover, versions
from aiter_like.integrations.aiter import shim

ENGINES = tuple(versions.SUPPORTED)
_GROUPS = {"vllm": ("vllm.general_plugins",), "transformers": (),
           "sglang": ("sglang.srt.plugins", "sglang.multimodal_gen.plugins")}
_ALLOWED = {"vllm": "VLLM_PLUGINS", "sglang": "SGLANG_PLUGINS"}
_PLUGIN = "aiter_like"
_STARTUP = "aiter_like_startup"  # transformers has this in place of a plugin: each interpreter reads it when it starts

logger = logging.getLogger("aiter_like")


def report(engine: str) -> tuple[list[str], list[str]]:
    """The lines to print, and the problems among what they say. Loads the engine where the switch is on."""
    lines, problems = [], []
    version = versions.installed(engine)
    table = versions.SUPPORTED[engine]
    lines.append(f"{engine:12} {version or 'absent'}; served: {table.first} to before {table.end}, "
                 f"written against {', '.join(table.seen)}")
    if version is None:
        problems.append(f"{engine} is not installed")
    elif not versions.is_supported(engine, version):
        problems.append(f"{engine} {version} is not served: it keeps its own operators")
    lines.append(f"aiter        {_aiter()}")
    try:
        enabled = env.get("AITER_LIKE")
    except ValueError as error:
        enabled, problems = False, [*problems, str(error)]
    lines.append(f"switch       AITER_LIKE is {'on' if enabled else 'off: the engine keeps its own operators'}")
    plugins, missing = _plugins(engine) if _GROUPS[engine] else _startup(enabled)
    lines += [f"plugin       {line}" for line in plugins]
    problems += missing
    if enabled and not problems:
        lines += _installed(engine, problems)
    return lines, problems


def _installed(engine: str, problems: list[str]) -> Iterator[str]:
    """Loads the engine and installs, as its plugin loader would, and says what that did."""
    try:
        importlib.import_module(engine)
    except Exception as error:
        logger.debug("%s does not import", engine, exc_info=True)
        problems.append(f"{engine} does not import: {_cause(error)}")
        return
    integrations.install()
    status = integrations.status()
    for name in ("aiter", engine):
        yield f"state        {name}: {status.engines[name]}"
        if status.engines[name].startswith("off:"):
            problems.append(f"{name} is {status.engines[name]}")
    yield f"taken        {', '.join(status.taken) or 'nothing yet: models take their layers when they are made'}"
    yield f"denied       {', '.join(status.denied) or 'nothing'} (AITER_LIKE_DISABLE)"
    for place in takeover.replaced():
        yield f"replaced     {place}"
    if engine == "transformers" and status.engines[engine] == "on":
        from aiter_like.integrations import transformers

        yield f'registered   attn_implementation="{transformers.NAME}", for models that ask for it by name'
        served = transformers.trial()
        yield f"served       {f'a new LlamaForCausalLM: {served}' if served else 'nothing of a new model'}"
        if not served:
            problems.append("transformers: the name is registered, but new models are not served")


def _cause(error: Exception) -> str:
    """Says what keeps a package from being imported, and how to install it where it is missing."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        if error.name == package:
            return f"{package} is missing: pip install {package}"
    unregistered = re.search(r"operator (torch\w+)::\w+ does not exist", str(error))  # such a build's own error
    if unregistered:
        package, toolkit = unregistered[1], torch.__version__.partition("+")[2] or "cpu"
        return (f"{package} was built for another torch than {torch.__version__}: pip install --force-reinstall "
                f"--no-deps {package} --index-url https://download.pytorch.org/whl/{toolkit}")
    return f"{type(error).__name__}: {error}"


def _aiter() -> str:
    found = importlib.machinery.PathFinder.find_spec("aiter")
    if found is None:
        return "absent; AITER paths of the engine need the shim: PYTHONPATH=$(aiter-like shim)"
    if (found.origin or "").startswith(str(shim.PATH)):
        return "the shim of aiter_like"
    return f"{found.origin}; what is served in it is replaced"


def _startup(enabled: bool) -> tuple[list[str], list[str]]:
    """Says where the line lies that an interpreter reads when it starts, and why new models will not be served."""
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    found = [folder for folder in folders if (Path(folder) / f"{_STARTUP}.pth").is_file()]
    lines = [f"{_STARTUP}.pth in {folder}" for folder in found[:1]] or [f"{_STARTUP}.pth: not installed"]
    if _STARTUP in sys.modules or not enabled and found:
        return lines, []
    return lines, [f"no {_STARTUP}.pth was read when this interpreter started: install aiter_like with pip, a path is "
                   "not enough; else a program calls aiter_like.integrations.install() after `import transformers`"]


def _plugins(engine: str) -> tuple[list[str], list[str]]:
    """Says which of our plugins the engine will find, and why it will not."""
    lines, problems = [], []
    for group in _GROUPS[engine]:
        found = [point for point in importlib.metadata.entry_points(group=group) if point.name == _PLUGIN]
        lines += [f"{group}: {point.value}" for point in found[:1]] or [f"{group}: not registered"]
        if not found:
            problems.append(f"no plugin in {group}: install aiter_like with pip, a path is not enough")
    variable = _ALLOWED.get(engine, "")
    allowed = os.environ.get(variable)
    if allowed is not None and (allowed or engine == "vllm") and _PLUGIN not in map(str.strip, allowed.split(",")):
        problems.append(f"{variable}={allowed!r} keeps the plugin {_PLUGIN} out")
    return lines, problems
