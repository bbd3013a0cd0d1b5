# SPDX-License-Identifier: MIT
"""AITER's products of groups in Triton against float64, and the operands that its programs make."""

from __future__ import annotations

import pytest
import torch

from aiter_like.integrations.aiter.gemm import gmm as aiter_gmm

ROWS, DEPTH, COLUMNS, GROUPS = 45, 24, 40, 4
LEFT = 7.0


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.fixture
def sizes():
    """One group is empty, and three rows have none."""
    return torch.tensor([20, 0, 1, 21])


def close(got, expected):
    torch.testing.assert_close(got.double(), expected, rtol=0.02, atol=0.02)


def slices(sizes):
    ends = sizes.cumsum(0).tolist()
    return [slice(end - size, end) for end, size in zip(ends, sizes.tolist(), strict=True)]


@pytest.mark.parametrize("kind", ("plain", "transposed", "swapped"))
@pytest.mark.parametrize("has_bias", (False, True))
def test_forward(simulated, sizes, kind, has_bias):
    lhs, rhs, bias = numbers(ROWS, DEPTH), numbers(GROUPS, DEPTH, COLUMNS, seed=1), numbers(GROUPS, COLUMNS, seed=2)
    given = {"plain": rhs, "transposed": rhs.mT.contiguous().mT, "swapped": rhs.mT.contiguous()}[kind]
    out = torch.full((ROWS, COLUMNS), LEFT).bfloat16()
    options = {"bias": bias} if has_bias else {}
    found = aiter_gmm.gmm(lhs, given, sizes.int() if has_bias else sizes, existing_out=out, grid_dim=240, **options)
    assert found is out and (out[42:] == LEFT).all()
    for group, rows in enumerate(slices(sizes)):
        close(out[rows], lhs[rows].double() @ rhs[group].double() + (bias[group].double() if has_bias else 0))
    assert aiter_gmm.gmm(lhs, given, sizes, preferred_element_type=torch.float32).dtype == torch.float32
    with pytest.raises(ValueError, match=r"gmm: rhs must have matrices \[23, n\] or \[n, 23\]"):
        aiter_gmm.gmm(lhs[:, 1:], given, sizes)


@pytest.mark.parametrize("function", ("ptgmm", "nptgmm"))
@pytest.mark.parametrize("kind", ("plain", "transposed", "swapped"))
def test_gradients(simulated, sizes, kind, function):
    lhs, rhs = numbers(DEPTH, ROWS), numbers(ROWS, COLUMNS, seed=1)
    given = {"plain": lhs, "transposed": lhs.t().contiguous().t(), "swapped": lhs.t().contiguous()}[kind]
    first = numbers(GROUPS, DEPTH, COLUMNS, seed=2)
    out, sums = first.clone(), torch.full((GROUPS, DEPTH), LEFT)
    call = getattr(aiter_gmm, function)
    assert call(given, rhs, sizes, sums, existing_out=out, accumulate=True) is out
    found = call(given, rhs, sizes.int(), preferred_element_type=torch.float32, accumulate=True)
    for group, rows in enumerate(slices(sizes)):
        exact = lhs[:, rows].double() @ rhs[rows].double()
        close(found[group], exact)
        torch.testing.assert_close(out[group].double(), first[group].double() + exact, rtol=0.02, atol=0.1)
        close(sums[group], lhs[:, rows].double().sum(1))
    assert not found[1].any() and torch.equal(out[1], first[1])
    with pytest.raises(ValueError, match="ptgmm: lhs must be"):
        call(given, rhs[1:], sizes)
    with pytest.raises(ValueError, match="ptgmm: bias_grad must have shape"):
        call(given, rhs, sizes, sums[1:])


@pytest.mark.parametrize("alt_trans", (False, True))
@pytest.mark.parametrize("is_transposed", (False, True))
def test_operands(is_transposed, alt_trans):
    options = {"device": "cpu", "group_sizes_dtype": torch.int64, "alt_trans": alt_trans, "unif_group_sizes": True,
               "use_bias": True}
    lhs, rhs, sizes, out, bias = aiter_gmm.gen_gmm_tensors(ROWS, DEPTH, COLUMNS, GROUPS, 3, trans_rhs=is_transposed,
                                                           **options)
    aiter_gmm.check_input_device_dtype(lhs, rhs, sizes[0], bias)
    assert aiter_gmm.get_gmm_shape(lhs, rhs, sizes[0]) == (ROWS, DEPTH, COLUMNS, GROUPS)
    assert aiter_gmm.get_gmm_output(ROWS, COLUMNS, "cpu", existing_out=out) is out and bias.shape == (GROUPS, COLUMNS)
    assert aiter_gmm.get_gmm_output(ROWS, COLUMNS, "cpu").shape == out.shape
    assert rhs.stride()[1:] == ((DEPTH, 1) if is_transposed and alt_trans else (1, DEPTH) if is_transposed
                                else (COLUMNS, 1))
    assert sizes[0].tolist() == [12, 11, 11, 11] and [int(one.sum()) for one in sizes] == [ROWS] * 3
    lhs, rhs, sizes, out, sums = aiter_gmm.gen_tgmm_tensors(ROWS, DEPTH, COLUMNS, GROUPS, 1, trans_lhs=is_transposed,
                                                            **options)
    assert aiter_gmm.get_tgmm_shape(lhs, rhs, sizes[0]) == (ROWS, DEPTH, COLUMNS, GROUPS)
    assert aiter_gmm.get_tgmm_output(DEPTH, COLUMNS, GROUPS, "cpu", existing_out=out) is out
    assert aiter_gmm.get_tgmm_output(DEPTH, COLUMNS, GROUPS, "cpu").shape == out.shape
    assert aiter_gmm.get_tgmm_bias_grad(DEPTH, GROUPS, "cpu", sums) is sums and not sums.any()
    assert not aiter_gmm.get_tgmm_bias_grad(DEPTH, GROUPS, "cpu").numel()
    with pytest.raises(AssertionError, match="operands of several dtypes"):
        aiter_gmm.check_input_device_dtype(lhs, rhs.float(), sizes[0])


@pytest.mark.parametrize("wrong", ((-1, 21, 1, 21), (20, 0, 5, 21), (2**32 + 20, 0, 1, 21), (2**31,) * 4))
@pytest.mark.parametrize("function", ("gmm", "ptgmm"))
def test_sizes_that_groups_cannot_have(simulated, wrong, function):
    rhs = numbers(GROUPS, DEPTH, COLUMNS) if function == "gmm" else numbers(ROWS, COLUMNS)
    with pytest.raises(ValueError, match=f"{function}: group_sizes must (hold numbers from 0 to|be 45 rows)"):
        getattr(aiter_gmm, function)(numbers(ROWS, DEPTH), rhs, torch.tensor(wrong))
