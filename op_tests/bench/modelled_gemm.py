# SPDX-License-Identifier: MIT
"""Cases of bench_modelled.py: products. Of few rows memory bounds them, of many the matrix units."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

from modelled_case import Case, of_key

from aiter_like import dtypes

_FP8 = dtypes.name(dtypes.fp8_of("gfx942"))
_PLAIN = {"dtype": "bf16", "out_dtype": "bf16", "is_shuffled": 0, "is_gated": 0}
_EIGHT = {"weight_dtype": _FP8, "band": 0, "use_fast_accum": 0}
_FOUR = {"bits": 4, "is_fp8": 0, "group_size": 128, "scale_rows": 1, "dtype": "bf16", "out_dtype": "bf16"}
# Operator, roof, rest of the key, (m, n, k): products of Llama-3-8B and DeepSeek-V3, skinny ones of 64 MB or more.
_PRODUCTS = (
    ("gemm_a16w16", "bf16", _PLAIN, ((1, 14336, 4096), (16, 14336, 4096), (64, 14336, 4096), (1024, 4096, 4096),
                                     (4096, 4096, 4096))),
    ("gemm_a8w8", "fp8_fp8", _EIGHT, ((1, 14336, 4096), (16, 14336, 4096), (1024, 4096, 4096), (4096, 4096, 4096))),
    ("gemm_a8w8_blockscale", "fp8_fp8", {"bpreshuffle": 0}, ((1, 4608, 7168), (16, 4608, 7168), (1024, 4608, 7168),
                                                             (4096, 4608, 7168))),
    ("gemm_a8w8_blockscale", "fp8_fp8", {"bpreshuffle": 1}, ((16, 4608, 7168), (4096, 4608, 7168))),
    ("gemm_weight_only", "bf16", _FOUR, ((1, 14336, 4096), (16, 14336, 4096), (1024, 4096, 4096))))


def _scales_by_rows(m: int, n: int, k: int) -> Case:
    """x_scale with the scales of a row beside one another."""
    return of_key("gemm_a8w8_blockscale", {"m": m, "n": n, "k": k, "bpreshuffle": 0}, matrix="fp8_fp8",
                  changed=lambda call: call._replace(a_scale=call.a_scale.contiguous()))


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """What makes each call, by name."""
    for operator, matrix, rest, sizes in _PRODUCTS:
        for m, n, k in sizes:
            key: dict[str, Any] = {"m": m, "n": n, "k": k, **rest}
            kind = " int4" if rest is _FOUR else " shuffled" if rest.get("bpreshuffle") else ""
            yield f"{operator}{kind} {m}x{n}x{k}", functools.partial(of_key, operator, key, matrix=matrix)
    for m in (16, 1024, 4096):
        yield f"gemm_a8w8_blockscale scales by rows {m}x4608x7168", functools.partial(_scales_by_rows, m, 4608, 7168)
