# SPDX-License-Identifier: MIT
"""Results without elements follow from the inputs as others do, whichever backend would have served the call."""

import pytest
import torch

import aiter_like

BF16 = torch.bfloat16


def attend(q, k, backend):
    return aiter_like.flash_attn_func(q, k, k, return_lse=True, backend=backend)


def attend_packed(q, k, backend):
    none, five = torch.tensor([[0, 0], [0, 5]], dtype=torch.int32)
    return (aiter_like.flash_attn_varlen_func(q[0], k[0], k[0], none, five, 0, 5, backend=backend),)


def normalise(x, _, backend):
    return (aiter_like.rms_norm(x.flatten(1), torch.ones(256, dtype=BF16), 1e-6, backend=backend),)


def distribute(x, _, backend):
    return (aiter_like.softmax(x.flatten(1).float(), backend=backend),)


@pytest.mark.parametrize("function, shape, backends", (
    (attend, (1, 0, 2, 32), (None, "torch", "triton")), (attend, (0, 4, 2, 32), (None, "torch", "triton")),
    (attend_packed, (1, 0, 2, 32), (None, "torch", "triton")), (distribute, (0, 4, 2, 32), (None, "torch")),
    (normalise, (0, 4, 2, 32), (None, "torch"))))
def test_derivatives_of_nothing(function, shape, backends):
    q = torch.randn(shape).to(BF16).requires_grad_()
    k = torch.randn(shape[0], 5, 2, 32).to(BF16).requires_grad_()
    for backend in backends:
        for _ in range(2):  # the second call has a plan
            found = function(q, k, backend)
            assert all(each.numel() == 0 and each.grad_fn is not None for each in found), backend
            q.grad = k.grad = None
            found[0].sum().backward()
            assert q.grad.shape == q.shape
            assert function in (distribute, normalise) or k.grad.shape == k.shape and not k.grad.any()
        with torch.no_grad():
            assert not any(each.requires_grad for each in function(q, k, backend))


@pytest.mark.parametrize("backend", (None, "torch", "triton"))
def test_derivatives_of_rows_that_no_sequence_has(backend):
    q, k = (torch.randn(4, 2, 32).to(BF16).requires_grad_() for _ in range(2))
    starts, lse = torch.zeros(1, dtype=torch.int32), []
    for _ in range(2):
        out, *lse = aiter_like.flash_attn_varlen_func(q, k, k, starts, starts, 1, 1, return_lse=True, backend=backend)
        assert out.shape == q.shape and all(each.grad_fn is not None for each in (out, *lse))
        q.grad = k.grad = None
        out[:0].sum().backward()
        assert not q.grad.any() and not k.grad.any()
    with torch.no_grad():
        given = torch.full_like(q, -0.0)
        aiter_like.flash_attn_varlen_func(q, k, k, starts, starts, 1, 1, out=given, backend=backend)
        assert given.signbit().all()
