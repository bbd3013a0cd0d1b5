# SPDX-License-Identifier: MIT
"""flash_attn_dbias: the derivative of flash_attn_fwd by its bias, beside those that flash_attn_bwd makes by whichever
backend. It has a launch of its own: it sums over what shares the bias, not over keys or rows.

Kernel: ops/attention/triton/flash_attn_dbias.py. Called by flash_attn_bwd.py and by AITER's names.
"""

from __future__ import annotations

import torch

from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.ops.attention.call import AttentionDbiasCall, backward_call, dbias_call
from aiter_like.ops.attention.checks import check_derivative, derivative_refusal
from aiter_like.ops.attention.flash_attn_fwd import FlashAttnFwdKey, finished
from aiter_like.ops.attention.reference import row_gradients, wide_dtype
from aiter_like.ops.common import tune_shapes

_OP = "flash_attn_dbias"


def flash_attn_dbias_ref(call: AttentionDbiasCall) -> None:
    """The formula in torch, in fp32 (fp64 for fp64 input), some rows at a time."""
    total = torch.zeros_like(call.dbias, dtype=wide_dtype(call))
    for part in row_gradients(call):
        if call.forward.is_varlen:
            own, ds = total[part.sequence], part.dscores.sum(0)
        else:
            own = total[part.batch if len(total) > 1 else 0]
            ds = part.dscores if len(own) > 1 else part.dscores.sum(0, keepdim=True)
        own[..., part.rows, :ds.shape[-1]] += ds
    call.dbias.copy_(total)


def _check(call: AttentionDbiasCall) -> object:
    check_derivative(_OP, call, dbias=call.bias)
    return SKIP if call.dbias.numel() == 0 else None


class FlashAttnDbiasKey(FlashAttnFwdKey):
    """The fields that a tuned row of flash_attn_dbias is chosen by: those of its forward."""

    of_model = None  # A model that is served learns no bias.

    @classmethod
    def of(cls, call: AttentionDbiasCall) -> FlashAttnDbiasKey:
        return super().of(call.forward)

    def make(self, device: torch.device, seed: int) -> AttentionDbiasCall:
        """The derivative of a forward call with one bias for all, which is run."""
        random = tune_shapes.normal(device, seed + 1, self.dtype)
        forward = finished(super().make(device, seed)._replace(bias=random(1, 1, self.seqlen_q, self.seqlen_k)))
        return dbias_call(backward_call(forward, random(*forward.out.shape)), torch.empty_like(forward.bias))


def _traffic(call: AttentionDbiasCall) -> tuple[int, int]:
    """Each tensor once; two products per pair of query and key, about half of the pairs where causal."""
    forward = call.forward
    pairs = forward.batch * forward.num_heads * forward.max_seqlen_q * forward.max_seqlen_k
    flops = 2 * pairs * (forward.head_dim + forward.head_dim_v)
    tensors = (call.dbias, call.bias, call.dout, call.q, call.k, call.v, call.out, call.lse)
    return sum(tensor.nbytes for tensor in tensors), flops // 2 if forward.mask == "causal" else flops


flash_attn_dbias = Op(
    _OP, call=AttentionDbiasCall, reference=flash_attn_dbias_ref, check=_check, key=FlashAttnDbiasKey,
    traffic=_traffic, writes=("dbias",),
    cases={f"{dtype}, head_dim {dim}": FlashAttnDbiasKey("causal", "dense", 2, 70, 100, 4, 2, dim, dim, "bias", dtype)
           for dim, dtype in ((64, "bf16"), (128, "fp16"))},
    backends=(Backend("triton", "ops.attention.triton.flash_attn_dbias:flash_attn_dbias", refusal=derivative_refusal,
                      space=tune_shapes.every(BLOCK_M=(32, 64, 128), BLOCK_N=(32, 64, 128), num_warps=(4, 8))),
              Backend("torch", flash_attn_dbias_ref)))
