# SPDX-License-Identifier: MIT
"""The calls of a step of a dense model in a process without a compiler, run by test_build_served.py as
`model_calls.py NAME TP TOKENS`: prints what was wrong, "ok" at the end.
"""

import sys
from collections.abc import Iterator

import first_calls
import torch
from torch import Tensor

import aiter_like
from aiter_like.modules import build
from aiter_like.tuning import models

OPERATORS = ("act_and_mul", "flash_attn_fwd", "gemm_a16w16", "gemm_a16w16_skinny", "paged_attention", "renorm_probs",
             "reshape_and_cache", "rms_norm", "rope", "fused_qk_rope_cache", "sample", "sampling_from_probs", "softmax",
             "unified_attention")
"""The modules of which these calls take some."""

_PAGE = 16
_LONGEST = 45  # keys of a sequence that decodes: three pages


def calls(model: models.Model, tp: int, tokens: int) -> Iterator[tuple[str, tuple, bool]]:
    """(function, arguments, whether a reference gives the same numbers) of one layer on one of `tp` GPUs, decoding
    `tokens` sequences or beginning one of so many, and of what follows the last layer.
    """
    torch.manual_seed(11)
    hidden, inner, dim = model.hidden_size, model.intermediate_size // tp, model.head_dim
    heads, kv_heads, vocabulary = model.num_heads // tp, max(model.num_kv_heads // tp, 1), model.vocab_size
    pages = -(-_LONGEST // _PAGE)
    x, residual, norm = normal(tokens, hidden), normal(tokens, hidden), normal(hidden)
    q, k, v = (normal(tokens, count, dim) for count in (heads, kv_heads, kv_heads))
    k_cache, v_cache = (normal(tokens * pages, _PAGE, kv_heads, dim) for _ in range(2))
    table = torch.randperm(tokens * pages).int().view(tokens, pages)
    lengths = torch.randint(1, _LONGEST + 1, (tokens,), dtype=torch.int32)
    slots, starts = torch.randperm(tokens * pages * _PAGE)[:tokens], torch.tensor([0, tokens], dtype=torch.int32)
    positions, cos, sin = torch.arange(tokens), normal(4096, 1, 1, dim // 2), normal(4096, 1, 1, dim // 2)
    logits, probs = normal(tokens, vocabulary), torch.rand(tokens, vocabulary).softmax(-1)
    out, decoding = torch.empty_like(q), torch.arange(tokens + 1, dtype=torch.int32)

    yield "rms_norm", (x, norm, 1e-5), True
    yield "rmsnorm2d_fwd_with_add", (torch.empty_like(x), x, residual, torch.empty_like(x), norm, 1e-5), True
    for n, width in (((heads + 2 * kv_heads) * dim, hidden), (hidden, heads * dim), (2 * inner, hidden),
                     (hidden, inner), (-(-vocabulary // tp), hidden)):
        yield "gemm_a16w16", (normal(tokens, width), normal(n, width) / width ** 0.5), True
    yield "rope_cached_positions_2c_fwd_inplace", (q[None], k[None], cos, sin, positions[None], 0, True, False), True
    yield "reshape_and_cache_flash", (k, v, k_cache, v_cache, slots, "auto", None, None), True
    yield "fused_qk_rope_reshape_and_cache", (q, k, v, k_cache, v_cache, slots, positions, cos, sin, None, None, True,
                                              True), True
    yield "paged_attention", (q, k_cache, v_cache, table, lengths, _LONGEST), True
    yield "unified_attention", (q, k_cache, v_cache, out, decoding, 1, lengths, _LONGEST, dim ** -0.5, True, (-1, -1),
                                table, 0.0, None, None, None), True
    yield "flash_attn_varlen_func", (q, k, v, starts, starts, tokens, tokens, 0, 0.0, None, 0.0, True), True
    yield "silu_and_mul", (normal(tokens, inner), normal(tokens, 2 * inner)), True
    yield "greedy_sample", (torch.empty(tokens, dtype=torch.int32), logits), True
    yield "softmax", (logits.float(),), True
    yield "top_p_renorm_probs", (probs, None, 0.9), True
    yield "top_k_top_p_sampling_from_probs", (probs, None, None, 50, None, 0.9), False


def normal(*shape: int) -> Tensor:
    """Normal random numbers in bf16."""
    return torch.randn(shape).bfloat16()


def copied(arguments: tuple) -> tuple:
    """The same arguments in memory of their own."""
    return tuple(one.clone() if isinstance(one, Tensor) else one for one in arguments)


def tensors(returned: object, arguments: tuple) -> list[Tensor]:
    """What a call returned and what its arguments hold then."""
    several = returned if isinstance(returned, tuple) else (returned,)
    return [one for one in (*several, *arguments) if isinstance(one, Tensor)]


def main() -> None:
    """Makes the calls, each beside its reference."""
    name, tp, tokens = sys.argv[1], *map(int, sys.argv[2:])
    started = first_calls.without_compilers()
    for function, arguments, is_same in calls(models.load(name), tp, tokens):
        ours, theirs = copied(arguments), copied(arguments)
        found = getattr(aiter_like, function)(*ours)
        if is_same:
            with aiter_like.use_backend("torch"):
                expected = getattr(aiter_like, function)(*theirs)
            torch.testing.assert_close(tensors(found, ours), tensors(expected, theirs), rtol=2e-2, atol=2e-2,
                                       msg=lambda text, name=function: f"{name}: {text}")
        print(function, flush=True)
    assert build.built and not any(one.compiled for one in build.built), build.built
    assert not started, started
    print("ok")


if __name__ == "__main__":
    main()
