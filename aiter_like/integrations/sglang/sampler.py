# SPDX-License-Identifier: MIT
"""Serves SGLang's sampler through a hook around the function of its "pytorch" sampling backend, ROCm's default.

UnsupportedError, raised before anything is written, leaves a call to that function.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from aiter_like.errors import UnsupportedError
from aiter_like.integrations import takeover
from aiter_like.ops.sampling.sampling_from_probs import top_k_top_p_sampling_from_probs

TARGET = "sglang.srt.layers.sampler.top_k_top_p_min_p_sampling_from_probs_torch"
OP = "sampling_from_probs"


def hook(is_on: Callable[[], bool]) -> dict[str, Callable]:
    """Target → hook, whose functions get SGLang's own as their first argument."""

    def stock(own: Callable, *args: Any, **kwargs: Any) -> Any:
        return own(*args, **kwargs)

    def ours(own: Callable, probs: Tensor, top_ks: Tensor, top_ps: Tensor, min_ps: Tensor, need_min_p_sampling: bool,
             sampling_seed: Tensor | None = None, positions: Tensor | None = None) -> Any:
        if not is_on() or torch.compiler.is_compiling():
            return takeover.LEFT
        return sample(probs, top_ks, top_ps, min_ps if need_min_p_sampling else None, sampling_seed)

    served = takeover.take("sglang.sampler", ours, stock, OP)
    return {} if served is stock else {TARGET: served}


def sample(probs: Tensor, top_ks: Tensor, top_ps: Tensor, min_ps: Tensor | None,
           sampling_seed: Tensor | None) -> Tensor:
    """The tokens of a batch, int32; random numbers from torch's generator, as SGLang's own are.

    Raises:
        UnsupportedError: tokens are to follow from seeds as SGLang's own do, or a graph is captured.
    """
    if sampling_seed is not None:
        raise UnsupportedError("the sampler with seeds of SGLang's deterministic mode is not served", OP)
    if probs.is_cuda and torch.cuda.is_current_stream_capturing():
        raise UnsupportedError("the sampler in a graph, which would repeat its random numbers, is not served", OP)
    return top_k_top_p_sampling_from_probs(probs, None, top_ks, 0, top_ps, 1.0, min_p=0.0 if min_ps is None else min_ps)
