# SPDX-License-Identifier: MIT
"""unified_attention and mha_batch_prefill_func: each backend against float64, over pages, masks, layouts; bad input."""

import dataclasses
import functools
import math
from typing import Any

import benching
import pytest
import torch
from covering import covering
from paged_cases import BF16, check, compare, expect, make, shuffled

import aiter_like
from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.errors import UnsupportedError
from aiter_like.ops.attention.call import PagedCall, unshuffled_axes
from aiter_like.ops.attention.decode_call import decode_call, triton_kernels
from aiter_like.ops.attention.unified_attention import unified_attention_op
from aiter_like.testing import assert_within

BACKENDS = ("triton", "torch")
MIXED = ((1, 70), (33, 33), (1, 1), (20, 50), (0, 9), (3, 0), (130, 200))


@pytest.mark.parametrize("page_size", (1, 16, 64, 13))
@pytest.mark.parametrize("backend", BACKENDS)
def test_prefill_and_decode_in_one_call(device, run, backend, page_size):
    case = make(device, MIXED, page_size=page_size)
    out = check(run, backend, case)
    assert (out[case.cu_seqlens_q[5]:case.cu_seqlens_q[6]] == 0).all()  # three queries, no key


@pytest.mark.parametrize("heads, kv_heads, head_dim", ((8, 1, 64), (7, 1, 128), (6, 2, 80), (2, 2, 256)))
@pytest.mark.parametrize("backend", BACKENDS)
def test_heads(device, run, backend, heads, kv_heads, head_dim):
    check(run, backend, make(device, ((1, 90), (9, 40)), heads, kv_heads, head_dim, dtype=torch.float16))


@pytest.mark.parametrize("backend", BACKENDS)
def test_split_keys(device, run, backend):
    """One query, keys enough for several workgroups; each option that the sum of the parts must respect."""
    case = make(device, ((1, 1500), (1, 700), (1, 3)), 8, 2, 64)
    sinks = torch.randn(8, generator=torch.Generator().manual_seed(1)).to(device)
    check(run, backend, case)
    first = check(run, backend, case, sinks=sinks, window_size=(900, 0), softcap=20.0)
    again = case.call(run, backend, sinks=sinks, window_size=(900, 0), softcap=20.0)
    assert torch.equal(first, again)


DECODES = {  # (lengths, options) of calls that the kernel for decoding serves, too
    "split": (((1, 1500), (1, 700), (1, 3), (1, 0)), {"sinks": torch.linspace(-1, 1, 8).bfloat16()}),
    "speculative": (((8, 90), (3, 3), (1, 40), (0, 9)), {"softcap": 3.0, "alibi_slopes": torch.linspace(0, 1, 8)}),
    "window": (((2, 300), (2, 20)), {"window_size": (17, -1)}),
    "shuffled": (((2, 300), (1, 20)), {"shuffled_kv_cache": True}),
    "fp8": (((4, 300), (1, 20)), {"k_descale": 0.5, "v_descale": 3.0}),
}


@pytest.mark.parametrize("name", DECODES)
@pytest.mark.parametrize("kernel", ("paged_attention", "unified_attention"))
def test_decoding_by_each_kernel(device, run, monkeypatch, name, kernel):
    (lengths, options), seen = DECODES[name], []
    kv_dtype = dtypes.fp8_of(target_of(device).arch) if name == "fp8" else None
    case = make(device, lengths, 8, 2, 64, kv_dtype=kv_dtype)
    stored = dataclasses.replace(case, **dict(zip("kv", shuffled(case)))) if name == "shuffled" else case
    given = {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in options.items()}
    if name == "fp8":
        given = {key: torch.tensor([value], device=device).expand(2, 2) for key, value in options.items()}

    unified_attention_op.reset()  # a call like one that was served before is launched as that one was
    monkeypatch.setattr(type(unified_attention_op.backends[0]), "kernel_names",
                        lambda *_: seen.append(kernel) or [kernel])
    expected = {key: value for key, value in options.items() if key != "shuffled_kv_cache"}
    moved = {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in expected.items()}
    first, second = (torch.empty_like(case.q) for _ in range(2))
    compare(case, stored.call(run, "triton", first, **given), **moved)
    assert torch.equal(stored.call(run, "triton", second, **given), first)  # a repeated launch
    assert seen
    unified_attention_op.reset()


def test_what_the_kernel_for_decoding_takes(device):
    """What it cannot express stays with the other kernel."""
    case = make(device, ((1, 40), (1, 20)))
    call = PagedCall(case.q, None, case.q, case.k, case.v, case.cu_seqlens_q, case.seqused_k, case.block_table,
                     max_seqlen_q=1, max_seqlen_k=40, window_right=0)
    scales = torch.ones(2, 2, device=device)
    fp8 = dtypes.fp8_of(target_of(device).arch)
    pages = {"k": case.k.to(fp8), "v": case.v.to(fp8)}
    for takes, changed in ((True, {}), (True, {"window_right": -1}), (True, {"max_seqlen_q": 8}),
                           (False, {"max_seqlen_q": 9}), (False, {"max_seqlen_q": 2, "window_right": -1}),
                           (False, {"window_right": 3}), (False, {"qq_bias": scales}), (True, {"sink_size": 3}),
                           (False, {"sink_size": 3, "window_left": 9}), (True, {**pages, "k_descale": scales[:1, :1]}),
                           (False, {**pages, "v_descale": scales}), (True, {"v_descale": scales})):
        assert (decode_call(call._replace(**changed)) is not None) == takes, changed
    target = target_of(device)
    first = "paged_attention" if target.platform == "cuda" else "unified_attention"
    assert triton_kernels(target, call)[0] == first
    assert triton_kernels(target, call, BLOCK_M=32) == ["unified_attention"]
    assert triton_kernels(target, call, BLOCK_N=64) == ["paged_attention"]
    assert triton_kernels(target, call._replace(qq_bias=scales)) == ["unified_attention"]


def options_of(name: str, heads: int, device: torch.device) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(7)
    slopes, sinks = torch.rand(2, heads, generator=generator).to(device)
    bias = torch.randn(40, 40, generator=generator).to(device)
    return {"full": {"causal": False}, "window": {"window_size": (17, -1)}, "softcap": {"softcap": 3.0},
            "alibi": {"alibi_slopes": slopes}, "sinks": {"sinks": sinks}, "qq_bias": {"qq_bias": bias},
            "all": {"window_size": (30, 0), "softcap": 5.0, "alibi_slopes": slopes, "sinks": sinks, "qq_bias": bias,
                    "softmax_scale": 0.3}}[name]


@pytest.mark.parametrize("name", ("full", "window", "softcap", "alibi", "sinks", "qq_bias", "all"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_options(device, run, backend, name):
    check(run, backend, make(device, ((1, 70), (33, 100), (5, 5))), **options_of(name, 4, device))


def check_terms(device, run, *, lengths, page_size, heads, dims, dtype, cache, layout, terms, window, causal):
    """One row of test_grid."""
    kv_dtype = dtypes.fp8_of(target_of(device).arch) if cache == "fp8" else None
    case = make(device, lengths, *heads, dims[0], page_size, dtype, kv_dtype, head_dim_v=dims[1])
    longest, generator = case.max_lengths[0], torch.Generator().manual_seed(terms)
    slopes, sinks = torch.rand(2, heads[0], generator=generator).to(device)
    bias = torch.randn(longest, longest, generator=generator).to(device)
    options = {"causal": causal, "window_size": window}
    for bit, term in enumerate(({"softcap": 3.0}, {"alibi_slopes": slopes}, {"sinks": sinks}, {"qq_bias": bias})):
        options |= term if terms >> bit & 1 else {}
    descales = {"k_descale": 0.5, "v_descale": 3.0} if cache == "fp8" else {}
    moved = {name: torch.tensor([value], device=device) for name, value in descales.items()}
    out, stored = torch.empty(*case.q.shape[:2], dims[1], dtype=dtype, device=device), case
    if layout == "shuffled" and page_size % 16 == 0:
        k, v = shuffled(case)
        stored, moved = dataclasses.replace(case, k=k, v=v), {**moved, "shuffled_kv_cache": True}
    compare(case, stored.call(run, "triton", out=out, **options, **moved), **options, **descales)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(4))
def test_grid(device, run, seed, part):
    """A covering design of about 100 of the 576,000 combinations, new in each run (--seed repeats one): each value with
    each of every other factor. terms: sets of softcap, ALiBi, sinks and the bias between queries.
    """
    factors = {"lengths": (MIXED[:5] + MIXED[6:], ((1, 90), (1, 7), (1, 64)), ((1, 1500), (1, 700), (1, 3))),
               "page_size": (1, 13, 16, 64, 256), "heads": ((1, 1), (4, 2), (8, 1), (7, 1), (6, 6)),
               "dims": ((32, 32), (64, 64), (80, 80), (128, 128), (192, 128), (256, 256)),
               "dtype": (BF16, torch.float16), "cache": ("as q", "fp8"),
               "layout": ("rows", "shuffled"),
               "terms": range(16), "window": ((-1, -1), (17, -1), (30, 0), (0, 0), (-1, 5)),
               "causal": (False, True)}
    for row in covering(factors, seed)[part::4]:
        check_terms(device, run, **row)


@pytest.mark.parametrize("backend", BACKENDS)
def test_packed_storage(device, run, backend):
    """K and V interleaved by head, heads before tokens, as engines store them; and heads apart in q and out."""
    case = make(device, ((1, 70), (20, 40)), page_size=16)
    storage = torch.full((case.k.shape[0], 2, 16, 128), math.nan, dtype=BF16, device=device)
    k, v = storage.transpose(1, 2)[..., :64], storage.transpose(1, 2)[..., 64:]
    k.copy_(case.k), v.copy_(case.v)
    wide = torch.full((21, 9, 64), math.nan, dtype=BF16, device=device)
    q = wide[:, 2:6].copy_(case.q)
    views = dataclasses.replace(case, q=q, k=k, v=v)
    expected = check(run, backend, case)
    assert torch.equal(check(run, backend, views), expected)
    target = torch.full((21, 5, 80), 3.0, dtype=BF16, device=device)
    assert torch.equal(views.call(run, backend, out=target[:, 1:, :64]), expected)
    assert (target[:, 0] == 3).all() and (target[..., 64:] == 3).all()


@pytest.mark.parametrize("page_size, head_dim, head_dim_v, kv_dtype", (
    (16, 64, 64, BF16), (64, 80, 128, BF16), (48, 64, 64, "fp8"), (128, 128, 64, "fp8")), ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_shuffled_caches(device, run, backend, page_size, head_dim, head_dim_v, kv_dtype):
    """Pages narrower and wider than a tile of keys, a second product of the columns, a split of the keys."""
    kv_dtype = dtypes.fp8_of(target_of(device).arch) if kv_dtype == "fp8" else kv_dtype
    case = make(device, ((1, 600), (20, 40), (130, 150)), page_size=page_size, head_dim=head_dim, head_dim_v=head_dim_v,
                kv_dtype=kv_dtype)
    k, v = shuffled(case)
    moved = dataclasses.replace(case, k=k, v=v)
    out = torch.empty(*case.q.shape[:2], head_dim_v, dtype=BF16, device=device)
    for options in ({}, {"window_size": (30, 0), "softcap": 5.0}):
        compare(case, moved.call(run, backend, out=out, shuffled_kv_cache=True, **options), **options)


def test_shuffled_caches_as_reshape_and_cache_writes_them(device, run):
    case = make(device, ((4, 48), (1, 20)))
    k, v = (torch.full_like(cache, math.nan) for cache in shuffled(case))
    slots = torch.arange(case.k.shape[0] * 16, device=device)
    aiter_like.reshape_and_cache(case.k.flatten(0, 1), case.v.flatten(0, 1), k, v, slots, "auto", asm_layout=True)
    compare(case, dataclasses.replace(case, k=k, v=v).call(run, "triton", out=torch.empty_like(case.q),
                                                           shuffled_kv_cache=True))


@pytest.mark.parametrize("descales", ("one", "many"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_fp8_cache(device, run, backend, descales):
    case = make(device, ((1, 600), (20, 40)), kv_dtype=dtypes.fp8_of(target_of(device).arch))
    k_descale, v_descale = (torch.full((1,) if descales == "one" else (2, 2), value, device=device)
                            for value in (0.5, 3.0))
    if descales == "many":
        k_descale = k_descale[:1, :1].expand(2, 2)  # as vLLM passes one number
    out = case.call(run, backend, k_descale=k_descale, v_descale=v_descale)
    compare(case, out, k_descale=0.5, v_descale=3.0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_descales_of_a_16_bit_cache_are_ignored(device, run, backend):
    two = torch.full((1,), 2.0, device=device)
    check(run, backend, make(device, ((2, 40),)), k_descale=two, v_descale=two)


@pytest.mark.parametrize("lengths", (((9, 40),), ((1, 1200),)), ids=("whole", "split"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_fp8_out(device, run, backend, lengths):
    fp8 = dtypes.fp8_of(target_of(device).arch)
    case = make(device, lengths)
    expected, weighted, _ = expect(case)
    scale = expected.abs().max().item() / torch.finfo(fp8).max / 2  # the largest saturate
    out = torch.empty_like(case.q, dtype=fp8)
    case.call(run, backend, out=out, output_scale=torch.tensor([scale], device=device))
    limit = scale * torch.finfo(fp8).max
    error = (out.cpu().double() * scale - expected.clamp(-limit, limit)).abs()
    assert (error <= expected.abs() * 2**-4 + weighted * 2**-7 + scale * 2**-10).all()
    assert (out.cpu().double().abs() == torch.finfo(fp8).max).any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_whatever_lengths_and_pages_hold(device, backend):
    """Nothing outside the tensors is touched: the bounds checker would tell, and a canary beside `out`. The public
    function would say so on the CPU; on a GPU nobody looks.
    """
    case = make(device, ((9, 40), (9, 40), (9, 40)))
    storage = torch.full((29, 4, 64), 3.0, dtype=BF16, device=device)
    big = 2**31 - 1
    for starts, used, page in (((0, 9, 18, 27), (40, 40, 40), -5), ((5, -9, big, 3), (-4, big, 40), big),
                               ((-big, big, big, 0), (big, -big, 0), 10**6)):
        bad = [torch.tensor(values, dtype=torch.int32, device=device) for values in (starts, used)]
        for k, v in ((case.k, case.v), unshuffled_axes(*shuffled(case))):
            for table, page_starts in ((case.block_table, None), (case.block_table.flatten(), bad[0] // 3)):
                unified_attention_op(PagedCall(
                    storage[1:-1], None, case.q, k, v, cu_seqlens_q=bad[0], seqlens_k=bad[1],
                    block_table=torch.full_like(table, page), page_starts=page_starts, max_seqlen_q=9,
                    max_seqlen_k=40, softmax_scale=0.125, window_right=0), backend=backend)
    assert (storage[0] == 3).all() and (storage[-1] == 3).all()


@pytest.mark.parametrize("form", ("ragged", "full_pages", "table", "slots", "shuffled"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_batch_prefill(device, run, backend, form):
    """The same pages listed one after the other; with and without the length of the last; one key per page."""
    lengths = ((1, 64), (20, 48), (3, 16)) if form == "full_pages" else ((1, 70), (20, 41), (3, 3))
    case = make(device, lengths, page_size=1 if form == "slots" else 16)
    size = case.k.shape[1]
    counts = [-(-keys // size) for _, keys in lengths]
    pages = torch.cat([case.block_table[index, :count] for index, count in enumerate(counts)])
    starts = torch.tensor([0, *torch.tensor(counts).cumsum(0)], dtype=torch.int32, device=device)
    last = torch.tensor([(keys - 1) % size + 1 for _, keys in lengths], dtype=torch.int32, device=device)
    options = {"full_pages": {}, "ragged": {"kv_last_page_lens": last}, "slots": {"kv_last_page_lens": None},
               "shuffled": {"kv_last_page_lens": last},
               "table": {"block_table": case.block_table, "seqlen_k": case.seqused_k}}[form]
    k, v = shuffled(case) if form == "shuffled" else (case.k, case.v)
    if form == "slots":
        k, v = k[:, 0], v[:, 0]
    out, lse = run(backend, aiter_like.mha_batch_prefill_func, case.q, k, v, case.cu_seqlens_q, starts, pages,
                   *case.max_lengths, causal=True, window_size=(30, 0), return_lse=True, **options)
    compare(case, out, window_size=(30, 0))
    expected = expect(case, window_size=(30, 0))[2]
    assert_within("lse", lse, expected, torch.full_like(expected, 2e-5))


def bad_calls(device):
    case = make(device, ((2, 9), (3, 3)))
    yield "q must have 3 dimensions", ValueError, {"q": case.q[0]}, {}
    yield "k must have dtype torch.bfloat16 or fp8, got torch.float16", TypeError, {"k": case.k.half(),
                                                                                    "v": case.v.half()}, {}
    yield "k must have shape", ValueError, {"k": case.k[..., :32]}, {}
    yield "must be a multiple of the heads of k, got 3 and 2", ValueError, {"q": case.q[:, :3]}, {}
    yield "seqused_k must have shape", ValueError, {"seqused_k": case.seqused_k[:1]}, {}
    yield "block_table must have shape", ValueError, {"block_table": case.block_table[0]}, {}
    yield "must not be empty", ValueError, {"k": case.k[:, :0], "v": case.v[:, :0]}, {}
    yield "softmax_scale must be at least", ValueError, {}, {"softmax_scale": 0.0}
    yield "softcap must be at least", ValueError, {}, {"softcap": -1.0}
    yield "causal must be True or False", TypeError, {}, {"causal": 1}
    yield "window_size must be", ValueError, {}, {"window_size": (-2, 0)}
    yield "sinks must have shape", ValueError, {}, {"sinks": torch.zeros(3, device=device)}
    yield "qq_bias must have shape", ValueError, {}, {"qq_bias": torch.zeros(3, 4, device=device)}
    yield "output_scale must have 1 element", ValueError, {}, {
        "output_scale": torch.ones(2, device=device),
        "out": torch.empty_like(case.q, dtype=torch.float8_e4m3fn)}
    yield "out must have dtype", TypeError, {}, {"output_scale": torch.ones(1, device=device)}
    yield "k_descale must have shape", ValueError, {}, {"k_descale": torch.ones(3, device=device)}
    yield "no backend supports skip_reduce", UnsupportedError, {}, {"skip_reduce": True}
    yield "k must have 5 dimensions", ValueError, {}, {"shuffled_kv_cache": True}
    yield "shuffled_kv_cache must be True or False", TypeError, {}, {"shuffled_kv_cache": 1}
    k, v = shuffled(case)
    yield "k must have 4 dimensions", ValueError, {"k": k, "v": v}, {}
    yield "k must have shape", ValueError, {"k": k[:, :, :4], "v": v}, {"shuffled_kv_cache": True}
    yield "v must have shape", ValueError, {"k": k, "v": v[:, :, :1]}, {"shuffled_kv_cache": True}
    yield "page size of shuffled pages must be multiples of 8", ValueError, {"k": k[..., :15, :], "v": v}, {
        "shuffled_kv_cache": True}
    if device.type != "cpu":
        return  # looking at the values would wait for the GPU
    for name, values, message in (("cu_seqlens_q", (0, 6, 5), "must start at 0, never fall"),
                                  ("seqused_k", (9, -1), "keys of a sequence must be between 0 and 9"),
                                  ("seqused_k", (9, 10), "keys of a sequence must be between 0 and 9")):
        yield message, ValueError, {name: torch.tensor(values, dtype=torch.int32)}, {}
    for page in (-1, len(case.k)):
        yield f"block_table must name pages from 0 to {len(case.k) - 1}, got {page}", ValueError, {
            "block_table": torch.full_like(case.block_table, page)}, {}


def test_bad_input(device):
    case = make(device, ((2, 9), (3, 3)))

    def run(backend, function, *args, **kwargs):
        return function(*args, **kwargs)

    for message, kind, fields, options in bad_calls(device):
        with pytest.raises(kind, match=message):
            dataclasses.replace(case, **fields).call(run, None, **options)
    other = ({torch.float8_e4m3fn, torch.float8_e4m3fnuz} - {dtypes.fp8_of(target_of(device).arch)}).pop()
    with pytest.raises(UnsupportedError, match="fp8 of"):
        make(device, ((2, 9),), kv_dtype=other).call(functools.partial(_forced, "triton"), "triton")


def _forced(name, backend, function, *args, **kwargs):
    return function(*args, backend=name, **kwargs)


def test_an_empty_batch(device, run):
    case = make(device, ((2, 9),))
    empty = dataclasses.replace(case, q=case.q[:0], lengths=((0, 0),))
    assert aiter_like.unified_attention(
        empty.q, case.k, case.v, torch.empty_like(empty.q), case.cu_seqlens_q * 0, 0, case.seqused_k, 9, 0.1, True,
        None, case.block_table, 0.0, None, None, None).shape == (0, 4, 64)


def bench() -> None:
    """Decoding and prefill, in pages of 16."""
    benching.of("unified_attention", "batch seqlen_q seqlen_k", (
        (1, 1, 8192), (16, 1, 4096), (128, 1, 2048), (4, 512, 4096), (1, 8192, 8192)), beside=benching.alone,
        mask="causal", num_heads=32, num_kv_heads=8, head_dim=128, page_size=16, features="none", dtype="bf16",
        kv_dtype="bf16")
