# SPDX-License-Identifier: MIT
"""dropout_layer_norm: every backend against float64, the mask against published words of Philox and its statistics."""

import math

import pytest
import torch
from covering import covering
from norm_cases import BACKENDS, EPSILON, check_layer_norm, double, rows_like, vector_like

import aiter_like
from aiter_like.errors import UnsupportedError
from aiter_like.ops.norm.dropout_layer_norm import random_words
from aiter_like.testing import strided_like

BF16 = torch.bfloat16
BIG = 0x123456789ABCDEF0 // 2


def call(run, backend, x, residual, p, seed=BIG, offset=2**33 - 5):
    weight, bias = (vector_like(x.device, x.shape[-1], x.dtype, seed=seed) for seed in (100, 200))
    result = run(backend, aiter_like.dropout_layer_norm, x, residual, weight, bias, p, seed, offset, EPSILON)
    return *result, weight, bias


def mask(run, backend, device, rows, hidden, p, **kwargs):
    """What is kept of ones: the residual sum of zeros."""
    ones = torch.ones(rows, hidden, device=device)
    kept = call(run, backend, ones, torch.zeros_like(ones), p, **kwargs)[1]
    assert ((kept == 0) | (kept == torch.tensor(1 / (1 - p)))).all()
    return kept != 0


def test_words_of_philox():
    """The known answer of Random123 for key and counter 0."""
    words = random_words(torch.empty(1, 4), 0, 0).flatten().tolist()
    assert words == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def check_call(run, backend, x, residual, p):
    kept = random_words(x, BIG, 2**33 - 5) >> 8 >= int(p * 2**24)
    total = torch.where(kept.cpu(), double(x) / (1 - p), 0.0) + double(residual)
    out, residual_out, weight, bias = call(run, backend, x, residual, p)
    check_layer_norm(out, total, weight, bias)
    rounding = {BF16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-22}[x.dtype]
    torch.testing.assert_close(residual_out.cpu().double(), total, rtol=rounding, atol=1e-6)


@pytest.mark.parametrize("hidden, dtype", ((100, BF16), (4096, BF16), (1002, torch.float32)), ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_float64(device, run, backend, hidden, dtype):
    x, residual = rows_like(device, 5, hidden, dtype, count=2, seed=hidden)
    for p in (0.0, 0.25):
        check_call(run, backend, x, residual, p)


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", BACKENDS)
def test_everything(device, run, backend, seed):
    """A covering design: each pair of size, dtype, share and number of rows."""
    factors = {"hidden": (1, 3, 4, 7, 8, 65, 512, 1000, 5120, 8192, 20001, 32768),
               "dtype": (BF16, torch.float16, torch.float32), "p": (0.0, 0.1, 0.999), "rows": (1, 7)}
    for hidden, dtype, p, rows in map(dict.values, covering(factors, seed)):
        check_call(run, backend, *rows_like(device, rows, hidden, dtype, count=2, seed=hidden), p)


@pytest.mark.parametrize("backend", BACKENDS)
def test_mask(device, run, backend):
    kept = mask(run, backend, device, 64, 1002, 0.3)
    assert torch.equal(kept, mask(run, "torch", device, 64, 1002, 0.3)), "the same on every backend"
    assert not torch.equal(kept, mask(run, backend, device, 64, 1002, 0.3, seed=BIG + 1))
    later = mask(run, backend, device, 63, 1002, 0.3, offset=2**33 - 5 + 251)  # 251 counters for a row of 1002
    assert torch.equal(later, kept[1:])


@pytest.mark.exhaustive
def test_the_share_that_is_kept(device, run):
    kept = mask(run, "torch", device, 64, 1002, 0.3)
    assert abs(kept.float().mean().item() - 0.7) < 5 * math.sqrt(0.21 / kept.numel())


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides(device, run, backend):
    x, residual = rows_like(device, 6, 100, BF16, count=2)
    first = call(run, backend, x, residual, 0.5)[:2]
    for view, other in ((strided_like(x, (0, 24)), strided_like(residual, (0, 3), offset=1)),
                        (x.view(2, 3, 100), residual.view(2, 3, 100))):
        again = call(run, backend, view, other, 0.5)
        assert torch.equal(again[0].view(6, 100), first[0]) and torch.equal(again[1].view(6, 100), first[1])


def test_empty_and_bad_input(device):
    (x,), weight = rows_like(device, 3, 64, BF16), vector_like(device, 64, BF16)
    assert aiter_like.dropout_layer_norm(x[:0], x[:0], weight, weight, 0.1, 0)[0].shape == (0, 64)
    for message, kind, args in (("p must be less than 1", ValueError, (x, x, weight, weight, 1.0, 0)),
                                ("p must be at least 0", ValueError, (x, x, weight, weight, -0.1, 0)),
                                ("offset must be between", ValueError, (x, x, weight, weight, 0.1, 0, -1))):
        with pytest.raises(kind, match=f"dropout_layer_norm: {message}"):
            aiter_like.dropout_layer_norm(*args)
    long = torch.ones(1, 40000, dtype=BF16, device=device)
    with pytest.raises(UnsupportedError, match="rows of at most 32768 elements"):
        aiter_like.dropout_layer_norm(long, long, long[0], long[0], 0.1, 0, backend="hip")


def bench() -> None:
    """Beside torch.compile."""
    import benching

    benching.of("dropout_layer_norm", "rows hidden", ((4096, 1024), (4096, 4096), (8192, 8192)), dtype="bf16")
