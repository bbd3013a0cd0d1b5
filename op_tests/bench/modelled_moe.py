# SPDX-License-Identifier: MIT
"""Cases of bench_modelled.py: layers of experts, of Qwen3-30B-A3B with a quarter of its experts and of all for what
is not a product.
"""

import functools
from collections.abc import Callable, Iterator

import torch
from modelled_case import Case, bytes_of, normal, of_key

import aiter_like
from aiter_like.ops.moe.moe_gemm_call import block_for

_SLOTS, _EXPERTS, _PRODUCTS_EXPERTS, _HIDDEN, _INNER = 8, 128, 32, 2048, 768


def _sorting(tokens: int) -> Case:
    ids, weights = torch.rand(tokens, _EXPERTS).topk(_SLOTS).indices.int(), torch.rand(tokens, _SLOTS)
    return Case(lambda: aiter_like.moe_sorting(ids, weights, _EXPERTS, _HIDDEN, torch.bfloat16),
                bytes_of(ids, weights), bytes_of(ids, weights) + 2 * tokens * _HIDDEN, True, True)


def _permute(tokens: int) -> Case:
    hidden, ids = normal(tokens, _HIDDEN), torch.rand(tokens, _EXPERTS).topk(_SLOTS).indices.int()
    return Case(lambda: aiter_like.moe_permute(hidden, None, ids, _EXPERTS), bytes_of(hidden, ids),
                _SLOTS * bytes_of(hidden) + 2 * bytes_of(ids), True, True)


def _product(tokens: int, is_first: bool) -> Callable[[], Case]:
    pairs = tokens * _SLOTS
    n, k = (2 * _INNER, _HIDDEN) if is_first else (_HIDDEN, _INNER)
    return functools.partial(of_key, "moe_gemm", {
        "pairs": pairs, "experts": _PRODUCTS_EXPERTS, "n": n, "k": k, "slots": _SLOTS,
        "block": 1 if tokens == 1 else block_for(pairs, _PRODUCTS_EXPERTS), "dtype": "bf16", "b_dtype": "same",
        "group_size": 0, "is_gated": int(is_first), "is_of_pairs": int(not is_first), "is_shuffled": 0})


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """What makes each call, by name."""
    for tokens in (64, 4096):
        gating = {"tokens": tokens, "experts": _EXPERTS, "k": _SLOTS, "groups": 1, "dtype": "bf16"}
        yield f"topk_gating × {tokens}", functools.partial(of_key, "topk_gating", gating)
        yield f"moe_sorting × {tokens}", functools.partial(_sorting, tokens)
        yield f"moe_permute × {tokens}", functools.partial(_permute, tokens)
        total = {"tokens": tokens, "slots": _SLOTS, "columns": _HIDDEN, "dtype": "bf16"}
        yield f"moe_sum × {tokens}", functools.partial(of_key, "moe_sum", total)
    for tokens in (1, 64, 4096):
        yield f"moe_gemm gates × {tokens}", _product(tokens, True)
        yield f"moe_gemm down × {tokens}", _product(tokens, False)
