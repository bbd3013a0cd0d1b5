# SPDX-License-Identifier: MIT
"""The arguments of flash_attn_fwd and flash_attn_bwd, in order: what they say about the call, and their checks.

Read by ops/attention*.py and the Triton launchers.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import target_of

OP = "flash_attn_fwd"
MIN_SCALE = 1e-8
"""Of the scores: below it a masked score is no longer below every real one in the kernels' fp32."""

MAX_ROWS = 2**30 - 1
"""Rows and keys that the kernels count: sums of positions stay within 32 bits."""

_MAX_GRID = 65535  # of a launch's second and third dimension, HIP and CUDA alike
_WIDE = (torch.bfloat16, torch.float16)
_FP8 = (torch.float8_e4m3fnuz, torch.float8_e4m3fn)


@functools.cache
def takes(call: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: `function(call)` becomes `function(*args)`, whose parameters are the fields of the NamedTuple `call`.

    The signature of an operator, of its reference and of its stubs, so stands in one place.
    """
    hints = typing.get_type_hints(call)
    signature = inspect.Signature([inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD,
                                                     annotation=hints[name]) for name in call._fields],
                                  return_annotation=None)

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def with_fields(*args: Any) -> None:
            function(call(*args))

        with_fields.__signature__ = signature
        return with_fields

    return decorate


class AttentionCall(NamedTuple):
    """One call of flash_attn_fwd: `AttentionCall(*args)`.

    Dense: q [batch, seqlen_q, num_heads, head_dim], k [batch, seqlen_k, num_kv_heads, head_dim], v and out with
    head_dim_v instead, lse [batch, num_heads, seqlen_q]. Varlen (cu_seqlens_q given): [total, heads, dim], lse
    [num_heads, total_q]. Sequence i of k is seqlens_k[i] long where that is given, and delta = keys − queries.

    Attributes:
        bias: added to the scores, [1 or batch, 1 or num_heads, seqlen_q, seqlen_k]; varlen [total_q, max_seqlen_k].
        alibi_slopes: fp32 [num_heads] or [batch, num_heads]: slope · |i + delta − j| is subtracted from the scores.
        sink: fp32 [num_heads]: one more score in the denominator, with no value.
        q_descale, k_descale, v_descale: fp32 [1], what fp8 elements are multiplied by.
        rng_state: int64 [2], seed and offset of dropout's Philox.
        workspace: uint8, or None: a kernel that needs one allocates it.
        window_left, window_right: query i sees keys i + delta − window_left … i + delta + window_right; −1: no limit.
        sink_size: leading keys that a left window never hides.
        softcap: 0, or scores become softcap · tanh(score / softcap), before bias and ALiBi.
        num_splits: 0: automatic; n: at most n parts of the keys.
        how_v3_bf16_cvt: rounding of P and out to bf16, 0 to nearest even, 1 to nearest away, 2 towards zero.
    """

    out: Tensor
    lse: Tensor | None
    q: Tensor
    k: Tensor
    v: Tensor
    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None
    seqlens_k: Tensor | None
    bias: Tensor | None
    alibi_slopes: Tensor | None
    sink: Tensor | None
    q_descale: Tensor | None
    k_descale: Tensor | None
    v_descale: Tensor | None
    rng_state: Tensor | None
    workspace: Tensor | None
    max_seqlen_q: int
    max_seqlen_k: int
    softmax_scale: float
    window_left: int
    window_right: int
    sink_size: int
    softcap: float
    dropout_p: float
    num_splits: int
    how_v3_bf16_cvt: int

    @property
    def is_varlen(self) -> bool:
        return self.cu_seqlens_q is not None

    @property
    def batch(self) -> int:
        return self.cu_seqlens_q.shape[0] - 1 if self.is_varlen else self.q.shape[0]

    @property
    def num_heads(self) -> int:
        return self.q.shape[-2]

    @property
    def num_kv_heads(self) -> int:
        return self.k.shape[min(self.k.ndim, 4) - 2]

    @property
    def head_dim(self) -> int:
        return self.q.shape[-1]

    @property
    def head_dim_v(self) -> int:
        return self.v.shape[min(self.v.ndim, 4) - 1]

    @property
    def is_fp8(self) -> bool:
        return self.q.dtype in _FP8

    @property
    def layout(self) -> str:
        return "varlen" if self.is_varlen else "dense"

    @property
    def mask(self) -> str:
        """ "none", "causal" or "window". """
        if self.window_left == -1:
            return {-1: "none", 0: "causal"}.get(self.window_right, "window")
        return "window"

    @property
    def rounding(self) -> int:
        """how_v3_bf16_cvt; fp16 has no ties away."""
        return self.how_v3_bf16_cvt if self.out.dtype == torch.bfloat16 or self.how_v3_bf16_cvt == 2 else 0

    @property
    def features(self) -> tuple[str, ...]:
        """What a kernel must have besides masks, lengths and lse, by short names, sorted."""
        found = {"alibi": self.alibi_slopes is not None, "bias": self.bias is not None, "dropout": self.dropout_p > 0,
                 "seqlens": self.seqlens_k is not None, "sink": self.sink is not None, "softcap": self.softcap > 0}
        return tuple(name for name, is_on in found.items() if is_on)

    @property
    def bias_strides(self) -> tuple[int, int, int, int]:
        """Elements from sequence to sequence (dense), head to head, row to row, key to key; 0 where it is shared."""
        strides = [stride if size > 1 else 0 for size, stride in zip(self.bias.shape, self.bias.stride())]
        return (0, 0, *strides) if len(strides) == 2 else tuple(strides)


class AttentionBackwardCall(NamedTuple):
    """One call of flash_attn_bwd: `AttentionBackwardCall(*args)`. The forward's arguments are as there.

    Attributes:
        dq, dk, dv: written; shape and dtype of q, k and v.
        dsink: fp32 [num_heads], written; None: not wanted.
        dout: shape and dtype of out.
        dlse: fp32, shape of lse, contiguous; None: the LSE was not used.
        out, lse: the forward's results, lse contiguous.
    """

    dq: Tensor
    dk: Tensor
    dv: Tensor
    dsink: Tensor | None
    dout: Tensor
    dlse: Tensor | None
    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor
    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None
    bias: Tensor | None
    alibi_slopes: Tensor | None
    sink: Tensor | None
    rng_state: Tensor | None
    max_seqlen_q: int
    max_seqlen_k: int
    softmax_scale: float
    window_left: int
    window_right: int
    sink_size: int
    softcap: float
    dropout_p: float

    @property
    def forward(self) -> AttentionCall:
        """The call of flash_attn_fwd that this is the derivative of."""
        return AttentionCall(
            self.out, self.lse, self.q, self.k, self.v, self.cu_seqlens_q, self.cu_seqlens_k, None, self.bias,
            self.alibi_slopes, self.sink, None, None, None, self.rng_state, None, self.max_seqlen_q, self.max_seqlen_k,
            self.softmax_scale, self.window_left, self.window_right, self.sink_size, self.softcap, self.dropout_p, 0, 0)


def read_window(op: str, window_size: Sequence[int] | None, causal: bool) -> tuple[int, int, int]:
    """(left, right, sink tokens) of the operator.

    Raises:
        TypeError: not two or three integers; `causal` is no flag.
        ValueError: another count, or a size below -1.
    """
    check.flag(op, "causal", causal)
    if window_size is None:
        return -1, 0 if causal else -1, 0
    if not isinstance(window_size, (tuple, list)) or not all(type(size) is int for size in window_size):
        raise TypeError(f"{op}: window_size must be 2 or 3 integers or None, got {window_size!r}")
    if len(window_size) not in (2, 3) or min(window_size) < -1 or min(window_size[2:], default=0) < 0:
        raise ValueError(f"{op}: window_size must be (left, right[, sink tokens]), -1 = no limit, got {window_size}")
    left, right, *sink_size = window_size
    # Without a left limit sink tokens are visible anyway.
    return left, 0 if causal else right, sink_size[0] if sink_size and left >= 0 else 0


def is_on_host(tensor: Any) -> bool:
    """Whether the values can be looked at without waiting: a tensor on the CPU, and no tracing."""
    return not torch.compiler.is_compiling() and type(tensor) is Tensor and tensor.device.type == "cpu"


def check_lengths(op: str, name: str, starts: Tensor, total: int, longest: int | None) -> None:
    """Cumulative lengths on the CPU: from 0 on, never falling, within the tensor and its longest sequence. Those on a
    GPU are not looked at: that would wait for it.

    Raises:
        ValueError: they are not.
    """
    if not is_on_host(starts) or starts.dtype != torch.int32 or starts.ndim != 1:
        return
    values = starts.tolist()
    lengths = [end - start for start, end in zip(values, values[1:])]
    if not values or values[0] != 0 or values[-1] > total or min(lengths, default=0) < 0:
        raise ValueError(f"{op}: {name} must start at 0, never fall and end at {total} at most, got {_short(values)}")
    if isinstance(longest, int) and max(lengths, default=0) > longest:
        raise ValueError(f"{op}: max_seqlen_{name[-1]} must be at least {max(lengths)}, the longest sequence in "
                         f"{name}, got {longest}")


def _short(values: list[int]) -> str:
    return str(values if len(values) <= 12 else [*values[:5], "…", *values[-5:]])


def check_call(call: AttentionCall) -> None:
    """What metadata can tell. Lengths may be on a GPU: kernels keep within the tensors whatever they are.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layouts or values do not fit.
    """
    _check_tensors(call)
    if call.is_varlen:
        _check_varlen(call)
    else:
        _check_dense(call)
    _check_options(call)
    for name, value in (("max_seqlen_q", call.max_seqlen_q), ("max_seqlen_k", call.max_seqlen_k),
                        ("sink_size", call.sink_size), ("num_splits", call.num_splits)):
        check.integer(OP, name, value, low=0)
    for name, value in (("window_left", call.window_left), ("window_right", call.window_right)):
        check.integer(OP, name, value, low=-1)
    check.real(OP, "softmax_scale", call.softmax_scale, low=MIN_SCALE)
    check.real(OP, "softcap", call.softcap, low=0.0)
    check.choice(OP, "how_v3_bf16_cvt", call.how_v3_bf16_cvt, (0, 1, 2))


def _check_tensors(call: AttentionCall) -> None:
    """q, k, v, out and lse, and the scales of fp8."""
    q, k, v = call.q, call.k, call.v
    rank = 3 if call.is_varlen else 4
    check.tensor(OP, "q", q, rank=rank, dtypes=(*_WIDE, *_FP8))
    if call.is_fp8 and q.dtype != dtypes.fp8_of(target_of(q.device).arch):
        raise TypeError(f"{OP}: q must have dtype {dtypes.fp8_of(target_of(q.device).arch)}, which this device "
                        f"computes with, got {q.dtype}")
    num_heads, head_dim = q.shape[-2:]
    batch = () if call.is_varlen else (q.shape[0],)
    check.tensor(OP, "k", k, dtypes=(q.dtype,), shape=(*batch, None, None, head_dim), device=q.device)
    check.tensor(OP, "v", v, dtypes=(q.dtype,), shape=(*k.shape[:-1], None), device=q.device)
    if not head_dim or not v.shape[-1]:
        raise ValueError(f"{OP}: q and v must have a head dimension of at least 1, got shapes {tuple(q.shape)} and "
                         f"{tuple(v.shape)}")
    if (num_heads % k.shape[-2] if k.shape[-2] else num_heads) != 0:
        raise ValueError(f"{OP}: the heads of q must be a multiple of the heads of k and v, got {num_heads} and "
                         f"{k.shape[-2]}")
    check.tensor(OP, "out", call.out, dtypes=_WIDE if call.is_fp8 else (q.dtype,), shape=(*q.shape[:-1], v.shape[-1]),
                 device=q.device)
    if call.lse is not None:
        shape = (num_heads, q.shape[0]) if call.is_varlen else (q.shape[0], num_heads, q.shape[1])
        check.tensor(OP, "lse", call.lse, dtypes=(torch.float32,), shape=shape, device=q.device)
    for name, scale in (("q_descale", call.q_descale), ("k_descale", call.k_descale), ("v_descale", call.v_descale)):
        if scale is not None:
            _check_vector(call, name, scale, torch.float32, 1)
            if not call.is_fp8:
                raise ValueError(f"{OP}: {name} is for fp8 tensors, got it with {q.dtype}")


def _check_dense(call: AttentionCall) -> None:
    if call.cu_seqlens_k is not None:
        raise ValueError(f"{OP}: cu_seqlens_q and cu_seqlens_k must be given together")
    if call.seqlens_k is not None:
        _check_vector(call, "seqlens_k", call.seqlens_k, torch.int32, call.batch)
    for name, length, given in (("q", call.q.shape[1], call.max_seqlen_q), ("k", call.k.shape[1], call.max_seqlen_k)):
        if given != length:
            raise ValueError(f"{OP}: max_seqlen_{name} must be the length {length} of {name}, got {given}")


def _check_varlen(call: AttentionCall) -> None:
    check.tensor(OP, "cu_seqlens_q", call.cu_seqlens_q, rank=1, dtypes=(torch.int32,), device=call.q.device)
    if call.cu_seqlens_q.shape[0] == 0:
        raise ValueError(f"{OP}: cu_seqlens_q must have one element more than there are sequences, got none")
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        _check_vector(call, name, getattr(call, name), torch.int32, call.batch + 1)
    if call.seqlens_k is not None:
        raise ValueError(f"{OP}: seqlens_k is for dense tensors; cu_seqlens_k gives the lengths")


def _check_options(call: AttentionCall) -> None:
    """Bias, slopes, sink, dropout, workspace."""
    q, num_heads = call.q, call.num_heads
    if call.bias is not None:
        bias = call.bias
        rank = 2 if call.is_varlen else 4
        check.tensor(OP, "bias", bias, rank=rank, dtypes={q.dtype, torch.float32}, device=q.device,
                     last_contiguous=False)
        shape = (q.shape[0] if call.is_varlen else call.max_seqlen_q, call.max_seqlen_k)
        shared = tuple(bias.shape[:-2])
        if tuple(bias.shape[-2:]) != shape or any(got not in (1, size)
                                                  for got, size in zip(shared, (call.batch, num_heads))):
            wanted = shape if call.is_varlen else (f"1 or {call.batch}", f"1 or {num_heads}", *shape)
            raise ValueError(f"{OP}: bias must have shape ({', '.join(map(str, wanted))}), got {tuple(bias.shape)}")
    if call.alibi_slopes is not None:
        shape = (num_heads,) if call.alibi_slopes.ndim == 1 else (call.batch, num_heads)
        check.tensor(OP, "alibi_slopes", call.alibi_slopes, dtypes=(torch.float32,), shape=shape, device=q.device)
    if call.sink is not None:
        _check_vector(call, "sink", call.sink, torch.float32, num_heads)
    check.real(OP, "dropout_p", call.dropout_p, low=0.0)
    if call.dropout_p >= 1:
        raise ValueError(f"{OP}: dropout_p must be below 1, got {call.dropout_p}")
    if call.dropout_p:
        _check_vector(call, "rng_state", call.rng_state, torch.int64, 2)
    if call.workspace is not None:
        check.tensor(OP, "workspace", call.workspace, rank=1, dtypes=(torch.uint8,), device=q.device)


def _check_vector(call: AttentionCall, name: str, value: Any, dtype: torch.dtype, size: int) -> None:
    check.tensor(OP, name, value, dtypes=(dtype,), shape=(size,), device=call.q.device)


def beyond_launch(call: AttentionCall, rows: int, keys: int) -> str | None:
    """Why a kernel whose grid has a dimension of heads and one of sequences cannot be launched; None: it can."""
    for name, size, limit in (("batch", call.batch, _MAX_GRID), ("number of heads", call.num_heads, _MAX_GRID),
                              ("length of q", rows, MAX_ROWS), ("length of k", keys, MAX_ROWS)):
        if size > limit:
            return f"{name} at most {limit}, got {size}"
    return None
