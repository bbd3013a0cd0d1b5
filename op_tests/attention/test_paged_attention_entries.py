# SPDX-License-Identifier: MIT
"""AITER's entries of decoding over pages, edges of paged_attention: layouts, scales, workspaces, bad input."""

import pytest
import torch
from paged_attention_cases import BF16, F16, I8, Case, fp8_of

import aiter_like

pytestmark = pytest.mark.rotating

BACKENDS = ("hip", "triton")


def scales_of(case: Case, form: str) -> list[torch.Tensor]:
    """The scales of K and V as AITER has them, heads before places."""
    planes = [plane.transpose(1, 2).contiguous() for plane in case.scale_planes]
    shapes = {"blocks": lambda one: one, "column": lambda one: one[..., None],
              "slots": lambda one: one.transpose(1, 2).flatten(0, 1).contiguous(),
              "heads": lambda one: one.transpose(0, 1).flatten(1).contiguous()}
    return [shapes[form](plane).to(case.device) for plane in planes]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", ("NHD", "HND"))
def test_v1(device, run, backend, layout):
    """vLLM's call: no last element of cu_query_lens, a workspace of AITER's size, scales of one that mean nothing."""
    case = Case(device, ((1, 40), (1, 600), (1, 1)), page_size=16, layout=layout)
    k, v = case.caches()
    case.options = {"window_left": 299, "softcap": 5.0, "alibi_slopes": torch.rand(4)}
    out, one = torch.empty(3, 4, 64, dtype=BF16, device=device), torch.full((1,), 2.0, device=device)
    workspace = torch.full((3 * 4 * 3 * (64 * 2 + 8),), 0xFF, dtype=torch.uint8, device=device)
    for starts in (case.starts[:3], case.starts, None):
        returned = run(backend, aiter_like.paged_attention_v1, out.fill_(9), workspace, case.q.to(device), k, v, 0.125,
                       case.table.to(device), starts, case.used, 600, case.options["alibi_slopes"].to(device), "auto",
                       layout, 5.0, one, one, sliding_window=300)
        assert returned is out
        case.compare(out)


def test_v1_takes_bytes_as_fp8(device, run):
    fp8 = fp8_of(device)
    case = Case(device, ((1, 40), (1, 20)), kv_dtype=fp8, scales="tensor")
    k, v = (cache.view(torch.uint8) for cache in case.caches())
    out = torch.empty(2, 4, 64, dtype=BF16, device=device)
    run("triton", aiter_like.paged_attention_v1, out, torch.empty(0, dtype=torch.uint8, device=device),
        case.q.to(device), k, v, 0.125, case.table.to(device), None, case.used, 40, None, "fp8", "NHD", 0.0,
        *(plane.to(device) for plane in case.scale_planes))
    case.compare(out)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("page_size", (1, 16))
def test_ragged(device, run, backend, page_size):
    """SGLang's call: a pool of tokens, or pages with a length of the last; the fixed workspace serves."""
    case = Case(device, ((1, 33), (1, 0), (1, 517)), (8, 2), page_size=page_size)
    k, v = case.caches()
    counts = [-(-keys // page_size) for _, keys in case.lengths]
    pages = torch.cat([case.table[index, :count] for index, count in enumerate(counts)]).to(device)
    starts = torch.tensor([0, *torch.tensor(counts).cumsum(0)], dtype=torch.int32, device=device)
    last = torch.tensor([(keys - 1) % page_size + 1 for _, keys in case.lengths], dtype=torch.int32, device=device)
    size = aiter_like.paged_attention_workspace_bytes(case.q.to(device), 2, 64, 3, 768)
    workspace = torch.full((size + 64,), 0xFF, dtype=torch.uint8, device=device)
    out = torch.empty(3, 8, 64, dtype=BF16, device=device)
    run(backend, aiter_like.paged_attention_ragged, out, workspace, case.q.to(device), k, v, 0.125, starts, pages,
        None if page_size == 1 else last, page_size, 3, None, "auto", "NHD", 0.0, None, None)
    case.compare(out)
    assert (out[1] == 0).all() and (workspace[size:] == 0xFF).all()
    assert size == 0 or not (workspace[:size] == 0xFF).all()  # a device may have no use for parts of so few keys


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", ("blocks", "column", "slots", "heads"))
def test_forms_of_scales(device, run, backend, form):
    """Of keys and heads, in each entry that takes them; two rows per sequence."""
    case = Case(device, ((2, 40), (2, 20)), (4, 2), layout="shuffled", kv_dtype=fp8_of(device), scales="token")
    k, v = case.caches()
    out = run(backend, aiter_like.pa_fwd_asm, case.q.to(device), k, v, case.table.to(device), case.used, 7, 2,
              *scales_of(case, form), qo_indptr=case.starts)
    case.compare(out)
    rocm = torch.empty_like(out)
    run(backend, aiter_like.paged_attention_rocm, rocm, None, None, None, case.q.to(device), k, v, 2, 0.125,
        case.table.to(device), case.used, 16, 40, None, "fp8", *scales_of(case, form), mtp=2)
    assert torch.equal(rocm, out)
    common = run(backend, aiter_like.paged_attention_common, case.q.to(device), k, v, None, None, None,
                 case.table.to(device), case.used, 7, 0.125, 2, 40, None, None, *scales_of(case, form))
    assert torch.equal(common, out)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rocm_with_columns(device, run, backend):
    """Keys packed, values in columns, one scale each for the common entry, rows of q apart."""
    case = Case(device, ((1, 40), (1, 20)), (8, 2), layout="packed", dtype=F16)
    k, v = case.caches()
    wide = torch.zeros(2, 12, 64, dtype=F16, device=device)
    wide[:, :8] = case.q.to(device)
    out = torch.empty(2, 8, 64, dtype=F16, device=device)
    run(backend, aiter_like.paged_attention_rocm, out, None, None, None, wide[:, :8], k, v, 2, 0.125,
        case.table.to(device), case.used, 16, 40, None, "auto", None, None)
    case.compare(out)
    assert torch.equal(run(backend, aiter_like.pa_fwd_asm, wide[:, :8], k, v, case.table.to(device), case.used, 7), out)
    case = Case(device, ((1, 40), (1, 20)), (8, 2), layout="packed", kv_dtype=I8, scales="tensor")
    k, v = case.caches()
    scales = [plane[0].to(device) for plane in case.scale_planes]  # without a dimension
    case.compare(run(backend, aiter_like.paged_attention_common, case.q.to(device), k, v, None, None, None,
                     case.table.to(device), case.used, 7, 0.125, 1, 40, *scales))


def test_decode_of_the_triton_name(device, run):
    """Lengths of 64 bits, a bound that is a tensor, rows of fewer elements than a tile has."""
    for dims in ((64, 64), (1, 1)):
        case = Case(device, ((1, 40), (1, 20)), (2, 2), dims, layout="HND", dtype=F16)
        k, v = case.caches()
        out = torch.empty_like(case.q, device=device)
        assert run("triton", aiter_like.paged_attention_decode, out, case.q.to(device), k, v, case.used.long(),
                   case.table.to(device), dims[0] ** -0.5, torch.tensor(40), None, None, None) is None
        case.compare(out)


def test_bad_input(device):
    case = Case(device, ((1, 40), (1, 20)))
    k, v = case.caches()
    q, table, out = case.q.to(device), case.table.to(device), torch.empty(2, 4, 64, dtype=BF16, device=device)
    workspace, one = torch.empty(0, dtype=torch.uint8, device=device), torch.ones(3, device=device)

    def v1(kv_dtype="auto", layout="NHD", lengths=case.used, window=0, scale=None, keys=k):
        aiter_like.paged_attention_v1(out, workspace, q, keys, v, 0.125, table, None, lengths, 40, None, kv_dtype,
                                      layout, 0.0, scale, scale, sliding_window=window)

    for message, kind, options in (
            ("kv_cache_dtype must be 'auto'", ValueError, {"kv_dtype": "fp4"}),
            ("kv_cache_layout must be 'NHD' or 'HND'", ValueError, {"layout": "packed"}),
            ("context_lens must have dtype", TypeError, {"lengths": case.used.float()}),
            ("sliding_window must be between 0", ValueError, {"window": -1}),
            ("k(_cache)? must have dtype|v.* must have dtype", TypeError, {"keys": k.to(I8)})):
        with pytest.raises(kind, match=f"paged_attention(_v1)?: .*{message}"):
            v1(**options)
    bytes_ = Case(device, ((1, 40), (1, 20)), kv_dtype=I8, layout="packed")
    k8, v8 = bytes_.caches()
    with pytest.raises(ValueError, match=r"paged_attention_rocm: k_scale must have 1 element or shape \(7, 2, 16\)"):
        aiter_like.paged_attention_rocm(out, None, None, None, q, k8, v8, 2, 0.125, table, case.used, 16, 40, None,
                                        "auto", one, one)
    with pytest.raises(ValueError, match="paged_attention_rocm: block_size must be that of key_cache, 16, got 32"):
        aiter_like.paged_attention_rocm(out, None, None, None, q, k8, v8, 2, 0.125, table, case.used, 32, 40, None,
                                        "auto", None, None)
