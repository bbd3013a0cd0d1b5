# SPDX-License-Identifier: MIT
"""4-bit numbers, two to a byte. Kernels: csrc/quant/pack_int4.hip, ops/quant/triton/pack_int4.py."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, STRIDED, Backend, Op, torch_ops
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import rows, tune_shapes

__all__ = ["pack_int4", "unpack_int4"]

_OP = "pack_int4"
_MOST = 2**31 - 2**16  # packed bytes: pack_int4.hip counts no further, and an access may be a single byte


class PackInt4Call(NamedTuple):
    """One call of pack_int4: `out` has half of the columns of `input`, or with `is_unpacking` twice as many."""

    out: Annotated[Tensor, "*rows results", torch.int8]
    input: Annotated[Tensor, "*rows columns", torch.int8, STRIDED]
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
    check.tensor(_OP, "out", call.out, shape=_shape(_OP, "input", call.input, call.is_unpacking))
    return SKIP if call.input.numel() == 0 else None


def _shape(op: str, name: str, x: Tensor, is_unpacking: bool) -> tuple[int, ...]:
    """The shape of the result."""
    if x.ndim == 0:
        raise ValueError(f"{op}: {name} must have at least 1 dimension, got a scalar")
    if x.shape[-1] % 2 and not is_unpacking:
        raise ValueError(f"{op}: {name} must have an even last dimension, got shape {tuple(x.shape)}")
    return *x.shape[:-1], x.shape[-1] * 2 if is_unpacking else x.shape[-1] // 2


def _refusal(target: Target, call: PackInt4Call) -> str | None:
    count = min(call.out.numel(), call.input.numel())
    return f"at most {_MOST} packed bytes, got {count}" if count > _MOST else rows.refusal(
        input=call.input, out=call.out)


class PackInt4Key(NamedTuple):
    """The fields that a tuned row of pack_int4 is chosen by."""

    rows: int
    columns: int  # bytes of a packed row
    is_unpacking: bool

    @classmethod
    def of(cls, call: PackInt4Call) -> PackInt4Key:
        return cls(call.input.shape[:-1].numel(), call.packed_columns, call.is_unpacking)

    def make(self, device: torch.device, seed: int) -> PackInt4Call:
        size = self.columns if self.is_unpacking else 2 * self.columns
        x = torch.randint(-128, 128, (self.rows, size), device=device, dtype=torch.int8,
                          generator=torch.Generator(device).manual_seed(seed))
        return PackInt4Call(_output(_OP, x, self.is_unpacking), x, bool(self.is_unpacking))


_pack_int4 = Op(
    _OP, call=PackInt4Call, reference=pack_int4_ref, check=_check, key=PackInt4Key,
    cases={"pack": PackInt4Key(5, 136, False), "unpack": PackInt4Key(5, 272, True)},
    backends=(Backend("hip", _pack_int4_hip, refusal=_refusal, space=tune_shapes.every(vectors=(1, 2, 4))),
              Backend("triton", "ops.quant.triton.pack_int4:pack_int4", refusal=_refusal,
                      space=tune_shapes.every(num_warps=(2, 4, 8))),
              Backend("torch", pack_int4_ref)))


def pack_int4(x: Tensor, *, backend: str | None = None) -> Tensor:
    """Two 4-bit numbers to a byte, the first in the low half: `byte = (x[2i] & 15) | (x[2i + 1] & 15) << 4`.

    Args:
        x: [..., K] int8 with values from -8 to 7 (two's complement), K even. Values outside lose their upper bits.

    Returns: [..., K / 2] int8.

    Notes: The kernels take a contiguous last dimension and evenly spaced rows.

    Source: the byte order of AITER's i4x2.
    """
    out = _output("pack_int4", x, False)
    _pack_int4.run(out, x, backend=backend)
    return out


def unpack_int4(x: Tensor, *, backend: str | None = None) -> Tensor:
    """The 4-bit numbers of each byte, the low half first. Like `pack_int4`, which it undoes.

    Args:
        x: [..., K] int8.

    Returns:
        [..., 2 · K] int8 with values from -8 to 7.

    Source: the byte order of AITER's i4x2.
    """
    out = _output("unpack_int4", x, True)
    _pack_int4.run(out, x, is_unpacking=True, backend=backend)
    return out


def _output(op: str, x: Tensor, is_unpacking: bool) -> Tensor:
    check.tensor(op, "x", x, dtypes=(torch.int8,), last_contiguous=False)
    return x.new_empty(_shape(op, "x", x, is_unpacking))


torch_ops.register(_pack_int4, pack_int4)
