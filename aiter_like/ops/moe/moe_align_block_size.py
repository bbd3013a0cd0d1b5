# SPDX-License-Identifier: MIT
"""Sorting of the flat numbers of pairs of token and expert, in whole blocks. Kernel: csrc/moe/moe_align_block_size.hip.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.device import Target
from aiter_like.dispatch import Backend, Op
from aiter_like.jit import compile_ops
from aiter_like.ops.common import elements, rows
from aiter_like.ops.moe.moe_sorting import MOST_EXPERTS, capacity, check_lengths, instance_of_ids

__all__ = ["moe_align_block_size"]

_OP = "moe_align_block_size"


class MoeAlignBlockSizeCall(NamedTuple):
    """One call of moe_align_block_size: its arguments in the order of the function that the .hip exports.

    Attributes:
        sorted_ids: [capacity]: numbers of pairs, in padding the number of all pairs.
        sorted_experts: [blocks]: the expert of each block.
        block_pairs: [blocks]: how many pairs of that expert there are from this block on.
        valid: [1]: pairs with padding. What lies beyond is left as it is.
        ids: rows evenly spaced: experts; others than 0 … experts - 1 do not count.
        experts: how many there are.
        block: each expert's pairs are padded to a multiple of it.
    """

    sorted_ids: Annotated[Tensor, "_", torch.int32]
    sorted_experts: Annotated[Tensor, "_", torch.int32]
    block_pairs: Annotated[Tensor | None, "_", torch.int32]
    valid: Annotated[Tensor, "_", torch.int32]
    ids: Annotated[Tensor, "*tokens k", elements.INTEGERS]
    experts: int
    block: int


def moe_align_block_size_ref(call: MoeAlignBlockSizeCall) -> None:
    """A stable sort in torch; writes all that the kernel writes."""
    pairs, device = call.ids.numel(), call.ids.device
    flat = call.ids.flatten()
    expert = torch.where((flat >= 0) & (flat < call.experts), flat, call.experts).long()
    totals = torch.bincount(expert, minlength=call.experts + 1)[:call.experts]
    order = expert.argsort(stable=True)[:int(totals.sum())]
    blocks = (totals + call.block - 1) // call.block
    first = (blocks.cumsum(0) - blocks) * call.block
    count = int(blocks.sum())
    of = expert[order]
    call.sorted_ids[:count * call.block] = pairs
    place = first[of] + torch.arange(len(order), device=device) - (totals.cumsum(0) - totals)[of]
    call.sorted_ids[place] = order.int()
    of_block = torch.arange(call.experts, device=device).repeat_interleave(blocks)
    call.sorted_experts[:count] = of_block.int()
    if call.block_pairs is not None:
        begin = torch.arange(count, device=device) * call.block
        call.block_pairs[:count] = (totals[of_block] - (begin - first[of_block])).int()
    call.valid[0] = count * call.block


@compile_ops("moe/moe_align_block_size.hip", gen_func=instance_of_ids)
def _moe_align_block_size_hip(call: MoeAlignBlockSizeCall) -> None: ...


def _check(call: MoeAlignBlockSizeCall) -> None:
    pairs = call.ids.numel()
    if pairs >= 2**31:
        raise ValueError(f"{_OP}: topk_ids must have less than {2**31} elements, got {pairs}")
    check.integer(_OP, "num_experts", call.experts, low=1, high=2**20)
    check.integer(_OP, "block_size", call.block, low=1, high=2**16)
    places = capacity(pairs, call.experts, call.block)
    blocks = places // call.block
    check_lengths(_OP, sorted_token_ids=(call.sorted_ids, places), experts_ids=(call.sorted_experts, blocks),
                  token_nums=(call.block_pairs, blocks), num_tokens_post_pad=(call.valid, 1))


def _kernel_refusal(target: Target, call: MoeAlignBlockSizeCall) -> str | None:
    if call.experts > MOST_EXPERTS:
        return f"at most {MOST_EXPERTS} experts, got {call.experts}"
    return rows.refusal(topk_ids=call.ids)


def _cases(device: torch.device) -> dict[str, MoeAlignBlockSizeCall]:
    """One workgroup; chunks with numbers that are no experts; many experts."""
    generator = torch.Generator().manual_seed(0)
    calls = {}
    for name, tokens, slots, experts, block, dtype in (("few", 7, 4, 16, 32, torch.int64),
                                                       ("chunks", 700, 6, 60, 16, torch.int32),
                                                       ("many experts", 40, 8, 600, 4, torch.int32)):
        ids = torch.randint(-1, experts + 1, (tokens, slots), generator=generator, dtype=dtype).to(device)
        places = capacity(ids.numel(), experts, block)
        vectors = [torch.zeros(size, dtype=torch.int32, device=device)
                   for size in (places, places // block, places // block, 1)]
        calls[name] = MoeAlignBlockSizeCall(*vectors, ids, experts, block)
    return calls


_moe_align_block_size = Op(_OP, call=MoeAlignBlockSizeCall, reference=moe_align_block_size_ref, check=_check,
                           cases=_cases, writes=("sorted_ids", "sorted_experts", "block_pairs", "valid"),
                           backends=(Backend("hip", _moe_align_block_size_hip, refusal=_kernel_refusal),
                                     Backend("torch", moe_align_block_size_ref)))


def moe_align_block_size(topk_ids: Tensor, num_experts: int, block_size: int, sorted_token_ids: Tensor,
                         experts_ids: Tensor, token_nums: Tensor | None, num_tokens_post_pad: Tensor, *,
                         backend: str | None = None) -> None:
    """Numbers of pairs of token and expert, experts ascending and within an expert pairs, padded to whole blocks.

    Args:
        topk_ids: [tokens, k] int32|int64, rows evenly spaced: experts; others than 0 … num_experts - 1 do not count.
        num_experts: how many there are; up to 1024 for the kernel.
        block_size: rows of a block.
        sorted_token_ids: [L] int32, written, of tokens · k + min(tokens · k, num_experts) · (block_size - 1) elements
            at least: pairs, token · k + slot; in padding tokens · k.
        experts_ids: [⌊L / block_size⌋] int32 at least, written: the expert of each block.
        token_nums: the same, written: pairs of that expert from this block on, so that a full block has block_size or
            more; None: not written.
        num_tokens_post_pad: [1] int32, written: pairs with padding. What lies beyond these is left as it is.

    Notes: Without waiting for the device, in one launch for up to 2048 pairs; deterministic.
    """
    _moe_align_block_size.run(sorted_token_ids, experts_ids, token_nums, num_tokens_post_pad, topk_ids, num_experts,
                              block_size, backend=backend)


_moe_align_block_size.public.append(moe_align_block_size)
