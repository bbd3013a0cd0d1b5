# SPDX-License-Identifier: MIT
"""vLLM's attention backends for GPUs, served by ours, on CPU tensors: run by test_vllm.py in vLLM's environment.

The classes, their arguments and their metadata are vLLM's own; its kernels are not reached. Prints JSON: backend →
largest error, and calls served and left.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import types

import packed_sequences
import torch

HEADS, KV_HEADS, DIM, PAGE, WINDOW = 4, 2, 32, 16, 18
LENGTHS, QUERIES = (20, 7), (1, 7)  # a decoding sequence, and one that begins
METADATA = {"CUSTOM": "triton_attn.TritonAttentionMetadata",
            "ROCM_AITER_FA": "rocm_aiter_fa.AiterFlashAttentionMetadata",
            "ROCM_AITER_UNIFIED_ATTN": "rocm_attn.RocmAttentionMetadata"}
LAYER = types.SimpleNamespace(**{f"_{name}_scale": torch.ones(1) for name in "qkv"})


def main() -> dict[str, dict]:
    from aiter_like.integrations import takeover
    from aiter_like.integrations.vllm import attention

    # What the backends import when they are loaded or made, and only AMD's machines have.
    stand_in("vllm.platforms.rocm", __getattr__=nothing_of)
    backends = {name: getattr(attention, name) for name in METADATA}
    for name in ("aiter", "aiter.ops", "aiter.ops.triton"):
        stand_in(name)
    stand_in("aiter.ops.triton.unified_attention", unified_attention=None)
    results = {}
    for name, backend in backends.items():
        takeover.reset_counters()
        error = largest_error(backend.get_impl_cls(), METADATA[name])
        results[name] = {"error": error, "name": backend.get_name(), "counts": {
            key: [counts.served, counts.fell_back] for key, counts in takeover.counters().items()}}
    return results


def stand_in(name: str, **members: object) -> None:
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(members)


def nothing_of(name: str) -> type:
    """For any question about the GPU: no."""
    if name.startswith("__"):
        raise AttributeError(name)
    return bool


def largest_error(impl_class: type, path: str) -> float:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).bfloat16()

    table = torch.tensor([[4, 1], [2, 5]], dtype=torch.int32)
    slots = torch.cat([table[index, torch.arange(length) // PAGE] * PAGE + torch.arange(length) % PAGE
                       for index, length in enumerate(LENGTHS)])
    key, value = (random(sum(LENGTHS), KV_HEADS, DIM) for _ in range(2))
    query, cache = random(sum(QUERIES), HEADS, DIM), torch.zeros(6, KV_HEADS, PAGE, 2 * DIM, dtype=torch.bfloat16)
    impl = impl_class(HEADS, DIM, DIM ** -0.5, KV_HEADS, None, WINDOW, "auto")
    impl.do_kv_cache_update(LAYER, key, value, cache, slots.long())
    output = torch.empty_like(query)
    impl.forward(LAYER, query, key, value, cache, metadata(path, table), output=output)
    expected = packed_sequences.attention(query, key, value, QUERIES, LENGTHS, WINDOW - 1)  # vLLM counts the own key
    return (output.float() - expected).abs().max().item()


def metadata(path: str, table: torch.Tensor) -> object:
    """vLLM's dataclass; what we do not read is None."""
    module, _, name = path.rpartition(".")
    module = importlib.import_module(f"vllm.v1.attention.backends.{module}")
    made = getattr(module, name)
    starts = torch.tensor([0, QUERIES[0], sum(QUERIES)], dtype=torch.int32)
    known = {"num_actual_tokens": sum(QUERIES), "max_query_len": max(QUERIES), "query_start_loc": starts,
             "max_seq_len": max(LENGTHS), "seq_lens": torch.tensor(LENGTHS, dtype=torch.int32), "block_table": table,
             "causal": True}
    if name == "AiterFlashAttentionMetadata":
        known["decode_metadata"] = module.AiterFlashAttentionDecodeMetadata(QUERIES[0])
        known["prefill_metadata"] = module.AiterFlashAttentionPrefillMetadata(QUERIES[1], LENGTHS[1], starts[1:])
    fields = [field.name for field in dataclasses.fields(made)]
    return made(**{field: known.get(field) for field in fields})


if __name__ == "__main__":
    print(json.dumps(main()))
