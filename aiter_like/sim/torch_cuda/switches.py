# SPDX-License-Identifier: MIT
"""Switches of torch's libraries for a GPU within sim.as_gpu(): programs read what they have set, and it changes no
result here. Also what torch tells of its kernels of attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.backends import cuda

from aiter_like.sim.torch_cuda import devices, marks

_TUNABLE = {"enable": False, "tuning_enable": True, "max_tuning_duration": 30, "max_tuning_iterations": 100,
            "rotating_buffer_size": -1}
"""Of torch.cuda.tunable, and what they are at first."""
_PLANS = 4096  # hipFFT's, at first
_HALVES = (torch.float16, torch.bfloat16)
_LARGEST_HEAD = 512


def replacements() -> Iterator[tuple[Any, str, Any]]:
    """Names of torch: holder, name, what it means now."""
    for name, answer in (_tunable() | _preferred() | _attention()).items():
        yield torch._C, name, answer
    yield cuda.cuFFTPlanCache, "size", property(lambda self: 0, _refuse_size)
    yield cuda.cuFFTPlanCache, "max_size", property(lambda self: _plans.get(self.device_index, _PLANS), _set_plans)
    yield cuda.cuFFTPlanCache, "clear", lambda self: None


def _tunable() -> dict[str, Callable]:
    """Those of torch.cuda.tunable: no product is tuned, so that there are no results."""
    set_to = dict(_TUNABLE)
    file = ["tunableop_results.csv"]

    def setting(name: str) -> Callable:
        return lambda value: set_to.update({name: value})

    def set_filename(filename: str, insert_device_ordinal: bool = False) -> None:
        head, dot, end = filename.rpartition(".")
        file[0] = filename if not insert_device_ordinal else (
            f"{head}{devices.current()}.{end}" if dot else f"{filename}{devices.current()}")

    prefix = "_cuda_tunableop_"
    return {
        f"{prefix}enable": setting("enable"), f"{prefix}is_enabled": lambda: set_to["enable"],
        f"{prefix}tuning_enable": setting("tuning_enable"),
        f"{prefix}tuning_is_enabled": lambda: set_to["tuning_enable"],
        "_cuda_record_untuned_enable": setting("untuned"),
        "_cuda_record_untuned_is_enabled": lambda: set_to.get("untuned", False),
        f"{prefix}set_filename": set_filename, f"{prefix}get_filename": lambda: file[0],
        f"{prefix}get_results": lambda: (), f"{prefix}get_validators": lambda: (
            ("PT_VERSION", torch.__version__.partition("+")[0]), ("ROCM_VERSION", devices.hip_version()),
            ("GCN_ARCH_NAME", devices.properties(devices.current()).gcnArchName)),
        f"{prefix}read_file": lambda filename: False, f"{prefix}write_file": lambda filename: False,
        f"{prefix}set_numerical_check_tolerances": lambda enable, atol, rtol: None,
        **{f"{prefix}set_{name}": setting(name) for name in list(_TUNABLE)[2:]},
        **{f"{prefix}get_{name}": lambda name=name: set_to[name] for name in list(_TUNABLE)[2:]},
    }


def _preferred() -> dict[str, Callable]:
    """Preferred libraries, which torch refuses where it is built without them."""
    found = {}
    for name, kind in (("linalg", torch._C._LinalgBackend), ("blas", torch._C._BlasBackend),
                       ("rocm_fa", torch._C._ROCmFABackend)):
        chosen = [kind.Default]
        found[f"_set_{name}_preferred_backend"] = lambda value, chosen=chosen: chosen.__setitem__(0, value)
        found[f"_get_{name}_preferred_backend"] = lambda chosen=chosen: chosen[0]
    return found


def _attention() -> dict[str, Callable]:
    """What kernels of attention torch has for parameters of torch.backends.cuda.SDPAParams."""
    def on_gpu(params: Any) -> bool:
        sizes = params.query.size(-1), params.key.size(-1), params.value.size(-1)
        return marks.index_of(params.query) is not None and max(sizes) <= _LARGEST_HEAD and params.query.dim() == 4

    def flash(params: Any, debug: bool = False) -> bool:
        return (torch.backends.cuda.flash_sdp_enabled() and on_gpu(params) and params.query.dtype in _HALVES
                and params.attn_mask is None)

    def efficient(params: Any, debug: bool = False) -> bool:
        return (torch.backends.cuda.mem_efficient_sdp_enabled() and on_gpu(params)
                and params.query.dtype in (torch.float32, *_HALVES))

    return {"_is_flash_attention_available": lambda: True, "_can_use_flash_attention": flash,
            "_can_use_mem_efficient_attention": efficient,
            "_can_use_cudnn_attention": lambda params, debug=False: False}


def _refuse_size(self: Any, value: int) -> None:
    raise RuntimeError(".size is a read-only property showing the number of plans currently in the cache. To change "
                       "the cache capacity, set cufft_plan_cache.max_size.")


def _set_plans(self: Any, value: int) -> None:
    _plans[self.device_index] = value


_plans: dict[int, int] = {}
