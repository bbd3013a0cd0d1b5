# SPDX-License-Identifier: MIT
"""AITER's calls of attention by the names of its kernels, against those that they hand on to."""

import pytest
import torch
from seeded import numbers

import aiter_like as aiter
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.attention import mha, mha_backward
from aiter_like.integrations.aiter.attention import mha_raw as raw

SCALE = 32**-0.5
STARTS = [torch.tensor(values, dtype=torch.int32) for values in ([0, 5, 9], [0, 7, 13])]
pytestmark = pytest.mark.usefixtures("in_torch")


def dense():
    return numbers(2, 9, 4, 32), numbers(2, 13, 2, 32, seed=1), numbers(2, 13, 2, 32, seed=2)


def packed():
    return numbers(9, 4, 32), numbers(13, 2, 32, seed=1), numbers(13, 2, 32, seed=2)


def test_windows_that_are_tensors():
    q, k, v = dense()
    expected = aiter.flash_attn_func(q, k, v, causal=True, window_size=(3, 0), return_lse=True)
    for window in (torch.tensor([3, 0]), (3, 0), [3, 0]):
        found = raw.flash_attn_func(q, k, v, causal=True, window_size=window, return_lse=True, layout="bshd")
        assert all(map(torch.equal, found, expected))
    q, k, v = packed()
    expected = aiter.flash_attn_varlen_func(q, k, v, *STARTS, 5, 7, window_size=(3, 2))
    assert torch.equal(raw.flash_attn_varlen_func(q, k, v, *STARTS, 5, 7, window_size=torch.tensor([3, 2])), expected)
    with pytest.raises(TypeError, match="flash_attn_func: window_size must be 2 or 3 integers"):
        raw.flash_attn_func(*dense(), window_size=torch.tensor([0.5, 1]))


def test_dense_by_the_names_of_kernels():
    q, k, v = dense()
    out, lse, mask, state = raw.fmha_v3_fwd(q, k, v, 0.0, SCALE, True, -1, 0, True, False, 1)
    expected = mha.mha_fwd(q, k, v, 0.0, SCALE, True, -1, 0, 0, True, False)
    assert all(map(torch.equal, (out, lse, mask, state), expected))
    dout = numbers(2, 9, 4, 32, seed=3)
    given = [torch.empty_like(x) for x in (q, k, v)]
    found = raw.fmha_v3_bwd(dout, q, k, v, out, lse, 0.0, SCALE, True, -1, 0, True, True, 1, *given)
    wanted = mha_backward.mha_bwd(dout, q, k, v, out, lse, 0.0, SCALE, True, -1, 0, True)
    assert all(map(torch.equal, found, wanted)) and all(map(torch.equal, given, wanted))
    with pytest.raises(UnsupportedError, match="fmha_v3_fwd: no backend supports gen"):
        raw.fmha_v3_fwd(q, k, v, 0.0, SCALE, True, -1, 0, True, False, 1, gen=torch.Generator())


def test_packed_by_the_names_of_kernels():
    q, k, v = packed()
    found = raw.fmha_v3_varlen_fwd(q, k, v, *STARTS, 5, 7, 0, 0.0, SCALE, 0.0, False, False, 4, 2, True, False, 1)
    expected = mha.mha_varlen_fwd(q, k, v, *STARTS, 5, 7, 0, 0.0, SCALE, 0.0, False, False, 4, 2, 0, True, False)
    assert all(map(torch.equal, found, expected))
    dout, options = numbers(9, 4, 32, seed=3), (5, 7, 0.0, SCALE, False, False, 4, 2, True)
    grads = raw.fmha_v3_varlen_bwd(dout, q, k, v, *found[:2], *STARTS, *options, True, 1)
    assert all(map(torch.equal, grads, mha_backward.mha_varlen_bwd(dout, q, k, v, *found[:2], *STARTS, *options)))
