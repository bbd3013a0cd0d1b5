# SPDX-License-Identifier: MIT
"""flash_attn_bwd by backend "ck": each feature with each head dimension that has tiles of its own, in bf16 and fp16."""

import pytest
from attention_bwd_cases import BF16, FP16, make

from aiter_like.ops.attention.flash_attn_bwd import flash_attn_bwd
from aiter_like.testing.attention_bwd import check_attention_gradients, check_rounding_errors

pytestmark = pytest.mark.exhaustive

HEAD_DIMS = ((64, 64), (80, 80), (96, 96), (128, 128), (192, 128), (256, 256))
FEATURES = {
    "plain": {}, "causal": {"window": (-1, 0)}, "window": {"window": (30, 4)}, "GQA": {"heads": (4, 2)},
    "MQA": {"heads": (4, 1), "window": (-1, 0)}, "learned sink": {"sink": True, "window": (-1, 0), "dlse": True},
    "sink tokens": {"window": (20, 0), "sink_size": 5}, "softcap": {"softcap": 2.0}, "ALiBi": {"alibi": 2},
    "bias": {"bias": "heads"}, "dropout": {"dropout_p": 0.3}, "any order": {"heads": (4, 2)},
    "packed": {"packed": ((5, 163, 1, 100, 0, 1), (5, 230, 1, 65, 7, 9)), "window": (-1, 0)},
    "packed, all else": {"packed": ((5, 163, 1, 100, 0, 1), (5, 230, 1, 65, 7, 9)), "heads": (4, 2), "window": (40, 3),
                         "sink_size": 3, "sink": True, "softcap": 3.0, "alibi": 1, "bias": "shared",
                         "dropout_p": 0.2},
}


@pytest.mark.parametrize("dtype", (BF16, FP16), ids=str)
@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("head_dims", HEAD_DIMS, ids=str)
def test_cross(device, run, head_dims, features, dtype):
    call = make(device, **{"lengths": (190, 230), "head_dims": head_dims, "dtype": dtype, **FEATURES[features]})
    run("ck", flash_attn_bwd, call._replace(deterministic=features != "any order"))
    check_attention_gradients(call)
    check_rounding_errors(call)
