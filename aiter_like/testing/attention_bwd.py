# SPDX-License-Identifier: MIT
"""The float64 reference of attention's derivative, its limits, and the comparison. Read by op_tests/.

Expected values come from autograd through the plain formula; nothing is shared with ops/attention/flash_attn_bwd.py.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from aiter_like.ops.attention.call import AttentionBackwardCall, AttentionDbiasCall
from aiter_like.ops.common import philox
from aiter_like.testing.compare import TOLERANCES, assert_within, relative_l2

_NAMES = ("dq", "dk", "dv", "dsink", "dbias")
_FLUSHED = 2**-126  # fp32's smallest normal number, below which exp2 and products give 0


@dataclass(frozen=True)
class Gradient:
    """One derivative in float64, and by how much each element may differ."""

    expected: Tensor
    limit: Tensor


@dataclass(frozen=True)
class _Sequence:
    """One sequence in float64, every tensor [heads, rows, dim], k and v repeated for the heads of their group.

    Attributes:
        kept: what dropout multiplies each probability by: 0, or 1 / (1 − p).
        raw: softmax_scale · q·k. score: with softcap, bias, ALiBi and mask. visible: [rows, keys].
    """

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor
    dlse: Tensor
    sink: Tensor | None
    raw: Tensor
    score: Tensor
    visible: Tensor
    kept: Tensor
    lse: Tensor
    p: Tensor
    out: Tensor


def check_attention_gradients(call: AttentionBackwardCall | AttentionDbiasCall, rounding: str = "rtne") -> float:
    """Compares dq, dk, dv and dsink, or dbias, of a finished call with float64.

    Args:
        call: the arguments of flash_attn_bwd or flash_attn_dbias, after the call.
        rounding: of P in the forward that gave `out` ("rtne", "rtna", "rtz").

    Returns:
        The largest error as a fraction of its limit.

    Raises:
        AssertionError: an element, or the relative L2 error of one but dsink, is beyond its limit.
    """
    worst = 0.0
    # The simulated MI300X shows 2.3–2.7e-3 (fp16 2.9–3.2e-4), but 9.2e-3 where rows see one key beside a sink: there dP
    # and δ, which holds the rounding of `out`, all but cancel. The elements' limits know: of theirs that is a 70th.
    least = 2 * TOLERANCES[call.q.dtype, "rtne"].relative_l2
    for name, gradient in attention_gradients_float64(call, rounding).items():
        got = getattr(call, name)
        worst = max(worst, assert_within(name, got, gradient.expected, gradient.limit))
        size, bound = gradient.expected.norm().item(), gradient.limit.norm().item()
        if name == "dsink" or size <= bound:  # with one key dP − δ is 0 and only rounding is left
            continue
        error, largest = relative_l2(got, gradient.expected), max(least, bound / size / 24)
        if error > largest:
            raise AssertionError(f"{name}: relative L2 error {error:.3e}, limit {largest:.1e}")
    return worst


def fill_forward(call: AttentionBackwardCall) -> AttentionBackwardCall:
    """Writes `out` and `lse` of a call: the exact ones, rounded."""
    call.out.zero_()
    call.lse.fill_(-math.inf)
    for batch, rows, keys in _places(call):
        sequence = _sequence(call, batch, rows, keys)
        call.out[rows] = sequence.out.transpose(0, 1).to(call.out)
        call.lse[_lse_place(call, batch, rows)] = sequence.lse.to(call.lse)
    return call


def attention_gradients_float64(call: AttentionBackwardCall | AttentionDbiasCall, rounding: str = "rtne"
                                ) -> dict[str, Gradient]:
    """The derivatives of Σ out · dout + Σ lse · dlse of the exact inputs, and their limits.

    With u the unit roundoff, e32 the error of an fp32 score or exponent as for the forward, G = |dO| |V|ᵀ, A the
    forward's Σ p·|v| / Σ p, slope the softcap's derivative, all of them exact:

    * δ = Σ dO·O − dlse:  Eδ = Σ |dO|·((u + e32)·A + u·|O|) + e32·Σ |dO·O|      (O is rounded, and P within it)
    * dS = P·(dP − δ)·slope:  ES = P·((e32 + u)·|dP − δ|·slope + e32·G·kept + Eδ + eslope·|dP − δ|)
    * dQ: softmax_scale·(ES |K| + e32·|dS| |K|) + u·|dQ|;  dK: the same with |Q|, summed over the group
    * dV: ((e32 + u)·P·kept)ᵀ |dO| + u·|dV|;  dsink: Σ exp(sink − lse)·(e32·|δ| + Eδ)
    * dbias: Σ P·(2·e32·|dP − δ| + e32·G·kept + Eδ) + u·|dbias|, with u of its own dtype

    each 1 % wider for what is of second order, and by what is lost of small numbers times the other factor: fp16's
    smallest subnormal, and what fp32 flushes to 0.
    """
    found = {name: Gradient(*(torch.zeros(getattr(call, name).shape, dtype=torch.float64) for _ in range(2)))
             for name in _NAMES if getattr(call, name, None) is not None}
    for batch, rows, keys in _places(call):
        sequence = _sequence(call, batch, rows, keys)
        gradients, limits = _exact(call, sequence), _limits(call, sequence, rounding)
        for name, *parts in zip(_NAMES, gradients, limits):
            if name not in found:
                continue
            for target, part in zip((found[name].expected, found[name].limit), parts):
                _place(call, name, target, batch, rows, keys).add_(_summed(call, name, target, part))
    tolerance = TOLERANCES[call.q.dtype, "rtne"]
    for name, gradient in found.items():
        unit = tolerance.unit if getattr(call, name).dtype == call.q.dtype else 2**-23
        gradient.limit.mul_(1.01).add_(gradient.expected.abs(), alpha=unit)
        gradient.limit.add_(tolerance.smallest + _FLUSHED)
    return found


def _place(call: AttentionBackwardCall | AttentionDbiasCall, name: str, target: Tensor, batch: int, rows: int | slice,
           keys: int | slice) -> Tensor:
    """The part of a derivative, or of its limits, to which a sequence adds."""
    if name == "dsink":
        return target
    if name != "dbias":
        return target[rows if name == "dq" else keys]
    if call.cu_seqlens_q is None:
        return target[batch if len(target) > 1 else 0]
    return target[rows, :keys.stop - keys.start]


def _summed(call: AttentionBackwardCall | AttentionDbiasCall, name: str, target: Tensor, part: Tensor) -> Tensor:
    """A sequence adds this, summed over the query heads of `part` that share it."""
    if name == "dbias":
        return part.sum(0) if target.ndim == 2 else part.sum(0, keepdim=True) if target.shape[1] == 1 else part
    if name in ("dk", "dv"):
        part = part.unflatten(0, (call.k.shape[-2], -1)).sum(1)
    return part if name == "dsink" else part.transpose(0, 1)


def check_rounding_errors(call: AttentionBackwardCall) -> None:
    """Compares the errors of a finished call's dq, dk and dv with those of the algorithm itself.

    Raises:
        AssertionError: against float64 the error is, in the mean or at most, more than 1.2 times that of the formulas
            with P, dS and the results rounded to 16 bits.
    """
    expected = attention_gradients_float64(call)
    for name, rounded in _rounded(call).items():
        got, other = (tensor.cpu().double() - expected[name].expected for tensor in (getattr(call, name), rounded))
        for kind, size in (("mean", torch.linalg.norm), ("largest", lambda error: error.abs().max())):
            ratio = (size(got) / size(other).clamp(min=_FLUSHED)).item()
            if ratio > 1.2:
                raise AssertionError(f"{name}: {kind} error {ratio:.2f} times that of the roundings, limit 1.2")


def _rounded(call: AttentionBackwardCall) -> dict[str, Tensor]:
    """dq, dk and dv of the formulas in float64, but with `out`, P, dS and the results in the call's 16 bits."""
    found = {name: torch.zeros(tensor.shape, dtype=torch.float64)
             for name, tensor in zip(("dq", "dk", "dv"), call.gradients, strict=True)}
    for batch, rows, keys in _places(call):
        sequence = _sequence(call, batch, rows, keys)
        out = call.out[rows].cpu().double().transpose(0, 1)
        delta = (sequence.dout * out).sum(-1, keepdim=True) - sequence.dlse[..., None]
        factor = (sequence.dout @ sequence.v.transpose(1, 2)) * sequence.kept - delta
        if call.softcap:
            factor = factor * (1 - torch.tanh(sequence.raw / call.softcap) ** 2)
        p, ds = (tensor.to(call.q.dtype).double() for tensor in (sequence.p * sequence.kept, sequence.p * factor))
        ds = ds * call.softmax_scale
        found["dq"][rows] = (ds @ sequence.k).transpose(0, 1)
        for name, part in (("dk", ds.transpose(1, 2) @ sequence.q), ("dv", p.transpose(1, 2) @ sequence.dout)):
            found[name][keys] = part.unflatten(0, (call.k.shape[-2], -1)).sum(1).transpose(0, 1)
    return {name: tensor.to(call.q.dtype) for name, tensor in found.items()}


def _places(call: AttentionBackwardCall) -> Iterator[tuple]:
    """(batch, index of its rows, index of its keys) of each sequence that has rows and keys."""
    for batch in range(call.forward.batch):
        rows, keys = (
            (batch if starts is None else slice(int(starts[batch]), int(starts[batch + 1])))
            for starts in (call.cu_seqlens_q, call.cu_seqlens_k))
        if len(call.q[rows]) and len(call.k[keys]) and call.forward.num_heads:
            yield batch, rows, keys


def _lse_place(call: AttentionBackwardCall, batch: int, rows: int | slice) -> tuple:
    return (batch,) if call.cu_seqlens_q is None else (slice(None), rows)


def _sequence(call: AttentionBackwardCall, batch: int, rows: int | slice, keys: int | slice) -> _Sequence:
    group_size = call.q.shape[-2] // call.k.shape[-2]
    q, dout = (tensor[rows].detach().cpu().double().transpose(0, 1) for tensor in (call.q, call.dout))
    k, v = (tensor[keys].detach().cpu().double().transpose(0, 1).repeat_interleave(group_size, 0)
            for tensor in (call.k, call.v))
    num_heads, seqlen_q, seqlen_k = q.shape[0], q.shape[1], k.shape[1]
    dlse = torch.zeros(num_heads, seqlen_q) if call.dlse is None else call.dlse[_lse_place(call, batch, rows)].cpu()
    offset = torch.arange(seqlen_k) - torch.arange(seqlen_q)[:, None] - (seqlen_k - seqlen_q)  # 0 on the diagonal
    visible = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool)
    if call.window_right >= 0:
        visible = visible & (offset <= call.window_right)
    if call.window_left >= 0:
        visible = visible & ((offset >= -call.window_left) | (torch.arange(seqlen_k) < call.sink_size))
    raw = q @ k.transpose(1, 2) * call.softmax_scale
    score = call.softcap * torch.tanh(raw / call.softcap) if call.softcap else raw
    if call.bias is not None:
        bias = call.bias.detach().cpu().double()
        score = score + (bias[rows, :seqlen_k] if call.cu_seqlens_q is not None else
                         bias.expand(call.forward.batch, num_heads, -1, -1)[batch])
    if call.alibi_slopes is not None:
        slopes = call.alibi_slopes.cpu().double().expand(call.forward.batch, -1)[batch]
        score = score - slopes[:, None, None] * offset.abs()
    score = torch.where(visible, score, -math.inf)
    kept = torch.ones(num_heads, seqlen_q, seqlen_k, dtype=torch.float64)
    if call.dropout_p:
        heads = batch * num_heads + torch.arange(num_heads)
        kept = philox.attention_kept(call.rng_state.cpu(), call.dropout_p, heads[:, None], torch.arange(seqlen_q),
                                     seqlen_k).double() / (1 - call.dropout_p)
    sink = None if call.sink is None else call.sink.detach().cpu().double()
    p, lse = _softmax(score, sink)
    return _Sequence(q, k, v, dout, dlse.double(), sink, raw, score, visible, kept, lse, p, (p * kept) @ v)


def _softmax(score: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
    """P and the LSE; 0 and −∞ where nothing is visible."""
    every = score if sink is None else torch.cat((score, sink[:, None, None].expand(-1, score.shape[1], 1)), -1)
    blind = (every == -math.inf).all(-1)
    every = every.masked_fill(blind[..., None], 0.0)
    # Neither P nor the derivative of the log-sum-exp comes from that: float64 may have no 1 beside it.
    p = every.softmax(-1)[..., :score.shape[-1]]
    near = every.detach().logsumexp(-1, keepdim=True)
    lse = near + torch.exp(every - near).sum(-1, keepdim=True).log()
    return torch.where(blind[..., None], 0.0, p), torch.where(blind, -math.inf, lse[..., 0])


def _exact(call: AttentionBackwardCall, sequence: _Sequence) -> tuple[Tensor, ...]:
    """dq, dk, dv, all of them by query head, dsink, and dbias by query head, by autograd."""
    sink = sequence.q.new_zeros(sequence.q.shape[0]) if sequence.sink is None else sequence.sink
    inputs = [tensor.clone().requires_grad_() for tensor in (sequence.q, sequence.k, sequence.v, sink,
                                                             torch.zeros_like(sequence.raw))]
    with torch.enable_grad():
        raw = inputs[0] @ inputs[1].transpose(1, 2) * call.softmax_scale
        score = call.softcap * torch.tanh(raw / call.softcap) if call.softcap else raw
        addend = sequence.score - (call.softcap * torch.tanh(sequence.raw / call.softcap) if call.softcap else
                                   sequence.raw)  # bias, ALiBi and mask
        p, lse = _softmax(score + addend + inputs[4], None if sequence.sink is None else inputs[3])
        out = (p * sequence.kept) @ inputs[2]
        loss = (out * sequence.dout).sum() + torch.where(lse > -math.inf, lse * sequence.dlse, 0.0).sum()
    return torch.autograd.grad(loss, inputs, allow_unused=True)


def _limits(call: AttentionBackwardCall, sequence: _Sequence, rounding: str) -> tuple[Tensor, ...]:
    """The limits of dq, dk, dv, dsink and dbias without the rounding of the results."""
    tolerance = TOLERANCES[call.q.dtype, "rtne"]
    unit, unit_p, tiny = tolerance.unit, TOLERANCES[call.q.dtype, rounding].unit, tolerance.smallest + _FLUSHED
    visible = sequence.visible.expand_as(sequence.raw)
    finite = sequence.score[visible & sequence.score.isfinite()]
    largest = max([*finite.abs().amax(0, keepdim=True).tolist(), sequence.raw[visible].abs().amax(0).item()]
                  if finite.numel() else [0.0])
    lengths = math.sqrt(max(sequence.q.shape[1], sequence.k.shape[1]))
    dims = math.sqrt(max(sequence.q.shape[2], sequence.v.shape[2]))
    lse = sequence.lse.masked_fill(sequence.lse.isinf(), 0.0).abs().clamp(min=1.0)
    e32 = 2**-24 * (8 * lengths + 8 * dims * (1 + largest) + 8) + 2**-21 * lse[..., None]
    p, dout = sequence.p * sequence.kept, sequence.dout.abs()
    weighted = p @ sequence.v.abs()
    delta = (sequence.dout * sequence.out).sum(-1, keepdim=True) - sequence.dlse[..., None]
    e_delta = (dout * ((unit_p + e32) * weighted + unit_p * sequence.out.abs() + tiny)).sum(-1, keepdim=True)
    e_delta = e_delta + e32 * (dout * sequence.out.abs()).sum(-1, keepdim=True) + 2**-23 * delta.abs()
    factor = ((sequence.dout @ sequence.v.transpose(1, 2)) * sequence.kept - delta).abs()
    slope, e_slope = torch.ones_like(factor), 0.0
    if call.softcap:
        slope = 1 - torch.tanh(sequence.raw / call.softcap) ** 2
        e_slope = 2**-20 + 2 * e32 * (1 + 1 / call.softcap)
    product = dout @ sequence.v.abs().transpose(1, 2) * sequence.kept
    ds = sequence.p * factor * slope
    e_ds = (e32 + unit) * ds + sequence.p * (slope * (e32 * product + e_delta) + e_slope * factor)
    e_ds = e_ds + (tiny + _FLUSHED * factor) * visible
    total = (e_ds + e32 * ds) * abs(call.softmax_scale)
    e_p = (2 * e32 + unit) * p + (tiny + _FLUSHED * sequence.kept) * (visible & (sequence.kept > 0))
    weights = 0.0 if sequence.sink is None else torch.exp(sequence.sink[:, None] - sequence.lse)[..., None]
    dsink = (weights * (2 * e32 * delta.abs() + e_delta)).sum((1, 2)) if sequence.sink is not None else None
    dbias = sequence.p * (2 * e32 * factor + e32 * product + e_delta) + _FLUSHED * (1 + factor) * visible
    return total @ sequence.k.abs(), total.transpose(1, 2) @ sequence.q.abs(), e_p.transpose(1, 2) @ dout, dsink, dbias
