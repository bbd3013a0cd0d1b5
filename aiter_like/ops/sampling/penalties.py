# SPDX-License-Identifier: MIT
"""Repetition, frequency and presence penalties. Kernel: csrc/sampling/penalties.hip."""

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

__all__ = ["apply_penalties"]

_OP = "penalties"


class PenaltiesCall(NamedTuple):
    """One call of penalties.

    Attributes:
        logits: [rows, columns] bf16|fp16|fp32, read and written where a token occurs, rows evenly spaced.
        prompt_tokens, output_tokens: [rows, any] int32|int64; what is no column is padding. None: no tokens.
        presence, frequency, repetition: [rows] fp32.
    """

    logits: Tensor
    prompt_tokens: Tensor | None
    output_tokens: Tensor | None
    presence: Tensor
    frequency: Tensor
    repetition: Tensor


def penalties_ref(call: PenaltiesCall) -> None:
    """The formula in torch, in fp32, with a count for each column."""

    def counts(tokens: Tensor | None) -> Tensor:
        rows, columns = call.logits.shape
        found = torch.zeros(rows, columns + 1, device=call.logits.device, dtype=torch.float32)
        if tokens is not None:
            inside = torch.where((tokens >= 0) & (tokens < columns), tokens, columns).long()
            found.scatter_add_(1, inside, torch.ones(inside.shape, device=found.device, dtype=torch.float32))
        return found[:, :columns]

    x, output = call.logits.float(), counts(call.output_tokens)
    repetition, is_seen = call.repetition[:, None], (output > 0) | (counts(call.prompt_tokens) > 0)
    y = torch.where(x > 0, x / repetition, x * repetition)
    y = torch.where(output > 0, y - call.frequency[:, None] * output - call.presence[:, None], y)
    call.logits.copy_(torch.where(is_seen, y, x))


def _instance(call: PenaltiesCall) -> Instance:
    return Instance(elements.short(call.logits.dtype), {"ELEMENT": elements.CPP[call.logits.dtype]})


@compile_ops("sampling/penalties.hip", gen_func=_instance)
def _penalties_hip(call: PenaltiesCall) -> None: ...


def _check(call: PenaltiesCall) -> object:
    logits = call.logits
    parts.check_rows(_OP, "logits", logits)
    for name, tokens in (("prompt_tokens", call.prompt_tokens), ("output_tokens", call.output_tokens)):
        if tokens is not None:
            check.tensor(_OP, name, tokens, dtypes=elements.INTEGERS, shape=(logits.shape[0], None),
                         device=logits.device)
    for name, numbers in (("presence", call.presence), ("frequency", call.frequency), ("repetition", call.repetition)):
        check.tensor(_OP, f"{name}_penalties", numbers, dtypes=(torch.float32,), shape=logits.shape[:1],
                     device=logits.device)
    return SKIP if logits.numel() == 0 else None


def _refusal(target: Target, call: PenaltiesCall) -> str | None:
    if call.logits.shape[0] > 1 and call.logits.stride(0) < call.logits.shape[1]:
        return "the rows of logits overlap"
    return parts.refusal(logits=call.logits)


def _cases(device: torch.device) -> dict[str, PenaltiesCall]:
    """Rows of two workgroups, tokens that occur often, and padding."""
    random = torch.Generator().manual_seed(0)
    prompt, output = (torch.randint(0, high, (3, 300), generator=random).to(device) for high in (8300, 40))
    numbers = [torch.tensor(each, device=device) for each in ([0.5, 0.0, -0.5], [0.1, 0.2, 0.0], [1.0, 1.3, 0.8])]
    output[:, -7:] = 8250
    return {"two": PenaltiesCall(torch.zeros(3, 8250, device=device), prompt, output.int(), *numbers)}


_penalties = Op(
    _OP, call=PenaltiesCall, reference=penalties_ref, check=_check, cases=_cases, writes=("logits",),
    backends=(Backend("hip", _penalties_hip, refusal=_refusal), Backend("torch", penalties_ref)))


def apply_penalties(logits: Tensor, prompt_tokens: Tensor | None, output_tokens: Tensor | None,
                    presence_penalties: Tensor, frequency_penalties: Tensor, repetition_penalties: Tensor, *,
                    backend: str | None = None) -> Tensor:
    """Penalties of the tokens that each request has seen, in place.

    `x = logits / repetition` where positive, else `logits · repetition`, of tokens in prompt or output;
    `x = x - frequency · count - presence` of those in the output.

    Args:
        logits: [rows, columns] bf16|fp16|fp32, written, rows contiguous, at any distance.
        prompt_tokens: [rows, any] int32|int64, the prompt of each row; what is no column is padding. None: none.
        output_tokens: [rows, any] int32|int64, what was generated, likewise.
        presence_penalties: [rows] fp32.
        frequency_penalties: [rows] fp32.
        repetition_penalties: [rows] fp32; 1: none.
        backend: "hip" or "torch" instead of the automatic choice.

    Returns:
        `logits`.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        In fp32, rounded once. Only the logits of tokens that occur are read and written. Deterministic. Can be captured
        in a graph.

    Source: vLLM's `apply_penalties`; Keskar et al., CTRL (2019), for repetition.
    """
    _penalties.run(logits, prompt_tokens, output_tokens, presence_penalties, frequency_penalties, repetition_penalties,
                   backend=backend)
    return logits


_penalties.public.append(apply_penalties)
