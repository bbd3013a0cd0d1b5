# SPDX-License-Identifier: MIT
"""flash_attn_bwd, the derivative of flash_attn_fwd, and `Attention`, which binds the two for autograd.

Kernels: csrc/attention/flash_attn_bwd.hip, ops/attention/triton/flash_attn_bwd.py. Read by ops/attention/flash_attn.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.device import Facts, Target
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.errors import UnsupportedError
from aiter_like.ops.attention.call import AttentionBackwardCall, AttentionCall, backward_call
from aiter_like.ops.attention.checks import check_derivative, derivative_refusal
from aiter_like.ops.attention.flash_attn_bwd_hip import ck_refusal, flash_attn_bwd_hip, hip_refusal
from aiter_like.ops.attention.flash_attn_dbias import flash_attn_dbias
from aiter_like.ops.attention.flash_attn_fwd import FlashAttnFwdKey, finished, flash_attn_fwd
from aiter_like.ops.attention.reference import row_gradients, wide_dtype
from aiter_like.ops.common import tune_shapes, vectors

_OP = "flash_attn_bwd"


def flash_attn_bwd_ref(call: AttentionBackwardCall) -> None:
    """The formulas in torch, in fp32 (fp64 for fp64 input), one sequence at a time; writes dq, dk, dv and dsink."""
    for gradient in call.results:
        if gradient is not None:
            gradient.zero_()
    dk, dv = (torch.zeros_like(tensor, dtype=wide_dtype(call)) for tensor in (call.k, call.v))
    for part in row_gradients(call):
        call.dq[part.sequence][part.rows] = (part.dproducts @ part.k).transpose(0, 1).to(call.dq.dtype)
        for total, products in ((dk, part.dproducts.mT @ part.q), (dv, part.survivors.mT @ part.dout)):
            if total.numel():
                total[part.keys] += products.unflatten(0, (total.shape[-2], -1)).sum(1).transpose(0, 1)
        if call.dsink is not None:
            call.dsink.add_(part.dsink)
    call.dk.copy_(dk)
    call.dv.copy_(dv)


def _check(call: AttentionBackwardCall) -> object:
    check_derivative(_OP, call, dq=call.q, dk=call.k, dv=call.v)
    if call.dsink is not None:
        check.tensor(_OP, "dsink", call.dsink, shape=(call.q.shape[-2],))
        if call.sink is None:
            raise ValueError(f"{_OP}: dsink must be None where there is no sink")
    return SKIP if call.q.numel() == 0 and call.k.numel() == 0 and call.dsink is None else None


class FlashAttnBwdKey(FlashAttnFwdKey):
    """The fields that a tuned row of flash_attn_bwd is chosen by: those of its forward."""

    @classmethod
    def of(cls, call: AttentionBackwardCall) -> FlashAttnBwdKey:
        return super().of(call.forward)

    def make(self, device: torch.device, seed: int) -> AttentionBackwardCall:
        """The derivative of a forward call, which is run."""
        forward = finished(super().make(device, seed))
        return backward_call(forward, tune_shapes.normal(device, seed + 1, self.dtype)(*forward.out.shape))


def _triton_space(target: Target, call: AttentionBackwardCall) -> Iterator[dict[str, int]]:
    """Tiles of both kernels; the loop of the one walks along rows, that of the other along keys.

    On Hopper there are also the kernels of triton/flash_attn_bwd_hopper.py; only what made a difference is tried: how
    many tiles are in work at once, and how many heads take turns. On MI300X the loops load ahead by themselves; tried
    are the shape of MFMA and how much of a row a lane reads at once (kpack).
    """
    if target.arch == "gfx942":
        for (m, n, rows, kpack), (m_dq, n_dq, rows_dq) in itertools.product(
                ((32, 64, 16, 1), (32, 64, 16, 2), (64, 64, 16, 1), (32, 128, 16, 2), (32, 128, 32, 1)),
                ((64, 32, 16), (64, 64, 16), (128, 32, 16), (128, 32, 32), (128, 64, 16), (128, 64, 32))):
            yield {"dkdv_BLOCK_M": m, "dkdv_BLOCK_N": n, "dkdv_matrix_instr_nonkdim": rows, "dkdv_kpack": kpack,
                   "dq_BLOCK_M": m_dq, "dq_BLOCK_N": n_dq, "dq_matrix_instr_nonkdim": rows_dq}
        return
    if target.arch == "sm_90":
        for unroll, unroll_dq, heads, heads_dq in itertools.product((1, 2), (1, 2), (4, 16), (1, 4, 16)):
            yield {"dkdv_BLOCK_M": 64, "dkdv_STAGES": 3, "dkdv_UNROLL": unroll, "dkdv_HEADS": heads,
                   "dq_BLOCK_N": 64, "dq_STAGES": 3, "dq_UNROLL": unroll_dq, "dq_HEADS": heads_dq}
    tiles = ((64, 64, 4, 3), (64, 128, 8, 3), (32, 128, 4, 2))
    if target.arch != "sm_90":  # there, the first two were slower with fewer stages wherever both were measured
        tiles += ((64, 64, 4, 1), (64, 64, 4, 2), (64, 128, 8, 1), (64, 128, 8, 2))
    for (m, n, warps, stages), (n_dq, m_dq, warps_dq, stages_dq) in itertools.product(tiles, tiles):
        yield {"dkdv_BLOCK_M": m, "dkdv_BLOCK_N": n, "dkdv_num_warps": warps, "dkdv_num_stages": stages,
               "dq_BLOCK_M": m_dq, "dq_BLOCK_N": n_dq, "dq_num_warps": warps_dq, "dq_num_stages": stages_dq}


def _triton_cost(call: AttentionBackwardCall, facts: Facts, dkdv_BLOCK_M: int = 64, dkdv_BLOCK_N: int = 64,
                 dkdv_num_warps: int = 4, dkdv_num_stages: int = 1, dq_BLOCK_M: int = 64, dq_BLOCK_N: int = 64,
                 dq_num_warps: int = 4, dq_num_stages: int = 1, dkdv_STAGES: int = 0, dq_STAGES: int = 0,
                 **_: int) -> float:
    """Elements of score tiles that a CU computes, padding included; infinite where the tiles do not fit.

    The fp32 sums (two for dK and dV) and two tiles of scores must fit the registers of a lane, and the tiles of all
    stages local memory.
    """
    forward = call.forward
    if dkdv_STAGES:  # two groups of 64 keys or rows of their own, 4 warps each
        dkdv_BLOCK_N, dkdv_num_warps, dkdv_num_stages = 128, 8, dkdv_STAGES
        dq_BLOCK_M, dq_num_warps, dq_num_stages = 128, 8, dq_STAGES
    total = 0.0
    for own, walked, warps, stages, sums, products, length, other, heads in (
            (dkdv_BLOCK_N, dkdv_BLOCK_M, dkdv_num_warps, dkdv_num_stages, forward.head_dim + forward.head_dim_v, 4,
             forward.max_seqlen_k, forward.max_seqlen_q * forward.num_heads // max(forward.num_kv_heads, 1),
             forward.num_kv_heads),
            (dq_BLOCK_M, dq_BLOCK_N, dq_num_warps, dq_num_stages, forward.head_dim, 3, forward.max_seqlen_q,
             forward.max_seqlen_k, forward.num_heads)):
        registers = own * (sums + 2 * walked) / (warps * facts.wave_size)
        local_bytes = 2 * (forward.head_dim + forward.head_dim_v) * (own + walked * stages)
        if registers > facts.sum_registers or local_bytes > facts.lds_bytes:
            return math.inf
        workgroups = -(-length // own) * heads * forward.batch
        total += products * (-(-workgroups // facts.cu_num) * own * -(-other // walked) * walked)
    return total


def _traffic(call: AttentionBackwardCall) -> tuple[int, int]:
    """Each tensor once; five products per pair of query and key, about half of the pairs where causal."""
    forward = call.forward
    pairs = forward.batch * forward.num_heads * forward.max_seqlen_q * forward.max_seqlen_k
    flops = 2 * pairs * (3 * forward.head_dim + 2 * forward.head_dim_v)
    tensors = (call.dq, call.dk, call.dv, call.dout, call.q, call.k, call.v, call.out, call.lse)
    moved = sum(tensor.nbytes for tensor in tensors)
    return moved, flops // 2 if forward.mask == "causal" else flops


_ADDRESSES = vectors.begin_at(dict.fromkeys(("dq", "dk", "dv", "dout", "q", "k", "v", "out"), 8))

flash_attn_bwd = Op(
    _OP, call=AttentionBackwardCall, reference=flash_attn_bwd_ref, check=_check, key=FlashAttnBwdKey, traffic=_traffic,
    writes=("dq", "dk", "dv", "dsink"),
    cases={f"{dtype}, head_dim {dim}": FlashAttnBwdKey("causal", "dense", 1, 130, 200, 4, 2, dim, dim, "none", dtype)
           for dim, dtype in ((64, "bf16"), (128, "fp16"))},  # head dimensions of Hopper's kernels, ends within a tile
    backends=(Backend("hip", flash_attn_bwd_hip, refusal=hip_refusal, address_refusal=_ADDRESSES),
              Backend("ck", flash_attn_bwd_hip, refusal=ck_refusal, address_refusal=_ADDRESSES),
              Backend("triton", "ops.attention.triton.flash_attn_bwd:flash_attn_bwd",
                      refusal=derivative_refusal, space=_triton_space, cost=_triton_cost),
              Backend("torch", flash_attn_bwd_ref)))


_OPTIONS = ("max_seqlen_q", "max_seqlen_k", "softmax_scale", "window_left", "window_right", "sink_size", "softcap",
            "dropout_p")


class Attention(torch.autograd.Function):
    """`flash_attn_fwd` with its derivative; `attend` calls it. The derivative has none of its own."""

    @staticmethod
    def forward(run: Callable[..., tuple[Tensor, Tensor]], q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None,
                bias: Tensor | None, alibi_slopes: Tensor | None, cu_seqlens_q: Tensor | None,
                cu_seqlens_k: Tensor | None, rng_state: Tensor | None,
                *options: float) -> tuple[Tensor, Tensor]:
        return run(q, k, v, sink, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
        _, q, k, v, sink, *others = inputs
        ctx.options = others[5:]
        ctx.save_for_backward(q, k, v, sink, *output, *others[:5])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # create_graph
            raise UnsupportedError("the derivative of attention has no derivative: take backend='torch'", _OP)
        q, k, v, sink, out, lse, bias, alibi_slopes, cu_seqlens_q, cu_seqlens_k, rng_state = ctx.saved_tensors
        if dout is None:
            dout = torch.zeros_like(out)
        elif dout.shape[-1] > 1 and dout.stride(-1) != 1:  # A sum's derivative is expanded.
            dout = dout.clone(memory_format=torch.contiguous_format)
        shared = {"dout": dout, "dlse": None if dlse is None else dlse.contiguous(), "q": q, "k": k, "v": v, "out": out,
                  "lse": lse, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "bias": bias,
                  "alibi_slopes": alibi_slopes, "sink": sink, "rng_state": rng_state,
                  **dict(zip(_OPTIONS, ctx.options, strict=True))}
        dq = dk = dv = dsink = dbias = None
        if any(ctx.needs_input_grad[1:5]):
            dq, dk, dv = (tensor.new_empty(tensor.shape) for tensor in (q, k, v))
            if ctx.needs_input_grad[4]:
                dsink = torch.empty(sink.shape, dtype=torch.float32, device=q.device)
            flash_attn_bwd.run(dq, dk, dv, dsink, **shared)
        if ctx.needs_input_grad[5]:
            dbias = bias.new_empty(bias.shape)
            flash_attn_dbias.run(dbias, **shared)
        return None, dq, dk, dv, dsink, dbias, *[None] * (4 + len(ctx.options))


def attend(call: AttentionCall, backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Runs `flash_attn_fwd(call)` so that q, k, v, sink and bias get their derivatives, by any backend.

    Args:
        call: its `out` and `lse` count for nothing.
        backend: of the forward, instead of the automatic choice.

    Returns:
        New tensors out and lse; both have a derivative.

    Raises:
        UnsupportedError: an input requires grad for which there is no derivative.
    """
    if call.alibi_slopes is not None and call.alibi_slopes.requires_grad:
        raise UnsupportedError("no derivative with respect to alibi_slopes: detach them, or take backend='torch'", _OP)
    if call.seqlens_k is not None or call.q_descale is not None:
        raise UnsupportedError("no derivative with a KV cache (seqlens_k) or of fp8 tensors: take backend='torch'", _OP)

    def run(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        out = torch.empty(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device)
        shape = (q.shape[0], q.shape[2], q.shape[1]) if q.dim() == 4 else (q.shape[1], q.shape[0])
        lse = torch.empty(shape, dtype=torch.float32, device=q.device)
        flash_attn_fwd(call._replace(out=out, lse=lse, q=q, k=k, v=v, sink=sink, bias=bias), backend=backend)
        return out, lse

    return Attention.apply(run, call.q, call.k, call.v, call.sink, call.bias, call.alibi_slopes, call.cu_seqlens_q,
                           call.cu_seqlens_k, call.rng_state, *[getattr(call, name) for name in _OPTIONS])
