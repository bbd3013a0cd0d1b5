# SPDX-License-Identifier: MIT
"""decode_attention_fwd against float64, and the plan of a next step against one made anew."""

import pytest
import torch

import aiter_like as aiter

BATCH, PAGE, PAGES = 3, 16, 9


@pytest.mark.parametrize("step", (1, 3))
def test_plan_of_the_next_step(simulated, step):
    """Of the new lengths; sequences that had several query tokens have one."""
    info = aiter.get_mla_metadata_info_v1(BATCH, step, 16, torch.bfloat16, torch.bfloat16, False)
    plans = [[torch.zeros(size, dtype=dtype) for size, dtype in info] for _ in range(2)]
    starts = torch.arange(BATCH + 1, dtype=torch.int32)
    pages = [torch.tensor(ends, dtype=torch.int32) for ends in ([0, 900, 950, 4000], [0, 901, 951, 4001])]
    last = torch.ones(BATCH, dtype=torch.int32)
    order = (0, 2, 1, 3, 4, 5)  # work_metadata_ptrs, work_info_set, work_indptr, ...
    moved, fresh = ([plan[place] for place in order] for plan in plans)
    aiter.get_mla_metadata_v1(starts * step, pages[0], last, 16, 1, True, *moved, max_seqlen_qo=step)
    aiter.decode_update_mla_metadata_v1(starts * step, pages[1], last, 16, 1, True, *moved, max_seqlen_qo=step)
    aiter.get_mla_metadata_v1(starts, pages[1], last, 16, 1, True, *fresh, max_seqlen_qo=1)
    items = int(fresh[2][-1])
    assert torch.equal(moved[2], fresh[2]) and torch.equal(moved[1][:items], fresh[1][:items])
    assert torch.equal(moved[3], fresh[3]) and torch.equal(moved[4], fresh[4])
    slots = int(fresh[3][-1])
    assert torch.equal(moved[5][:slots], fresh[5][:slots])
    assert fresh[1][:items, 3].max() == BATCH and (fresh[1][:items, 3] - fresh[1][:items, 2] == 1).all()
    with pytest.raises(ValueError, match="^decode_update_mla_metadata_v1: seqlens_qo_indptr must have at least 1"):
        aiter.decode_update_mla_metadata_v1(starts[:0], pages[1], last, 16, 1, True, *moved)
