# SPDX-License-Identifier: MIT
"""torch.use_deterministic_algorithms within sim.as_gpu(): functions for which torch has no deterministic kernel on a
GPU refuse, or warn, in torch's words; those of which that is so of the backward pass alone, there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from aiter_like.sim.torch_cuda import marks


def check(func: Callable, args: tuple, kwargs: dict) -> None:
    """Before a call. Raises RuntimeError, or warns, where the program wants determinism and a GPU has none."""
    if func in _FORWARD and _is_on_gpu(args, kwargs):
        name = _FORWARD[func](args, kwargs)
        if name is not None:
            _tell(name)


def follow(func: Callable, args: tuple, kwargs: dict, results: Any) -> None:
    """After a call, likewise of its backward pass."""
    if func not in _BACKWARD or not _is_on_gpu(args, kwargs):
        return
    name = _BACKWARD[func](args, kwargs)
    for tensor in marks.tensors(results):
        if name is not None and tensor.grad_fn is not None and not marks.is_functional(tensor):
            tensor.register_hook(lambda gradient: torch.are_deterministic_algorithms_enabled() and _tell(name) or None)


def _is_on_gpu(args: tuple, kwargs: dict) -> bool:
    return any(marks.index_of(one) is not None for one in (*marks.tensors(args), *marks.tensors(kwargs)))


def _tell(name: str) -> None:
    if torch.is_deterministic_algorithms_warn_only_enabled():
        warnings.warn(f"{name} does not have a deterministic implementation, but you set "
                      "'torch.use_deterministic_algorithms(True, warn_only=True)'. You can file an issue at "
                      "https://github.com/pytorch/pytorch/issues to help us prioritize adding deterministic support "
                      "for this operation.", UserWarning, stacklevel=5)
        return
    raise RuntimeError(f"{name} does not have a deterministic implementation, but you set "
                       "'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this "
                       "operation, or you can use the 'warn_only=True' option, if that's acceptable for your "
                       "application. You can also file an issue at https://github.com/pytorch/pytorch/issues to help "
                       "us prioritize adding deterministic support for this operation.")


def _put(args: tuple, kwargs: dict) -> str | None:
    return "put_" if kwargs.get("accumulate", args[3] if len(args) > 3 else False) else None


def _embedding_bag(args: tuple, kwargs: dict) -> str | None:
    mode = kwargs.get("mode", args[6] if len(args) > 6 else "mean")
    return "embedding_bag_backward_cuda_max" if mode == "max" else None


def _histogram(args: tuple, kwargs: dict) -> str | None:
    tensor = next(marks.tensors((args, kwargs)))
    return "_histc_cuda with floating point input" if tensor.is_floating_point() else None


def _grid_sample(args: tuple, kwargs: dict) -> str:
    return f"grid_sampler_{next(marks.tensors((args, kwargs))).dim() - 2}d_backward_cuda"


def _bincount(args: tuple, kwargs: dict) -> str | None:
    weights = args[1] if len(args) > 1 else kwargs.get("weights")
    return None if weights is None else "_bincount_cuda"


def _median(args: tuple, kwargs: dict) -> str | None:
    return "median CUDA with indices output" if len(args) > 1 or "dim" in kwargs else None


def _spatial_loss(args: tuple, kwargs: dict) -> str | None:
    tensor = args[0] if args else kwargs["input"]
    return "nll_loss2d_forward_out_cuda_template" if tensor.dim() > 2 else None


def _cross_entropy(args: tuple, kwargs: dict) -> str | None:
    target = args[1] if len(args) > 1 else kwargs["target"]
    return None if target.is_floating_point() else _spatial_loss(args, kwargs)


def _interpolate(args: tuple, kwargs: dict) -> str | None:
    mode = args[3] if len(args) > 3 else kwargs.get("mode", "nearest")
    name = {"linear": "linear1d", "bicubic": "bicubic2d", "trilinear": "trilinear3d"}.get(mode)
    return name and f"upsample_{name}_backward_out_cuda"


def _pad(args: tuple, kwargs: dict) -> str | None:
    sizes, mode = args[1] if len(args) > 1 else kwargs["pad"], args[2] if len(args) > 2 else kwargs.get("mode")
    names = {("reflect", 1): "reflection_pad1d_backward_out_cuda", ("reflect", 2): "reflection_pad2d_backward_cuda",
             ("reflect", 3): "reflection_pad3d_backward_out_cuda"}
    return names.get((mode, len(sizes) // 2))


def _constant(name: str) -> Callable[[tuple, dict], str]:
    return lambda args, kwargs: name


def _table(pairs: list[tuple[str, Callable]]) -> dict[Callable, Callable]:
    """By function, of torch, its tensors and torch.nn.functional."""
    found = {}
    for names, answer in pairs:
        for name in names.split():
            for holder in (torch, torch.Tensor, functional):
                if hasattr(holder, name):
                    found[getattr(holder, name)] = answer
    return found


_FORWARD = _table([
    ("put put_", _put), ("bincount", _bincount), ("histc", _histogram),
    ("kthvalue", _constant("kthvalue CUDA")), ("median", _median), ("nll_loss", _spatial_loss),
    ("cross_entropy", _cross_entropy), ("max_unpool1d max_unpool2d", _constant("max_unpooling2d_forward_out")),
    ("max_unpool3d", _constant("max_unpooling3d_forward_out"))])
_BACKWARD = _table([
    ("interpolate", _interpolate), ("pad", _pad), ("embedding_bag", _embedding_bag),
    ("adaptive_avg_pool2d", _constant("adaptive_avg_pool2d_backward_cuda")),
    ("adaptive_avg_pool3d", _constant("adaptive_avg_pool3d_backward_cuda")),
    ("adaptive_max_pool2d", _constant("adaptive_max_pool2d_backward_cuda")),
    ("avg_pool3d", _constant("avg_pool3d_backward_cuda")),
    ("max_pool3d", _constant("max_pool3d_with_indices_backward_cuda")),
    ("fractional_max_pool2d", _constant("fractional_max_pool2d_backward_cuda")),
    ("fractional_max_pool3d", _constant("fractional_max_pool3d_backward_cuda")),
    ("grid_sample", _grid_sample), ("ctc_loss", _constant("ctc_loss_backward_gpu"))])
