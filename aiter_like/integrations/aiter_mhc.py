# SPDX-License-Identifier: MIT
"""AITER's manifold-constrained hyper-connections, made of torch's functions: there is no kernel of them here. Named by
aiter_names.txt.
"""

from __future__ import annotations

import torch
from torch import Tensor

import aiter_like
from aiter_like import check

_PRE, _POST, _BOTH = "mhc_pre", "mhc_post", "mhc_fused_post_pre"
_FP32 = (torch.float32,)
_HALVES = (torch.bfloat16, torch.float16)


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
    check.tensor(op, "residual", residual, dtypes=_HALVES, rank=3)
    tokens, streams, hidden = residual.shape
    check.tensor(op, "out", like, dtypes=(residual.dtype,), shape=residual.shape, device=residual.device)
    check.tensor(op, "layer_input" if op == _BOTH else "x", x, dtypes=(residual.dtype,), shape=(tokens, hidden),
                 device=residual.device)
    check.tensor(op, "comb_res_mix", comb, dtypes=_FP32, shape=(tokens, streams, streams), device=residual.device)
    check.tensor(op, "post_layer_mix", post, dtypes=_FP32, device=residual.device, last_contiguous=False)
    if tuple(post.shape) not in ((tokens, streams, 1), (tokens, streams)):
        raise ValueError(f"{op}: post_layer_mix must have shape {(tokens, streams, 1)}, got {tuple(post.shape)}")
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
    wide = residual.float()
    flat = wide.flatten(1)
    mixes = (flat @ fn.t()) * torch.rsqrt(flat.square().mean(1, keepdim=True) + eps[0])
    sizes = (streams, streams, streams * streams)
    parts = [mix * scale + base for mix, scale, base in zip(mixes.split(sizes[:3 if is_whole else 1], 1),
                                                            affine[0].unbind(), affine[1].split(
                                                                sizes[:3 if is_whole else 1]), strict=False)]
    post = wide.new_zeros(tokens, streams, 1)
    comb = wide.new_zeros(tokens, streams, streams)
    if is_whole:
        post = (parts[1].sigmoid() * post_factor)[..., None]
        comb = _balanced(parts[2].view(tokens, streams, streams), repeat, eps[2])
    read = ((parts[0].sigmoid() + eps[1])[..., None] * wide).sum(1)
    if norm_weight is not None and tokens:
        read = aiter_like.rms_norm(read, norm_weight.float(), norm_eps)
    return post, comb, read.to(torch.bfloat16)


def _balanced(x: Tensor, repeat: int, eps: float) -> Tensor:
    """Sinkhorn's iteration: rows and columns of the exponentials add up to one, nearly."""
    x = x.softmax(-1) + eps
    x = x / (x.sum(-2, keepdim=True) + eps)
    for _ in range(repeat - 1):
        x = x / (x.sum(-1, keepdim=True) + eps)
        x = x / (x.sum(-2, keepdim=True) + eps)
    return x
