# SPDX-License-Identifier: MIT
"""The dtype of what AITER's products in Triton return: of the tensor to write, else `dtype`, else of torch.empty."""

import pytest
import torch
from seeded import numbers

import aiter_like
from aiter_like.integrations.aiter.gemm import gemm
from aiter_like.integrations.aiter.gemm import triton as quantising
from aiter_like.ops.layout.shuffle_weight import shuffle_weight

FP8 = torch.float8_e4m3fnuz


x, w = numbers(5, 256), numbers(96, 256, seed=1) / 8
narrow, weights = x.to(FP8), w.to(FP8)
x_scale, w_scale = torch.rand(5, 2) + 0.5, torch.rand(1, 2) + 0.5
columns, shuffled = x_scale.t().contiguous().view(5, 2), shuffle_weight(weights).view(6, 16 * 256)
blocks = narrow, weights, x_scale, w_scale
prequant = quantising.batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant

CALLS = [  # function, its arguments, options, and the name of the tensor to write
    (gemm.gemm_a16w16_triton, (x, w), {}, "y"),
    (gemm.gemm_a8w8_blockscale_triton, blocks, {}, "y"),
    (gemm.gemm_a8w8_blockscale_preshuffle_triton, (narrow, shuffled, columns, w_scale), {}, "y"),
    (gemm.batched_gemm_bf16_triton, (torch.stack((x, x)), torch.stack((w, w))), {}, "YQ"),
    (prequant, (torch.stack((x, x)), torch.stack((weights, weights)), torch.ones(1)), {}, "YQ")]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call[0].__name__)
def test_dtype_of_the_result(simulated, call):
    function, operands, options, target = call

    def results(**more):
        found = function(*operands, **options, **more)
        return found if isinstance(found, tuple) else (found,)

    with aiter_like.use_backend("torch"):
        expected = results(dtype=torch.float32)
        for more, dtype in (({}, torch.bfloat16), ({"dtype": None}, torch.float32),
                            ({"dtype": torch.float16}, torch.float16)):
            for got, wanted in zip(results(**more), expected, strict=True):
                assert got.dtype == dtype
                torch.testing.assert_close(got.float(), wanted, rtol=0.02, atol=0.02 * float(wanted.abs().max()))
        if target:
            given = torch.empty_like(expected[-1], dtype=torch.float16)
            assert results(**{target: given})[-1] is given
            torch.testing.assert_close(given.float(), expected[-1], rtol=0.02, atol=0.02 * float(given.abs().max()))
