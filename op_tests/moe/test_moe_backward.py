# SPDX-License-Identifier: MIT
"""experts_with_grad: result and derivatives against float64, with the errors of torch's own in 16 bits as a measure."""

import math
import types

import pytest
import torch

from aiter_like.errors import UnsupportedError
from aiter_like.ops.moe.moe_backward import experts_with_grad

NAMES = ("hidden_states", "w1", "w2", "topk_weight", "bias1", "bias2")


def layer(device, dtype, activation, tokens=23, slots=2, experts=4, k=48, inner=40, has_bias=False, seed=0):
    """The tensors that want derivatives, and the experts; the last one has no token."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * scale).to(device, dtype).requires_grad_()

    n = inner * (2 if activation.endswith("_and_mul") else 1)
    tensors = [random(tokens, k), random(experts + 1, n, k, scale=k**-0.5), random(experts + 1, k, inner,
                                                                                  scale=inner**-0.5)]
    weights = torch.rand(tokens, slots, generator=generator).to(device).requires_grad_()
    biases = [random(experts + 1, n), random(experts + 1, k)] if has_bias else [None, None]
    ids = torch.rand(tokens, experts, generator=generator).topk(slots, 1).indices.int().to(device)
    return [*tensors, weights, *biases], ids


def formula(tensors, ids, activation, limit=0.0, is_interleaved=False):
    """The layer in torch, in the dtype of the tensors, pair by pair."""
    hidden, w1, w2, weights, bias1, bias2 = tensors
    out = []
    for token, experts in enumerate(ids.tolist()):
        total = torch.zeros_like(hidden[token])
        for slot, expert in enumerate(experts):
            if not 0 <= expert < len(w1):
                continue
            x = w1[expert] @ hidden[token] + (0 if bias1 is None else bias1[expert])
            if activation.endswith("_and_mul"):
                x, up = (x[::2], x[1::2]) if is_interleaved else x.chunk(2)
                if limit:
                    x, up = x.clamp(max=limit), up.clamp(-limit, limit)
            kind = activation.removesuffix("_and_mul")
            if kind == "silu":
                y = torch.nn.functional.silu(x)
            elif kind == "swiglu":
                y, up = x * torch.sigmoid(1.702 * x), up + 1
            elif kind == "none":
                y = x
            else:
                y = torch.nn.functional.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")
            y = y * up if activation.endswith("_and_mul") else y
            y = w2[expert] @ y + (0 if bias2 is None else bias2[expert])
            total = total + weights[token, slot].to(y.dtype) * y
        out.append(total)
    return torch.stack(out)


def derivatives(function, tensors, slope):
    """The result, and a derivative for each tensor that there is."""
    given = [one for one in tensors if one is not None]
    out = function(tensors)
    return [out.detach(), *torch.autograd.grad(out, given, slope.to(out.dtype))]


def check(tensors, ids, activation, backend="triton", **options):
    slope = torch.randn(len(ids), tensors[0].shape[1], generator=torch.Generator().manual_seed(9))
    slope = slope.to(tensors[0].device, tensors[0].dtype)
    shared = {name: value for name, value in options.items() if name != "block"}

    def exact(wide):
        return formula(wide, ids, activation, **shared)

    def ours(given):
        return experts_with_grad(*given[:4], ids, activation, bias1=given[4], bias2=given[5], backend=backend,
                                 **options)

    wide = [None if one is None else one.detach().double().requires_grad_() for one in tensors]
    wanted = derivatives(exact, wide, slope)
    usual = derivatives(exact, tensors, slope)
    found = derivatives(ours, tensors, slope)
    names = ["out", *(name for name, one in zip(NAMES, tensors) if one is not None)]
    for name, one, theirs, right in zip(names, found, usual, wanted):
        assert one.shape == right.shape and one.dtype == theirs.dtype, name
        floor = torch.finfo(tensors[0].dtype).eps * right.square().mean().sqrt()
        error, allowed = ((x.double() - right).square().mean().sqrt() for x in (one, theirs))
        assert error <= 1.25 * allowed + floor, f"{name}: {error:.3e}, torch's {allowed:.3e}"


@pytest.mark.parametrize("backend", ("triton", "torch"))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("activation", ("none", "silu", "gelu", "gelu_tanh", "silu_and_mul", "gelu_and_mul",
                                        "gelu_tanh_and_mul", "swiglu_and_mul"))
def test_activations(device, dtype, activation, backend):
    check(*layer(device, dtype, activation), activation, backend)


@pytest.mark.parametrize("activation, options", (
    ("silu_and_mul", {"is_interleaved": True}), ("swiglu_and_mul", {"is_interleaved": True, "limit": 0.5}),
    ("silu_and_mul", {"limit": 0.25}), ("gelu", {})))
def test_biases_limits_and_interleaved_gates(device, activation, options):
    check(*layer(device, torch.bfloat16, activation, has_bias=True), activation, **options)


@pytest.mark.parametrize("tokens, slots, experts, block", ((1, 1, 2, None), (70, 3, 4, 16), (140, 1, 1, 64)))
def test_sizes(device, tokens, slots, experts, block):
    given = layer(device, torch.bfloat16, "silu_and_mul", tokens, slots, experts, 33, 30)
    check(*given, "silu_and_mul", block=block)


def test_experts_that_are_not_here(device):
    """Their pairs have no part in the result, and no derivative; of an expert without pairs it is zero."""
    tensors, ids = layer(device, torch.bfloat16, "silu_and_mul", has_bias=True)
    ids[2, 1], ids[3], ids[5, 0] = -1, 5, 2**31 - 1
    check(tensors, ids, "silu_and_mul")
    out = experts_with_grad(*tensors[:4], ids, "silu_and_mul", backend="triton")
    out.sum().backward()
    assert (out[3] == 0).all() and (tensors[0].grad[3] == 0).all() and (tensors[3].grad[3] == 0).all()
    assert (tensors[1].grad[4] == 0).all() and (tensors[2].grad[4] == 0).all()


def test_parts_of_the_derivatives(device):
    """Only what is asked for is found; rows of the matrices may be apart, and equal calls give equal derivatives."""
    tensors, ids = layer(device, torch.bfloat16, "silu_and_mul")
    transposed = [tensors[0].detach(), *(one.detach().mT.contiguous().mT.requires_grad_() for one in tensors[1:3]),
                  tensors[3].detach(), None, None]
    out = experts_with_grad(*transposed[:4], ids, "silu_and_mul", backend="triton")
    first = torch.autograd.grad(out.sum(), transposed[1:3], retain_graph=True)
    again = torch.autograd.grad(out.sum(), transposed[1:3])
    straight = experts_with_grad(*tensors[:4], ids, "silu_and_mul", backend="triton")
    plain = torch.autograd.grad(straight.sum(), tensors[1:3])
    for one, other, third in zip(first, again, plain):
        assert torch.equal(one, other) and torch.equal(one, third)


def test_no_second_derivative(device):
    tensors, ids = layer(device, torch.bfloat16, "silu")
    out = experts_with_grad(*tensors[:4], ids, "silu", backend="triton")
    with pytest.raises(UnsupportedError, match="the derivative of experts has no derivative"):
        torch.autograd.grad(out.float().square().sum(), tensors[0], create_graph=True)


def test_many_rows_are_derived_in_parts(device, monkeypatch):
    from aiter_like.ops.moe import moe_backward

    given = layer(device, torch.bfloat16, "silu_and_mul")
    whole = torch.autograd.grad(experts_with_grad(*given[0][:4], given[1], "silu_and_mul").sum(), given[0][:4])
    monkeypatch.setattr(moe_backward, "_ROWS", 7)
    parts = torch.autograd.grad(experts_with_grad(*given[0][:4], given[1], "silu_and_mul").sum(), given[0][:4])
    assert all(torch.allclose(one, other, rtol=1e-6, atol=1e-6) for one, other in zip(whole, parts))
    assert math.isfinite(float(whole[0].float().sum()))


@pytest.mark.parametrize("arch, block", (("gfx942", 256), ("sm_90", 128)))
def test_blocks_are_those_of_the_device(device, monkeypatch, arch, block):
    """800 rows of an expert in the mean: Hopper's kernel has blocks of 128 at most."""
    from aiter_like.ops.moe import moe_backward

    class Found(Exception):
        pass

    def sorting(*args, **_):
        raise Found(args[5])

    monkeypatch.setattr(moe_backward, "target_of", lambda _: types.SimpleNamespace(arch=arch))
    monkeypatch.setattr(moe_backward, "moe_sorting", sorting)
    tensors, ids = layer(device, torch.bfloat16, "silu_and_mul", tokens=2000)
    with pytest.raises(Found, match=f"^{block}$"):
        experts_with_grad(*tensors[:4], ids, "silu_and_mul")
