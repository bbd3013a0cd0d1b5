# SPDX-License-Identifier: MIT
"""AITER's quantisers by the names of its modules: int8 is cut off towards zero, fp8 is that of the package's own."""

import pytest
import torch
from seeded import numbers

import aiter_like
from aiter_like.enums import QuantType
from aiter_like.integrations.aiter.quant import int8 as aiter_int8

FP8, INT8 = torch.float8_e4m3fnuz, torch.int8
ROWS, COLUMNS = 5, 96


def plain(x, scale):
    """As torch converts."""
    return (x.float() * (1 / scale)).trunc().clamp(-128, 127).to(INT8)


def row_scales(x):
    return x.float().abs().amax(-1, keepdim=True) / 127


@pytest.mark.parametrize("dtype", (INT8, FP8))
def test_rows(simulated, dtype):
    x = numbers(ROWS, COLUMNS)
    second, own = aiter_int8.per_token_quant_hip(x, quant_dtype=dtype)
    out, scales = torch.empty_like(x, dtype=dtype), torch.empty(ROWS, 1)
    aiter_int8.dynamic_per_token_scaled_quant(out, x, scales)
    if dtype == INT8:
        expected = plain(x, row_scales(x))
    else:
        expected = aiter_like.per_token_quant_hip(x, quant_dtype=dtype)[0]
    assert all(torch.equal(each.float(), expected.float()) for each in (out, second))
    amax = x.float().abs().amax(-1, keepdim=True)
    for each in (own, scales):
        torch.testing.assert_close(each.view(-1, 1), amax / (127 if dtype == INT8 else torch.finfo(dtype).max))


@pytest.mark.parametrize("dtype", (INT8, FP8))
def test_tensors(simulated, dtype):
    x, given = numbers(ROWS, COLUMNS), torch.tensor([0.03])
    out = torch.empty_like(x, dtype=dtype)
    aiter_int8.static_per_tensor_quant(out, x, given)
    if dtype == INT8:
        assert torch.equal(out, plain(x, given))
    else:
        assert torch.equal(out.float(), aiter_like.per_tensor_quant_hip(x, given, dtype)[0].float())
    whole = x.float().abs().amax().view(1) / (127 if dtype == INT8 else torch.finfo(dtype).max)
    out, scale = torch.empty_like(x, dtype=dtype), torch.empty(1)
    aiter_int8.dynamic_per_tensor_quant(out, x, scale)
    torch.testing.assert_close(scale, whole)
    if dtype == INT8:
        assert torch.equal(out, plain(x, scale))
    found, scale = aiter_int8.per_tensor_quant_hip(x, quant_dtype=dtype)
    assert scale.shape == (1,) and torch.equal(found.float(), out.float())
    found, scale = aiter_int8.per_tensor_quant_hip(x, given, quant_dtype=dtype)
    assert scale.data_ptr() == given.data_ptr()


def test_first_rows_bounds_and_groups(simulated):
    """With groups int8 is rounded to nearest, as by the package's own."""
    x = numbers(ROWS, 256)
    count = torch.tensor([2], dtype=torch.int32)
    found, scale = aiter_int8.per_token_quant_hip(x, num_rows=count, num_rows_factor=2)
    assert torch.equal(found[:4], plain(x, row_scales(x))[:4]) and torch.equal(scale[:4], row_scales(x)[:4])
    out, scales = torch.empty(ROWS, 256, dtype=INT8), torch.empty(ROWS, 2)
    aiter_int8.dynamic_per_token_scaled_quant(out, x, scales)
    assert torch.equal(out, aiter_like.per_group_quant_hip(x, group_size=128)[0])
    bound, scales = torch.tensor([1.0]), torch.empty(ROWS, 1)
    aiter_int8.dynamic_per_token_scaled_quant(out, x, scales, bound)
    assert torch.equal(scales, row_scales(x).clamp(max=1 / 127)) and torch.equal(out, plain(x, scales))


@pytest.mark.parametrize("dtype", (INT8, FP8))
def test_names_of_the_triton_forms(simulated, dtype):
    x = numbers(ROWS, COLUMNS)
    for name in ("per_token_quant", "per_tensor_quant"):
        found, expected = (getattr(aiter_int8, f"{name}_{kind}")(x, quant_dtype=dtype) for kind in ("triton", "hip"))
        assert torch.equal(found[0].float(), expected[0].float()) and torch.equal(found[1], expected[1])
    given = torch.tensor([0.25])
    assert torch.equal(aiter_int8.per_tensor_quant_triton(x, given)[0], aiter_int8.per_tensor_quant_hip(x, given)[0])
    with pytest.raises(ValueError, match="per_token_quant_triton: scale must be None, got Tensor"):
        aiter_int8.per_token_quant_triton(x, given)


def test_quantisers_of_types(simulated):
    x = numbers(ROWS, 256)
    for found in (aiter_int8.get_hip_quant, aiter_int8.get_triton_quant):
        q, scale = found(QuantType.per_Token)(x, quant_dtype=INT8)
        assert torch.equal(q, plain(x, row_scales(x))) and torch.equal(scale, row_scales(x))
        q, scale = found(QuantType.per_Tensor)(x, torch.tensor([0.03]), quant_dtype=INT8)
        assert torch.equal(q, plain(x, torch.tensor([0.03])))
        q, scale = found(QuantType.per_1x128)(x, quant_dtype=FP8)
        assert scale.shape == (ROWS, 2)
        assert found(QuantType.No)(x)[0] is x
        q, _ = found(QuantType.per_Token)(x, quant_dtype=FP8)
        assert torch.equal(q.float(), aiter_like.per_token_quant_hip(x, quant_dtype=FP8)[0].float())


@pytest.mark.parametrize("dtype", (INT8, FP8))
def test_smoothed(simulated, dtype):
    """Rows, and rows of experts of which one is none."""
    x, factors = numbers(ROWS, COLUMNS), numbers(3, COLUMNS, seed=1).float()
    ids = torch.tensor([[0, 2], [1, -1], [2, 0], [0, 1], [3, 1]], dtype=torch.int32)
    out, scale = torch.empty_like(x, dtype=dtype), torch.empty(ROWS, 1)
    aiter_int8.smoothquant_fwd(out, x, factors[:1], scale)
    slots, scales = torch.empty(2 * ROWS, COLUMNS, dtype=dtype), torch.empty(2 * ROWS, 1)
    aiter_int8.moe_smoothquant_fwd(slots, x, factors, ids, scales)
    if dtype == INT8:
        own = row_scales(x.float() * factors[0])
        assert torch.equal(out, plain(x.float() * factors[0], own)) and torch.equal(scale, own)
        taken = ids.t().flatten().long()
        is_expert = ((taken >= 0) & (taken < 3))[:, None]
        rows = torch.where(is_expert, x.float().repeat(2, 1) * factors[taken.clamp(0, 2)], 0.0)
        own = row_scales(rows).clamp(min=2**-110 / 127)
        assert torch.equal(slots, plain(rows, own)) and torch.equal(scales, own)
    else:
        expected, found = torch.empty_like(out), torch.empty_like(scale)
        aiter_like.smoothquant_fwd(expected, x, factors[0], found)
        assert torch.equal(out.float(), expected.float()) and torch.equal(scale, found)
        expected, found = torch.empty_like(slots), torch.empty_like(scales)
        aiter_like.moe_smoothquant_fwd(expected, x, factors, ids, found)
        assert torch.equal(slots.float(), expected.float()) and torch.equal(scales, found)


def test_in_torch(simulated):
    """AITER's quotient and `to`; fp8 and the scales are those of the package's own."""
    x, factors = numbers(ROWS, 256), numbers(256, seed=1).abs()
    q, scale = aiter_int8.pertoken_quant(x)
    assert torch.equal(scale, row_scales(x)) and torch.equal(q, (x.float() / row_scales(x)).to(INT8))
    q, scale = aiter_int8.pertoken_quant(x, None, factors, torch.bfloat16)
    own = row_scales(x.float() * factors)
    assert torch.equal(scale, own.bfloat16()) and torch.equal(q, (x.float() * factors / own).to(INT8))
    q, _ = aiter_int8.pertoken_quant(x.fill_diagonal_(float("nan")), torch.full((ROWS, 1), 0.01))
    assert q.diagonal().eq(0).all() and q.max() == 127 and q.min() == -128
    x = numbers(ROWS, 256)
    for given in (None, torch.tensor([0.03])):
        q, scale = aiter_int8.get_torch_quant(QuantType.per_Tensor)(x, given)
        assert scale.shape == (1,) and torch.equal(q, (x.float() / scale).clamp(-128, 127).to(INT8))
    q, scale = aiter_int8.get_torch_quant(QuantType.per_1x128)(x, quant_dtype=INT8)
    assert scale.shape == (ROWS, 2)
    assert torch.equal(q.view(ROWS, 2, 128), (x.float().view(ROWS, 2, 128) / scale[..., None]).to(INT8))
    assert aiter_int8.get_torch_quant(QuantType.No)(x)[0] is x
    for kind in (QuantType.per_Token, QuantType.per_Tensor, QuantType.per_128x128):
        rows = numbers(128, 128)
        found, own = (module.get_torch_quant(kind)(rows, quant_dtype=FP8) for module in (aiter_int8, aiter_like))
        assert all(torch.equal(a.float(), b.float()) for a, b in zip(found, own))
    with pytest.raises(TypeError, match="pertoken_quant: scale_dtype must be"):
        aiter_int8.pertoken_quant(x, scale_dtype=torch.int32)


def test_bad_arguments(simulated):
    x, out = numbers(ROWS, COLUMNS), torch.empty(ROWS, COLUMNS, dtype=INT8)
    with pytest.raises(ValueError, match="dynamic_per_token_scaled_quant: scales must be contiguous with 5"):
        aiter_int8.dynamic_per_token_scaled_quant(out, x, torch.empty(10)[::2])
    with pytest.raises(ValueError, match="static_per_tensor_quant: scale must be contiguous with 1"):
        aiter_int8.static_per_tensor_quant(out, x, torch.ones(2))
    with pytest.raises(ValueError, match="dynamic_per_tensor_quant: out must have shape"):
        aiter_int8.dynamic_per_tensor_quant(out[:2], x, torch.ones(1))
    factors, ids = torch.ones(2, COLUMNS), torch.zeros(ROWS, 1, dtype=torch.int32)
    with pytest.raises(ValueError, match="smoothquant_fwd: x_scale must have an element for each column"):
        aiter_int8.smoothquant_fwd(out, x, factors, torch.empty(ROWS, 1))
    with pytest.raises(ValueError, match="smoothquant_fwd: y_scale must be contiguous with 5"):
        aiter_int8.smoothquant_fwd(out, x, factors[0], torch.empty(1))
    with pytest.raises(ValueError, match="moe_smoothquant_fwd: out must have shape"):
        aiter_int8.moe_smoothquant_fwd(out[:2], x, factors, ids, torch.empty(ROWS, 1))
    with pytest.raises(ValueError, match="moe_smoothquant_fwd: y_scale must be contiguous with 5"):
        aiter_int8.moe_smoothquant_fwd(out, x, factors, ids, torch.empty(4))
    with pytest.raises(TypeError, match="per_token_quant_hip: x must have dtype"):
        aiter_int8.per_token_quant_hip(x.int())
    with pytest.raises(ValueError, match="per_token_quant_hip: scale must be None"):
        aiter_int8.per_token_quant_hip(x, torch.ones(1))
    with pytest.raises(TypeError, match="per_tensor_quant_hip: scale must have dtype"):
        aiter_int8.per_tensor_quant_hip(x, torch.ones(1).half())


@pytest.mark.parametrize("is_asm", (False, True))
def test_caches_with_a_scale_for_each_block(simulated, is_asm):
    """By both of AITER's names, of whole blocks; fp8 is that of the package's own."""
    key, value = numbers(1, 32, 2, 32, seed=1), numbers(1, 32, 2, 32, seed=2)
    slots = torch.arange(32)
    for dtype in (INT8, FP8):
        for name in ("reshape_and_cache_with_block_quant", "reshape_and_cache_with_block_quant_for_asm_pa"):
            more = () if name.endswith("quant") else (16,)
            caches = [torch.zeros(2, 2, 2, 16, 16, dtype=dtype),
                      torch.zeros(2, 2, 1, 32, 16, dtype=dtype) if is_asm else torch.zeros(2, 2, 32, 16, dtype=dtype)]
            scales = [torch.zeros(2, 2), torch.zeros(2, 2)]
            getattr(aiter_int8, name)(key, value, *caches, *scales, slots, is_asm, *more)
            blocks = key.view(2, 16, 2, 32).transpose(1, 2)  # [blocks, heads, tokens, dims]
            own = row_scales(blocks.flatten(2))
            largest = 240 if dtype == FP8 else 127
            assert torch.allclose(scales[0] if is_asm else scales[0].T, own[..., 0] * (127 / largest))
            if dtype == INT8:
                got = caches[0].transpose(2, 3).flatten(3)  # keys: [blocks, heads, tokens, dims]
                assert torch.equal(got, plain(blocks, own[..., None]))
                assert not torch.equal(got, (blocks.float() / own[..., None]).round().to(INT8))
