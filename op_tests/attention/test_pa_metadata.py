# SPDX-License-Identifier: MIT
"""get_pa_metadata_v1: the plan that AITER's rule gives, sequence after sequence, on each backend alike."""

import pytest
import torch

import aiter_like
from aiter_like.errors import UnsupportedError
from aiter_like.ops.attention.pa_metadata import PaMetadataCall, pa_metadata_op

pytestmark = pytest.mark.rotating

BACKENDS = ("hip", "triton", "torch")
NAMES = ("work_metadata_ptrs", "work_indptr", "work_info", "reduce_indptr", "reduce_final_map", "reduce_partial_map")
RAGGED = [(1, 900), (2, 0), (4, 64), (1, 1), (3, 3000)]


def starts_of(values):
    return torch.tensor([0, *values]).cumsum(0).int()


def make(device, run, backend, lengths, heads=1, group=8, parts=None, size=16, **options):
    """The plan of sequences of (query tokens, keys), as tensors by name; 77 wherever nothing was written."""
    info = aiter_like.get_pa_metadata_info_v1(len(lengths), heads)
    assert [dtype for _, dtype in info] == [torch.uint64, *[torch.int32] * 5]
    shapes = [(shape,) if isinstance(shape, int) else shape for shape, _ in info]
    if parts:
        shapes[1] = (parts + 1,)
    plan = {name: torch.full(shape, 77, dtype=torch.uint64 if name == NAMES[0] else torch.int32, device=device)
            for name, shape in zip(NAMES, shapes)}
    run(backend, aiter_like.get_pa_metadata_v1, starts_of([rows for rows, _ in lengths]).to(device),
        starts_of([-(-keys // size) for _, keys in lengths]).to(device),
        torch.tensor([keys for _, keys in lengths], dtype=torch.int32, device=device), group, heads, True, **plan,
        block_size=size, **options)
    assert plan.pop(NAMES[0]).tolist() == [0, 0]
    return plan


def greedy(lengths, heads, group, parts, size=16, granularity=16):
    """The rule: each part takes its number of blocks from what is left of the sequences, head after head. Of the
    items, the groups and their entries all, and work_indptr.
    """
    each, factor = parts // heads, granularity // size
    pages = starts_of([-(-keys // size) for _, keys in lengths]).tolist()
    rows = starts_of([count for count, _ in lengths]).tolist()
    blocks = [-(-keys // granularity) for _, keys in lengths]
    average, more = divmod(sum(blocks), each)
    items, bounds, groups, entries = [], [0], [], []
    for head in range(heads):
        index, done, pieces, place, groups, entries = 0, 0, [], 0, [], []
        for part in range(each):
            left = average + (part < more)
            while index < len(lengths):
                taken = min(left, blocks[index] - done)
                is_end = done + taken == blocks[index]
                if not is_end and not taken:
                    break
                is_cut = bool(pieces) or not is_end
                item = [index, place if is_cut else -1, rows[index], rows[index + 1], pages[index] + done * factor,
                        min(pages[index] + (done + taken) * factor, pages[index + 1]), 0,
                        head * group | (head + 1) * group << 16]
                items.append(item)
                place += lengths[index][0] if is_cut else 0
                pieces.append(item[1])
                left, done = left - taken, done + taken
                if not is_end:
                    break
                if is_cut:
                    groups.append([rows[index], rows[index + 1]])
                    entries.append(pieces)
                index, done, pieces = index + 1, 0, []
            bounds.append(len(items))
    return items, bounds + [len(items)] * (parts + 1 - len(bounds)), groups, entries


def compare(plan, lengths, heads, group, *sizes):
    """A plan with the rule's; where it has nothing, 77 or the last bound."""
    parts = len(plan["work_indptr"]) - 1
    items, bounds, groups, entries = greedy(lengths, heads, group, parts, *sizes)
    info, tiles = plan["work_info"].tolist(), [0]
    for entry in entries:
        tiles.append(tiles[-1] + len(entry))
    assert plan["work_indptr"].tolist() == bounds
    assert info[:len(items)] == items and info[len(items):] == [[77] * 8] * (len(info) - len(items))
    assert plan["reduce_indptr"].tolist() == tiles + [tiles[-1]] * (len(lengths) + 1 - len(tiles))
    assert plan["reduce_final_map"].tolist() == groups + [[77] * 2] * (len(lengths) - len(groups))
    slots = plan["reduce_partial_map"].tolist()
    assert slots[:tiles[-1]] == [place for entry in entries for place in entry]
    assert set(slots[tiles[-1]:]) <= {77}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("heads", "group", "parts"), ((1, 10, 16), (2, 8, 17), (3, 1, 12), (4, 16, 4)))
def test_plans(device, run, backend, heads, group, parts):
    """Ragged lengths, no keys, one long sequence among many, fewer blocks than parts, more sequences than a workgroup
    has.
    """
    for lengths in (RAGGED, [(1, 0), (2, 0)], [(1, 5)] * 7, [(2, 40)], [(1, 0), (1, 700), (1, 0)],
                    [*[(1, 10)] * 40, (4, 5000), *[(1, 300)] * 30], [(1, index % 90) for index in range(600)]):
        compare(make(device, run, backend, lengths, heads, group, parts), lengths, heads, group)


@pytest.mark.parametrize("backend", BACKENDS)
def test_default_sizes_are_enough(device, run, backend):
    for heads, lengths in ((1, [(1, 9000)] * 3), (8, [(2, 4000), (1, 30)]), (2, [(4, 33000)] * 200)):
        plan = make(device, run, backend, lengths, heads)
        compare(plan, lengths, heads, 8)


@pytest.mark.parametrize("backend", BACKENDS)
def test_options(device, run, backend):
    """Pieces of whole blocks of pages; pages of many keys; a bound of the parts for each sequence."""
    plan = make(device, run, backend, RAGGED, 1, 4, 20, kv_granularity=64)
    compare(plan, RAGGED, 1, 4, 16, 64)
    plan = make(device, run, backend, RAGGED, 2, 4, 20, 1024, kv_granularity=1024)
    compare(plan, RAGGED, 2, 4, 1024, 1024)
    lengths = [(1, 1024), (1, 1024)]
    plan = make(device, run, backend, lengths, 1, 8, 20, max_split_per_batch=2)
    assert plan["work_indptr"].tolist() == [0, 1, 2, 3, *[4] * 17] and plan["reduce_indptr"].tolist() == [0, 2, 4]


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_sequences(device, run, backend):
    """AITER's test begins with lengths of no sequence, and more of them than their starts say."""
    plan = [torch.full((shape,) if isinstance(shape, int) else shape, 77, dtype=dtype, device=device)
            for shape, dtype in aiter_like.get_pa_metadata_info_v1(3)]
    none = torch.zeros(1, dtype=torch.int32, device=device)
    run(backend, aiter_like.get_pa_metadata_v1, none, none, none, 1, 1, True, *plan)
    assert not plan[1].any() and not plan[3].any() and (plan[2] == 77).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_sequences_without_rows(device, run, backend):
    """Their keys are no work; the pages of others stay where they are."""
    lengths = [(0, 70), (2, 100), (0, 0)]
    plan = make(device, run, backend, lengths, 1, 1, 2)
    heads = 1 << 16
    assert plan["work_info"][:4].tolist() == [[0, -1, 0, 0, 0, 0, 0, heads], [1, 0, 0, 2, 5, 9, 0, heads],
                                              [1, 2, 0, 2, 9, 12, 0, heads], [2, -1, 2, 2, 12, 12, 0, heads]]
    assert plan["reduce_indptr"].tolist() == [0, 2, 2, 2] and plan["reduce_final_map"][0].tolist() == [0, 2]


@pytest.mark.parametrize("backend", ("hip", "triton"))
def test_tensors_that_are_too_small(device, backend):
    """What does not fit is left out, and nothing outside is written: the bounds checker would tell."""
    def zeros(*shape):
        return torch.zeros(shape, dtype=torch.int32, device=device)

    big = 2**31 - 1
    for starts in ((0, 1, 2, 3), (5, -9, big, 3), (-big, big, big, 0), (0, big, big, big)):
        lengths = torch.tensor(starts, dtype=torch.int32, device=device)
        for keys in ((700, 3, 2000), (big, -big, big)):
            call = PaMetadataCall(zeros(5), zeros(2, 8), zeros(2), zeros(1, 2), zeros(1), lengths, lengths,
                                  torch.tensor(keys, dtype=torch.int32, device=device), num_heads_k=2, group=3,
                                  page_size=1, num_parts=4, max_seqlen_q=2)
            pa_metadata_op(call, backend=backend)


def test_bad_input(device):
    lengths, starts = torch.ones(2, dtype=torch.int32, device=device), starts_of([1, 1]).to(device)
    good = {name: torch.zeros(shape, dtype=dtype, device=device)
            for name, (shape, dtype) in zip(NAMES, aiter_like.get_pa_metadata_info_v1(2))}
    good |= {"seqlens_qo_indptr": starts, "pages_kv_indptr": starts, "context_lens": lengths, "num_heads_k": 1,
             "num_heads_per_head_k": 16, "is_causal": True}
    for message, kind, changes in (
            ("work_indptr must have dtype", TypeError, {"work_indptr": good["work_indptr"].long()}),
            ("reduce_final_map must have shape", ValueError, {"reduce_final_map": good["reduce_final_map"][:1]}),
            ("work_metadata_ptrs must have dtype", TypeError, {"work_metadata_ptrs": good["work_indptr"]}),
            ("context_lens must have at least 2", ValueError, {"context_lens": lengths[:1]}),
            ("pages_kv_indptr must have at least 3", ValueError, {"pages_kv_indptr": starts[:2]}),
            ("block_size must be between", ValueError, {"block_size": 0}),
            ("kv_granularity must be a multiple of block_size 64", ValueError, {"block_size": 64}),
            ("work_indptr must have a part for each of 400 heads", ValueError, {"num_heads_k": 400}),
            ("num_heads_per_head_k must be between", ValueError, {"num_heads_per_head_k": 0}),
            ("num_heads_k · num_heads_per_head_k must", ValueError, {"num_heads_per_head_k": 30000, "num_heads_k": 2}),
            ("topk 4", UnsupportedError, {"topk": 4})):
        with pytest.raises(kind, match=message):
            aiter_like.get_pa_metadata_v1(**{**good, **changes})
    assert not good["work_info"].any() and not good["work_indptr"].any()
    with pytest.raises(ValueError, match="num_head_k must"):
        aiter_like.get_pa_metadata_info_v1(2, 0)
