# SPDX-License-Identifier: MIT
"""torch._scaled_mm within sim.as_gpu(): products of 8-bit tensors with scales, in the MI300X's types."""

from collections.abc import Callable

import torch

from aiter_like.sim.torch_cuda import marks

_TYPES = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


def scaled(func: Callable, args: tuple, kwargs: dict) -> torch.Tensor | None:
    """torch._scaled_mm of tensors on a GPU in the MI300X's 8-bit types; None: it is another call.

    Raises:
        RuntimeError: shapes, layouts or scales that torch refuses on a GPU.
    """
    a, b, scale_a, scale_b, bias, scale_result, dtype = _arguments(*args, **kwargs)
    index = marks.index_of(a)
    if index is None or a.dtype not in _TYPES:
        return None
    _check(a, b, scale_a, scale_b)
    out = (a.float() * scale_a) @ (b.float() * scale_b)
    if bias is not None:
        out = out + bias.float()
    dtype = a.dtype if dtype is None else dtype
    if scale_result is not None and dtype in _TYPES:
        out = out * scale_result
    if dtype in _TYPES:
        most = torch.finfo(dtype).max
        out = out.clamp(-most, most)
    out, given = out.to(dtype), kwargs.get("out")
    return marks.put(out, index) if given is None else given.copy_(out)


def _arguments(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor,
               bias: torch.Tensor | None = None, scale_result: torch.Tensor | None = None,
               out_dtype: torch.dtype | None = None, use_fast_accum: bool = False, **named: torch.Tensor) -> tuple:
    a, b = (named.get(name, given) for name, given in (("self", a), ("mat2", b)))
    return a, b, scale_a, scale_b, bias, scale_result, out_dtype


def _check(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> None:
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise RuntimeError(f"_scaled_mm: mat1 and mat2 shapes cannot be multiplied ({tuple(a.shape)} and "
                           f"{tuple(b.shape)})")
    if b.dtype not in _TYPES:
        raise RuntimeError(f"_scaled_mm: mat2 must be of an 8-bit type as mat1, got {b.dtype}")
    if a.shape[1] % 16 or b.shape[1] % 16:
        raise RuntimeError("_scaled_mm: trailing dimension of mat1 and mat2 must be divisible by 16, got "
                           f"{tuple(a.shape)} and {tuple(b.shape)}")
    if a.stride(1) != 1 or b.stride(0) != 1:
        raise RuntimeError(f"_scaled_mm: mat1 must be row-major and mat2 column-major, got strides {a.stride()} and "
                           f"{b.stride()}")
    rows, columns = (a.shape[0], 1), (1, b.shape[1])
    is_of_all = scale_a.numel() == 1 and scale_b.numel() == 1
    if scale_a.dtype != torch.float32 or scale_b.dtype != torch.float32 or not (
            is_of_all or (tuple(scale_a.shape) == rows and tuple(scale_b.shape) == columns)):
        raise RuntimeError("_scaled_mm: scales must be float32, one for each tensor, or one for each row of mat1 and "
                           f"each column of mat2, got {tuple(scale_a.shape)} {scale_a.dtype} and "
                           f"{tuple(scale_b.shape)} {scale_b.dtype}")
