# SPDX-License-Identifier: MIT
"""Speculative sampling of a chain of drafted tokens. Kernel: csrc/sampling/verify_chain.hip."""

from __future__ import annotations

import functools
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.dispatch.addresses import refuse_overlap
from aiter_like.jit import compile_ops
from aiter_like.ops.common.contents import check_values
from aiter_like.ops.sampling import parts

__all__ = ["chain_speculative_sampling"]

_OP = "verify_chain"
_MOST_REQUESTS = 2**21 - 1


class VerifyChainCall(NamedTuple):
    """One call of verify_chain. All tensors are contiguous.

    Attributes:
        tokens: [requests, drafted + 1]: the accepted ones and one more, then -1.
        accepted: how many drafted tokens would be accepted, each by itself.
        emitted: how many are.
        target_probs: [requests, drafted + 1, columns].
        draft_probs: None: the drafted tokens are sure.
        lengths: how many are drafted; None: all.
        seed, offset, seeds, offsets: of the random numbers, as exponential has them.
    """

    tokens: Annotated[Tensor, "requests _", torch.int32]
    accepted: Annotated[Tensor | None, "requests", torch.int32]
    emitted: Annotated[Tensor | None, "requests", torch.int32]
    drafts: Annotated[Tensor, "requests drafted", torch.int32]
    target_probs: Annotated[Tensor, "requests _ columns", torch.float32]
    draft_probs: Annotated[Tensor | None, "requests drafted columns", torch.float32] = None
    lengths: Annotated[Tensor | None, "requests", torch.int32] = None
    seed: int = 0
    offset: int = 0
    seeds: Annotated[Tensor | None, "requests", torch.int64] = None
    offsets: Annotated[Tensor | None, "requests", torch.int64] = None


def residual_token(target: Tensor, draft: Tensor, word: int) -> int:
    """The column at which the sum of max(target - draft, 0), in units of 2^-44, passes word / 2^32 of the whole; of the
    target where nothing is left, 0 where that has nothing either. csrc/sampling/residual.h in torch.
    """
    for low in (draft, torch.zeros_like(target)):
        more = target - torch.where(low > 0, low, 0.0)
        mass = torch.where(more > 0, more, 0.0).double().mul(2.0**44).floor().long()
        total = int(mass.sum())
        if total > 0:
            return int(torch.searchsorted(mass.cumsum(0), total * word >> 32, right=True))
    return 0


def verify_chain_ref(call: VerifyChainCall) -> None:
    """The rule in torch, request by request, on the host."""
    requests, drafted = call.drafts.shape
    columns = call.target_probs.shape[2]
    words = parts.words(call, requests, drafted + 1, call.drafts.device).tolist()
    scalar = functools.partial(torch.tensor, dtype=torch.float32, device="cpu")
    for r in range(requests):
        length = drafted if call.lengths is None else min(max(int(call.lengths[r]), 0), drafted)
        is_accepted = []
        for i, token in enumerate(call.drafts[r, :length].tolist()):
            is_column = 0 <= token < columns
            q = call.target_probs[r, i, token].cpu() if is_column else scalar(0)
            p = call.draft_probs[r, i, token].cpu() if is_column and call.draft_probs is not None else scalar(1)
            is_accepted.append(bool(q > 0 and scalar(((words[r][i] >> 8) + 0.5) * 2**-24) * p < q))
        emitted = is_accepted.index(False) if False in is_accepted else length
        low = torch.zeros_like(call.target_probs[r, emitted])
        if emitted < length and call.draft_probs is not None:
            low = call.draft_probs[r, emitted]
        elif emitted < length and 0 <= int(call.drafts[r, emitted]) < columns:
            low[int(call.drafts[r, emitted])] = 1.0
        call.tokens[r] = -1
        call.tokens[r, :emitted] = call.drafts[r, :emitted]
        call.tokens[r, emitted] = residual_token(call.target_probs[r, emitted], low, words[r][drafted])
        for counts, count in ((call.accepted, sum(is_accepted)), (call.emitted, emitted)):
            if counts is not None:
                counts[r] = count


@compile_ops("sampling/verify_chain.hip")
def _verify_chain_hip(call: VerifyChainCall) -> None: ...


def _check(call: VerifyChainCall) -> object:
    requests, drafted = call.drafts.shape
    check.tensor(_OP, "target_probs", call.target_probs, shape=(requests, drafted + 1, None))
    check.tensor(_OP, "tokens", call.tokens, shape=(requests, drafted + 1))
    parts.check_columns(_OP, "target_probs", call.target_probs)
    parts.check_offset(_OP, call.offset)
    return SKIP if requests == 0 else None


def _refusal(target: Target, call: VerifyChainCall) -> str | None:
    for name in ("tokens", "drafts", "target_probs", "draft_probs"):
        tensor = getattr(call, name)
        if tensor is not None and not tensor.is_contiguous():
            return f"{name} must be contiguous, got strides {tensor.stride()}"
    if call.drafts.shape[0] > _MOST_REQUESTS:
        return f"at most {_MOST_REQUESTS} requests, got {call.drafts.shape[0]}"
    return None


def _cases(device: torch.device) -> dict[str, VerifyChainCall]:
    """With and without probabilities of the draft, and lengths."""
    random = torch.Generator().manual_seed(0)
    target = torch.softmax(torch.randn(4, 4, 300, generator=random), -1).to(device)
    draft = torch.softmax(torch.randn(4, 3, 300, generator=random), -1).to(device)
    drafts = draft.argmax(-1).int()
    empty = [torch.empty(shape, dtype=torch.int32, device=device) for shape in ((4, 4), (4,), (4,))]
    lengths = torch.tensor([3, 0, 2, 1], dtype=torch.int32, device=device)
    return {"probabilities": VerifyChainCall(*empty, drafts, target, draft, seed=3),
            "sure": VerifyChainCall(*empty, target[:, :3].argmax(-1).int(), target, lengths=lengths, seed=4)}


_verify_chain = Op(
    _OP, call=VerifyChainCall, reference=verify_chain_ref, check=_check, cases=_cases,
    writes=("tokens", "accepted", "emitted"),
    backends=(Backend("hip", _verify_chain_hip, refusal=_refusal), Backend("torch", verify_chain_ref)))


def chain_speculative_sampling(
        draft_probs: Tensor | None, draft_token_ids: Tensor, target_probs: Tensor,
        maybe_output_accepted_token_num: Tensor | None = None,
        maybe_output_emitted_draft_token_num: Tensor | None = None, deterministic: bool = True, *,
        num_drafted: Tensor | None = None, seed: int | Tensor | None = None, offset: int | Tensor | None = None,
        backend: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Speculative sampling: the drafted tokens that the target accepts, and one more of its own.

    Token i is accepted with probability `min(1, target[i] / draft[i])` of it. At the first that is not, a token is
    drawn from `max(target[i] - draft[i], 0)`; after the last, from the target's next row. What is emitted is
    distributed as the target's own tokens.

    Args:
        draft_probs: [requests, drafted, columns] fp32, that the drafted tokens were drawn from. None: they were chosen
            without chance, as n-gram lookup and greedy drafts are.
        draft_token_ids: [requests, drafted] int32; a number that is no column is never accepted.
        target_probs: [requests, drafted + 1, columns] fp32, each row with a sum of about 1.
        maybe_output_accepted_token_num: [requests] int32, to which the second result is added; None: a new one.
        maybe_output_emitted_draft_token_num: [requests] int32, to which the third is added; None: a new one.
        deterministic: as FlashInfer has it; results are so in any case.
        num_drafted: [requests] int32, how many tokens are drafted, 0 to `drafted`; None: all. On a GPU, where nobody
            looks, less than 0 means none and more than `drafted` all.
        seed: of all requests; or [requests] int64, a seed of each. None: from torch's generator.
        offset: number of the draw of request 0, request r takes draw offset + r; or [requests] int64. Default: 0.

    Returns:
        [requests, drafted + 1] int32 tokens, -1 after the last; [requests] how many drafted ones would be accepted,
        each by itself; [requests] how many are emitted.

    Notes:
        A function of seed, draw and probabilities alone. Uniform numbers are words of Philox, as `exponential` says:
        column i of the draw for token i, column `drafted` for the last. Nothing is copied to the host, but by "torch";
        a captured graph needs `seed` and `offset` as tensors to draw anew when it is replayed.

    Source: FlashInfer's `chain_speculative_sampling`; Leviathan et al., Fast Inference from Transformers via
        Speculative Decoding (2022).
    """
    check.tensor(_OP, "draft_token_ids", draft_token_ids, rank=2)
    requests, drafted = draft_token_ids.shape
    tokens, accepted, emitted = (torch.empty(shape, dtype=torch.int32, device=draft_token_ids.device)
                                 for shape in ((requests, drafted + 1), (requests,), (requests,)))
    one, other = maybe_output_accepted_token_num, maybe_output_emitted_draft_token_num
    for name, counts in (("maybe_output_accepted_token_num", one), ("maybe_output_emitted_draft_token_num", other),
                         ("num_drafted", num_drafted)):
        if counts is not None:
            check.tensor(_OP, name, counts, dtypes=(torch.int32,), shape=(requests,), device=draft_token_ids.device)
    if other is not None:
        refuse_overlap(_OP, "maybe_output_emitted_draft_token_num", other, maybe_output_accepted_token_num=one)
    if num_drafted is not None:
        check_values(_OP, "num_drafted", num_drafted, 0, drafted)
    fields = parts.seeds(_OP, seed, offset, None, draft_token_ids.device, requests)
    _verify_chain.run(tokens, accepted, emitted, draft_token_ids, target_probs, draft_probs, lengths=num_drafted,
                      backend=backend, **fields)
    return tokens, accepted if one is None else one.add_(accepted), emitted if other is None else other.add_(emitted)


_verify_chain.public.append(chain_speculative_sampling)
