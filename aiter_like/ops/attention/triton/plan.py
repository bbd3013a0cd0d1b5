# SPDX-License-Identifier: MIT
"""Shared in Triton by plans of attention over pages: which part of a launch takes which pages of which sequence, in
AITER's lists.
"""

import triton
import triton.language as tl

OPTIONS = {"num_warps": 1}
MOST_LANES = 1024


@triton.jit
def write_items(at, mask, index, place, row, rows, first_page, low, high, pages, heads=0):
    """Items at pointers: of the pages of a sequence, from first_page on, those from `low` to `high`, for its rows.
    place: of these rows' partial results, or -1. heads: a range of heads, in 16 bits each."""
    tl.store(at, index, mask=mask)
    tl.store(at + 1, place, mask=mask)
    tl.store(at + 2, row, mask=mask)
    tl.store(at + 3, row + rows, mask=mask)
    tl.store(at + 4, first_page + low, mask=mask)
    tl.store(at + 5, first_page + high, mask=mask)
    tl.store(at + 6, pages - high, mask=mask)
    tl.store(at + 7, index * 0 + heads, mask=mask)


@triton.jit
def write_groups(reduce_indptr, reduce_final_map, group, mask, end, row, end_row):
    """Groups of partial results that are added up: where their places end, and their rows."""
    tl.store(reduce_indptr + group + 1, end, mask=mask)
    tl.store(reduce_final_map + group * 2, row, mask=mask)
    tl.store(reduce_final_map + group * 2 + 1, end_row, mask=mask)
