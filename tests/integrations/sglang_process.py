# SPDX-License-Identifier: MIT
"""SGLang in a process of its own: `python sglang_process.py '{"case": NAME}'`, run by test_sglang.py.

Each case is a function here or in sglang_aiter.py; what it found out is printed as JSON. SGLang loads its plugins
itself, so this package is reached through its entry points, as in a server.
"""

from __future__ import annotations

import json
import logging
import sys
from types import SimpleNamespace
from typing import Any

import sglang_aiter
import torch
from messages import Messages

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 64


def stand_in_for_torchvision() -> None:
    """torchvision's wheel is built for CUDA: beside a CPU torch its C++ part does not load, and its import asks for two
    operators of that part. Nothing here calls them."""
    if not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        stand_in_for_torchvision.library = library  # what it defines goes with it


def error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative L2 distance; got has the expected shape and is in bf16, expected in float64."""
    assert got.shape == expected.shape and got.dtype == torch.bfloat16 and expected.dtype == torch.float64
    return ((got.double() - expected).norm() / expected.norm()).item()


def random(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))) * scale).bfloat16()


def norm64(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + epsilon).sqrt() * weight.double()


def case_layers() -> dict[str, Any]:
    """Every layer that is taken, against float64; and one that is refused."""
    from sglang.srt.layers.activation import GeluAndMul, SiluAndMul
    from sglang.srt.layers.layernorm import GemmaRMSNorm, RMSNorm

    errors = {}
    x, residual, extra = random(5, 128), random(6, 128)[:5], random(7, 128)[:5]
    for name, layer, plus in (("rms", RMSNorm(128).bfloat16(), 0), ("gemma", GemmaRMSNorm(128).bfloat16(), 1),
                              ("hf", RMSNorm(128, cast_x_before_out_mul=True).bfloat16(), 0)):
        layer.weight.data.copy_(random(128, scale=0.2) + 1 - plus)
        weight = layer.weight.data.double() + plus
        errors[name] = error(layer(x), norm64(x.double(), weight, 1e-6))
        total = x.double() + residual.double()
        kept = x.clone(), residual.clone()
        out, got = layer(x, residual)
        assert torch.equal(x, kept[0]) and torch.equal(residual, kept[1])
        errors[f"{name} add"] = max(error(out, norm64(total, weight, 1e-6)), error(got, total))
    layer = RMSNorm(128).bfloat16()
    total = x.double() + (residual + extra).double()
    out, got = layer(x.view(5, 1, 128), residual.view(5, 1, 128), extra.view(5, 1, 128))
    errors["rms add, addition"] = max(error(out[:, 0], norm64(total, torch.ones(128), 1e-6)), error(got[:, 0], total))
    gate, up = x.double().chunk(2, -1)
    errors["silu"] = error(SiluAndMul()(x), torch.nn.functional.silu(gate) * up)
    for approximate in ("tanh", "none"):
        errors[f"gelu {approximate}"] = error(GeluAndMul(approximate)(x),
                                              torch.nn.functional.gelu(gate, approximate=approximate) * up)
    assert SiluAndMul()(x[:0]).shape == (0, 64)
    refused = RMSNorm(128, var_hidden_size=64).bfloat16()
    expected = x.double() / (x.double()[:, :64].pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    errors["refused"] = max(error(refused(x), expected) for _ in range(2))
    return {"errors": errors | _rotary_errors()}


def _rotary_errors() -> dict[str, float]:
    from sglang.srt.layers.rotary_embedding import get_rope

    errors, positions = {}, torch.tensor([0, 3, 9, 30, 31])
    for is_neox, rotary_dim in ((True, 64), (False, 64), (True, 32)):
        layer = get_rope(HEAD_DIM, rotary_dim, 32, 10000.0, is_neox, dtype=torch.bfloat16)
        query, key = random(5, HEADS * HEAD_DIM), random(5, KV_HEADS * HEAD_DIM)
        cos, sin = layer.cos_sin_cache[positions].double()[:, None].chunk(2, -1)
        expected = []
        for tensor in (query, key):
            head = tensor.double().view(5, -1, HEAD_DIM).clone()
            part = head[..., :rotary_dim]
            halves = (slice(0, rotary_dim // 2), slice(rotary_dim // 2, None))
            first, second = halves if is_neox else (slice(0, None, 2), slice(1, None, 2))
            a, b = part[..., first].clone(), part[..., second].clone()
            part[..., first], part[..., second] = a * cos - b * sin, b * cos + a * sin
            expected.append(head.view(5, -1))
        results = layer(positions, query, key)
        errors[f"rope {'neox' if is_neox else 'gptj'} {rotary_dim}"] = max(map(error, results, expected))
    return errors


def attention64(q, k, v, scale, window=-1, cap=0.0, sinks=None) -> torch.Tensor:
    """Causal attention of one sequence, [tokens, heads, dim] in float64; the queries are its last tokens."""
    k, v = (x.double().repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * scale
    scores = cap * torch.tanh(scores / cap) if cap else scores
    distance = torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0] - torch.arange(k.shape[0])
    hidden = (distance < 0) | (distance > window if window >= 0 else torch.zeros_like(distance, dtype=torch.bool))
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.double()[:, None, None].expand(-1, q.shape[0], 1)), -1)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., :k.shape[0]], v)


class Engine:
    """A token pool of 96 slots in random order, two running requests, and the backend `aiter_like` over them."""

    def __init__(self):
        from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool

        self.pool = MHATokenToKVPool(size=96, page_size=1, dtype=torch.bfloat16, head_num=KV_HEADS, head_dim=HEAD_DIM,
                                     layer_num=1, device="cpu", enable_memory_saver=False)
        self.table = ReqToTokenPool(size=4, max_context_len=40, device="cpu", enable_memory_saver=False)
        self.requests, self.lengths = [2, 1], [0, 0]
        slots = torch.randperm(96, generator=torch.Generator().manual_seed(0)).to(torch.int32) + 1
        self.table.req_to_token[2], self.table.req_to_token[1] = slots[:40], slots[40:80]
        self.keys, self.values = ([torch.empty(0, KV_HEADS, HEAD_DIM) for _ in range(2)] for _ in range(2))
        runner = SimpleNamespace(device="cpu", req_to_token_pool=self.table, token_to_kv_pool=self.pool,
                                 use_mla_backend=False)
        self.backend = ATTENTION_BACKENDS["aiter_like"](runner)

    def step(self, counts: list[int], mode: str, seed: int, is_static: bool = False, layer: dict | None = None,
             **options: Any) -> float:
        """New tokens for both requests through the backend: the error of their attention."""
        from sglang.srt.layers.radix_attention import RadixAttention
        from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode

        torch.manual_seed(seed)
        total, prefixes = sum(counts), self.lengths
        self.lengths = [prefix + count for prefix, count in zip(prefixes, counts, strict=True)]
        q, k, v = (torch.randn(total, heads * HEAD_DIM).bfloat16() for heads in (HEADS, KV_HEADS, KV_HEADS))
        k, v = k.view(-1, KV_HEADS, HEAD_DIM), v.view(-1, KV_HEADS, HEAD_DIM)
        places = [self.table.req_to_token[request, prefix:length] for request, prefix, length
                  in zip(self.requests, prefixes, self.lengths, strict=True)]
        batch = ForwardBatch(
            forward_mode=ForwardMode[mode], batch_size=2, input_ids=torch.zeros(total, dtype=torch.long),
            req_pool_indices=torch.tensor(self.requests), seq_lens=torch.tensor(self.lengths),
            seq_lens_cpu=torch.tensor(self.lengths), seq_lens_sum=sum(self.lengths),
            out_cache_loc=torch.cat(places).long())
        if mode != "DECODE":
            batch.extend_seq_lens, batch.extend_prefix_lens = torch.tensor(counts), torch.tensor(prefixes)
            batch.extend_seq_lens_cpu = counts
        radix = RadixAttention(HEADS, HEAD_DIM, HEAD_DIM ** -0.5, KV_HEADS, 0, **(layer or {}))
        self.backend.init_forward_metadata(batch)
        if is_static:
            self.backend.init_forward_metadata_in_graph(batch)
        out = self.backend.forward(q, k, v, radix, batch, **options).view(total, HEADS, HEAD_DIM)
        for index, (new_k, new_v) in enumerate(zip(k.split(counts), v.split(counts), strict=True)):
            self.keys[index] = torch.cat((self.keys[index], new_k))
            self.values[index] = torch.cat((self.values[index], new_v))
        expected = [attention64(part, *keys, radix.scaling, radix.sliding_window_size, radix.logit_cap,
                                options.get("sinks"))
                    for part, *keys in zip(q.view(total, HEADS, HEAD_DIM).split(counts), self.keys, self.values)]
        return error(out, torch.cat(expected))


def case_attention() -> dict[str, Any]:
    """Prefill, prefill after a prefix, mixed, decode, with every option; and what is left to SGLang's own."""
    from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES

    engine = Engine()
    sinks = torch.linspace(-1, 2, HEADS)
    errors = {
        "prefill": engine.step([7, 3], "EXTEND", 1),
        "after a prefix": engine.step([4, 6], "EXTEND", 2),
        "decode": engine.step([1, 1], "DECODE", 3),
        "mixed": engine.step([5, 1], "MIXED", 4),
        "decode as in a graph": engine.step([1, 1], "DECODE", 5, is_static=True),
        "window": engine.step([3, 2], "EXTEND", 6, layer={"sliding_window_size": 4}),
        "window, decode": engine.step([1, 1], "DECODE", 7, layer={"sliding_window_size": 4}),
        "logit cap": engine.step([2, 3], "EXTEND", 8, layer={"logit_cap": 0.5}),
        "sinks": engine.step([1, 1], "DECODE", 9, sinks=sinks),
    }
    served = _state()
    engine.backend.token_to_kv_pool.kv_cache_layout = "other"
    errors["refused"] = engine.step([2, 1], "EXTEND", 10)
    return {"errors": errors, "served": served, "is_choice": "aiter_like" in ATTENTION_BACKEND_CHOICES,
            "own": type(engine.backend).__mro__[1].__name__}


def case_latent() -> dict[str, Any]:
    """A model with latent attention gets SGLang's own backend."""
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    runner = SimpleNamespace(device="cpu", req_to_token_pool=None, token_to_kv_pool=None, use_mla_backend=True)
    return {"is_own": type(ATTENTION_BACKENDS["aiter_like"](runner)) is TorchNativeAttnBackend}


def case_diffusion() -> dict[str, Any]:
    """Self and cross attention of a layer of Wan 2.1 (head dimension 128), packed sequences, and a refused option."""
    from sglang.multimodal_gen.runtime.layers.attention import selector
    from sglang.multimodal_gen.runtime.platforms import AttentionBackendEnum, plugins

    plugins.load_plugins()
    plugins.apply_plugin_hooks()
    with selector.global_force_attn_backend_context_manager(AttentionBackendEnum.TORCH_SDPA):
        backend = selector.get_attn_backend(128, torch.bfloat16)
    layer = backend.get_impl_cls()(num_heads=2, head_size=128, causal=False, softmax_scale=128 ** -0.5)
    errors = {}
    for name, length in (("self", 75), ("cross", 33)):
        q, k, v = random(1, 75, 2, 128), random(1, length, 2, 128), random(2, length, 2, 128)[:1]
        errors[name] = error(layer.forward(q, k, v, None), _full64(q[0], k[0], v[0])[None])
    q, k, v = random(40, 2, 128), random(41, 2, 128)[:40], random(42, 2, 128)[:40]
    bounds = [0, 13, 40]
    packed = layer.forward_varlen(q, k, v, cu_seqlens=torch.tensor(bounds), max_seqlen=27)
    errors["packed"] = error(packed, torch.cat([_full64(q[a:b], k[a:b], v[a:b])
                                                for a, b in zip(bounds, bounds[1:], strict=False)]))
    served = _state()
    layer.dropout = 1e-9
    errors["refused"] = error(layer.forward(q[None], k[None], v[None], None)[0], _full64(q, k, v))
    return {"errors": errors, "served": served, "backend": backend.get_enum().name,
            "is_own": backend.__name__ == "SDPABackend"}


def _full64(q, k, v) -> torch.Tensor:
    q, k, v = (x.double() for x in (q, k, v))
    return torch.einsum("hqk,khd->qhd", (torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5).softmax(-1), v)


def case_undone() -> dict[str, Any]:
    """uninstall() and install() again, in one process."""
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
    from sglang.srt.layers.layernorm import RMSNorm

    from aiter_like import integrations

    x, found = random(2, 128), []
    for act in (integrations.uninstall, integrations.install):
        act()
        RMSNorm(128).bfloat16()(x)
        found.append(["sglang.RMSNorm" in integrations.status().taken, "aiter_like" in ATTENTION_BACKENDS])
    return {"found": found}


def prepare_out_of_tree() -> None:
    """A platform that another package would bring."""
    from sglang.srt import platforms

    class Toy(platforms.SRTPlatform):
        device_name = device_type = "cpu"

        def is_out_of_tree(self) -> bool:
            return True

        def get_dispatch_key_name(self) -> str:
            return "toy"

    platforms._current_platform = Toy()


def case_out_of_tree() -> dict[str, Any]:
    """The layers on a platform whose operators come from a registry."""
    from sglang.kernels.fused_op import BaseFusedOp

    result = case_layers()
    return result | {"registered": sorted(cls.__name__ for cls in BaseFusedOp._oot_forward_registry["toy"])}


def _state() -> dict[str, Any]:
    """Calls counted, kernels launched, and what SGLang's registry of hooks holds."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    state = {"hooks": sorted(HookRegistry._hooks), "is_loaded": "aiter_like.integrations.sglang" in sys.modules,
             "counts": {}, "kernels": {}}
    if state["is_loaded"]:
        from aiter_like import integrations, sim

        status = integrations.status()
        state |= {"counts": {name: [counts.served, counts.fell_back] for name, counts in status.taken.items()
                             if name.startswith("sglang.")},  # transformers is loaded too
                  "denied": status.denied, "engines": status.engines,
                  "kernels": {name: counts["launches"] for name, counts in sim.counters().items()}}
    return state


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Loads SGLang's plugins as its server does, and runs one case."""
    messages = Messages()
    logging.getLogger("aiter_like").addHandler(messages)
    stand_in_for_torchvision()
    cases = vars(sglang_aiter) | globals()
    if prepare := cases.get(f"prepare_{request['case']}"):
        prepare()
    from sglang.srt.plugins import load_plugins

    load_plugins()
    result = cases[f"case_{request['case']}"]()
    return {"messages": messages.found, **_state(), **result}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
