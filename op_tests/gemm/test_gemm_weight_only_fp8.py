# SPDX-License-Identifier: MIT
"""gemm_a16w8 of fp8 weights beside 16-bit activations: every backend against float64, odd sizes, each kind of scale."""

import functools
import math

import products
import pytest
import torch

import aiter_like
from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.dispatch import OPS, explain
from aiter_like.ops.gemm import tiles, weight_only
from aiter_like.ops.gemm.gemm_weight_only import CK_TILES, GemmWeightOnlyCall
from aiter_like.testing import strided_like

BACKENDS = ("ck", "triton")
KINDS = ("one", "rows", "groups", "blocks")


class Weights:
    """Random fp8 weights, their scales, and what they stand for in float64."""

    def __init__(self, device, n, k, kind="blocks", dtype=torch.float32, seed=0):
        generator = torch.Generator().manual_seed(seed + 31 * n + k)
        fp8 = dtypes.fp8_of(target_of(device).arch)
        self.values = (torch.randn(n, k, generator=generator) * 30).to(fp8).to(device)
        self.group_size = 128 if kind in ("groups", "blocks") else None
        shape = {"one": (1,), "rows": (n,), "groups": (n, -(-k // 128)), "blocks": (-(-n // 128), -(-k // 128))}[kind]
        scale = ((torch.rand(shape, generator=generator) + 0.5) / 30).to(dtype)
        self.scale, self.kind, self.is_wide = scale.to(device), kind, False

    def wide(self, dtype=torch.float64):
        """[n, k]"""
        scale, (n, k) = self.scale.to(dtype), self.values.shape
        if self.kind == "blocks":
            scale = scale.repeat_interleave(128, 0)[:n]
        scale = scale.repeat_interleave(128, 1)[:, :k] if self.group_size else scale[:, None]
        return self.values.to(dtype) * scale

    def product(self, run, backend, a, **options):
        options["group_size"] = self.group_size
        found = explain(aiter_like.gemm_a16w8, a, self.values, self.scale, backend=backend, **options)
        self.is_wide = found.kernel == weight_only.WIDE
        return run(backend, aiter_like.gemm_a16w8, a, self.values, self.scale, **options)

    def compare(self, out, a, bias=None, residual=None, activation=None):
        """With the weights that the kernel multiplies: as they are, or rounded to 16 bits."""
        wide = self.wide(torch.float32).to(a.dtype).double() if self.is_wide and self.group_size else self.wide()
        y, magnitude = a.double() @ wide.mT, a.double().abs() @ wide.abs().mT
        if bias is not None:
            y = y + bias.double()
        if activation is not None:
            y = torch.nn.functional.silu(y)
        products.compare(out, y if residual is None else y + residual.double(), magnitude, a.shape[-1])


def activations(device, m, k, dtype=torch.bfloat16):
    return torch.randn(m, k, generator=torch.Generator().manual_seed(7919 * m + k)).to(device, dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m, n, k", ((1, 4, 8), (17, 60, 72), (63, 132, 200), (257, 300, 264)))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
def test_sizes(device, run, backend, m, n, k, kind, dtype):
    """Last blocks of a part of their rows and columns; a scale of either dtype."""
    weights = Weights(device, n, k, kind, torch.float32 if m % 4 == 1 else dtype)
    a = activations(device, m, k, dtype)
    weights.compare(weights.product(run, backend, a), a)


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_that_only_triton_takes(device, run, kind):
    weights, a = Weights(device, 131, 137, kind), activations(device, 5, 137)
    weights.values = weights.values.t().contiguous().t()
    weights.compare(weights.product(run, "triton", a), a)


def test_a_kernel_serves_by_default(device):
    for m, kind in ((1, "blocks"), (300, "one")):
        weights, a = Weights(device, 256, 256, kind), activations(device, m, 256)
        found = explain(aiter_like.gemm_a16w8, a, weights.values, weights.scale, group_size=weights.group_size)
        assert found.backend == ("triton" if device.type == "cuda" and torch.version.cuda else "ck"), str(found)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
def test_every_weight_is_exact(device, run, backend, dtype):
    """Activations that pick one weight each, of all finite ones."""
    bits = torch.arange(256, dtype=torch.uint8)
    every = bits.view(dtypes.fp8_of(target_of(device).arch))
    every = every[every.float().isfinite()]
    every = torch.cat((every.view(torch.uint8), every.view(torch.uint8)[:256 - len(every)])).view(every.dtype)
    every = every.view(8, 32).to(device)
    for rows in torch.eye(32, device=device, dtype=dtype).split(16):
        out = run(backend, aiter_like.gemm_a16w8, rows, every, torch.ones(8, device=device), otype=torch.float32)
        assert torch.equal(out, rows.float() @ every.float().t())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ("one", "blocks"))
def test_what_follows_a_product(device, run, backend, kind):
    weights, a = Weights(device, 196, 144, kind), activations(device, 11, 144)
    options = {"bias": torch.randn(196, device=device), "activation": "silu",
               "residual": torch.randn(11, 196, device=device).bfloat16()}
    weights.compare(weights.product(run, backend, a, **options), a, **options)


@pytest.mark.parametrize("tile", CK_TILES)
@pytest.mark.parametrize("splits", (1, 16))
def test_every_tile_and_split(device, run, monkeypatch, tile, splits):
    """Tiles that begin within a block of scales, and such as have several; a depth of which the last split has a part,
    or nothing."""
    monkeypatch.setattr(tiles, "cheapest", lambda *sizes, **given: (tile, splits))
    OPS["gemm_weight_only"].reset()
    weights, a = Weights(device, 420, 1096), activations(device, 70, 1096)
    out = weights.product(run, "ck", a)
    weights.compare(out, a)
    assert torch.equal(out, weights.product(run, "ck", a))
    OPS["gemm_weight_only"].reset()


@pytest.mark.parametrize("kind", KINDS)
def test_wide_weights(device, kind):
    """16-bit weights from a kernel of their own: exact without groups, rounded once with them."""
    from aiter_like.jit.triton_launch import Launcher
    from aiter_like.ops.gemm.triton.gemm_weight_only import gemm_weight_only

    weights, a = Weights(device, 141, 392, kind), activations(device, 130, 392)
    weights.is_wide = True
    residual = activations(device, 130, 141)
    out, bias = torch.empty_like(residual), torch.randn(141, device=device)
    rows = {"one": 0, "blocks": 128}.get(kind, 1)
    scale = weights.scale if weights.group_size else weights.scale.view(-1, 1)
    call = GemmWeightOnlyCall(out, a, strided_like(weights.values, (3, 0)), scale, None, bias, residual, 8,
                              weights.group_size or 0, "silu", rows)
    Launcher(functools.partial(gemm_weight_only, kernel=weight_only.WIDE, wide=1))(call)
    weights.compare(out, a, bias, residual, "silu")


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_and_leading_dimensions(device, run, backend):
    """Nothing between the rows of `out` is written."""
    weights, a = Weights(device, 136, 144), activations(device, 12, 144)
    weights.values, a = strided_like(weights.values, (5, 0)), strided_like(a, (3, 0))
    base = torch.full((12, 150), 7.0, device=device).bfloat16()
    weights.compare(weights.product(run, backend, a, out=base[:, 4:140]), a)
    assert (base[:, :4] == 7).all() and (base[:, 140:] == 7).all()
    assert weights.product(run, backend, a.contiguous().view(2, 6, 144)).shape == (2, 6, 136)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_special_values(device, run, backend, kind):
    """The NaN of a weight and of a scale reach the sums that they are part of, and no others."""
    weights, a = Weights(device, 136, 256, kind), torch.ones(4, 256, device=device).bfloat16()
    a[0, 3], a[1, 5] = math.inf, math.nan
    weights.values.view(torch.uint8)[7, 9] = 0x80 if weights.values.dtype == torch.float8_e4m3fnuz else 0x7F
    if kind != "one":
        weights.scale[-1] = math.nan
    expected = a.double() @ weights.wide().mT
    out = weights.product(run, backend, a).double()
    assert torch.equal(out.isnan(), expected.isnan()) and expected[2:].isnan().any() and not expected[2:].isnan().all()
    assert torch.equal(out.isinf(), expected.isinf())


def test_bad_input_is_named(device):
    weights, a = Weights(device, 260, 256), activations(device, 4, 256)
    b, scale = weights.values, weights.scale
    is_fnuz = b.dtype == torch.float8_e4m3fnuz
    other = torch.float8_e4m3fn if is_fnuz else torch.float8_e4m3fnuz
    points = torch.zeros(3, 2, dtype=torch.int8, device=device)
    out = torch.full((4, 260), 7.0, device=device).bfloat16()
    for error, match, given, options in (
            (TypeError, "B must have the fp8 of this device", (b.to(other), scale), {}),
            (ValueError, "zero_points must be None", (b, scale), {"zero_points": points}),
            (ValueError, r"scale must have shape \(260, 4\)", (b, scale), {"group_size": 64}),
            (ValueError, r"scale must have shape \(260, 2\)", (b, scale[:2]), {}),
            (ValueError, r"scale must have shape \(3, 2\)", (b, scale[:, :1].contiguous()), {}),
            (ValueError, r"scale must have shape \(260, 1\)", (b, scale), {"group_size": None})):
        with pytest.raises(error, match=f"gemm_a16w8: {match}"):
            aiter_like.gemm_a16w8(a, *given, out=out, **{"group_size": 128} | options)
    with pytest.raises(TypeError, match="gemm_a16w4: B must have dtype"):
        aiter_like.gemm_a16w4(a, b[:, :128], scale, group_size=128)
    assert (out == 7).all()
