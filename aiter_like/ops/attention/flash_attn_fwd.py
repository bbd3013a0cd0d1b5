# SPDX-License-Identifier: MIT
"""flash_attn_fwd, the forward operator behind every function of attention that is not paged: reference, backends.

Kernels: csrc/attention/, ops/attention/triton/flash_attn_fwd.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import dtypes
from aiter_like.device import Facts, Target
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.ops.attention import flash_attn_fwd_hip as hip
from aiter_like.ops.attention.call import AttentionCall, dense_call
from aiter_like.ops.attention.checks import check_call, is_aligned, launch_refusal, scale_refusal
from aiter_like.ops.attention.flash_attn_fwd_ck import ck_refusal, ck_self_check, ck_space, flash_attn_fwd_ck
from aiter_like.ops.attention.reference import product_with, row_blocks, scores_of, softmax_of
from aiter_like.ops.common import philox, tune_shapes, vectors

_TAIL = 256  # rows and keys: a multiple of every kernel's tiles
_SPLIT = 4096  # keys: enough for the kernels that split them (csrc/attention/flash_attn_plan.h)


class HopperNumbers(NamedTuple):
    """Numbers of configs/sm_90/attention.toml, of triton/flash_attn_fwd_hopper.py."""

    registers: int
    time: float
    kept_bytes: int
    least_heads: int


def flash_attn_fwd_ref(call: AttentionCall) -> None:
    """The formula in torch, in fp32 (fp64 for fp64 input), differentiable; writes `out` and `lse`.

    P stays in fp32, so `how_v3_bf16_cvt` rounds nothing but `out`, and that is always to nearest even. Lengths of
    sequences, and the seed of dropout, are read on the host.
    """
    out, lse, q, k, v, bias, slopes = call.out, call.lse, call.q, call.k, call.v, call.bias, call.alibi_slopes
    if not call.is_varlen:
        lengths = None if call.seqlens_k is None else call.seqlens_k.clamp(0, k.shape[1]).view(-1, 1, 1, 1)
        _attend(call, out, lse, q, k, v, lengths, bias, slopes, 0)
        return
    starts_q, starts_k = _bounded(call.cu_seqlens_q, len(q)), _bounded(call.cu_seqlens_k, len(k))
    for index in range(call.batch):
        rows, keys = slice(*starts_q[index:index + 2]), slice(*starts_k[index:index + 2])
        own_bias = None if bias is None else bias[rows, :keys.stop - keys.start]
        own_slopes = slopes[index] if slopes is not None and slopes.ndim == 2 else slopes
        _attend(call, out[None, rows], None if lse is None else lse[None, :, rows], q[None, rows], k[None, keys],
                v[None, keys], None, own_bias, own_slopes, index)


def _bounded(starts: Tensor, total: int) -> list[int]:
    """The starts and the end of the sequences, none before the one before it or beyond the tensor."""
    return list(itertools.accumulate((min(max(start, 0), total) for start in starts.tolist()), max))


def _attend(call: AttentionCall, out: Tensor, lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor,
            lengths: Tensor | None, bias: Tensor | None, slopes: Tensor | None, first: int) -> None:
    """Sequences `first`, … of equal length; writes `out` and `lse`. lengths: [batch, 1, 1, 1], of the keys that count.
    """
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    group_size = q.shape[2] // max(k.shape[2], 1)
    queries, keys, values = (tensor.transpose(1, 2).to(wide) for tensor in (q, k, v))  # [batch, heads, length, dim]
    queries, keys, values = (tensor if descale is None else tensor * descale for tensor, descale in (
        (queries, call.q_descale), (keys, call.k_descale), (values, call.v_descale)))
    keys, values = keys.repeat_interleave(group_size, 1), values.repeat_interleave(group_size, 1)
    num_rows, num_keys = queries.shape[2], keys.shape[2]
    for rows in row_blocks(num_rows, queries.shape[0] * queries.shape[1] * num_keys):
        scores, visible, _ = scores_of(call, queries[:, :, rows], keys, bias, slopes, lengths, rows.start,
                                       num_rows - rows.stop)
        p, total = softmax_of(scores, visible, call.sink)
        if lse is not None:
            lse[:, :, rows].copy_(total)
        if call.dropout_p:
            heads = torch.arange(p.shape[0] * p.shape[1], device=q.device).view(*p.shape[:2], 1) + first * p.shape[1]
            kept = philox.attention_kept(call.rng_state, call.dropout_p, heads,
                                         torch.arange(rows.start, rows.stop, device=q.device), num_keys)
            p = torch.where(kept, p / (1 - call.dropout_p), 0.0)
        out[:, rows].copy_(product_with(p, values, visible).transpose(1, 2))


def _check(call: AttentionCall) -> object:
    check_call("flash_attn_fwd", call)
    return SKIP if call.out.numel() == 0 or call.batch == 0 else None


def _triton_refusal(target: Target, call: AttentionCall) -> str | None:
    if max(call.head_dim, call.head_dim_v) > 256:
        return f"head dimensions at most 256, got {call.head_dim} and {call.head_dim_v}"
    return scale_refusal(call.softmax_scale) or launch_refusal(call, call.max_seqlen_q, call.max_seqlen_k)


def hopper_serves(call: AttentionCall) -> bool:
    """Whether triton/flash_attn_fwd_hopper.py takes the call: 16 bits, nothing added to the scores, no dropout. A head
    dimension between its own 64, 128 and 256 is filled up with zeros in shared memory."""
    if not 32 < call.head_dim <= 256 or call.head_dim % 8 or call.head_dim_v != call.head_dim:
        return False
    if call.is_fp8 or call.max_seqlen_k == 0:
        return False
    if set(call.features) - {"seqlens", "sink"} or call.sink_size > 0 or call.num_splits > 1:
        return False
    return all(is_aligned(tensor) for tensor in (call.q, call.k, call.v))


def triton_kernels(target: Target, call: AttentionCall, **params: int) -> list[str]:
    """The one for Hopper comes first where the rows fill its tiles and the GPU; only it has the parameter GROUPS.

    The other one took 1.12 (head dimension 64) to 2.0 times as long (window and sinks) on packed sequences of 256 to
    6000 rows, H200: `op_tests/bench/run.py flash_attn_fwd_hopper`.
    """
    hopper = ["flash_attn_fwd_hopper"] if target.arch == "sm_90" and hopper_serves(call) else []
    if params:
        return hopper if "GROUPS" in params else ["flash_attn_fwd"]
    fills = call.max_seqlen_q >= 64 and call.max_seqlen_q * call.num_heads * call.batch >= 128 * target.cu_num
    return [*hopper, "flash_attn_fwd"] if fills else ["flash_attn_fwd", *hopper]


class FlashAttnFwdKey(NamedTuple):
    """The fields that a tuned row of flash_attn_fwd is chosen by."""

    mask: str
    packing: str
    batch: int
    seqlen_q: int
    seqlen_k: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    head_dim_v: int
    features: str
    dtype: str

    @classmethod
    def of(cls, call: AttentionCall) -> FlashAttnFwdKey:
        return cls(call.mask, "varlen" if call.is_varlen else "dense", call.batch, call.max_seqlen_q,
                   call.max_seqlen_k, call.num_heads, call.num_kv_heads, call.head_dim, call.head_dim_v,
                   "+".join(call.features) or "none", dtypes.name(call.q.dtype))

    def make(self, device: torch.device, seed: int) -> AttentionCall:
        random = tune_shapes.normal(device, seed, self.dtype)
        q = random(self.batch, self.seqlen_q, self.num_heads, self.head_dim)
        k, v = (random(self.batch, self.seqlen_k, self.num_kv_heads, dim) for dim in (self.head_dim, self.head_dim_v))
        return dense_call(q.new_empty(*q.shape[:3], self.head_dim_v), None, q, k, v, how_v3_bf16_cvt=1,
                          window_right=0 if self.mask == "causal" else -1)

    def smaller(self) -> Iterator[FlashAttnFwdKey]:
        """One sequence, then one head of K and V with its queries, then shorter sequences with as much behind their
        last whole tile; at last few queries of so many keys that kernels split them.
        """
        yield self._replace(batch=1)
        one = self._replace(batch=1, num_heads=self.num_heads // max(self.num_kv_heads, 1), num_kv_heads=1)
        yield one
        for length in (1024, 512, 256):
            yield one._replace(seqlen_q=min(self.seqlen_q, length + self.seqlen_q % _TAIL),
                               seqlen_k=min(self.seqlen_k, length + self.seqlen_k % _TAIL))
        yield one._replace(seqlen_q=min(self.seqlen_q, 64),
                           seqlen_k=min(self.seqlen_k, _SPLIT + self.seqlen_k % _TAIL))

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[FlashAttnFwdKey]:
        """Prefill of one sequence; a latent-attention model (kv_lora_rank) attends with keys and values written out."""
        if tokens >= 128:
            kv_heads = model.num_heads if model.kv_lora_rank else model.num_kv_heads
            yield cls("causal", "dense", 1, tokens, tokens, model.num_heads // tp, max(kv_heads // tp, 1),
                      model.qk_nope_head_dim + model.qk_rope_head_dim or model.head_dim,
                      model.v_head_dim or model.head_dim, "none", model.dtype)


def _cases(device: torch.device) -> dict[str, AttentionCall]:
    """One for each instance of the hip kernel, by its name."""
    windows = {"none": (-1, -1), "right": (-1, 0), "both": (33, 0)}
    calls = {}
    for dim, (dtype, rounding), mask in itertools.product(hip.HEAD_DIMS, hip.VARIANTS, hip.MASKS):
        key = FlashAttnFwdKey("none", "dense", 1, 130, 200, 4, 2, dim, dim, "none", dtypes.name(dtype))
        left, right = windows[mask]
        calls[hip.variant(dtype, dim, rounding, mask).name] = key.make(device, 0)._replace(
            lse=torch.empty(1, 4, 130, dtype=torch.float32, device=device), window_left=left, window_right=right,
            how_v3_bf16_cvt=rounding)
    return calls


def _triton_space(target: Target, call: AttentionCall) -> Iterator[dict[str, int]]:
    """Tiles and stages; on Hopper tensor descriptors (TMA), on MI300X the order of workgroups (XCDS) and the shape of
    MFMA, whose 32 rows a wave must have.

    On Hopper the kernel of triton/flash_attn_fwd_hopper.py, which has GROUPS of rows, is alone where it serves a long
    call: the other one took 1.3 to 1.5 times as long wherever both were measured.
    """
    if target.arch == "sm_90" and hopper_serves(call):
        tiles = ((2, 1, 64, 128), (2, 1, 64, 64), (2, 1, 128, 64), (1, 2, 64, 128), (1, 2, 128, 64), (1, 3, 64, 64))
        for (groups, programs, block_m, block_n), stages, heads in itertools.product(tiles, (2, 3), (4, 16, 64)):
            yield {"GROUPS": groups, "PROGRAMS": programs, "BLOCK_M": block_m, "BLOCK_N": block_n, "STAGES": stages,
                   "HEADS": heads}
        if call.max_seqlen_q >= 1024:
            return
    if target.arch == "gfx942":
        for block_m, block_n, num_warps, num_stages, rows, xcds in itertools.product(
                (64, 128, 256), (32, 64, 128), (4, 8), (1, 2), (16, 32), (1, 8)):
            if block_m >= rows * num_warps:
                yield {"BLOCK_M": block_m, "BLOCK_N": block_n, "num_warps": num_warps, "num_stages": num_stages,
                       "matrix_instr_nonkdim": rows, "XCDS": xcds}
        return
    extra = ("TMA", (0, 1)) if target.arch == "sm_90" else ("XCDS", (1,))
    for block_m, block_n, num_warps, num_stages, value in itertools.product((64, 128), (32, 64, 128), (4, 8), (1, 2, 3),
                                                                            extra[1]):
        yield {"BLOCK_M": block_m, "BLOCK_N": block_n, "num_warps": num_warps, "num_stages": num_stages,
               extra[0]: value}


def _triton_cost(call: AttentionCall, facts: Facts, BLOCK_M: int = 128, BLOCK_N: int = 64, num_warps: int = 4,
                 num_stages: int = 1, GROUPS: int = 0, PROGRAMS: int = 1, STAGES: int = 0, **_: int) -> float:
    """Elements of score tiles that a CU computes, padding included; infinite where the tiles do not fit.

    The fp32 accumulator and a tile of scores must fit the registers of a lane, and the K and V tiles of all stages
    local memory.
    """
    if GROUPS:  # a group has 128 lanes; an SM has PROGRAMS such programs
        rows, width = GROUPS * BLOCK_M, 1 << (call.head_dim - 1).bit_length()
        registers = BLOCK_M * (width + BLOCK_N + BLOCK_N / 2) / 128
        local_bytes = (2 * width * (rows + 2 * BLOCK_N * STAGES + BLOCK_M) + 256) * PROGRAMS  # q, k, v, out
        model = facts.model("attention.flash_attn_hopper", HopperNumbers)
        if registers > model.registers / (GROUPS * PROGRAMS) or local_bytes > facts.lds_bytes:
            return math.inf
        workgroups = -(-call.max_seqlen_q // rows) * call.num_heads * call.batch
        return model.time * -(-workgroups // facts.cu_num) * rows * -(-call.max_seqlen_k // BLOCK_N) * BLOCK_N
    lanes = num_warps * facts.wave_size
    registers = BLOCK_M * (call.head_dim_v + BLOCK_N) / lanes
    local_bytes = 2 * call.head_dim * (BLOCK_M + 2 * BLOCK_N * num_stages)
    if registers > facts.sum_registers or local_bytes > facts.lds_bytes:
        return math.inf
    workgroups = -(-call.max_seqlen_q // BLOCK_M) * call.num_heads * call.batch
    return -(-workgroups // facts.cu_num) * BLOCK_M * -(-call.max_seqlen_k // BLOCK_N) * BLOCK_N


def _traffic(call: AttentionCall) -> tuple[int, int]:
    """Each tensor once; two products per pair of query and key, about half of the pairs where causal."""
    pairs = call.batch * call.num_heads * call.max_seqlen_q * call.max_seqlen_k
    flops = 2 * pairs * (call.head_dim + call.head_dim_v)
    moved = sum(tensor.nbytes for tensor in (call.out, call.q, call.k, call.v))
    return moved, flops // 2 if call.mask == "causal" else flops


flash_attn_fwd = Op(
    "flash_attn_fwd", call=AttentionCall, reference=flash_attn_fwd_ref, check=_check, key=FlashAttnFwdKey,
    writes=("out", "lse", "workspace"), cases=_cases, traffic=_traffic,
    backends=(Backend("hip", hip.flash_attn_fwd_hip, refusal=hip.hip_refusal,
                      address_refusal=vectors.begin_at(dict.fromkeys(("q", "k", "v", "out"), 8))),
              Backend("ck", flash_attn_fwd_ck, refusal=ck_refusal, space=ck_space, self_check=ck_self_check),
              Backend("triton", "ops.attention.triton.flash_attn_fwd:flash_attn_fwd",
                      refusal=_triton_refusal, kernels=triton_kernels, space=_triton_space, cost=_triton_cost),
              Backend("torch", flash_attn_fwd_ref, differentiable=True)))


def finished(call: AttentionCall) -> AttentionCall:
    """Runs a call of dense tensors, and returns it with its log-sum-exps."""
    batch, rows, heads = call.q.shape[:3]
    call = call._replace(lse=torch.empty(batch, heads, rows, dtype=torch.float32, device=call.q.device))
    flash_attn_fwd(call)
    return call
