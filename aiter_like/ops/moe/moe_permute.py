# SPDX-License-Identifier: MIT
"""Packing of tokens' rows for experts, expert by expert, and the weighted sums back.

Kernels: csrc/moe/moe_permute.hip, ops/moe/triton/moe_permute.py; of the way back those of moe_sum.py.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.device import Target
from aiter_like.dispatch import STRIDED, Backend, Op
from aiter_like.jit import compile_ops
from aiter_like.ops.common import elements
from aiter_like.ops.common.contents import check_starts
from aiter_like.ops.moe.moe_sorting import MOST_EXPERTS, capacity, instance_of_ids
from aiter_like.ops.moe.moe_sum import moe_sum_op

__all__ = ["moe_permute", "moe_unpermute"]

_OP = "moe_permute"
_ROWS = (*elements.FLOATS, *elements.FP8, torch.int8, torch.uint8)


class MoePermuteCall(NamedTuple):
    """One call of moe_permute: its arguments in the order of the function that moe_permute.hip exports.

    Attributes:
        output, output_scales: written where a pair is; rows of padding stay as they are.
        index: the number of the pair, token · k + slot, of each row; tokens · k where is none.
        inverse: the row of each pair, contiguous; -1 where it does not count.
        first: [experts + 1]: where an expert's rows begin, and where they all end.
        ids: experts of all devices; numbers that are none do not count.
        expert_map: of the experts of all devices the number of each here, others than 0 … experts - 1 elsewhere.
        experts: how many there are here.
        block: each expert's rows are padded to a multiple of it.
    """

    output: Annotated[Tensor, "rows columns", "input"]
    output_scales: Annotated[Tensor | None, "rows groups", torch.float32]
    index: Annotated[Tensor, "rows", torch.int32]
    inverse: Annotated[Tensor, "tokens k", torch.int32]
    first: Annotated[Tensor, "_", torch.int64]
    input: Annotated[Tensor, "tokens columns", _ROWS]
    scales: Annotated[Tensor | None, "tokens groups", torch.float32, STRIDED]
    ids: Annotated[Tensor, "tokens k", elements.INTEGERS]
    expert_map: Annotated[Tensor | None, "_", torch.int32] = None
    experts: int = 1
    block: int = 1


def moe_permute_ref(call: MoePermuteCall) -> None:
    """A stable sort in torch; writes all that the kernels write."""
    (tokens, slots), device = call.ids.shape, call.ids.device
    expert = call.ids.flatten().long()
    if call.expert_map is not None:
        known = (expert >= 0) & (expert < len(call.expert_map))
        expert = torch.where(known, torch.cat([call.expert_map.long(), expert.new_full((1,), -1)])[
            torch.where(known, expert, len(call.expert_map))], -1)
    expert = torch.where((expert >= 0) & (expert < call.experts), expert, call.experts)
    totals = torch.bincount(expert, minlength=call.experts + 1)[:call.experts]
    order = expert.argsort(stable=True)[:int(totals.sum())]
    ends = ((totals + call.block - 1) // call.block * call.block).cumsum(0)
    call.first[0] = 0
    call.first[1:] = ends
    of = expert[order]
    place = call.first[of] + torch.arange(len(order), device=device) - (totals.cumsum(0) - totals)[of]
    call.index.fill_(tokens * slots)
    call.index[place] = order.int()
    call.inverse.fill_(-1)
    call.inverse.view(-1)[order] = place.int()
    token = order // max(slots, 1)
    call.output.view(torch.uint8)[place] = call.input.contiguous().view(torch.uint8)[token]
    if call.scales is not None:
        call.output_scales[place] = call.scales[token]


@compile_ops("moe/moe_permute.hip", gen_func=instance_of_ids)
def _moe_permute_hip(call: MoePermuteCall) -> None: ...


def _check(call: MoePermuteCall) -> None:
    check.integer(_OP, "n_local_expert", call.experts, low=1, high=2**20)
    check.integer(_OP, "align_block_size", call.block, low=1, high=2**16)
    least = capacity(call.ids.numel(), call.experts, call.block)
    if least >= 2**31:
        raise ValueError(f"{_OP}: topk_ids must have less than {2**31} elements with padding, got {least}")
    rows = call.output.shape[0]
    if not least <= rows < 2**31:
        raise ValueError(f"{_OP}: permuted_hidden_states must have at least {least} rows and less than {2**31}, got "
                         f"{rows}")
    check.tensor(_OP, "expert_first_token_offset", call.first, shape=(call.experts + 1,))
    if not call.inverse.is_contiguous():
        raise ValueError(f"{_OP}: inv_permuted_idx must be contiguous, got strides {call.inverse.stride()}")
    if (call.scales is None) != (call.output_scales is None):
        raise ValueError(f"{_OP}: a1q_scale must come with a tensor for its result, got one of them")


def _kernel_refusal(target: Target, call: MoePermuteCall) -> str | None:
    if call.experts > MOST_EXPERTS:
        return f"at most {MOST_EXPERTS} experts here, got {call.experts}"
    return None


def _call(input: Tensor, scales: Tensor | None, ids: Tensor, expert_map: Tensor | None, experts: int, block: int,
          output: Tensor | None = None) -> MoePermuteCall:
    """With new outputs where none is given; `ids`: a matrix."""
    if output is None:
        rows = -(-capacity(ids.numel(), experts, block) // block) * block
        output = input.new_empty((rows, input.shape[1]))
    rows = output.shape[0]
    permuted_scales = None if scales is None else scales.new_empty((rows, scales.shape[1]))
    return MoePermuteCall(output, permuted_scales, ids.new_empty(rows, dtype=torch.int32),
                          ids.new_empty(ids.shape, dtype=torch.int32),
                          ids.new_empty(experts + 1, dtype=torch.int64), input, scales, ids, expert_map, experts, block)


def _cases(device: torch.device) -> dict[str, MoePermuteCall]:
    """One workgroup with scales; chunks with experts elsewhere; single elements, in blocks, with many experts."""
    generator = torch.Generator().manual_seed(0)
    calls = {}
    for name, tokens, slots, experts, block, columns, dtype in (("few", 7, 4, 16, 1, 272, torch.bfloat16),
                                                                ("chunks", 700, 6, 60, 16, 32, torch.float32),
                                                                ("many experts", 40, 8, 600, 4, 77, torch.float16)):
        x = torch.randn(tokens, columns, generator=generator).to(device, dtype)
        ids = torch.randint(-1, experts + 1, (tokens, slots), generator=generator, dtype=torch.int32).to(device)
        scales = torch.rand(3, tokens, generator=generator).to(device).T if name == "few" else None
        expert_map = None
        if name == "chunks":
            number = torch.arange(experts)
            expert_map = torch.where(number % 3 == 1, number // 3, -1).int().to(device)
            experts = int(expert_map.max()) + 1
        call = _call(x, scales, ids if name == "few" else ids.long(), expert_map, experts, block)
        for tensor in call[:5]:
            if tensor is not None:
                tensor.zero_()
        calls[name] = call
    return calls


_moe_permute = Op(_OP, call=MoePermuteCall, reference=moe_permute_ref, check=_check, cases=_cases,
                  writes=("output", "output_scales", "index", "inverse", "first"),
                  backends=(Backend("hip", _moe_permute_hip, refusal=_kernel_refusal),
                            Backend("triton", "ops.moe.triton.moe_permute:moe_permute", refusal=_kernel_refusal),
                            Backend("torch", moe_permute_ref)))


def moe_permute(hidden_states: Tensor, a1q_scale: Tensor | None, topk_ids: Tensor, n_expert: int,
                n_local_expert: int = -1, expert_map: Tensor | None = None,
                permuted_hidden_states: Tensor | None = None, *, align_block_size: int | None = None,
                backend: str | None = None) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor]:
    """Copies of tokens' rows for their experts: experts ascending, and within an expert in the order of the tokens.

    Args:
        hidden_states: [tokens, columns] bf16|fp16|fp32|fp8|int8|uint8, last dimension contiguous.
        a1q_scale: [tokens, groups] fp32 of any strides, copied with the rows; of fewer dimensions returned as it is.
        topk_ids: [tokens, k] int32|int64, rows evenly spaced: experts; numbers that are none do not count.
        n_expert, n_local_expert: experts of all devices, and of this one (-1: all), up to 1024 for the kernels.
        expert_map: [n_expert] int32: the number on this device of each expert, others than 0 … n_local_expert - 1 where
            it is elsewhere; None: they are the first ones.
        permuted_hidden_states: the result, of L rows or more, last dimension contiguous; default: a new one,
            dtype of `hidden_states` as well.
        align_block_size: each expert's rows are padded to a multiple of it; default: 1.

    Returns:
        `permuted_hidden_states` [L, columns] with L = tokens · k + min(tokens · k, n_local_expert) · (align_block_size
        - 1), rounded up to whole blocks; the scales [L, groups] likewise; `expert_first_token_offset`
        [n_local_expert + 1] int64, where an expert's rows begin, and where they all end; `inv_permuted_idx`
        [tokens · k] int32, the row of each pair, -1 where it does not count; `permuted_idx` [L] int32, the pair of each
        row, tokens · k where is none. Such rows of the first two are undefined.

    Notes: Without waiting for the device; deterministic. A token's row is read once, however many experts it has here.

    Source: vLLM's `moe_permute`.
    """
    check.tensor(_OP, "hidden_states", hidden_states, rank=2)
    check.tensor(_OP, "topk_ids", topk_ids, rank=2)
    check.integer(_OP, "n_expert", n_expert, low=1, high=2**20)
    check.integer(_OP, "n_local_expert", n_local_expert, low=-1, high=n_expert)
    block = 1 if align_block_size is None else align_block_size
    check.integer(_OP, "align_block_size", block, low=1, high=2**16)
    if expert_map is not None:
        check.tensor(_OP, "expert_map", expert_map, shape=(n_expert,))
    if a1q_scale is not None:
        check.tensor(_OP, "a1q_scale", a1q_scale, dtypes=(torch.float32,), last_contiguous=False)
    if permuted_hidden_states is not None:
        check.tensor(_OP, "permuted_hidden_states", permuted_hidden_states, rank=2)
    has_scales = a1q_scale is not None and a1q_scale.ndim > 1
    experts = n_expert if n_local_expert == -1 else n_local_expert
    call = _call(hidden_states, a1q_scale if has_scales else None, topk_ids, expert_map, experts, block,
                 permuted_hidden_states)
    _moe_permute.run(*call, backend=backend)
    scales = call.output_scales if has_scales else a1q_scale
    return call.output, scales, call.first, call.inverse.view(-1), call.index


def moe_unpermute(out: Tensor, permuted_hidden_states: Tensor, topk_weights: Tensor, inv_permuted_idx: Tensor,
                  expert_first_token_offset: Tensor | None = None, *, backend: str | None = None) -> None:
    """The sums of each token's rows that `moe_permute` has made and experts have worked on, slot by slot:
    `out[t] = Σ_s topk_weights[t, s] · permuted_hidden_states[inv_permuted_idx[t, s]]`.

    Args:
        out: [tokens, columns] bf16|fp16|fp32, written, last dimension contiguous.
        permuted_hidden_states: [rows, columns] bf16|fp16|fp32, last dimension contiguous.
        topk_weights: [tokens, k] fp32, rows evenly spaced.
        inv_permuted_idx: [tokens · k] or [tokens, k] int32: the row of each pair, which counts where there is one.
        expert_first_token_offset: [n_local_expert + 1] int64, whose last number says how many of the first rows hold
            something; None: all.

    Notes: Added in fp32, rounded to nearest even once; rows of pairs that do not count are not read; deterministic.

    Source: vLLM's `moe_unpermute`.
    """
    name = "moe_unpermute"  # messages name this function where the operator calls arguments otherwise
    check.tensor(name, "permuted_hidden_states", permuted_hidden_states, rank=2)
    check.tensor(name, "topk_weights", topk_weights, rank=2)
    shape, device = tuple(topk_weights.shape), topk_weights.device
    check.tensor(name, "inv_permuted_idx", inv_permuted_idx, dtypes=(torch.int32,), device=device,
                 shape=(topk_weights.numel(),) if inv_permuted_idx.ndim == 1 else shape)
    used = None
    if expert_first_token_offset is not None:
        check.tensor(name, "expert_first_token_offset", expert_first_token_offset, dtypes=(torch.int64,), rank=1,
                     device=device)
        if expert_first_token_offset.numel() == 0:
            raise ValueError(f"{name}: expert_first_token_offset must have at least 1 element, got shape (0,)")
        check_starts(name, "expert_first_token_offset", expert_first_token_offset, len(permuted_hidden_states),
                     "rows of permuted_hidden_states")
        used = expert_first_token_offset[-1:]
    moe_sum_op.run(out, permuted_hidden_states, topk_weights, index=inv_permuted_idx.view(shape), used=used,
                   backend=backend)


_moe_permute.public.append(moe_permute)
moe_sum_op.public.append(moe_unpermute)
