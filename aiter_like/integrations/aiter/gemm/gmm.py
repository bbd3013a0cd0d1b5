# SPDX-License-Identifier: MIT
"""AITER's products of groups in Triton, forward and of gradients, and what its programs make their operands with. Named
by names.txt.
"""

from __future__ import annotations

import torch
from torch import Tensor

import aiter_like
from aiter_like import check
from aiter_like.ops.common import elements
from aiter_like.ops.common.contents import as_int32, check_values
from aiter_like.ops.gemm.problems import SIXTEEN_BITS
from aiter_like.ops.moe.moe_gemm_call import TOKENS, block_for
from aiter_like.ops.moe.moe_weight_grad import moe_weight_grad

DTYPE = torch.bfloat16
"""AITER's default of results."""

_UNUSED = 0.1  # This share of the groups gets no rows.


def gmm(lhs: Tensor, rhs: Tensor, group_sizes: Tensor, bias: Tensor | None = None,
        preferred_element_type: torch.dtype = DTYPE, existing_out: Tensor | None = None, work_stealing: bool = False,
        config: dict[str, int] | None = None, grid_dim: int | None = None) -> Tensor:
    """`aiter_like.grouped_gemm`: `out[r] = lhs[r] · rhs[g] + bias[g]` for the rows r of group g.

    Args:
        lhs: [m, k] bf16|fp16, sorted by group.
        rhs: [groups, k, n], or [groups, n, k] where that alone fits, dtype of `lhs`, of any strides.
        group_sizes: [groups] int32|int64 on the device: rows of each group.
        bias: [groups, n].
        preferred_element_type: of the result, where there is no `existing_out`.
        existing_out: [m, n] to write; rows of no group stay as they are.
        work_stealing: of no meaning, with config and grid_dim: how work is shared out is the kernels' own choice.
    """
    op = "gmm"
    check.tensor(op, "lhs", lhs, rank=2, dtypes=SIXTEEN_BITS, last_contiguous=False)
    check.tensor(op, "rhs", rhs, rank=3, dtypes=(lhs.dtype,), device=lhs.device, last_contiguous=False)
    check.tensor(op, "group_sizes", group_sizes, dtypes=elements.INTEGERS, shape=rhs.shape[:1], device=lhs.device)
    _check_sizes(op, group_sizes, len(lhs))
    k = lhs.shape[1]
    if k not in rhs.shape[1:]:
        raise ValueError(f"{op}: rhs must have matrices [{k}, n] or [n, {k}], got shape {tuple(rhs.shape)}")
    b = rhs.mT if rhs.shape[1] == k else rhs
    dtype = preferred_element_type if existing_out is None else existing_out.dtype
    return aiter_like.grouped_gemm(lhs, b, _starts(group_sizes), bias=bias, dtype=dtype, out=existing_out)


def ptgmm(lhs: Tensor, rhs: Tensor, group_sizes: Tensor, bias_grad: Tensor | None = None,
          preferred_element_type: torch.dtype = DTYPE, existing_out: Tensor | None = None, accumulate: bool = False,
          config: dict[str, int] | None = None, grid_dim: int | None = None) -> Tensor:
    """The gradient of gmm's matrices by moe_weight_grad, in Triton: `out[g] = Σ lhs[:, r] · rhs[r]` over the rows r of
    the group.

    Args:
        lhs: [k, m], or [m, k] where that alone fits, bf16|fp16; copied where the rows r do not lie side by side.
        rhs: [m, n], dtype of `lhs`.
        group_sizes: [groups] int32|int64 on the device: rows of each group.
        bias_grad: [groups, k] fp32, written: the sums over the rows of `lhs`.
        preferred_element_type: of the result, where there is no `existing_out`.
        existing_out: [groups, k, n] to write; a group without rows gets zeros.
        accumulate: the result is added to `existing_out`, rounded before it.
        config: of no meaning, with grid_dim.
    """
    op = "ptgmm"
    check.tensor(op, "lhs", lhs, rank=2, dtypes=SIXTEEN_BITS, last_contiguous=False)
    check.tensor(op, "rhs", rhs, rank=2, dtypes=(lhs.dtype,), device=lhs.device)
    check.tensor(op, "group_sizes", group_sizes, rank=1, dtypes=elements.INTEGERS, device=lhs.device)
    m, n = rhs.shape
    if m not in lhs.shape or m >= TOKENS:
        raise ValueError(f"{op}: lhs must be [k, {m}] or [{m}, k] with less than 2^24 rows, got shape "
                         f"{tuple(lhs.shape)}")
    rows = lhs.t() if lhs.shape[1] == m else lhs
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    shape = (len(group_sizes), rows.shape[1], n)
    if existing_out is None:
        existing_out = torch.empty(shape, dtype=preferred_element_type, device=lhs.device)
        accumulate = False
    check.tensor(op, "existing_out", existing_out, dtypes=elements.FLOATS, shape=shape, device=lhs.device)
    _check_sizes(op, group_sizes, m)
    order = _order(group_sizes, m)
    out = torch.empty_like(existing_out) if accumulate else existing_out
    moe_weight_grad.run(out, rows, rhs, **order)
    if accumulate:
        existing_out += out
    if bias_grad is not None:
        check.tensor(op, "bias_grad", bias_grad, dtypes=(torch.float32,), shape=shape[:2], device=lhs.device)
        moe_weight_grad.run(bias_grad[..., None], rows, rhs.new_ones(m, 1), **order)
    return existing_out


def nptgmm(lhs: Tensor, rhs: Tensor, group_sizes: Tensor, bias_grad: Tensor | None = None,
           preferred_element_type: torch.dtype = DTYPE, existing_out: Tensor | None = None, accumulate: bool = False,
           config: dict[str, int] | None = None) -> Tensor:
    """`ptgmm`: whether a kernel stays on its compute unit is its own choice here."""
    return ptgmm(lhs, rhs, group_sizes, bias_grad, preferred_element_type, existing_out, accumulate, config)


def _starts(group_sizes: Tensor) -> Tensor:
    return torch.nn.functional.pad(as_int32(as_int32(group_sizes).cumsum(0)), (1, 0))


def _check_sizes(op: str, group_sizes: Tensor, rows: int) -> None:
    """Groups have no more rows than there are, where that can be seen.

    Raises:
        ValueError: they have.
    """
    check_values(op, "group_sizes", group_sizes, 0, rows)
    if check.is_on_host(group_sizes) and group_sizes.sum() > rows:
        raise ValueError(f"{op}: group_sizes must be {rows} rows at most together, got {group_sizes.sum()}")


def _order(group_sizes: Tensor, rows: int) -> dict[str, Tensor | int]:
    """The lists by which moe_weight_grad reads rows that are sorted; the host does not look at the sizes."""
    groups, device = len(group_sizes), group_sizes.device
    block = max(block_for(max(rows, 1), max(groups, 1)), 16)
    sizes = as_int32(group_sizes)
    tiles = torch.cumsum((sizes + block - 1) // block, 0, dtype=torch.int32)
    tile = torch.arange(rows // block + min(groups, rows), dtype=torch.int32, device=device)
    group = torch.searchsorted(tiles, tile, right=True, out_int32=True)
    known = group.clamp(max=groups - 1)
    first = tile - torch.where(known > 0, tiles[known - 1], 0)  # tiles of the group before this one
    place = first[:, None] * block + torch.arange(block, dtype=torch.int32, device=device)
    ids = torch.where(place < sizes[known, None], _starts(sizes)[known, None] + place, TOKENS | rows)
    return {"experts": group, "sorted_ids": ids.to(torch.int32).view(-1), "valid": tiles[-1:] * block, "tokens": rows,
            "block": block}


# ---- what AITER's programs make their operands with


def get_gmm_shape(lhs: Tensor, rhs: Tensor, group_sizes: Tensor) -> tuple[int, int, int, int]:
    """m, k, n and groups of operands of `gmm`."""
    m, k = lhs.shape
    return m, k, rhs.shape[2] if rhs.shape[1] == k else rhs.shape[1], len(group_sizes)


def get_tgmm_shape(lhs: Tensor, rhs: Tensor, group_sizes: Tensor) -> tuple[int, int, int, int]:
    """m, k, n and groups of operands of `ptgmm`."""
    m, n = rhs.shape
    return m, lhs.shape[0] if lhs.shape[1] == m else lhs.shape[1], n, len(group_sizes)


def get_gmm_output(M: int, N: int, device: torch.device | str = "cuda", preferred_element_type: torch.dtype = DTYPE,
                   existing_out: Tensor | None = None) -> Tensor:
    """The tensor that is given, or a new one."""
    return torch.empty(M, N, dtype=preferred_element_type, device=device) if existing_out is None else existing_out


def get_tgmm_output(K: int, N: int, G: int, device: torch.device | str = "cuda",
                    preferred_element_type: torch.dtype = DTYPE, existing_out: Tensor | None = None) -> Tensor:
    """The tensor that is given, or a new one."""
    return torch.empty(G, K, N, dtype=preferred_element_type, device=device) if existing_out is None else existing_out


def get_tgmm_bias_grad(K: int, G: int, device: torch.device | str = "cuda",
                       existing_bias_grad: Tensor | None = None) -> Tensor:
    """The tensor that is given, with zeros, or one without elements."""
    if existing_bias_grad is not None:
        return existing_bias_grad.zero_()
    return torch.empty(0, dtype=torch.float32, device=device)


def check_input_device_dtype(lhs: Tensor, rhs: Tensor, group_sizes: Tensor, bias: Tensor | None = None) -> None:
    """Raises AssertionError where operands lie on several devices or have several dtypes."""
    others = [each for each in (rhs, bias) if each is not None]
    assert all(each.device == lhs.device for each in (*others, group_sizes)), "operands on several devices"
    assert all(each.dtype == lhs.dtype for each in others), "operands of several dtypes"
    assert group_sizes.dtype in elements.INTEGERS, f"group_sizes of {group_sizes.dtype}"


def gen_gmm_tensors(M: int, K: int, N: int, G: int, num_group_sizes: int, input_type: torch.dtype = DTYPE,
                    output_type: torch.dtype = DTYPE, group_sizes_dtype: torch.dtype = torch.int32,
                    device: torch.device | str = "cuda", trans_lhs: bool = False, trans_rhs: bool = False,
                    alt_trans: bool = False, rng_seed: int | None = 0, unif_group_sizes: bool = False,
                    use_bias: bool = False) -> tuple[Tensor, Tensor, list[Tensor], Tensor, Tensor | None]:
    """Random operands of `gmm`: lhs, rhs, sizes of groups several times, an output and a bias or None.

    Args:
        M, K, N, G: rows, depth, columns and groups.
        num_group_sizes: so many times are sizes drawn.
        input_type, output_type, group_sizes_dtype, device: of the tensors.
        trans_lhs: of no meaning.
        trans_rhs, alt_trans: rhs lies as [G, N, K] in memory, and with both has that shape.
        rng_seed: of torch's generator; None: it goes on.
        unif_group_sizes: the first sizes are equal, but for a remainder.
        use_bias: a bias is made.
    """
    if rng_seed is not None:
        torch.manual_seed(rng_seed)
    lhs = torch.randn(M, K, device=device).to(input_type)
    rhs = torch.randn(G, N, K, device=device) if trans_rhs else torch.randn(G, K, N, device=device)
    rhs = (rhs.mT if trans_rhs and not alt_trans else rhs).to(input_type)
    sizes = _sizes(M, G, num_group_sizes, group_sizes_dtype, device, unif_group_sizes)
    bias = torch.randn(G, N, device=device).to(input_type) if use_bias else None
    return lhs, rhs, sizes, torch.empty(M, N, dtype=output_type, device=device), bias


def gen_tgmm_tensors(M: int, K: int, N: int, G: int, num_group_sizes: int, input_type: torch.dtype = DTYPE,
                     output_type: torch.dtype = DTYPE, group_sizes_dtype: torch.dtype = torch.int32,
                     device: torch.device | str = "cuda", trans_lhs: bool = False, trans_rhs: bool = False,
                     alt_trans: bool = False, rng_seed: int | None = 0, unif_group_sizes: bool = False,
                     use_bias: bool = False) -> tuple[Tensor, Tensor, list[Tensor], Tensor, Tensor | None]:
    """Random operands of `ptgmm`, as `gen_gmm_tensors` makes them: `trans_lhs` and `alt_trans` say how lhs lies, and
    the last is a tensor for the gradient of a bias.
    """
    if rng_seed is not None:
        torch.manual_seed(rng_seed)
    lhs = torch.randn(M, K, device=device) if trans_lhs else torch.randn(K, M, device=device)
    lhs = (lhs.t() if trans_lhs and not alt_trans else lhs).to(input_type)
    rhs = torch.randn(M, N, device=device).to(input_type)
    sizes = _sizes(M, G, num_group_sizes, group_sizes_dtype, device, unif_group_sizes)
    out = torch.empty(G, K, N, dtype=output_type, device=device)
    return lhs, rhs, sizes, out, torch.empty(G, K, device=device) if use_bias else None


def _sizes(rows: int, groups: int, times: int, dtype: torch.dtype, device: torch.device | str,
           is_first_even: bool) -> list[Tensor]:
    found = []
    for number in range(times):
        if is_first_even and number == 0:
            group = torch.arange(rows, device=device) % groups
        else:
            used = (torch.rand(groups, device=device) >= _UNUSED).nonzero().flatten()
            used = used if len(used) else torch.arange(groups, device=device)
            group = used[torch.randint(len(used), (rows,), device=device)]
        found.append(torch.bincount(group, minlength=groups).to(dtype))
    return found
