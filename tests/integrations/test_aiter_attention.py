# SPDX-License-Identifier: MIT
"""The reference of AITER's own tests of attention, against the formula in float64, and its tolerances."""

import pytest
import torch
from seeded import numbers

from aiter_like.integrations.aiter.attention import mha_common


def expect(q, k, v):
    """Attention of one sequence [tokens, heads, dim]."""
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


def close(got, expected, tolerance=0.02):
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("kind", "floors"), [("plain", (1e-2, 1.5e-2, 1e-5)), ("dropout", (0.1, 2.0, 0.1)),
                                              ("fp8", (0.5, 1.0, 0.1))])
def test_tolerances(kind, floors):
    """Of numbers so small that their rounding does not matter, the floors; of large ones, more than those."""
    options = {"dropout_p": 0.5, "dropout_mask": torch.ones(1, 2, 6, 6, dtype=torch.bool)} if kind == "dropout" else {}
    q, k, v, ahead = (numbers(1, 6, 2, 16, seed=seed) for seed in range(4))
    out, gradients, forward, backward = mha_common.attention_ref_with_tol(
        q / 64, k / 64, v / 64, ahead / 64, is_fp8=kind == "fp8", **options)
    assert forward == (floors[0], floors[2]) and backward == [(floors[1], floors[2])] * 3
    leaves = [(each / 64).double().requires_grad_() for each in (q, k, v)]
    exact = expect(*(each[0] for each in leaves)) * (2 if options else 1)
    exact.backward(ahead[0].double() / 64)
    for got, one in zip((out[0], *(each[0] for each in gradients)), (exact, *(each.grad[0] for each in leaves)),
                        strict=True):
        close(got.detach(), one.detach())
    _, _, forward, backward = mha_common.attention_ref_with_tol(q * 9, k, v * 999, ahead * 999,
                                                                      is_fp8=kind == "fp8", **options)
    assert forward[0] > floors[0] and all(atol > floors[1] and rtol == floors[2] for atol, rtol in backward)
