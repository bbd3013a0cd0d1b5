# SPDX-License-Identifier: MIT
"""What a GPU refuses and the CPU would do, within sim.as_gpu(): tensors of several devices in one call; and the error
of a tensor for which there is no memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch.nn import functional

from aiter_like.sim.torch_cuda import devices, marks

_ARITHMETIC = ("add sub mul div true_divide floor_divide remainder fmod pow maximum minimum fmax fmin atan2 eq ne "
               "lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor lerp addcmul "
               "addcdiv where")
_PRODUCTS = "matmul mm bmm mv dot outer addmm addmv addbmm baddbmm einsum tensordot kron cross cdist"
_JOINED = "cat concat concatenate stack hstack vstack dstack index_select gather scatter scatter_add take_along_dim"
_LAYERS = ("linear bilinear conv1d conv2d conv3d layer_norm group_norm rms_norm batch_norm embedding cross_entropy "
           "nll_loss mse_loss l1_loss smooth_l1_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div "
           "prelu scaled_dot_product_attention cosine_similarity")
_OPERATORS = "add sub mul truediv floordiv mod pow matmul and or xor eq ne lt le gt ge"


def _functions() -> frozenset[Callable]:
    names = " ".join((_ARITHMETIC, _PRODUCTS, _JOINED)).split()
    found = {getattr(holder, name, None) for holder in (torch, torch.Tensor) for name in names}
    found |= {getattr(torch.Tensor, f"{name}_", None) for name in names}
    found |= {getattr(functional, name, None) for name in _LAYERS.split()}
    found |= {getattr(torch.Tensor, f"__{kind}{name}__", None) for kind in ("", "r", "i")
              for name in _OPERATORS.split()}
    return frozenset(found - {None})


_ON_ONE_DEVICE = _functions()


def check_places(func: Callable, args: tuple, kwargs: dict) -> None:
    """Raises RuntimeError where the function takes tensors of one device and gets them of two: a number of the host,
    which a tensor without dimensions is, may meet those of a GPU."""
    if func not in _ON_ONE_DEVICE:
        return
    places = {marks.index_of(tensor): tensor for tensor in (*marks.tensors(args), *marks.tensors(kwargs))
              if marks.index_of(tensor) is not None or tensor.dim()}
    if len(places) < 2 or any(tensor.is_meta for tensor in places.values()):
        return
    first, second = ("cpu" if index is None else str(devices.of_index(index)) for index in list(places)[:2])
    raise RuntimeError("Expected all tensors to be on the same device, but found at least two devices, "
                       f"{first} and {second}! (in {getattr(func, '__name__', func)})")


def out_of_memory(error: RuntimeError) -> torch.OutOfMemoryError | None:
    """What the program hears when the host has no memory for a tensor of the GPU; None: the error is another one."""
    text = str(error)
    if "DefaultCPUAllocator" not in text:
        return None
    count = re.search(r"(\d+) bytes", text)
    size = "Tried to allocate more than 1EB memory. " if count and int(count[1]) >= 2**60 else ""
    return torch.OutOfMemoryError(
        f"CUDA out of memory. {size}This is the simulated MI300X, in the host's memory: {text}")
