# SPDX-License-Identifier: MIT
"""The package's own operators under torch.compile, fake tensors and opcheck, their kernels on the simulated MI300X."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import aiter_like
from aiter_like.ops import attention_fwd


def _attention_inputs(seed: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(1, 17, 4, 64, generator=generator).bfloat16()
    k, v = torch.randn(2, 1, 33, 2, 64, generator=generator).bfloat16()
    return q, k, v


def _norm_inputs(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, 96, generator=generator).bfloat16(), torch.randn(96, generator=generator).bfloat16()


@pytest.mark.parametrize("dynamo_backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("backend", ["hip", "triton"])
def test_rms_norm_compiles_whole(backend, dynamo_backend):
    def model(x, weight):
        return aiter_like.rms_norm(x * 2, weight, 1e-6, backend=backend) + 1

    x, weight = _norm_inputs()
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend=dynamo_backend)(x, weight)
        assert torch.equal(compiled, model(x, weight))


@pytest.mark.parametrize("return_lse", [False, True])
@pytest.mark.parametrize("backend", ["hip", "triton"])
def test_flash_attn_func_compiles_whole(backend, return_lse):
    def model(q, k, v):
        return aiter_like.flash_attn_func(q * 2, k, v, causal=True, return_lse=return_lse, backend=backend)

    inputs = _attention_inputs()
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(*inputs)
        eager = model(*inputs)
    for got, expected in zip(compiled if return_lse else (compiled,), eager if return_lse else (eager,), strict=True):
        assert torch.equal(got, expected)


def test_compiled_graph_names_our_operators():
    """The operators stand in the graph under our namespace, not what they are made of."""
    targets = []

    def keep(graph, _inputs):
        targets.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    def model(q, k, v, x, weight):
        return aiter_like.flash_attn_func(q, k, v), aiter_like.rms_norm(x, weight, 1e-6)

    with torch.no_grad():
        torch.compile(model, fullgraph=True, backend=keep)(*_attention_inputs(), *_norm_inputs())
    assert {name.split(".")[1] for name in targets if name.startswith("aiter_like.")} == {
        "flash_attn_fwd_out", "rms_norm_out"}


@pytest.mark.parametrize("backend", ["hip", "triton"])
def test_opcheck(backend):
    q, k, v = _attention_inputs()
    out, lse = torch.empty_like(q), torch.empty(1, 4, 17)
    keyword = {"backend": backend}
    for args in ((out, lse, q, k, v, True, 1), (out, None, q, k, v, False, 0)):
        torch.library.opcheck(torch.ops.aiter_like.flash_attn_fwd_out, attention_fwd._dense(*args), keyword)
    x, weight = _norm_inputs()
    torch.library.opcheck(torch.ops.aiter_like.rms_norm_out,
                            (torch.empty_like(x), x, weight, 1e-6, 0, None, None, False), keyword)
    torch.library.opcheck(torch.ops.aiter_like.rms_norm, (x, weight, 1e-6), keyword)


def test_fake_tensors_run_no_kernel():
    with FakeTensorMode() as mode:
        q, k, v = (mode.from_tensor(tensor) for tensor in _attention_inputs())
        out, lse = aiter_like.flash_attn_func(q, k, v, return_lse=True)
    assert (out.shape, out.dtype, lse.shape, lse.dtype) == ((1, 17, 4, 64), torch.bfloat16, (1, 4, 17), torch.float32)
