# SPDX-License-Identifier: MIT
"""flash_attn_bwd, one call after the other: those that look alike go straight to the compiled kernels."""

import pytest
import torch
from attention_bwd_cases import BF16, make

from aiter_like.ops.attention.flash_attn_bwd import flash_attn_bwd
from aiter_like.testing.attention_bwd import check_attention_gradients


@pytest.mark.parametrize("features", (
    {"lengths": (70, 40), "sink": True, "window": (-1, 0)},
    {"packed": ((70, 3), (40, 9)), "bias": "shared", "alibi": 2, "dropout_p": 0.2, "dlse": True}),
    ids=("dense", "packed"))
def test_repeated_calls(device, run, monkeypatch, features):
    """Of the same sizes: other numbers, other addresses. Launches are planned once per alignment; then another length.
    """
    from aiter_like.jit.triton_launch import Launch

    launches = 7 if "alibi" in features else 4  # zeros of dq, dk and dv and _far_kernel, or the sum of dsink
    planned, original = [], Launch.planned
    monkeypatch.setattr(Launch, "planned", lambda self, trace: planned.append(self.kernel) or original(self, trace))
    flash_attn_bwd.forget_plans()  # no plan of another test
    memory = []  # kept: each call has addresses of its own
    for seed, offset in enumerate((0, 0, 3, 8, 1, 0)):
        call = make(device, heads=(2, 1), head_dims=(32, 32), seed=seed, **features)
        for name in ("dq", "dk", "dout", "q", "v") if offset else ():
            memory.append(torch.empty(getattr(call, name).numel() + offset, dtype=BF16, device=device))
            call = call._replace(**{name: memory[-1][offset:].view_as(getattr(call, name)).copy_(getattr(call, name))})
        memory.append(call)
        run("triton", flash_attn_bwd, call)
        check_attention_gradients(call)
        if seed == 1:
            assert len(planned) == launches
    assert len(planned) == 2 * launches
    shorter = {name: ((60, 50), (30, 9)) if name == "packed" else (60, 30)
               for name in ("packed", "lengths") if name in features}
    call = make(device, heads=(2, 1), head_dims=(32, 32), **{**features, **shorter})
    run("triton", flash_attn_bwd, call)
    check_attention_gradients(call)
