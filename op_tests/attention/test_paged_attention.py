# SPDX-License-Identifier: MIT
"""paged_attention: each backend against float64 over random pages, layouts, lengths, masks and bytes; bad input."""

import functools
import itertools
import math
from typing import Any

import bench_peers
import benching
import pytest
import torch
from paged_attention_cases import BF16, F16, I8, Case, fp8_of

import aiter_like
from aiter_like.errors import UnsupportedError
from aiter_like.ops.attention.paged_attention import paged_attention_op, paged_attention_ref
from aiter_like.ops.attention.paged_attention_call import PagedAttentionCall

pytestmark = pytest.mark.rotating

BACKENDS = ("hip", "triton")
RAGGED = ((1, 0), (1, 1), (1, 40), (1, 1500), (1, 17))


@pytest.mark.parametrize("backend", (*BACKENDS, "torch"))
def test_ragged_lengths(device, run, backend):
    """One long sequence among short ones, whose keys are split as the lengths ask for; not at all; into three."""
    case = Case(device, RAGGED)
    out, lse = case.call(run, backend, return_lse=True)
    case.compare(out, lse)
    assert (out[0] == 0).all() and (lse[:, 0] == -math.inf).all()
    again, _ = case.call(run, backend, return_lse=True)
    assert torch.equal(out, again)
    for num_splits in (1, 3):
        case.compare(case.call(run, backend, num_splits=num_splits))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("heads, dims, page_size, layout, queries", (
    ((6, 6), (96, 96), 1, "HND", 1), ((16, 1), (128, 128), 4, "NHD", 8), ((10, 2), (192, 128), 24, "interleaved", 3),
    ((20, 1), (256, 256), 128, "HND", 1)), ids=str)
def test_heads_and_pages(device, run, backend, heads, dims, page_size, layout, queries):
    """Groups of 1, 5, 16 with eight queries, 20; pages of one key; views into storage that others share."""
    lengths = (queries, 90), (queries, queries), (queries, 33)
    case = Case(device, lengths, heads, dims, page_size, layout, seed=page_size)
    case.compare(case.call(run, backend))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout, page_size", (("packed", 16), ("shuffled", 32)))
def test_shuffled_layouts(device, run, backend, layout, page_size):
    """With everything that changes a score; the sum of parts must respect it too."""
    case = Case(device, ((1, 300), (3, 301), (2, 2)), (8, 2), (64, 64), page_size, layout, F16)
    case.options = {"softcap": 3.0, "alibi_slopes": torch.rand(3, 8), "sinks": torch.randn(8), "window_left": 270,
                    "softmax_scale": 0.3}
    out, lse = case.call(run, backend, return_lse=True, num_splits=2)
    case.compare(out, lse)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype, kv_dtype, scales, layout", (
    (BF16, "fp8", "token", "shuffled"), (F16, I8, "token", "NHD"), (BF16, "fp8", "tensor", "HND"),
    ("fp8", "fp8", "tensor", "NHD"), (I8, I8, "token", "HND")), ids=str)
def test_bytes(device, run, backend, dtype, kv_dtype, scales, layout):
    """Caches of fp8 and int8 with one scale or one per key and head; queries of bytes with a scale per row and head."""
    fp8 = fp8_of(device)
    dtype, kv_dtype = (fp8 if one == "fp8" else one for one in (dtype, kv_dtype))
    case = Case(device, ((1, 70), (1, 33)), (4, 2), (64, 64), 16, layout, dtype, kv_dtype, scales)
    if dtype.itemsize == 1:
        case.options["q_scale"] = torch.rand(2, 4) * 0.03 + 0.01
    case.compare(case.call(run, backend))


@pytest.mark.parametrize("order", ((0, 1, 0), (1, 0, 1)), ids=str)
def test_columns_of_bytes_are_read_in_pairs_where_v_begins_at_an_even_address(device, run, monkeypatch, order):
    """Whatever an earlier call's address was: a 16-bit load at an odd one is a fault on NVIDIA."""
    from aiter_like.ops.attention.triton import paged_attention as kernels

    planned, shape_of = [], kernels.shape_of

    def recording(call, *others):
        planned.append((shape_of(call, *others).IN_PAIRS, int(call.v.data_ptr() % 2)))
        return shape_of(call, *others)

    monkeypatch.setattr(kernels, "shape_of", recording)
    case = Case(device, ((1, 70), (1, 33)), page_size=16 << order[0], kv_dtype=I8, scales="token")  # new plans each
    for offset in order:
        v = case.caches()[1]
        moved = torch.empty(v.nbytes + 1, dtype=I8, device=device)[offset:][:v.numel()].view(v.shape).copy_(v)
        case.compare(case.call(run, "triton", v_cache=moved))
    assert set(planned) == {(True, 0), (False, 1)}


@pytest.mark.parametrize("backend", BACKENDS)
def test_tree_of_queries(device, run, backend):
    """Each sequence has a tree of its own, whose nodes also see one another against the order; a window hides keys."""
    trees = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(3)) < 0.4
    trees |= torch.eye(8, dtype=torch.bool)
    case = Case(device, ((8, 100), (8, 8), (8, 41)), (16, 4), options={"tree_mask": trees, "window_left": 50})
    case.compare(case.call(run, backend))
    case.options = {"tree_mask": trees[0, :, :].t()}
    case.compare(case.call(run, backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_pages_behind_the_window(device, run, backend):
    """What no window reaches may be NaN: engines give such pages away."""
    case = Case(device, ((1, 401), (1, 396)), (8, 2), options={"window_left": 130})
    expected, first = case.expect(), 396 - 1 - 130  # the sequences share their first pages
    for index in range(2):
        for plane in case.planes:
            plane[case.table[index, :first // 16].long()] = math.nan
            plane[case.table[index, first // 16].long(), :first % 16] = math.nan
    out = case.call(run, backend)
    case.expect = lambda: expected
    case.compare(out)


@pytest.mark.parametrize("backend", BACKENDS)
def test_fp8_out(device, run, backend):
    case, fp8 = Case(device, RAGGED[1:]), fp8_of(device)
    expected, weighted, _ = case.expect()
    scale = expected.abs().max().item() / torch.finfo(fp8).max / 2  # the largest saturate
    out = case.call(run, backend, out=torch.empty(case.q.shape, dtype=fp8, device=device),
                    out_scale=torch.tensor([scale], device=device))
    limit = scale * torch.finfo(fp8).max
    error = (out.cpu().double() * scale - expected.clamp(-limit, limit)).abs()
    assert (error <= expected.abs() * 2**-4 + weighted * 2**-7 + scale * 2**-10).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_and_starts(device, run, backend):
    """Rows of q and out apart; the starts of all sequences without the end of the last, as vLLM passes them."""
    case = Case(device, ((1, 40), (1, 20), (1, 33)))
    wide = torch.full((4, 9, 80), math.nan, dtype=BF16, device=device)
    wide[:3, 2:6, :64] = case.q.to(device)
    target = torch.full((4, 5, 80), 3.0, dtype=BF16, device=device)
    options = {**case.arguments(), "cu_seqlens_q": case.starts[:3]}
    out = run(backend, aiter_like.paged_attention, wide[:3, 2:6, :64], **options, out=target[:3, 1:, :64])
    case.compare(out)
    assert (target[3] == 3).all() and (target[:, 0] == 3).all() and (target[..., 64:] == 3).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_workspace(device, run, backend):
    """Its size is fixed; the call needs no other memory, writes nothing behind it, and leaves nothing for the next."""
    case = Case(device, RAGGED)
    size = aiter_like.paged_attention_workspace_bytes(case.q.to(device), 2, 64, 5, 1500)
    assert size == aiter_like.paged_attention_workspace_bytes(case.q.to(device), 2, 64, 5, 1500) > 0
    assert aiter_like.paged_attention_workspace_bytes(case.q.to(device), 2, 64, 5, 256) == 0
    first, second = (torch.full((size + 64,), 0xFF, dtype=torch.uint8, device=device) for _ in range(2))
    out = case.call(run, backend, workspace=first)
    case.compare(out)
    assert torch.equal(case.call(run, backend, workspace=second), out)
    assert (first[size:] == 0xFF).all()
    with pytest.raises(ValueError, match=f"workspace must have at least {size} bytes"):
        case.call(run, None, workspace=first[:size - 4])


@pytest.mark.parametrize("backend", BACKENDS)
def test_graphs_of_two_streams(device, backend):
    """Captured on two streams, each with its own memory; replayed with other lengths than those of the capture."""
    if device.type != "cuda" or backend == "hip":
        pytest.skip("graphs are captured on a GPU, which has no MFMA")
    cases = [Case(device, RAGGED, seed=seed) for seed in (1, 2)]
    graphs, outs, arguments = [], [], []
    for case in cases:
        given = {**case.arguments(), "q": case.q.to(device), "backend": backend}
        outs.append(aiter_like.paged_attention(**given))
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1], stream=torch.cuda.Stream()):
            outs[-1] = aiter_like.paged_attention(**given)
        arguments.append(given)
    for case, given in zip(cases, arguments):
        case.lengths = tuple((1, keys // 2) for _, keys in RAGGED)
        given["seq_lens"].copy_(case.used)
    for graph in graphs:
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.replay()
    torch.cuda.synchronize()
    for case, out in zip(cases, outs):
        case.compare(out)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_long_sequence_among_short_ones(device, run, backend):
    """Of a batch that is looked at in one block and one in several: parts of the long ones come first, wherever those
    stand; split or not, twice, and from a graph with a fixed workspace that holds NaN.
    """
    if device.type != "cuda" or backend == "hip":
        pytest.skip("131,072 keys take a GPU, which has no MFMA")
    for batch in (64, 1100):
        lengths = [(1, 1 + index % 37) for index in range(batch)]
        lengths[batch // 2], lengths[-2] = (1, 131072), (1, 700)
        case = Case(device, tuple(lengths), (8, 2), (128, 128))
        given = {**case.arguments(), "q": case.q.to(device)}
        size = aiter_like.paged_attention_workspace_bytes(given["q"], 2, 128, batch, 131072)
        given["workspace"] = torch.full((size,), 0xFF, dtype=torch.uint8, device=device)
        out = run(backend, aiter_like.paged_attention, **given)
        case.compare(out)
        case.compare(run(backend, aiter_like.paged_attention, **given, num_splits=1))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            again = aiter_like.paged_attention(**given, backend=backend)
        for _ in range(2):
            given["workspace"].fill_(0xFF)
            again.fill_(math.nan)
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(again, out)


@pytest.mark.parametrize("backend", (*BACKENDS, "torch"))
def test_whatever_lengths_and_pages_hold(device, backend):
    """Nothing outside the tensors is touched: the bounds checker would tell, and a canary beside `out`."""
    if device.type == "cuda" and backend != "triton":
        pytest.skip("an MFMA kernel, and torch, which ends the process over such indices")
    case = Case(device, ((2, 40), (2, 40), (2, 40)))
    k, v = case.caches()
    storage = torch.full((8, 4, 64), 3.0, dtype=BF16, device=device)
    big = 2**31 - 1
    for starts, used, page in (((0, 2, 4, 6), (40, 40, 40), -5), ((5, -9, big, 3), (-4, big, 40), big)):
        bad = [torch.tensor(values, dtype=torch.int32, device=device) for values in (starts, used)]
        for table, page_starts in ((case.table, None), (case.table.flatten(), bad[0])):
            paged_attention_op(PagedAttentionCall(
                storage[1:-1], None, case.q.to(device), k, v, torch.full_like(table, page).to(device), bad[1],
                page_starts, bad[0], max_seqlen_q=2, max_seqlen_k=40, softmax_scale=0.125), backend=backend)
    assert (storage[0] == 3).all() and (storage[-1] == 3).all()


def bad_calls(device):
    case = Case(device, ((2, 9), (2, 3)))
    (k, v), q = case.caches(), case.q.to(device)
    i32 = {"dtype": torch.int32, "device": device}
    yield "q must have 3 dimensions", ValueError, {"q": q[0]}
    yield "q must have the dtype of a 16-bit cache", TypeError, {"q": q.half()}
    yield "v_cache must have dtype", TypeError, {"v_cache": v.half()}
    yield "k_cache must have shape", ValueError, {"k_cache": k[..., :32]}
    yield "v_cache must have shape", ValueError, {"v_cache": v[:, :8]}
    yield "must be a multiple of the heads of k_cache, got 3 and 2", ValueError, {"q": q[:, :3]}
    yield "layout must be 'NHD'", ValueError, {"layout": "shufled"}
    yield "k_cache must have 5 dimensions", ValueError, {"layout": "packed"}
    yield "seq.*must have shape", ValueError, {"seq_lens": case.used[:1]}
    yield "q must have 2 sequences of max_seqlen_q = 1 rows, got 4", ValueError, {"max_seqlen_q": 1}
    yield "cu_seqlens_q must have 3 elements, or 2, got 1", ValueError, {"cu_seqlens_q": torch.zeros(1, **i32)}
    yield "k_scale must have 1 element or shape", ValueError, {"k_scale": torch.ones(3, device=device)}
    yield "q_scale must have 1 element or shape", ValueError, {"q_scale": torch.ones(3, device=device)}
    yield "tree_mask must have shape", ValueError, {"tree_mask": torch.ones(1, 1, dtype=torch.bool, device=device)}
    yield "sinks? must have shape", ValueError, {"sinks": torch.zeros(3, device=device)}
    yield "window_left must be between -1", ValueError, {"window_left": -2}
    yield "softcap must be at least", ValueError, {"softcap": -1.0}
    yield "softmax_scale must be at least", ValueError, {"softmax_scale": 0.0}
    yield "num_splits must be between 0", ValueError, {"num_splits": -1}
    yield "out must have dtype", TypeError, {"out": torch.empty(q.shape, device=device)}
    if device.type != "cpu":
        return  # looking at the values would wait for the GPU
    yield "keys of a sequence must be between 0 and 9", ValueError, {"seq_lens": torch.tensor((9, 10), **i32)}
    yield "block_table must name pages", ValueError, {"block_table": torch.full((2, 2), -1, **i32)}


def test_bad_input(device):
    case = Case(device, ((2, 9), (2, 3)))
    for message, kind, changed in bad_calls(device):
        with pytest.raises(kind, match=f"paged_attention: .*{message}"):
            aiter_like.paged_attention(**{"q": case.q.to(device), **case.arguments(), **changed})
    other = ({torch.float8_e4m3fn, torch.float8_e4m3fnuz} - {fp8_of(device)}).pop()
    with pytest.raises(UnsupportedError, match="fp8 of"):
        Case(device, ((1, 9),), kv_dtype=other).call(lambda backend, function, *args, **options: function(
            *args, **options, backend=backend), "triton")


def bench_shapes(most_bytes: float) -> list[tuple]:
    """(batch, keys, heads, KV heads, dtype of the cache), whose cache has at most so many bytes; 0 keys: _ragged."""
    shapes = [(batch, keys, 32, kv_heads, "bf16") for batch in (1, 8, 64, 256) for keys in (512, 4096, 32768, 131072)
              for kv_heads in (32, 8, 4)]
    shapes += [(64, 8192, 64, 8, "bf16"), (16, 8192, 32, 32, "bf16"), (64, 4096, 32, 8, "fp8_e4m3fn"),
               (8, 32768, 32, 8, "fp8_e4m3fn")]
    fitting = [shape for shape in shapes if shape[0] * shape[1] * shape[3] * 512 <= most_bytes]
    print(f"{len(shapes) - len(fitting)} shapes left out, whose caches have more than {most_bytes / 1e9:.0f} GB")
    return [*fitting, (64, 0, 32, 8, "bf16"), (256, 0, 32, 8, "bf16")]


def _ragged(key: dict[str, Any], device: torch.device, seed: int) -> PagedAttentionCall:
    """One sequence of 128k keys among others of 512."""
    lengths = [131072 if index == key["batch"] // 2 else 512 for index in range(key["batch"])]
    call = paged_attention_op.tuning.case({**key, "batch": 1, "seqlen_k": sum(lengths)}, device, seed)
    pages, table = call.block_table.flatten(), torch.full((len(lengths), max(lengths) // 16), -1, dtype=torch.int32)
    for index, (count, first) in enumerate(zip(lengths, itertools.accumulate(lengths, initial=0))):
        table[index, :count // 16] = pages[first // 16:(first + count) // 16]
    q = torch.randn(len(lengths), *call.q.shape[1:], device=device).to(call.q.dtype)
    return call._replace(q=q, block_table=table.to(device), max_seqlen_k=max(lengths), out=torch.empty_like(q),
                         seqlens_k=torch.tensor(lengths, dtype=torch.int32, device=device))


def bench() -> None:
    """Decoding of one query: beside unified_attention, and with --peers beside FlashInfer."""
    device = torch.device("cuda")

    def case(batch: int, keys: int, heads: int, kv_heads: int, kv_dtype: str, seed: int) -> benching.Case:
        key = {"batch": batch, "seqlen_q": 1, "seqlen_k": keys, "num_heads": heads, "num_kv_heads": kv_heads,
               "head_dim": 128, "page_size": 16, "layout": "rows", "features": "none", "dtype": "bf16",
               "kv_dtype": kv_dtype, "scale_layout": "none" if kv_dtype == "bf16" else "tensor"}
        call = paged_attention_op.tuning.case(key, device, seed) if keys else _ragged(key, device, seed)
        starts, out = torch.arange(batch + 1, dtype=torch.int32, device=device), torch.empty_like(call.q)
        calls = benching.by_backend(
            aiter_like.paged_attention, call.q, call.k, call.v, call.block_table, call.seqlens_k, call.max_seqlen_k,
            k_scale=call.k_scale, v_scale=call.v_scale, out=out, backends=("triton",))
        calls["unified"] = functools.partial(
            aiter_like.unified_attention, call.q, call.k, call.v, torch.empty_like(out), starts, 1, call.seqlens_k,
            call.max_seqlen_k, 128 ** -0.5, True, None, call.block_table, 0.0, None, call.k_scale, call.v_scale,
            backend="triton")
        calls |= bench_peers.calls("paged_attention", call)
        rows = sorted({0, batch // 2, batch - 1})
        expected = out[rows]  # a copy
        paged_attention_ref(call._replace(out=expected, q=call.q[rows], block_table=call.block_table[rows],
                                          seqlens_k=call.seqlens_k[rows]))

        def check(result: torch.Tensor) -> float:
            error = (result[rows].float() - expected.float()).abs().max().item()
            limit = 0.02 * expected.abs().max().item()
            assert error <= limit, f"error {error}, limit {limit}"
            return error / limit

        moved = int(call.seqlens_k.sum()) * kv_heads * 256 * call.k.element_size() + 2 * out.nbytes
        name = f"{batch}×{keys}" if keys else f"{batch}×512, one 128k"
        return benching.Case(f"{name} {heads}/{kv_heads} {kv_dtype}", moved, calls, check)

    shapes = bench_shapes(min(6.4e10, 0.35 * torch.cuda.get_device_properties(device).total_memory))
    benching.table("paged_attention", (benching.rotating(functools.partial(case, *shape)) for shape in shapes))
