# SPDX-License-Identifier: MIT
"""gemm_a16w8 and gemm_a16w4: every backend against float64 of the dequantised weights, odd sizes, groups."""

import functools
import math

import benching
import products
import pytest
import torch

import aiter_like
from aiter_like.dispatch import OPS, explain
from aiter_like.ops.gemm import tiles, weight_only
from aiter_like.ops.gemm.gemm_weight_only import CK_TILES, GemmWeightOnlyCall
from aiter_like.testing import strided_like

ACTIVATIONS = {None: lambda x: x, "silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu,
               "gelu_tanh": functools.partial(torch.nn.functional.gelu, approximate="tanh")}
FUNCTIONS = {8: aiter_like.gemm_a16w8, 4: aiter_like.gemm_a16w4}
TILED = (("ck", 8, 4), ("triton", 2, 1))  # backend, what k and n must be multiples of; two weights are in a byte


class Weights:
    """Random integers of all values, with scales and zero points, and what they stand for in float64."""

    def __init__(self, device, n, k, bits, group_size=None, dtype=torch.bfloat16, has_zero_points=False, seed=0):
        generator = torch.Generator().manual_seed(seed + 31 * n + k)
        low, groups = -(1 << bits - 1), -(-k // group_size) if group_size else 1
        integers = torch.randint(low, -low, (n, k), generator=generator, dtype=torch.int8)
        scale = ((torch.rand(n, groups, generator=generator) + 0.5) / -low).to(dtype)
        zero_points = torch.randint(low, -low, (n, groups), generator=generator, dtype=torch.int8)
        self.zero_points = zero_points.to(device) if has_zero_points else None
        self.scale, self.group_size, self.function = scale.to(device), group_size, FUNCTIONS[bits]
        self.packed = (integers if bits == 8 else (integers[:, ::2] & 15) | (integers[:, 1::2] << 4)).to(device)

        def of_weights(x):
            return (x.double().repeat_interleave(group_size, 1)[:, :k] if group_size else x.double()).to(device)

        integers = integers.double().to(device) - (of_weights(zero_points) if has_zero_points else 0)
        self.values, self.is_wide = integers * of_weights(scale), False
        self.in_fp32 = integers.float() * of_weights(scale).float()

    def product(self, run, backend, a, **options):
        options |= {"group_size": self.group_size, "zero_points": self.zero_points}
        explanation = explain(self.function, a, self.packed, self.scale, backend=backend, **options)
        self.is_wide = explanation.kernel == weight_only.WIDE
        return run(backend, self.function, a, self.packed, self.scale, **options)

    def compare(self, out, a, bias=None, residual=None, activation=None):
        """With the weights that the kernel multiplies: as they are, or rounded to 16 bits."""
        values = self.in_fp32.to(a.dtype).double() if self.is_wide and self.group_size else self.values
        y, magnitude = a.double() @ values.mT, a.double().abs() @ values.abs().mT
        if bias is not None:
            y = y + bias.double()
        y = ACTIVATIONS[activation](y)
        products.compare(out, y if residual is None else y + residual.double(), magnitude, a.shape[-1])


def activations(device, m, k, dtype=torch.bfloat16, seed=0):
    return torch.randn(m, k, generator=torch.Generator().manual_seed(seed + 7919 * m + k)).to(device, dtype)


@pytest.mark.parametrize("backend, k_step, n_step", TILED, ids=("ck", "triton"))
@pytest.mark.parametrize("m, n, k, group_size", ((1, 1, 2, None), (17, 60, 72, 64), (63, 130, 200, 32),
                                                 (257, 132, 264, 128)))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
def test_sizes(device, run, backend, k_step, n_step, m, n, k, group_size, dtype):
    """Odd ones, a last group of a part, and a scale of either dtype."""
    bits = 8 if (m > 60) == (dtype == torch.bfloat16) else 4
    n, k = math.ceil(n / n_step) * n_step, math.ceil(k / k_step) * k_step
    weights = Weights(device, n, k, bits, group_size, torch.float32 if m % 2 else dtype)
    a = activations(device, m, k, dtype)
    weights.compare(weights.product(run, backend, a), a)


@pytest.mark.parametrize("backend", ("ck", "triton"))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("bits, group_size", ((8, None), (4, None), (8, 32), (4, 128)))
def test_zero_points(device, run, backend, dtype, bits, group_size):
    weights = Weights(device, 44, 168, bits, group_size, has_zero_points=True, dtype=dtype)
    a = activations(device, 13, 168, dtype)
    weights.compare(weights.product(run, backend, a), a)


@pytest.mark.parametrize("backend", ("ck", "triton"))
@pytest.mark.parametrize("bits", (8, 4), ids=("w8", "w4"))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
def test_every_weight_is_exact(device, run, backend, bits, dtype):
    """Activations that pick one weight each: all 256 integers, all 16 in the low and in the high half of a byte."""
    integers = torch.arange(256, dtype=torch.uint8).view(torch.int8).view(8, 32).to(device)
    expected = integers if bits == 8 else torch.stack((((integers << 4) >> 4), integers >> 4), -1).flatten(-2)
    for rows in torch.eye(expected.shape[1], device=device, dtype=dtype).split(16):
        out = run(backend, FUNCTIONS[bits], rows, integers, torch.ones(8, device=device))
        assert torch.equal(out.float(), rows.float() @ expected.float().t())


@pytest.mark.parametrize("backend", ("ck", "triton"))
@pytest.mark.parametrize("bits, group_size", ((8, None), (4, 64)), ids=("int8", "int4"))
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_what_follows_a_product(device, run, backend, bits, group_size, activation):
    weights, a = Weights(device, 68, 64, bits, group_size), activations(device, 11, 64)
    bias = torch.randn(68, device=device)
    options = {"bias": bias if activation is None else bias.bfloat16(), "activation": activation,
               "residual": torch.randn(11, 68, device=device).bfloat16()}
    weights.compare(weights.product(run, backend, a, **options), a, **options)


@pytest.mark.parametrize("tile", CK_TILES)
@pytest.mark.parametrize("splits", (1, 16))
def test_every_tile_and_split(device, run, monkeypatch, tile, splits):
    """k is chosen so that the last split is partial or empty; each width of weights in every second tile."""
    bits, group_size = (8, 32) if (CK_TILES.index(tile) % 2 == 0) == (splits == 1) else (4, 128)
    monkeypatch.setattr(tiles, "cheapest", lambda *sizes, **given: (tile, splits))
    OPS["gemm_weight_only"].reset()
    weights, a = Weights(device, 68, 1096, bits, group_size), activations(device, 70, 1096)
    out = weights.product(run, "ck", a)
    weights.compare(out, a)
    assert torch.equal(out, weights.product(run, "ck", a))
    OPS["gemm_weight_only"].reset()


@pytest.mark.parametrize("m, n, k, group_size", ((1, 40, 4096, 128), (3, 64, 1056, 32), (16, 136, 2080, None),
                                                 (9, 1000, 3104, 32), (8, 264, 2144, 64), (33, 264, 1024, 64),
                                                 (64, 72, 2048, 128), (65, 136, 2080, None), (200, 264, 1056, 64)))
@pytest.mark.parametrize("bits", (8, 4), ids=("int8", "int4"))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
def test_split_depth_on_hopper(device, run, m, n, k, group_size, bits, dtype):
    """Few rows and some, whose depth is split. Equal calls give equal results."""
    if device.type != "cuda":
        pytest.skip("the kernel for Hopper runs on an NVIDIA GPU alone")
    a, bias = activations(device, m, k, dtype), torch.randn(n, device=device)
    for has_zero_points in (False, True):
        weights = Weights(device, n, k, bits, group_size, dtype, has_zero_points)
        explanation = explain(weights.function, a, weights.packed, weights.scale, group_size=group_size,
                              backend="triton")
        assert explanation.kernel == (weight_only.SKINNY if m <= 16 else weight_only.STREAM)
        out = weights.product(run, "triton", a, bias=bias, activation="silu")
        weights.compare(out, a, bias, activation="silu")
        assert torch.equal(out, weights.product(run, "triton", a, bias=bias, activation="silu"))


@pytest.mark.parametrize("m, n, k, group_size, has_zero_points", (
    (1, 1, 2, None, True), (70, 37, 74, 64, True), (130, 72, 392, 128, False), (65, 129, 200, None, False)))
@pytest.mark.parametrize("bits", (8, 4), ids=("w8", "w4"))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
def test_wide_weights(device, m, n, k, group_size, has_zero_points, bits, dtype):
    """16-bit weights from a kernel of their own: exact without groups, rounded once with them; strides of `b`."""
    from aiter_like.jit.triton_launch import Launcher
    from aiter_like.ops.gemm.triton.gemm_weight_only import gemm_weight_only

    weights = Weights(device, n, k, bits, group_size, torch.float32 if k % 3 else dtype, has_zero_points)
    weights.is_wide = True
    a, residual = activations(device, m, k, dtype), activations(device, m, n, dtype)
    out, bias = torch.empty_like(residual), torch.randn(n, device=device)
    call = GemmWeightOnlyCall(out, a, strided_like(weights.packed, (3, 0)), weights.scale, weights.zero_points, bias,
                              residual, bits, group_size or 0, "silu")
    Launcher(functools.partial(gemm_weight_only, kernel=weight_only.WIDE, wide=1))(call)
    weights.compare(out, a, bias, residual, "silu")
    first = out.clone()
    Launcher(functools.partial(gemm_weight_only, kernel=weight_only.WIDE))(call)
    assert torch.equal(out, first)


@pytest.mark.parametrize("backend", ("ck", "triton"))
@pytest.mark.parametrize("bits", (8, 4), ids=("int8", "int4"))
def test_strides(device, run, backend, bits):
    """Rows apart in all of them; nothing between the rows of `out` is written."""
    weights, a = Weights(device, 36, 80, bits, 32), activations(device, 13, 80)
    weights.packed, a = strided_like(weights.packed, (5, 0)), strided_like(a, (3, 0))
    base = torch.full((13, 50), 7.0, device=device).bfloat16()
    weights.compare(weights.product(run, backend, a, out=base[:, 4:40]), a)
    assert (base[:, :4] == 7).all() and (base[:, 40:] == 7).all()


@pytest.mark.parametrize("bits", (8, 4), ids=("int8", "int4"))
def test_transposed_operands_and_leading_dimensions(device, run, bits):
    weights, a = Weights(device, 40, 34, bits, 32), activations(device, 24, 34)
    weights.packed = weights.packed.t().contiguous().t()
    weights.compare(weights.product(run, "triton", a.t().contiguous().t()), a)
    out = weights.product(run, "triton", a.view(2, 3, 4, 34))
    assert out.shape == (2, 3, 4, 40)
    weights.compare(out.view(24, 40), a)
    single = weights.product(run, "triton", a[0])
    assert single.shape == (40,)
    weights.compare(single[None], a[:1])


@pytest.mark.parametrize("backend", ("ck", "triton"))
@pytest.mark.parametrize("bits", (8, 4), ids=("int8", "int4"))
@pytest.mark.parametrize("group_size", (None, 32))
def test_special_values(device, run, backend, bits, group_size):
    """Infinities and NaN go where a sum takes them, also the NaN of a scale; bf16 overflows to infinity."""
    weights, a = Weights(device, 8, 64, bits, group_size), torch.ones(4, 64, device=device).bfloat16()
    a[0, 3], a[1, 5], a[2, 7] = math.inf, math.nan, -math.inf
    weights.scale[5, -1] = weights.values[5, -(group_size or 64):] = math.nan
    expected = a.double() @ weights.values.mT
    out = weights.product(run, backend, a).double()
    assert torch.equal(out.isnan(), expected.isnan())
    is_infinite = expected.isinf()
    assert torch.equal(out[is_infinite], expected[is_infinite]) and not out[~is_infinite].isinf().any()
    ones = torch.full((8, 64 * bits // 8), 1 if bits == 8 else 0x11, dtype=torch.int8, device=device)
    big = torch.full((1, 64), 2.0**120, device=device).bfloat16()
    weights.packed, weights.scale = ones, torch.full_like(weights.scale, 2.0**8)
    assert weights.product(run, backend, big).isinf().all()


@pytest.mark.parametrize("backend", ("ck", "triton"))
def test_otype_and_empty_sizes(device, run, backend):
    weights, a = Weights(device, 12, 32, 4, 32), activations(device, 5, 32)
    bias, nothing = torch.randn(12, device=device).bfloat16(), Weights(device, 12, 0, 4, 32)
    for otype in (torch.float32, torch.float16):
        out = weights.product(run, backend, a, otype=otype, bias=bias)
        assert out.dtype == otype
        weights.compare(out, a, bias)
    nothing.compare(nothing.product(run, backend, a[:, :0], otype=torch.float32, bias=bias), a[:, :0], bias)
    assert aiter_like.gemm_a16w4(a[:0], weights.packed, weights.scale, group_size=32).shape == (0, 12)
    assert aiter_like.gemm_a16w4(a, weights.packed[:0], weights.scale[:0], group_size=32).shape == (5, 0)


def test_packed_weights_of_pack_int4(device):
    """unpack_int4 of what pack_int4 made, as int8, gives the same; scales [n] are those of [n, 1]."""
    weights, a = Weights(device, 12, 64, 4), activations(device, 5, 64)
    unpacked = aiter_like.unpack_int4(weights.packed)
    assert torch.equal(aiter_like.pack_int4(unpacked), weights.packed)
    out = aiter_like.gemm_a16w4(a, weights.packed, weights.scale[:, 0], backend="triton")
    assert torch.equal(out, aiter_like.gemm_a16w8(a, unpacked, weights.scale, backend="triton"))
    weights.compare(out, a)


def test_bad_input_is_named(device):
    weights, a = Weights(device, 8, 64, 4, 32), activations(device, 4, 64)
    b, scale = weights.packed, weights.scale
    for error, match, args, options in (
            (ValueError, "gemm_a16w4: A must have an even last dimension", (a[:, :63], b, scale), {}),
            (ValueError, "gemm_a16w4: B must have shape", (a, b[:, :8], scale), {}),
            (ValueError, "gemm_a16w4: B must not be shuffled",
             (a, aiter_like.shuffle_weight(torch.zeros(16, 32, dtype=torch.int8, device=device)), scale), {}),
            (ValueError, "gemm_a16w4: scale must have shape", (a, b, scale), {"group_size": 64}),
            (ValueError, "gemm_a16w4: group_size must be", (a, b, scale), {"group_size": 48}),
            (ValueError, "gemm_a16w4: activation must be", (a, b, scale), {"activation": "relu6"}),
            (ValueError, "gemm_a16w4: residual must have shape", (a, b, scale), {"residual": a}),
            (TypeError, "gemm_a16w4: out must have dtype", (a, b, scale),
             {"otype": torch.bfloat16, "out": torch.empty(4, 8, device=device)})):
        with pytest.raises(error, match=match):
            aiter_like.gemm_a16w4(*args, **{"group_size": 32} | options)


@pytest.mark.parametrize("m, bits, kernel, unit", (
    (16, 4, weight_only.SKINNY, "HMMA"), (8, 8, weight_only.SKINNY, "HMMA"),
    (32, 4, weight_only.STREAM, "HMMA"), (64, 4, weight_only.STREAM, "HGMMA"), (128, 4, weight_only.STREAM, "HGMMA")))
def test_code_for_few_rows_on_hopper(monkeypatch, tmp_path, m, bits, kernel, unit):
    """The matrix unit that the blocks are for, and nothing in local memory; reads of 16 bytes without shared memory."""
    from hopper_code import compiled_for_hopper, disassembled

    from aiter_like.ops.gemm.triton import gemm_weight_only

    b, scale = torch.empty(6144, 4096 * bits // 8, dtype=torch.int8), torch.empty(6144, 32).bfloat16()
    a, out = torch.empty(m, 4096).bfloat16(), torch.empty(m, 6144).bfloat16()
    call = GemmWeightOnlyCall(out, a, b, scale, bits=bits, group_size=128)
    with compiled_for_hopper(monkeypatch, gemm_weight_only) as built:
        gemm_weight_only.gemm_weight_only(call, kernel)
    codes = [disassembled(one, tmp_path) for one in built]
    assert all("LDL" not in code and "STL" not in code for code in codes)
    code = max(codes, key=len)
    assert unit in code and (kernel == weight_only.STREAM or "LDG.E.EF.128" in code)


def test_code_for_wide_weights_on_hopper(monkeypatch):
    """Reads and writes of 16 bytes."""
    from hopper_code import compiled_for_hopper

    from aiter_like.ops.gemm.triton import gemm_a16w16, gemm_weight_only, gemm_weight_only_wide

    b, scale = torch.empty(4096, 2048, dtype=torch.int8), torch.empty(4096, 32).bfloat16()
    call = GemmWeightOnlyCall(torch.empty(256, 4096).bfloat16(), torch.empty(256, 4096).bfloat16(), b, scale, bits=4,
                              group_size=128)
    with compiled_for_hopper(monkeypatch, gemm_weight_only_wide, gemm_a16w16) as built:
        gemm_weight_only.gemm_weight_only(call, weight_only.WIDE)
    weights, product, *_ = (one.asm["ptx"] for one in built)
    assert "ld.global.v4.b32" in weights and "st.global.v4.b32" in weights and "wgmma" in product


def bench() -> None:
    """Beside products with weights that are widened beforehand, of 4 or 2 times the bytes."""
    def wide(call):
        integers = (call.b if call.bits == 8 else aiter_like.unpack_int4(call.b)).unflatten(1, (-1, 128))
        weights = (integers * call.scale[:, :, None]).to(call.a.dtype).flatten(1)
        return {"gemm_a16w16": functools.partial(aiter_like.gemm_a16w16, call.a, weights, backend="triton"),
                "cuBLAS": functools.partial(torch.nn.functional.linear, call.a, weights)}

    benching.of("gemm_weight_only", "bits m n k", (
        (bits, m, n, k) for bits in (4, 8) for n, k in ((6144, 4096), (28672, 4096), (4096, 14336), (28672, 8192))
        for m in (1, 8, 16, 32, 64, 256, 2048)), beside=wide, group_size=128, dtype="bf16", out_dtype="bf16")
