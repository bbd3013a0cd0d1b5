# SPDX-License-Identifier: MIT
"""fused_qk_rmsnorm and fused_add_rmsnorm_pad: every backend against float64."""

import math

import pytest
import torch
from covering import covering
from norm_cases import BACKENDS, EPSILON, double, rows_like, vector_like

import aiter_like
from aiter_like.errors import UnsupportedError
from aiter_like.testing import check_rms_norm, strided_like

BF16 = torch.bfloat16


def sides(device, q_shape, k_shape, dtype, weight_dtype=None):
    (q,), (k,) = rows_like(device, *q_shape, dtype), rows_like(device, *k_shape, dtype, seed=1)
    weight_dtype = weight_dtype or dtype
    return q, vector_like(device, q_shape[1], weight_dtype), k, vector_like(device, k_shape[1], weight_dtype, seed=5)


@pytest.mark.parametrize("q_shape, k_shape, dtype, weight_dtype", (
    ((7, 1536), (7, 512), BF16, BF16), ((40, 128), (5, 128), BF16, BF16), ((3, 100), (9, 1000), BF16, BF16),
    ((5, 72), (5, 1), torch.float16, torch.float32),
    ((9001, 20), (1003, 12), BF16, BF16)), ids=str)  # the last: rows that share a program, the last one's in part
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_float64(device, run, backend, q_shape, k_shape, dtype, weight_dtype):
    q, q_weight, k, k_weight = sides(device, q_shape, k_shape, dtype, weight_dtype)
    q_out, k_out = run(backend, aiter_like.fused_qk_rmsnorm, None, q, q_weight, EPSILON, None, k, k_weight, 1e-2)
    check_rms_norm(q_out, q, q_weight, EPSILON)
    check_rms_norm(k_out, k, k_weight, 1e-2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_and_in_place(device, run, backend):
    """q and k are slices of one projection, of which the last columns are neither."""
    (x,) = rows_like(device, 6, 1536 + 512 + 64, BF16)
    for offset in (0, 1):
        rows = strided_like(x, (0, 8 * offset), offset=offset)
        q, k = rows[:, :1536], rows[:, 1536:2048]
        _, q_weight, _, k_weight = sides(device, (6, 1536), (6, 512), BF16)
        exact_q, exact_k = double(q), double(k)
        results = run(backend, aiter_like.fused_qk_rmsnorm, q, q, q_weight, EPSILON, k, k, k_weight, EPSILON)
        assert results[0] is q and results[1] is k
        check_rms_norm(q, exact_q, q_weight, EPSILON)
        check_rms_norm(k, exact_k, k_weight, EPSILON)
        assert torch.equal(rows[:, 2048:], x[:, 2048:])


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_and_infinity_stay_in_their_row(device, run, backend):
    q, q_weight, k, k_weight = sides(device, (40, 128), (5, 128), BF16)
    q[39, 3], k[0, 0] = math.nan, math.inf
    q_out, k_out = run(backend, aiter_like.fused_qk_rmsnorm, None, q, q_weight, EPSILON, None, k, k_weight, EPSILON)
    assert q_out[39].isnan().all() and k_out[0, 0].isnan() and (k_out[0, 1:] == 0).all()
    check_rms_norm(q_out[:39], q[:39], q_weight, EPSILON)
    check_rms_norm(k_out[1:], k[1:], k_weight, EPSILON)


@pytest.mark.parametrize("has_residual", (False, True))
@pytest.mark.parametrize("backend", BACKENDS)
def test_padded(device, run, backend, has_residual):
    (x, res), weight = rows_like(device, 5, 200, BF16, count=2), vector_like(device, 200, BF16)
    for multiple, size in ((0, 200), (128, 256), (100, 200)):
        result = aiter_like.fused_add_rmsnorm_pad(x, weight, EPSILON, res if has_residual else None, multiple,
                                                  backend=backend)
        out, total = result if has_residual else (result, None)
        assert out.shape == (5, size) and (out[:, 200:] == 0).all()
        check_rms_norm(out[:, :200], double(x) + double(res) if has_residual else x, weight, EPSILON)
        assert total is None or torch.equal(total, x + res)


def test_empty_and_bad_input(device):
    q, q_weight, k, k_weight = sides(device, (3, 128), (3, 64), BF16)
    empty = aiter_like.fused_qk_rmsnorm(None, q[:0], q_weight, EPSILON, None, k[:0], k_weight, EPSILON)
    assert empty[0].shape == (0, 128) and empty[1].shape == (0, 64)
    with pytest.raises(ValueError, match="fused_qk_rmsnorm: k_eps must be at least"):
        aiter_like.fused_qk_rmsnorm(None, q, q_weight, EPSILON, None, k, k_weight, -1.0)
    long = torch.ones(1, 40000, dtype=BF16, device=device)
    with pytest.raises(UnsupportedError, match="rows of at most 32768 elements"):
        aiter_like.fused_qk_rmsnorm(None, long, long[0], EPSILON, None, k, k_weight, EPSILON, backend="hip")
    with pytest.raises(ValueError, match="x_pad_to_multiple must be between 0"):
        aiter_like.fused_add_rmsnorm_pad(q, q_weight, EPSILON, None, -1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", BACKENDS)
def test_everything(device, run, backend, seed):
    """A covering design: each pair of both sizes and the dtype."""
    sizes = (1, 8, 64, 129, 512, 1536, 4096, 8192, 32768)
    factors = {"q_hidden": sizes, "k_hidden": sizes, "dtype": (BF16, torch.float32)}
    for q_hidden, k_hidden, dtype in map(dict.values, covering(factors, seed)):
        q, q_weight, k, k_weight = sides(device, (3, q_hidden), (5, k_hidden), dtype)
        q_out, k_out = run(backend, aiter_like.fused_qk_rmsnorm, None, q, q_weight, EPSILON, None, k, k_weight, EPSILON)
        check_rms_norm(q_out, q, q_weight, EPSILON)
        check_rms_norm(k_out, k, k_weight, EPSILON)


def bench() -> None:
    """Queries and keys of MLA (1536, 512) and of 64 + 8 heads of 128, beside torch.compile."""
    import benching

    benching.of("fused_qk_rmsnorm", "q_rows q_hidden k_rows k_hidden", (
        (tokens * heads, hidden, tokens * kv_heads, kv_hidden) for tokens in (1, 64, 8192)
        for heads, hidden, kv_heads, kv_hidden in ((1, 1536, 1, 512), (64, 128, 8, 128))), dtype="bf16")
