# SPDX-License-Identifier: MIT
"""paged_attention by backend "hip": what its kernel has forms of its own for, against float64: pages of any size,
packs, strides and head dimensions; scales of one cache alone; what it leaves to others.
"""

import math

import pytest
import torch
from paged_attention_cases import BF16, F16, I8, Case, fp8_of

import aiter_like
from aiter_like import explain
from aiter_like.device import target_of
from aiter_like.ops.attention.paged_attention import paged_attention_op
from aiter_like.ops.attention.paged_attention_call import PagedAttentionCall

pytestmark = pytest.mark.rotating


@pytest.fixture(autouse=True)
def needs_mfma(device):
    if target_of(device).platform != "hip":
        pytest.skip("an MFMA kernel")


@pytest.mark.parametrize("page_size", (1, 2, 3, 7, 12, 30, 128))
def test_page_sizes(device, run, page_size):
    """A tile has keys of one page, of several, of one each, and pages end within four neighbours of a lane."""
    case = Case(device, ((1, 300), (1, 0), (1, 61), (1, 129)), page_size=page_size, seed=page_size)
    case.compare(case.call(run, "hip"))


def test_many_sequences(device, run):
    """More than a wave has lanes, so that parts are looked for in several steps; one long sequence among short ones."""
    lengths = [(1, 1 + index % 37) for index in range(150)]
    lengths[130], lengths[3] = (1, 2500), (1, 0)
    case = Case(device, tuple(lengths))
    case.compare(*case.call(run, "hip", return_lse=True))


@pytest.mark.parametrize("layout, kv_dtype, scales, dims, page_size, heads, queries", (
    ("packed", "fp8", "token", (96, 96), 16, (4, 2), 1), ("shuffled", I8, "tensor", (192, 128), 48, (8, 1), 2),
    ("shuffled", BF16, "none", (128, 256), 8, (20, 1), 1)), ids=str)
def test_packs(device, run, layout, kv_dtype, scales, dims, page_size, heads, queries):
    """Packs that waves load in one go, in several, and in part; a lane's run of a key that is half of a pack; NaN in
    packs where only some keys are stored.
    """
    kv_dtype = fp8_of(device) if kv_dtype == "fp8" else kv_dtype
    case = Case(device, ((queries, 333), (queries, queries), (queries, 41)), heads, dims, page_size, layout,
                BF16, kv_dtype, scales)
    case.compare(*case.call(run, "hip", return_lse=True))


def test_packs_behind_the_window(device, run):
    """What no window reaches may be NaN, scales too: engines give such pages away. Views with other heads between."""
    case = Case(device, ((1, 401), (2, 396)), (8, 2), layout="shuffled", kv_dtype=fp8_of(device), scales="token",
                options={"window_left": 130})
    expected, first = case.expect(), 395 - 1 - 130  # the sequences share their first pages
    nan = torch.tensor(math.nan).to(case.kv_dtype).view(torch.uint8)
    for index in range(2):
        for plane in (*(plane.view(torch.uint8) for plane in case.planes), *case.scale_planes):
            poison = nan if plane.dtype == torch.uint8 else math.nan
            plane[case.table[index, :first // 16].long()] = poison
            plane[case.table[index, first // 16].long(), :first % 16] = poison
    given = case.arguments()
    for name in ("k_cache", "v_cache"):
        given[name] = torch.cat((given[name].view(torch.uint8),) * 3, 1)[:, 1:3].view(case.kv_dtype)
        given[name] = given[name].view(torch.uint8).flip(1).view(case.kv_dtype)  # heads 1, 0 became 0, 1
    out = run("hip", aiter_like.paged_attention, case.q.to(device), **given)
    case.expect = lambda: expected
    case.compare(out)


@pytest.mark.parametrize("k_scale, v_scale", (("token", "tensor"), ("none", "token")))
def test_scales_of_one_cache(device, run, k_scale, v_scale):
    """By key for one, and one number or none for the other."""
    case = Case(device, ((1, 70), (1, 300)), kv_dtype=fp8_of(device), scales="token")
    for index, form in enumerate((k_scale, v_scale)):
        if form != "token":
            case.scale_planes[index] = torch.full((1,), 0.3) if form == "tensor" else None
    case.compare(case.call(run, "hip"))


@pytest.mark.parametrize("scales", ("tensor", "token"))
def test_scales_of_16_bits(device, run, scales):
    case = Case(device, ((1, 70), (1, 33)), scales=scales)
    case.compare(case.call(run, "hip"))


def test_scales_of_few_queries(device, run):
    """Queries of int8 have scales of their own, of rows that are apart; softcap and sinks see the scaled score."""
    case = Case(device, ((3, 70), (2, 33), (3, 2)), dtype=I8, kv_dtype=fp8_of(device), scales="tensor")
    wide = torch.rand(len(case.q), 9, generator=case.generator) * 0.03 + 0.01
    case.options = {"q_scale": wide[:, 1:8:2], "softcap": 3.0, "sinks": torch.randn(4)}
    case.compare(*case.call(run, "hip", return_lse=True))


def test_elements_of_rows(device, run):
    """Head dimensions that are no multiple of 32, and V whose elements are apart; sums of parts too."""
    case = Case(device, ((2, 300), (2, 2), (2, 41)), (6, 2), (80, 72), 6)
    k, v = case.caches()
    storage = torch.full((*v.shape[:3], 144), math.nan, dtype=BF16, device=device)
    storage[..., ::2] = v
    call = PagedAttentionCall(
        torch.empty(6, 6, 72, dtype=BF16, device=device), None, case.q.to(device), k, storage[..., ::2],
        case.table.to(device), case.used, max_seqlen_q=2, max_seqlen_k=300, softmax_scale=80 ** -0.5)
    for num_splits in (1, 3):
        paged_attention_op(call._replace(out=call.out.fill_(math.nan), num_splits=num_splits), backend="hip")
        case.compare(call.out)


def test_elements_of_packs(device, run):
    """Packs across the ends of pages: 16 keys of a column, of which a page has 4; and packs of another size."""
    case = Case(device, ((1, 130), (1, 9)), page_size=4, layout="packed", kv_dtype=fp8_of(device), scales="token")
    case.compare(case.call(run, "hip"))
    k, v = (cache.view(torch.uint8) for cache in case.caches())
    k = k.transpose(3, 4).flatten(2, 3).unflatten(2, (-1, 8)).transpose(3, 4).contiguous()  # [.., dim / 8, key, 8]
    v = v.unflatten(3, (-1, 2)).permute(0, 1, 3, 2, 4).contiguous()  # [.., key / 2, column, 2]
    given = {**case.arguments(), "k_cache": k.view(case.kv_dtype), "v_cache": v.view(case.kv_dtype),
             "layout": "shuffled"}
    case.compare(run("hip", aiter_like.paged_attention, case.q.to(device), **given))


def test_what_it_leaves_to_others(device):
    """With the reason; another backend serves it."""
    other = ({torch.float8_e4m3fn, torch.float8_e4m3fnuz} - {fp8_of(device)}).pop()
    for reason, changed in (("head dimensions at most 256, got 288", {"dims": (288, 288)}),
                            ("scales of keys of bf16, fp8 or int8", {"dtype": F16, "scales": "token"}),
                            ("k and v of bf16, fp16, fp8 of gfx942 or int8", {"kv_dtype": other})):
        case = Case(device, ((1, 9),), **changed)
        explanation = explain(aiter_like.paged_attention, case.q.to(device), **case.arguments())
        assert reason in explanation.rejected["hip"] and explanation.backend != "hip"
