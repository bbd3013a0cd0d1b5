# SPDX-License-Identifier: MIT
"""The package's own operators under torch.compile, fake tensors and opcheck, their kernels on the simulated MI300X."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import aiter_like
from aiter_like.ops.attention.call import dense_call


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


def _attention_calls():
    """Name → (function of the tensors, the tensors)."""
    q, k, v = _attention_inputs()
    starts_q, starts_k = (torch.tensor(ends, dtype=torch.int32) for ends in ((0, 5, 17), (0, 20, 33)))
    fp8 = [tensor.to(torch.float8_e4m3fnuz) for tensor in (q, k, v)]
    scale, slopes = torch.ones(1), torch.ones(4)

    def packed(q, k, v):
        return aiter_like.flash_attn_varlen_func(q[0], k[0], v[0], starts_q, starts_k, 12, 20, causal=True,
                                                 return_lse=True, backend="triton")

    def with_cache(q, k, v):
        return aiter_like.flash_attn_with_kvcache(q, k, v, k[:, :1].clone(), v[:, :1].clone(),
                                                  cache_seqlens=starts_k[1:2], backend="triton")

    def with_options(q, k, v):
        return aiter_like.flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), layout="bhsd", round_mode="rtz",
                                          window_size=(9, 0, 1), alibi_slopes=slopes, sink_ptr=slopes,
                                          logits_soft_cap=5.0, cu_seqlens_kv=starts_k[:2], backend="triton")

    def quantised(q, k, v):
        return aiter_like.flash_attn_fp8_pertensor_func(q, k, v, scale, scale, scale, causal=True, backend="triton")

    return {"packed": (packed, (q, k, v)), "with_cache": (with_cache, (q, k, v)),
            "with_options": (with_options, (q, k, v)), "quantised": (quantised, fp8)}


@pytest.mark.parametrize("name", ["packed", "with_cache", "with_options", "quantised"])
def test_attention_functions_compile_whole(name):
    function, inputs = _attention_calls()[name]
    with torch.no_grad():
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")(*(x.clone() for x in inputs))
        eager = function(*(x.clone() for x in inputs))
    pairs = zip(compiled, eager, strict=True) if isinstance(eager, tuple) else [(compiled, eager)]
    assert all(torch.equal(got, expected) for got, expected in pairs)


def test_training_step_compiles_whole():
    """What is differentiated, too, stays in one graph."""
    def loss(q, k, v):
        return aiter_like.flash_attn_func(q, k, v, causal=True, backend="hip").float().square().sum()

    grads = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        inputs = [tensor.requires_grad_() for tensor in _attention_inputs()]
        function(*inputs).backward()
        grads.append([tensor.grad for tensor in inputs])
    assert all(map(torch.equal, *grads))


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
    for call in (dense_call(out, lse, q, k, v, window_right=0, how_v3_bf16_cvt=1), dense_call(out, None, q, k, v)):
        torch.library.opcheck(torch.ops.aiter_like.flash_attn_fwd_out, tuple(call), keyword)
    starts = torch.tensor((0, 5, 17), dtype=torch.int32)
    packed = dense_call(out, None, q, k, v, window_right=0, how_v3_bf16_cvt=1)._replace(
        out=out[0], q=q[0], k=k[0], v=v[0], cu_seqlens_q=starts, cu_seqlens_k=starts, sink=torch.ones(4), softcap=3.0)
    torch.library.opcheck(torch.ops.aiter_like.flash_attn_fwd_out, tuple(packed), {"backend": "triton"})
    x, weight = _norm_inputs()
    torch.library.opcheck(torch.ops.aiter_like.rms_norm_out,
                            (torch.empty_like(x), x, weight, 1e-6, 0, None, None, False), keyword)
    torch.library.opcheck(torch.ops.aiter_like.rms_norm, (x, weight, 1e-6), keyword)


def test_fake_tensors_run_no_kernel():
    with FakeTensorMode() as mode:
        q, k, v = (mode.from_tensor(tensor) for tensor in _attention_inputs())
        out, lse = aiter_like.flash_attn_func(q, k, v, return_lse=True)
    assert (out.shape, out.dtype, lse.shape, lse.dtype) == ((1, 17, 4, 64), torch.bfloat16, (1, 4, 17), torch.float32)
