# SPDX-License-Identifier: MIT
"""Cases of sglang_process.py about SGLang's AITER path: its start as on an MI300X."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch

ROCM_MODULES = (
    "layers.layernorm", "layers.activation", "layers.rotary_embedding", "layers.sampler", "layers.rocm_linear_utils",
    "layers.moe.topk", "layers.moe.moe_runner.aiter", "layers.quantization.fp8", "layers.quantization.fp8_utils",
    "layers.quantization.unquant", "layers.attention.aiter_backend", "layers.attention.triton_backend",
    "layers.layer_boundary.residual.add_norm", "model_executor.model_runner", "models.llama", "models.qwen3",
    "models.qwen3_moe", "models.qwen2_moe", "models.mixtral", "models.gpt_oss")


class CompiledKernels(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stubs for SGLang's compiled kernels, a package that has no CPU build."""

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
