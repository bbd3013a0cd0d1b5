# SPDX-License-Identifier: MIT
"""AITER's `test_mha_common` for programs that check attention: a reference in torch, and batches with padding.

Masks of padding are [batch, seqlen], True where a token is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from aiter_like.integrations.aiter.declare import aiter
from aiter_like.ops.attention.dropout_randval import last_kept

_TOLERANCES = {"plain": (2, 1e-2, 1.5e-2, 1e-5), "dropout": (2, 0.1, 2.0, 0.1), "fp8": (4, 0.5, 1.0, 0.1)}
"""Of attention_ref_with_tol: the factor, the least atol of the output and of gradients, and rtol."""


@aiter("aiter.test_mha_common", stays=True)
def attention_ref(q: Tensor, k: Tensor, v: Tensor, query_padding_mask: Tensor | None = None,
                  key_padding_mask: Tensor | None = None, attn_bias: Tensor | None = None, dropout_p: float = 0.0,
                  dropout_mask: Tensor | None = None, causal: bool = False, window_size: tuple[int, int] = (-1, -1),
                  softcap: float = 0.0, upcast: bool = True, reorder_ops: bool = False,
                  key_leftpad: Tensor | None = None, sink: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Attention step by step, in float32 or in the inputs' own dtype.

    Args:
        q, k, v: [batch, seqlen_q, num_heads, head_dim], and [batch, seqlen_k, num_kv_heads, …] twice.
        query_padding_mask, key_padding_mask: rows that are no tokens give 0, and keys that are none take no part.
        attn_bias: is added to the scores [batch, num_heads, seqlen_q, seqlen_k].
        dropout_p, dropout_mask: the probabilities that stay (True), and the share that goes, for which they make up.
        causal, window_size: keys up to the query's own place, counted from the ends; left and right of it, −1: all.
        softcap: scores become softcap · tanh(score / softcap); 0: they stay.
        upcast: float32 within; else the inputs' dtype, whose rounding errors a tolerance may be made of.
        reorder_ops: the scale goes to k instead of q, which rounds otherwise.
        key_leftpad: [batch] keys at the left that are none.
        sink: [num_heads] a score that takes its share of the softmax and gives no value.

    Returns:
        The output [batch, seqlen_q, num_heads, head_dim_v], the probabilities before dropout, and their log-sum-exp
        [batch, num_heads, seqlen_q], all in q's dtype.
    """
    dtype = q.dtype
    if upcast:
        q, k, v = q.float(), k.float(), v.float()
    k, v = (tensor.repeat_interleave(q.shape[2] // tensor.shape[2], dim=2) for tensor in (k, v))
    scale = max(q.shape[-1], 1) ** -0.5
    pair = (q, k * scale) if reorder_ops else (q * scale, k)
    scores = torch.einsum("bqhd,bkhd->bhqk", *pair)
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    if key_padding_mask is not None:
        scores = scores.masked_fill(~key_padding_mask[:, None, None, :], -torch.inf)
    outside = _outside(causal, window_size, q.shape[1], k.shape[1], query_padding_mask, key_padding_mask, key_leftpad,
                       q.device)
    if outside is not None:
        scores = scores.masked_fill(outside, -torch.inf)
    if attn_bias is not None:
        scores = scores + attn_bias
    if sink is not None:
        scores = torch.cat([scores, sink.to(scores).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], dim=-1)
    lse = scores.logsumexp(dim=-1)
    attention = scores.softmax(dim=-1).to(v.dtype)[..., :k.shape[1]]
    if outside is not None:  # a row without any key
        attention = attention.masked_fill(outside.all(dim=-1, keepdim=True), 0.0)
    if query_padding_mask is not None:
        attention = attention.masked_fill(~query_padding_mask[:, None, :, None], 0.0)
    kept = attention if dropout_mask is None else attention.masked_fill(~dropout_mask, 0.0)
    out = torch.einsum("bhqk,bkhd->bqhd", kept, v / (1 - dropout_p))
    if query_padding_mask is not None:
        out = out.masked_fill(~query_padding_mask[:, :, None, None], 0.0)
    return out.to(dtype), attention.to(dtype), lse.to(dtype)


@aiter("aiter.test_mha_common", stays=True)
def attention_ref_with_tol(
        q: Tensor, k: Tensor, v: Tensor, do: Tensor, is_fp8: bool = False,
        **kwargs: Any) -> tuple[Tensor, tuple[Tensor, ...], tuple[float, float], list[tuple[float, float]]]:
    """`attention_ref` with its gradients, and tolerances for what is compared with them: twice what the inputs' own
    dtype makes of the result (four times for fp8), and at least a floor of the kind of the call.

    Args:
        q, k, v: as of `attention_ref`, which also takes `kwargs`.
        do: the gradient of its output.
        is_fp8: the call that is compared rounds its inputs to fp8.

    Returns:
        The output; the gradients of q, k and v; (atol, rtol) of the output, and a list of those of the gradients.
    """
    is_dropping = kwargs.get("dropout_p", 0.0) > 0
    factor, *floors, rtol = _TOLERANCES["fp8" if is_fp8 else "dropout" if is_dropping else "plain"]
    exact, rounded = (_with_gradients(q, k, v, do, kwargs | {"upcast": upcast, "reorder_ops": not upcast})
                      for upcast in (True, False))
    distances = [(one - other).abs().max().item() for one, other in zip(exact, rounded, strict=True)]
    first, *others = [(max(factor * distance, floors[0] if index == 0 else floors[1]), rtol)
                      for index, distance in enumerate(distances)]
    return exact[0], exact[1:], first, others


def _with_gradients(q: Tensor, k: Tensor, v: Tensor, do: Tensor, options: dict[str, Any]) -> tuple[Tensor, ...]:
    leaves = [tensor.detach().clone().requires_grad_() for tensor in (q, k, v)]
    with torch.enable_grad():
        out = attention_ref(*leaves, **options)[0]
    return out, *torch.autograd.grad(out, leaves, do)


@aiter("aiter.test_mha_common", stays=True)
def attn_bias_from_alibi_slopes(slopes: Tensor, seqlen_q: int, seqlen_k: int,
                                query_padding_mask: Tensor | None = None, key_padding_mask: Tensor | None = None,
                                causal: bool = False, key_leftpad: Tensor | None = None) -> Tensor:
    """−slope · distance, for `attn_bias`.

    Args:
        slopes: [batch, num_heads].
        seqlen_q, seqlen_k: of the scores.
        query_padding_mask, key_padding_mask, key_leftpad: as of `attention_ref`; distances count from the last tokens.
        causal: the same but for a constant in each row, which the softmax does not see: one row for all queries.
    """
    slopes = slopes[:, :, None, None]
    if causal:
        return slopes * torch.arange(1 - seqlen_k, 1, device=slopes.device, dtype=torch.float32)
    distance = _distance(seqlen_q, seqlen_k, query_padding_mask, key_padding_mask, key_leftpad, slopes.device)
    return -slopes * distance.abs().to(slopes.dtype)


@aiter("aiter.test_mha_common", stays=True)
def generate_random_padding_mask(max_seqlen: int, batch_size: int, device: torch.device | str,
                                 mode: str = "random") -> Tensor:
    """Lengths of a batch as a mask [batch_size, max_seqlen].

    Args:
        max_seqlen, batch_size: its sizes.
        device: where it lies.
        mode: "full", "random": at most 20 short, or "third": from a third on.

    Raises:
        ValueError: another mode.
    """
    shortest = {"full": max_seqlen, "random": max(1, max_seqlen - 20), "third": max_seqlen // 3}
    if mode not in shortest:
        raise ValueError(f"generate_random_padding_mask: mode must be one of {', '.join(shortest)}, got {mode!r}")
    lengths = torch.randint(shortest[mode], max_seqlen + 1, (batch_size, 1), device=device)
    return torch.arange(max_seqlen, device=device).expand(batch_size, -1) < lengths


@aiter("aiter.test_mha_common", stays=True)
def generate_qkv(q: Tensor, k: Tensor, v: Tensor, query_padding_mask: Tensor | None = None,
                 key_padding_mask: Tensor | None = None, kvpacked: bool = False, qkvpacked: bool = False,
                 input_layout: str = "BSHD") -> tuple:
    """A batch, with its tokens one after the other beside it.

    Args:
        q, k, v: as of `attention_ref`.
        query_padding_mask, key_padding_mask: which are tokens; None: all.
        kvpacked, qkvpacked: k and v, or all three, lie in one tensor: [total, 2, heads, …], or side by side in heads.
        input_layout: how the batch lies in memory: "BSHD", "BHSD" or "SBHD"; its shape stays. "KVPACKED" and
            "QKVPACKED" are "BSHD".

    Returns:
        q, k and v of the tokens [total, heads, head_dim], each a leaf with a gradient; cu_seqlens_q, cu_seqlens_k;
        max_seqlen_q, max_seqlen_k; q, k and v of the batch; and functions that put an output, q's gradient and k's or
        v's back into the batch, 0 where no token is.

    Raises:
        ValueError: another layout, or both kinds of packing.
    """
    orders = {"BSHD": (0, 1, 2, 3), "BHSD": (0, 2, 1, 3), "SBHD": (1, 0, 2, 3)}
    orders |= dict.fromkeys(("KVPACKED", "QKVPACKED"), orders["BSHD"])
    if input_layout not in orders or (kvpacked and qkvpacked):
        raise ValueError(f"generate_qkv: input_layout must be one of {', '.join(orders)}, got {input_layout!r}, and "
                         "only one of kvpacked and qkvpacked may be true")
    order = orders[input_layout]  # each is its own inverse
    q, k, v = (tensor.permute(order).contiguous().permute(order) for tensor in (q, k, v))
    q_tokens, cu_q, max_q, put_q = _tokens(q, query_padding_mask)
    k_tokens, cu_k, max_k, put_k = _tokens(k, key_padding_mask)
    v_tokens = _tokens(v, key_padding_mask)[0]
    if qkvpacked:
        q_tokens, k_tokens, v_tokens = _in_one(q_tokens, k_tokens, v_tokens)
        q, k, v = _in_one(q, k, v)
        put_k = put_q
    elif kvpacked:
        k_tokens, v_tokens = torch.stack([k_tokens, v_tokens], dim=1).unbind(1)
        k, v = torch.stack([k, v], dim=2).unbind(2)
    leaves = [tensor.detach().requires_grad_() for tensor in (q_tokens, k_tokens, v_tokens, q, k, v)]
    return *leaves[:3], cu_q, cu_k, max_q, max_k, *leaves[3:], put_q, put_q, put_k


@aiter("aiter.test_mha_common", stays=True)
def ck_randval_to_dropout_mask(randval: Tensor, p: float) -> Tensor:
    """The third result of attention with dropout, made so that what is kept is at least 0.

    Args:
        randval: uint8, of any shape.
        p: what was dropped with this probability.
    """
    return last_kept(p) - randval.float()


@aiter("aiter.test_mha_common", stays=True)
def pad_rearrange_dropout_mask_hts_to_bhss(S_dmask: Tensor, cu_seqlens_q: Tensor, seqlen_q_rounded: int,
                                           seqlen_k_rounded: int) -> Tensor:
    """What stands for packed sequences, [num_heads, total_q, columns], as a batch [batch, num_heads, seqlen_q_rounded,
    seqlen_k_rounded] with zeros behind each sequence.
    """
    parts = S_dmask.split(cu_seqlens_q.diff().tolist(), dim=1)
    return torch.stack([_in_size(part, seqlen_q_rounded, seqlen_k_rounded) for part in parts])


@aiter("aiter.test_mha_common", stays=True)
def convert_flash_attn_S_to_softmax(
        S: Tensor, seqlen_q: int, seqlen_k: int, query_padding_mask: Tensor | None, key_padding_mask: Tensor | None,
        head_dim: int, is_dropout: bool, causal: bool = False,
        window_size: tuple[int, int] = (-1, -1)) -> Tensor:
    """What a kernel stored for each score, [batch, num_heads, seqlen_q, seqlen_k], with 0 where there is no score.

    Args:
        S: [batch, num_heads, rows, columns]; cut, or filled up with zeros.
        query_padding_mask, key_padding_mask, causal, window_size: as of `attention_ref`.
        head_dim, is_dropout: of no meaning.
    """
    found = _in_size(S, seqlen_q, seqlen_k)
    outside = _outside(causal, window_size, seqlen_q, seqlen_k, query_padding_mask, key_padding_mask, None, S.device)
    if outside is not None:
        found = found.masked_fill(outside, 0.0)
    if query_padding_mask is not None:
        found = found.masked_fill(~query_padding_mask[:, None, :seqlen_q, None], 0.0)
    if key_padding_mask is not None:
        found = found.masked_fill(~key_padding_mask[:, None, None, :seqlen_k], 0.0)
    return found


def _in_size(x: Tensor, rows: int, columns: int) -> Tensor:
    """The last two dimensions cut, or filled up with zeros."""
    return torch.nn.functional.pad(x, (0, columns - x.shape[-1], 0, rows - x.shape[-2]))


def _outside(causal: bool, window_size: tuple[int, int], seqlen_q: int, seqlen_k: int, query_mask: Tensor | None,
             key_mask: Tensor | None, key_leftpad: Tensor | None, device: torch.device) -> Tensor | None:
    """Which keys the window hides from which queries; None: it has no limit."""
    left, right = window_size[0], 0 if causal else window_size[1]
    if left < 0 and right < 0:
        return None
    places = _distance(seqlen_q, seqlen_k, query_mask, key_mask, key_leftpad, device)
    outside = places > right if right >= 0 else torch.zeros_like(places, dtype=torch.bool)
    return outside | (places < -left) if left >= 0 else outside


def _distance(seqlen_q: int, seqlen_k: int, query_mask: Tensor | None, key_mask: Tensor | None,
              key_leftpad: Tensor | None, device: torch.device) -> Tensor:
    """A key's place minus its query's, both counted from the last token; [seqlen_q, seqlen_k], or one for a batch."""
    rows = torch.arange(seqlen_q, device=device)[:, None]
    columns = torch.arange(seqlen_k, device=device)
    if key_leftpad is not None:
        shifted = columns - key_leftpad[:, None, None, None]
        columns = torch.where(shifted >= 0, shifted, 2**32)  # what lies left of the keys lies beyond every window
    lengths = [size if mask is None else mask.sum(-1)[:, None, None, None]
               for size, mask in ((seqlen_q, query_mask), (seqlen_k, key_mask))]
    return columns - rows - (lengths[1] - lengths[0])


def _tokens(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, int, Callable[[Tensor], Tensor]]:
    """The tokens of a batch, where each sequence begins, the longest one's length, and the way back."""
    batch, size = x.shape[:2]
    mask = torch.ones(batch, size, dtype=torch.bool, device=x.device) if mask is None else mask
    lengths = mask.sum(dim=1)
    cu_seqlens = torch.zeros(batch + 1, dtype=torch.int32, device=x.device)
    cu_seqlens[1:] = lengths.cumsum(0)

    def put(tokens: Tensor) -> Tensor:
        whole = tokens.new_zeros(batch, size, *tokens.shape[1:])
        whole[mask] = tokens
        return whole

    return x[mask], cu_seqlens, int(lengths.max()), put


def _in_one(*parts: Tensor) -> tuple[Tensor, ...]:
    """Heads side by side in one tensor, as views of it."""
    return torch.cat(parts, dim=-2).split([part.shape[-2] for part in parts], dim=-2)
