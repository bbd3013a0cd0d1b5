# SPDX-License-Identifier: MIT
"""float64 attention with every feature of flash_attn_fwd, and the bounds that a kernel's result must keep.

Written apart from the operator's own reference: one head of one sequence at a time. Read by op_tests/ and demo.py.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aiter_like.ops.common import philox
from aiter_like.testing.compare import TOLERANCES, assert_within, relative_l2

_FP8_UNIT = 2**-4  # unit roundoff of e4m3: of P, where q, k and v are fp8
_FP8_SMALLEST = 2**-18  # half of its smallest subnormal, 2⁻¹¹, with P scaled by at least 2⁷
_FP8_RELATIVE_L2 = 5e-2  # about twice 2⁻⁴ / √6, the root mean square of P's relative error


@dataclass(frozen=True)
class AttentionReference:
    """float64 attention.

    Attributes:
        out: [batch, seqlen_q, num_heads, head_dim_v], varlen [total_q, num_heads, head_dim_v].
        lse: [batch, num_heads, seqlen_q], varlen [num_heads, total_q].
        weighted: Σ p·|v| / Σ p, shaped like `out`: what the rounding of P scales with.
        spread: Σ |v| / Σ p over visible keys, with the largest p 1: what an absolute error of P scales with.
        largest_score: largest magnitude of a score over visible pairs, at any step of its computation.
        most_keys: of a sequence.
    """

    out: Tensor
    lse: Tensor
    weighted: Tensor
    spread: Tensor
    largest_score: float
    most_keys: int


def attention_float64(q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False, *,
                      cu_seqlens_q: Tensor | None = None, cu_seqlens_k: Tensor | None = None,
                      seqlens_k: Tensor | None = None, **features: Any) -> AttentionReference:
    """Attention of the exact inputs in float64, on the CPU.

    Args:
        q, k, v: dense [batch, length, heads, dim], or with cu_seqlens_q and cu_seqlens_k [total, heads, dim].
        seqlens_k: [batch]: how many of the stored keys of a dense sequence count.
        features: keywords of `Head`: window_size, softcap, bias, alibi_slopes, sink, dropout_p, rng_state, descales.
    """
    q64, k64, v64 = (tensor.detach().cpu().double() for tensor in (q, k, v))
    num_heads, head_dim = q64.shape[-2:]
    group_size = num_heads // max(k64.shape[-2], 1)
    head_of = Head(head_dim ** -0.5 if softmax_scale is None else softmax_scale, causal, **features)
    out, weighted, spread = (q64.new_zeros(*q64.shape[:-1], v64.shape[-1]) for _ in range(3))
    lse = torch.full((num_heads, q64.shape[0]) if cu_seqlens_q is not None else (len(q64), num_heads, q64.shape[1]),
                     -math.inf, dtype=torch.float64)
    largest, most_keys = 0.0, 0
    for index, rows, keys in _sequences(q64, k64, cu_seqlens_q, cu_seqlens_k, seqlens_k):
        lse_rows = lse[:, rows] if cu_seqlens_q is not None else lse[rows]  # [num_heads, length]
        most_keys = max(most_keys, len(k64[keys]))
        for h in range(num_heads):
            result = head_of(q64[rows][:, h], k64[keys][:, h // group_size], v64[keys][:, h // group_size], index, h,
                             num_heads, rows)
            out[rows][:, h], weighted[rows][:, h], spread[rows][:, h], lse_rows[h], score = result
            largest = max(largest, score)
    return AttentionReference(out, lse, weighted, spread, largest, most_keys)


def _sequences(q: Tensor, k: Tensor, cu_seqlens_q: Tensor | None, cu_seqlens_k: Tensor | None,
               seqlens_k: Tensor | None) -> Iterator[tuple[int, Any, Any]]:
    """(number, index of its rows in q, index of its keys in k) of each sequence."""
    if cu_seqlens_q is None:
        lengths = [k.shape[1]] * len(q) if seqlens_k is None else seqlens_k.tolist()
        for index, length in enumerate(lengths):
            yield index, index, (index, slice(0, length))
        return
    ends_q, ends_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    for index in range(len(ends_q) - 1):
        yield index, slice(ends_q[index], ends_q[index + 1]), slice(ends_k[index], ends_k[index + 1])


@dataclass(frozen=True)
class Head:
    """Attention of one head of one sequence.

    Attributes:
        scale: of q·k.
        causal: no key after the diagonal is visible.
        window_size: (left, right[, sink tokens]) around the diagonal; −1: no limit.
        softcap: 0 or the limit that tanh keeps scores below.
        bias: [seqlen_q, seqlen_k] or [1 or batch, 1 or num_heads, seqlen_q, seqlen_k]; varlen [total_q, max_seqlen_k].
        alibi_slopes: [num_heads] or [batch, num_heads].
        sink: [num_heads].
        dropout_p, rng_state: as of flash_attn_fwd.
        descales: factors of q, k and v.
    """

    scale: float
    causal: bool = False
    window_size: Sequence[int] = (-1, -1, 0)
    softcap: float = 0.0
    bias: Tensor | None = None
    alibi_slopes: Tensor | None = None
    sink: Tensor | None = None
    dropout_p: float = 0.0
    rng_state: Tensor | None = None
    descales: Sequence[float] = (1.0, 1.0, 1.0)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, index: int, head: int, num_heads: int,
                 rows: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, float]:
        """out, weighted, spread, lse of q [length, dim], k, v; and the largest score."""
        v = v * self.descales[2]
        raw = (q @ k.T).mul_(self.scale * self.descales[0] * self.descales[1])
        scores = self.softcap * torch.tanh(raw / self.softcap) if self.softcap else raw
        distance = torch.arange(len(k) - len(q), len(k))[:, None] - torch.arange(len(k))  # i + delta − j
        if self.bias is not None:
            scores = scores + self._bias_of(index, head, rows)[:, :len(k)]
        if self.alibi_slopes is not None:
            slopes = self.alibi_slopes.cpu().double()
            scores = scores - (slopes if slopes.ndim == 1 else slopes[index])[head] * distance.abs()
        largest = raw.abs() if scores is raw else torch.maximum(raw.abs(), scores.abs())
        hidden = self._hidden(distance)
        sink = -math.inf if self.sink is None else self.sink[head].item()
        if hidden is not None:
            largest.masked_fill_(hidden, 0.0)
            scores = scores.masked_fill(hidden, -math.inf)
        maximum = torch.cat((scores, torch.full((len(q), 1), sink)), 1).amax(1, True)
        p = (scores - maximum).exp_()
        if hidden is not None:
            p.masked_fill_(hidden, 0.0)  # a row that sees nothing: 0 / 1
        total = p.sum(1, keepdim=True) + torch.exp(sink - maximum).nan_to_num(nan=1.0)
        lse = (maximum + total.log())[:, 0]
        if self.dropout_p:
            p = p * self._kept(index * num_heads + head, *p.shape) / (1 - self.dropout_p)
        out, weighted = (p @ torch.cat((v, v.abs()), 1) / total).chunk(2, 1)
        spread = v.abs().sum(0) if hidden is None else (~hidden).double() @ v.abs()
        return out, weighted, spread / total, lse, largest.max().item() if largest.numel() else 0.0

    def _hidden(self, distance: Tensor) -> Tensor | None:
        """The pairs that no row sees; None: there is no limit."""
        left, right, *leading = self.window_size
        right = 0 if self.causal else right
        hidden = None
        if right >= 0:
            hidden = distance < -right
        if left >= 0:
            before = (distance > left) & (torch.arange(distance.shape[1]) >= (leading[0] if leading else 0))
            hidden = before if hidden is None else hidden | before
        return hidden

    def _bias_of(self, index: int, head: int, rows: Any) -> Tensor:
        bias = self.bias.detach().cpu().double()
        if bias.ndim == 2:
            return bias[rows] if isinstance(rows, slice) else bias
        return bias[index % len(bias), head % bias.shape[1]]

    def _kept(self, head: int, seqlen_q: int, seqlen_k: int) -> Tensor:
        rows = torch.arange(seqlen_q)
        return philox.attention_kept(self.rng_state.cpu(), self.dropout_p, torch.full_like(rows, head), rows, seqlen_k)


def check_attention(out: Tensor, lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor,
                    softmax_scale: float | None = None, causal: bool = False, rounding: str = "rtne",
                    **features: Any) -> float:
    """Compares with the float64 reference: every element of `out` and `lse`, and the relative L2 error of `out`.

    |out − out64| ≤ (u_p + e32 + u_p·u)·A + u·(1 + u)·|out64|, with A = Σ p·|v| / Σ p, unit roundoffs u of the result
    and u_p of P (u, but for fp8 inputs) and the error of fp32 scores and exponents
    e32 = 2⁻²⁴·(8·√seqlen_k + 8·√head_dim·max|s| + 8 + 4·softcap); |lse − lse64| ≤ e32 + 2⁻²¹·max(1, |lse64|).

    Args:
        rounding: of P and out, one of testing.ROUNDINGS.
        features: further keywords of `attention_float64`.

    Returns:
        The largest error as a fraction of its limit.

    Raises:
        AssertionError: one of the three is beyond its limit.
    """
    reference = attention_float64(q, k, v, softmax_scale, causal, **features)
    tolerance = TOLERANCES[out.dtype, rounding]
    unit, gate, is_fp8 = tolerance.unit, tolerance.relative_l2, q.element_size() == 1
    unit_p, gate = (_FP8_UNIT, _FP8_RELATIVE_L2) if is_fp8 else (unit, gate)
    fp32 = 2**-24 * (8 * math.sqrt(reference.most_keys) + 8 * math.sqrt(q.shape[-1]) * reference.largest_score + 8
                     + 4 * features.get("softcap", 0.0))
    limit = (unit_p + fp32 + unit_p * unit) * reference.weighted + unit * (1 + unit) * reference.out.abs()
    limit += tolerance.smallest + (_FP8_SMALLEST * reference.spread if is_fp8 else 0.0)
    worst = assert_within("attention", out, reference.out, limit)
    if lse is not None:
        finite = reference.lse.masked_fill(reference.lse.isinf(), 0.0)
        worst = max(worst, assert_within("lse", lse, reference.lse, fp32 + 2**-21 * finite.abs().clamp(min=1.0)))
    error = relative_l2(out, reference.out)
    if not error <= gate:
        raise AssertionError(f"attention: relative L2 error {error:.3e}, limit {gate:.1e}")
    return max(worst, error / gate)
