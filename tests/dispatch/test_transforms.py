# SPDX-License-Identifier: MIT
"""Derivatives that no `requires_grad` tells of, by torch.func's transforms and in forward mode: each is right or
refused. What is written says so to autograd.
"""

import inspect

import pytest
import torch
from damages import bits
from public_calls import call_of, called_by_tensors, sampled, tensors
from torch.autograd import forward_ad

import aiter_like
from aiter_like.dispatch import OPS
from aiter_like.errors import UnsupportedError

pytestmark = pytest.mark.usefixtures("simulated")

SMOOTH = (torch.float32, torch.bfloat16, torch.float16)
REFUSALS = (UnsupportedError, NotImplementedError, ValueError, TypeError)


def results(name, place, x):
    """All smooth results of the call with `x` at `place`, and what it has written, as one vector."""
    function, args = call_of(name)
    args[place] = x * 1
    before = [arg._version if isinstance(arg, torch.Tensor) else 0 for arg in args]
    named = {"backend": "torch"} if "backend" in inspect.signature(function).parameters else {}
    with aiter_like.use_backend("torch"):
        found = tensors(function(*args, **named))
    found += [arg for arg, version in zip(args, before) if isinstance(arg, torch.Tensor) and arg._version > version]
    found = [one.float().flatten() for one in found if one.dtype in SMOOTH]
    return torch.cat(found) if found else torch.zeros(0)


def tangents(run, x, direction):
    """By forward mode and by torch.func.jvp, where they are not refused."""
    def dual():
        with forward_ad.dual_level():
            unpacked = forward_ad.unpack_dual(run(forward_ad.make_dual(x.clone(), direction)))
            return torch.zeros_like(unpacked.primal) if unpacked.tangent is None else unpacked.tangent

    for transform in (dual, lambda: torch.func.jvp(run, (x.clone(),), (direction,))[1]):
        try:
            yield transform()
        except REFUSALS:
            continue


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", sampled(called_by_tensors()))
def test_tangents_are_right_or_refused(name):
    """They are the change between two calls, or, where there is a derivative by reverse mode, its product."""
    for place, x in enumerate(call_of(name)[1]):
        if not isinstance(x, torch.Tensor) or x.dtype not in SMOOTH or not x.numel():
            continue
        direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(place)).to(x.dtype)

        def run(x, place=place):
            return results(name, place, x)

        for tangent in tangents(run, x, direction):
            expected = torch.autograd.functional.jvp(run, x.clone(), direction)[1]
            scale = expected.abs().max().clamp(min=1) if expected.numel() else 1
            torch.testing.assert_close(tangent / scale, expected / scale, rtol=2e-2, atol=2e-2, equal_nan=True)


def test_forward_mode_is_refused_where_only_kernels_serve():
    x, weight = torch.randn(3, 64), torch.ones(64)
    with forward_ad.dual_level():
        aiter_like.rms_norm(x, weight, 1e-6, backend="hip")  # no tensor has a tangent
        dual = forward_ad.make_dual(x, x)
        with pytest.raises(UnsupportedError, match="rms_norm: no backend serves .* tangents"):
            aiter_like.rms_norm(dual, weight, 1e-6, backend="hip")
        with pytest.raises(UnsupportedError, match="silu_and_mul: no backend"):
            aiter_like.silu_and_mul(torch.empty(3, 32), dual)
        with pytest.raises(UnsupportedError, match="rms_norm has no forward-mode derivative"):
            torch.ops.aiter_like.rms_norm(dual, weight, 1e-6)
        torch.ops.aiter_like.rms_norm(x, weight, 1e-6)


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacrev, torch.func.hessian])
def test_torch_func_differentiates_by_the_reference(transform):
    """Where torch's operators are the reference, it serves without being asked for; derivatives of derivatives too."""
    x, weight = torch.randn(2, 8, dtype=torch.float32), torch.rand(8)
    got = transform(lambda x: aiter_like.rms_norm(x, weight, 1e-6).sin().sum())(x)
    expected = transform(lambda x: torch.nn.functional.rms_norm(x, (8,), weight, 1e-6).sin().sum())(x)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_what_a_function_cannot_do_under_a_transform_is_said_in_its_words():
    with pytest.raises(UnsupportedError, match="paged_attention_ragged: "):
        function, args = call_of("paged_attention_ragged")
        torch.func.vmap(lambda q: function(*args[:2], q, *args[3:]))(args[2][None])


@pytest.mark.parametrize("name", sorted(OPS))
def test_what_is_written_says_so(name):
    """Every tensor that an operator writes has another version afterwards, others the same, also at a repeated call."""
    op = OPS[name]
    case = next(iter(op.cases(torch.device("cpu")).values()))
    args = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in case]
    for _ in range(3):
        before = [arg._version if isinstance(arg, torch.Tensor) else 0 for arg in args]
        op.run(*args, backend="torch")
        for place, field in enumerate(op.call._fields):
            if isinstance(args[place], torch.Tensor):
                assert (args[place]._version > before[place]) == (place in op.write_indices), field


@pytest.mark.parametrize("name", sampled(called_by_tensors()))
def test_what_a_function_writes_says_so(name):
    """Also in inference mode, where torch's views of another dtype have versions of their own."""
    with aiter_like.use_backend("torch"):
        for mode in (torch.no_grad, torch.inference_mode):
            function, args = call_of(name)
            given = tensors(args)
            before = [(bits(one), one._version) for one in given]
            with mode():
                function(*args)
            for one, (content, version) in zip(given, before):
                assert bits(one) == content or one._version > version, (mode, one.shape)


def test_autograd_sees_that_a_saved_tensor_was_written():
    y = torch.exp(torch.zeros(4, 64, requires_grad=True))
    with torch.no_grad():
        for _ in range(3):
            aiter_like.add_(y, torch.ones(4, 64), backend="hip")
    assert y._version == 3
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    with torch.inference_mode():
        assert aiter_like.relu_squared(torch.ones(4, 64), backend="hip").sum() == 256


def test_articles_are_no_arguments():
    """gemm_a16w16's A is a field named `a`."""
    b = torch.ones(8, 8, dtype=torch.bfloat16)
    with pytest.raises(UnsupportedError, match=r"^gemm_a16w16: no backend serves a call that"):
        torch.func.jvp(lambda a: aiter_like.gemm_a16w16(a, b, backend="hip"), (b.clone(),), (b.clone(),))
    with pytest.raises(ValueError, match=r"^gemm_a16w16: B must"):
        aiter_like.gemm_a16w16(b[:, :6], b)
