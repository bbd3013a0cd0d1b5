# SPDX-License-Identifier: MIT
"""4-bit numbers, two to a byte. Kernels: csrc/quant/pack_int4.hip, ops/quant/triton/pack_int4.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

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
_MOST = 2**31 - 2**16  # packed bytes: pack_int4.hip counts no further, and an access may be a single byte


class PackInt4Call(NamedTuple):
    """One call of pack_int4. All elements are int8.

    Attributes:
        out: [..., K / 2], written; [..., 2 · K] where the call unpacks.
        input: [..., K].
        is_unpacking: the halves of each byte become two numbers.
    """

    out: Tensor
    input: Tensor
    is_unpacking: bool = False

    @property
    def packed_columns(self) -> int:
        """Bytes of a packed row."""
        return min(self.out.shape[-1], self.input.shape[-1])


def pack_int4_ref(call: PackInt4Call) -> None:
    """The formula in torch."""
    x = call.input
    if call.is_unpacking:
        call.out.copy_(torch.stack(((x << 4) >> 4, x >> 4), -1).flatten(-2))
    else:
        call.out.copy_((x[..., ::2] & 15) | (x[..., 1::2] << 4))


def _instance(call: PackInt4Call, *, vectors: int = 2) -> Instance:
    return Instance(f"v{vectors}", {"VECTORS": vectors})


@compile_ops("quant/pack_int4.hip", gen_func=_instance)
def _pack_int4_hip(call: PackInt4Call) -> None: ...


def _check(call: PackInt4Call) -> object:
    input, is_unpacking = call.input, call.is_unpacking
    check.flag(_OP, "is_unpacking", is_unpacking)
    check.tensor(_OP, "input", input, dtypes=(torch.int8,), last_contiguous=False)
    if input.ndim == 0 or (input.shape[-1] % 2 and not is_unpacking):
        raise ValueError(f"{_OP}: input must have an even last dimension, got shape {tuple(input.shape)}")
    shape = (*input.shape[:-1], input.shape[-1] * 2 if is_unpacking else input.shape[-1] // 2)
    check.tensor(_OP, "out", call.out, dtypes=(torch.int8,), shape=shape, device=input.device)
    return SKIP if input.numel() == 0 else None


def _refusal(target: Target, call: PackInt4Call) -> str | None:
    out, input = call.out, call.input
    if input.shape[-1] > 1 and input.stride(-1) != 1:
        return f"input must be contiguous in its last dimension, got stride {input.stride(-1)} there"
    if min(out.numel(), input.numel()) > _MOST:
        return f"at most {_MOST} packed bytes, got {min(out.numel(), input.numel())}"
    return rows.refusal(input=input, out=out)


def _tune_key(call: PackInt4Call) -> dict[str, int | str]:
    return {"rows": call.input.shape[:-1].numel(), "columns": call.packed_columns, "is_unpacking": call.is_unpacking}


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> PackInt4Call:
    count, columns, is_unpacking = key["rows"], key["columns"], bool(key["is_unpacking"])
    x = torch.randint(-128, 128, (count, columns if is_unpacking else 2 * columns), device=device, dtype=torch.int8,
                      generator=torch.Generator(device).manual_seed(seed))
    out = torch.empty(count, 2 * columns if is_unpacking else columns, dtype=torch.int8, device=device)
    return PackInt4Call(out, x, is_unpacking)


def _cases(device: torch.device) -> dict[str, PackInt4Call]:
    """Both directions."""
    x = torch.randint(-128, 128, (5, 272), generator=torch.Generator().manual_seed(0), dtype=torch.int8).to(device)
    return {"pack": PackInt4Call(torch.empty_like(x[:, :136]), x),
            "unpack": PackInt4Call(torch.empty(5, 544, dtype=torch.int8, device=device), x, is_unpacking=True)}


_pack_int4 = Op(
    _OP, call=PackInt4Call, reference=pack_int4_ref, check=_check, tune_key=_tune_key,
    tune_fields=("rows", "columns", "is_unpacking"), cases=_cases, tuning=Tuning(_tune_case),
    backends=(Backend("hip", _pack_int4_hip, refusal=_refusal,
                      space=lambda *_: [{"vectors": count} for count in (1, 2, 4)]),
              Backend("triton", "ops.quant.triton.pack_int4:pack_int4", refusal=_refusal,
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
    _pack_int4.run(out, x, backend=backend)
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
    _pack_int4.run(out, x, is_unpacking=True, backend=backend)
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
