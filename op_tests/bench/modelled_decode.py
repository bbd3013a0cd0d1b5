# SPDX-License-Identifier: MIT
"""Cases of bench_modelled.py: attention over caches, the index that chooses their keys, and what chooses tokens."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch
from modelled_case import Case, of_key

from aiter_like import dtypes
from aiter_like.ops.attention.call import PagedCall

_PAGED = {"seqlen_q": 1, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "page_size": 16, "layout": "rows",
          "features": "none", "scale_layout": "none", "dtype": "bf16", "kv_dtype": "bf16"}
_BYTES = {"kv_dtype": dtypes.name(dtypes.fp8_of("gfx942")), "scale_layout": "tensor"}
_LATENT = {"seqlen_q": 1, "head_dim": 576, "head_dim_v": 512, "page_size": 64, "features": "none", "dtype": "bf16",
           "kv_dtype": "bf16"}
_UNIFIED = {"mask": "causal", "num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "page_size": 16,
            "features": "none", "dtype": "bf16", "kv_dtype": "bf16"}
_INDEX = {"num_heads": 64, "head_dim": 128, "layout": "rows", "dtype": dtypes.name(dtypes.fp8_of("gfx942"))}
_VOCABULARY = 128256


def _causal(key: dict, backend: str | None = None, **more) -> Case:
    """Workgroups have from one to all of the keys: no part of the grid stands for the rest."""
    return of_key("unified_attention", key, backend, **more)._replace(is_mixed=True)


def _beside_decoding(call: PagedCall) -> PagedCall:
    """Only the last sequence keeps its queries; of each other one there is one."""
    others, longest = call.batch - 1, call.max_seqlen_q
    rows = others + longest
    starts = torch.arange(call.batch + 1, dtype=torch.int32)
    starts[-1] = rows
    return call._replace(q=call.q[:rows], out=call.out[:rows], cu_seqlens_q=starts)


def _attention() -> Iterator[tuple[str, Callable[[], Case]]]:
    for batch, keys, name, more in ((16, 4096, "", {}), (64, 4096, "", {}), (1, 16384, "", {}),
                                    (64, 4096, " fp8", _BYTES)):
        key = {**_PAGED, "batch": batch, "seqlen_k": keys, **more}
        yield f"paged_attention{name} {batch}x{keys}", functools.partial(of_key, "paged_attention", key, is_whole=True)
    for batch, keys, heads in ((64, 4096, 16), (16, 4096, 128)):
        key = {**_LATENT, "batch": batch, "seqlen_k": keys, "num_heads": heads}
        yield f"mla_decode {batch}x{keys}x{heads}", functools.partial(of_key, "mla_decode", key, "ck", is_whole=True)
    key = {**_UNIFIED, "batch": 64, "seqlen_q": 1, "seqlen_k": 4096}
    decode = functools.partial(of_key, "unified_attention", key, "hip", is_whole=True)
    yield "unified_attention decode 64x4096", decode
    for name, rows, keys in (("prefill", 4096, 4096), ("extend 512 of", 512, 8192)):
        key = {**_UNIFIED, "batch": 1, "seqlen_q": rows, "seqlen_k": keys}
        yield f"unified_attention {name} 1x{keys}", functools.partial(_causal, key, "ck")
    for name, batch, rows, keys, changed in (("prefill", 8, 512, 512, None), ("extend 128 of", 4, 128, 2048, None),
                                             ("extend 1024 beside decoding of", 32, 1024, 2048, _beside_decoding)):
        key = {**_UNIFIED, "batch": batch, "seqlen_q": rows, "seqlen_k": keys}
        yield f"unified_attention {name} {batch}x{keys}", functools.partial(_causal, key, changed=changed)


def _index() -> Iterator[tuple[str, Callable[[], Case]]]:
    """Logits of DeepSeek-V3.2's index: prompts, and decoding of so many sequences, tokens and keys."""
    for rows, keys in ((4096, 4096), (1024, 16384)):
        key = {**_INDEX, "rows": rows, "seqlen_q": rows, "columns": keys, "page_size": 0}
        yield f"mqa_logits prompt {rows}x{keys}", functools.partial(of_key, "mqa_logits", key, "ck", matrix="fp8_fp8")
    for batch, tokens, keys in ((64, 1, 4096), (64, 2, 4096), (64, 4, 4096), (16, 1, 65536), (1, 1, 65536)):
        key = {**_INDEX, "rows": batch * tokens, "seqlen_q": tokens, "columns": keys, "page_size": 64}
        yield f"mqa_logits decode {batch}x{tokens}x{keys}", functools.partial(of_key, "mqa_logits", key, "ck",
                                                                              matrix="fp8_fp8")


def _samplers(rows: int) -> Iterator[tuple[str, Callable[[], Case]]]:
    key = {"rows": rows, "columns": _VOCABULARY, "dtype": "fp32"}
    yield f"softmax × {rows}", functools.partial(of_key, "softmax", {**key, "out_dtype": "fp32"})
    yield f"sample × {rows}", functools.partial(of_key, "sample", {**key, "features": "made"}, is_whole=True)
    yield f"topk 8 × {rows}", functools.partial(of_key, "topk", {**key, "k": 8}, is_whole=True)
    for kind in ("none", "top_k", "top_p", "top_k+top_p"):
        for operator in ("sampling_from_probs", "renorm_probs"):
            if operator == "sampling_from_probs" or kind in ("top_k", "top_p"):
                yield f"{operator} {kind} × {rows}", functools.partial(of_key, operator, {**key, "features": kind},
                                                                       is_whole=True)


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """What makes each call, by name."""
    yield from _attention()
    yield from _index()
    for rows in (64, 512):
        yield from _samplers(rows)
