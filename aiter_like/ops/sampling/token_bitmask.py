# SPDX-License-Identifier: MIT
"""The mask of a grammar on logits. Kernel: csrc/sampling/token_bitmask.hip."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aiter_like.device import Target
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements
from aiter_like.ops.sampling import parts

__all__ = ["apply_token_bitmask_inplace"]

_OP = "token_bitmask"


class TokenBitmaskCall(NamedTuple):
    """One call of token_bitmask. Rows are evenly spaced.

    Attributes:
        logits: written where masked.
        bitmask: bit c mod 32 of word c / 32 is 1 where column c is allowed.
        indices: the rows that are masked; those that are none are left out. None: each.
    """

    logits: Annotated[Tensor, "rows columns", elements.FLOATS]
    bitmask: Annotated[Tensor, "_ words", torch.int32]
    indices: Annotated[Tensor | None, "masked", torch.int32] = None


def token_bitmask_ref(call: TokenBitmaskCall) -> None:
    """The formula in torch."""
    rows, columns = call.logits.shape
    bits = call.bitmask[:, :, None] >> torch.arange(32, dtype=torch.int32, device=call.bitmask.device) & 1
    is_masked = bits.flatten(1)[:, :columns] == 0
    if call.indices is not None:
        is_row = torch.zeros(rows + 1, dtype=torch.bool, device=call.logits.device)
        inside = (call.indices >= 0) & (call.indices < rows)
        is_row[torch.where(inside, call.indices, rows).long()] = True
        is_masked &= is_row[:rows, None]
    call.logits.masked_fill_(is_masked, -torch.inf)


def _instance(call: TokenBitmaskCall) -> Instance:
    return Instance(elements.short(call.logits.dtype), {"ELEMENT": elements.CPP[call.logits.dtype]})


@compile_ops("sampling/token_bitmask.hip", gen_func=_instance)
def _token_bitmask_hip(call: TokenBitmaskCall) -> None: ...


def _check(call: TokenBitmaskCall) -> object:
    rows, columns = call.logits.shape
    parts.check_columns(_OP, "logits", call.logits)
    parts.check_per_row(_OP, rows, bitmask=call.bitmask)
    if call.bitmask.shape[1] * 32 < columns:
        raise ValueError(f"{_OP}: bitmask must have at least {-(-columns // 32)} columns, "
                         f"got shape {tuple(call.bitmask.shape)}")
    return SKIP if rows == 0 or (call.indices is not None and call.indices.numel() == 0) else None


def _refusal(target: Target, call: TokenBitmaskCall) -> str | None:
    masked = 0 if call.indices is None else call.indices.numel()
    return parts.too_many_rows(masked) or parts.refusal(target, call)


def _cases(device: torch.device) -> dict[str, TokenBitmaskCall]:
    """Whole words and a part of the last one; all rows, and some."""
    mask = torch.randint(-2**31, 2**31, (3, 32), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    mask[:, 3:9] = 0
    rows = torch.tensor([2, 0], dtype=torch.int32, device=device)
    return {"all": TokenBitmaskCall(torch.zeros(3, 1024, device=device), mask.to(device)),
            "some": TokenBitmaskCall(torch.zeros(3, 1001, device=device), mask.to(device), rows)}


_token_bitmask = Op(
    _OP, call=TokenBitmaskCall, reference=token_bitmask_ref, check=_check, cases=_cases, writes=("logits",),
    backends=(Backend("hip", _token_bitmask_hip, refusal=_refusal), Backend("torch", token_bitmask_ref)))


def apply_token_bitmask_inplace(logits: Tensor, bitmask: Tensor, indices: Tensor | None = None, *,
                                backend: str | None = None) -> Tensor:
    """The logits of tokens that a grammar does not allow become -inf.

    `logits[r, c] = -inf` where `bitmask[r, c / 32] >> c mod 32 & 1 = 0`.

    Args:
        logits: [rows, columns] bf16|fp16|fp32, written, rows contiguous, at any distance.
        bitmask: [rows, words] int32, a bit for each column at least, rows contiguous, at any distance.
        indices: [any] int32, the rows that are masked; numbers that are no row are left out. None: each row.

    Returns: `logits`.

    Notes:
        Logits are not read, and written only where masked.

    Source: XGrammar's `apply_token_bitmask_inplace`.
    """
    _token_bitmask.run(logits, bitmask, indices, backend=backend)
    return logits


_token_bitmask.public.append(apply_token_bitmask_inplace)
