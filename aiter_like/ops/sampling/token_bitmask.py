# SPDX-License-Identifier: MIT
"""The mask of a grammar on logits. Kernel: csrc/sampling/token_bitmask.hip."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements
from aiter_like.ops.sampling import parts

__all__ = ["apply_token_bitmask_inplace"]

_OP = "token_bitmask"


class TokenBitmaskCall(NamedTuple):
    """One call of token_bitmask.

    Attributes:
        logits: [rows, columns] bf16|fp16|fp32, written where masked, rows evenly spaced.
        bitmask: [rows, at least columns / 32] int32: bit c mod 32 of word c / 32 is 1 where column c is allowed.
        indices: [any] int32: the rows that are masked; those that are none are left out. None: each.
    """

    logits: Tensor
    bitmask: Tensor
    indices: Tensor | None = None


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
    logits, bitmask = call.logits, call.bitmask
    parts.check_rows(_OP, "logits", logits)
    check.tensor(_OP, "bitmask", bitmask, dtypes=(torch.int32,), shape=(logits.shape[0], None), device=logits.device)
    if bitmask.shape[1] * 32 < logits.shape[1]:
        raise ValueError(f"{_OP}: bitmask must have at least {-(-logits.shape[1] // 32)} columns, "
                         f"got shape {tuple(bitmask.shape)}")
    if call.indices is not None:
        check.tensor(_OP, "indices", call.indices, rank=1, dtypes=(torch.int32,), device=logits.device)
    return SKIP if logits.numel() == 0 or (call.indices is not None and call.indices.numel() == 0) else None


def _refusal(target: Target, call: TokenBitmaskCall) -> str | None:
    if call.indices is not None and call.indices.numel() > parts.MOST_ROWS:
        return f"at most {parts.MOST_ROWS} rows fit one launch, got {call.indices.numel()}"
    if call.logits.shape[0] > 1 and call.logits.stride(0) < call.logits.shape[1]:
        return "the rows of logits overlap"
    return parts.refusal(logits=call.logits)


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
        backend: "hip" or "torch" instead of the automatic choice.

    Returns:
        `logits`.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Logits are not read, and written only where masked. Can be captured in a graph.

    Source: XGrammar's `apply_token_bitmask_inplace`.
    """
    _token_bitmask.run(logits, bitmask, indices, backend=backend)
    return logits


_token_bitmask.public.append(apply_token_bitmask_inplace)
