# SPDX-License-Identifier: MIT
"""flash_attn_bwd_hopper.py: on an H200 against float64; anywhere what the compiler makes of it."""

import functools
import itertools
import math

import pytest
import torch
from attention_bwd_cases import BF16, FP16, make
from hopper_code import compiled_for_hopper, disassembled

from aiter_like.device import Target, target_of
from aiter_like.jit.triton_launch import Launcher
from aiter_like.ops.attention.call import backward_call, dense_call
from aiter_like.testing import strided_like
from aiter_like.testing.attention_bwd import check_attention_gradients

LENGTHS = ((1, 1), (65, 127), (385, 200), (1000, 700), (129, 1), (1, 500), (640, 640))
HOPPER = Target("cuda", "sm_90", 132, 32, False, 0)
SETTINGS = {"dkdv_BLOCK_M": 64, "dkdv_STAGES": 3, "dkdv_UNROLL": 1, "dkdv_HEADS": 4, "dq_BLOCK_N": 64, "dq_STAGES": 3,
            "dq_UNROLL": 1, "dq_HEADS": 4}
UNROLLED = {"dkdv_UNROLL": 2, "dq_UNROLL": 2}
APART = {"dq_BLOCK_N": 128, "dq_STAGES": 2, "dq_HEADS": 1, "PARTS": 1}  # a launch for dK and dV, one for dQ


@pytest.mark.parametrize("head_dim, changes", (
    *itertools.product((64, 80, 128), ({}, UNROLLED, APART, {"PARTS": 3})), (64, {"GROUPS": 2}),
    (64, {"GROUPS": 2, "PARTS": 3}), (256, {"dkdv_STAGES": 2, "dq_STAGES": 2, "dq_BLOCK_N": 32}),
    (256, {"dkdv_STAGES": 2, "dq_STAGES": 2, "dq_BLOCK_N": 32, "PARTS": 3})), ids=str)
def test_against_float64(device, head_dim, changes):
    """Lengths that end anywhere, keys without a partner, cross-attention, groups of heads, strides; those calls that
    have rows without keys go to the other kernels. The same bits every time."""
    from aiter_like.ops.attention.triton import flash_attn_bwd, flash_attn_bwd_hopper

    if target_of(device).arch != "sm_90":
        pytest.skip("for sm_90")
    settings = {**SETTINGS, **changes}
    for index, (lengths, window) in enumerate(itertools.product(LENGTHS, ((-1, -1), (-1, 0), (-1, 40)))):
        heads = (6, 2) if index % 2 or settings.get("PARTS", 1) > 1 else (2, 2)
        call = make(device, lengths=lengths, heads=heads, head_dims=(head_dim, head_dim),
                    window=window, dtype=(BF16, FP16)[index // 2 % 2], batch=2, dlse=True, sink=index % 3 == 0,
                    seed=index)
        if index % 4 == 3:
            call = call._replace(**{name: strided_like(getattr(call, name), (0, 1, 1, 8))
                                    for name in ("dq", "dk", "dv", "dout", "q", "k", "v", "out")})
        has_blind_rows = 0 <= window[1] < lengths[0] - lengths[1]
        assert flash_attn_bwd_hopper.serves(call, target_of(device)) != has_blind_rows
        launcher = Launcher(functools.partial(flash_attn_bwd.flash_attn_bwd, **settings))
        launcher(call)
        check_attention_gradients(call)
        again = call._replace(**{name: torch.full_like(getattr(call, name), math.nan) for name in ("dq", "dk", "dv")})
        launcher(again)
        assert all(map(torch.equal, again.gradients, call.gradients))


def test_descriptors(monkeypatch):
    """Descriptors are of the call's own tensors; where an address is none for them, the other kernels serve."""
    from aiter_like.ops.attention.triton import flash_attn_bwd, flash_attn_bwd_hopper

    monkeypatch.setattr(flash_attn_bwd, "target_of", lambda _: HOPPER)

    def call():
        q, out, dout, dq = torch.zeros(4, 2, 200, 4, 64, dtype=BF16)
        k, v, dk, dv = torch.zeros(4, 2, 300, 2, 64, dtype=BF16)
        forward = dense_call(out, torch.zeros(2, 4, 200), q, k, v, window_right=0)
        return backward_call(forward, dout, dq=dq, dk=dk, dv=dv)

    first, odd = call(), call()
    odd = odd._replace(k=torch.zeros(odd.k.numel() + 1, dtype=BF16)[1:].view_as(odd.k))
    for current in (first, odd):
        (_, (delta, lse2, *_)), *products = (
            (each.kernel, each.arguments) for each in flash_attn_bwd.flash_attn_bwd(current, **SETTINGS))
        if current is odd:
            (dkdv_kernel, dkdv), (dq_kernel, dq) = products
            assert (dkdv_kernel, dq_kernel) == (flash_attn_bwd._dkdv_kernel, flash_attn_bwd._dq_kernel)
            assert dkdv[4] is odd.k and dq[3] is odd.k
            continue
        kernel, arguments = products[0]
        assert kernel is flash_attn_bwd_hopper._products_kernel
        tensors = (current.q, current.dout, current.k, current.v, lse2, delta)
        for box, tensor in zip(arguments[3:9], tensors, strict=True):
            assert box.base is tensor and (box.shape, box.strides) == (list(tensor.shape), list(tensor.stride()))


def call_of(head_dim, **changes):
    """A call without storage."""
    q = torch.empty(2, 4096, 24, head_dim, dtype=BF16, device="meta")
    forward = dense_call(q, torch.empty(2, 24, 4096, device="meta"), q, q, q, window_right=0)
    return backward_call(forward, q)._replace(**changes)


@pytest.mark.parametrize("head_dim, params", ((64, {}), (80, {}), (128, {}), (256, {}), (64, {**SETTINGS, **UNROLLED}),
                                              (128, {**SETTINGS, **UNROLLED})), ids=str)
def test_products_are_asynchronous(device, monkeypatch, tmp_path, head_dim, params):
    """Several wgmma between two waits, registers that move to the groups, no sums in local memory."""
    if device.type != "cpu":
        pytest.skip("static: the code for sm_90 is the same wherever the tests run")
    from aiter_like.ops.attention.triton import flash_attn_bwd

    with compiled_for_hopper(monkeypatch, flash_attn_bwd) as built:
        flash_attn_bwd.flash_attn_bwd(call_of(head_dim), **params)
    assert len(built) == (3 if head_dim == 256 else 2)  # delta, and both kinds of programs in one launch or in two
    for kernel in built[1:]:
        sass = disassembled(kernel, tmp_path)
        assert sass.count("HGMMA") >= 48 and sass.count("WARPGROUP.DEPBAR") <= sass.count("HGMMA") // 3
        assert "USETMAXREG" in sass and "UTMALDG" in sass
        assert sass.count("STL") + sass.count("LDL") <= 60


def test_parts_of_heads(monkeypatch):
    """Query heads of a KV head are divided where few programs with keys would be left alone at the end; the parts are
    summed by a launch of their own."""
    from aiter_like.ops.attention.triton import flash_attn_bwd, flash_attn_bwd_hopper

    monkeypatch.setattr(flash_attn_bwd, "target_of", lambda _: HOPPER)
    for expected, length, heads, causal in (
            (2, 900, (32, 8), True), (1, 900, (32, 8), False), (1, 1024, (16, 16), True), (1, 4096, (32, 8), True),
            (7, 500, (28, 4), True), (8, 2048, (32, 1), True)):
        q, k = (torch.empty(1, length, count, 128, dtype=BF16, device="meta") for count in heads)
        forward = dense_call(q, torch.empty(1, heads[0], length, device="meta"), q, k, k,
                             window_right=0 if causal else -1)
        _, products, *rest = flash_attn_bwd.flash_attn_bwd(backward_call(forward, q))
        parts = products.arguments[0].shape[2] // heads[1]
        assert parts == expected and products.arguments[0].dtype == (BF16 if parts == 1 else torch.float32)
        assert [each.kernel for each in rest] == [flash_attn_bwd_hopper._add_parts_kernel] * (parts > 1)


def test_what_it_serves():
    from aiter_like.ops.attention.triton.flash_attn_bwd_hopper import serves

    assert all(serves(call_of(head_dim), HOPPER) for head_dim in (40, 64, 96, 128, 256))
    assert serves(call_of(64, window_right=5), HOPPER)
    assert serves(call_of(64, window_right=5, max_seqlen_q=4101), HOPPER)
    assert serves(call_of(64, window_right=-1, max_seqlen_q=4101), HOPPER)
    slopes = torch.empty(24, device="meta")
    for call in (call_of(32), call_of(84), call_of(128, window_left=7), call_of(128, softcap=2.0),
                 call_of(128, dropout_p=0.1), call_of(128, alibi_slopes=slopes), call_of(128, bias=slopes),
                 call_of(128, cu_seqlens_q=slopes),
                 call_of(128, max_seqlen_q=4097), call_of(128, max_seqlen_q=4100, window_right=3),
                 call_of(128, q=torch.empty(2, 4096, 24, 132, dtype=BF16, device="meta")[..., :128])):
        assert not serves(call, HOPPER)
    assert not serves(call_of(128), Target("cuda", "sm_100", 132, 32, False, 0))
