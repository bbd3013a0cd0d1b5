# SPDX-License-Identifier: MIT
"""Functions of built modules, called past an operator's check: what would lead out of a tensor is refused."""

import pytest
import torch

from aiter_like.device import simulated_target
from aiter_like.dispatch.registry import OPS

# Operator, backend, case, argument and its dimension that is 1 shorter → what the message says.
SHORTER = {
    ("rms_norm", "hip", "residual", "residual_out", 0): r"residual_out must have rows \(rows, hidden\) = \(5, 4096\)",
    ("gemm_a8w8", "ck", "int8, bias", "bias", 0): r"bias must have shape \(n\) = ",
    ("fused_qk_rope_cache", "hip", "rows", "q_out", 1): r"q_out must have shape \(tokens, heads, 64\) = \(9, 4, 64\)",
    ("fused_qk_rope_cache", "hip", "rows", "positions", 0): r"positions must have shape \(at least 9\), got \(8\)",
    ("rope", "hip", "q and k at positions", "offsets", 0): r"offsets must have shape \(at least 9, at least 0\)",
    ("sample", "hip", "given, whole", "exponentials", 1): r"exponentials must have rows \(rows, columns\) = \(4, 256\)",
    ("paged_attention", "hip", "shuffled pages of fp8", "block_table", 0): "seqlens_k must have shape",
}


@pytest.mark.parametrize("place", SHORTER, ids=lambda place: f"{place[0]}-{place[3]}")
def test_what_is_too_short_is_refused(place):
    name, backend, case, argument, dimension = place
    op, target = OPS[name], simulated_target()
    call = op.cases(torch.device("cpu"))[case]
    (found,) = (candidate for candidate in op.backends if candidate.name == backend)
    built = found.function.bind(target, call)
    tensor = getattr(call, argument)
    wrong = call._replace(**{argument: tensor.narrow(dimension, 0, tensor.size(dimension) - 1)})
    with pytest.raises(ValueError, match=f"{name}: {SHORTER[place]}"):
        built(*wrong)
