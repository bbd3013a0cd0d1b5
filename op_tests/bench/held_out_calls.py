# SPDX-License-Identifier: MIT
"""What held_out.py times: for each operator our public function on a call's tensors, and what torch and others have.

An output that our function's signature takes is given to it once; a peer's is as its own signature has it. Layouts that
a user prepares once (pages gathered for kernels that know none) are made outside the time.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import bench_peers
import torch
from torch import Tensor
from torch.nn import functional

import aiter_like
from aiter_like.dispatch.tuning import Tuning

Compiler = Callable[[Callable], Callable]


@dataclass(frozen=True)
class Calls:
    """Ours and theirs on the same tensors.

    Attributes:
        ours: the public function with its arguments, as `explain` takes them.
        peers: name → call.
        result: of what ours returned: the operator's first output.
        theirs: the same of what a peer returned; None: it cannot be compared.
    """

    ours: partial
    peers: dict[str, Callable[[], Any]] = field(default_factory=dict)
    result: Callable[[Any], Tensor] = lambda result: result[0] if isinstance(result, tuple) else result
    theirs: Callable[[Any], Tensor] | None = lambda result: result[0] if isinstance(result, tuple | list) else result


def compiler() -> Compiler:
    """torch.compile's best for fixed shapes, each function once; every shape compiles it anew."""
    torch._dynamo.config.recompile_limit = 1000
    return functools.cache(partial(torch.compile, dynamic=False, options={"max_autotune": True}))


def _rms_stock(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return functional.rms_norm(x.float(), x.shape[-1:], weight.float(), epsilon).to(x.dtype)


def _add_rms_stock(x: Tensor, weight: Tensor, epsilon: float, residual: Tensor) -> tuple[Tensor, Tensor]:
    total = x.float() + residual.float()
    return functional.rms_norm(total, x.shape[-1:], weight.float(), epsilon).to(x.dtype), total.to(x.dtype)


def _rms_norm(call: Any, compiled: Compiler) -> Calls:
    x, given = call.input, (call.input, call.weight, call.epsilon)
    if call.residual_in is None:
        return Calls(partial(aiter_like.rms_norm, *given), {
            "torch": partial(functional.rms_norm, x, x.shape[-1:], *given[1:]),
            "torch.compile": partial(compiled(_rms_stock), *given), **bench_peers.calls("rms_norm", *given)})
    return Calls(partial(aiter_like.rmsnorm2d_fwd_with_add, call.out, x, call.residual_in, call.residual_out,
                         *given[1:]),
                 {"torch.compile": partial(compiled(_add_rms_stock), *given, call.residual_in),
                  **bench_peers.calls("add_rms_norm", *given, call.residual_in)}, lambda _: call.out)


def _add_layer_stock(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, residual: Tensor) -> Tensor:
    total = x.float() + residual.float()
    return functional.layer_norm(total, x.shape[-1:], weight.float(), bias.float(), epsilon).to(x.dtype)


def _layer_norm(call: Any, compiled: Compiler) -> Calls:
    given = (call.input, call.input.shape[-1:], call.weight, call.bias, call.epsilon)
    args = (call.input, call.weight, call.bias, call.epsilon)
    if call.residual_in is not None:
        peers = {"torch.compile": partial(compiled(_add_layer_stock), *args, call.residual_in)}
        return Calls(partial(aiter_like.layernorm2d_fwd_with_add, call.out, call.input, call.residual_in,
                             call.residual_out, *args[1:]), peers, lambda _: call.out)
    return Calls(partial(aiter_like.layer_norm, *args), {
        "torch": partial(functional.layer_norm, *given),
        "torch.compile": partial(compiled(functional.layer_norm), *given), **bench_peers.calls("layer_norm", *args)})


def _silu_stock(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return functional.silu(gate) * up


def _gelu_stock(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return functional.gelu(gate) * up


def _act_and_mul(call: Any, compiled: Compiler) -> Calls:
    name, stock = f"{call.activation}_and_mul", _gelu_stock if call.activation == "gelu" else _silu_stock
    return Calls(partial(getattr(aiter_like, name), call.out, call.input),
                 {"torch.compile": partial(compiled(stock), call.input), **bench_peers.calls(name, call.input)},
                 lambda _: call.out)


def _quant_stock(x: Tensor, group_size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    top = torch.finfo(dtype).max
    groups = x.float().unflatten(-1, (-1, group_size or x.shape[-1]))
    scale = groups.abs().amax(-1).clamp(min=2.0**-110) / top
    return (groups / scale.unsqueeze(-1)).clamp(-top, top).to(dtype).flatten(-2), scale


def _row_quant(call: Any, compiled: Compiler) -> Calls:
    dtype, size = call.out.dtype, call.group_size
    ours = partial(aiter_like.per_group_quant_hip, group_size=size) if size else aiter_like.per_token_quant_hip
    peers = {"torch.compile": partial(compiled(_quant_stock), call.input, size, dtype)}
    return Calls(partial(ours, call.input, quant_dtype=dtype),
                 peers | (bench_peers.calls("group_quant", call.input, size, dtype) if size else {}))


def _silu_quant_stock(x: Tensor, group_size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    gate, up = x.float().chunk(2, -1)
    return _quant_stock(functional.silu(gate) * up, group_size, dtype)


def _act_and_mul_quant(call: Any, compiled: Compiler) -> Calls:
    return Calls(partial(aiter_like.act_mul_and_fp8_group_quant, call.input, "silu", call.group_size), {
        "torch.compile": partial(compiled(_silu_quant_stock), call.input, call.group_size, call.out.dtype)})


def _rope_stock(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    def turned(tensor: Tensor) -> Tensor:
        first, second = tensor.float().chunk(2, -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(tensor.dtype)

    return turned(x), turned(y)


def _rope(call: Any, compiled: Compiler) -> Calls:
    x, y, cos, sin = call.input, call.input_y, call.cos, call.sin
    positions = torch.arange(len(x), device=x.device)
    style = call.rotate_style
    stock = {} if style else {"torch.compile": partial(compiled(_rope_stock), x, y, cos, sin)}
    return Calls(partial(aiter_like.rope_cached_2c_fwd, x, y, cos, sin, style, True, False), {
        **stock, **bench_peers.calls("rope", x[:, 0], y[:, 0], cos[:, 0, 0], sin[:, 0, 0], positions, style == 0)})


def _gemm_a16w16(call: Any, compiled: Compiler) -> Calls:
    return Calls(partial(aiter_like.gemm_a16w16, call.a, call.b),
                 {"cuBLAS": partial(functional.linear, call.a, call.b)})


def _int8_stock(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor) -> Tensor:
    return (torch._int_mm(a, b).float() * a_scale[:, None] * b_scale).bfloat16()


def _gemm_a8w8(call: Any, compiled: Compiler) -> Calls:
    a, b, a_scale, b_scale = call[1:5]
    if a.dtype == torch.int8:
        peers = {"cuBLAS, torch.compile": partial(compiled(_int8_stock), a, b.t(), a_scale, b_scale)}
    else:
        peers = {"cuBLAS": partial(torch._scaled_mm, a, b.t(), a_scale[:, None], b_scale[None],
                                   out_dtype=torch.bfloat16, use_fast_accum=call.use_fast_accum)}
    return Calls(partial(aiter_like.gemm_a8w8, a, b, a_scale, b_scale, use_fast_accum=call.use_fast_accum), peers)


def _gemm_a8w8_blockscale(call: Any, compiled: Compiler) -> Calls:
    a, b, a_scale, b_scale = call[1:5]
    return Calls(partial(aiter_like.gemm_a8w8_blockscale, a, b, a_scale, b_scale), {
        "cuBLAS": partial(torch._scaled_mm, a, b.t(), a_scale, b_scale.t(), out_dtype=torch.bfloat16),
        **bench_peers.calls("gemm_a8w8_blockscale", *call[:5])})


def _heads_first(*tensors: Tensor) -> list[Tensor]:
    return [tensor.detach().transpose(1, 2).contiguous() for tensor in tensors]


def _flash_attn_fwd(call: Any, compiled: Compiler) -> Calls:
    return Calls(partial(aiter_like.flash_attn_func, call.q, call.k, call.v, causal=call.mask == "causal"),
                 bench_peers.torch_attention(*_heads_first(call.q, call.k, call.v), call.mask == "causal"),
                 theirs=lambda out: out.transpose(1, 2))


def _gradients(forward: Callable[[], Tensor], tensors: list[Tensor], dout: Tensor) -> Callable[[], Any]:
    """A call of the backward alone; its forward runs in the first one."""
    results: list[Tensor] = []

    def call() -> Any:
        with torch.enable_grad():
            if not results:
                results.append(forward())
            return torch.autograd.grad(results[0], tensors, dout, retain_graph=True)

    return call


def _flash_attn_bwd(call: Any, compiled: Compiler) -> Calls:
    is_causal = call.forward.mask == "causal"
    given = [one.detach().requires_grad_() for one in (call.q, call.k, call.v)]
    ours = _gradients(partial(aiter_like.flash_attn_func, *given, causal=is_causal), given, call.dout)
    theirs = [one.requires_grad_() for one in _heads_first(call.q, call.k, call.v)]
    dout, = _heads_first(call.dout)
    return Calls(partial(ours), {name: _gradients(forward, theirs, dout) for name, forward in
                                 bench_peers.torch_attention(*theirs, is_causal).items()},
                 theirs=lambda gradients: gradients[0].transpose(1, 2))


def _paged_attention(call: Any, compiled: Compiler) -> Calls:
    """Torch's kernels see keys and values that lie as they want them: what no paging could do better."""
    used = slice(call.max_seqlen_k)
    k, v = (cache[call.block_table.long()].flatten(1, 2)[:, used].transpose(1, 2) for cache in (call.k, call.v))
    peers = {"SDPA, no pages": partial(functional.scaled_dot_product_attention, call.q.unsqueeze(2), k, v,
                                       enable_gqa=True)}
    return Calls(partial(aiter_like.paged_attention, call.q, call.k, call.v, call.block_table, call.seqlens_k,
                         call.max_seqlen_k), peers | bench_peers.calls("paged_attention", call))


def _mla_decode(call: Any, compiled: Compiler) -> Calls:
    return Calls(
        partial(aiter_like.mla_decode_fwd, call.q, call.kv, call.out, call.qo_indptr, call.kv_indptr, call.kv_indices,
                call.kv_last_page_lens, 1, call.page_size, sm_scale=call.softmax_scale),
        {"products, no pages": bench_peers.mla_products(call), **bench_peers.calls("mla_decode", call)},
        lambda _: call.out)


def _softmax(call: Any, compiled: Compiler) -> Calls:
    return Calls(partial(aiter_like.softmax, call.input), {
        "torch": partial(torch.softmax, call.input, -1),
        "torch.compile": partial(compiled(torch.softmax), call.input, -1)})


def _topk(call: Any, compiled: Compiler) -> Calls:
    count = call.indices.shape[-1]
    return Calls(partial(aiter_like.topk, call.input, count), {"torch": partial(torch.topk, call.input, count)},
                 lambda result: result[1], lambda result: result[1])


def _sample(call: Any, compiled: Compiler) -> Calls:
    return Calls(partial(aiter_like.greedy_sample, call.out, call.input),
                 {"torch": partial(torch.argmax, call.input, -1)}, lambda _: call.out)


def _conv_stock(x: Tensor, state: Tensor, weight: Tensor, bias: Tensor, sizes: tuple[int, ...]) -> Any:
    padded = torch.cat((state, x), 1)[None]
    out = functional.silu(functional.conv1d(padded, weight.unsqueeze(1), bias, groups=len(weight)))[0].t()
    return tuple(part.contiguous() for part in out.split(sizes, 1))


def _causal_conv1d(call: Any, compiled: Compiler) -> Calls:
    """Of one sequence, whose state the operator writes back: a repeated call goes on with it in the same time."""
    sizes = tuple(one.shape[1] for one in (call.q, call.k, call.v))
    state, own = call.conv_states[0].clone(), call.conv_states.clone()
    peers = {"cuDNN, torch.compile": partial(compiled(_conv_stock), call.x, state, call.weight, call.bias, sizes)}
    return Calls(partial(aiter_like.causal_conv1d_split_qkv, call.x, call.weight, call.bias, own, call.query_start_loc,
                         sizes[0], has_initial_state=call.has_initial_state), peers)


class ExpertsCall(NamedTuple):
    """A layer of experts: fused_moe has no operator of its own that could be tuned."""

    out: Tensor
    hidden: Tensor
    w1: Tensor
    w2: Tensor
    weights: Tensor
    ids: Tensor


def _experts_case(key: dict[str, Any], device: torch.device, seed: int) -> ExpertsCall:
    generator = torch.Generator(device).manual_seed(seed)
    normal = partial(torch.randn, generator=generator, device=device, dtype=torch.bfloat16)
    tokens, experts, k, inner = key["tokens"], key["experts"], key["k"], key["inner"]
    chosen = torch.rand(tokens, experts, generator=generator, device=device).topk(key["slots"], 1)
    w1, w2 = normal(experts, 2 * inner, k).mul_(k**-0.5), normal(experts, k, inner).mul_(inner**-0.5)
    hidden = normal(tokens, k)
    return ExpertsCall(torch.empty_like(hidden), hidden, w1, w2, chosen.values.softmax(1), chosen.indices.int())


def experts_reference(call: ExpertsCall, wide: torch.dtype = torch.float64) -> Tensor:
    """The formula, expert by expert."""
    out = torch.zeros(call.hidden.shape, dtype=wide, device=call.hidden.device)
    for expert, (w1, w2) in enumerate(zip(call.w1, call.w2)):
        token, slot = (call.ids == expert).nonzero(as_tuple=True)
        gate, up = (call.hidden[token].to(wide) @ w1.to(wide).t()).chunk(2, 1)
        part = functional.silu(gate) * up @ w2.to(wide).t()
        out.index_add_(0, token, part * call.weights[token, slot, None].to(wide))
    return out


def _experts_needs(*call: Any) -> tuple[int, int]:
    call = ExpertsCall(*call)
    touched = len(call.ids.unique())
    return (touched * (call.w1[0].nbytes + call.w2[0].nbytes) + 2 * call.hidden.nbytes,
            2 * call.ids.numel() * (call.w1[0].numel() + call.w2[0].numel()))


def _experts_stock(call: ExpertsCall) -> Tensor:
    """torch's grouped products over pairs that are sorted by expert."""
    ids, order = call.ids.flatten().sort(stable=True)
    experts = torch.arange(len(call.w1), dtype=ids.dtype, device=ids.device)
    ends = torch.searchsorted(ids, experts, right=True, out_int32=True)
    token = order // call.ids.shape[1]
    inner = _silu_stock(torch._grouped_mm(call.hidden[token], call.w1.transpose(1, 2), offs=ends))
    parts = torch._grouped_mm(inner, call.w2.transpose(1, 2), offs=ends) * call.weights.flatten()[order, None]
    return torch.zeros(call.hidden.shape, device=parts.device).index_add_(0, token, parts.float()).bfloat16()


def _fused_moe(call: ExpertsCall, compiled: Compiler) -> Calls:
    given = call.hidden, call.w1, call.w2, call.weights, call.ids
    return Calls(partial(aiter_like.fused_moe, *given), {"_grouped_mm": partial(_experts_stock, call),
                                                         **bench_peers.calls("fused_moe", *given)})


EXPERTS = Tuning(_experts_case, _experts_needs)

CALLS: dict[str, Callable[[Any, Compiler], Calls]] = {
    "rms_norm": _rms_norm, "layer_norm": _layer_norm, "act_and_mul": _act_and_mul, "row_quant": _row_quant,
    "act_and_mul_quant": _act_and_mul_quant, "rope": _rope, "gemm_a16w16": _gemm_a16w16, "gemm_a8w8": _gemm_a8w8,
    "gemm_a8w8_blockscale": _gemm_a8w8_blockscale, "flash_attn_fwd": _flash_attn_fwd, "flash_attn_bwd": _flash_attn_bwd,
    "paged_attention": _paged_attention, "mla_decode": _mla_decode, "fused_moe": _fused_moe, "softmax": _softmax,
    "topk": _topk, "sample": _sample, "causal_conv1d": _causal_conv1d}
