# SPDX-License-Identifier: MIT
"""Cases of sglang_process.py about SGLang's AITER path: the names that it imports, and its start as on an MI300X."""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch


def case_names() -> dict[str, Any]:
    """Each name that a source of SGLang takes from aiter: served by the shim, there but raising, or missing."""
    from aiter_like.integrations import aiter_names

    found: set[tuple[str, str]] = set()
    for path in Path(importlib.util.find_spec("sglang").origin).parent.rglob("*.py"):
        found |= _names_of_aiter(ast.parse(path.read_text()))
    stubs = {(module, row.name) for row in aiter_names.table() if row.server is None for module in row.modules}
    kinds: dict[str, list[str]] = {"served": [], "raises": [], "missing": []}
    for module, name in sorted(found):
        kind = "missing" if not _is_there(module, name) else "raises" if (module, name) in stubs else "served"
        kinds[kind].append(f"{module} {name}".strip())
    return kinds


def _is_there(module: str, name: str) -> bool:
    """Whether `from module import name` works, or with "" `import module`."""
    try:
        if not name or hasattr(importlib.import_module(module), name):
            return bool(importlib.import_module(module))
        return bool(importlib.import_module(f"{module}.{name}"))
    except ImportError:
        return False


def _names_of_aiter(tree: ast.Module) -> set[tuple[str, str]]:
    """(module, name) of `from aiter.x import name`, of `import aiter.x` (""), and of attributes of such modules."""
    names, aliases = set(), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "aiter":
            names |= {(node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            modules = [alias for alias in node.names if alias.name.split(".")[0] == "aiter"]
            names |= {(alias.name, "") for alias in modules}
            aliases |= {alias.asname or "aiter": alias.name if alias.asname else "aiter" for alias in modules}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            names.add((aliases[node.value.id], node.attr))
    return names


ROCM_MODULES = (
    "layers.layernorm", "layers.activation", "layers.rotary_embedding", "layers.sampler", "layers.rocm_linear_utils",
    "layers.moe.topk", "layers.moe.moe_runner.aiter", "layers.quantization.fp8", "layers.quantization.fp8_utils",
    "layers.quantization.unquant", "layers.attention.aiter_backend", "layers.attention.triton_backend",
    "layers.layer_boundary.residual.add_norm", "model_executor.model_runner", "models.llama", "models.qwen3",
    "models.qwen3_moe", "models.qwen2_moe", "models.mixtral", "models.gpt_oss")


class CompiledKernels(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """SGLang's own compiled kernels, which exist for GPUs only: every name is there, without code."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        is_kernels = name.partition(".")[0] == "sgl_kernel"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_kernels else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """As Python makes it."""

    def exec_module(self, module: ModuleType) -> None:
        def attribute(name: str) -> MagicMock:
            if name.startswith("__"):
                raise AttributeError(name)
            return MagicMock(name=name)

        module.__getattr__ = attribute


def prepare_rocm() -> None:
    """What torch says on an MI300X."""
    properties = SimpleNamespace(name="AMD Instinct MI300X", gcnArchName="gfx942", multi_processor_count=304,
                                 warp_size=64, total_memory=192 << 30)
    torch.version.hip, torch.version.cuda = "7.0", None
    for name, value in (("is_available", True), ("device_count", 1), ("current_device", 0),
                        ("get_device_properties", properties), ("get_device_capability", (9, 4))):
        setattr(torch.cuda, name, lambda *args, value=value: value)
    sys.meta_path.insert(0, CompiledKernels())


def case_rocm() -> dict[str, Any]:
    """Imports what an MI300X with SGLANG_USE_AITER=1 imports."""
    failed, imported = {}, []
    names = [f"sglang.srt.{name}" for name in ROCM_MODULES]
    for name in (*names, "sglang.multimodal_gen.runtime.layers.attention.backends.aiter"):
        try:
            importlib.import_module(name)
            imported.append(name)
        except (ImportError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError) as error:
            failed[name] = f"{type(error).__name__}: {error}"
    from sglang.srt.layers import activation, layernorm

    return {"failed": failed, "imported": imported, "bound": {
        "rms_norm": layernorm.rms_norm.__name__, "silu_and_mul": activation._aiter_silu_and_mul.__name__,
        "use_aiter": layernorm._use_aiter}}
