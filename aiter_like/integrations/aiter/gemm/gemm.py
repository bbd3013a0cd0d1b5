# SPDX-License-Identifier: MIT
"""AITER's matrix products that have other parameters than `aiter_like.gemm_a16w16`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import aiter_like
from aiter_like import device
from aiter_like.dispatch import OPS
from aiter_like.dispatch.public import public
from aiter_like.dispatch.selection import Request, select
from aiter_like.errors import UnsupportedError
from aiter_like.integrations import linear
from aiter_like.integrations.aiter.declare import aiter
from aiter_like.integrations.aiter.objects import AITER_CONFIGS
from aiter_like.ops.common import marks
from aiter_like.ops.gemm.gemm_a8w8 import GemmA8w8Call


def result_dtype(dtype: torch.dtype | None, out: Tensor | None) -> torch.dtype:
    """Of a result of AITER's Triton modules: that of `out`, where it is given, and for None that of torch.empty."""
    return out.dtype if isinstance(out, Tensor) else torch.get_default_dtype() if dtype is None else dtype


@aiter("aiter.tuned_gemm:tgemm.mm", callers="V s", stays=True)
def mm(inp: Tensor, weights: Tensor, bias: Tensor | None = None, otype: torch.dtype | None = None,
       scale_a: Tensor | None = None, scale_b: Tensor | None = None, scale_c: Tensor | None = None) -> Tensor:
    """`aiter_like.gemm_a16w16` as `tgemm.mm`."""
    return aiter_like.gemm_a16w16(inp, weights, bias, otype, scale_a, scale_b, scale_c)


@aiter("aiter.ops.triton.[gemm.basic.]gemm_a16w16:gemm_a16w16", callers="V s", stays=True)
def gemm_a16w16_triton(x: Tensor, w: Tensor, bias: Tensor | None = None, dtype: torch.dtype | None = torch.bfloat16,
                       y: Tensor | None = None, config: dict | None = None, activation: str | None = None,
                       skip_reduce: bool = False, kernel_type: str = "bandwidth_bound",
                       backend: str | None = None) -> Tensor:
    """`aiter_like.gemm_a16w16` as AITER's Triton module has it; `config`, `kernel_type` and `backend`, which choose
    among its own kernels, have no meaning here.

    Raises:
        UnsupportedError: `skip_reduce` asks for the partial sums of its kernel.
    """
    _refuse_partial_sums("gemm_a16w16", "gemm_a16w16", skip_reduce)
    return aiter_like.gemm_a16w16(x, w, bias, result_dtype(dtype, y), activation=activation, out=y)


@aiter("aiter.tuned_gemm", stays=True)
def triton_gemm(inp: Tensor, weights: Tensor, solidx: int, bias: Tensor | None = None,
                otype: torch.dtype | None = None, scale_a: Tensor | None = None, scale_b: Tensor | None = None,
                scale_c: Tensor | None = None, bpreshuffle: bool = False, config: dict | None = None) -> Tensor:
    """`aiter_like.gemm_a16w16` as one of the solutions that AITER's tuner compares; `solidx` and `config`, which choose
    among its own kernels, have no meaning here.

    Raises:
        UnsupportedError: the weights are shuffled.
    """
    if bpreshuffle:
        raise UnsupportedError("triton_gemm: bpreshuffle must be False, got True", "gemm_a16w16")
    return aiter_like.gemm_a16w16(inp, weights, bias, otype, scale_a, scale_b, scale_c)


@aiter("aiter aiter.ops.gemm_op_a16w16", stays=True)
def gemm_a16w16_asm(A: Tensor, B: Tensor, out: Tensor, bias: Tensor | None = None, splitK: int | None = None,
                    kernelName: str | None = None, bpreshuffle: bool = False) -> Tensor:
    """`aiter_like.gemm_a16w16` into `out`, with `bpreshuffle` on weights in the order of `shuffle_weight`, marked or
    not; `splitK` and `kernelName`, which choose among AITER's kernels, have no meaning here.

    Raises:
        ValueError: the weights are marked as shuffled and `bpreshuffle` is False.
    """
    if not bpreshuffle:
        marks.refuse("gemm_a16w16_asm", "B", B, " without bpreshuffle")
    return aiter_like.gemm_a16w16(A, marks.marked(B) if bpreshuffle else B, bias, out=out)


@aiter("aiter aiter.ops.gemm_op_a8w8", callers="V", stays=True)
def gemm_a8w8_CK(XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None = None,
                 dtype: torch.dtype = torch.bfloat16, splitK: int | None = None) -> Tensor:
    """`aiter_like.gemm_a8w8`, by whichever backend serves."""
    return aiter_like.gemm_a8w8(XQ, WQ, x_scale, w_scale, bias, dtype, splitK)


@aiter("aiter aiter.ops.gemm_op_a8w8", stays=True)
def gemm_a8w8_ASM(XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None,
                  dtype: torch.dtype = torch.bfloat16, check: bool = False) -> Tensor:
    """`aiter_like.gemm_a8w8_bpreshuffle` in the layout that `shuffle_weight` marked the weights with: AITER documents
    (32, 16) and tests (16, 16).

    Raises:
        ValueError: the weights have lost the mark.
    """
    if marks.layout_named(WQ) is None:
        raise ValueError("gemm_a8w8_ASM: WQ must be as shuffle_weight returns it, whose attribute shuffle_layout tells "
                         "the layout, got none; gemm_a8w8_bpreshuffle takes weights without it, and layout=")
    return aiter_like.gemm_a8w8_bpreshuffle(XQ, WQ, x_scale, w_scale, bias, dtype, check)


@aiter("aiter.ops.triton.[gemm.batched.]batched_gemm_bf16:batched_gemm_bf16", callers="S", stays=True)
def batched_gemm_bf16_triton(XQ: Tensor, WQ: Tensor, bias: Tensor | None = None,
                             dtype: torch.dtype | None = torch.bfloat16, splitK: int | None = None,
                             YQ: Tensor | None = None, config: dict | None = None,
                             kernel_type: str = "bandwidth_bound", backend: str | None = None) -> Tensor:
    """`aiter_like.batched_gemm_bf16` as AITER's Triton module has it; `config`, `kernel_type` and `backend`, which
    choose among its own kernels, have no meaning here.
    """
    return aiter_like.batched_gemm_bf16(XQ, WQ, bias, result_dtype(dtype, YQ), splitK, out=YQ)


@aiter("aiter.ops.triton.[gemm.basic.]gemm_a8w8_blockscale:gemm_a8w8_blockscale", callers="V s", stays=True)
@aiter("aiter.ops.triton.gluon.gemm_a8w8_blockscale:gemm_a8w8_blockscale", stays=True)
def gemm_a8w8_blockscale_triton(x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor,
                                dtype: torch.dtype | None = torch.bfloat16, y: Tensor | None = None,
                                config: dict | None = None, skip_reduce: bool = False,
                                kernel_type: str = "bandwidth_bound", backend: str | None = None) -> Tensor:
    """`aiter_like.gemm_a8w8_blockscale` as AITER's Triton module has it; `config`, `kernel_type` and `backend`, which
    choose among its own kernels, have no meaning here.

    Raises:
        UnsupportedError: `skip_reduce` asks for the partial sums of its kernel.
    """
    _refuse_partial_sums("gemm_a8w8_blockscale", "gemm_a8w8_blockscale", skip_reduce)
    return aiter_like.gemm_a8w8_blockscale(x, w, x_scale, w_scale, result_dtype(dtype, y), out=y)


@aiter("aiter.ops.triton.[gemm.basic.]gemm_a8w8_blockscale:gemm_a8w8_blockscale_preshuffle", callers="V", stays=True)
def gemm_a8w8_blockscale_preshuffle_triton(
        x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, dtype: torch.dtype | None = torch.bfloat16,
        y: Tensor | None = None, config: dict | None = None, skip_reduce: bool = False,
        is_x_scale_tranposed: bool = True, kernel_type: str = "bandwidth_bound",
        backend: str | None = None) -> Tensor:
    """`aiter_like.gemm_a8w8_blockscale_bpreshuffle` as AITER's Triton module has it: `w` as bands of 16 rows, [n / 16,
    16 · k]. Without `is_x_scale_tranposed` the strides of `x_scale` say how it lies in memory. `config`, `kernel_type`
    and `backend`, which choose among its own kernels, have no meaning here.

    Raises:
        UnsupportedError: `skip_reduce` asks for the partial sums of its kernel.
        ValueError: `w` is no matrix of bands.
    """
    name = "gemm_a8w8_blockscale_preshuffle"
    _refuse_partial_sums(name, "gemm_a8w8_blockscale", skip_reduce)
    if w.ndim != 2 or w.shape[1] % 16 or not w.is_contiguous():
        raise ValueError(f"{name}: w must be contiguous, [n / 16, 16 · k], got shape {tuple(w.shape)}, strides "
                         f"{w.stride()}")
    weights = w.view(16 * w.shape[0], w.shape[1] // 16)
    if not is_x_scale_tranposed:
        x_scale = x_scale.t().contiguous().t()
    return aiter_like.gemm_a8w8_blockscale_bpreshuffle(x, weights, x_scale, w_scale, result_dtype(dtype, y), y)


@aiter("aiter aiter.ops.deepgemm", stays=True)
def deepgemm(XQ: Tensor, WQ: Tensor, Y: Tensor, group_layout: Tensor, x_scale: Tensor | None = None,
             w_scale: Tensor | None = None) -> Tensor:
    """`aiter_like.grouped_gemm` of padded groups: of the matrices `XQ` [groups, most, k] each has as many rows as
    `group_layout` [groups] int32 says, and the rest of `Y` [groups, most, n] stays as it is. `WQ` [groups, n, k] is in
    the order of `shuffle_weight`, marked or not; scales are [groups, most, 1] and [groups, n, 1].

    Raises:
        ValueError: a shape does not fit.
    """
    for name, one, rank in (("XQ", XQ, 3), ("WQ", WQ, 3), ("Y", Y, 3), ("group_layout", group_layout, 1)):
        if one.ndim != rank:
            raise ValueError(f"deepgemm: {name} must have {rank} dimensions, got shape {tuple(one.shape)}")
    groups, most, k = XQ.shape
    if group_layout.shape != (groups,) or Y.shape != (groups, most, WQ.shape[1]) or not Y.is_contiguous():
        raise ValueError("deepgemm: group_layout must be [groups] and Y [groups, most, n], contiguous, got shapes "
                         f"{tuple(group_layout.shape)} and {tuple(Y.shape)}, strides {Y.stride()}")
    numbers = torch.arange(groups * most, dtype=torch.int32, device=XQ.device).view(groups, most)
    offsets = torch.arange(0, (groups + 1) * most, most, dtype=torch.int32, device=XQ.device)[:groups + 1]
    is_row = torch.arange(most, dtype=torch.int32, device=XQ.device) < group_layout[:, None]
    aiter_like.grouped_gemm(XQ.reshape(-1, k), marks.marked(WQ), offsets,
                            None if x_scale is None else x_scale.reshape(-1, 1), w_scale,
                            row_index=torch.where(is_row, numbers, -1).view(-1), out=Y.view(groups * most, -1))
    return Y


@aiter("aiter.ops.gemm_op_a8w8:gemm_a8w8_blockscale_ck", stays=True)
def gemm_a8w8_blockscale_out(XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, Out: Tensor, splitK: int = 0,
                             kernelName: str = "") -> Tensor:
    """`aiter_like.gemm_a8w8_blockscale` into `Out`; `splitK` and `kernelName`, which choose among AITER's kernels, have
    no meaning here."""
    return aiter_like.gemm_a8w8_blockscale(XQ, WQ, x_scale, w_scale, Out.dtype, out=Out)


@aiter("aiter.ops.gemm_op_a8w8", stays=True)
def gemm_a8w8_blockscale_cktile(XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, Out: Tensor,
                                isBpreshuffled: bool = False, splitK: int = 0, kernelName: str = "") -> Tensor:
    """`aiter_like.gemm_a8w8_blockscale` into `Out`; `splitK` and `kernelName`, which choose among AITER's kernels, have
    no meaning here."""
    return aiter_like.gemm_a8w8_blockscale(XQ, WQ, x_scale, w_scale, Out.dtype, isBpreshuffled, out=Out)


@aiter("aiter aiter.ops.gemm_op_a8w8", stays=True)
def gemm_a8w8_bpreshuffle_ck(XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, Out: Tensor,
                             splitK: int = 0) -> Tensor:
    """`aiter_like.gemm_a8w8_bpreshuffle` into `Out`; `splitK`, of AITER's kernels, has no meaning here."""
    return aiter_like.gemm_a8w8_bpreshuffle(XQ, WQ, x_scale, w_scale, dtype=Out.dtype, out=Out)


@aiter("aiter aiter.ops.gemm_op_a8w8", stays=True)
def gemm_a8w8_bpreshuffle_cktile(XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, out: Tensor,
                                 splitK: int = 0) -> Tensor:
    """`gemm_a8w8_bpreshuffle_ck`, whose result is called `out`."""
    return gemm_a8w8_bpreshuffle_ck(XQ, WQ, x_scale, w_scale, out)


@aiter("aiter aiter.ops.gemm_op_a8w8", stays=True)
def gemm_a8w8_blockscale_bpreshuffle_asm(A: Tensor, B: Tensor, out: Tensor, A_scale: Tensor, B_scale: Tensor,
                                         bias: Tensor | None = None, splitK: int | None = None,
                                         kernelName: str | None = None, bpreshuffle: bool = True,
                                         zero_bias_buf: Tensor | None = None) -> Tensor:
    """`aiter_like.gemm_a8w8_blockscale`, with weights in order where `bpreshuffle`, into `out`; `splitK`, `kernelName`
    and `zero_bias_buf`, which belong to AITER's kernels, have no meaning here.

    Raises:
        UnsupportedError: a bias is given.
    """
    if bias is not None:
        raise UnsupportedError("gemm_a8w8_blockscale_bpreshuffle_asm: bias must be None, there is none with block "
                               f"scales, got {type(bias).__name__}", "gemm_a8w8_blockscale")
    return aiter_like.gemm_a8w8_blockscale(A, B, A_scale, B_scale, out.dtype, bpreshuffle, out=out)


@aiter("aiter aiter.ops.gradlib", callers="V")
def hipb_create_extension() -> None:
    """Nothing is set up before a product is asked for."""


@aiter("aiter aiter.ops.gradlib", callers="V")
def hipb_mm(mat1: Tensor, mat2: Tensor, solution_index: int, bias: Tensor | None = None,
            out_dtype: torch.dtype | None = None, scaleA: Tensor | None = None, scaleB: Tensor | None = None,
            scaleOut: Tensor | None = None, bpreshuffle: bool | None = None, use_gelu: bool | None = None) -> Tensor:
    """`mat1 · mat2` by `aiter_like.gemm_a16w16` or, of 8 bits, by `gemm_a8w8`.

    Args:
        mat1: [m, k] bf16|fp16|fp8|int8.
        mat2: [k, n]: the weights [n, k] transposed; with `bpreshuffle` those that `shuffle_weight` returned.
        solution_index: −1, or 0, the only one that `hipb_findallsols` tells of: the dispatcher chooses.
        bias: [n].
        out_dtype: of the result; default: that of `mat1`, of 8 bits bf16.
        scaleA, scaleB: of 8 bits: one per row [m, 1] and column [1, n], or a single one each; default: 1.
        scaleOut: None.
        use_gelu: GELU after the bias, which has to be there.

    Raises:
        RuntimeError: `use_gelu` without a bias, as AITER has it.
        UnsupportedError: `scaleOut`, or another solution.
    """
    name, is_wide = "hipb_mm", mat1.element_size() > 1
    _refuse_gelu_without_bias(name, bias, use_gelu)
    if scaleOut is not None or solution_index not in (-1, 0):
        raise UnsupportedError(f"{name}: scaleOut must be None and solution_index -1 or 0, got "
                               f"{type(scaleOut).__name__} and {solution_index}", "gemm_a8w8")
    weights = mat2.t()
    if is_wide:
        if scaleA is not None or scaleB is not None:
            raise ValueError(f"{name}: scaleA and scaleB must be None for {mat1.dtype}")
        if bpreshuffle:
            marks.mark(weights)
        return aiter_like.gemm_a16w16(mat1, weights, bias, out_dtype, activation="gelu" if use_gelu else None)
    scales = [mat1.new_ones(1, dtype=torch.float32) if scale is None else scale for scale in (scaleA, scaleB)]
    scales = scales[0], scales[1].t() if scales[1].ndim == 2 else scales[1]
    dtype = out_dtype or torch.bfloat16
    if bpreshuffle:
        out = aiter_like.gemm_a8w8_bpreshuffle(mat1, weights, *scales, bias, dtype, layout=(16, 16))
    else:
        out = aiter_like.gemm_a8w8(mat1, weights, *scales, bias, dtype)
    return torch.nn.functional.gelu(out) if use_gelu else out


@aiter("aiter aiter.ops.gradlib")
def hipb_findallsols(mat1: Tensor, mat2: Tensor, bias: Tensor | None = None, out_dtype: torch.dtype | None = None,
                     scaleA: Tensor | None = None, scaleB: Tensor | None = None, scaleC: Tensor | None = None,
                     bpreshuffle: bool = False, use_gelu: bool = False) -> list[int]:
    """[0]: what the dispatcher chooses.

    Raises:
        RuntimeError: `use_gelu` without a bias, as AITER has it.
    """
    _refuse_gelu_without_bias("hipb_findallsols", bias, use_gelu)
    return [0]


@aiter("aiter aiter.ops.custom", callers="S")
def wvSplitKQ(in_a: Tensor, in_b: Tensor, out_c: Tensor, scale_a: Tensor, scale_b: Tensor, CuCount: int) -> None:
    """`aiter_like.gemm_a8w8` of rows `in_b` [m, k] with weights `in_a` [n, k] into `out_c` [m, n]; the number of CUs
    has no meaning here.
    """
    aiter_like.gemm_a8w8(in_b, in_a, scale_b, scale_a, None, out_c.dtype, out=out_c)


@aiter("aiter aiter.ops.custom", callers="S")
def wvSpltK(in_a: Tensor, in_b: Tensor, out_c: Tensor, N_in: int, CuCount: int) -> None:
    """`aiter_like.gemm_a16w16` of rows `in_b` [m, k] with weights `in_a` [n, k] into `out_c` [m, n]; the numbers have
    no meaning here.
    """
    aiter_like.gemm_a16w16(in_b, in_a, out=out_c)


@aiter("aiter aiter.ops.custom", callers="S")
def LLMM1(in_a: Tensor, in_b: Tensor, out_c: Tensor, rows_per_block: int) -> None:
    """Like `wvSpltK`."""
    aiter_like.gemm_a16w16(in_b, in_a, out=out_c)


def _refuse_gelu_without_bias(name: str, bias: Tensor | None, use_gelu: bool | None) -> None:
    if use_gelu and bias is None:
        raise RuntimeError(f"{name}: use_gelu requires bias, got None")


def _refuse_partial_sums(name: str, op: str, skip_reduce: bool) -> None:
    if skip_reduce:
        raise UnsupportedError(f"{name}: skip_reduce must be False, partial sums are not returned, got True", op)


@aiter("aiter aiter.ops.gemm_op_a8w8", callers="V", stays=True)
def get_GEMM_config_with_quant_type(M: int, N: int, K: int, q_dtype_w: Any,
                                    tuned_file: Any = None) -> dict[str, Any] | None:
    """What serves a product of 8 bits with a scale per row on this GPU, by `gemm_a8w8` or, where `tuned_file` is
    AITER_CONFIG_GEMM_A8W8_BPRESHUFFLE_FILE, `gemm_a8w8_bpreshuffle`. None where no kernel made for a gfx942 does:
    vLLM asks when it has loaded a layer, and shuffles its weights then, or keeps its own product.
    """
    band = 16 if tuned_file and tuned_file == AITER_CONFIGS.AITER_CONFIG_GEMM_A8W8_BPRESHUFFLE_FILE else 0
    target = device.default_target()
    if target.simulated and not linear.is_asked_for() or q_dtype_w not in (torch.int8, torch.float8_e4m3fnuz):
        return None
    if band and (N % band or K % 32):  # shuffle_weight raises on such sizes
        return None
    made = {"device": "meta", "dtype": q_dtype_w}
    out, (a_scale, b_scale) = torch.empty(M, N, dtype=torch.bfloat16, device="meta"), torch.empty(2, 1, device="meta")
    call = GemmA8w8Call(out, torch.empty(M, K, **made), torch.empty(N, K, **made), a_scale, b_scale, band=band)
    candidates = select(OPS["gemm_a8w8"], Request(target, tuple(call))).candidates
    if not candidates or candidates[0].backend.name != "ck":
        return None
    return {"libtype": "ck", "kernelName": candidates[0].kernel, "splitK": 0}


gemm_a8w8_bpreshuffle_ck = public("gemm_a8w8_bpreshuffle_ck", gemm_a8w8_bpreshuffle_ck)
gemm_a8w8_bpreshuffle_cktile = public("gemm_a8w8_bpreshuffle_cktile", gemm_a8w8_bpreshuffle_cktile)
