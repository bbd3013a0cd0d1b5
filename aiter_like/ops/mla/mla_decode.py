# SPDX-License-Identifier: MIT
"""Latent attention over pages, for decoding: mla_decode_fwd.

Kernels: csrc/mla/mla_decode.hip, ops/mla/triton/mla_decode.py; both plan with mla_metadata's kernel and add up with
mla_reduce's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, default_target, target_of
from aiter_like.dispatch import Backend, Op
from aiter_like.errors import UnsupportedError
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.attention.call import FLOATS, FP8
from aiter_like.ops.attention.checks import MAX_ROWS
from aiter_like.ops.common import elements, plans, tune_shapes, vectors
from aiter_like.ops.common.contents import check_lengths
from aiter_like.ops.mla import plan
from aiter_like.ops.mla.call import MlaDecodeCall
from aiter_like.ops.mla.checks import MOST_SPLITS, OP, check_call, check_contents, ck_refusal, triton_refusal
from aiter_like.ops.mla.hopper import hopper_fits, triton_kernels, triton_space
from aiter_like.ops.mla.reference import mla_decode_ref

__all__ = ["mla_decode_fwd", "mla_decode_workspace_bytes"]

_PUBLIC = "mla_decode_fwd"


def _instance(call: MlaDecodeCall, *, waves: int = 4) -> Instance:
    """The tile has the fewest rows that hold those of a sequence, up to 64."""
    if waves not in (4, 8):
        raise ValueError(f"{OP}: waves must be 4 or 8, got {waves}")
    row_waves = plan.rows_of_tile(call.max_seqlen_q * call.q.shape[1]) // 16
    element, q_element, kv_element = (elements.CPP[tensor.dtype] for tensor in (call.out, call.q, call.kv))
    dim, v_dim, has_softcap = call.q.shape[2], call.out.shape[2], int(call.softcap > 0)
    name = (element, f"q_{q_element}", f"kv_{kv_element}", f"d{dim}x{v_dim}", f"m{16 * row_waves}",
            f"w{waves}", *(["cap"] if has_softcap else []))
    return Instance("_".join(name), {
        "ELEMENT": element, "Q_ELEMENT": q_element, "KV_ELEMENT": kv_element, "HEAD_DIM": dim, "HEAD_DIM_V": v_dim,
        "ROW_WAVES": row_waves, "WAVES": waves, "HAS_SOFTCAP": has_softcap, "BLOCK_KEYS": plan.BLOCK_KEYS,
        "LEAST_BLOCKS": plan.LEAST_BLOCKS, "OVERHEAD": plan.OVERHEAD})


@compile_ops("mla/mla_decode.hip", gen_func=_instance, platforms=("hip",))
def _mla_decode_ck(call: MlaDecodeCall) -> None: ...


def decode_call(q: Tensor, kv: Tensor, out: Tensor, lse: Tensor | None, qo_indptr: Tensor, kv_indptr: Tensor,
                kv_indices: Tensor, kv_last_page_lens: Tensor | None, **options: Any) -> MlaDecodeCall:
    """A call of new memory for plan and parts. options: further fields."""
    memory, splits = _memory(q, kv, out, qo_indptr, kv_indices, options.get("max_seqlen_q", 1),
                             options.get("num_kv_splits", 0), None)
    return MlaDecodeCall(out, lse, *memory, q, kv, qo_indptr, kv_indptr, kv_indices, kv_last_page_lens,
                         **{**options, "num_kv_splits": splits})


def _memory(q: Tensor, kv: Tensor, out: Tensor, qo_indptr: Tensor, kv_indices: Tensor, max_seqlen_q: int,
            num_kv_splits: int, workspace: Tensor | None) -> tuple[tuple[Tensor, ...], int]:
    """Memory for parts and plan, as the call has it, and its num_kv_splits."""
    num_heads, v_dim = out.shape[1:]
    batch, target = max(qo_indptr.shape[0] - 1, 0), target_of(q.device)
    sizes = plan.sizes_of(target, batch, max_seqlen_q * num_heads, kv.shape[1], num_kv_splits, kv_indices.shape[0],
                          target.arch == "sm_90" and hopper_fits(q, kv, v_dim))
    memory = _fp32(workspace, plan.workspace_bytes(sizes, max_seqlen_q, num_heads, v_dim), q)
    return (*plan.parts_in(memory, sizes.num_slots * max_seqlen_q, num_heads, v_dim),
            *plan.plan_in(memory, sizes, max_seqlen_q, num_heads, v_dim)), num_kv_splits or int(sizes.is_even)


def _fp32(workspace: Tensor | None, needed: int, q: Tensor) -> Tensor:
    """So many bytes of the caller's memory, or of new one, as fp32."""
    if workspace is None:
        return torch.empty(needed // 4, dtype=torch.float32, device=q.device)
    check.tensor(_PUBLIC, "workspace", workspace, rank=1, dtypes=(torch.uint8,), device=q.device)
    if workspace.numel() < needed or workspace.storage_offset() % 16:
        raise ValueError(f"{_PUBLIC}: workspace must have at least {needed} bytes, 16-byte aligned, got "
                         f"{workspace.numel()} from byte {workspace.storage_offset()} on")
    return workspace[:needed].view(torch.float32)


class MlaDecodeKey(NamedTuple):
    """The fields that a tuned row of mla_decode is chosen by."""

    batch: int
    seqlen_q: int
    seqlen_k: int
    num_heads: int
    head_dim: int
    head_dim_v: int
    page_size: int
    features: str
    dtype: str
    kv_dtype: str

    @classmethod
    def of(cls, call: MlaDecodeCall) -> MlaDecodeKey:
        return cls(call.batch, call.max_seqlen_q, call.kv_indices.shape[0] * call.page_size // max(call.batch, 1),
                   *call.q.shape[1:], call.out.shape[2], call.page_size, "+".join(call.features) or "none",
                   dtypes.name(call.q.dtype), dtypes.name(call.kv.dtype))

    def make(self, device: torch.device, seed: int) -> MlaDecodeCall:
        """Sequences of equal lengths on pages in random order."""
        batch, rows, pages = self.batch, self.seqlen_q, -(-self.seqlen_k // self.page_size)
        q = tune_shapes.normal(device, seed, self.dtype)(batch * rows, self.num_heads, self.head_dim)
        kv = tune_shapes.normal(device, seed + 1, self.kv_dtype)(batch * pages, self.page_size, 1, self.head_dim)
        out = torch.empty(*q.shape[:2], self.head_dim_v, device=device,
                          dtype=q.dtype if q.dtype in FLOATS else torch.bfloat16)
        starts, one = torch.arange(batch + 1, device=device, dtype=torch.int32), torch.ones(1, device=device)
        last = torch.full((batch,), (self.seqlen_k - 1) % self.page_size + 1, device=device, dtype=torch.int32)
        features = self.features.split("+")
        return decode_call(
            q, kv, out, torch.empty(q.shape[:2], device=device), starts * rows, starts * pages,
            tune_shapes.page_table(device, seed, batch, pages).flatten(), last,
            q_scale=one if q.dtype in FP8 else None, kv_scale=one if kv.dtype in FP8 else None, max_seqlen_q=rows,
            softmax_scale=self.head_dim ** -0.5, softcap=30.0 if "softcap" in features else 0.0,
            causal="full" not in features)

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[MlaDecodeKey]:
        """Decoding `tokens` sequences of 4096 keys."""
        if model.kv_lora_rank and tokens <= 256:
            yield cls(tokens, 1, 4096, model.num_heads // tp, model.kv_lora_rank + model.qk_rope_head_dim,
                      model.kv_lora_rank, 64, "none", model.dtype, model.dtype)


def _cases(device: torch.device) -> dict[str, MlaDecodeCall]:
    """Decoding whose keys are split; several tokens in two tiles of rows; pages of single keys, fp8, a cap."""
    fp8 = dtypes.name(dtypes.fp8_of(target_of(device).arch))
    keys = {"split": MlaDecodeKey(2, 1, 300, 5, 576, 512, 64, "none", "bf16", "bf16"),
            "tokens": MlaDecodeKey(2, 4, 90, 20, 160, 128, 16, "none", "fp16", "fp16"),
            "fp8, single keys": MlaDecodeKey(2, 2, 40, 16, 160, 128, 1, "softcap", "bf16", fp8),
            "fp8 queries": MlaDecodeKey(2, 1, 100, 8, 160, 128, 64, "full", fp8, fp8)}
    return {name: key.make(device, 0) for name, key in keys.items()}


def _traffic(call: MlaDecodeCall) -> tuple[int, int]:
    """Queries, results and the latents in use, once; two products per pair of row and key."""
    keys = call.kv_indices.shape[0] * call.page_size
    width = call.q.shape[2]
    moved = keys * width * call.kv.element_size()
    moved += sum(tensor.numel() * tensor.element_size() for tensor in (call.q, call.out))
    rows = call.q.shape[0] * call.q.shape[1]
    return moved, 2 * rows * keys // max(call.batch, 1) * (width + call.out.shape[2])


def _ck_space(target: Target, call: MlaDecodeCall) -> Iterator[dict[str, int]]:
    row_waves = plan.rows_of_tile(call.max_seqlen_q * call.q.shape[1]) // 16
    if call.out.shape[2] % (32 * (8 // row_waves)) == 0:  # waves that share rows have whole slices of the columns
        yield {"waves": 8}


mla_decode_op = Op(
    OP, call=MlaDecodeCall, reference=mla_decode_ref, check=check_call, key=MlaDecodeKey, traffic=_traffic,
    writes=("out", "lse", "partial_out", "partial_lse", *plans.FIELDS), cases=_cases,
    scratch=("partial_out", "partial_lse", *plans.FIELDS),
    backends=(Backend("ck", _mla_decode_ck, refusal=ck_refusal, space=_ck_space,
                      address_refusal=vectors.begin_at({"q": 8, "kv": 16, "out": 2})),
              Backend("triton", "ops.mla.triton.mla_decode:mla_decode", refusal=triton_refusal,
                      kernels=triton_kernels, space=triton_space),
              Backend("torch", mla_decode_ref)))


def mla_decode_fwd(
        q: Tensor, kv_buffer: Tensor, o: Tensor, qo_indptr: Tensor, kv_indptr: Tensor, kv_indices: Tensor,
        kv_last_page_lens: Tensor | None, max_seqlen_q: int, page_size: int = 1, nhead_kv: int = 1,
        sm_scale: float | None = None, logit_cap: float = 0.0, num_kv_splits: int | None = None,
        num_kv_splits_indptr: Tensor | None = None, work_meta_data: Tensor | None = None,
        work_indptr: Tensor | None = None, work_info_set: Tensor | None = None, reduce_indptr: Tensor | None = None,
        reduce_final_map: Tensor | None = None, reduce_partial_map: Tensor | None = None,
        q_scale: Tensor | None = None, kv_scale: Tensor | None = None, intra_batch_mode: bool = False,
        return_logits: bool = False, return_lse: bool = False, g_kv_indptr: Tensor | None = None,
        cp_world_size: int = 1, cp_rank: int = 0, causal: bool = True, *, workspace: Tensor | None = None,
        backend: str | None = None) -> tuple[Tensor, Tensor | None]:
    """Multi-head latent attention of a few query tokens per sequence over a paged cache of latents.

    `o = softmax(sm_scale · q kᵀ + mask) v`, where a key k is a cached latent followed by its rotated part and the
    value v is the latent alone; all heads share both. The queries of a sequence are its last tokens.

    Args:
        q: [total_q, num_heads, dim] bf16|fp16|fp8, any number of heads, last dimension contiguous; dim is 576.
        kv_buffer: [num_pages, page_size, 1, dim], dtype of `q` or fp8 of the target, strides free but for the last.
        o: [total_q, num_heads, v_dim], dtype of `q` (bf16|fp16 for fp8 q), written; v_dim is 512.
        qo_indptr: [batch + 1] int32: sequence i has the rows qo_indptr[i] … qo_indptr[i + 1] − 1 of `q`.
        kv_indptr: [≥ batch + 1] int32: its pages are kv_indices[kv_indptr[i] … kv_indptr[i + 1] − 1].
        kv_indices: [entries] int32, numbers of pages. One outside the cache, as −1, has no keys: so a list of chosen
            tokens (sparse attention, page_size 1, a sequence per token) may be padded anywhere.
        kv_last_page_lens: [batch] int32, keys in the last page of each sequence; None: all. Not read where page_size
            is 1, where engines pass tensors of other lengths.
        max_seqlen_q: not less than the longest sequence of queries; on a GPU rows beyond are not computed.
        page_size, nhead_kv: that of `kv_buffer`, and 1.
        sm_scale: of the scores, finite, ≥ 1e-8; None: 1 / sqrt(dim).
        logit_cap: above 0, scores become logit_cap · tanh(score / logit_cap).
        num_kv_splits: parts of the keys of each sequence; None: as many as fill the device, by the lengths. Of no
            meaning where the call brings a plan.
        work_meta_data: with it the call brings the plan of `get_mla_metadata_v1`; its values are not read.
        work_indptr, work_info_set, reduce_indptr, reduce_final_map, reduce_partial_map: the plan.
        q_scale, kv_scale: 1 fp32 element, for fp8 `q` and `kv_buffer`; ignored for others. None: 1.
        intra_batch_mode, return_logits, num_kv_splits_indptr: AITER's hints; of no meaning here.
        return_lse: the log-sum-exp of the scores is wanted.
        g_kv_indptr, cp_world_size, cp_rank: [batch + 1] int32, cumulative numbers of keys on all ranks together, where
            key j of this rank is key j · cp_world_size + cp_rank of its sequence: the causal mask looks at those.
        causal: a query token sees no later one.
        workspace: uint8, at least `mla_decode_workspace_bytes`, 16-byte aligned; None: new memory.

    Returns:
        (partial results, log-sum-exp). The former is the memory of parts, [rows, 1, num_heads, v_dim] fp32; the latter
        [total_q, num_heads] fp32, natural logarithm, or None.

    Notes:
        Scores, softmax and sums in fp32, P rounded to the dtype of `q` (fp8: bf16). A plan, made on the device from the
        lengths, shares the keys of all sequences out evenly: no synchronisation, and launch and memory depend on shapes
        alone. Parts are added up in a fixed order: deterministic. What points outside its tensor touches no memory
        there. A row that sees no key gives 0 and a log-sum-exp of −inf; rows of no sequence are not written.

    Source: AITER's `mla_decode_fwd`; DeepSeek-V2 (2024).
    """
    for name, tensor, rank in (("q", q, 3), ("kv_buffer", kv_buffer, 4), ("o", o, 3)):
        check.tensor(_PUBLIC, name, tensor, rank=rank)
    check.integer(_PUBLIC, "page_size", page_size, low=1)
    if nhead_kv != 1 or kv_buffer.dtype == torch.uint8:
        reason = f"nhead_kv {nhead_kv}" if nhead_kv != 1 else "a cache of bytes"
        raise UnsupportedError(f"{_PUBLIC}: no backend supports {reason}", _PUBLIC, {"nhead_kv": reason})
    if kv_buffer.shape[1] != page_size:
        raise ValueError(f"{_PUBLIC}: kv_buffer must have pages of page_size {page_size}, got shape "
                         f"{tuple(kv_buffer.shape)}")
    check.real(_PUBLIC, "logit_cap", logit_cap)
    check.integer(_PUBLIC, "max_seqlen_q", max_seqlen_q, low=0, high=MAX_ROWS)
    if num_kv_splits is not None:
        check.integer(_PUBLIC, "num_kv_splits", num_kv_splits, low=1, high=MOST_SPLITS)
    check_contents(_PUBLIC, q, kv_buffer, qo_indptr, kv_indptr, kv_indices, kv_last_page_lens, max_seqlen_q)
    kv_indptr = kv_indptr[:len(qo_indptr)]  # SGLang's is made for its largest batch, and old behind this one
    kv_last_page_lens = None if page_size == 1 else kv_last_page_lens
    if g_kv_indptr is not None:
        check_lengths(_PUBLIC, "g_kv_indptr", g_kv_indptr, check.INT32_MAX, None)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device) if return_lse else None
    if work_meta_data is None:
        memory, splits = _memory(q, kv_buffer, o, qo_indptr, kv_indices, max_seqlen_q, num_kv_splits or 0, workspace)
    else:
        planned = work_indptr, work_info_set, reduce_indptr, reduce_final_map, reduce_partial_map
        if any(tensor is None for tensor in planned):
            raise ValueError(f"{_PUBLIC}: with work_meta_data, work_indptr, work_info_set, reduce_indptr, "
                             "reduce_final_map and reduce_partial_map must be given")
        check.tensor(_PUBLIC, "reduce_partial_map", reduce_partial_map, rank=1)
        rows, (num_heads, v_dim) = max(reduce_partial_map.shape[0] * max_seqlen_q, 1), o.shape[1:]
        parts = _fp32(workspace, rows * num_heads * (v_dim + 1) * 4, q)
        memory, splits = (*plan.parts_in(parts, rows, num_heads, v_dim), *planned), 0
    mla_decode_op.run(
        o, lse, *memory, q=q, kv=kv_buffer, qo_indptr=qo_indptr, kv_indptr=kv_indptr,
        kv_indices=kv_indices, kv_last_page_lens=kv_last_page_lens, q_scale=q_scale, kv_scale=kv_scale,
        g_kv_indptr=g_kv_indptr, is_planned=work_meta_data is not None, max_seqlen_q=max_seqlen_q, num_kv_splits=splits,
        softmax_scale=max(q.shape[2], 1) ** -0.5 if sm_scale is None else sm_scale, softcap=max(logit_cap, 0.0),
        causal=causal, cp_world_size=cp_world_size, cp_rank=cp_rank, backend=backend)
    return memory[0].unsqueeze(1), lse


mla_decode_op.public.append(mla_decode_fwd)


def mla_decode_workspace_bytes(batch: int, max_seqlen_q: int, num_heads: int, *, v_head_dim: int = 512,
                               page_size: int = 1, num_kv_splits: int | None = None,
                               device: torch.device | None = None) -> int:
    """The size of `workspace` for `mla_decode_fwd`, whatever the lengths. Like `attention_workspace_bytes`: for partial
    results of the pieces into which a plan can cut sequences, in fp32, and the plan. A call that brings a plan needs
    4 · len(reduce_partial_map) · max_seqlen_q · num_heads · (v_head_dim + 1).

    Args:
        batch, max_seqlen_q, num_heads, page_size, num_kv_splits: as of the call.
        v_head_dim: columns of `o`.
        device: where it will run; None: the current one.

    Source: this project.
    """
    op = "mla_decode_workspace_bytes"
    for name, value, low in (("batch", batch, 0), ("max_seqlen_q", max_seqlen_q, 0), ("num_heads", num_heads, 1),
                             ("v_head_dim", v_head_dim, 1), ("page_size", page_size, 1)):
        check.integer(op, name, value, low=low)
    if num_kv_splits is not None:
        check.integer(op, "num_kv_splits", num_kv_splits, low=1, high=MOST_SPLITS)
    target = default_target() if device is None else target_of(torch.device(device))
    sizes = plan.sizes_of(target, batch, max_seqlen_q * num_heads, page_size, num_kv_splits or 0)
    return plan.workspace_bytes(sizes, max_seqlen_q, num_heads, v_head_dim)
