# SPDX-License-Identifier: MIT
"""torch's operators of attention on a GPU, which the CPU lacks: programs and integrations call them by their names
within sim.as_gpu(). They compute in float32, from the formula, and round once.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from aiter_like.errors import UnsupportedError

_NO_MASK, _TOP_LEFT, _BOTTOM_RIGHT = range(3)
_HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class _Form:
    """What a call is, but for its tensors.

    Attributes:
        op: the operator, for messages.
        scale: of the scores; None: by the head's size.
        causal: _NO_MASK, _TOP_LEFT, _BOTTOM_RIGHT: where the diagonal of the causal mask ends.
        window: keys before and behind the diagonal that a query sees; below 0: all.
        dropout: the probability of each weight to be dropped.
        seed: of what is dropped.
    """

    op: str
    scale: float | None
    causal: int = _NO_MASK
    window: tuple[int, int] = (-1, -1)
    dropout: float = 0.0
    seed: int = 0


@contextlib.contextmanager
def of_a_gpu() -> Iterator[None]:
    """A block in which torch has these operators."""
    library = torch.library.Library("aten", "IMPL")
    try:
        for name, kernel in _KERNELS.items():
            library.impl(name, kernel, "CPU")
        yield
    finally:
        library._destroy()


def _weights(q: torch.Tensor, k: torch.Tensor, bias: torch.Tensor | None, form: _Form) -> tuple:
    """Of q [B, H, M, D] and k [B, H, N, D]: the weights [B, H, M, N], and the logarithms of their sums [B, H, M]."""
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if form.scale is None else form.scale)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    rows, columns = q.shape[-2], k.shape[-2]
    shift = columns - rows if form.causal != _TOP_LEFT else 0
    far = torch.arange(columns, device="cpu") - torch.arange(rows, device="cpu")[:, None] - shift  # [M, N]
    before, behind = form.window
    if form.causal:
        behind = 0
    hidden = torch.zeros(rows, columns, dtype=torch.bool, device="cpu")
    if behind >= 0:
        hidden |= far > behind
    if before >= 0:
        hidden |= far < -before
    scores = scores.masked_fill(hidden, -math.inf)
    return scores.softmax(-1).nan_to_num(0.0) if hidden.all(-1).any() else scores.softmax(-1), scores.logsumexp(-1)


def _kept(weights: torch.Tensor, form: _Form) -> torch.Tensor:
    """What weights are multiplied by: 0 where they are dropped, and a number above 1 elsewhere."""
    drawn = torch.rand(weights.shape, generator=torch.Generator("cpu").manual_seed(form.seed), device="cpu")
    return (drawn >= form.dropout).to(weights.dtype) / (1 - form.dropout)


def _like_queries(x: torch.Tensor, q: torch.Tensor, form: _Form) -> torch.Tensor:
    """Keys or values with as many heads as the queries."""
    heads, own = q.shape[1], x.shape[1]
    if heads % own:
        raise RuntimeError(f"{form.op}: number of heads in key/value must divide number of heads in query, got {own} "
                           f"and {heads}")
    return x if heads == own else x.repeat_interleave(heads // own, 1)


def _forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, form: _Form) -> tuple:
    """Of [B, H, M, D], [B, Hk, N, D], [B, Hk, N, Dv]: the result [B, H, M, Dv] and the sums' logarithms [B, H, M]."""
    wide = [_like_queries(one, q, form).to(_computed(q)) for one in (q, k, v)]
    weights, sums = _weights(wide[0], wide[1], bias, form)
    if form.dropout:
        weights = weights * _kept(weights, form)
    return (weights @ wide[2]).to(q.dtype), sums.float()


def _backward(gradient: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None,
              form: _Form) -> tuple:
    """Gradients of queries, keys, values and scores, the last one as _computed(), by the formula's derivative."""
    gradient, wide_q, wide_k, wide_v = (_like_queries(one, q, form).to(_computed(q)) for one in (gradient, q, k, v))
    weights, _ = _weights(wide_q, wide_k, bias, form)
    kept = _kept(weights, form) if form.dropout else torch.ones((), dtype=weights.dtype, device="cpu")
    of_weights = (gradient @ wide_v.mT) * kept
    scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
    scale = 1 / math.sqrt(q.shape[-1]) if form.scale is None else form.scale
    found = ((scores @ wide_k) * scale, (scores.mT @ wide_q) * scale, (weights * kept).mT @ gradient)
    return *(one.unflatten(1, (like.shape[1], -1)).sum(2).to(like.dtype)
             for one, like in zip(found, (q, k, v), strict=True)), scores


def _computed(q: torch.Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _check(form: _Form, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, types: tuple[torch.dtype, ...]) -> None:
    if not (q.dtype == k.dtype == v.dtype) or q.dtype not in types:
        raise RuntimeError(f"{form.op}: query, key and value must be of one type of {', '.join(map(str, types))}, got "
                           f"{q.dtype}, {k.dtype}, {v.dtype}")
    if not 0 <= form.dropout < 1:
        raise RuntimeError(f"{form.op}: dropout_p must be at least 0 and below 1, got {form.dropout}")


def _seed_of(dropout: float) -> tuple[int, torch.Tensor, torch.Tensor]:
    """A seed, and what the operators return of it: seed and offset, which say what was dropped."""
    seed = int(torch.randint(2**62, (), device="cpu")) if dropout else 0
    return seed, torch.tensor(seed, device="cpu"), torch.tensor(0, device="cpu")


def _flash_causal(is_causal: bool, rows: int, columns: int, op: str) -> int:
    """How flash attention is causal: of as many queries as keys, for which its libraries are of one mind."""
    if is_causal and rows != columns:
        raise UnsupportedError(f"{op}: is_causal of {rows} queries and {columns} keys: libraries for GPUs end the "
                               "diagonal at different corners; _efficient_attention_forward has custom_mask_type, to "
                               "say at which", op=op)
    return _TOP_LEFT if is_causal else _NO_MASK


def _product_flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0, is_causal: bool = False,
                   return_debug_mask: bool = False, *, scale: float | None = None) -> tuple:
    op = "_scaled_dot_product_flash_attention"
    seed, told, offset = _seed_of(dropout_p)
    form = _Form(op, scale, _flash_causal(is_causal, q.shape[2], k.shape[2], op), dropout=dropout_p, seed=seed)
    _check(form, q, k, v, _HALVES)
    out, sums = _forward(q, k, v, None, form)
    return (_by_tokens(out), sums, None, None, q.shape[2], k.shape[2], told, offset, q.new_empty(0))


def _product_flash_backward(grad_out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                            out: torch.Tensor, sums: torch.Tensor, cum_seq_q: Any, cum_seq_k: Any, max_q: int,
                            max_k: int, dropout_p: float, is_causal: bool, philox_seed: torch.Tensor,
                            philox_offset: torch.Tensor, *, scale: float | None = None) -> tuple:
    op = "_scaled_dot_product_flash_attention_backward"
    form = _Form(op, scale, _flash_causal(is_causal, q.shape[2], k.shape[2], op), dropout=dropout_p,
                 seed=int(philox_seed))
    return _backward(grad_out, q, k, v, None, form)[:3]


def _product_efficient(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, attn_bias: torch.Tensor | None,
                       compute_log_sumexp: bool, dropout_p: float = 0.0, is_causal: bool = False, *,
                       scale: float | None = None) -> tuple:
    seed, told, offset = _seed_of(dropout_p)
    form = _Form("_scaled_dot_product_efficient_attention", scale, _TOP_LEFT if is_causal else _NO_MASK,
                 dropout=dropout_p, seed=seed)
    _check(form, q, k, v, (torch.float32, *_HALVES))
    out, sums = _forward(q, k, v, attn_bias, form)
    return _by_tokens(out), sums if compute_log_sumexp else sums[..., :0].contiguous(), told, offset


def _product_efficient_backward(grad_out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                                attn_bias: torch.Tensor | None, out: torch.Tensor, sums: torch.Tensor,
                                philox_seed: torch.Tensor, philox_offset: torch.Tensor, dropout_p: float,
                                grad_input_mask: list[bool], is_causal: bool = False, *,
                                scale: float | None = None) -> tuple:
    form = _Form("_scaled_dot_product_efficient_attention_backward", scale, _TOP_LEFT if is_causal else _NO_MASK,
                 dropout=dropout_p, seed=int(philox_seed))
    bias = attn_bias if attn_bias is not None and attn_bias.numel() else None
    *found, scores = _backward(grad_out, q, k, v, bias, form)
    found.append(None if bias is None else scores.sum_to_size(bias.shape).to(bias.dtype))
    return tuple(one if is_wanted else None for one, is_wanted in zip(found, grad_input_mask, strict=True))


def _sequences(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_q: torch.Tensor | None,
               cu_k: torch.Tensor | None, used: torch.Tensor | None, op: str) -> Iterator[tuple]:
    """Where each sequence is, of [B, M, H, D], or, with the places where sequences begin, of [1, all tokens, H, D]: a
    batch and a slice of the queries, and of the keys.
    """
    if (cu_q is None) != (cu_k is None):
        raise RuntimeError(f"{op}: cumulative lengths are given of both queries and keys, or of neither")
    starts_q = None if cu_q is None else cu_q.tolist()
    starts_k = None if cu_k is None else cu_k.tolist()
    lengths = None if used is None else used.tolist()
    for i in range(q.shape[0] if starts_q is None else len(starts_q) - 1):
        batch = i if starts_q is None else 0
        first, last = (0, q.shape[1]) if starts_q is None else starts_q[i:i + 2]
        start, end = (0, k.shape[1]) if starts_k is None else starts_k[i:i + 2]
        end = end if lengths is None else min(end, start + lengths[i])
        yield i, batch, slice(first, last), slice(start, end)


def _part(x: torch.Tensor, batch: int, tokens: slice) -> torch.Tensor:
    """Tokens of [B, M, H, D] as [1, H, m, D]."""
    return x[batch:batch + 1, tokens].transpose(1, 2)


def _flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cum_seq_q: torch.Tensor | None,
           cum_seq_k: torch.Tensor | None, max_q: int, max_k: int, dropout_p: float, is_causal: bool,
           return_debug_mask: bool, *, scale: float | None = None, window_size_left: int | None = None,
           window_size_right: int | None = None, seqused_k: torch.Tensor | None = None,
           alibi_slopes: torch.Tensor | None = None, block_table: torch.Tensor | None = None,
           num_splits: int | None = None) -> tuple:
    op = "_flash_attention_forward"
    for name, given in (("alibi_slopes", alibi_slopes), ("block_table", block_table)):
        if given is not None:
            raise UnsupportedError(f"sim.as_gpu: {op}: {name} is not there on the simulated MI300X", op=op)
    seed, told, offset = _seed_of(dropout_p)
    is_packed = cum_seq_q is not None
    given = [one[None] if is_packed else one for one in (q, k, v)]
    window = _window(window_size_left, window_size_right)
    form = _Form(op, scale, window=window, dropout=dropout_p, seed=seed)
    _check(form, q, k, v, _HALVES)
    out = q.new_zeros((*given[0].shape[:3], v.shape[-1]))
    sums = torch.full((given[0].shape[0], given[0].shape[2], given[0].shape[1]), math.inf, device="cpu")
    for i, batch, rows, columns in _sequences(*given, cum_seq_q, cum_seq_k, seqused_k, op):
        parts = _part(given[0], batch, rows), *(_part(one, batch, columns) for one in given[1:])
        one, its_sums = _forward(*parts, None, _of_sequence(form, is_causal, parts, i))
        out[batch, rows], sums[batch, :, rows] = one[0].transpose(0, 1), its_sums[0]
    return (out[0], sums[0], told, offset, q.new_empty(0)) if is_packed else (out, sums, told, offset, q.new_empty(0))


def _window(left: int | None, right: int | None) -> tuple[int, int]:
    """Like a field of `_Form`, where None is all."""
    return -1 if left is None else left, -1 if right is None else right


def _of_sequence(form: _Form, is_causal: bool, parts: tuple, i: int) -> _Form:
    """The form of flash attention for one sequence."""
    rows, columns = parts[0].shape[2], parts[1].shape[2]
    has_diagonal = is_causal or max(form.window) >= 0
    causal = _flash_causal(has_diagonal, rows, columns, form.op)
    return replace(form, causal=causal if is_causal else _NO_MASK, seed=form.seed + i)


def _flash_backward(grad_out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
                    sums: torch.Tensor, cum_seq_q: torch.Tensor | None, cum_seq_k: torch.Tensor | None, max_q: int,
                    max_k: int, dropout_p: float, is_causal: bool, rng_state: torch.Tensor, unused: torch.Tensor, *,
                    scale: float | None = None, window_size_left: int | None = None,
                    window_size_right: int | None = None) -> tuple:
    op = "_flash_attention_backward"
    is_packed = cum_seq_q is not None and cum_seq_q.numel() > 0
    given = [one[None] if is_packed else one for one in (grad_out, q, k, v)]
    window = _window(window_size_left, window_size_right)
    form = _Form(op, scale, window=window, dropout=dropout_p, seed=int(rng_state))
    made = [torch.zeros_like(one) for one in given[1:]]
    places = (cum_seq_q, cum_seq_k) if is_packed else (None, None)
    for i, batch, rows, columns in _sequences(*given[1:], *places, None, op):
        parts = [_part(one, batch, tokens) for one, tokens in zip(given, (rows, rows, columns, columns), strict=True)]
        found = _backward(*parts, None, _of_sequence(form, is_causal, tuple(parts[1:]), i))
        for whole, one, tokens in zip(made, found, (rows, columns, columns), strict=False):
            whole[batch, tokens] = one[0].transpose(0, 1)
    return tuple(one[0] if is_packed else one for one in made)


def _efficient(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None,
               cu_seqlens_q: torch.Tensor | None, cu_seqlens_k: torch.Tensor | None, max_seqlen_q: int | None,
               max_seqlen_k: int | None, dropout_p: float, custom_mask_type: int, compute_log_sumexp: bool = False, *,
               scale: float | None = None, seqlen_k: torch.Tensor | None = None,
               window_size: int | None = None) -> tuple:
    op = "_efficient_attention_forward"
    if window_size is not None or (bias is not None and cu_seqlens_q is not None):
        raise UnsupportedError(f"sim.as_gpu: {op}: window_size, and bias of packed sequences, are not there on the "
                               "simulated MI300X", op=op)
    if custom_mask_type not in (_NO_MASK, _TOP_LEFT, _BOTTOM_RIGHT):
        raise RuntimeError(f"{op}: custom_mask_type must be 0 (none), 1 (causal from the top left) or 2 (causal from "
                           f"the bottom right), got {custom_mask_type}")
    seed, told, offset = _seed_of(dropout_p)
    form = _Form(op, scale, custom_mask_type, dropout=dropout_p, seed=seed)
    _check(form, q, k, v, (torch.float32, *_HALVES))
    longest = q.shape[1] if cu_seqlens_q is None else max_seqlen_q
    count = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.numel() - 1
    out = q.new_zeros((*q.shape[:3], v.shape[-1]))
    sums = torch.full((count, q.shape[2], longest), math.inf, device="cpu")
    for i, batch, rows, columns in _sequences(q, k, v, cu_seqlens_q, cu_seqlens_k, seqlen_k, op):
        parts = _part(q, batch, rows), *(_part(one, batch, columns) for one in (k, v))
        its_bias = None if bias is None else bias[min(batch, bias.shape[0] - 1)][..., columns]
        one, its_sums = _forward(*parts, its_bias, replace(form, seed=seed + i))
        out[batch, rows], sums[i, :, :one.shape[2]] = one[0].transpose(0, 1), its_sums[0]
    return (out, sums if compute_log_sumexp else sums[..., :0].contiguous(), told, offset, longest,
            k.shape[1] if max_seqlen_k is None else max_seqlen_k)


def _efficient_backward(grad_out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                        bias: torch.Tensor | None, out: torch.Tensor, cu_seqlens_q: torch.Tensor | None,
                        cu_seqlens_k: torch.Tensor | None, max_seqlen_q: int, max_seqlen_k: int, sums: torch.Tensor,
                        dropout_p: float, philox_seed: torch.Tensor, philox_offset: torch.Tensor,
                        custom_mask_type: int, bias_requires_grad: bool, *, scale: float | None = None,
                        num_splits_key: int | None = None, window_size: int | None = None,
                        shared_storage_dqdkdv: bool = False) -> tuple:
    op = "_efficient_attention_backward"
    if window_size is not None or bias_requires_grad or shared_storage_dqdkdv:
        raise UnsupportedError(f"sim.as_gpu: {op}: window_size, bias_requires_grad and shared_storage_dqdkdv are not "
                               "there on the simulated MI300X", op=op)
    form = _Form(op, scale, custom_mask_type, dropout=dropout_p, seed=int(philox_seed))
    made = [torch.zeros_like(one) for one in (q, k, v)]
    for i, batch, rows, columns in _sequences(q, k, v, cu_seqlens_q, cu_seqlens_k, None, op):
        parts = [_part(one, batch, tokens) for one, tokens in zip((grad_out, q, k, v), (rows, rows, columns, columns),
                                                                  strict=True)]
        its_bias = None if bias is None else bias[min(batch, bias.shape[0] - 1)][..., columns]
        found = _backward(*parts, its_bias, replace(form, seed=form.seed + i))
        for whole, one, tokens in zip(made, found, (rows, columns, columns), strict=False):
            whole[batch, tokens] = one[0].transpose(0, 1)
    return *made, None


def _by_tokens(out: torch.Tensor) -> torch.Tensor:
    """A result in the order of memory of torch's: of tokens, then heads, as [B, M, H, D]."""
    return out.transpose(1, 2).contiguous().transpose(1, 2)


_KERNELS: dict[str, Callable] = {
    "_flash_attention_forward": _flash, "_flash_attention_backward": _flash_backward,
    "_efficient_attention_forward": _efficient, "_efficient_attention_backward": _efficient_backward,
    "_scaled_dot_product_flash_attention": _product_flash,
    "_scaled_dot_product_flash_attention_backward": _product_flash_backward,
    "_scaled_dot_product_efficient_attention": _product_efficient,
    "_scaled_dot_product_efficient_attention_backward": _product_efficient_backward,
}
