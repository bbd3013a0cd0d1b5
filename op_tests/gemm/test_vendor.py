# SPDX-License-Identifier: MIT
"""Products by the vendor's library: what it serves of scales of blocks, and the rule that prefers it without a row."""

import pytest
import torch
from test_gemm_a8w8_blockscale import block_major, compare, operands

import aiter_like
from aiter_like.device import Target
from aiter_like.dispatch import OPS
from aiter_like.errors import UnsupportedError

H200 = Target("cuda", "sm_90", 132, 32)


@pytest.mark.parametrize("m, n, k", ((8, 128, 512), (136, 384, 1024)))
def test_scales_of_blocks(device, run, m, n, k):
    """On Hopper; what it does not serve goes to another backend."""
    a, b, a_scale, b_scale = operands(device, m, n, k)
    if device.type != "cuda":
        with pytest.raises(UnsupportedError, match="the vendor's library needs a GPU"):
            aiter_like.gemm_a8w8_blockscale(a, b, a_scale, b_scale, backend="vendor")
        return
    for scales in ((a_scale, b_scale), (block_major(a_scale), block_major(b_scale))):
        compare(run("vendor", aiter_like.gemm_a8w8_blockscale, a, b, *scales), a, b, *scales)
    for args, reason in (((a[1:], b, a_scale[1:], b_scale), "rows that is a multiple of 8"),
                         ((a, b, a_scale, b_scale, torch.float16), "in bf16")):
        with pytest.raises(UnsupportedError, match=reason):
            aiter_like.gemm_a8w8_blockscale(*args, backend="vendor")


@pytest.mark.parametrize("name, m, n, is_ahead", (
    ("gemm_a16w16", 64, 4096, False), ("gemm_a16w16", 65, 4096, True), ("gemm_a16w16", 8192, 8192, True),
    ("gemm_a8w8", 64, 8192, False), ("gemm_a8w8", 96, 4096, False), ("gemm_a8w8", 96, 6144, True),
    ("gemm_a8w8_blockscale", 64, 8192, False), ("gemm_a8w8_blockscale", 512, 1280, False),
    ("gemm_a8w8_blockscale", 1024, 1280, True)))
def test_where_no_row_says_what_is_fastest(name, m, n, is_ahead):
    op = OPS[name]
    key = op.tune_key(*next(iter(op.cases(torch.device("cpu")).values()))) | {"m": m, "n": n, "k": 512}
    call = op.tuning.case(key, torch.device("cpu"), 0)
    assert (op.prefers(H200, *call) == "vendor") == is_ahead
    assert op.prefers(Target("cuda", "sm_80", 108, 32), *call) != "vendor"
