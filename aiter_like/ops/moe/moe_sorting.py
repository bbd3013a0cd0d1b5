# SPDX-License-Identifier: MIT
"""Sorting: pairs of token and expert in the order in which products of experts take them. Kernel:
csrc/moe/moe_sorting.hip.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target
from aiter_like.dispatch import Backend, Op
from aiter_like.errors import UnsupportedError
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import contents, elements, rows

__all__ = ["moe_sorting", "moe_sorting_fwd"]

_OP = "moe_sorting"
_EXPERTS = (256, 1024)  # experts of the builds
MOST_EXPERTS = _EXPERTS[-1]
_MOST_SLOTS, _MOST_TOKENS = 127, 2**24 - 1  # 7 and 24 bits of a number


class MoeSortingCall(NamedTuple):
    """One call of moe_sorting: its arguments in the order of the function that moe_sorting.hip exports.

    Attributes:
        sorted_ids: [capacity]: slot << 24 | token; in padding k << 24 | tokens.
        sorted_weights: [capacity]: the pair's weight; 0 in padding.
        sorted_experts: [blocks]: the expert of each block, counted among those that are here.
        valid: [2]: pairs with padding, and tokens that count. What lies beyond is left as it is.
        buffer: set to zero; of whole words of 4 bytes.
        ids: rows evenly spaced: experts; others than 0 … experts - 1 do not count.
        weights: rows evenly spaced; with `local_tokens` also fewer rows: other tokens do not count.
        mask: [experts]: 0 where an expert is on another device.
        local_tokens: as many of the first tokens count.
        experts: how many there are.
        block: each expert's pairs are padded to a multiple of it.
        local_ids: the expert of each pair, counted among those that are here; -1 where the pair does not count.
    """

    sorted_ids: Annotated[Tensor, "_", torch.int32]
    sorted_weights: Annotated[Tensor, "_", torch.float32]
    sorted_experts: Annotated[Tensor, "_", torch.int32]
    valid: Annotated[Tensor, "_", torch.int32]
    buffer: Annotated[Tensor | None, "*sizes"]
    ids: Annotated[Tensor, "tokens k", torch.int32]
    weights: Annotated[Tensor, "_ k", torch.float32]
    mask: Annotated[Tensor | None, "_", torch.int32] = None
    local_tokens: Annotated[Tensor | None, "1", torch.int32] = None
    experts: int = 1
    block: int = 32
    local_ids: Annotated[Tensor | None, "tokens k", torch.int32] = None


def capacity(pairs: int, experts: int, block: int) -> int:
    """Places that pairs of at most so many experts may take, each padded to whole blocks."""
    return pairs + min(pairs, experts) * (block - 1)


def experts_of_build(experts: int) -> int:
    """The macro EXPERTS of the kernels in moe_sorting_body.h: the smallest that so many fit."""
    return next(size for size in _EXPERTS if size >= experts)


def instance_of_ids(call: Any) -> Instance:
    """The build of moe_permute and moe_align_block_size, for the dtype of `ids` and so many experts."""
    experts, bits = experts_of_build(call.experts), 8 * call.ids.element_size()
    return Instance(f"i{bits}_e{experts}", {"ID": f"int{bits}_t", "EXPERTS": experts})


def moe_sorting_ref(call: MoeSortingCall) -> None:
    """A stable sort in torch; writes all that the kernel writes."""
    tokens, slots = call.ids.shape
    count = tokens if call.local_tokens is None else call.local_tokens.clamp(0, len(call.weights))
    token = torch.arange(tokens, device=call.ids.device)[:, None].expand(tokens, slots)
    slot = torch.arange(slots, device=call.ids.device).expand(tokens, slots)
    here = torch.ones(call.experts, dtype=torch.bool, device=call.ids.device) if call.mask is None else call.mask != 0
    known = (call.ids >= 0) & (call.ids < call.experts) & (token < count)
    known &= here[call.ids.clamp(0, call.experts - 1).long()]
    expert = torch.where(known, call.ids, call.experts).flatten()
    order = expert.argsort(stable=True)[:int(known.sum())]
    totals = torch.bincount(expert, minlength=call.experts + 1)[:call.experts]
    padded = (totals + call.block - 1) // call.block * call.block
    first = padded.cumsum(0) - padded
    end = int(padded.sum())
    call.sorted_ids[:end] = slots << 24 | tokens
    call.sorted_weights[:end] = 0
    of = expert[order].long()
    place = first[of] + torch.arange(len(order), device=of.device) - (totals.cumsum(0) - totals)[of]
    call.sorted_ids[place] = (slot << 24 | token).flatten()[order].int()
    call.sorted_weights[place] = call.weights.flatten()[order]
    local = (here.cumsum(0) - 1).int()
    if call.local_ids is not None:
        call.local_ids.copy_(torch.where(known, local[call.ids.clamp(0, call.experts - 1).long()], -1))
    call.sorted_experts[:end // call.block] = local.repeat_interleave(padded // call.block)
    call.valid[0] = end
    call.valid[1] = count
    if call.buffer is not None:
        call.buffer.zero_()


def _instance(call: MoeSortingCall) -> Instance:
    experts = experts_of_build(call.experts)
    return Instance(f"e{experts}", {"EXPERTS": experts})


@compile_ops("moe/moe_sorting.hip", gen_func=_instance)
def _moe_sorting_hip(call: MoeSortingCall) -> None: ...


def _check(call: MoeSortingCall) -> None:
    (tokens, slots), weights = call.ids.shape, call.weights
    if weights.shape[0] > tokens or call.local_tokens is None:
        check.tensor(_OP, "topk_weights", weights, shape=(tokens, slots))
    check.integer(_OP, "num_experts", call.experts, low=1, high=2**20)
    check.integer(_OP, "block_size", call.block, low=1, high=2**16)
    if not 1 <= slots <= _MOST_SLOTS or tokens > _MOST_TOKENS:
        raise ValueError(f"{_OP}: topk_ids must have at most {_MOST_TOKENS} rows and 1 to {_MOST_SLOTS} columns, which "
                         f"numbers of 32 bits hold, got shape {tuple(call.ids.shape)}")
    places = capacity(tokens * slots, call.experts, call.block)
    check_lengths(_OP, sorted_token_ids=(call.sorted_ids, places), sorted_weights=(call.sorted_weights, places),
                  sorted_expert_ids=(call.sorted_experts, places // call.block), num_valid_ids=(call.valid, 2))
    if call.mask is not None:
        check.tensor(_OP, "mask", call.mask, shape=(call.experts,))
    if call.local_ids is not None and not call.local_ids.is_contiguous():
        raise ValueError(f"{_OP}: local_topk_ids must be contiguous, got strides {call.local_ids.stride()}")


def check_lengths(op: str, **lists: tuple[Tensor | None, int]) -> None:
    """Lists, where they are given, are as long as a number says, or longer."""
    for name, (tensor, least) in lists.items():
        if tensor is not None and tensor.numel() < least:
            raise ValueError(f"{op}: {name} must have at least {least} elements, got {tensor.numel()}")


def check_local_tokens(op: str, local_tokens: Tensor | None, ids: Tensor) -> None:
    """There are as many tokens as count, where the number can be seen; `op` is named where there are not."""
    if local_tokens is not None:
        contents.check_values(op, "num_local_tokens", local_tokens, 0, ids.shape[0], "be a number of tokens")


def check_mask(op: str, mask: Tensor, experts: int) -> None:
    """A mask of experts has as many that are here as there are matrices, where that can be seen; `op` is named."""
    here = int(mask.count_nonzero()) if check.is_on_host(mask) else experts
    if here != experts or mask.numel() < experts:
        raise ValueError(f"{op}: expert_mask must have {experts} elements that are not 0, one for each expert of w1, "
                         f"got {here} of {mask.numel()}")


def check_order(op: str, ids: Tensor, experts: Tensor, valid: Tensor, slots: int, block: int, tokens: int,
                count: int) -> None:
    """Checks lists as moe_sorting returns them, by AITER's names, where they can be seen: they hold each pair of so
    many tokens and slots at most once, and experts below `count`.

    Raises:
        ValueError: they do not; the message names `op`.
    """
    if not contents.are_on_host(ids, experts, valid):
        return
    contents.check_values(op, "num_valid_ids", valid[:1], 0, min(len(ids), len(experts) * block))
    end = int(valid[0])
    if end % block:
        raise ValueError(f"{op}: num_valid_ids must be a multiple of block_m, {block}, got {end}")
    ids = ids[:end]
    token, slot = ids & 0xFFFFFF, ids >> 24
    is_pair = (slot >= 0) & (slot < slots) & (token < tokens)
    if (wrong := ids[~is_pair & (slot != slots)]).numel():
        raise ValueError(f"{op}: sorted_token_ids must hold slot << 24 | token, of {tokens} tokens with {slots} slots, "
                         f"or in padding {slots} << 24 | {tokens}, got {wrong[0].item():#x}")
    if len(ids[is_pair].unique()) != int(is_pair.sum()):
        raise ValueError(f"{op}: sorted_token_ids must hold each pair of token and slot once, got one twice")
    contents.check_values(op, "sorted_expert_ids", experts[:end // block], 0, count - 1, "name experts of w1")


def _kernel_refusal(target: Target, call: MoeSortingCall) -> str | None:
    if call.experts > MOST_EXPERTS:
        return f"at most {MOST_EXPERTS} experts, got {call.experts}"
    if call.buffer is not None and call.buffer.numel() * call.buffer.element_size() % 4:
        return f"moe_buf must be of whole words of 4 bytes, got shape {tuple(call.buffer.shape)} of {call.buffer.dtype}"
    if call.mask is not None and not call.mask.is_contiguous():
        return "expert_mask must be contiguous"
    return rows.refusal(topk_ids=call.ids, topk_weights=call.weights)


def _call(ids: Tensor, weights: Tensor, experts: int, block: int, buffer: Tensor | None = None,
          mask: Tensor | None = None, local_tokens: Tensor | None = None) -> MoeSortingCall:
    """With new outputs, as large as AITER's; ids: a matrix."""
    check.integer(_OP, "num_experts", experts, low=1, high=2**20)
    check.integer(_OP, "block_size", block, low=1, high=2**16)
    places = ids.numel() + experts * block - ids.shape[1]
    places = max(places, capacity(ids.numel(), experts, block))
    return MoeSortingCall(ids.new_empty(places, dtype=torch.int32), ids.new_empty(places, dtype=torch.float32),
                          ids.new_empty(-(-places // block), dtype=torch.int32), ids.new_empty(2, dtype=torch.int32),
                          buffer, ids, weights, mask, local_tokens, experts, block)


def _cases(device: torch.device) -> dict[str, MoeSortingCall]:
    """One workgroup; chunks, with experts of other devices; many experts."""
    generator = torch.Generator().manual_seed(0)
    calls = {}
    for name, tokens, slots, experts, block in (("few", 7, 4, 16, 32), ("chunks", 700, 6, 60, 16),
                                                ("many experts", 40, 8, 600, 4)):
        ids = torch.rand(tokens, experts, generator=generator).topk(slots, 1).indices.int().to(device)
        weights = torch.rand(tokens, slots, generator=generator).to(device)
        call = _call(ids, weights, experts, block, torch.empty(tokens, 6, device=device))
        for tensor in call[:4]:
            tensor.zero_()
        if name == "chunks":
            mask = (torch.arange(experts) % 3 > 0).int().to(device)
            call = call._replace(mask=mask, local_tokens=torch.tensor([650], dtype=torch.int32, device=device),
                                 weights=weights[:680], local_ids=torch.zeros_like(ids))
        calls[name] = call
    return calls


_moe_sorting = Op(_OP, call=MoeSortingCall, reference=moe_sorting_ref, check=_check, cases=_cases,
                  writes=("sorted_ids", "sorted_weights", "sorted_experts", "valid", "buffer", "local_ids"),
                  backends=(Backend("hip", _moe_sorting_hip, refusal=_kernel_refusal),
                            Backend("torch", moe_sorting_ref)))


def moe_sorting(topk_ids: Tensor, topk_weights: Tensor, num_experts: int, model_dim: int, moebuf_dtype: torch.dtype,
                block_size: int = 32, expert_mask: Tensor | None = None, num_local_tokens: Tensor | None = None,
                dispatch_policy: int = 0, return_local_topk_ids: bool = False, accumulate: bool = True,
                flat: bool = False, output_aux: bool = False, *,
                backend: str | None = None) -> tuple[Tensor, ...]:
    """Pairs of token and expert, experts ascending and within an expert tokens, each expert's padded to whole blocks.

    Args:
        topk_ids: [tokens, k] int32, rows evenly spaced: experts; others than 0 … num_experts - 1 do not count.
        topk_weights: [tokens, k] fp32, rows evenly spaced; with num_local_tokens also fewer rows, of tokens that count.
        num_experts: of all devices; up to 1024 for the kernel.
        model_dim, moebuf_dtype: columns and dtype of the buffer of results.
        block_size: rows of a block.
        expert_mask: [num_experts] int32: 0 where an expert is on another device: its pairs vanish, and the experts
            behind it count from there.
        num_local_tokens: [1] int32, 0 … tokens: as many of the first tokens count. On a GPU nobody looks: less than 0
            is 0, more than there are is all.
        dispatch_policy: chooses among AITER's own kernels; no meaning here.
        return_local_topk_ids: whether there is a sixth result.
        accumulate: the buffer is set to zero, for sums; else it is only made where there is a mask.
        flat, output_aux: not served.

    Returns:
        `sorted_ids` [L] int32, slot << 24 | token, in padding k << 24 | tokens, with L = tokens · k + num_experts ·
        block_size - k; `sorted_weights` [L] fp32, 0 in padding; `sorted_expert_ids` [⌈L / block_size⌉] int32, of each
        block; `num_valid_ids` [2] int32, rows with padding and tokens that count; `moe_buf` [tokens, model_dim], zeros,
        or [0, 0] where neither `accumulate` nor a mask asks for it; on demand `local_topk_ids` [tokens, k] int32, the
        expert of each pair, counted among those here, -1 where it does not count. Beyond the valid rows: undefined.

    Notes: Without waiting for the device; deterministic. 127 experts of a token and 2^24 - 1 tokens at most.
    """
    for name, value in (("return_local_topk_ids", return_local_topk_ids), ("flat", flat), ("output_aux", output_aux),
                        ("accumulate", accumulate)):
        check.flag(_OP, name, value)
    if flat or output_aux:
        raise UnsupportedError(f"{_OP}: {'flat' if flat else 'output_aux'} is not served")
    check.integer(_OP, "model_dim", model_dim, low=0)
    if moebuf_dtype not in elements.FLOATS:
        raise TypeError(f"{_OP}: moebuf_dtype must be one of {', '.join(map(dtypes.name, elements.FLOATS))}, got "
                        f"{moebuf_dtype}")
    check.tensor(_OP, "topk_ids", topk_ids, rank=2)
    check_local_tokens(_OP, num_local_tokens, topk_ids)
    shape = (topk_ids.shape[0], model_dim) if accumulate or expert_mask is not None else (0, 0)
    buffer = topk_ids.new_empty(shape, dtype=moebuf_dtype)
    call = _call(topk_ids, topk_weights, num_experts, block_size, buffer if buffer.numel() else None, expert_mask,
                 num_local_tokens)
    if return_local_topk_ids:
        call = call._replace(local_ids=torch.empty(topk_ids.shape, dtype=torch.int32, device=topk_ids.device))
    _moe_sorting.run(*call, backend=backend)
    return (*call[:4], buffer, call.local_ids) if return_local_topk_ids else (*call[:4], buffer)


def moe_sorting_fwd(topk_ids: Tensor, topk_weights: Tensor, sorted_token_ids: Tensor, sorted_weights: Tensor,
                    sorted_expert_ids: Tensor, num_valid_ids: Tensor, moe_buf: Tensor | None, num_experts: int,
                    unit_size: int, local_expert_mask: Tensor | None = None, num_local_tokens: Tensor | None = None,
                    dispatch_policy: int = 0, *, backend: str | None = None) -> None:
    """Sorts pairs of token and expert into given tensors. Like `moe_sorting` otherwise.

    Args:
        sorted_token_ids, sorted_weights: [L] int32 and fp32, written, contiguous; L at least tokens · k +
            min(tokens · k, num_experts) · (unit_size - 1).
        sorted_expert_ids: [⌊L / unit_size⌋] int32 at least, written.
        num_valid_ids: [2] int32, written.
        moe_buf: set to zero, contiguous, of any shape; None or empty: none.
        unit_size: rows of a block.
        local_expert_mask: [num_experts] int32: 0 where an expert is on another device.
    """
    name = "moe_sorting_fwd"  # messages name this function where the operator calls arguments otherwise
    check.tensor(name, "topk_ids", topk_ids, rank=2)
    check.integer(name, "num_experts", num_experts, low=1, high=2**20)
    check.integer(name, "unit_size", unit_size, low=1, high=2**16)
    check_local_tokens(name, num_local_tokens, topk_ids)
    buffer = None if isinstance(moe_buf, Tensor) and moe_buf.numel() == 0 else moe_buf
    _moe_sorting.run(sorted_token_ids, sorted_weights, sorted_expert_ids, num_valid_ids, buffer, topk_ids, topk_weights,
                     local_expert_mask, num_local_tokens, num_experts, unit_size, backend=backend)


_moe_sorting.public += [moe_sorting, moe_sorting_fwd]
