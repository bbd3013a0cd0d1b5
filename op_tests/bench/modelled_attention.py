# SPDX-License-Identifier: MIT
"""Cases of bench_modelled.py: attention over whole sequences, dense and causal, and in Triton both ways."""

import functools
from collections.abc import Callable, Iterator

from modelled_case import Case, of_key

_KEY = {"packing": "dense", "features": "none", "dtype": "bf16"}


def _forward(key: dict) -> Case:
    """Workgroups of a causal call have from one to all of the keys, those of others may share a row of tiles: no part
    of the grid stands for the rest.
    """
    return of_key("flash_attn_fwd", key, "hip")._replace(is_mixed=True)


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """What makes each call, by name."""
    for batch, heads, tokens, head_dim in ((2, 24, 4096, 128), (2, 24, 4096, 64), (1, 32, 8192, 128),
                                           (1, 32, 8192, 64), (2, 24, 16384, 128)):
        key = {**_KEY, "batch": batch, "seqlen_q": tokens, "seqlen_k": tokens, "num_heads": heads,
               "num_kv_heads": heads, "head_dim": head_dim, "head_dim_v": head_dim}
        name = f"{batch}x{heads}x{tokens}x{head_dim}"
        yield f"flash_attn_fwd {name}", functools.partial(_forward, {**key, "mask": "none"})
        yield f"flash_attn_fwd causal {name}", functools.partial(_forward, {**key, "mask": "causal"})
    for tokens in (4096, 2048):  # four heads of a group share workgroups, and these the keys of a query block
        key = {**_KEY, "batch": 1, "seqlen_q": tokens, "seqlen_k": tokens, "num_heads": 32, "num_kv_heads": 8,
               "head_dim": 128, "head_dim_v": 128, "mask": "causal"}
        yield f"flash_attn_fwd causal 1x32/8x{tokens}x128", functools.partial(_forward, key)
    for head_dim in (128, 64):
        key = {**_KEY, "batch": 1, "seqlen_q": 2048, "seqlen_k": 2048, "num_heads": 38, "num_kv_heads": 38,
               "head_dim": head_dim, "head_dim_v": head_dim, "mask": "none"}
        for operator in ("flash_attn_fwd", "flash_attn_bwd"):
            yield f"{operator} triton 1x38x2048x{head_dim}", functools.partial(of_key, operator, key, "triton")
