# SPDX-License-Identifier: MIT
"""Layers of experts in every form that fused_moe takes, and what they compute in float64."""

import math
from typing import Any, NamedTuple

import torch
from experts import FP4

from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.enums import ActivationType, QuantType
from aiter_like.ops.layout.shuffle_weight import shuffle_weight

FORMS = ("bf16", "fp16", "fp8 tensor", "fp8 token", "int8 token", "fp8 blocks", "int4 row", "int4 groups", "int4 aiter",
         "int4 words", "mxfp4")
"""Of "int4 words" the activations become fp8, and the order is that of shuffle_weight, without its mark."""


class LayerOf(NamedTuple):
    """A layer: what fused_moe is given, and its matrices in float64."""

    w1: torch.Tensor
    w2: torch.Tensor
    options: dict[str, Any]
    wide1: torch.Tensor
    wide2: torch.Tensor
    eight_bits: torch.dtype | None  # of its activations


def stored(form: str, w: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Weights [experts, n, k] of float64 as a form stores them, their scales, and what they then are in float64."""
    kind, _, scaling = form.partition(" ")
    if kind in ("bf16", "fp16"):
        narrow = w.to(torch.float16 if kind == "fp16" else torch.bfloat16)
        return narrow, None, narrow.double()
    if kind in ("fp8", "int8"):
        dtype = torch.int8 if kind == "int8" else dtypes.fp8_of(target_of(device).arch)
        top = 127.0 if kind == "int8" else torch.finfo(dtype).max
        if scaling == "tensor":
            scale = (w.abs().amax((1, 2)) / top).float()
            wide = scale[:, None, None]
        elif scaling == "token":
            scale = (w.abs().amax(2, keepdim=True) / top).float()
            wide = scale
        else:
            experts, n, k = w.shape
            padded = torch.zeros(experts, -(-n // 128) * 128, -(-k // 128) * 128, dtype=w.dtype)
            padded[:, :n, :k] = w
            scale = (padded.unflatten(2, (-1, 128)).unflatten(1, (-1, 128)).abs().amax((2, 4)) / top).float()
            wide = scale.repeat_interleave(128, 1)[:, :n].repeat_interleave(128, 2)[:, :, :k]
        narrow = (w / wide).round() if kind == "int8" else w / wide
        narrow = narrow.float().clamp(-top, top).to(dtype)
        return narrow, scale, narrow.double() * wide.double()
    group = {"row": w.shape[2], "words": w.shape[2], "groups": 64, "aiter": 32}.get(scaling, 32)
    grouped = w.unflatten(2, (-1, group))
    if kind == "int4":
        scale = (grouped.abs().amax(-1) / 7).float().clamp(min=1e-6)
        scale = scale.bfloat16() if scaling == "aiter" else scale
        numbers = (grouped / scale.double()[..., None]).round().clamp(-8, 7)
        wide = (numbers * scale.double()[..., None]).flatten(2)
        codes = numbers.flatten(2).int() & 15
        scale = scale.mT.contiguous() if scaling == "aiter" else scale
    else:
        power = torch.floor(torch.log2(grouped.abs().amax(-1).clamp(min=1e-30) / 6)) + 1
        values = torch.tensor([*FP4, *(-one for one in FP4)], dtype=torch.float64)
        codes = (grouped / 2.0**power[..., None])[..., None].sub(values).abs().argmin(-1).int()
        wide = (values[codes.long()] * 2.0**power[..., None]).flatten(2)
        codes, scale = codes.flatten(2), (power + 127).to(torch.uint8)
    if scaling == "words":
        narrow = shuffle_weight(codes.to(torch.int8), use_int4=True)
        return words_of(narrow), scale, wide
    packed = (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8)
    return packed if kind == "mxfp4" else packed.view(torch.int8), scale, wide


def words_of(codes: torch.Tensor) -> torch.Tensor:
    """Eight numbers below 16 in 32 bits: the even ones in the lower half, the odd ones in the upper half."""
    numbers = codes.cpu().long().unflatten(-1, (-1, 8)) & 15
    shifts = torch.tensor([0, 16, 4, 20, 8, 24, 12, 28])
    return (numbers << shifts).sum(-1).to(torch.uint32).to(codes.device)


QUANT = {"bf16": QuantType.No, "fp16": QuantType.No,
         "fp8 tensor": QuantType.per_Tensor, "fp8 token": QuantType.per_Token,
         "int8 token": QuantType.per_Token, "fp8 blocks": QuantType.per_128x128, "int4 row": QuantType.per_Token,
         "int4 groups": QuantType.per_Token, "int4 words": QuantType.per_Token,
         "int4 aiter": QuantType.per_1x32, "mxfp4": QuantType.per_1x32}


def layer(device: torch.device, form: str, experts: int = 6, k: int = 128, inner: int = 64, seed: int = 0,
          is_gated: bool = True, shuffled: bool = False) -> LayerOf:
    """A random one, whose results are about 1."""
    generator = torch.Generator().manual_seed(seed)
    w1 = torch.randn(experts, inner * (2 if is_gated else 1), k, generator=generator, dtype=torch.float64)
    w2 = torch.randn(experts, k, inner, generator=generator, dtype=torch.float64)
    (narrow1, scale1, wide1), (narrow2, scale2, wide2) = (
        stored(form, w / math.sqrt(w.shape[2]), device) for w in (w1, w2))
    narrow1, narrow2 = narrow1.to(device), narrow2.to(device)
    if shuffled:
        narrow1, narrow2 = shuffle_weight(narrow1), shuffle_weight(narrow2)
    options = {"quant_type": QUANT[form]}
    if scale1 is not None:
        options |= {"w1_scale": scale1.to(device), "w2_scale": scale2.to(device)}
    is_narrow = form.startswith(("fp8", "int8"))
    eight_bits = narrow1.dtype if is_narrow else None
    if form == "int4 words":
        eight_bits = dtypes.fp8_of(target_of(device).arch)
    return LayerOf(narrow1, narrow2, options, wide1.to(device), wide2.to(device), eight_bits)


def activation_of(kind: ActivationType, x: torch.Tensor, inner: int, limit: float | None = None,
                  is_interleaved: bool = False) -> torch.Tensor:
    """What follows the first product."""
    if x.shape[-1] == inner:
        return torch.nn.functional.gelu(x) if kind == ActivationType.Gelu else torch.nn.functional.silu(x)
    gate, up = (x[..., ::2], x[..., 1::2]) if is_interleaved else x.chunk(2, -1)
    if kind == ActivationType.Swiglu and limit is None:
        limit = 7.0
    if limit:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    if kind == ActivationType.Swiglu:
        return gate * (1.702 * gate).sigmoid() * (up + 1)
    return (torch.nn.functional.gelu(gate) if kind == ActivationType.Gelu else torch.nn.functional.silu(gate)) * up


def expected(one: LayerOf, hidden: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor,
             kind: ActivationType = ActivationType.Silu, limit: float | None = None, mask: torch.Tensor | None = None,
             local: int | None = None, bias1: torch.Tensor | None = None, bias2: torch.Tensor | None = None,
             weighs_first: bool = False, is_interleaved: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The layer pair by pair in float64, and for each element the sum of the magnitudes of what it is made of."""
    local_of = {}
    count = one.w1.shape[0] if mask is None else mask.numel()
    for expert in range(count):
        if mask is None or mask[expert]:
            local_of[expert] = len(local_of)
    out = torch.zeros(hidden.shape[0], one.wide2.shape[1], dtype=torch.float64, device=hidden.device)
    sizes = torch.zeros_like(out)
    for token in range(hidden.shape[0] if local is None else local):
        for slot in range(ids.shape[1]):
            expert = local_of.get(int(ids[token, slot]))
            if expert is None:
                continue
            weight, x = weights[token, slot].double(), hidden[token].double()
            product = one.wide1[expert] @ x
            if bias1 is not None:
                product = product + bias1[expert].double()
            if weighs_first:
                product, weight = product * weight, weight.new_ones(())
            inner = activation_of(kind, product, one.wide2.shape[2], limit, is_interleaved)
            down = one.wide2[expert] @ inner
            if bias2 is not None:
                down = down + bias2[expert].double()
            out[token] += weight * down
            sizes[token] += weight.abs() * (one.wide2[expert].abs() @ inner.abs() + down.abs())
    return out, sizes


def check(out: torch.Tensor, wanted: torch.Tensor, sizes: torch.Tensor, eight_bits: torch.dtype | None = None) -> None:
    """Rows between the stages, of pairs and of the result are rounded to the dtype; 8-bit activations twice to theirs:
    each element then by half a step at most, of 2^-3 in fp8 and of 1/127 of the largest in int8 (here below 5 of the
    mean magnitude). The errors of a row add up as random ones do, so that their mean square has a tighter bound."""
    unit = torch.finfo(out.dtype).eps
    narrow = 0.0 if eight_bits is None else 5 / 127 if eight_bits == torch.int8 else 2.0**-4
    error = (out.double() - wanted).abs()
    assert torch.isfinite(out).all()
    allowed = (2 * unit + 4 * narrow) * sizes + 1e-6
    assert (error <= allowed).all(), f"{(error / allowed).max():.2f} times what is allowed"
    mean = (error.square().mean() / wanted.square().mean().clamp(min=1e-12)).sqrt()
    assert mean <= 3 * unit + narrow, f"errors of {mean:.4f} in the mean"
