# SPDX-License-Identifier: MIT
"""The quantisers of QuantTypes, by block, and in torch; the enums."""

import pytest
import torch
from quant_cases import matrix, same_numbers

import aiter_like
from aiter_like import ActivationType, QuantType
from aiter_like.errors import UnsupportedError
from aiter_like.testing.quantised import check_quantised, double

GETTERS = (aiter_like.get_hip_quant, aiter_like.get_torch_quant, aiter_like.get_triton_quant)


@pytest.mark.parametrize("getter", GETTERS, ids=lambda getter: getter.__name__)
def test_quantiser_of_each_type(device, getter):
    x = matrix(device, 128, 384)
    dtype = torch.int8
    blocks = (QuantType.per_128x128, QuantType.per_256x128, QuantType.per_1024x128)  # of 128 rows: the same
    if getter is aiter_like.get_hip_quant:  # each kind is a build; test_block_quant.py has tall blocks
        assert [getter(kind).keywords["block_shape"] for kind in blocks] == [(128, 128), (256, 128), (1024, 128)]
        blocks = blocks[:1]
    for kind, shape in ((QuantType.per_Tensor, (1,)), (QuantType.per_Token, (128, 1)), (QuantType.per_1x128, (128, 3)),
                        *((kind, (1, 3)) for kind in blocks)):
        q, scale = getter(kind.value)(x, quant_dtype=dtype)
        assert scale.shape == shape and scale.dtype == torch.float32 and q.dtype == dtype
        if kind in blocks:
            for block in range(3):
                columns = slice(128 * block, 128 * (block + 1))
                check_quantised(q[:, columns].reshape(1, -1), scale[0, block], double(x[:, columns]).reshape(1, -1))
        elif kind == QuantType.per_Tensor:
            check_quantised(q.view(1, -1), scale, double(x).view(1, -1))
        else:
            check_quantised(q, scale, double(x), 128 if kind == QuantType.per_1x128 else 0)
    assert getter(QuantType.No)(x, quant_dtype=dtype) == (x, None)
    with pytest.raises(UnsupportedError, match="QuantType.per_1x32: MXFP4 and MXFP8 are of gfx950"):
        getter(QuantType.per_1x32)(x)
    with pytest.raises(ValueError, match="99 is not a valid QuantType"):
        getter(99)


@pytest.mark.parametrize("backend", ("triton", "torch"))
def test_names_of_aiters_triton_library(device, run, backend):
    """With the outputs first, returned."""
    x = matrix(device, 6, 264)
    q, one, each = torch.empty_like(x, dtype=torch.int8), torch.empty(1, device=device), torch.empty(6, device=device)
    for function, scale, expected in (
            (aiter_like.dynamic_per_tensor_quant_fp8_i8, one, aiter_like.per_tensor_quant_hip(x, backend="torch")),
            (aiter_like.dynamic_per_token_quant_fp8_i8, each, aiter_like.per_token_quant_hip(x, backend="torch"))):
        result = run(backend, function, q.zero_(), x, scale)
        assert result[0] is q and result[1] is scale
        assert torch.equal(q, expected[0]) and torch.equal(scale, expected[1].view(scale.shape))
    wanted = aiter_like.per_tensor_quant_hip(x, one, backend="torch")[0]
    assert torch.equal(run(backend, aiter_like.static_per_tensor_quant_fp8_i8, q.zero_(), x, one), wanted)


def test_blocks_at_the_edges():
    x = matrix(torch.device("cpu"), 70, 200)
    q, scale = aiter_like.per_block_quant_wrapper((32, 64))(aiter_like.pertoken_quant)(x)
    assert q.shape == x.shape and scale.shape == (3, 4)
    for i in range(3):
        for j in range(4):
            block = slice(32 * i, 32 * (i + 1)), slice(64 * j, 64 * (j + 1))
            check_quantised(q[block].reshape(1, -1), scale[i, j], double(x[block]).reshape(1, -1))
    again, same = aiter_like.per_block_quant_wrapper((32, 64))(aiter_like.pertoken_quant)(x, scale)
    assert torch.equal(again, q) and torch.equal(same, scale)


def test_pertoken_quant_of_given_scales_and_largest():
    x = matrix(torch.device("cpu"), 5, 64)
    q, scale = aiter_like.pertoken_quant(x, dtypeMax=7.0)
    assert q.abs().amax(1).eq(7).all() and torch.equal(scale, x.float().abs().amax(1, keepdim=True) / 7)
    factor = torch.rand(64) + 0.5
    smooth, own = aiter_like.pertoken_quant(x, x_scale=factor, quant_dtype=torch.float8_e4m3fn)
    check_quantised(smooth, own, double(x) * double(factor))
    fixed, same = aiter_like.pertoken_quant(x, torch.full((5, 1), 0.5), scale_dtype=torch.float16)
    assert same.dtype == torch.float16 and torch.equal(fixed, (x.float() * 2).round().clamp(-127, 127).to(torch.int8))
    q, scale = aiter_like.per_tensor_quant(x, torch.tensor(0.25), quant_dtype=torch.float8_e4m3fnuz)
    assert scale.shape == (1,) and same_numbers(q, (x.float() * 4).clamp(-240, 240).to(torch.float8_e4m3fnuz))


def test_bad_input_is_named():
    x = matrix(torch.device("cpu"), 4, 64)
    token, tensor, block = aiter_like.pertoken_quant, aiter_like.per_tensor_quant, aiter_like.per_block_quant_wrapper
    for message, kind, call in (
            ("x must be floating point", TypeError, lambda: token(x.int())),
            ("quant_dtype must be", ValueError, lambda: token(x, quant_dtype=torch.uint8)),
            ("dtypeMax must be at most 127", ValueError, lambda: token(x, dtypeMax=128)),
            ("dtypeMax must be greater than 0", ValueError, lambda: tensor(x, dtypeMax=0)),
            ("scale must have one element", ValueError, lambda: tensor(x, torch.ones(2))),
            ("block_shape must be between 1", ValueError, lambda: block((0, 128))),
            ("x must have 2 dimensions", ValueError, lambda: block()(token)(x[0]))):
        with pytest.raises(kind, match=message):
            call()


def test_enums_have_aiters_names_and_numbers():
    assert [int(kind) for kind in QuantType] == list(range(8)) and QuantType(5) is QuantType.per_128x128
    assert str(QuantType.per_Token) == "QuantType.per_Token" and f"{ActivationType.Swiglu}" == "ActivationType.Swiglu"
    assert [int(kind) for kind in ActivationType] == [-1, 0, 1, 2, 3] and {QuantType.per_Token: 1}[2] == 1
