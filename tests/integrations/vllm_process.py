# SPDX-License-Identifier: MIT
"""One vLLM in a process of its own: `python vllm_process.py REQUEST`, run by test_vllm.py in vLLM's environment.

REQUEST is JSON: `model` (a folder), `prompts` (lists of token ids), `options` of LLM, `sampling` (of SamplingParams),
`break_hook` (vLLM's registry of attention backends raises), `refuse` (our attention refuses every second call),
`rotate_by_formula` (see there). Prints JSON.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

from messages import Messages

NEW_TOKENS, BATCH_TOKENS = 4, 8  # less than the prompts together, so that one is prefilled while another decodes
LLM_OPTIONS = {"skip_tokenizer_init": True, "enforce_eager": True, "dtype": "bfloat16", "max_model_len": 32,
               "max_num_batched_tokens": BATCH_TOKENS, "max_num_seqs": 2, "enable_prefix_caching": False,
               "gpu_memory_utilization": 0.25}  # on CPUs: of the memory that must be free


def main(request: dict[str, Any]) -> dict[str, Any]:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the model in this process: its counters are ours to read
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
    from vllm import LLM, SamplingParams

    messages = Messages()
    logging.getLogger("aiter_like").addHandler(messages)
    if request.get("break_hook"):
        _break_hook()
    if request.get("rotate_by_formula"):
        _rotate_by_formula()
    llm = LLM(request["model"], **LLM_OPTIONS | request.get("options", {}))
    if request.get("refuse"):
        _refuse_every_second_attention()
    sampling = SamplingParams(**{"temperature": 0, **request.get("sampling", {})}, max_tokens=NEW_TOKENS, logprobs=5,
                              detokenize=False, ignore_eos=True)
    results = llm.generate([{"prompt_token_ids": prompt} for prompt in request["prompts"]], sampling, use_tqdm=False)
    sequences = [result.outputs[0] for result in results]
    return {
        "tokens": [list(sequence.token_ids) for sequence in sequences],
        "logprobs": [[{token: value.logprob for token, value in step.items()} for step in sequence.logprobs]
                     for sequence in sequences],
        "messages": messages.found, **_state()}


def _state() -> dict[str, Any]:
    from vllm import envs
    from vllm.model_executor.custom_op import op_registry_oot
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    state = {"classes": sorted(op_registry_oot), "is_loaded": "aiter_like.integrations.vllm" in sys.modules,
             "backends": [name for name, member in AttentionBackendEnum.__members__.items() if member.is_overridden()],
             "counts": {}, "kernels": {}, "key": envs.compile_factors().get("AITER_LIKE")}
    if state["is_loaded"]:
        from aiter_like import integrations, sim

        state["counts"] = {name: [counts.served, counts.fell_back]
                           for name, counts in integrations.status().taken.items()}
        state["kernels"] = {name: counts["launches"] for name, counts in sim.counters().items()}
    return state


def _rotate_by_formula() -> None:
    """vLLM's own rotary kernel for CPUs takes the heads of [tokens, heads, head_dim], as latent attention has them, for
    tokens: its formula in torch instead."""
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    RotaryEmbedding.forward_cpu = RotaryEmbedding.forward_native


def _break_hook() -> None:
    from vllm.v1.attention.backends import registry

    def register_backend(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("the registry is closed")

    registry.register_backend = register_backend


def _refuse_every_second_attention() -> None:
    import aiter_like
    from aiter_like.errors import UnsupportedError

    ours, calls = aiter_like.unified_attention, []

    def unified_attention(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        if len(calls) % 2:
            raise UnsupportedError("every second call is refused")
        return ours(*args, **kwargs)

    aiter_like.unified_attention = unified_attention


if __name__ == "__main__":  # vLLM may start processes that import this again
    print(json.dumps(main(json.loads(sys.argv[1]))))
