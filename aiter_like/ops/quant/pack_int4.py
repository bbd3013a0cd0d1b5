# SPDX-License-Identifier: MIT
"""4-bit numbers, two to a byte. Kernels: csrc/quant/pack_int4.hip, ops/quant/triton/block_quant.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, Backend, Op, torch_ops
from aiter_like.dispatch.tuning import Tuning
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import rows

__all__ = ["pack_int4", "unpack_int4"]

_OP = "pack_int4"
_MOST = 2**31 - 2**16  # accesses that pack_int4.hip numbers; of single bytes in the worst case


def pack_int4_ref(out: Tensor, input: Tensor, is_unpacking: bool) -> None:
    """The formula in torch."""
    if is_unpacking:
        out.copy_(torch.stack(((input << 4) >> 4, input >> 4), -1).flatten(-2))
    else:
        out.copy_((input[..., ::2] & 15) | (input[..., 1::2] << 4))


def _instance(out: Tensor, input: Tensor, is_unpacking: bool, *, vectors: int = 2) -> Instance:
    return Instance(f"v{vectors}", {"VECTORS": vectors})


@compile_ops("quant/pack_int4.hip", gen_func=_instance, prebuild=[Instance("v2", {"VECTORS": 2})])
def _pack_int4_hip(out: Tensor, input: Tensor, is_unpacking: bool) -> None: ...


def _check(out: Tensor, input: Tensor, is_unpacking: bool) -> object:
    check.flag(_OP, "is_unpacking", is_unpacking)
    check.tensor(_OP, "input", input, dtypes=(torch.int8,), last_contiguous=False)
    if input.ndim == 0 or (input.shape[-1] % 2 and not is_unpacking):
        raise ValueError(f"{_OP}: input must have an even last dimension, got shape {tuple(input.shape)}")
    shape = (*input.shape[:-1], input.shape[-1] * 2 if is_unpacking else input.shape[-1] // 2)
    check.tensor(_OP, "out", out, dtypes=(torch.int8,), shape=shape, device=input.device)
    return SKIP if input.numel() == 0 else None


def _refusal(target: Target, out: Tensor, input: Tensor, is_unpacking: bool) -> str | None:
    if input.shape[-1] > 1 and input.stride(-1) != 1:
        return f"input must be contiguous in its last dimension, got stride {input.stride(-1)} there"
    if min(out.numel(), input.numel()) > _MOST:
        return f"at most {_MOST} packed bytes, got {min(out.numel(), input.numel())}"
    return rows.refusal(input=input, out=out)


def _tune_key(out: Tensor, input: Tensor, is_unpacking: bool) -> dict[str, int | str]:
    columns = min(out.shape[-1], input.shape[-1])
    return {"rows": input.shape[:-1].numel(), "columns": columns, "is_unpacking": is_unpacking}


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> tuple:
    count, columns, is_unpacking = key["rows"], key["columns"], bool(key["is_unpacking"])
    x = torch.randint(-128, 128, (count, columns if is_unpacking else 2 * columns), device=device, dtype=torch.int8,
                      generator=torch.Generator(device).manual_seed(seed))
    out = torch.empty(count, 2 * columns if is_unpacking else columns, dtype=torch.int8, device=device)
    return out, x, is_unpacking


def _self_check(device: torch.device) -> list[tuple]:
    """Both directions."""
    x = torch.randint(-128, 128, (5, 272), generator=torch.Generator().manual_seed(0), dtype=torch.int8).to(device)
    return [(torch.empty_like(x[:, :136]), x, False), (torch.empty_like(x[:, :136]).repeat(1, 4), x, True)]


_pack_int4 = Op(
    _OP, reference=pack_int4_ref, check=_check, tune_key=_tune_key, tune_fields=("rows", "columns", "is_unpacking"),
    self_check=_self_check, tuning=Tuning(_tune_case),
    backends=(Backend("hip", _pack_int4_hip, refusal=_refusal,
                      space=lambda *_: [{"vectors": count} for count in (1, 2, 4)]),
              Backend("triton", "ops.quant.triton.block_quant:pack_int4", refusal=_refusal,
                      space=lambda *_: [{"num_warps": count} for count in (2, 4, 8)]),
              Backend("torch", pack_int4_ref)))


def pack_int4(x: Tensor, *, backend: str | None = None) -> Tensor:
    """Two 4-bit numbers to a byte, the first in the low half.

    `byte = (x[2i] & 15) | (x[2i + 1] & 15) << 4`.

    Args:
        x: [..., K] int8 with values from -8 to 7 (two's complement), K even. Values outside lose their upper bits.
        backend: "hip", "triton" or "torch" instead of the automatic choice. The kernels take a contiguous last
            dimension and evenly spaced rows.

    Returns:
        [..., K / 2] int8.

    Raises:
        TypeError: `x` is no int8 tensor.
        ValueError: K is odd.
        UnsupportedError: the backend asked for cannot serve the call.

    Notes:
        `unpack_int4` undoes it. Can be captured in a graph.

    Source: the byte order of AITER's i4x2.
    """
    out = _output(x, False)
    _pack_int4(out, x, False, backend=backend)
    return out


def unpack_int4(x: Tensor, *, backend: str | None = None) -> Tensor:
    """The 4-bit numbers of each byte, the low half first.

    `unpack_int4(pack_int4(x))` equals x.

    Args:
        x: [..., K] int8, as `pack_int4` returned it.
        backend: "hip", "triton" or "torch" instead of the automatic choice, as for `pack_int4`.

    Returns:
        [..., 2 · K] int8 with values from -8 to 7.

    Raises:
        TypeError: `x` is no int8 tensor.
        ValueError: it has no dimension.
        UnsupportedError: the backend asked for cannot serve the call.

    Notes:
        Exact. Can be captured in a graph.

    Source: the byte order of AITER's i4x2.
    """
    out = _output(x, True)
    _pack_int4(out, x, True, backend=backend)
    return out


def _output(x: Tensor, is_unpacking: bool) -> Tensor:
    """A new result.

    Raises:
        TypeError: `x` is no int8 tensor.
        ValueError: its shape does not fit.
    """
    op = "unpack_int4" if is_unpacking else "pack_int4"
    check.tensor(op, "x", x, dtypes=(torch.int8,), last_contiguous=False)
    if x.ndim == 0:
        raise ValueError(f"{op}: x must have at least 1 dimension, got a scalar")
    if x.shape[-1] % 2 and not is_unpacking:
        raise ValueError(f"{op}: x must have an even last dimension, got shape {tuple(x.shape)}")
    size = x.shape[-1] * 2 if is_unpacking else x.shape[-1] // 2
    return torch.empty((*x.shape[:-1], size), dtype=torch.int8, device=x.device)


torch_ops.register(_pack_int4, pack_int4)
