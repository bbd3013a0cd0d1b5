# SPDX-License-Identifier: MIT
"""Quantisation by block: every backend against float64 and, bit by bit, the reference."""

import math

import benching
import pytest
import torch
from covering import covering
from quant_cases import BACKENDS, matrix, same_numbers
from torch import Tensor

import aiter_like
from aiter_like import sim
from aiter_like.device import target_of
from aiter_like.errors import UnsupportedError
from aiter_like.ops.quant.block_quant import BlockQuantCall
from aiter_like.testing import strided_like
from aiter_like.testing.quantised import check_quantised, double, quantised_dtypes

INT8, BF16 = torch.int8, torch.bfloat16
QUANT = aiter_like.per_block_quant


def check_blocks(q: Tensor, scale: Tensor, x: Tensor, rows: int = 128, columns: int = 128) -> float:
    """Each block of [N, K] as one row of check_quantised; edges filled up with zeros."""
    n, k = x.shape
    parts = []
    for tensor in (q.cpu().view(INT8), double(x)):
        padded = torch.nn.functional.pad(tensor, (0, -k % columns, 0, -n % rows))
        blocks = padded.unflatten(1, (-1, columns)).unflatten(0, (-1, rows)).transpose(1, 2)
        assert scale.shape == blocks.shape[:2]
        parts.append(blocks.reshape(scale.numel(), -1))
    return check_quantised(parts[0].view(q.dtype), scale.cpu().view(-1, 1), parts[1])


@pytest.mark.parametrize("n, k", ((1, 1), (200, 391), (384, 528)))
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_float64(device, run, backend, n, k):
    x = matrix(device, n, k, seed=n)
    for dtype in quantised_dtypes(device)[n == 1:]:
        q, scale = run(backend, QUANT, x, quant_dtype=dtype)
        assert (q.dtype, scale.dtype) == (dtype, torch.float32) and scale.is_contiguous()
        check_blocks(q, scale, x)
        expected = QUANT(x, quant_dtype=dtype, backend="torch")
        assert same_numbers(q, expected[0]) and torch.equal(scale, expected[1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_other_blocks(device, run, backend):
    """More rows than a workgroup holds, fewer columns, a wide dtype."""
    x = matrix(device, 450, 200, dtype=torch.float32, seed=3)
    check_blocks(*run(backend, QUANT, x, block_shape=(300, 64)), x, 300, 64)


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_dtype_and_shape(device, run, backend, seed):
    """A covering design: each pair of dtypes, matrix and block."""
    factors = {"dtype": (BF16, torch.float16, torch.float32), "index": (0, 1),
               "matrix": ((1, 4096), (1024, 1), (1024, 2560), (129, 127), (1000, 1000)),
               "block": ((1, 128), (7, 64), (128, 128), (256, 128), (1024, 128), (128, 32))}
    for dtype, index, (n, k), block in map(dict.values, covering(factors, seed)):
        x = matrix(device, n, k, dtype=dtype, seed=n)
        check_blocks(*QUANT(x, quant_dtype=quantised_dtypes(device)[index], block_shape=block, backend=backend), x,
                     *block)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_large_element_anywhere(device, run, backend):
    """It is its block's scale alone, wherever it stands."""
    x = torch.full((256, 256), 2.0**-10, dtype=BF16, device=device)
    for row, column in ((0, 0), (127, 127), (128, 255), (77, 191)):
        x[row, column] = -96.0
        q, scale = run(backend, QUANT, x)
        at = row // 128, column // 128
        assert scale[at].item() == torch.tensor(96.0).div(127).item() and q[row, column] == -127
        assert (scale > 1e-3).sum() == 1 and (q == 0).sum() == 128 * 128 - 1
        x[row, column] = 2.0**-10


@pytest.mark.parametrize("backend", BACKENDS)
def test_special_blocks(device, run, backend):
    x = matrix(device, 128, 640)
    x[:, :128], x[5, 128 + 7], x[127, 256 + 127], x[:, 384:512] = 0.0, math.nan, -math.inf, 2.0**-133
    for dtype in quantised_dtypes(device):
        q, scale = run(backend, QUANT, x, quant_dtype=dtype)
        expected = QUANT(x, quant_dtype=dtype, backend="torch")
        assert same_numbers(q, expected[0]) and same_numbers(scale, expected[1])
        assert (q[:, :128].float() == 0).all() and 0 < scale[0, 0] < 1e-30
        assert scale[0, 1].isnan() and scale[0, 2].isinf() and scale[0, 3:].isfinite().all()
        check_blocks(q[:, 512:], scale[:, 4:], x[:, 512:])


@pytest.mark.parametrize("backend", BACKENDS)
def test_several_matrices_and_strides(device, run, backend):
    """Blocks end with their matrix."""
    x = matrix(device, 3, 150, 144)
    q, scale = run(backend, QUANT, x)
    assert q.shape == x.shape and scale.shape == (3, 2, 2)
    for i in range(3):
        check_blocks(q[i], scale[i], x[i])
    for view in (strided_like(x, (0, 0, 16)), strided_like(x, (0, 0, 3), offset=1)):
        again = run(backend, QUANT, view)
        assert torch.equal(again[0], q) and torch.equal(again[1], scale)
    part = run(backend, QUANT, x[0, ::2])
    check_blocks(*part, x[0, ::2])


def test_empty(device):
    q, scale = QUANT(torch.empty(0, 300, device=device))
    assert q.shape == (0, 300) and scale.shape == (0, 3)


def test_bad_input_is_named(device):
    x = matrix(device, 3, 256)
    other = torch.float8_e4m3fn if target_of(device).platform == "hip" else torch.float8_e4m3fnuz
    for message, kind, args, options in (
            ("x must have at least 2 dimensions", ValueError, (x[0],), {}),
            ("scale must be None", ValueError, (x, torch.ones(1, device=device)), {}),
            ("quant_dtype must be", ValueError, (x, None, torch.uint8), {}),
            (r"block_shape must be \(rows, columns\)", ValueError, (x, None, INT8, 128), {}),
            ("block_shape must be an integer", TypeError, (x, None, INT8, (128.0, 128)), {}),
            (r"block_shape\[1\] must be 32, 64 or 128", ValueError, (x, None, INT8, (128, 100)), {}),
            ("block_rows must be between 1", ValueError, (x, None, INT8, (2**20, 128)), {}),
            ("fp8 on .* is", UnsupportedError, (x, None, other), {"backend": "hip"}),
            ("fp8 on .* is", UnsupportedError, (x, None, other), {"backend": "triton"})):
        with pytest.raises(kind, match=message):
            QUANT(*args, **options)
    call = BlockQuantCall(torch.empty_like(x, dtype=INT8), torch.empty(3, 1, device=device), x)
    with pytest.raises(ValueError, match=r"scale must have shape \(1, 2\), got \(3, 1\)"):
        torch.ops.aiter_like.block_quant_out(*call)


def test_reads_a_block_once(device):
    """The simulator's counters: each wave of the four loads 8 vectors and stores 8; one stores the scale."""
    if device.type != "cpu":
        pytest.skip("counters of the simulator")
    x = matrix(device, 256, 256)
    QUANT(x, backend="hip")
    with sim.enabled(checks=False) as session:
        QUANT(x, backend="hip")
    (counts,) = session.counters.values()
    assert counts["by_class"]["global"] <= 4 * (4 * (8 + 8) + 1)


def bench() -> None:
    benching.of("block_quant", "rows columns", ((8192, 8192), (8192, 4096), (4096, 14336), (2048, 7168)), matrices=1,
                block_rows=128, dtype="bf16", out_dtype="fp8")
