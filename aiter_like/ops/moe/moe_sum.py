# SPDX-License-Identifier: MIT
"""Sums of experts' results: for each token its rows, weighted, in the order of its slots.

Kernels: csrc/moe/moe_sum.hip, ops/moe/triton/moe_sum.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, rows, tune_shapes

__all__ = ["moe_sum"]

_OP = "moe_sum"
_MOST_SLOTS = 2**16


class MoeSumCall(NamedTuple):
    """One call of moe_sum: its arguments in the order of the function that moe_sum.hip exports.

    Attributes:
        input: [tokens, slots, columns], with `index` [rows, columns]. Rows of slots that do not count are not read.
        weights: [tokens, slots]; None: 1.
        ids: [tokens, slots]: the expert of each slot, which counts where it is one of 0 … experts - 1.
        mask: [experts]: 0 where an expert's slots do not count.
        local_tokens: as many of the first tokens count; the others get zeros.
        experts: how many there are, for `ids`.
        index: [tokens, slots]: the row of `input` for each slot, which counts where there is that row.
        used: with `index`: as many of the first rows count.
    """

    output: Annotated[Tensor, "_ _", elements.FLOATS]
    input: Annotated[Tensor, "*tokens columns", elements.FLOATS]
    weights: Annotated[Tensor | None, "_ _", torch.float32] = None
    ids: Annotated[Tensor | None, "_ _", torch.int32] = None
    mask: Annotated[Tensor | None, "_", torch.int32] = None
    local_tokens: Annotated[Tensor | None, "1", torch.int32] = None
    experts: int = 0
    index: Annotated[Tensor | None, "_ _", torch.int32] = None
    used: Annotated[Tensor | None, "1", torch.int64] = None


def moe_sum_ref(call: MoeSumCall) -> None:
    """The formula in torch, in fp32, slot by slot; writes `output`."""
    (tokens, slots), columns = _tokens(call), call.output.shape[1]
    device = call.output.device
    counts = torch.ones(tokens, slots, dtype=torch.bool, device=device)
    if call.local_tokens is not None:
        counts &= (torch.arange(tokens, device=device) < call.local_tokens)[:, None]
    if call.ids is not None:
        counts &= (call.ids >= 0) & (call.ids < call.experts)
        if call.mask is not None and call.experts:
            counts &= call.mask[call.ids.clamp(0, call.experts - 1).long()] != 0
    if call.index is not None:
        counts &= (call.index >= 0) & (call.index < call.input.shape[0])
        if call.used is not None:
            counts &= call.index < call.used
    total = torch.zeros(tokens, columns, device=device, dtype=torch.float32)
    for slot in range(slots if call.input.numel() else 0):
        if call.index is None:
            x = call.input[:, slot]
        else:
            x = call.input[call.index[:, slot].clamp(0, call.input.shape[0] - 1).long()]
        x = x.float() if call.weights is None else x.float() * call.weights[:, slot, None]
        total += torch.where(counts[:, slot, None], x, 0.0)
    call.output.copy_(total)


def _instance(call: MoeSumCall) -> Instance:
    return Instance(f"{dtypes.name(call.input.dtype)}_{dtypes.name(call.output.dtype)}",
                    {"ELEMENT": elements.CPP[call.input.dtype], "OUT": elements.CPP[call.output.dtype]})


@compile_ops("moe/moe_sum.hip", gen_func=_instance)
def _moe_sum_hip(call: MoeSumCall) -> None: ...


def _check(call: MoeSumCall) -> object:
    check.tensor(_OP, "input", call.input, rank=3 if call.index is None else 2)
    tokens, slots = _tokens(call)
    if slots > _MOST_SLOTS:
        raise ValueError(f"{_OP}: {'input' if call.index is None else 'index'} must have at most {_MOST_SLOTS} slots "
                         f"of a token, got {slots}")
    for name, one in (("weights", call.weights), ("ids", call.ids)):
        if one is not None:
            check.tensor(_OP, name, one, shape=(tokens, slots))
    check.tensor(_OP, "output", call.output, shape=(tokens, call.input.shape[-1]))
    check.integer(_OP, "experts", call.experts, low=0)
    if call.mask is not None:
        if call.ids is None:
            raise ValueError(f"{_OP}: mask must come with ids, got None for them")
        check.tensor(_OP, "mask", call.mask, shape=(call.experts,))
    if call.used is not None and call.index is None:
        raise ValueError(f"{_OP}: used must come with index, got None for it")
    return SKIP if call.output.numel() == 0 else None


def _tokens(call: MoeSumCall) -> tuple[int, ...]:
    """How many there are, and slots of each."""
    return tuple(call.input.shape[:2] if call.index is None else call.index.shape)


def _kernel_refusal(target: Target, call: MoeSumCall) -> str | None:
    """Says why no kernel takes a call that torch serves."""
    return rows.refusal(output=call.output)


def _cases(device: torch.device) -> dict[str, MoeSumCall]:
    """Whole accesses with experts that do not count, single elements, rows by their numbers in fp32."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    def numbers(count: int, *shape: int) -> Tensor:
        return torch.randint(-1, count, shape, generator=generator, dtype=torch.int32).to(device)

    x, odd = random(5, 9, 1032, dtype=torch.bfloat16), random(3, 2, 77, dtype=torch.float16)
    mask = (torch.arange(7) % 3 > 0).int().to(device)
    local, used = torch.tensor([4], dtype=torch.int32, device=device), torch.tensor([11], device=device)
    return {"experts": MoeSumCall(torch.empty_like(x[:, 0]), x, random(5, 9), numbers(8, 5, 9), mask, local, 7),
            "odd": MoeSumCall(torch.empty_like(odd[:, 0]), odd),
            "index": MoeSumCall(random(6, 260), random(12, 260), random(6, 4), index=numbers(13, 6, 4), used=used)}


class MoeSumKey(NamedTuple):
    """The fields that a tuned row of moe_sum is chosen by."""

    tokens: int
    slots: int
    columns: int
    dtype: str

    @classmethod
    def of(cls, call: MoeSumCall) -> MoeSumKey:
        return cls(*_tokens(call), call.output.shape[1], dtypes.name(call.input.dtype))

    def make(self, device: torch.device, seed: int) -> MoeSumCall:
        x = tune_shapes.normal(device, seed, self.dtype)(self.tokens, self.slots, self.columns)
        return MoeSumCall(torch.empty_like(x[:, 0]), x)

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[MoeSumKey]:
        """The keys of models with experts: results of pairs in the layer's dtype and, as fused_moe has those of few, in
        fp32."""
        if model.num_experts:
            for dtype in (model.dtype, "fp32"):
                yield cls(tokens, model.experts_per_token, model.hidden_size, dtype)


moe_sum_op = Op(
    _OP, call=MoeSumCall, reference=moe_sum_ref, check=_check, key=MoeSumKey, round_field="tokens", cases=_cases,
    writes=("output",), sums_in_fp32=True,
    backends=(Backend("hip", _moe_sum_hip, refusal=_kernel_refusal),
              Backend("triton", "ops.moe.triton.moe_sum:moe_sum", refusal=_kernel_refusal,
                      space=lambda *_: [{"num_warps": count} for count in (1, 2, 4)]),
              Backend("torch", moe_sum_ref)))
"""`moe_sum_op.run(output, input, weights, ids, mask, local_tokens, experts)`, for operators beside this one."""


def moe_sum(input: Tensor, output: Tensor, *, backend: str | None = None) -> None:
    """The sum over the slots of each token: `output[t] = Σ_s input[t, s]`, slot by slot.

    Args:
        input: [tokens, slots, columns] bf16|fp16|fp32, last dimension contiguous.
        output: [tokens, columns] bf16|fp16|fp32, written, last dimension contiguous.

    Notes: Added in fp32, rounded to nearest even once; deterministic.
    """
    moe_sum_op.run(output, input, backend=backend)


moe_sum_op.public.append(moe_sum)
