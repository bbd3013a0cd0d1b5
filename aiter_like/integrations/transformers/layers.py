# SPDX-License-Identifier: MIT
"""Norms, linear layers, gated activations and rotary embedding of transformers models: which formula a layer has, and
ours for it.

Read by transformers.py. A layer is recognised by what its own code computes on a few random numbers, not by its name:
formulas differ between models in places where only the rounding shows.
"""

import copy
import weakref
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu

from aiter_like.errors import UnsupportedError
from aiter_like.integrations import linear
from aiter_like.integrations.takeover import LEFT
from aiter_like.ops.activation.act_and_mul import gelu_and_mul, gelu_tanh_and_mul, silu_and_mul
from aiter_like.ops.norm.rms_norm import RmsNormCall, rms_norm, rms_norm_ref, rmsnorm
from aiter_like.ops.rope.rope import rope_cached_2c_fwd

_PROBE_ROWS = 7
_ACTIVATIONS = {silu_and_mul: silu, gelu_tanh_and_mul: lambda x: gelu(x, approximate="tanh"), gelu_and_mul: gelu}
_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")

forwards: weakref.WeakSet[Callable] = weakref.WeakSet()
"""The functions of ours that transformers.py has put into layers."""


def norm_forward(module: nn.Module) -> Callable | None:
    """A forward function (module, hidden_states) for a root-mean-square norm; None where `module` is none."""
    eps_name = next((name for name in ("variance_epsilon", "eps") if isinstance(getattr(module, name, None), float)),
                    None)
    weight = module._parameters.get("weight")
    if eps_name is None or weight is None or weight.ndim != 1 or list(module._parameters) != ["weight"]:
        return None
    variant = _norm_variant(module, getattr(module, eps_name))
    if variant is None:
        return None
    is_model_sensitive, is_gemma = variant

    def norm(module: nn.Module, hidden_states: Tensor) -> Tensor:
        weight, epsilon = module.weight, getattr(module, eps_name)
        if hidden_states.dtype != weight.dtype:  # stock promotes, and its result has another dtype
            raise UnsupportedError(f"RMSNorm of {hidden_states.dtype} with a weight of {weight.dtype}")
        if hidden_states.stride(-1) != 1:  # said here, as a compiled graph cannot fall back
            raise UnsupportedError("RMSNorm of rows that are not contiguous")
        if not is_gemma:
            return rms_norm(hidden_states, weight, epsilon, is_model_sensitive)
        if torch.is_grad_enabled() and (hidden_states.requires_grad or weight.requires_grad):
            raise UnsupportedError("RMSNorm with weight + 1 has no derivative")
        out = torch.empty_like(hidden_states, memory_format=torch.contiguous_format)
        rmsnorm(out, hidden_states, weight, epsilon, True)
        return out

    return norm


def _norm_variant(module: nn.Module, epsilon: float) -> tuple[int, bool] | None:
    """(use_model_sensitive_rmsnorm, gemma_norm) with which `rms_norm_ref` gives what the module gives.

    In bfloat16, where the variants differ by the rounding of the quotient: each element is a quotient or a product
    that lies near the middle of two numbers often enough to tell them apart in 7 rows.
    """
    size, generator = module.weight.shape[0], torch.Generator().manual_seed(0)
    weight = torch.randn(size, generator=generator, dtype=torch.float32, device="cpu").bfloat16()
    x = torch.randn(_PROBE_ROWS, size, generator=generator, dtype=torch.float32, device="cpu").bfloat16()
    try:
        with torch.no_grad():
            expected = torch.func.functional_call(_bare(module), {"weight": weight}, (x,))
    except (RuntimeError, TypeError, ValueError, AttributeError):  # it wants other arguments: no such norm
        return None
    if not isinstance(expected, Tensor) or expected.shape != x.shape or expected.dtype != x.dtype:
        return None
    errors = {}
    for variant in ((0, False), (1, False), (0, True)):
        out = torch.empty_like(x)
        rms_norm_ref(RmsNormCall(out, x, weight, epsilon, variant[0], gemma_norm=variant[1]))
        errors[variant] = (out.double() - expected.double()).norm() / expected.double().norm()
    best = min(errors, key=errors.get)
    return best if errors[best] < 2**-10 else None  # another formula is off by more than a rounding of each element


def _bare(module: nn.Module) -> nn.Module:
    """A copy that shares the parameters, runs the class's own forward and no hooks."""
    bare = copy.copy(module)
    bare.__dict__ = {**module.__dict__, "_forward_hooks": {}, "_forward_pre_hooks": {}, "_modules": {
        **module._modules}, "_parameters": {**module._parameters}}
    bare.__dict__.pop("forward", None)
    return bare


def linear_forward(module: nn.Module) -> Callable | None:
    """A forward function (module, input) for a linear layer; None where `module` is another, or no kernel is for it."""
    return _linear if type(module) is nn.Linear and linear.is_for(module.weight.device) else None


def _linear(module: nn.Module, input: Tensor) -> Tensor | object:
    if torch.is_autocast_enabled(input.device.type):
        return LEFT
    return linear.product(input, module.weight, module.bias, "transformers")


def mlp_forward(module: nn.Module) -> Callable | None:
    """A forward function (module, x) for down(act(gate(x)) · up(x)); None where `module` computes something else."""
    projections = [module._modules.get(name) for name in _PROJECTIONS]
    if any(type(projection) is not nn.Linear for projection in projections):
        return None
    activate = _gated_activation(module)
    if activate is None:
        return None
    original = type(module).forward

    def mlp(module: nn.Module, x: Tensor) -> Tensor:
        gate, up, down = map(module._modules.__getitem__, _PROJECTIONS)
        if type(gate) is not nn.Linear or type(up) is not nn.Linear:
            raise UnsupportedError("gated activation: a projection was replaced since")
        weights = gate.weight, up.weight
        if x.dtype != weights[0].dtype or torch.is_autocast_enabled(x.device.type):
            raise UnsupportedError(f"gated activation of {x.dtype}, weights of {weights[0].dtype}, or under autocast")
        if torch.compiler.is_compiling():  # the compiler fuses the two pointwise steps, and has no strided products
            return original(module, x)
        if torch.is_grad_enabled() and (x.requires_grad or weights[0].requires_grad):
            raise UnsupportedError("gated activation: products are written in place, without a derivative")
        rows, width = x.reshape(-1, x.shape[-1]), gate.out_features
        both = torch.empty(rows.shape[0], 2 * width, dtype=x.dtype, device=x.device)
        for projection, weight, half in zip((gate, up), weights, both.chunk(2, 1)):
            forward = projection.__dict__.get("forward")
            is_stock = forward is None or getattr(forward, "__func__", None) in forwards
            if projection._forward_hooks or projection._forward_pre_hooks or not is_stock:
                raise UnsupportedError("gated activation: a projection has hooks")
            linear.write(half, rows, weight, projection.bias)
        out = torch.empty(*x.shape[:-1], width, dtype=x.dtype, device=x.device)
        activate(out, both.view(*x.shape[:-1], 2 * width))
        return down(out)

    return mlp


def _gated_activation(module: nn.Module) -> Callable | None:
    """The operator that does what the module does between its projections."""
    gate, up = torch.randn(2, _PROBE_ROWS, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float32,
                           device="cpu")
    bare = _bare(module)
    bare._modules |= {"gate_proj": nn.Identity(), "up_proj": _Constant(up), "down_proj": nn.Identity()}
    try:
        with torch.no_grad():
            result = bare(gate)
    except (RuntimeError, TypeError, ValueError, AttributeError):
        return None
    for operator, function in _ACTIVATIONS.items():
        if isinstance(result, Tensor) and result.shape == up.shape and torch.allclose(result, function(gate) * up,
                                                                                      rtol=1e-5, atol=1e-6):
            return operator
    return None


class _Constant(nn.Module):
    """Gives `value`, whatever it gets."""

    def __init__(self, value: Tensor):
        super().__init__()
        self.value = value

    def forward(self, _x: Tensor) -> Tensor:
        return self.value


def rotary_function(original: Callable) -> Callable | None:
    """Ours for a modelling file's apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1); None: it computes otherwise.

    The tables have a value per pair, or one per element of which the second half repeats the first.
    """
    found = _rotary_form(original)
    if found is None:
        return None
    style, is_halved = found
    latest: tuple = ()  # the tables that all layers of a forward share: references to cos and sin, and parts of both

    def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
        nonlocal latest
        if unsqueeze_dim not in (1, 2) or q.ndim != 4 or cos.ndim != 3 or q.stride(-1) != 1 or k.stride(-1) != 1:
            raise UnsupportedError("rotary embedding of other than [batch, heads, tokens, head_dim], in this order")
        if cos.dtype != q.dtype:  # stock promotes, and its result has another dtype
            raise UnsupportedError(f"rotary embedding of {q.dtype} with tables of {cos.dtype}")
        if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad):
            raise UnsupportedError("rotary embedding: no kernel has a derivative")
        head_dim = q.shape[-1]
        if cos.shape[-1] != (head_dim // 2 if is_halved else head_dim):
            raise UnsupportedError(f"rotary embedding of {cos.shape[-1]} of {head_dim} elements")
        is_eager = not torch.compiler.is_compiling()  # a graph that knew `latest` would be compiled for each prompt
        if is_eager and latest and latest[0]() is cos and latest[1]() is sin:
            tables = latest[2]
        else:
            tables = _tables(cos, sin, head_dim // 2)
            if is_eager and cos.shape[0] == cos.stride(-1) == sin.stride(-1) == 1:
                latest = (weakref.ref(cos), weakref.ref(sin), tables)  # views: a change of cos and sin shows
        if cos.shape[0] == 1:  # the same positions in each sequence
            there, back = ((2, 0, 1, 3), (1, 2, 0, 3)) if unsqueeze_dim == 1 else ((1, 0, 2, 3), (1, 0, 2, 3))
            turned = rope_cached_2c_fwd(q.permute(there), k.permute(there), *tables, style, True, False)
            return turned[0].permute(back), turned[1].permute(back)
        if unsqueeze_dim == 1:
            q, k = q.transpose(1, 2), k.transpose(1, 2)  # [batch, tokens, heads, head_dim]
        flat = [x.reshape(-1, 1, *x.shape[2:]) for x in (q, k)]
        turned = [out.view(x.shape) for out, x in
                  zip(rope_cached_2c_fwd(*flat, *tables, style, True, False), (q, k))]
        if unsqueeze_dim == 1:
            turned = [x.transpose(1, 2) for x in turned]
        return turned[0], turned[1]

    return rotary


def _tables(cos: Tensor, sin: Tensor, width: int) -> list[Tensor]:
    """The first `width` columns of [batch, tokens, …] as [tokens, 1, 1, width], or [batch · tokens, 1, 1, width]."""
    halves = (table[..., :width] for table in (cos, sin))
    return [half.transpose(0, 1)[:, :, None] if half.shape[0] == 1 else half.reshape(-1, 1, 1, width)
            for half in (half if half.stride(-1) == 1 else half.contiguous() for half in halves)]


def _rotary_form(original: Callable) -> tuple[int, bool] | None:
    """(rotate_style, whether the tables have a value per pair) of a function."""
    generator = torch.Generator().manual_seed(0)
    # [batch, heads, tokens, head_dim]
    q, k = torch.randn(2, 2, 3, 5, 16, generator=generator, dtype=torch.float32, device="cpu")
    angles = torch.rand(2, 5, 8, generator=generator, dtype=torch.float32, device="cpu")
    for is_halved in (False, True):
        table = angles if is_halved else torch.cat((angles, angles), -1)
        try:
            got = original(q, k, table.cos(), table.sin())
        except (RuntimeError, TypeError, ValueError):
            continue
        if not isinstance(got, tuple) or len(got) != 2 or any(not isinstance(x, Tensor) for x in got):
            return None
        for style in (0, 1):
            if all(x.shape == y.shape and torch.allclose(x, _turned(y, angles, style), rtol=1e-5, atol=1e-5)
                   for x, y in zip(got, (q, k))):
                return style, is_halved
    return None


def _turned(x: Tensor, angles: Tensor, style: int) -> Tensor:
    """[batch, heads, tokens, head_dim] by angles [batch, tokens, head_dim / 2]."""
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = (x[..., 0::2], x[..., 1::2]) if style else x.chunk(2, -1)
    parts = first * cos - second * sin, second * cos + first * sin
    return torch.stack(parts, -1).flatten(-2) if style else torch.cat(parts, -1)
