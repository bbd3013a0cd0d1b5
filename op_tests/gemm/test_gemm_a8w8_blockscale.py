# SPDX-License-Identifier: MIT
"""gemm_a8w8_blockscale: every backend against float64, odd sizes, last blocks that are parts, shuffled weights, both
presentations of the scales, activations that are quantised in the call."""

import functools
import math

import benching
import products
import pytest
import torch

import aiter_like
from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.dispatch import OPS, explain
from aiter_like.errors import UnsupportedError
from aiter_like.ops.common import quant_rule
from aiter_like.ops.gemm import few_rows, tiles
from aiter_like.ops.gemm import gemm_a8w8_blockscale as operator
from aiter_like.testing import strided_like

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
BACKENDS, HOPPER = ("ck", "triton"), "gemm_a8w8_blockscale_hopper"
COARSE = 2.0**-11
"""What Hopper's matrix units lose of a block's products, as a part of their magnitudes: they keep about 14 bits behind
the largest of 32 (DeepSeek-V3's report, section 3.3.2)."""
PLAIN, SHUFFLED = aiter_like.gemm_a8w8_blockscale, aiter_like.gemm_a8w8_blockscale_bpreshuffle


def exact(a, b, a_scale, b_scale):
    """(result, sum of the products' magnitudes) in float64, written apart from the operator's reference."""
    a, b, a_scale = a.double(), b.double(), a_scale.double()
    b_scale = b_scale.double().repeat_interleave(128, 0)[:b.shape[0]]
    result = magnitude = torch.zeros(len(a), len(b), dtype=torch.float64, device=a.device)
    for left, right, row, column in zip(a.split(128, 1), b.split(128, 1), a_scale.unbind(1), b_scale.unbind(1)):
        scale = row[:, None] * column
        result, magnitude = result + left @ right.mT * scale, magnitude + left.abs() @ right.abs().mT * scale.abs()
    return result, magnitude


def compare(out, a, b, a_scale, b_scale) -> None:
    products.compare(out, *exact(a, b, a_scale, b_scale), a.shape[1], COARSE if out.device.type == "cuda" else 0.0)


def operands(device, m, n, k, seed=0, spread=4):
    """Normal numbers, and scales over 2^±spread, so that one at a wrong place is seen."""
    generator = torch.Generator().manual_seed(seed + 7919 * m + 31 * n + k)
    fp8 = dtypes.fp8_of(target_of(device).arch)
    a, b = (torch.randn(rows, k, generator=generator).to(fp8) for rows in (m, n))
    blocks = math.ceil(k / 128)
    a_scale, b_scale = (torch.exp2((torch.rand(rows, blocks, generator=generator) * 2 - 1) * spread)
                        for rows in (m, math.ceil(n / 128)))
    return tuple(one.to(device) for one in (a, b, a_scale, b_scale))


def block_major(scale):
    """The same scales with blocks outermost in memory, by strides that say so."""
    return scale.t().contiguous().t()


@pytest.mark.parametrize("backend, m, n, k", (
    ("ck", 1, 4, 16), ("ck", 17, 60, 128), ("ck", 16, 64, 528), ("ck", 63, 132, 272), ("ck", 130, 260, 208),
    ("triton", 1, 1, 1), ("triton", 1, 4, 16), ("triton", 17, 61, 128), ("triton", 16, 64, 527),
    ("triton", 63, 132, 272), ("triton", 257, 260, 208)))
def test_sizes(device, run, backend, m, n, k):
    """Rows, columns and depth that are no multiples of a tile or of a block of scales."""
    given = operands(device, m, n, k)
    compare(run(backend, PLAIN, *given), *given)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("m, n, k", ((1, 16, 32), (1, 48, 128), (19, 144, 288), (130, 272, 384)))
def test_shuffled_weights(device, run, backend, m, n, k):
    """Both presentations of the scales, also where one row or one block makes their strides alike."""
    a, b, a_scale, b_scale = operands(device, m, n, k)
    weights = aiter_like.shuffle_weight(b)
    strided = block_major(a_scale)
    flat = strided.t().reshape(a_scale.shape)  # the same memory, reported as contiguous
    first = run(backend, SHUFFLED, a, weights, strided, b_scale)
    compare(first, a, b, a_scale, b_scale)
    for scale in (strided, flat):
        assert torch.equal(run(backend, SHUFFLED, a, weights, scale, b_scale), first)
        unmarked = weights.clone()
        assert torch.equal(run(backend, PLAIN, a, unmarked, scale, b_scale, isBpreshuffled=True), first)


@pytest.fixture
def tile_of(monkeypatch):
    """Makes backend ck take a tile and splits."""

    def choose(tile: str, splits: int = 1) -> None:
        for choice in ((tiles, "cheapest"), (few_rows, "chosen")):
            monkeypatch.setattr(*choice, lambda *sizes, **given: (tile, splits))
        OPS["gemm_a8w8_blockscale"].reset()

    yield choose
    monkeypatch.undo()
    OPS["gemm_a8w8_blockscale"].reset()


BUILDS = tuple((one, is_shuffled) for is_shuffled, names in ((False, tiles.SCALED), (True, tiles.SCALED_SHUFFLED))
               for one in dict.fromkeys((*names, *few_rows.TILES)))
PIPELINED = [one for one in BUILDS if tiles.is_pipelined(tiles.parse(one[0], operator.CK_TILES))]


@pytest.mark.parametrize("tile, is_shuffled, splits", (
    *((*one, splits) for one in BUILDS for splits in (1, 2)), *((one, False, 16) for one in tiles.SCALED)))
def test_every_tile_and_split(device, run, tile_of, tile, is_shuffled, splits):
    """A depth of which the last wave or split has a part, or nothing; equal calls give equal results."""
    tile_of(tile, splits)
    a, b, a_scale, b_scale = operands(device, 70, 144, 1312)
    given = (a, aiter_like.shuffle_weight(b), block_major(a_scale)) if is_shuffled else (a, b, a_scale)
    function = SHUFFLED if is_shuffled else PLAIN
    first = run("ck", function, *given, b_scale)
    compare(first, a, b, a_scale, b_scale)
    assert torch.equal(first, function(*given, b_scale, backend="ck"))


@pytest.mark.parametrize("tile, is_shuffled", PIPELINED)
def test_edges_of_pipelined_tiles(device, run, tile_of, tile, is_shuffled):
    """Several tiles with parts over every edge, of which nothing is read or written: there are NaN; then one row, one
    block, and none of either.
    """
    tile_of(tile)
    for m, n, k in ((141, 272, 288), (1, 16, 32)):
        a, b, a_scale, b_scale = operands(device, m, n, k)
        views = [strided_like(one, (2, apart)) for one, apart in ((a, 16), (b, 32), (a_scale, 1), (b_scale, 3))]
        given = dict(WQ=views[1], isBpreshuffled=False)
        if is_shuffled:
            given = dict(WQ=aiter_like.shuffle_weight(b), isBpreshuffled=True)
            views[2] = block_major(a_scale)
        base = torch.full((m + 2, n + 8), 7.0, device=device).bfloat16()
        run("ck", PLAIN, views[0], x_scale=views[2], w_scale=views[3], out=base[:m, 4:n + 4], **given)
        compare(base[:m, 4:n + 4], a, b, a_scale, b_scale)
        base[:m, 4:n + 4] = 7
        assert (base == 7).all()
    if not is_shuffled:
        zero = run("ck", PLAIN, a[:, :0], b[:, :0], a_scale[:, :0], b_scale[:, :0])
        assert zero.shape == (1, 16) and (zero == 0).all()
    assert PLAIN(a[:0], given["WQ"], a_scale[:0], b_scale, isBpreshuffled=is_shuffled, backend="ck").shape == (0, 16)


@pytest.mark.parametrize("blocks", (3, pytest.param(65, marks=pytest.mark.exhaustive)))
def test_scales_of_many_rows(device, run, tile_of, blocks):
    """From 2,048 rows on scales by rows are turned beforehand, 64 rows and blocks at a time: the same to the bit."""
    tile_of("t128x128_w2x2x1")
    a, b, a_scale, b_scale = operands(device, 2053, 16, 128 * blocks)
    expected = run("ck", PLAIN, a, b, block_major(a_scale), b_scale)
    compare(expected, a, b, a_scale, b_scale)
    for scale in (a_scale, strided_like(a_scale, (3, 0))):
        assert torch.equal(run("ck", PLAIN, a, b, scale, b_scale), expected)
    same = a_scale[:1].expand(2053, blocks)
    compare(run("ck", PLAIN, a, b, same, b_scale), a, b, same, b_scale)


@pytest.mark.parametrize("tile, is_shuffled", PIPELINED)
def test_special_values_in_pipelined_tiles(device, run, tile_of, tile, is_shuffled):
    """NaN and infinity of a block stay in its rows and columns, whichever strip is scaled beside it."""
    tile_of(tile)
    a, b, a_scale, b_scale = operands(device, 132, 144, 416, spread=0)
    a, b = a.float(), b.float()
    a[3, 5], a[131, 410], b[130, 140] = math.nan, math.nan, math.nan
    a, b = (one.to(dtypes.fp8_of(target_of(device).arch)) for one in (a, b))
    a_scale[7, 2], a_scale[40, 0], a_scale[70, 3], b_scale[1, 1] = math.nan, math.inf, -math.inf, 0.0
    weights = aiter_like.shuffle_weight(b) if is_shuffled else b
    scale = block_major(a_scale) if is_shuffled else a_scale
    out = run("ck", PLAIN, a, weights, scale, b_scale, isBpreshuffled=is_shuffled).double()
    expected, _ = exact(a, b, a_scale, b_scale)
    assert torch.equal(out.isnan(), expected.isnan()) and torch.equal(out.isinf(), expected.isinf())
    assert all(out[row].isnan().all() for row in (3, 7, 131)) and all(out[row].isinf().any() for row in (40, 70))
    finite = expected.isfinite()
    torch.testing.assert_close(out[finite], expected[finite], rtol=2**-8, atol=2**-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", (BF16, FP16, FP32), ids=str)
def test_dtypes_of_out(device, run, backend, dtype):
    given = operands(device, 9, 36, 160, spread=1)
    out = run(backend, PLAIN, *given, dtype)
    assert out.dtype == dtype
    compare(out, *given)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", (BF16, FP16), ids=str)
@pytest.mark.parametrize("m, k", ((5, 256), (3, 208), (1, 64)))
def test_activations_quantised_in_the_call(device, run, backend, dtype, m, k):
    """As by the rule of the quantisers, then multiplied; a last block that is a part has a scale of its own."""
    if device.type == "cuda" and backend == "ck":
        pytest.skip("backend ck is for gfx942")
    _, b, _, b_scale = operands(device, m, 36, k)
    x = torch.randn(m, k, generator=torch.Generator().manual_seed(k)).to(device, dtype)
    parts = [x[:, first:first + 128].float() for first in range(0, k, 128)]
    scales = [quant_rule.row_scales(part, b.dtype) for part in parts]
    q = torch.cat([quant_rule.quantised(*pair, b.dtype) for pair in zip(parts, scales)], 1)
    a_scale = torch.cat(scales, 1)
    *quantisers, product = explain(PLAIN, x, b, None, b_scale, backend=backend)
    assert len(quantisers) == (k > 128) + (k % 128 > 0) and product.backend == backend
    out = PLAIN(x, b, None, b_scale, backend=backend)
    compare(out, q, b, a_scale, b_scale)
    assert torch.equal(out, run(backend, PLAIN, q, b, a_scale, b_scale))
    if k % 32 == 0:
        wide = torch.cat([b, b[:12]])
        shuffled = SHUFFLED(x, aiter_like.shuffle_weight(wide), None, b_scale, backend=backend)
        compare(shuffled, q, wide, a_scale, b_scale)


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides(device, run, backend):
    """Rows apart in all of them, also of the scales; nothing between the rows of `out` is written."""
    a, b, a_scale, b_scale = operands(device, 19, 140, 272)
    views = [strided_like(one, (apart, 0)) for one, apart in ((a, 3), (b, 5), (a_scale, 2), (b_scale, 1))]
    base = torch.full((19, 160), 7.0, device=device).bfloat16()
    compare(run(backend, PLAIN, *views, out=base[:, 4:144]), a, b, a_scale, b_scale)
    compare(base[:, 4:144], a, b, a_scale, b_scale)
    assert (base[:, :4] == 7).all() and (base[:, 144:] == 7).all()
    one = a_scale[:, :1].expand(19, 3)  # a scale for each row alone
    compare(run(backend, PLAIN, a, b, one, block_major(b_scale)), a, b, one, b_scale)
    same = a_scale[:1].expand(19, 3)
    compare(run(backend, PLAIN, a, b, same, b_scale), a, b, same, b_scale)


def test_transposed_operands(device, run):
    a, b, a_scale, b_scale = operands(device, 12, 40, 144)
    columns = a.t().contiguous().t(), b.t().contiguous().t()
    compare(run("triton", PLAIN, *columns, a_scale, b_scale), a, b, a_scale, b_scale)


@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values(device, run, backend):
    """NaN and infinity in operands and scales go where a sum takes them; bf16 overflows to infinity."""
    a, b, a_scale, b_scale = operands(device, 20, 132, 272, spread=0)
    a, b = a.float(), b.float()
    a[3, 5], b[130, 140] = math.nan, math.nan
    a, b = (one.to(dtypes.fp8_of(target_of(device).arch)) for one in (a, b))
    a_scale[7, 2], a_scale[9, 0], b_scale[1, 1] = math.nan, math.inf, 0.0
    out = run(backend, PLAIN, a, b, a_scale, b_scale).double()
    expected, _ = exact(a, b, a_scale, b_scale)
    assert torch.equal(out.isnan(), expected.isnan()) and out[3].isnan().all() and out[7].isnan().all()
    assert torch.equal(out.isinf(), expected.isinf()) and out[9, :130].isinf().any()
    finite = expected.isfinite()
    torch.testing.assert_close(out[finite], expected[finite], rtol=2**-8, atol=2**-6)
    big = run(backend, PLAIN, *operands(device, 2, 4, 32)[:2], *(torch.full((rows, 1), 2.0**64, device=device)
                                                                for rows in (2, 1)))
    assert big.isinf().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_sizes(device, run, backend):
    a, b, a_scale, b_scale = operands(device, 5, 20, 32)
    zero = run(backend, PLAIN, a[:, :0], b[:, :0], a_scale[:, :0], b_scale[:, :0])
    assert zero.shape == (5, 20) and (zero == 0).all()
    assert PLAIN(a[:0], b, a_scale[:0], b_scale).shape == (0, 20)
    assert PLAIN(a, b[:0], a_scale, b_scale[:0]).shape == (5, 0)
    assert SHUFFLED(a[:0], b[:16], a_scale[:0], b_scale).shape == (0, 16)
    assert PLAIN(torch.empty(0, 32, device=device).bfloat16(), b, None, b_scale).shape == (0, 20)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("m", (304, 336))
def test_rows_that_other_kernels_get_wrong(device, run, backend, m):
    """Publicly reported: results of AITER's block-scale products are wrong or missing at these rows."""
    a, b, a_scale, b_scale = operands(device, m, 128, 128)
    compare(run(backend, PLAIN, a, b, a_scale, b_scale), a, b, a_scale, b_scale)
    compare(run(backend, SHUFFLED, a, aiter_like.shuffle_weight(b), block_major(a_scale), b_scale), a, b, a_scale,
            b_scale)


def test_bad_input_is_named(device):
    a, b, a_scale, b_scale = operands(device, 4, 32, 160)
    marked = aiter_like.shuffle_weight(b)
    other = next(one for one in (torch.float8_e4m3fn, torch.float8_e4m3fnuz) if one != a.dtype)
    op, bp = "gemm_a8w8_blockscale: ", "gemm_a8w8_blockscale_bpreshuffle: "
    for function, error, match, args, options in (
            (PLAIN, TypeError, op + f"XQ must have the fp8 of this device, fp8 on .* is {a.dtype}",
             (a.view(other), b.view(other), a_scale, b_scale), {}),
            (PLAIN, TypeError, op + "XQ must have dtype", (a.bfloat16(), b, a_scale, b_scale), {}),
            (PLAIN, TypeError, op + "x_scale must be a tensor where XQ is fp8", (a, b, None, b_scale), {}),
            (PLAIN, TypeError, op + "XQ must have dtype", (a.float(), b, None, b_scale), {}),
            (PLAIN, TypeError, op + "w_scale must be a tensor, got NoneType", (a, b, a_scale, None), {}),
            (SHUFFLED, TypeError, bp + "out must be a tensor, got list", (a, marked, a_scale, b_scale, BF16, []), {}),
            (PLAIN, ValueError, op + "x_scale must have shape", (a, b, a_scale[:, :1], b_scale), {}),
            (PLAIN, ValueError, op + "w_scale must have shape", (a, b, a_scale, b_scale.repeat(2, 1)), {}),
            (PLAIN, ValueError, op + "dtype must be", (a, b, a_scale, b_scale, torch.int8), {}),
            (PLAIN, TypeError, op + "isBpreshuffled must be", (a, b, a_scale, b_scale, BF16, 1), {}),
            (PLAIN, ValueError, op + "WQ must not be shuffled unless", (a, marked, a_scale, b_scale), {}),
            (PLAIN, TypeError, op + "out must have dtype", (a, b, a_scale, b_scale),
             {"out": torch.empty(4, 32, device=device)}),
            (SHUFFLED, ValueError, bp + "shuffled, WQ must be contiguous with n % 16",
             (a, b[:20], a_scale, b_scale), {}),
            (SHUFFLED, ValueError, bp + "x_scale must have blocks outermost",
             (a, marked, a_scale.repeat(1, 2)[:, :2], b_scale), {})):
        with pytest.raises(error, match=match):
            function(*args, **options)


def test_what_only_triton_takes(device):
    """The reason is told where ck is asked for."""
    if device.type == "cuda":
        pytest.skip("backend ck is for gfx942")
    a, b, a_scale, b_scale = operands(device, 4, 30, 144)
    with pytest.raises(UnsupportedError, match="n of 4, got k = 144, n = 30"):
        PLAIN(a, b, a_scale, b_scale, backend="ck")


def test_names_of_aiter(device):
    """The names of AITER's Triton module, and those of its kernels that write to `Out`."""
    from aiter_like.integrations.aiter.gemm import gemm

    a, b, a_scale, b_scale = operands(device, 6, 32, 160)
    weights, strided = aiter_like.shuffle_weight(b), block_major(a_scale)
    flat, out = strided.t().reshape(a_scale.shape), torch.empty(6, 32, device=device).bfloat16()
    expected = PLAIN(a, b, a_scale, b_scale, backend="triton")
    compare(expected, a, b, a_scale, b_scale)
    assert gemm.gemm_a8w8_blockscale_triton(a, b, a_scale, b_scale, y=out) is out
    compare(out, a, b, a_scale, b_scale)
    bands = weights.view(2, 16 * 160)
    for scale, is_transposed in ((flat, True), (strided, True), (a_scale, False)):
        compare(gemm.gemm_a8w8_blockscale_preshuffle_triton(a, bands, scale, b_scale,
                                                                  is_x_scale_tranposed=is_transposed),
                a, b, a_scale, b_scale)
    for function, args in ((gemm.gemm_a8w8_blockscale_out, (a, b, a_scale, b_scale, out)),
                           (gemm.gemm_a8w8_blockscale_cktile, (a, weights, flat, b_scale, out, True)),
                           (gemm.gemm_a8w8_blockscale_bpreshuffle_asm, (a, weights, out, flat, b_scale))):
        assert function(*args) is out
        compare(out, a, b, a_scale, b_scale)
        out.zero_()
    with pytest.raises(UnsupportedError, match="skip_reduce must be False"):
        gemm.gemm_a8w8_blockscale_triton(a, b, a_scale, b_scale, skip_reduce=True)
    with pytest.raises(UnsupportedError, match="bias must be None"):
        gemm.gemm_a8w8_blockscale_bpreshuffle_asm(a, weights, out, flat, b_scale, bias=out[0])


@pytest.mark.parametrize("m, n, k", ((1, 72, 4096), (3, 200, 1040), (64, 136, 2048), (130, 392, 1536), (300, 520, 656)))
def test_every_block_of_the_kernel_for_hopper(device, m, n, k):
    """All that the tuner tries, with the depth split and not; equal calls give equal results."""
    if device.type != "cuda":
        pytest.skip("the kernel for Hopper runs on an NVIDIA GPU alone")
    from aiter_like.jit.triton_launch import Launcher
    from aiter_like.ops.gemm.triton.gemm_a8w8_blockscale import gemm_a8w8_blockscale
    a, b, a_scale, b_scale = operands(device, m, n, k)
    out = torch.empty(m, n, device=device).bfloat16()
    for scale in (a_scale, block_major(a_scale)):
        call = operator.GemmA8w8BlockscaleCall(out, a, b, scale, b_scale)
        for params in operator._triton_space(target_of(device), call):
            if "swap" in params:
                launch = Launcher(functools.partial(gemm_a8w8_blockscale, kernel=HOPPER, **params))
                launch(call)
                compare(out, a, b, scale, b_scale)
                launch(again := call._replace(out=torch.empty_like(out)))
                assert torch.equal(again.out, out), params


def bench() -> None:
    """Beside cuBLAS."""
    weights = ((2112, 7168), (24576, 1536), (7168, 16384), (4096, 7168), (7168, 2048), (28672, 4096))
    benching.of("gemm_a8w8_blockscale", "m n k", ((m, n, k) for n, k in weights for m in (1, 16, 64, 256, 1024, 4096)))
