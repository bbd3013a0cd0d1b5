# SPDX-License-Identifier: MIT
"""gemm_a8w8 and gemm_a8w8_bpreshuffle: every backend against float64, FP8 and INT8, scales, shuffled weights.
"""

import itertools
import math

import benching
import products
import pytest
import torch

import aiter_like
from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.dispatch import OPS
from aiter_like.errors import UnsupportedError
from aiter_like.ops.gemm import tiles
from aiter_like.ops.gemm.gemm_a8w8 import CK_TILES
from aiter_like.testing import strided_like

BACKENDS, KINDS = ("ck", "triton"), ("fp8", "int8")
TILED = (("ck", 16, 4), ("triton", 1, 1))  # backend, what k and n must be multiples of
COARSE = 2**-9
"""Of Hopper's fp8: its matrix unit keeps 13 bits below the largest of 33 addends; of random ones, generously."""


def element(device, kind):
    return torch.int8 if kind == "int8" else dtypes.fp8_of(target_of(device).arch)


def nan_bits(dtype):
    """The byte of a NaN in fp8; of int8 it is -128, or 127."""
    return 0x7F if dtype == torch.float8_e4m3fn else 0x80


def filled(w, columns):
    """Weights whose rows go on with NaN."""
    wide = torch.full((len(w), columns), nan_bits(w.dtype), dtype=torch.uint8, device=w.device)
    wide[:, :w.shape[1]] = w.view(torch.uint8)
    return wide.view(w.dtype)


def operands(device, m, n, k, kind, seed=0):
    """XQ, WQ, x_scale, w_scale of a result whose magnitude is about 1; also numbers that the format hardly holds."""
    generator = torch.Generator().manual_seed(seed + 7919 * m + 31 * n + k)
    x, w = (torch.randn(rows, k, generator=generator) for rows in (m, n))
    if kind == "int8":
        x, w = ((one * 45).round().clamp(-128, 127) for one in (x, w))
    unit = (1 if kind == "fp8" else 45) * max(k, 1)**0.25
    scales = ((torch.rand(rows, 1, generator=generator) + 0.5).to(device) / unit for rows in (m, n))
    return *(one.to(element(device, kind)).to(device) for one in (x, w)), *scales


def exact(x, w, x_scale, w_scale, bias=None):
    """The formula in float64, written apart from the operator's reference."""
    y = x.double() @ w.double().mT * x_scale.double().reshape(-1, 1) * w_scale.double().reshape(1, -1)
    return y if bias is None else y + bias.double()


def compare(out, x, w, x_scale, w_scale, bias=None) -> None:
    magnitude = exact(x.double().abs(), w.double().abs(), x_scale.abs(), w_scale.abs(),
                      None if bias is None else bias.abs())
    coarse = COARSE if out.device.type == "cuda" and x.dtype != torch.int8 else 0.0
    products.compare(out, exact(x, w, x_scale, w_scale, bias), magnitude, x.shape[-1], coarse)


@pytest.mark.parametrize("backend, k_step, n_step", TILED, ids=BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m, n, k", ((1, 1, 1), (1, 4, 16), (17, 60, 16), (16, 64, 528), (63, 130, 80), (130, 36, 208),
                                     (257, 132, 65), (304, 20, 96), (336, 72, 32)))
def test_sizes(device, run, backend, k_step, n_step, kind, m, n, k):
    """Also those that were reported to fail elsewhere: 304 and 336 rows."""
    given = operands(device, m, math.ceil(n / n_step) * n_step, math.ceil(k / k_step) * k_step, kind)
    compare(run(backend, aiter_like.gemm_a8w8, *given), *given)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind, bias_dtype, dtype", (
    ("fp8", None, torch.float16), ("int8", torch.bfloat16, torch.bfloat16), ("fp8", torch.float32, torch.float32),
    ("int8", torch.float16, torch.float16)), ids=str)
def test_scales_and_bias(device, run, backend, kind, bias_dtype, dtype):
    """Every form of scales that callers have, a bias of any dtype."""
    x, w, x_scale, w_scale = operands(device, 37, 68, 64, kind)
    bias = None if bias_dtype is None else torch.randn(68, device=device).to(bias_dtype)
    for one, other in ((x_scale, w_scale.t()), (x_scale[:, 0], w_scale[:, 0]), (x_scale[:1], w_scale),
                       (x_scale, w_scale[0, 0]), (x_scale[:1, 0], w_scale[:1])):
        out = run(backend, aiter_like.gemm_a8w8, x, w, one, other, bias, dtype)
        assert out.dtype == dtype
        compare(out, x, w, one, other, bias)
    if bias is not None:
        assert torch.equal(aiter_like.gemm_a8w8(x, w, one, other, bias[None], dtype, backend=backend), out)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sums_of_int8_are_exact(device, run, backend):
    """Beyond the 24 bits of a float: the sum is rounded once, as an integer. A depth that is split has exact parts."""
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randint(-128, 128, (rows, 4112), generator=generator, dtype=torch.int8) for rows in (5, 36))
    x[1], w[2], w[3] = -128, -128, 127
    sums = x.long() @ w.long().mT
    assert sums.abs().max() > 2**24
    one = torch.ones(1, device=device)
    out = run(backend, aiter_like.gemm_a8w8, x.to(device), w.to(device), one, one, dtype=torch.float32)
    assert torch.equal(out.cpu(), sums.float())


CONFIGURATIONS = [(tile, splits, KINDS[index % 2], min((0, 16, 32)[index // 2 % 3], tiles.parse(tile, CK_TILES)[1]))
                  for index, (tile, splits) in enumerate(itertools.product(CK_TILES, (1, 2, 16)))]


@pytest.mark.parametrize("tile, splits, kind, band", CONFIGURATIONS)
def test_every_tile_and_split(device, run, monkeypatch, tile, splits, kind, band):
    """k is chosen so that the last split is partial or empty; padding of shuffled weights is not read."""
    monkeypatch.setattr(tiles, "cheapest", lambda *sizes, **given: (tile, splits))
    OPS["gemm_a8w8"].reset()
    given = operands(device, 70, 96, 1072, kind)
    x, w, *scales = given
    function = aiter_like.gemm_a8w8_bpreshuffle if band else aiter_like.gemm_a8w8
    if band:
        w = aiter_like.shuffle_weight(filled(w, 1088), (band, 16))
    first = run("ck", function, x, w, *scales)
    compare(first, *given)
    assert torch.equal(first, function(x, w, *scales, backend="ck"))
    OPS["gemm_a8w8"].reset()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ((16, 16), (32, 16)), ids=str)
def test_shuffled_weights(device, run, backend, kind, layout):
    """With and without the mark, of any leading dimensions; what fills K up is not read, be it NaN."""
    x, w, *scales = operands(device, 12, 96, 144, kind)
    shuffled = aiter_like.shuffle_weight(filled(w, 192), layout)
    out = run(backend, aiter_like.gemm_a8w8_bpreshuffle, x.view(2, 6, 144), shuffled, scales[0].view(2, 6, 1),
              scales[1])
    assert out.shape == (2, 6, 96)
    compare(out.view(12, 96), x, w, *scales)
    unmarked = shuffled.clone()
    assert not hasattr(unmarked, "is_shuffled")
    options = {} if layout == (16, 16) else {"layout": layout}
    again = aiter_like.gemm_a8w8_bpreshuffle(x, unmarked, *scales, **options, backend=backend)
    assert torch.equal(again, out.view(12, 96))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_strides(device, run, backend, kind):
    """Rows apart in all of them; nothing between the rows of `out` is written."""
    x, w, *scales = operands(device, 19, 36, 80, kind)
    x, w = strided_like(x, (5, 0)), strided_like(w, (3, 0))
    base = torch.full((19, 50), 7.0, device=device).bfloat16()
    compare(run(backend, aiter_like.gemm_a8w8, x, w, *scales, out=base[:, 4:40]), x, w, *scales)
    assert (base[:, :4] == 7).all() and (base[:, 40:] == 7).all()


@pytest.mark.parametrize("kind", KINDS)
def test_transposed_operands(device, run, kind):
    x, w, *scales = operands(device, 24, 40, 48, kind)
    out = run("triton", aiter_like.gemm_a8w8, x.t().contiguous().t(), w.t().contiguous().t(), *scales)
    compare(out, x, w, *scales)


@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values(device, run, backend):
    """NaN of fp8 goes where a sum takes it; infinite and NaN scales count; fp16 overflows to infinity."""
    x, w, x_scale, w_scale = operands(device, 6, 8, 32, "fp8")
    x.view(torch.uint8)[1, 5] = nan_bits(x.dtype)
    x_scale[2], x_scale[3], w_scale[4] = math.inf, math.nan, -math.inf
    out = run(backend, aiter_like.gemm_a8w8, x, w, x_scale, w_scale).double()
    expected = exact(x, w, x_scale, w_scale)
    assert torch.equal(out.isnan(), expected.isnan()) and torch.equal(out.isinf(), expected.isinf())
    assert expected.isnan()[1].all() and expected.isinf()[2].any()
    big = torch.full((1,), 1e6, device=device)
    assert run(backend, aiter_like.gemm_a8w8, x[:1], w, big, big, dtype=torch.float16).isinf().all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_empty_sizes(device, run, backend, kind):
    x, w, x_scale, w_scale = operands(device, 5, 12, 16, kind)
    bias = torch.randn(12, device=device).bfloat16()
    for one in (None, bias):
        out = run(backend, aiter_like.gemm_a8w8, x[:, :0], w[:, :0], x_scale, w_scale, one)
        assert torch.equal(out, torch.zeros_like(out) if one is None else one.expand(5, 12))
    assert aiter_like.gemm_a8w8(x[:0], w, x_scale[:0], w_scale).shape == (0, 12)
    assert aiter_like.gemm_a8w8(x, w[:0], x_scale, w_scale[:0]).shape == (5, 0)


def test_bad_input_is_named(device):
    x, w, *scales = operands(device, 4, 16, 32, "fp8")
    bits = w.view(torch.uint8)
    other = torch.float8_e4m3fn if x.dtype == torch.float8_e4m3fnuz else torch.float8_e4m3fnuz
    x_scale, w_scale = scales
    for error, match, args, options in (
            (TypeError, "gemm_a8w8: XQ must have the fp8 of this device, fp8 on .* is .*, got",
             (x.view(torch.uint8).view(other), bits.view(other), *scales), {}),
            (ValueError, "gemm_a8w8: WQ must have shape", (x, w[:, :16], *scales), {}),
            (ValueError, "gemm_a8w8: x_scale must have 1 element or shape", (x, w, x_scale[:3], w_scale), {}),
            (ValueError, "gemm_a8w8: w_scale must have 1 element or shape", (x, w, x_scale, w_scale[:4]), {}),
            (TypeError, "gemm_a8w8: dtype must be", (x, w, *scales, None, torch.int32), {}),
            (ValueError, "gemm_a8w8: splitK must be", (x, w, *scales, None, torch.bfloat16, -1), {}),
            (TypeError, "gemm_a8w8: out must have shape", (x, w, *scales), {"out": torch.empty(4, 16, device=device)})):
        with pytest.raises(error, match=match):
            aiter_like.gemm_a8w8(*args, **options)


def test_layouts_that_contradict(device):
    """Marked weights are refused where rows are expected; what cannot be shuffled, where shuffled ones are."""
    x, w, *scales = operands(device, 4, 16, 32, "int8")
    with pytest.raises(ValueError, match="gemm_a8w8: WQ must not be shuffled.*which gemm_a8w8_bpreshuffle takes"):
        aiter_like.gemm_a8w8(x, aiter_like.shuffle_weight(w), *scales)
    for weight, options, match in ((w[:12], {}, "WQ must .* rows in multiples of 16"),
                                   (w[:, :16], {}, "WQ .* at least 32, got shape"),
                                   (w, {"layout": (32, 16)}, "rows in multiples of 32"),
                                   (w.t().contiguous().t(), {}, "contiguous"),
                                   (aiter_like.shuffle_weight(w), {"layout": (32, 16)}, "as WQ is marked"),
                                   (w, {"layout": (8, 16)}, r"layout must be \(16, 16\) or \(32, 16\), got")):
        with pytest.raises(ValueError, match=f"gemm_a8w8_bpreshuffle: .*{match}"):
            aiter_like.gemm_a8w8_bpreshuffle(x, weight, scales[0], scales[1][:len(weight)], **options)


def test_depth_beyond_32_bits(device):
    """A sum that int32 might not hold goes to the reference, exactly; a kernel that is forced says why not."""
    x = torch.full((1, 2**17), -128, dtype=torch.int8, device=device)
    one = torch.ones(1, device=device)
    assert aiter_like.gemm_a8w8(x, x, one, one, dtype=torch.float32).item() == 2.0**31
    for backend in BACKENDS if device.type == "cpu" else BACKENDS[1:]:
        with pytest.raises(UnsupportedError, match="sums of int8 have 32 bits"):
            aiter_like.gemm_a8w8(x.expand(4, -1).contiguous(), x.expand(4, -1).contiguous(), one, one, backend=backend)


@pytest.mark.parametrize("m, n, k", ((16, 64, 128), (130, 80, 208)))
def test_vendors_library(device, run, m, n, k):
    """On Hopper, of fp8; what it does not serve goes to another backend."""
    x, w, *scales = operands(device, m, n, k, "fp8")
    if device.type != "cuda":
        with pytest.raises(UnsupportedError, match="the vendor's library needs a GPU"):
            aiter_like.gemm_a8w8(x, w, *scales, backend="vendor")
        return
    bias = torch.randn(n, device=device).bfloat16()
    for options in ({}, {"bias": bias}):
        compare(run("vendor", aiter_like.gemm_a8w8, x, w, *scales, **options), x, w, *scales, **options)
    one = (scales[0][0], scales[1][0])
    compare(run("vendor", aiter_like.gemm_a8w8, x, w, *one), x, w, *one)
    for args, reason in (((x, w, scales[0], one[1]), "one each"), ((x, w, *scales, None, torch.float16), "in bf16"),
                         ((x[:, :-1], w[:, :-1], *scales), "multiples of 16"),
                         ((x.view(torch.int8), w.view(torch.int8), *scales), "fp8 with scales")):
        with pytest.raises(UnsupportedError, match=reason):
            aiter_like.gemm_a8w8(*args, backend="vendor")


def test_names_of_aiter(device):
    from aiter_like.integrations.aiter.gemm import gemm

    x, w, *scales = operands(device, 6, 32, 64, "int8")
    bias = torch.randn(32, device=device)
    compare(gemm.gemm_a8w8_CK(x, w, *scales, None, torch.bfloat16, 2), x, w, *scales)
    for layout in ((32, 16), (16, 16)):
        shuffled = aiter_like.shuffle_weight(w, layout)
        compare(gemm.gemm_a8w8_ASM(x, shuffled, *scales, bias[None]), x, w, *scales, bias)
    with pytest.raises(ValueError, match="gemm_a8w8_ASM: WQ must be as shuffle_weight returns it"):
        gemm.gemm_a8w8_ASM(x, shuffled.clone(), *scales, bias)


@pytest.mark.parametrize("kind, is_fast", (("fp8", False), ("fp8", True), ("int8", False)))
@pytest.mark.parametrize("m, n, k", ((1, 40, 4096), (3, 64, 1040), (64, 72, 2048), (130, 136, 1024), (257, 520, 208)))
def test_split_depth_on_hopper(device, run, kind, is_fast, m, n, k):
    """Few tiles: the depth is split, and scales and bias follow the sum. Equal calls give equal results."""
    if device.type != "cuda":
        pytest.skip("the kernel for Hopper runs on an NVIDIA GPU alone")
    given = operands(device, m, n, k, kind)
    bias = torch.randn(n, device=device)
    for options in ({}, {"bias": bias}):
        out = run("triton", aiter_like.gemm_a8w8, *given, **options, use_fast_accum=is_fast)
        compare(out, *given, **options)
        assert torch.equal(out, aiter_like.gemm_a8w8(*given, **options, use_fast_accum=is_fast, backend="triton"))


@pytest.mark.parametrize("m, kind, is_fast, instruction", ((4096, "fp8", False, "QGMMA.64x128x32.F32"),
                                                           (4096, "fp8", True, "QGMMA.64x256x32.F32"),
                                                           (4096, "int8", False, "IGMMA.64x128x32.S8.S8"),
                                                           (16, "fp8", False, "QGMMA.64x16x32.F32")))
def test_code_for_hopper(monkeypatch, tmp_path, m, kind, is_fast, instruction):
    """The matrix unit of fp8 or int8, nothing in local memory; sums of fp8 go on in fp32 unless they may not."""
    from hopper_code import compiled_for_hopper, disassembled

    from aiter_like.ops.gemm.gemm_a8w8 import GemmA8w8Call
    from aiter_like.ops.gemm.triton import gemm_a8w8

    dtype = torch.int8 if kind == "int8" else torch.float8_e4m3fn
    a, b = torch.empty(m, 4096, dtype=dtype), torch.empty(4096, 4096, dtype=dtype)
    call = GemmA8w8Call(torch.empty(m, 4096).bfloat16(), a, b, torch.empty(m), torch.empty(4096), None, 0, is_fast)
    with compiled_for_hopper(monkeypatch, gemm_a8w8) as built:
        gemm_a8w8.gemm_a8w8(call, "gemm_a8w8_hopper")
    code = disassembled(built[0], tmp_path)
    assert instruction in code and "LDL" not in code and "STL" not in code
    assert ("FADD" in code) == (kind == "fp8" and not is_fast)


def bench() -> None:
    """Beside cuBLAS."""
    benching.of("gemm_a8w8", "weight_dtype use_fast_accum m n k", (
        (*kind, m, n, k) for kind in (("fp8", 0), ("fp8", 1), ("i8", 0))
        for n, k in ((6144, 4096), (28672, 4096), (4096, 14336)) for m in (16, 32, 64, 256, 1024, 4096)))
