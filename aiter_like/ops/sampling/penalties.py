# SPDX-License-Identifier: MIT
"""Repetition, frequency and presence penalties. Kernel: csrc/sampling/penalties.hip."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements
from aiter_like.ops.sampling import parts

__all__ = ["apply_penalties"]

_OP = "penalties"


class PenaltiesCall(NamedTuple):
    """One call of penalties. Rows of logits are evenly spaced; read and written is where a token occurs.

    Attributes:
        prompt_tokens, output_tokens: what is no column is padding; None: no tokens.
    """

    logits: Annotated[Tensor, "rows columns", elements.FLOATS]
    prompt_tokens: Annotated[Tensor | None, "_ _", elements.INTEGERS]
    output_tokens: Annotated[Tensor | None, "_ _", elements.INTEGERS]
    presence: Annotated[Tensor, "_", torch.float32]
    frequency: Annotated[Tensor, "_", torch.float32]
    repetition: Annotated[Tensor, "_", torch.float32]


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
    parts.check_columns(_OP, "logits", call.logits)
    parts.check_per_row(_OP, call.logits.shape[0], **dict(zip(call._fields[1:], call[1:])))
    return SKIP if call.logits.numel() == 0 else None


def _cases(device: torch.device) -> dict[str, PenaltiesCall]:
    """Rows of two workgroups, tokens that occur often, and padding."""
    random = torch.Generator().manual_seed(0)
    prompt, output = (torch.randint(0, high, (3, 300), generator=random).to(device) for high in (8300, 40))
    numbers = [torch.tensor(each, device=device) for each in ([0.5, 0.0, -0.5], [0.1, 0.2, 0.0], [1.0, 1.3, 0.8])]
    output[:, -7:] = 8250
    return {"two": PenaltiesCall(torch.zeros(3, 8250, device=device), prompt, output.int(), *numbers)}


_penalties = Op(
    _OP, call=PenaltiesCall, reference=penalties_ref, check=_check, cases=_cases, writes=("logits",),
    backends=(Backend("hip", _penalties_hip, refusal=parts.refusal), Backend("torch", penalties_ref)))


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
        presence_penalties, frequency_penalties: [rows] fp32.
        repetition_penalties: [rows] fp32; 1: none.

    Returns: `logits`.

    Notes:
        In fp32, rounded once. Only the logits of tokens that occur are read and written. Deterministic.

    Source: vLLM's `apply_penalties`; Keskar et al., CTRL (2019), for repetition.
    """
    _penalties.run(logits, prompt_tokens, output_tokens, presence_penalties, frequency_penalties, repetition_penalties,
                   backend=backend)
    return logits


_penalties.public.append(apply_penalties)
