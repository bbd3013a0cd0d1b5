# SPDX-License-Identifier: MIT
"""get_mla_metadata_v1: every plan shares all keys out, once and evenly, whatever the lengths, on each backend alike."""

import pytest
import torch
from mla_cases import starts_of

import aiter_like
from aiter_like.errors import UnsupportedError
from aiter_like.ops.mla.mla_metadata import MlaMetadataCall, mla_metadata_op

pytestmark = pytest.mark.rotating

BACKENDS = ("hip", "triton", "torch")
NAMES = ("work_metadata_ptrs", "work_info_set", "work_indptr", "reduce_indptr", "reduce_final_map",
         "reduce_partial_map")


def make(device, run, backend, lengths, heads=16, parts=None, **options):
    """The plan of sequences of (query tokens, pages), as tensors by name; 77 wherever nothing was written."""
    longest = max(rows for rows, _ in lengths)
    info = aiter_like.get_mla_metadata_info_v1(len(lengths), longest, heads, torch.bfloat16, torch.bfloat16, False)
    assert [dtype for _, dtype in info] == [torch.uint64, *[torch.int32] * 5]
    shapes = [(shape,) if isinstance(shape, int) else shape for shape, _ in info]
    shapes = [shapes[0], shapes[2], (parts + 1,) if parts else shapes[1], *shapes[3:]]
    plan = {name: torch.full(shape, 77, dtype=torch.uint64 if name == NAMES[0] else torch.int32, device=device)
            for name, shape in zip(NAMES, shapes)}
    run(backend, aiter_like.get_mla_metadata_v1, starts_of([rows for rows, _ in lengths]).to(device),
        starts_of([pages for _, pages in lengths]).to(device), None, heads, 1, True, **plan, max_seqlen_qo=longest,
        **options)
    return plan


def check(plan, lengths, page_size=1):
    """Each page of each sequence is in one item, in order; items of a sequence have places of their own."""
    bounds, info = plan["work_indptr"].tolist(), plan["work_info_set"].tolist()
    assert bounds[0] == 0 and bounds == sorted(bounds) and bounds[-1] <= len(info)
    items, rows, pages = info[:bounds[-1]], 0, 0
    slots, maps = plan["reduce_indptr"].tolist(), plan["reduce_final_map"].tolist()
    used = set()
    for index, (queries, count) in enumerate(lengths):
        own = [item for item in items if item[0] == index]
        if queries == 0:
            assert not own and slots[index] == slots[index + 1]
            pages += count
            continue
        assert [item[2:4] for item in own] == [[rows, rows + queries]] * len(own) == [maps[index]] * len(own)
        edges = [item[4] for item in own] + [own[-1][5]]
        assert edges == sorted(edges) and edges[0] == pages and edges[-1] == pages + count
        assert [item[5] for item in own[:-1]] == edges[1:-1] and [item[6] for item in own] == [
            pages + count - item[5] for item in own]
        places = [item[1] for item in own]
        if len(own) == 1:
            assert places == [-1] and slots[index] == slots[index + 1]
        else:
            assert plan["reduce_partial_map"][slots[index]:slots[index + 1]].tolist() == places
            for place in places:
                taken = set(range(place, place + queries))
                assert place >= 0 and not taken & used
                used |= taken
        rows, pages = rows + queries, pages + count
    assert not used or max(used) < len(plan["reduce_partial_map"]) * max(queries for queries, _ in lengths)
    blocks = [sum(-(-(item[5] - item[4]) * page_size // 64) + 1 for item in items[low:high])
              for low, high in zip(bounds, bounds[1:])]
    return max(blocks), sum(blocks)


@pytest.mark.parametrize("backend", BACKENDS)
def test_plans(device, run, backend):
    """Ragged lengths, empty sequences, one long one among many, more sequences than parts and than a workgroup has."""
    for lengths in ([(1, 900), (2, 0), (0, 70), (4, 64), (1, 1), (3, 3000)], [(1, 5)] * 7, [(1, 0)],
                    [*[(1, 10)] * 40, (1, 20000), *[(1, 300)] * 30], [(1, index % 90) for index in range(600)]):
        plan = make(device, run, backend, lengths, parts=16)
        longest, total = check(plan, lengths)
        # A part is the line's length by the number of parts, and the two sequences that it may cut are not whole; or an
        # eighth longer, and has but one.
        share = max(-(-total // 16), 2)
        assert longest <= share + max(share // 8, 3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sequences_that_nearly_fit_are_whole(device, run, backend):
    """Where parts up to an eighth longer suffice, none holds pieces of two sequences."""
    for lengths, parts, pieces in (([(1, 64 * 64)] * 15, 16, 1), ([(1, 64 * 64)] * 4, 17, 4), ([(2, 3000)] * 2, 16, 8),
                                   ([(1, 6000), (1, 100), (0, 50), (1, 1000)], 16, None)):
        plan = make(device, run, backend, lengths, parts=parts)
        check(plan, lengths)
        assert (plan["work_indptr"].diff() <= 1).all()
        if pieces:
            assert (plan["reduce_indptr"][1:len(lengths) + 1].diff() == (pieces if pieces > 1 else 0)).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_default_sizes_are_enough(device, run, backend):
    for heads, lengths in ((16, [(1, 5000)] * 3), (128, [(2, 4000), (1, 30)])):
        plan = make(device, run, backend, lengths, heads)
        check(plan, lengths)
        assert plan["work_metadata_ptrs"].tolist() == [0, 0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_options(device, run, backend):
    """Pieces are multiples of the granularity; there are at most as many as wanted, or one more."""
    lengths = [(1, 700), (1, 300)]
    plan = make(device, run, backend, lengths, parts=16, page_size=16, kv_granularity=8)
    check(plan, lengths, 16)
    sizes = [item[5] - item[4] for item in plan["work_info_set"][:plan["work_indptr"][-1]].tolist()]
    assert sum(size % 8 != 0 for size in sizes) <= 2  # the ends of sequences
    plan = make(device, run, backend, lengths, parts=64, max_split_per_batch=2)
    check(plan, lengths)
    assert (plan["reduce_indptr"].diff() <= 3).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensors_that_are_too_small(device, backend):
    """What does not fit is left out, and nothing outside is written: the bounds checker would tell."""
    def zeros(*shape):
        return torch.zeros(shape, dtype=torch.int32, device=device)

    big = 2**31 - 1
    for starts in ((0, 1, 2, 3), (5, -9, big, 3), (-big, big, big, 0)):
        lengths = torch.tensor(starts, dtype=torch.int32, device=device)
        for topk in (-1, 4):
            call = MlaMetadataCall(zeros(5), zeros(2, 8), zeros(2), zeros(1, 2), zeros(1), lengths, lengths * 300,
                                   num_entries=5000, total_q=3, max_seqlen_q=2, topk=topk)
            mla_metadata_op(call, backend=backend)


def test_prefill_plans(device):
    """The attention shares its work out itself: there is nothing to add up."""
    info = aiter_like.get_ps_metadata_info_v1(3, 2, 700)
    assert len(info) == 6 and info[4][0] == (9, 2)
    plan = [torch.full((shape,) if isinstance(shape, int) else shape, 7, dtype=dtype, device=device)
            for shape, dtype in info]
    starts = torch.zeros(4, dtype=torch.int32)
    aiter_like.get_ps_metadata_v1(starts, starts, starts[1:], 1, 2, *plan)
    assert (plan[1] == 0).all() and (plan[3] == 0).all() and (plan[5] == 7).all()


def test_bad_input(device):
    lengths = starts_of([1, 1]).to(device)
    info = aiter_like.get_mla_metadata_info_v1(2, 1, 16, torch.bfloat16, torch.bfloat16, False)
    good = dict(zip(("work_metadata_ptrs", "work_indptr", "work_info_set", *NAMES[3:]), (
        torch.zeros(shape, dtype=dtype, device=device) for shape, dtype in info)))
    for message, kind, changes in (
            ("reduce_final_map must have shape", ValueError, {"reduce_final_map": good["reduce_final_map"][:1]}),
            ("work_metadata_ptrs must have dtype", TypeError, {"work_metadata_ptrs": good["work_indptr"]}),
            ("page_size must be between", ValueError, {"page_size": 0}),
            ("num_heads_k 2", UnsupportedError, {"num_heads_k": 2}),
            ("mla_version 1", UnsupportedError, {"mla_version": 1})):
        arguments = {**good, "num_heads_k": 1, **changes}
        with pytest.raises(kind, match=message):
            aiter_like.get_mla_metadata_v1(lengths, lengths, None, num_heads_per_head_k=16, is_causal=True, **arguments)
    assert (good["work_info_set"] == 0).all()
