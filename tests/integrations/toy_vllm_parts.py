# SPDX-License-Identifier: MIT
"""vLLM's classes of latent attention on CPUs, of experts and of the sampler, as far as ours replace methods of them."""

from __future__ import annotations

_LATENT = "vllm.v1.attention.backends.mla"
PARTS = {
    f"{_LATENT}.cpu_mla": ("CPUMLAImpl", ("forward_mqa", "do_kv_cache_update")),
    f"{_LATENT}.prefill.cpu_sdpa": ("CPUSDPAMLAPrefillBackend", ("_ragged_sdpa",)),
    "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method": (
        "UnquantizedFusedMoEMethod", ("apply", "process_weights_after_loading")),
    "vllm.v1.sample.sampler": ("Sampler", ("greedy_sample",)),
    "vllm.v1.sample.ops.topk_topp_sampler": ("TopKTopPSampler",
                                             ("forward_cpu", "forward_cuda", "forward_hip", "forward_native"))}


def modules() -> dict[str, dict[str, type]]:
    """New classes by module and name; each method is `len`, but for the platform's, which names a backend."""
    made = {path: {name: type(name, (), dict.fromkeys(methods, len))} for path, (name, methods) in PARTS.items()}
    choice = {"get_attn_backend_cls": classmethod(lambda cls, selected, *rest: "cpu.path")}
    return made | {"vllm.platforms.cpu": {"CpuPlatform": type("CpuPlatform", (), choice)}}
