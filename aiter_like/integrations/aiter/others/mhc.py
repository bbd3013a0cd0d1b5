# SPDX-License-Identifier: MIT
"""AITER's manifold-constrained hyper-connections, made of torch's functions: there is no kernel of them here."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

import aiter_like
from aiter_like import check
from aiter_like.integrations.aiter.declare import aiter

_PRE, _POST, _BOTH, _TRITON = "mhc_pre", "mhc_post", "mhc_fused_post_pre", "mhc_post_pre"
_NAMES = {  # The callers of each function know what is mixed by these names.
    _POST: ("x", "residual", "post_layer_mix", "comb_res_mix"),
    _BOTH: ("layer_input", "residual_in", "post_layer_mix", "comb_res_mix"),
    _TRITON: ("layer_input", "residual_in", "post_mix", "comb_mix")}
_FP32 = (torch.float32,)
_HALVES = (torch.bfloat16, torch.float16)
_FLOATS = (*_HALVES, *_FP32)


@aiter("aiter aiter.ops.mhc", callers="V S")
def mhc_pre(residual: Tensor, fn: Tensor, hc_scale: Tensor, hc_base: Tensor, rms_eps: float = 1e-6,
            hc_pre_eps: float = 1e-6, hc_sinkhorn_eps: float = 1e-6, hc_post_mult_value: float = 1.0,
            sinkhorn_repeat: int = 20, norm_weight: Tensor | None = None, norm_eps: float = 1e-6,
            large_m_splitk: bool = False, is_fn_pack_bf16: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """How a token's streams are mixed before a layer and after it, and what the layer reads, in fp32.

    `mixes = rms_norm(residual) fnᵀ`, in three parts, each times its `hc_scale` and beside its part of `hc_base`: the
    sigmoid of the first plus `hc_pre_eps` weighs the streams for the layer; that of the second times
    `hc_post_mult_value` weighs its result; the third, whose exponentials are divided by the sums of rows and of columns
    in turn, mixes the streams.

    Args:
        residual: [tokens, streams, hidden] bf16|fp16.
        fn: [streams · (2 + streams), streams · hidden] fp32; or the first `streams` rows of it, and no repeat.
        hc_scale, hc_base: [3] and [rows of fn] fp32.
        rms_eps, hc_pre_eps, hc_sinkhorn_eps, hc_post_mult_value: see above.
        sinkhorn_repeat: times that both sums are taken.
        norm_weight, norm_eps: [hidden]: what the layer reads goes through `rms_norm` besides.
        large_m_splitk, is_fn_pack_bf16: how AITER's kernels multiply; of no meaning.

    Returns:
        [tokens, streams, 1] and [tokens, streams, streams] fp32, which are zeros where fn has no rows of them, and
        [tokens, hidden] bf16.
    """
    return _pre(_PRE, residual, fn, (hc_scale, hc_base), (rms_eps, hc_pre_eps, hc_sinkhorn_eps), hc_post_mult_value,
                sinkhorn_repeat, norm_weight, norm_eps)


@aiter("aiter aiter.ops.mhc", callers="V S")
def mhc_post(out: Tensor, x: Tensor, residual: Tensor, post_layer_mix: Tensor, comb_res_mix: Tensor,
             store_nt: int = -1) -> None:
    """`out[t, i] = post[t, i] · x[t] + Σ comb[t, j, i] · residual[t, j]`, in fp32, rounded once.

    Args:
        out: as `residual`, written.
        x: [tokens, hidden] bf16|fp16, the layer's result.
        residual: [tokens, streams, hidden], dtype of `x`.
        post_layer_mix: [tokens, streams, 1] or [tokens, streams] fp32.
        comb_res_mix: [tokens, streams, streams] fp32.
        store_nt: how AITER's kernel stores; of no meaning.
    """
    check.tensor(_POST, "out", out, dtypes=_HALVES, rank=3)
    out.copy_(_post(_POST, x, residual, post_layer_mix, comb_res_mix, out))


@aiter("aiter aiter.ops.mhc", callers="V S")
def mhc_fused_post_pre(
        layer_input: Tensor, residual_in: Tensor, post_layer_mix: Tensor, comb_res_mix: Tensor, fn: Tensor,
        hc_scale: Tensor, hc_base: Tensor, rms_eps: float = 1e-6, hc_pre_eps: float = 1e-6,
        hc_sinkhorn_eps: float = 1e-6, hc_post_mult_value: float = 1.0, sinkhorn_repeat: int = 20,
        norm_weight: Tensor | None = None, norm_eps: float = 1e-6, force_fused: bool = False,
        is_fn_pack_bf16: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`mhc_post` of a layer's result `layer_input`, then `mhc_pre` of the next one; `force_fused` and
    `is_fn_pack_bf16` are of no meaning.

    Returns:
        The three of `mhc_pre`, and the new streams.
    """
    streams = _post(_BOTH, layer_input, residual_in, post_layer_mix, comb_res_mix, residual_in)
    return *_pre(_BOTH, streams, fn, (hc_scale, hc_base), (rms_eps, hc_pre_eps, hc_sinkhorn_eps), hc_post_mult_value,
                 sinkhorn_repeat, norm_weight, norm_eps), streams


@aiter("aiter.ops.mhc")
def mhc_fused_post_pre_large_m(
        layer_input: Tensor, residual_in: Tensor, post_layer_mix: Tensor, comb_res_mix: Tensor, fn: Tensor,
        hc_scale: Tensor, hc_base: Tensor, rms_eps: float = 1e-6, hc_pre_eps: float = 1e-6,
        hc_sinkhorn_eps: float = 1e-6, hc_post_mult_value: float = 1.0, sinkhorn_repeat: int = 20,
        norm_weight: Tensor | None = None, norm_eps: float = 1e-6,
        is_fn_pack_bf16: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`mhc_fused_post_pre`."""
    return mhc_fused_post_pre(layer_input, residual_in, post_layer_mix, comb_res_mix, fn, hc_scale, hc_base, rms_eps,
                              hc_pre_eps, hc_sinkhorn_eps, hc_post_mult_value, sinkhorn_repeat, norm_weight, norm_eps)


def _post(op: str, x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, like: Tensor) -> Tensor:
    x_name, residual_name, post_name, comb_name = _NAMES[op]
    check.tensor(op, residual_name, residual, dtypes=_HALVES, rank=3)
    tokens, streams, hidden = residual.shape
    check.tensor(op, "out", like, dtypes=(residual.dtype,), shape=residual.shape, device=residual.device)
    check.tensor(op, x_name, x, dtypes=(residual.dtype,), shape=(tokens, hidden), device=residual.device)
    check.tensor(op, comb_name, comb, dtypes=_FP32, shape=(tokens, streams, streams), device=residual.device)
    check.tensor(op, post_name, post, dtypes=_FP32, device=residual.device, last_contiguous=False)
    if tuple(post.shape) not in ((tokens, streams, 1), (tokens, streams)):
        raise ValueError(f"{op}: {post_name} must have shape {(tokens, streams, 1)}, got {tuple(post.shape)}")
    mixed = torch.bmm(comb.mT, residual.float())
    return (mixed + post.view(tokens, streams, 1) * x.float()[:, None]).to(residual.dtype)


def _pre(op: str, residual: Tensor, fn: Tensor, affine: tuple[Tensor, Tensor], eps: tuple[float, float, float],
         post_factor: float, repeat: int, norm_weight: Tensor | None,
         norm_eps: float) -> tuple[Tensor, Tensor, Tensor]:
    check.tensor(op, "residual", residual, dtypes=_HALVES, rank=3)
    tokens, streams, hidden = residual.shape
    device = residual.device
    check.tensor(op, "fn", fn, dtypes=_FP32, shape=(None, streams * hidden), device=device)
    check.integer(op, "sinkhorn_repeat", repeat, 0)
    is_whole = len(fn) == streams * (2 + streams)
    if not is_whole and (len(fn) != streams or repeat):
        raise ValueError(f"{op}: fn must have {streams * (2 + streams)} rows, or {streams} with sinkhorn_repeat 0, got "
                         f"{len(fn)}")
    check.tensor(op, "hc_scale", affine[0], dtypes=_FP32, shape=(3,), device=device)
    check.tensor(op, "hc_base", affine[1], dtypes=_FP32, shape=(len(fn),), device=device)
    if norm_weight is not None:
        check.tensor(op, "norm_weight", norm_weight, shape=(hidden,), device=device)
    balance = functools.partial(_balanced, repeat=repeat, eps=eps[2])
    post, comb, read = _mixed(residual.float(), fn, affine, eps, post_factor, balance)
    if norm_weight is not None and tokens:
        read = aiter_like.rms_norm(read, norm_weight.float(), norm_eps)
    return post, comb, read.to(torch.bfloat16)


def _mixed(wide: Tensor, fn: Tensor, affine: tuple[Tensor, Tensor], eps: tuple[float, ...], post_factor: float,
           balance: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The three results of `mhc_pre` in fp32, from streams in fp32, where the third part of the mixes is balanced by
    `balance`; `fn` has all its rows, or those of the first part alone.
    """
    tokens, streams, _ = wide.shape
    is_whole = len(fn) > streams
    flat = wide.flatten(1)
    mixes = (flat @ fn.t()) * torch.rsqrt(flat.square().mean(1, keepdim=True) + eps[0])
    sizes = (streams, streams, streams * streams)[:3 if is_whole else 1]
    parts = [mix * scale + base for mix, scale, base in zip(mixes.split(sizes, 1), affine[0].unbind(),
                                                            affine[1].split(sizes), strict=False)]
    post, comb = wide.new_zeros(tokens, streams, 1), wide.new_zeros(tokens, streams, streams)
    if is_whole:
        post, comb = (parts[1].sigmoid() * post_factor)[..., None], balance(parts[2].view(tokens, streams, streams))
    return post, comb, ((parts[0].sigmoid() + eps[1])[..., None] * wide).sum(1)


def _balanced(x: Tensor, repeat: int, eps: float) -> Tensor:
    """Sinkhorn's iteration: rows and columns of the exponentials add up to one, nearly."""
    x = x.softmax(-1) + eps
    x = x / (x.sum(-2, keepdim=True) + eps)
    for _ in range(repeat - 1):
        x = x / (x.sum(-1, keepdim=True) + eps)
        x = x / (x.sum(-2, keepdim=True) + eps)
    return x


def _balanced_logs(x: Tensor, repeat: int) -> Tensor:
    """Sinkhorn's iteration on logarithms, without epsilons: rows, then columns; none for no repeat."""
    if not repeat:
        return x
    for _ in range(repeat):
        x = x - x.logsumexp(-1, keepdim=True)
        x = x - x.logsumexp(-2, keepdim=True)
    return x.exp()


@aiter("aiter.ops.triton.fusions.mhc", callers="S")
def mhc_post_pre(
        layer_input: Tensor, residual_in: Tensor, post_mix: Tensor, comb_mix: Tensor, phi: Tensor, alphas: Tensor,
        bias: Tensor, n: int, eps: float = 1e-6, hc_pre_eps: float = 1e-6, hc_post_mult_value: float = 2.0,
        sinkhorn_iters: int = 20, asymmetric_exp_domain: bool = False, hc_sinkhorn_eps: float = 1e-6,
        residual_out: Tensor | None = None, h_post: Tensor | None = None, h_res: Tensor | None = None,
        layer_input_out: Tensor | None = None, acc_partial: Tensor | None = None, acc_sq_partial: Tensor | None = None,
        config: object = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`mhc_post` of a layer's result, then `mhc_pre` of the next one, whose exponentials are balanced without epsilons.

    Args:
        phi: [n · hidden, n · (2 + n)] bf16|fp16|fp32.
        alphas: [3] fp32, factors of the three parts, whose summands are in `bias`, [n · (2 + n)] fp32.
        asymmetric_exp_domain: exponentials are balanced as by `mhc_pre`, with `hc_sinkhorn_eps`.
        residual_out, h_post, h_res, layer_input_out: written, where given; other floating-point types than that of
            `layer_input` are those of `h_post` and `h_res` alone.
        acc_partial, acc_sq_partial, config: of AITER's kernels, and of no meaning.

    Returns:
        [tokens, n, 1], [tokens, n, n] and [tokens, hidden], dtype of `layer_input`, and the new streams. With
        `sinkhorn_iters` 0 the second one is as it is before balancing.
    """
    check.tensor(_TRITON, "residual_in", residual_in, rank=3)
    check.integer(_TRITON, "n", n, 1)
    if residual_in.shape[1] != n:
        raise ValueError(f"{_TRITON}: residual_in must have n = {n} streams, got shape {tuple(residual_in.shape)}")
    tokens, _, hidden = residual_in.shape
    kinds = (residual_in.dtype,)
    for name, out, shape, accepted in (
            ("residual_out", residual_out, residual_in.shape, kinds), ("h_res", h_res, (tokens, n, n), _FLOATS),
            ("layer_input_out", layer_input_out, (tokens, hidden), kinds),
            ("h_post", h_post, (tokens, n, 1)[:3 if h_post is None or h_post.ndim == 3 else 2], _FLOATS)):
        if out is not None:
            check.tensor(_TRITON, name, out, shape=shape, dtypes=accepted, device=residual_in.device,
                         last_contiguous=False)
    check.flag(_TRITON, "asymmetric_exp_domain", asymmetric_exp_domain)
    streams = _post(_TRITON, layer_input, residual_in, post_mix, comb_mix, residual_in)
    found = _triton_pre(_TRITON, streams, phi, (alphas, bias), (eps, hc_pre_eps), hc_post_mult_value, sinkhorn_iters,
                        hc_sinkhorn_eps if asymmetric_exp_domain else None)
    return tuple(value.to(layer_input.dtype) if out is None else out.copy_(value.view(out.shape))
                 for value, out in zip((*found, streams), (h_post, h_res, layer_input_out, residual_out)))


def _triton_pre(op: str, streams: Tensor, phi: Tensor, affine: tuple[Tensor, Tensor], eps: tuple[float, float],
                post_factor: float, repeat: int, balance_eps: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """The three results in fp32; `balance_eps`: of the balancing of `mhc_pre`, where that is asked for."""
    _, n, hidden = streams.shape
    check.tensor(op, "phi", phi, dtypes=_FLOATS, shape=(n * hidden, n * (2 + n)), device=streams.device,
                 last_contiguous=False)
    check.tensor(op, "alphas", affine[0], dtypes=_FP32, shape=(3,), device=streams.device)
    check.tensor(op, "bias", affine[1], dtypes=_FP32, shape=(n * (2 + n),), device=streams.device)
    check.integer(op, "sinkhorn_iters", repeat, 0)
    balance = functools.partial(_balanced_logs, repeat=repeat)
    if balance_eps is not None and repeat:
        balance = functools.partial(_balanced, repeat=repeat, eps=balance_eps)
    return _mixed(streams.float(), phi.t().float(), affine, eps, post_factor, balance)
