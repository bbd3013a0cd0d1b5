# SPDX-License-Identifier: MIT
"""vLLM: its operator classes (layers.py), linear layers (linear.py), experts (experts.py), attention backends
(attention.py, mla.py) and sampler (sampler.py). `install` is called by aiter_like.integrations; how to use it: the
README beside this file."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

from aiter_like.errors import UnsupportedError
from aiter_like.integrations import takeover
from aiter_like.modules import revision

_FACTOR = "AITER_LIKE"


def install() -> None:
    """Registers our classes in vLLM's registries, for models that are made from now on, and takes its linear layers.

    Raises:
        UnsupportedError: the platform is not served, or VLLM_BATCH_INVARIANT asks for what our kernels do not promise.
        ImportError, AttributeError: this vLLM has another interface.
    """
    from aiter_like.integrations.vllm import attention, experts, layers, linear, mla, sampler

    envs = importlib.import_module("vllm.envs")
    if envs.VLLM_BATCH_INVARIANT:
        raise UnsupportedError("VLLM_BATCH_INVARIANT is set: our norms add up in an order that depends on the batch")
    attention.register(_platform())
    layers.register()
    for part in (linear, experts, mla, sampler):
        part.take_methods(_platform())
    sources = revision.files_hash(Path(layers.__file__), Path(linear.__file__))
    _mark_compiled_graphs(envs, f"{sources}: {', '.join([*layers.registered(), *linear.taken_methods()])}")


def uninstall() -> None:
    """Takes them out again. Models that exist keep what they were made with, but for linear layers."""
    from aiter_like.integrations.vllm import attention, layers

    attention.unregister()
    layers.unregister()
    takeover.restore_attributes("vllm")


def _platform() -> str:
    platform = importlib.import_module("vllm.platforms").current_platform
    return next((name for name in ("cpu", "rocm", "cuda") if getattr(platform, f"is_{name}")()), platform.device_type)


def _mark_compiled_graphs(envs: ModuleType, mark: str) -> None:
    """vLLM keeps compiled graphs on disk under a key of its own settings; ours must neither meet stock ones, nor those
    with other classes taken."""
    stock = envs.compile_factors

    def compile_factors() -> dict[str, Any]:
        return {**stock(), _FACTOR: mark}

    if _FACTOR not in stock():
        takeover.replace_attribute(envs, "compile_factors", compile_factors, owner="vllm")
