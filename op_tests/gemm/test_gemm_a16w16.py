# SPDX-License-Identifier: MIT
"""gemm_a16w16: every backend against float64, odd sizes, strides, shuffled weights, derivatives."""

import functools
import math

import benching
import products
import pytest
import torch

import aiter_like
from aiter_like.device import Target
from aiter_like.dispatch import OPS
from aiter_like.dispatch.selection import Request, select
from aiter_like.ops.gemm import skinny, tiles
from aiter_like.ops.gemm.gemm_a16w16 import GemmA16w16Call
from aiter_like.testing import strided_like

ACTIVATIONS = {None: lambda x: x, "silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu,
               "gelu_tanh": functools.partial(torch.nn.functional.gelu, approximate="tanh")}
GATED = tuple(f"{one}_and_mul" for one in ACTIVATIONS if one)
TILED = (("ck", 8, 4), ("triton", 1, 1))  # backend, what k and n must be multiples of
STEEPEST = 1.13  # of the activations


def halves(x):
    """Of the columns: gate and up."""
    return x.chunk(2, -1)


def exact(a, b, bias=None, residual=None, activation=None):
    """The formula in float64, written apart from the operator's reference."""
    y = a.double() @ b.double().mT
    if bias is not None:
        y = y + bias.double()
    if activation in GATED:
        gate, up = halves(y)
        y = ACTIVATIONS[activation.removesuffix("_and_mul")](gate) * up
    else:
        y = ACTIVATIONS[activation](y)
    return y if residual is None else y + residual.double()


def compare(out, a, b, bias=None, residual=None, activation=None) -> None:
    magnitude = a.double().abs() @ b.double().abs().mT
    if activation in GATED:  # an error of gate is multiplied by up, one of up by act(gate)
        gate, up = halves(exact(a, b, bias).abs())
        of_gate, of_up = halves(magnitude)
        magnitude = STEEPEST * of_gate * up + of_up * gate
    products.compare(out, exact(a, b, bias, residual, activation), magnitude, a.shape[-1])


def operands(device, m, n, k, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator().manual_seed(seed + 7919 * m + 31 * n + k)
    return (torch.randn(m, k, generator=generator).to(device, dtype),
            torch.randn(n, k, generator=generator).to(device, dtype))


@pytest.mark.parametrize("backend, k_step, n_step", TILED, ids=("ck", "triton"))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("m, n, k", ((1, 1, 1), (1, 4, 16), (17, 60, 8), (16, 64, 520), (63, 130, 72), (130, 36, 200),
                                     (257, 132, 65)))
def test_sizes(device, run, backend, k_step, n_step, dtype, m, n, k):
    a, b = operands(device, m, math.ceil(n / n_step) * n_step, math.ceil(k / k_step) * k_step, dtype)
    compare(run(backend, aiter_like.gemm_a16w16, a, b), a, b)


@pytest.mark.parametrize("backend", ("ck", "triton"))
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias_dtype", (None, torch.bfloat16, torch.float32), ids=str)
def test_what_follows_a_product(device, run, backend, activation, bias_dtype):
    a, b = operands(device, 37, 68, 64)
    bias = None if bias_dtype is None else torch.randn(68, device=device).to(bias_dtype)
    residual = torch.randn(37, 68, device=device).bfloat16()
    for other in (None, residual):
        out = run(backend, aiter_like.gemm_a16w16, a, b, bias, residual=other, activation=activation)
        compare(out, a, b, bias, other, activation)


@pytest.mark.parametrize("m, n, k, dtype", ((1, 1, 8, torch.bfloat16), (2, 33, 9, torch.float16),
                                            (4, 16, 1025, torch.bfloat16), (5, 70, 640, torch.bfloat16),
                                            (8, 15, 4096, torch.float16), (9, 130, 2050, torch.bfloat16),
                                            (16, 48, 4232, torch.bfloat16)), ids=str)
def test_few_rows(device, run, m, n, k, dtype):
    """Depths of no step, of whole rounds, and of what is left of a round, a step or 16 bytes."""
    a, b = operands(device, m, n, k, dtype)
    compare(run("hip", aiter_like.gemm_a16w16, a, b), a, b)


@pytest.mark.parametrize("block", ((16, 4, 2, 1), (16, 8, 4, 2), (32, 4, 2, 4), (32, 8, 3, 1)), ids=str)
@pytest.mark.parametrize("activation", ("silu", "silu_and_mul"))
def test_blocks_of_few_rows(device, run, monkeypatch, block, activation):
    """Of the splits the last ones have less, or nothing."""
    monkeypatch.setattr(skinny, "suited", lambda *sizes: skinny.Block(*block))
    OPS["gemm_a16w16"].reset()
    a, b = operands(device, 11, 72, 3080)
    bias, residual = torch.randn(72, device=device), torch.randn(11, 72, device=device).bfloat16()
    residual = residual[:, :36] if activation in GATED else residual
    first = run("hip", aiter_like.gemm_a16w16, a, b, bias, residual=residual, activation=activation)
    compare(first, a, b, bias, residual, activation)
    again = aiter_like.gemm_a16w16(a, b, bias, residual=residual, activation=activation, backend="hip")
    assert torch.equal(first, again)
    OPS["gemm_a16w16"].reset()


@pytest.mark.parametrize("backend, m", (("ck", 37), ("hip", 13), ("triton", 37)))
@pytest.mark.parametrize("activation, bias_dtype", list(zip(GATED, (torch.bfloat16, None, torch.float32))), ids=str)
def test_gated(device, run, backend, m, activation, bias_dtype):
    a, b = operands(device, m, 136, 72)
    bias = None if bias_dtype is None else torch.randn(136, device=device).to(bias_dtype)
    residual = torch.randn(m, 68, device=device).bfloat16()
    for other in (None, residual):
        out = run(backend, aiter_like.gemm_a16w16, a, b, bias, residual=other, activation=activation)
        assert out.shape == (m, 68)
        compare(out, a, b, bias, other, activation)


@pytest.mark.parametrize("rows, depth", ((1, 1), (5, 40)))
def test_one_gated_column(device, run, rows, depth):
    """Triton makes a constant of a 1 among its arguments."""
    a, b = operands(device, rows, 2, depth)
    compare(run("triton", aiter_like.gemm_a16w16, a, b, activation="silu_and_mul"), a, b, activation="silu_and_mul")


@pytest.mark.parametrize("tile, splits, activation",
                         [(tile, splits, "silu") for index, tile in enumerate(tiles.PIPELINED)
                          for splits in (1, (2, 16)[index % 2])] +
                         [(tile, 1 + index % 2, "silu_and_mul") for index, tile in enumerate(tiles.TILES)])
def test_every_tile_and_split(device, run, monkeypatch, tile, splits, activation):
    """k is chosen so that the last split is partial or empty."""
    monkeypatch.setattr(tiles, "cheapest", lambda *sizes, **given: (tile, splits))
    OPS["gemm_a16w16"].reset()
    a, b = operands(device, 70, 136 if activation in GATED else 68, 1096)
    bias, residual = torch.randn(b.shape[0], device=device), torch.randn(70, 68, device=device).bfloat16()
    first = run("ck", aiter_like.gemm_a16w16, a, b, bias, residual=residual, activation=activation)
    compare(first, a, b, bias, residual, activation)
    again = aiter_like.gemm_a16w16(a, b, bias, residual=residual, activation=activation, backend="ck")
    assert torch.equal(first, again)
    OPS["gemm_a16w16"].reset()


@pytest.mark.parametrize("backend, m", (("ck", 19), ("triton", 19), ("hip", 7)))
def test_strides(device, run, backend, m):
    """Rows apart in all of them; nothing between the rows of `out` is written."""
    a, b = operands(device, m, 36, 80)
    a, b = strided_like(a, (3, 0)), strided_like(b, (5, 0))
    base = torch.full((m, 50), 7.0, device=device).bfloat16()
    out = run(backend, aiter_like.gemm_a16w16, a, b, out=base[:, 4:40])
    compare(out, a, b)
    assert (base[:, :4] == 7).all() and (base[:, 40:] == 7).all()


def test_transposed_operands_and_leading_dimensions(device, run):
    a, b = operands(device, 24, 40, 33)
    compare(run("triton", aiter_like.gemm_a16w16, a.t().contiguous().t(), b.t().contiguous().t()), a, b)
    out = run("triton", aiter_like.gemm_a16w16, a.view(2, 3, 4, 33), b)
    assert out.shape == (2, 3, 4, 40)
    compare(out.view(24, 40), a, b)
    single = aiter_like.gemm_a16w16(a[0], b)
    assert single.shape == (40,)
    compare(single[None], a[:1], b)


@pytest.mark.parametrize("backend", ("ck", "hip", "triton"))
def test_special_values(device, run, backend):
    """Infinities and NaN go where a sum takes them; bf16 overflows to infinity."""
    a, b = torch.ones(3, 16, device=device).bfloat16(), torch.ones(8, 16, device=device).bfloat16()
    a[0, 3], a[1, 5], b[2, 5] = math.inf, math.nan, -math.inf
    out = run(backend, aiter_like.gemm_a16w16, a, b).double()
    torch.testing.assert_close(out, exact(a, b), rtol=0, atol=0, equal_nan=True)
    big = torch.full((1, 16), 2.0**127, device=device).bfloat16()
    assert run(backend, aiter_like.gemm_a16w16, big, torch.ones_like(b).abs().fill_(4)).isinf().all()


@pytest.mark.parametrize("backend", ("ck", "hip", "triton"))
def test_otype_and_empty_sizes(device, run, backend):
    a, b = operands(device, 5, 12, 24)
    out = run(backend, aiter_like.gemm_a16w16, a, b, otype=torch.float32)
    assert out.dtype == torch.float32
    compare(out, a, b)
    half = run(backend, aiter_like.gemm_a16w16, a, b, otype=torch.float16)
    assert half.dtype == torch.float16
    compare(half, a, b)
    bias = torch.randn(12, device=device).bfloat16()
    no_depth = "triton" if backend == "hip" else backend
    compare(run(no_depth, aiter_like.gemm_a16w16, a[:, :0], b[:, :0], bias), a[:, :0], b[:, :0], bias)
    assert aiter_like.gemm_a16w16(a[:0], b).shape == (0, 12)
    assert aiter_like.gemm_a16w16(a, b[:0]).shape == (5, 0)


@pytest.mark.parametrize("activation", (None, "silu", "silu_and_mul"))
def test_derivatives(device, activation):
    a, b = operands(device, 13, 40 if activation in GATED else 20, 24)
    bias, residual = torch.randn(b.shape[0], device=device).bfloat16(), torch.randn(13, 20, device=device).bfloat16()
    inputs = [one.requires_grad_() for one in (a, b, bias, residual)]
    grad = torch.randn(13, 20, device=device).bfloat16()
    out = aiter_like.gemm_a16w16(a, b, bias, residual=residual, activation=activation)
    found = torch.autograd.grad(out, inputs, grad)
    wide = [one.detach().double().requires_grad_() for one in inputs]
    expected = torch.autograd.grad(exact(*wide, activation), wide, grad.double())
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=3e-2, atol=3e-2 * other.abs().max().item())


def test_bad_input_is_named(device):
    a, b = operands(device, 4, 8, 16)
    for error, match, args, options in (
            (ValueError, "gemm_a16w16: activation must be", (a, b), {"activation": "relu6"}),
            (ValueError, "gemm_a16w16: residual must have shape", (a, b), {"residual": a}),
            (ValueError, "gemm_a16w16: B must have an even number of rows", (a, b[:7]), {"activation": "silu_and_mul"}),
            (ValueError, "gemm_a16w16: scale_a, scale_b, scale_c must be None", (a, b, None, None, b), {}),
            (TypeError, "gemm_a16w16: out must have dtype", (a, b), {"otype": torch.bfloat16,
                                                                   "out": torch.empty(4, 8, device=device)})):
        with pytest.raises(error, match=match):
            aiter_like.gemm_a16w16(*args, **options)


@pytest.mark.parametrize("m, n, k", ((1, 40, 4096), (3, 64, 1032), (64, 72, 2048), (130, 136, 1024), (257, 520, 200)))
def test_split_depth_on_hopper(device, run, m, n, k):
    """Few tiles: the depth is split, and what follows a product follows the sum. Equal calls give equal results."""
    if device.type != "cuda":
        pytest.skip("the kernel for Hopper runs on an NVIDIA GPU alone")
    a, b = operands(device, m, n, k)
    bias, residual = torch.randn(n, device=device), torch.randn(m, n, device=device).bfloat16()
    for options in ({}, {"bias": bias, "residual": residual, "activation": "silu"},
                    {"bias": bias, "residual": residual[:, :n // 2], "activation": "silu_and_mul"}):
        out = run("triton", aiter_like.gemm_a16w16, a, b, **options)
        compare(out, a, b, **options)
        assert torch.equal(out, aiter_like.gemm_a16w16(a, b, **options, backend="triton"))


@pytest.mark.parametrize("m, n, k", ((1, 8, 16), (130, 72, 200)))
def test_vendors_library(device, run, m, n, k):
    """On a GPU only; what it rounds before an activation goes to another backend."""
    if device.type != "cuda":
        with pytest.raises(aiter_like.errors.UnsupportedError, match="the vendor's library needs a GPU"):
            aiter_like.gemm_a16w16(*operands(device, m, n, k), backend="vendor")
        return
    a, b = operands(device, m, n, k)
    bias = torch.randn(n, device=device).bfloat16()
    for options in ({}, {"bias": bias}):
        compare(run("vendor", aiter_like.gemm_a16w16, a, b, **options), a, b, **options)
    with pytest.raises(aiter_like.errors.UnsupportedError, match="no activation"):
        aiter_like.gemm_a16w16(a, b, activation="silu", backend="vendor")


def test_order_without_rows():
    """On a real MI300X many rows go to hipBLASLt; few, and all that it does not serve, to our kernels."""
    target = Target("hip", "gfx942", 304, 64)
    op = OPS["gemm_a16w16"]
    for rows, options, expected in ((127, {}, "ck"), (128, {}, "vendor"), (128, {"activation": "silu"}, "ck")):
        a, b = operands("cpu", rows, 64, 64)
        call = GemmA16w16Call(a.new_empty(rows, 64), a, b)._replace(**options)
        assert select(op, Request(target, tuple(call))).candidates[0].backend.name == expected


@pytest.mark.parametrize("backend", ("ck", "triton"))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("m, n, k", ((1, 16, 32), (17, 64, 544), (63, 144, 96), (130, 48, 224), (257, 144, 64)))
def test_shuffled_weights(device, run, backend, dtype, m, n, k):
    """Also half of the last step."""
    a, b = operands(device, m, n, k, dtype)
    compare(run(backend, aiter_like.gemm_a16w16, a, aiter_like.shuffle_weight(b)), a, b)


@pytest.mark.parametrize("tile", tiles.PIPELINED)
def test_every_tile_with_shuffled_weights(device, run, monkeypatch, tile):
    """Equal bit by bit to the weights as they were, by the same tile."""
    monkeypatch.setattr(tiles, "cheapest", lambda *sizes, **given: (tile, 1))
    OPS["gemm_a16w16"].reset()
    a, b = operands(device, 300, 288, 224)
    found = run("ck", aiter_like.gemm_a16w16, a, aiter_like.shuffle_weight(b))
    compare(found, a, b)
    assert torch.equal(found, run("ck", aiter_like.gemm_a16w16, a, b))
    OPS["gemm_a16w16"].reset()


@pytest.mark.parametrize("backend", ("ck", "triton"))
@pytest.mark.parametrize("k", (32, 96))
def test_what_is_beside_the_operands_is_not_read(device, run, monkeypatch, backend, k):
    """NaN between rows, in other rows and in bands that belong to other columns of out."""
    monkeypatch.setattr(tiles, "cheapest", lambda *sizes, **given: ("t128x128_w1x4x1", 1))
    OPS["gemm_a16w16"].reset()
    a, b = operands(device, 40, 32, k)
    b[16:] = math.nan
    wide = torch.full((45, k + 24), math.nan, device=device).bfloat16()
    wide[:40, 8:k + 8] = a
    tall = torch.full((40, k + 24), math.nan, device=device).bfloat16()
    tall[:32, 8:k + 8] = b
    for weights in (b, tall[:32, 8:k + 8], aiter_like.shuffle_weight(b)):
        out = run(backend, aiter_like.gemm_a16w16, wide[:40, 8:k + 8], weights)
        compare(out[:, :16], a, b[:16])
        assert out[:, 16:].isnan().all()
    OPS["gemm_a16w16"].reset()


def test_bad_shuffled_weights_are_named(device):
    a, b = operands(device, 4, 32, 64)
    weights = aiter_like.shuffle_weight(b)
    for wrong in (weights[:24], weights[:, :48]):  # whoever sets the mark of a part by hand
        wrong.is_shuffled = True
        with pytest.raises(ValueError, match="gemm_a16w16: shuffled, B must be contiguous"):
            aiter_like.gemm_a16w16(a[:, :wrong.shape[1]], wrong)
    with pytest.raises(ValueError, match="gemm_a16w16: B must not be shuffled where a derivative is asked for"):
        aiter_like.gemm_a16w16(a.requires_grad_(), weights)
    with torch.no_grad():
        compare(aiter_like.gemm_a16w16(a, weights), a.detach(), b)
    with pytest.raises(ValueError, match=r"gemm_a16w16: B must be shuffled by layout \(16, 16\), got \(32, 16\)"):
        aiter_like.gemm_a16w16(a, aiter_like.shuffle_weight(b, (32, 16)))


def test_names_of_aiter(device):
    """tgemm.mm, the Triton module's function and the assembly one's write what gemm_a16w16 does."""
    a, b = operands(device, 6, 12, 24)
    bias, out = torch.randn(12, device=device).bfloat16(), torch.empty(6, 12, device=device).bfloat16()
    from aiter_like.integrations.aiter.gemm import gemm

    compare(aiter_like.tgemm.mm(a, b, bias), a, b, bias)
    compare(gemm.gemm_a16w16_triton(a, b, bias, activation="silu"), a, b, bias, activation="silu")
    assert gemm.gemm_a16w16_asm(a, b, out, bias) is out
    compare(out, a, b, bias)
    a, b = operands(device, 6, 32, 64)
    out, weights = torch.empty(6, 32, device=device).bfloat16(), aiter_like.shuffle_weight(b)
    for given in (weights, weights.clone()):  # marked or not
        gemm.gemm_a16w16_asm(a, given, out.zero_(), bpreshuffle=True)
        compare(out, a, b)
    compare(aiter_like.tgemm.mm(a, weights), a, b)
    with pytest.raises(ValueError, match="B must not be shuffled without bpreshuffle"):
        gemm.gemm_a16w16_asm(a, weights, out)


def bench() -> None:
    """Beside cuBLAS, also with gates, whose activation is then another launch."""
    def gated(call):
        def of_library() -> torch.Tensor:
            out = torch.empty_like(call.out)
            aiter_like.silu_and_mul(out, torch.nn.functional.linear(call.a, call.b))
            return out

        return {"cuBLAS, silu_and_mul": of_library}

    rows, rest = (1, 8, 16, 64, 256, 1024, 4096), {"dtype": "bf16", "out_dtype": "bf16", "is_shuffled": 0}
    benching.of("gemm_a16w16", "m n k", ((m, n, k) for n, k in ((6144, 4096), (28672, 4096), (4096, 14336))
                                         for m in rows), is_gated=0, **rest)
    benching.of("gemm_a16w16", "m n k", ((m, 28672, 4096) for m in rows), beside=gated, is_gated=1, **rest)
