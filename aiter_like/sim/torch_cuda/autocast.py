# SPDX-License-Identifier: MIT
"""Autocasting of "cuda" within sim.as_gpu(): the CPU's, of float16 unless a type is given, with the functions that a
GPU autocasts to float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional

from aiter_like.sim.torch_cuda import marks

_MATHS = ("acos asin cosh cumprod cumsum dist erfinv exp expm1 log log10 log1p log2 norm pow prod reciprocal rsqrt "
          "sinh log_softmax softmax sum renorm tan __pow__ __rpow__ __rtruediv__ __rdiv__ cdist cosine_similarity")
_LAYERS = ("binary_cross_entropy_with_logits cosine_embedding_loss cosine_similarity cross_entropy group_norm "
           "hinge_embedding_loss kl_div l1_loss layer_norm log_softmax margin_ranking_loss mse_loss "
           "multilabel_margin_loss multi_margin_loss nll_loss normalize pdist poisson_nll_loss smooth_l1_loss "
           "soft_margin_loss softmax softmin softplus triplet_margin_loss")
_TO_FLOAT32 = frozenset(
    {getattr(holder, name, None) for holder in (torch, torch.Tensor) for name in _MATHS.split()}
    | {getattr(functional, name, None) for name in _LAYERS.split()} - {None})
_HALVES = (torch.float16, torch.bfloat16)


def widened(func: Callable, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """The arguments as autocasting of a GPU gives them to a function that it runs in float32, else as they are.

    Raises:
        RuntimeError: a GPU does not autocast the function.
    """
    is_banned = func is functional.binary_cross_entropy
    if not (func in _TO_FLOAT32 or is_banned) or not torch.is_autocast_enabled("cpu"):
        return args, kwargs
    if marks.first_place(args, kwargs) is None:
        return args, kwargs
    if is_banned:
        raise RuntimeError("torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast: use "
                           "binary_cross_entropy_with_logits or BCEWithLogitsLoss, without the sigmoid before it")
    return tuple(map(_wide, args)), {name: _wide(value) for name, value in kwargs.items()}


def replacements() -> Iterator[tuple[Any, str, Any]]:
    """Names of torch: holder, name, what it means now."""
    original = torch.amp.autocast_mode.autocast.__init__

    def made(self: Any, device_type: str, dtype: torch.dtype | None = None, enabled: bool = True,
             cache_enabled: bool | None = None) -> None:
        is_gpu = device_type == "cuda"
        original(self, "cpu" if is_gpu else device_type, dtype or (_gpus_dtype[0] if is_gpu else None), enabled,
                 cache_enabled)

    yield torch.amp.autocast_mode.autocast, "__init__", made
    for name in ("is_autocast_enabled", "set_autocast_enabled"):
        yield torch, name, _of_cpu(getattr(torch, name))
    yield torch, "get_autocast_dtype", _dtype
    yield torch, "set_autocast_dtype", _set_dtype
    yield torch, "get_autocast_gpu_dtype", lambda: _dtype("cuda")
    yield torch, "set_autocast_gpu_dtype", lambda dtype: _set_dtype("cuda", dtype)


def _wide(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.dtype not in _HALVES:
        return value
    wide = value.float()
    marks.follow(wide, [value])
    return wide


def _of_cpu(function: Callable) -> Callable:
    def asked(*args: Any, device_type: str | None = None, **kwargs: Any) -> Any:
        if device_type is not None:
            args = (device_type, *args)
        elif not args or isinstance(args[0], (bool, torch.dtype)):  # the forms of old, of the GPU alone
            args = ("cuda", *args)
        return function(*("cpu" if arg == "cuda" else arg for arg in args), **kwargs)

    return asked


def _dtype(device_type: str) -> torch.dtype:
    """torch.get_autocast_dtype: outside a block, the one that a GPU has there."""
    is_gpu = device_type == "cuda"
    if is_gpu and not _is_enabled("cpu"):
        return _gpus_dtype[0]
    return _get_dtype("cpu" if is_gpu else device_type)


def _set_dtype(device_type: str, dtype: torch.dtype) -> None:
    """torch.set_autocast_dtype."""
    if device_type == "cuda":
        _gpus_dtype[0] = dtype
    _put_dtype("cpu" if device_type == "cuda" else device_type, dtype)


_is_enabled, _get_dtype, _put_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype, torch.set_autocast_dtype
_gpus_dtype = [torch.float16]
