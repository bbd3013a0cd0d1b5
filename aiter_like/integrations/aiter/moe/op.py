# SPDX-License-Identifier: MIT
"""AITER's Triton products of experts' matrices with lists of pairs, by moe_gemm. Named by names.txt.

The lists that callers give are those of vLLM; moe_gemm's say the same of the same pairs, and are made here of topk_ids.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

import aiter_like
from aiter_like import check
from aiter_like.errors import UnsupportedError
from aiter_like.ops.common import elements
from aiter_like.ops.common.contents import as_int32
from aiter_like.ops.moe.moe_formats import SCALE_BLOCK
from aiter_like.ops.moe.moe_gemm import moe_gemm
from aiter_like.ops.moe.moe_gemm_call import block_for


class _Pairs(NamedTuple):
    """Which pairs of a token and an expert there are, as moe_gemm takes them."""

    sorted_ids: Tensor
    weights: Tensor
    experts: Tensor
    valid: Tensor
    slots: int
    block: int

    @classmethod
    def of(cls, ids: Tensor, weights: Tensor, experts: int) -> _Pairs:
        """`ids` and `weights` [tokens, slots]."""
        block = block_for(max(ids.numel(), 1), max(experts, 1))
        found = aiter_like.moe_sorting(as_int32(ids), weights.float(), experts, 0, torch.float32, block,
                                       accumulate=False)
        return cls(*found[:4], ids.shape[1], block)


class _Form(NamedTuple):
    """How the experts' matrices are stored."""

    is_fp8: bool
    is_int8: bool
    group_size: int


def fused_moe(A: Tensor, B: Tensor, C: Tensor, A_scale: Tensor | None, B_scale: Tensor | None, B_zp: Tensor | None,
              topk_weights: Tensor, topk_ids: Tensor, sorted_token_ids: Tensor, expert_ids: Tensor,
              num_tokens_post_padded: Tensor, mul_routed_weight: bool, top_k: int, compute_type: Any,
              use_fp8_w8a8: bool, use_int8_w8a16: bool, use_int4_w4a16: bool,
              block_shape: Sequence[int] | None = None, config: dict[str, Any] | None = None) -> None:
    """The row of each pair of a token and one of its experts: the token's row times that expert's matrix.

    Args:
        A: [tokens, k] bf16|fp16, or with `top_k` 1 a row for each pair; fp8 with scales of blocks.
        B: [experts, n, k]: dtype of `A`, or what a flag says.
        C: [tokens, slots, n] or [pairs, n], contiguous, written; rows of pairs whose expert `B` does not have stay.
        A_scale: [rows, k / 128] fp32 with scales of blocks; else of no meaning.
        B_scale: fp32: of fp8 [experts], or with `block_shape` [experts, n / 128, k / 128]; of int8 [experts, n].
        B_zp: of no meaning: weights of 4 bits are not served.
        topk_weights: [tokens, slots]: with `mul_routed_weight` factors of the rows.
        topk_ids: [tokens, slots] integers: the experts.
        sorted_token_ids, expert_ids, num_tokens_post_padded, compute_type, config: of no meaning.
        top_k: `topk_ids`' slots, or 1 where `A` has a row for each pair.
        use_fp8_w8a8: `B` is the device's fp8, and `A` becomes it, with one scale, where `block_shape` is None.
        use_int8_w8a16: `B` is int8.
        use_int4_w4a16: False.
        block_shape: [128, 128]: `A` and `B` are fp8 with scales of blocks.
    """
    op = "fused_moe"
    form = _form(op, use_fp8_w8a8, use_int8_w8a16, use_int4_w4a16, block_shape)
    _product(op, C, A, B, (A_scale, B_scale), _pairs(op, A, B, topk_ids, topk_weights, top_k), form,
             weighs=mul_routed_weight)


def fused_moe_silu(A: Tensor, B: Tensor, C: Tensor, A_scale: Tensor | None, B_scale: Tensor | None,
                   B_zp: Tensor | None, topk_weights: Tensor, topk_ids: Tensor, sorted_token_ids: Tensor,
                   expert_ids: Tensor, num_tokens_post_padded: Tensor, mul_routed_weight: bool, top_k: int,
                   compute_type: Any, use_fp8_w8a8: bool, use_int8_w8a16: bool, use_int4_w4a16: bool,
                   block_shape: Sequence[int] | None = None, config: dict[str, Any] | None = None) -> None:
    """`fused_moe` with silu(gates) · others behind it: `C` [pairs, n / 2]."""
    op = "fused_moe_silu"
    form = _form(op, use_fp8_w8a8, use_int8_w8a16, use_int4_w4a16, block_shape)
    _product(op, C, A, B, (A_scale, B_scale), _pairs(op, A, B, topk_ids, topk_weights, top_k), form,
             weighs=mul_routed_weight, activation="silu_and_mul")


def fused_moe_gelu(A: Tensor, B: Tensor, C: Tensor, A_scale: Tensor | None, B_scale: Tensor | None,
                   topk_weights: Tensor, topk_ids: Tensor, sorted_token_ids: Tensor, expert_ids: Tensor,
                   num_tokens_post_padded: Tensor, mul_routed_weight: bool, top_k: int, compute_type: Any,
                   use_fp8_w8a8: bool, use_int8_w8a16: bool, block_shape: Sequence[int] | None = None,
                   config: dict[str, Any] | None = None) -> None:
    """`fused_moe` with GELU, by tanh, behind it, but where the rows are multiplied by their weights: as AITER's."""
    op = "fused_moe_gelu"
    form = _form(op, use_fp8_w8a8, use_int8_w8a16, False, block_shape)
    _product(op, C, A, B, (A_scale, B_scale), _pairs(op, A, B, topk_ids, topk_weights, top_k), form,
             weighs=mul_routed_weight, activation="none" if mul_routed_weight else "gelu_tanh")


def e2e_moe(A: Tensor, W1: Tensor, W2: Tensor, Intermediate: Tensor | None, C: Tensor, A_scale: Tensor | None,
            W1_scale: Tensor | None, W2_scale: Tensor | None, topk_weights: Tensor, sorted_token_ids: Tensor,
            topk_ids: Tensor, expert_ids: Tensor, num_tokens_post_padded: Tensor, mul_routed_weight: bool, top_k: int,
            use_fp8_w8a8: bool, use_int8_w8a16: bool, config: dict[str, Any] | None = None) -> Tensor:
    """`fused_moe_silu` by `W1` and `fused_moe` by `W2`, whose rows are multiplied by their weights.

    Args:
        W1: [experts, n, k], W2: [experts, columns, n / 2].
        Intermediate: of no meaning: what is between the products has the dtype of `A`.
        C: [tokens, top_k, columns], written.

    Returns:
        `C`.
    """
    op = "e2e_moe"
    form, pairs = _form(op, use_fp8_w8a8, use_int8_w8a16, False, None), _pairs(op, A, W1, topk_ids, topk_weights, top_k)
    inner = torch.zeros(topk_ids.numel(), W1.shape[1] // 2, dtype=A.dtype, device=A.device)
    _product(op, inner, A, W1, (A_scale, W1_scale), pairs, form, activation="silu_and_mul")
    _product(op, C, inner, W2, (None, W2_scale), pairs, form, weighs=mul_routed_weight)
    return C


def moe_set_use_persistent_kernel(value: bool) -> None:
    """Nothing: it chooses between AITER's own kernels."""


def moe_set_padding_size(size: int) -> None:
    """Nothing: sizes need no padding here."""


def get_optimal_moe_config(
        dtype: torch.dtype, use_int8_w8a16: bool | None = False, use_int8_w8a8: bool | None = False,
        use_fp8_w8a8: bool | None = False, use_int4_w4a16: bool | None = False, use_mxfp4: bool | None = False,
        M: int = 1) -> dict[str, int]:
    """The places of a block for who sorts pairs, which the kernels here do not read; their tiles are their own."""
    return {"BLOCK_SIZE_M": 64}


def get_optimal_moe_config_func(
        dtype: torch.dtype, use_int8_w8a16: bool | None = False, use_int8_w8a8: bool | None = False,
        use_fp8_w8a8: bool | None = False, use_int4_w4a16: bool | None = False,
        use_mxfp4: bool | None = False) -> Callable[[int], dict[str, int]]:
    """`get_optimal_moe_config` as a function of the tokens."""
    return functools.partial(get_optimal_moe_config, dtype, use_int8_w8a16, use_int8_w8a8, use_fp8_w8a8,
                             use_int4_w4a16, use_mxfp4)


def torch_silu_and_mul_ref(input: Tensor) -> Tensor:
    """silu of the first half of each row times the second, in torch: [rows, n] → [rows, n / 2]."""
    gate, up = input.chunk(2, -1)
    return (torch.nn.functional.silu(gate.float()) * up).to(input.dtype)


def __getattr__(name: str) -> Any:
    """torch_to_triton_dtype, which needs Triton."""
    if name != "torch_to_triton_dtype":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import triton.language as tl

    kinds = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
    narrow = {torch.float8_e4m3fn: tl.float8e4nv, torch.float8_e4m3fnuz: tl.float8e4b8,
              torch.float8_e5m2: tl.float8e5, torch.float8_e5m2fnuz: tl.float8e5b16}
    return {getattr(torch, kind): getattr(tl, "int1" if kind == "bool" else kind) for kind in kinds} | narrow


def _form(op: str, is_fp8: bool, is_int8: bool, is_int4: bool, block_shape: Sequence[int] | None) -> _Form:
    for name, value in (("use_fp8_w8a8", is_fp8), ("use_int8_w8a16", is_int8), ("use_int4_w4a16", is_int4)):
        check.flag(op, name, value)
    if is_int4:
        raise UnsupportedError(f"{op}: use_int4_w4a16 is not served: weights of 4 bits without sign; fused_moe of "
                               f"aiter_like takes signed ones, of dtype i4x2")
    if is_fp8 and is_int8:
        raise ValueError(f"{op}: use_fp8_w8a8 and use_int8_w8a16 must not both be True")
    blocks = [int(size) for size in block_shape or (0, 0)]
    if blocks not in ([0, 0], [SCALE_BLOCK, SCALE_BLOCK]) or blocks[0] and not is_fp8:
        raise UnsupportedError(f"{op}: block_shape {blocks} is not served; it is None, or [128, 128] with use_fp8_w8a8")
    return _Form(is_fp8, is_int8, blocks[0])


def _pairs(op: str, a: Tensor, b: Tensor, ids: Tensor, weights: Tensor, top_k: int) -> _Pairs:
    check.tensor(op, "A", a, rank=2)
    check.tensor(op, "B", b, rank=3, device=a.device, last_contiguous=False)
    check.tensor(op, "topk_ids", ids, rank=2, dtypes=elements.INTEGERS, device=a.device)
    check.tensor(op, "topk_weights", weights, dtypes=elements.FLOATS, shape=tuple(ids.shape), device=a.device)
    check.integer(op, "top_k", top_k, 1)
    if top_k not in (1, ids.shape[1]) or len(a) * top_k != ids.numel():
        raise ValueError(f"{op}: A must have {len(ids)} rows with top_k {ids.shape[1]}, or {ids.numel()} with top_k 1, "
                         f"got {len(a)} and {top_k}")
    return _Pairs.of(ids, weights, len(b))


def _product(op: str, out: Tensor, a: Tensor, b: Tensor, scales: tuple[Tensor | None, Tensor | None], pairs: _Pairs,
             form: _Form, *, weighs: bool = False, activation: str = "none") -> None:
    a_scale, b_scale = scales
    check.tensor(op, "C", out, device=a.device)
    if not out.is_contiguous():
        raise ValueError(f"{op}: C must be contiguous, got shape {tuple(out.shape)}, strides {out.stride()}")
    if form.is_fp8 or form.is_int8:
        check.tensor(op, "B_scale", b_scale, device=a.device, last_contiguous=False)
    if not form.is_fp8:
        a_scale = None
    elif not form.group_size:
        a, a_scale = aiter_like.per_tensor_quant_hip(a, quant_dtype=b.dtype)
        a_scale = a_scale.reshape(1).expand(len(a))
        b_scale = b_scale.reshape(-1, 1).expand(b.shape[:2])
    moe_gemm.run(out.view(-1, out.shape[-1]), a, b, pairs.experts, sorted_ids=pairs.sorted_ids, valid=pairs.valid,
                 weights=pairs.weights if weighs else None, a_scale=a_scale, b_scale=b_scale, slots=pairs.slots,
                 block=pairs.block, activation=activation, b_format="int8" if form.is_int8 else "same",
                 group_size=form.group_size)
