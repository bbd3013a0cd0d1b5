# SPDX-License-Identifier: MIT
"""AITER's functions that have other parameters here, or only answer a question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import aiter_like
from aiter_like import device, dtypes
from aiter_like.enums import QuantType
from aiter_like.integrations.aiter import checks
from aiter_like.integrations.aiter.declare import aiter
from aiter_like.ops.attention.dropout_randval import last_kept
from aiter_like.ops.mla import plan


@aiter("aiter.ops.triton.[attention.]mha", callers="V")
def flash_attn_varlen_func(
        q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
        max_seqlen_k: int, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
        window_size: Sequence[int] | None = (-1, -1), bias: Tensor | None = None, alibi_slopes: Tensor | None = None,
        deterministic: bool = False, return_lse: bool = False, return_attn_probs: bool = False,
        block_table: Tensor | None = None, out: Tensor | None = None, sink: Tensor | None = None,
        config: dict | None = None) -> Tensor | tuple[Tensor, ...]:
    """`aiter_like.flash_attn_varlen_func` as AITER's Triton module has it, with S_dmask that of `_signed_dropout`;
    `config`, tile sizes of its own kernel, has no meaning here.
    """
    found = aiter_like.flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=dropout_p,
        softmax_scale=softmax_scale, causal=causal, window_size=window_size, bias=bias, alibi_slopes=alibi_slopes,
        deterministic=deterministic, return_lse=return_lse, return_attn_probs=return_attn_probs,
        block_table=block_table, out=out, sink_ptr=sink)
    if not return_attn_probs or not dropout_p:
        return found
    return *found[:-1], _signed_dropout(found[-1], dropout_p, cu_seqlens_q, max_seqlen_q)


def _signed_dropout(randval: Tensor, dropout_p: float, cu_seqlens_q: Tensor, max_seqlen_q: int) -> Tensor:
    """S_dmask as AITER's Triton kernels encode it: fp32, negative where a score was dropped. Only the sign is served,
    as 1 and −1: they have exponentials there, each by the maximum that was known when its tile came.

    Args:
        randval: what `dropout_randval` gives of packed sequences.
        dropout_p, cu_seqlens_q, max_seqlen_q: as `flash_attn_varlen_func` has them.

    Returns:
        [batch, num_heads, max_seqlen_q, seqlen_k], 0 behind the ends of the sequences.
    """
    signs = (randval <= last_kept(dropout_p)).float() * 2 - 1
    place = torch.arange(max_seqlen_q, device=randval.device)
    rows, is_there = cu_seqlens_q[:-1, None] + place, place < cu_seqlens_q.diff()[:, None]  # [batch, max_seqlen_q]
    if signs.shape[1] == 0:
        return signs.new_zeros(len(rows), len(signs), max_seqlen_q, signs.shape[2])
    batches = signs[:, torch.where(is_there, rows, 0)].transpose(0, 1)
    return batches.masked_fill(~is_there[:, None, :, None], 0.0)


@aiter("aiter.ops.fused_qk_rmsnorm_group_quant aiter", callers="V")
def fused_qk_rmsnorm_group_quant(
        q_out_quantized: Tensor | None = None, q_out_scale: Tensor | None = None, q: Tensor | None = None,
        q_weight: Tensor | None = None, q_epsilon: float = 1e-6, q_out_unquantized: Tensor | None = None,
        k_out: Tensor | None = None, q_res_out: Tensor | None = None, k: Tensor | None = None,
        k_weight: Tensor | None = None, k_epsilon: float | None = None, q_residual: Tensor | None = None,
        group_size: int = 128, transpose_scale: bool = False, gemma_norm: bool = False) -> None:
    """`aiter_like.fused_qk_rmsnorm_quant` with a scale for `group_size` elements; without `q_out_scale` unquantised."""
    if q_out_scale is None and q_out_unquantized is None:
        raise ValueError("fused_qk_rmsnorm_group_quant: q_out_unquantized must be given without q_out_scale")
    kind = QuantType.No if q_out_scale is None else QuantType.per_1x128
    aiter_like.fused_qk_rmsnorm_quant(
        q_out_quantized, q_out_scale, q, q_weight, q_epsilon, q_out_unquantized, k_out, q_res_out, k, k_weight,
        k_epsilon, q_residual, gemma_norm, kind, group_size, transpose_scale)


@aiter("aiter.ops.fused_qk_rmsnorm_group_quant aiter", callers="V")
def fused_qk_rmsnorm_per_token_quant(
        q_out_quantized: Tensor, q_out_scale: Tensor, q: Tensor, q_weight: Tensor, q_epsilon: float,
        q_out_unquantized: Tensor | None = None, k_out: Tensor | None = None, q_res_out: Tensor | None = None,
        k: Tensor | None = None, k_weight: Tensor | None = None, k_epsilon: float | None = None,
        q_residual: Tensor | None = None, gemma_norm: bool = False) -> None:
    """`aiter_like.fused_qk_rmsnorm_quant` with a scale for each row of q."""
    aiter_like.fused_qk_rmsnorm_quant(
        q_out_quantized, q_out_scale, q, q_weight, q_epsilon, q_out_unquantized, k_out, q_res_out, k, k_weight,
        k_epsilon, q_residual, gemma_norm, QuantType.per_Token)


@aiter("aiter.ops.shuffle", callers="V s", stays=True)
def shuffle_weight_a16w4(src: Tensor, NLane: int, gate_up: bool) -> Tensor:
    """`shuffle_weight` in the interleaved form of 4-bit experts."""
    return aiter_like.shuffle_weight(src, layout=(NLane, 16), is_guinterleave=True, gate_up=gate_up)


@aiter("aiter.ops.shuffle", callers="s", stays=True)
def moe_shuffle_weight(src: Tensor, experts_cnt: int | None = None, is_guinterleave: bool = False,
                       gate_up: bool = False, layout: tuple[int, int] = (16, 16)) -> Tensor:
    """`shuffle_weight` of experts, whose count its first dimension says."""
    return aiter_like.shuffle_weight(src, layout=layout, is_guinterleave=is_guinterleave,
                                     gate_up=gate_up and is_guinterleave)


@aiter("aiter.ops.shuffle", callers="V s", stays=True)
def shuffle_scale_a16w4(src: Tensor, experts_cnt: int, gate_up: bool) -> Tensor | None:
    """`shuffle_scale` in the interleaved form of 4-bit experts."""
    return aiter_like.shuffle_scale(src, experts_cnt=experts_cnt, is_guinterleave=True, gate_up=gate_up)


@aiter("aiter.utility.fp4_utils", callers="V s", stays=True)
def e8m0_shuffle(scale: Tensor | None) -> Tensor | None:
    """`shuffle_scale`, whose parameter is `scale` here."""
    return aiter_like.shuffle_scale(scale)


@aiter("aiter.ops.shuffle", callers="s", stays=True)
def moe_shuffle_scale(src: Tensor, experts_cnt: int | None = None, is_guinterleave: bool = False,
                      gate_up: bool = False) -> Tensor | None:
    """`shuffle_scale` of experts."""
    if not is_guinterleave:
        return aiter_like.shuffle_scale(src)
    return aiter_like.shuffle_scale(src, experts_cnt=experts_cnt, is_guinterleave=True, gate_up=gate_up)


@aiter("aiter.mla", callers="V", stays=True)
def get_meta_param(num_kv_splits: int | None, bs: int, total_kv: int, nhead: int, max_seqlen_q: int,
                   dtype: torch.dtype, tg_factor: int = 1, ignore_total_kv: int = 0) -> tuple[int, Tensor]:
    """How often keys are cut where a caller wants to know, and where the parts of each sequence begin. A
    `mla_decode_fwd` that is not told shares the keys out better, by the lengths.
    """
    target = device.default_target()
    if num_kv_splits is None:
        parts = plan.balanced(target, max(bs, 1), max_seqlen_q * nhead, 1, total_kv).num_parts
        num_kv_splits = max(parts // max(bs, 1), 1)
    starts = torch.arange(0, (bs + 1) * num_kv_splits, num_kv_splits, dtype=torch.int32,
                          device="cuda" if torch.cuda.is_available() else "cpu")
    return num_kv_splits, starts


@aiter("aiter.ops.triton.utils.gemm_config_utils", callers="V", stays=True)
def get_gemm_config(config_name: str, M: int, N: int | None = None, K: int | None = None,
                    bounds: Any = None, specialized_filename: str | None = None, backend: str | None = None,
                    B: int | None = None) -> tuple[dict[str, Any], bool]:
    """An empty configuration, and that it is not tuned, so that engines keep their own product."""
    return {}, False


@aiter("aiter.jit.utils.chip_info aiter aiter.jit.core", callers="V S", stays=True)
@aiter("aiter.ops.triton.utils._triton.arch_info:get_arch", stays=True)
def get_gfx() -> str:
    """The architecture of this machine's device, as "gfx942"; "sm_90" on an NVIDIA GPU, whose kernels are others."""
    arch = device.default_target().arch
    return arch if checks.journal is None else checks.Arch(arch)


@aiter("aiter.jit.utils.chip_info aiter.jit.core aiter.ops.mhc", callers="V S", stays=True)
def get_gfx_runtime() -> str:
    """Like `get_gfx`: nothing here is compiled for another architecture than the one it runs on."""
    return get_gfx()


@aiter("aiter.jit.utils.chip_info aiter aiter.jit.core", callers="V S", stays=True)
def get_cu_num() -> int:
    """Compute units of this machine's device."""
    return device.default_target().cu_num


@aiter("aiter.ops.triton.[utils.]types", stays=True)
def get_fp8_e4m3_dtype() -> torch.dtype:
    """The e4m3 format of this machine's device."""
    return dtypes.get_dtype_fp8()


@aiter("aiter.ops.triton.[utils.]types", stays=True)
def get_fp8_dtypes() -> tuple[torch.dtype, torch.dtype]:
    """The e5m2 and e4m3 formats of this machine's device."""
    e4m3 = dtypes.get_dtype_fp8()
    return torch.float8_e5m2fnuz if e4m3 == torch.float8_e4m3fnuz else torch.float8_e5m2, e4m3


@aiter("aiter.ops.flydsl aiter.ops.flydsl.utils aiter.ops.flydsl.causal_conv1d_flydsl", stays=True)
def is_flydsl_available() -> bool:
    """Never: kernels of that language are not served."""
    return False


@aiter("aiter.jit.core", stays=True)
def is_experimental_enabled() -> bool:
    """Never: nothing here is half ready."""
    return False


@aiter("aiter.ops.triton.utils._triton.kernel_repr", callers="s", stays=True)
def make_kernel_repr(base_name: str, config_keys: Sequence[str], name_key: str | None = None) -> Callable[[Any], str]:
    """A Triton kernel's `repr`: its name with the values of some of its compile-time parameters, as "gemm_BLOCK_M_64".

    Args:
        base_name: the kernel's name.
        config_keys: the parameters that distinguish its compiled forms.
        name_key: a parameter that holds another name, where it is given.
    """

    def words(value: Any) -> str:
        if isinstance(value, (list, tuple)):
            return "_".join(map(words, value)) or "NONE"
        if isinstance(value, (bool, float)) and value == int(value):
            value = int(value)
        text = str(value)
        if not isinstance(value, (int, float)):
            text = "".join(letter if letter.isalnum() else "_" for letter in text).strip("_").upper()
        return text or "NONE"

    def kernel_repr(specialization: Any) -> str:
        constants = specialization.constants
        own = str(constants.get(name_key) or "") if name_key is not None else ""
        name = "".join(letter if letter.isalnum() else "_" for letter in own) or base_name
        return "_".join([name, *(f"{key}_{words(constants.get(key))}" for key in config_keys)])

    return kernel_repr


@aiter("aiter aiter.ops.activation")
def silu_and_mul_bias(out: Tensor, input: Tensor, expert_ids: Tensor, bias: Tensor) -> None:
    """`aiter_like.silu_and_mul_bias`, with zeros in rows of no expert."""
    _of_experts(aiter_like.silu_and_mul_bias, out, input, expert_ids, bias)


@aiter("aiter aiter.ops.activation")
def swiglu_and_mul_bias(out: Tensor, input: Tensor, expert_ids: Tensor, bias: Tensor) -> None:
    """`aiter_like.swiglu_and_mul_bias`, with zeros in rows of no expert."""
    _of_experts(aiter_like.swiglu_and_mul_bias, out, input, expert_ids, bias)


@aiter("aiter aiter.ops.activation")
def gelu_and_mul_bias(out: Tensor, input: Tensor, expert_ids: Tensor, bias: Tensor) -> None:
    """`aiter_like.gelu_and_mul_bias`, with zeros in rows of no expert."""
    _of_experts(aiter_like.gelu_and_mul_bias, out, input, expert_ids, bias)


def _of_experts(activation: Callable[..., None], out: Tensor, input: Tensor, expert_ids: Tensor, bias: Tensor) -> None:
    """An activation with the bias of each row's expert, of int32 or int64; AITER's callers have rows of pairs whose
    expert is elsewhere."""
    if isinstance(expert_ids, Tensor) and expert_ids.dtype == torch.int64:
        expert_ids = expert_ids.clamp(-1, len(bias)).int()
    activation(out, input, expert_ids, bias)
    out.masked_fill_(((expert_ids < 0) | (expert_ids >= len(bias))).unsqueeze(-1), 0)
