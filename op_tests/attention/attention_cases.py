# SPDX-License-Identifier: MIT
"""What the tests of attention share: inputs, dense and packed, options for each feature, comparison with float64."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import aiter_like
from aiter_like.testing import ROUNDINGS
from aiter_like.testing.attention import check_attention

BACKENDS = ("hip", "triton", "torch")
KERNELS = BACKENDS[:-1]
WITH_CK = ("hip", "ck", "triton", "torch")
BF16 = torch.bfloat16
LENGTHS = (1, 15, 63, 64, 65, 127, 383, 384, 385, 1000)
FEATURES = ("softcap", "sink", "alibi", "bias", "window", "sink tokens", "alibi per sequence", "bias per head")
BENCH_SHAPES = (  # (batch, heads, KV heads, length, head dimension), causal
    ((2, 24, 24, 8192, 128), False), ((2, 24, 24, 16384, 128), False), ((1, 16, 16, 32768, 128), False),
    ((4, 32, 8, 4096, 128), True), ((2, 32, 8, 8192, 128), True), ((8, 16, 16, 2048, 64), True))
DTYPES = (torch.bfloat16, torch.float16)

# Keywords of the public functions → of testing.attention.attention_float64.
_REFERENCE_NAMES = {"window_size": "window_size", "logits_soft_cap": "softcap", "bias": "bias",
                    "alibi_slopes": "alibi_slopes", "sink_ptr": "sink", "softmax_scale": "softmax_scale",
                    "causal": "causal", "dropout_p": "dropout_p"}


def random(device: torch.device, shape: Sequence[int], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Normal numbers, the same for every device."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def dense(device: torch.device, batch: int, seqlen_q: int, seqlen_k: int, heads: int, kv_heads: int, head_dim: int,
          dtype: torch.dtype, seed: int = 0, head_dim_v: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v [batch, length, heads, dim]."""
    return (random(device, (batch, seqlen_q, heads, head_dim), dtype, 3 * seed),
            random(device, (batch, seqlen_k, kv_heads, head_dim), dtype, 3 * seed + 1),
            random(device, (batch, seqlen_k, kv_heads, head_dim_v or head_dim), dtype, 3 * seed + 2))


def far_scores(device: torch.device, seqlen_q: int, seqlen_k: int, head_dim: int, dtype: torch.dtype,
               seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of small integers: scores are exact in fp32, some of a row are the same, and the later the larger."""
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randint(-3, 4, (2, length, 2, head_dim), generator=generator) for length in (seqlen_q, seqlen_k))
    k[:, :, :, 0], q[:, :, :, 0] = torch.arange(seqlen_k)[None, :, None] // 16, 8
    v = random(device, (2, seqlen_k, 2, head_dim), dtype, seed)
    return q.to(device, dtype), k.to(device, dtype), v


def packed(device: torch.device, lengths_q: Sequence[int], lengths_k: Sequence[int], heads: int, kv_heads: int,
           head_dim: int, dtype: torch.dtype, seed: int = 0, head_dim_v: int | None = None) -> tuple[Any, ...]:
    """q, k, v [total, heads, dim], cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k."""
    starts = [torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)
              for lengths in (lengths_q, lengths_k)]
    q, k, v = dense(device, 1, sum(lengths_q), sum(lengths_k), heads, kv_heads, head_dim, dtype, seed, head_dim_v)
    return q[0], k[0], v[0], *starts, max(lengths_q, default=0), max(lengths_k, default=0)


def features(device: torch.device, dtype: torch.dtype, heads: int, rows: int, keys: int,
             batch: int | None = None) -> dict[str, dict[str, Any]]:
    """Name → options of a public function that ask for that feature.

    Args:
        rows, keys: of the bias: seqlen_q and seqlen_k, varlen total_q and max_seqlen_k.
        batch: of slopes per sequence and of a bias per head (dense only); None: slopes and bias for all.
    """
    normal = functools.partial(random, device)
    slopes = 2.0 ** -torch.arange(1, heads + 1, device=device, dtype=torch.float32)
    found = {"softcap": {"logits_soft_cap": 2.0}, "sink": {"sink_ptr": normal((heads,), torch.float32, 7)},
             "alibi": {"alibi_slopes": slopes}, "bias": {"bias": normal((rows, keys), dtype, 8)},
             "window": {"window_size": (17, 5)}, "sink tokens": {"window_size": (20, 0, 3)}}
    if batch is not None:
        found["alibi per sequence"] = {"alibi_slopes": slopes * torch.arange(1, batch + 1, device=device)[:, None]}
        found["bias per head"] = {"bias": normal((1, heads, rows, keys), dtype, 9)}
    return found


def together(options: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """All of `features` in one call; of those that share an option, the last."""
    return {name: value for feature in options.values() for name, value in feature.items()}


def check_dense(run: Callable, backend: str, q: Tensor, k: Tensor, v: Tensor, *, rounding: int = 0,
                **options: Any) -> tuple[Tensor, Tensor]:
    """Runs flash_attn_func on that backend and compares `out` and `lse`, which it returns, with float64."""
    out, lse = run(backend, aiter_like.flash_attn_func, q, k, v, return_lse=True, how_v3_bf16_cvt=rounding, **options)
    check_attention(out, lse, q, k, v, rounding=rounding_of(backend, q.dtype, rounding), **reference_options(options))
    return out, lse


def check_varlen(run: Callable, backend: str, q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor,
                 cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int, *, rounding: int = 0,
                 **options: Any) -> tuple[Tensor, Tensor]:
    """The same for flash_attn_varlen_func."""
    out, lse = run(backend, aiter_like.flash_attn_varlen_func, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
                   max_seqlen_k, return_lse=True, how_v3_bf16_cvt=rounding, **options)
    check_attention(out, lse, q, k, v, rounding=rounding_of(backend, q.dtype, rounding), cu_seqlens_q=cu_seqlens_q,
                    cu_seqlens_k=cu_seqlens_k, **reference_options(options))
    return out, lse


def rounding_of(backend: str, dtype: torch.dtype, how_v3_bf16_cvt: int) -> str:
    """How a backend rounds; float16 has no ties away, and torch rounds only the result, to nearest even."""
    if backend == "torch" or (dtype != torch.bfloat16 and how_v3_bf16_cvt == 1):
        return "rtne"
    return ROUNDINGS[how_v3_bf16_cvt]


def reference_options(options: dict[str, Any]) -> dict[str, Any]:
    """A public function's keywords as the float64 reference names them; the others do not change the result."""
    return {_REFERENCE_NAMES[name]: value for name, value in options.items() if name in _REFERENCE_NAMES}
