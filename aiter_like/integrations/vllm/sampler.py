# SPDX-License-Identifier: MIT
"""vLLM's sampler: the largest logit, and the draw after top-k and top-p, where tokens need not follow from seeds."""

import importlib
from typing import Any

import torch
from torch import Generator, Tensor

import aiter_like
from aiter_like.errors import UnsupportedError
from aiter_like.integrations import takeover

_OWNER, _OP = "vllm", "sampling_from_probs"

# The methods that a platform chooses between when a model is made.
_METHODS = {"cpu": ("forward_cpu", "forward_native"), "cuda": ("forward_cuda", "forward_native"),
            "rocm": ("forward_hip", "forward_native")}


def take_methods(platform: str) -> None:
    """Puts ours before vLLM's.

    Raises:
        ImportError, AttributeError: this vLLM has another sampler.
    """
    sampler = importlib.import_module("vllm.v1.sample.sampler").Sampler
    draw = importlib.import_module("vllm.v1.sample.ops.topk_topp_sampler").TopKTopPSampler
    takeover.take_attribute(sampler, "greedy_sample", "vllm.greedy_sample", greedy_sample, "sample", _OWNER)
    for attribute in _METHODS[platform]:
        takeover.take_attribute(draw, attribute, "vllm.sampler", sample, _OP, _OWNER)


def greedy_sample(logits: Tensor) -> Tensor:
    """`Sampler.greedy_sample`: int64, as vLLM's own."""
    out = torch.empty(logits.shape[0], dtype=torch.int32, device=logits.device)
    aiter_like.greedy_sample(out, logits)
    return out.long()


def sample(sampler: Any, logits: Tensor, generators: dict[int, Generator], k: Tensor | None,
           p: Tensor | None) -> tuple[Tensor, None]:
    """`TopKTopPSampler.forward`: p is a share of what top-k keeps. The random numbers are of torch's generator.

    Raises:
        UnsupportedError: requests have generators of their own, the filtered logits are wanted too, noise in 64 bits
            is, or a graph is captured.
    """
    asked = {"generators of requests": bool(generators),
             f"logprobs_mode {sampler.logprobs_mode}": sampler.logprobs_mode.startswith("processed"),
             "noise in 64 bits": sampler.use_fp64_gumbel,
             "a graph": logits.is_cuda and torch.cuda.is_current_stream_capturing()}
    if any(asked.values()):
        raise UnsupportedError(f"the sampler with {', '.join(name for name, is_asked in asked.items() if is_asked)}",
                               _OP)
    probs = aiter_like.softmax(logits, dtype=torch.float32)
    if k is not None and p is not None:
        probs = aiter_like.top_k_renorm_probs(probs, k, 0)
        k = None
    tokens = aiter_like.top_k_top_p_sampling_from_probs(probs, None, k, 0, p, 1.0)
    return tokens.long(), None
