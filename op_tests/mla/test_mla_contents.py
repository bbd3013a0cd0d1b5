# SPDX-License-Identifier: MIT
"""Latent attention and its plan with lengths, places and plans at the ends of int32, which nobody looks at on a GPU:
differences and sums that would wrap around.
"""

import dataclasses
import itertools

import pytest
import torch
from mla_cases import compare, make
from test_mla_decode import BACKENDS, KERNELS, plan_of

from aiter_like.ops.mla.mla_metadata import MlaMetadataCall, mla_metadata_op

pytestmark = pytest.mark.rotating

INT_MIN, INT_MAX = -2**31, 2**31 - 1
KEYS = 20
BOUNDS = (INT_MIN, -1, 0, KEYS - 1, KEYS, KEYS + 1, INT_MAX)


def every_pair(values) -> list[int]:
    """A list in which each ordered pair of values stands side by side."""
    left, path, at = {value: list(values) for value in values}, [values[0]], []
    while path:  # Hierholzer's circuit through the complete graph
        if left[path[-1]]:
            path.append(left[path[-1]].pop())
        else:
            at.append(path.pop())
    return at[::-1]


def test_every_pair_is_there():
    assert set(itertools.pairwise(every_pair(BOUNDS))) == set(itertools.product(BOUNDS, repeat=2))


@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_of_all_ranks(device, run, unseen, backend):
    """A sequence whose number of keys on all ranks is none sees none, others what they see alone."""
    starts = every_pair(BOUNDS)
    counts = [max(max(end, 0) - max(start, 0), 0) for start, end in itertools.pairwise(starts)]
    case = make(device, ((2, KEYS),) * len(counts), 2, seed=3)
    out, lse = case.call(run, backend, g_kv_indptr=torch.tensor(starts, dtype=torch.int32, device=device),
                         cp_world_size=2, cp_rank=1)
    for index, token in itertools.product(range(len(counts)), range(2)):
        row = 2 * index + token
        seen = min(max((counts[index] + token - 2 - 1) // 2 + 1, 0), KEYS)
        own, page = case.kv_indptr[index:index + 2].tolist(), case.last_page_lens[:1] * 0 + (seen - 1) % 16 + 1
        alone = dataclasses.replace(
            case, q=case.q[row:row + 1], qo_indptr=case.qo_indptr[:2] // 2, last_page_lens=page, lengths=((1, seen),),
            kv_indptr=torch.tensor([0, -(-seen // 16)]).int(), kv_indices=case.kv_indices[own[0]:own[1]])
        compare(alone, out[row:row + 1], lse[row:row + 1])


@pytest.mark.parametrize("backend", KERNELS)
def test_places_of_a_plan(device, run, backend):
    """A plan's place of partial results is within them or nowhere: the bounds checker would tell.

    Parts that nobody writes then are added up all the same, so the memory holds zeros: lanes differ in NaNs' bits.
    """
    case = make(device, ((3, 700), (2, 900)), 2)
    memory = torch.zeros(2**22, dtype=torch.uint8, device=device)
    for place in (INT_MIN, INT_MAX - 2, INT_MAX - 1, INT_MAX):
        plan = plan_of(device, case, 2, backend, kv_granularity=1, max_seqlen_qo=3)
        plan["work_info_set"][:, 1] = place
        case.call(run, backend, workspace=memory, **plan)


def plan_call(device, qo, kv, parts=3, **options) -> MlaMetadataCall:
    def tensor(*shape):
        return torch.full(shape, 7, dtype=torch.int32, device=device)

    qo, kv = (torch.tensor(each, dtype=torch.int32, device=device) for each in (qo, kv))
    return MlaMetadataCall(tensor(parts + 1), tensor(40, 8), tensor(60), tensor(59, 2), tensor(9), qo, kv, **options)


@pytest.mark.parametrize("backend", ("hip", "triton"))
def test_plans(device, backend):
    """Lengths count as the nearest ones that the lists have: the plan is the reference's."""
    starts, numbers = every_pair(BOUNDS), {"num_entries": KEYS, "total_q": KEYS, "max_seqlen_q": 3}
    level = [0] * len(starts)
    for qo, kv, topk in ((starts, level, -1), (list(range(len(starts))), starts, -1), (starts[::-1], starts, -1),
                         ((INT_MIN, INT_MAX, 3), (0, 5, 9), 4), ((0, 2, 4), (INT_MAX, INT_MIN, INT_MAX), 4),
                         ((INT_MAX, INT_MIN, 3), (0, 5, 9), 4)):
        calls = [plan_call(device, qo, kv, topk=topk, **numbers) for _ in range(2)]
        mla_metadata_op(calls[0], backend=backend)
        mla_metadata_op(calls[1], backend="torch")
        count = int(calls[1].work_indptr[-1])
        assert torch.equal(calls[0].work_info[:count], calls[1].work_info[:count])
        for name in ("work_indptr", "reduce_indptr", "reduce_final_map"):
            assert torch.equal(getattr(calls[0], name), getattr(calls[1], name)), name


@pytest.mark.parametrize("backend", ("hip", "triton"))
def test_sums_of_plans_that_wrap(device, backend):
    """Sequences whose blocks are more than 2^31 together write nothing outside: the bounds checker would tell."""
    for count, pages, parts in ((2, 1, 3), (16, 1, 12), (16, 64, 3), (130, 1, 3), (130, 64, 50)):
        kv = [0, 2**30] * (count // 2) + [0]
        for options in ({}, {"topk": 2**30, "total_q": 300}, {"num_kv_splits": 5}):
            call = plan_call(device, list(range(len(kv))), kv, parts, block_pages=pages, **options)
            mla_metadata_op(call, backend=backend)
            assert 0 <= call.work_indptr.min() and call.work_indptr.max() <= len(call.work_info)
