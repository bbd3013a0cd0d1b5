# SPDX-License-Identifier: MIT
"""batched_gemm: every backend against float64, exact sums of int8, odd sizes, strides, derivatives."""

import functools
import math

import benching
import pytest
import torch
from problem_cases import BACKENDS, SIXTEEN_BITS, compare, fitted, kinds, random

import aiter_like
from aiter_like.dispatch import OPS
from aiter_like.ops.gemm import tiles
from aiter_like.testing import strided_like


def operands(device, batch, m, n, k, dtype=torch.bfloat16, seed=0):
    """a, b and, of 8 bits, their scales."""
    generator = torch.Generator().manual_seed(seed + 7919 * m + 31 * n + k)
    a, b = (random(generator, dtype, batch, rows, k).to(device) for rows in (m, n))
    scales = [torch.rand(shape, generator=generator).to(device) + 0.01 for shape in ((batch, m, 1), (batch, 1, n))]
    return a, b, *([] if dtype in SIXTEEN_BITS else scales)


def product(run, backend, a, b, *others, **options):
    function = aiter_like.batched_gemm_bf16 if a.dtype in SIXTEEN_BITS else aiter_like.batched_gemm_a8w8
    return run(backend, function, a, b, *others, **options)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", range(4), ids=("bf16", "fp16", "fp8", "int8"))
@pytest.mark.parametrize("batch, m, n, k", ((3, 1, 1, 1), (2, 1, 4, 16), (5, 17, 60, 48), (1, 63, 130, 72),
                                            (2, 130, 36, 208), (2, 70, 132, 65)))
def test_sizes(device, run, backend, kind, batch, m, n, k):
    dtype = kinds(device)[kind]
    given = operands(device, batch, m, *fitted(backend, dtype, n, k), dtype)
    compare(product(run, backend, *given), *given)


@pytest.mark.parametrize("tile", tiles.PIPELINED)
@pytest.mark.parametrize("kind, splits", ((0, 1), (0, 16), (2, 2), (3, 2)), ids=("bf16", "bf16-16", "fp8-2", "int8-2"))
def test_every_tile_and_split(device, run, monkeypatch, kind, tile, splits):
    """k is chosen so that the last split is partial or empty."""
    monkeypatch.setattr(tiles, "cheapest", lambda *sizes, **given: (tile, splits))
    OPS["batched_gemm"].reset()
    a, b, *scales = operands(device, 2, 70, 68, 1104, kinds(device)[kind])
    bias = torch.randn(2, 68, device=device)
    first = product(run, "ck", a, b, *scales, bias=bias)
    compare(first, a, b, *(scales or (None, None)), bias[:, None])
    assert torch.equal(first, product(run, "ck", a, b, *scales, bias=bias))
    OPS["batched_gemm"].reset()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", (0, 2), ids=("bf16", "fp8"))
@pytest.mark.parametrize("m", (304, 336))
def test_rows_that_fail_elsewhere(device, run, backend, kind, m):
    """AITER's users report wrong results at these numbers of rows for other products."""
    given = operands(device, 2, m, 64, 64, kinds(device)[kind])
    compare(product(run, backend, *given), *given)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind, bias_dtype, dtype", ((0, torch.bfloat16, torch.float32),
                                                     (0, torch.float16, torch.bfloat16),
                                                     (3, torch.float32, torch.float16)), ids=str)
def test_bias_and_dtype(device, run, backend, kind, bias_dtype, dtype):
    """A row for each matrix, in both shapes, and one for all."""
    given = operands(device, 2, 19, 36, 64, kinds(device)[kind])
    for shape in ((2, 36), (2, 1, 36), (36,)):
        bias = torch.randn(shape, device=device).to(bias_dtype)
        out = product(run, backend, *given, bias=bias, dtype=dtype)
        assert out.dtype == dtype
        a, b, *scales = given
        compare(out, a, b, *(scales or (None, None)), bias[:, None] if bias.shape == (2, 36) else bias)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", (0, 2, 3), ids=("bf16", "fp8", "int8"))
def test_strides(device, run, backend, kind):
    """Rows and matrices apart in all of them; between the rows of `out` nothing is written. Matrices side by side, as
    [m, batch, k] has them."""
    a, b, *scales = operands(device, 2, 19, 36, 80, kinds(device)[kind])
    wide = strided_like(a, (16, 16, 0)), strided_like(b, (16, 32, 0))
    base = torch.full((2, 21, 50), 7.0, device=device).bfloat16()
    out = product(run, backend, *wide, *scales, out=base[:, :19, 4:40])
    compare(out, a, b, *scales)
    assert (base[:, 19:] == 7).all() and (base[:, :, :4] == 7).all() and (base[:, :, 40:] == 7).all()
    beside = a.transpose(0, 1).contiguous().transpose(0, 1)
    out = torch.empty(19, 2, 36, device=device).bfloat16().transpose(0, 1)
    compare(product(run, backend, beside, b, *scales, out=out), a, b, *scales)


def test_transposed_matrices_and_one_for_all(device, run):
    """Columns that are contiguous; one matrix for the whole batch, whose stride is 0; strided scales."""
    a, b = operands(device, 3, 24, 40, 33)
    compare(product(run, "triton", a.mT.contiguous().mT, b.mT.contiguous().mT), a, b)
    one = b[:1].expand(3, -1, -1)
    compare(product(run, "triton", a, one), a, one)
    a, b, x_scale, w_scale = operands(device, 3, 24, 40, 32, torch.int8)
    x_scale, w_scale = x_scale[:1].expand(3, -1, -1), w_scale[:1].expand(3, -1, -1)
    compare(product(run, "triton", a, b, x_scale, w_scale), a, b, x_scale, w_scale)


@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values(device, run, backend):
    """Infinities and NaN go where a sum takes them, in their own matrix; bf16 overflows to infinity; the extremes of
    int8 do not overflow."""
    a, b = torch.ones(2, 3, 16, device=device).bfloat16(), torch.ones(2, 8, 16, device=device).bfloat16()
    a[0, 0, 3], a[0, 1, 5], b[0, 2, 5] = math.inf, math.nan, -math.inf
    out = product(run, backend, a, b).double()
    torch.testing.assert_close(out, a.double() @ b.double().mT, rtol=0, atol=0, equal_nan=True)
    big = torch.full((2, 1, 16), 2.0**127, device=device).bfloat16()
    assert product(run, backend, big, torch.full_like(b, 4)).isinf().all()
    low = torch.full((1, 4, 4112), -128, dtype=torch.int8, device=device)
    ones = torch.ones(1, 4, 1, device=device), torch.ones(1, 1, 4, device=device)
    assert (product(run, backend, low, low, *ones, dtype=torch.float32) == 4112 * 2.0**14).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_sizes(device, run, backend):
    a, b = operands(device, 2, 5, 12, 16)
    bias = torch.randn(2, 12, device=device).bfloat16()
    out = product(run, backend, a[:, :, :0], b[:, :, :0], bias)
    torch.testing.assert_close(out, bias[:, None].expand(-1, 5, -1), rtol=0, atol=0)
    for given, shape in (((a[:0], b[:0]), (0, 5, 12)), ((a[:, :0], b), (2, 0, 12)), ((a, b[:, :0]), (2, 5, 0))):
        assert aiter_like.batched_gemm_bf16(*given, backend=backend).shape == shape


def test_equal_calls_give_equal_results(device):
    given = operands(device, 2, 33, 68, 520)
    assert torch.equal(aiter_like.batched_gemm_bf16(*given), aiter_like.batched_gemm_bf16(*given))


def test_derivatives(device):
    a, b = operands(device, 2, 13, 20, 24)
    bias = torch.randn(2, 20, device=device).bfloat16()
    inputs = [one.requires_grad_() for one in (a, b, bias)]
    grad = torch.randn(2, 13, 20, device=device).bfloat16()
    found = torch.autograd.grad(aiter_like.batched_gemm_bf16(*inputs), inputs, grad)
    wide = [one.detach().double().requires_grad_() for one in inputs]
    expected = torch.autograd.grad(wide[0] @ wide[1].mT + wide[2][:, None], wide, grad.double())
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=3e-2, atol=3e-2 * other.abs().max().item())


def test_bad_input_is_named(device):
    a, b = operands(device, 2, 4, 8, 16)
    int8 = operands(device, 2, 4, 16, 32, torch.int8)
    bf16, a8w8 = aiter_like.batched_gemm_bf16, aiter_like.batched_gemm_a8w8
    for error, match, function, args, options in (
            (ValueError, "batched_gemm_bf16: XQ must have 3 dimensions", bf16, (a[0], b), {}),
            (TypeError, "batched_gemm_bf16: out must have dtype", bf16, (a, b), {"out": torch.empty(2, 4, 8)}),
            (TypeError, "batched_gemm_bf16: splitK must be an integer", bf16, (a, b), {"splitK": "x"}),
            (TypeError, "batched_gemm_a8w8: XQ must have dtype", a8w8, (a, b, *int8[2:]), {}),
            (ValueError, "batched_gemm_bf16: a_scale must be given", bf16, int8[:2], {}),
            (ValueError, "batched_gemm_a8w8: WQ must not be shuffled", a8w8,
             (int8[0], aiter_like.shuffle_weight(int8[1]), *int8[2:]), {})):
        with pytest.raises(error, match=match):
            function(*args, **options)


def test_the_fp8_of_other_hardware_is_refused(device):
    other, = {torch.float8_e4m3fn, torch.float8_e4m3fnuz} - {*kinds(device)}
    a, b, *scales = operands(device, 2, 4, 16, 32, torch.int8)
    for backend in (None, *BACKENDS, "torch"):
        with pytest.raises(TypeError, match="must have the fp8 of this device, fp8 on"):
            aiter_like.batched_gemm_a8w8(a.float().to(other), b.float().to(other), *scales, backend=backend)


def test_names_of_aiter(device):
    """The composable kernel's names, and the Triton module's, which has its own parameters."""
    a, b = operands(device, 2, 6, 16, 32)
    bias, out = torch.randn(2, 1, 16, device=device).bfloat16(), torch.empty(2, 6, 16, device=device).bfloat16()
    from aiter_like.integrations.aiter.gemm import gemm

    compare(aiter_like.batched_gemm_bf16_CK(a, b, bias, torch.bfloat16, 0), a, b, bias=bias)
    assert gemm.batched_gemm_bf16_triton(a, b, bias, YQ=out) is out
    compare(out, a, b, bias=bias)
    given = operands(device, 2, 6, 16, 32, torch.int8)
    compare(aiter_like.batched_gemm_a8w8_CK(*given), *given)


@pytest.mark.parametrize("kind, m, instruction", ((torch.bfloat16, 1024, "HGMMA.64x256x16.F32.BF16"),
                                                  (torch.float8_e4m3fn, 64, "QGMMA.64x64x32.F32"),
                                                  (torch.int8, 4, "IGMMA.64x16x32.S8.S8")), ids=str)
def test_code_for_hopper(monkeypatch, tmp_path, kind, m, instruction):
    """The matrix unit, operands by TMA, nothing in local memory."""
    from hopper_code import compiled_for_hopper, disassembled

    from aiter_like.ops.gemm.batched_gemm import BatchedGemmCall
    from aiter_like.ops.gemm.triton import batched_gemm

    scales = (None, None) if kind in SIXTEEN_BITS else (torch.empty(16, m), torch.empty(16, 2048))
    a, b = torch.empty(16, m, 512, dtype=kind), torch.empty(16, 2048, 512, dtype=kind)
    call = BatchedGemmCall(torch.empty(16, m, 2048).bfloat16(), a, b, None, *scales)
    with compiled_for_hopper(monkeypatch, batched_gemm) as built:
        batched_gemm.batched_gemm(call, "batched_gemm_hopper")
    code = disassembled(built[0], tmp_path)
    assert instruction in code and "UTMALDG" in code and "LDL" not in code and "STL" not in code


def bench() -> None:
    """Beside cuBLAS in 16 bits."""
    def peers(call):
        return {} if call.a_scale is not None else {"torch.bmm": functools.partial(torch.bmm, call.a, call.b.mT)}

    benching.of("batched_gemm", "batch m n k dtype", (
        (batch, m, n, k, dtype) for batch, n, k in ((128, 512, 128), (128, 128, 512), (16, 4096, 4096))
        for m in (1, 16, 128, 1024) for dtype in ("bf16", "fp8", "i8")), beside=peers, out_dtype="bf16")
