# SPDX-License-Identifier: MIT
"""mla_decode_fwd: each backend against float64, over pages, heads, query tokens, splits, plans; bad input."""

import dataclasses
import functools
import math

import pytest
import torch
from mla_cases import BF16, UNUSED, check, compare, expect, make, starts_of

import aiter_like
from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.errors import UnsupportedError
from aiter_like.jit.triton_launch import Launcher
from aiter_like.ops.mla.hopper import triton_kernels
from aiter_like.ops.mla.mla_decode import mla_decode_op
from aiter_like.ops.mla.triton import mla_decode
from aiter_like.testing import assert_within

pytestmark = pytest.mark.rotating

BACKENDS = ("ck", "triton", "torch")
KERNELS = tuple(name for name in BACKENDS if name != "torch")
RAGGED = ((1, 70), (3, 33), (1, 1), (2, 50), (1, 0), (0, 9), (2, 1), (4, 200))


@pytest.mark.parametrize("page_size", (1, 16, 64, 13))
@pytest.mark.parametrize("backend", BACKENDS)
def test_pages(device, run, backend, page_size):
    """Ragged lengths, empty sequences among them, over shuffled pages."""
    case = make(device, RAGGED, heads=4, page_size=page_size, shared=2 if page_size == 16 else 0)
    out, lse = check(run, backend, case)
    assert (out[7] == 0).all() and (lse[7] == -math.inf).all()  # a token without keys
    assert (out[8] == 0).all() and (out[9] != 0).any()  # two tokens of one key: the first sees none


@pytest.mark.parametrize("heads", (1, 5, 16, pytest.param(20, marks=pytest.mark.exhaustive), 128))
@pytest.mark.parametrize("backend", BACKENDS)
def test_heads(device, run, backend, heads):
    """The dimensions of DeepSeek; 5 and 20 heads leave rows of a tile idle, 128 are two tiles."""
    check(run, backend, make(device, ((1, 150), (1, 40)), heads, 64, v_dim=512, rope_dim=64))


@pytest.mark.parametrize("tokens, heads", ((1, 16), (2, 4), (3, 20), (4, 4), (8, 16)))
@pytest.mark.parametrize("backend", BACKENDS)
def test_query_tokens(device, run, backend, tokens, heads):
    """Causal among the tokens, and without a mask; with more rows than a tile has in fp16."""
    dtype = BF16 if tokens * heads <= 16 else torch.float16
    case = make(device, ((tokens, 90), (tokens, tokens), (max(tokens - 1, 1), 40)), heads, 16, dtype)
    check(run, backend, case)
    if tokens in (2, 8):
        check(run, backend, case, causal=False)


@pytest.mark.parametrize("backend", BACKENDS)
def test_splits(device, run, backend):
    """However the keys are cut: the same within rounding, and the same bits when cut the same way again."""
    case = make(device, ((2, 700), (2, 90), (1, 5), (2, 1500)), 4)
    for splits in (None, 1, 2, 7):
        first, lse = check(run, backend, case, num_kv_splits=splits)
        again, lse_again = case.call(run, backend, num_kv_splits=splits)
        assert torch.equal(first, again) and torch.equal(lse, lse_again)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_long_sequence_among_short_ones(device, run, backend):
    case = make(device, (*[(1, 3)] * 6, (1, 2600), *[(1, 40)] * 6), 2)
    check(run, backend, case)


@pytest.mark.parametrize("q_dtype", ("bf16", "fp8"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_fp8(device, run, backend, q_dtype):
    """A latent of fp8 with its scale, queries of bf16 or fp8."""
    fp8 = dtypes.fp8_of(target_of(device).arch)
    rows = 1 if q_dtype == "fp8" else 2
    case = make(device, ((rows, 200), (1, 33)), 16, 16, fp8 if q_dtype == "fp8" else BF16, kv_dtype=fp8)
    scales = {"kv_scale": torch.tensor([0.5], device=device), "q_scale": torch.tensor([0.75], device=device)}
    if q_dtype == "bf16":
        out, lse = case.call(run, backend, logit_cap=3.0, **scales)
        compare(case, out, lse, kv_scale=0.5, logit_cap=3.0)  # the scale of queries that are not fp8 is ignored
    else:
        check(run, backend, case, **scales)


@pytest.mark.parametrize("backend", BACKENDS)
def test_scores(device, run, backend):
    """A cap; a scale with which some scores are far from all others."""
    case = make(device, ((2, 70), (1, 40)), 4)
    check(run, backend, case, sm_scale=3.0)
    if backend != "ck":  # whose build with a cap is that of test_fp8
        check(run, backend, case, logit_cap=2.0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_scores_far_from_zero(device, run, backend):
    """Probabilities sum up to 1 although fp32 has no log of the number of keys beside such scores."""
    case = make(device, ((2, 70), (1, 40)), 4)
    case.q.zero_()
    case.q[..., 0] = case.kv[..., 0] = 512.0
    check(run, backend, case, sm_scale=1.0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides(device, run, backend):
    """Pages inside of wider storage, heads apart in q and out; nothing beside them is written."""
    case = make(device, ((2, 70), (1, 40)), 4)
    expected, _ = check(run, backend, case)
    storage = torch.full((len(case.kv), 2, 20, 1, 176), math.nan, dtype=BF16, device=device)
    wide, target = (torch.full((3, 9, 176), 3.0, dtype=BF16, device=device) for _ in range(2))
    views = dataclasses.replace(case, kv=storage[:, 1, 2:18, :, :160].copy_(case.kv),
                                q=wide[:, 2:6, :160].copy_(case.q))
    out, _ = views.call(run, backend, out=target[:, 1:5, :128])
    assert torch.equal(out, expected)
    assert (target[:, 0] == 3).all() and (target[:, 5:] == 3).all() and (target[..., 128:] == 3).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan(device, run, backend):
    """A NaN in a key reaches all tokens that see it, and no other sequence."""
    case = make(device, ((2, 40), (1, 40)), 4)
    case.kv[case.kv_indices[1], 7] = math.nan
    out, lse = case.call(run, backend)
    assert out[:2].isnan().all() and lse[:2].isnan().all() and not out[2].isnan().any()


@pytest.mark.parametrize("tokens", (1, 2))
@pytest.mark.parametrize("backend", BACKENDS)
def test_sparse(device, run, backend, tokens):
    """A list of chosen tokens for each query token, padded with −1 anywhere, some of them wholly."""
    generator = torch.Generator().manual_seed(3)
    case = make(device, ((1, 96),) * (2 * tokens), 16, page_size=1)
    lists = case.kv_indices[:-2].view(2 * tokens, 96)
    lists[torch.rand(lists.shape, generator=generator).to(device) < 0.4] = -1
    lists[0, 50:] = -1
    lists[-1] = -1
    out, lse = check(run, backend, case, causal=tokens == 1)
    assert (out[-1] == 0).all() and (lse[-1] == -math.inf).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_context_parallel(device, run, backend):
    """Keys dealt out to ranks in turn: each rank's result, added up by its log-sum-exp, is that of all keys."""
    case, world = make(device, ((3, 70), (2, 33), (4, 4)), 4, page_size=1), 3
    expected, weighted, sums = expect(case)
    bounds, parts = case.kv_indptr.tolist(), []
    for rank in range(world):
        mine = [case.kv_indices[start:end][rank::world] for start, end in zip(bounds, bounds[1:])]
        share = dataclasses.replace(case, kv_indices=torch.cat(mine),
                                    kv_indptr=starts_of([len(one) for one in mine]).to(device))
        parts.append(share.call(run, backend, g_kv_indptr=case.kv_indptr, cp_world_size=world, cp_rank=rank))
    lse = torch.stack([one for _, one in parts]).double().cpu()
    total = lse.logsumexp(0)
    out = sum(torch.exp(each - total)[..., None] * one.double().cpu() for each, (one, _) in zip(lse, parts))
    assert_within("lse", total, sums, torch.full_like(sums, 1e-5))
    assert_within("sum of ranks", out, expected, 2**-7 * weighted + 2**-7 * expected.abs())


def plan_of(device, case, heads, backend, is_sparse=False, tokens=1, **options):
    """The plan that get_mla_metadata_v1 makes, in new tensors of the sizes that get_mla_metadata_info_v1 gives."""
    batch = len(case.lengths) // tokens
    pairs = aiter_like.get_mla_metadata_info_v1(batch, max(case.max_seqlen_q, tokens), heads, case.q.dtype,
                                                case.kv.dtype, is_sparse)
    names = ("work_meta_data", "work_indptr", "work_info_set", "reduce_indptr", "reduce_final_map",
             "reduce_partial_map")
    plan = {name: torch.full((shape,) if isinstance(shape, int) else shape, 77, dtype=dtype, device=device)
            for name, (shape, dtype) in zip(names, pairs)}
    rows = torch.arange(batch + 1, dtype=torch.int32, device=device) * tokens if is_sparse else case.qo_indptr
    pages = (torch.arange(batch + 1, dtype=torch.int32, device=device) * options.pop("length")
             if is_sparse else case.kv_indptr)
    aiter_like.get_mla_metadata_v1(rows, pages, case.last_page_lens, heads, 1, True, plan["work_meta_data"],
                                   plan["work_info_set"], plan["work_indptr"], plan["reduce_indptr"],
                                   plan["reduce_final_map"], plan["reduce_partial_map"], page_size=case.page_size,
                                   backend="hip" if backend == "ck" else backend, **options)
    return plan


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_plan_of_the_caller(device, run, backend):
    """With many parts for each sequence, made once and used for two calls; a plan may also come with memory."""
    case = make(device, ((2, 700), (1, 3), (3, 0), (2, 900)), 4)
    plan = plan_of(device, case, 4, backend, kv_granularity=1, max_seqlen_qo=3)
    assert plan["reduce_indptr"][-1] >= 4, "the long sequences must have parts"
    rows = 4 * len(plan["reduce_partial_map"]) * 3 * 4 * 129
    for workspace in (None, torch.empty(rows, dtype=torch.uint8, device=device)):
        check(run, backend, case, **plan, workspace=workspace)


@pytest.mark.parametrize("backend", KERNELS)
def test_a_plan_of_tokens(device, run, backend):
    """Sparse attention with a plan: two tokens of each sequence, each with a list of its own."""
    case = make(device, ((1, 96),) * 4, 16, page_size=1)
    plan = plan_of(device, case, 16, backend, is_sparse=True, tokens=2, length=500, topk=96)
    check(run, backend, case, **plan)


@pytest.mark.parametrize("backend", KERNELS)
def test_memory(device, run, backend):
    """The memory depends on shapes alone, and what a call needs fits in it whatever the lengths."""
    lengths = ((1, 900), (2, 33))
    needed = aiter_like.mla_decode_workspace_bytes(2, 2, 4, v_head_dim=128, page_size=16, device=device)
    storage = torch.full((needed + 64,), 7, dtype=torch.uint8, device=device)
    for seed, swapped in enumerate((lengths, lengths[::-1])):
        case = make(device, swapped, 4, seed=seed)
        check(run, backend, case, workspace=storage[:needed])
    assert (storage[needed:] == 7).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_whatever_lengths_pages_and_plans_hold(device, run, backend):
    """Nothing outside the tensors is touched: the bounds checker would tell, and a canary beside `out`."""
    if device.type == "cuda" and backend == "ck":
        pytest.skip("an MFMA kernel")
    case = make(device, ((3, 40), (3, 40), (3, 40)), 4)
    storage = torch.full((11, 4, 128), 3.0, dtype=BF16, device=device)
    big = 2**31 - 1
    plan = plan_of(device, case, 4, backend)
    names = ("work_indptr", "work_info_set", "reduce_indptr", "reduce_final_map", "reduce_partial_map")
    call = functools.partial(mla_decode_op.run, storage[1:-1], None, q=case.q, kv=case.kv, backend=backend,
                             max_seqlen_q=3, softmax_scale=0.1)
    for bad, page in (((0, 3, 6, 9), -5), ((5, -9, big, 3), big), ((-big, big, big, 0), 10**6)):
        tensor = torch.tensor(bad, dtype=torch.int32, device=device)
        for kv_indptr in (case.kv_indptr, tensor):
            lists = {"qo_indptr": tensor, "kv_indptr": kv_indptr, "kv_last_page_lens": tensor[1:],
                     "kv_indices": torch.full_like(case.kv_indices, page)}
            for damage in (None, -1, big, 2):
                tensors = [plan[name].clone() for name in names]
                if damage is not None:
                    [one.fill_(damage) for one in tensors]
                if damage == big:
                    tensors[0].copy_(torch.arange(len(tensors[0])))  # items that are there, of nonsense
                rows = len(tensors[4]) * 3
                parts = torch.zeros(rows, 4, 128, device=device), torch.zeros(rows, 4, device=device)
                call(partial_out=parts[0], partial_lse=parts[1], **lists, is_planned=damage is not None,
                     **dict(zip(("work_indptr", "work_info", *names[2:]), tensors)))
    assert (storage[0] == 3).all() and (storage[-1] == 3).all()


def bad_calls(device):
    case = make(device, ((2, 9), (3, 3)), 4)
    yield "q must have 3 dimensions", ValueError, {"q": case.q[0]}, {}
    yield "kv_buffer must have 4 dimensions", ValueError, {"kv": case.kv[0]}, {}
    yield "kv_buffer must have dtype torch.bfloat16 or fp8, got torch.float16", TypeError, {"kv": case.kv.half()}, {}
    yield "kv_buffer must have pages of page_size 4", ValueError, {}, {"page_size": 4}
    yield "kv_last_page_lens must have shape", ValueError, {"last_page_lens": case.last_page_lens[:1]}, {}
    yield "sm_scale must be at least", ValueError, {}, {"sm_scale": 0.0}
    yield "num_kv_splits must be between 1", ValueError, {}, {"num_kv_splits": 0}
    yield "kv_scale must have 1 element", ValueError, {}, {"kv_scale": torch.ones(2, device=device)}
    yield "g_kv_indptr must be given", ValueError, {}, {"cp_world_size": 2}
    yield "cp_rank must be between", ValueError, {}, {"cp_rank": 1}
    yield "no backend supports nhead_kv 2", UnsupportedError, {}, {"nhead_kv": 2}
    yield "work_indptr, work_info_set", ValueError, {}, {"work_meta_data": case.qo_indptr}
    yield "workspace must have at least", ValueError, {}, {"workspace": torch.zeros(16, dtype=torch.uint8,
                                                                                   device=device)}
    yield "o must have fewer columns than q", ValueError, {"v_dim": 160}, {}
    if device.type == "cpu":  # looking at the values would wait for a GPU
        for name, values in (("qo_indptr", (0, 6, 5)), ("kv_indptr", (0, 2, 1)), ("kv_indptr", (0, 2, 90))):
            yield f"{name} must start at 0, never fall", ValueError, {name: torch.tensor(values).int()}, {}


def test_bad_input(device):
    def run(backend, function, *args, page_size=None, nhead_kv=1, **kwargs):
        args = list(args)
        args[8] = page_size or args[8]
        return function(*args, nhead_kv, **kwargs)

    for message, kind, fields, options in bad_calls(device):
        base = make(device, ((2, 9), (3, 3)), 4)
        out = torch.full((5, 4, fields.get("v_dim", 128)), 3.0, dtype=BF16, device=device)
        with pytest.raises(kind, match=message):
            dataclasses.replace(base, **fields).call(run, None, out=out, **options)
        assert (out == 3).all()
    other = ({torch.float8_e4m3fn, torch.float8_e4m3fnuz} - {dtypes.fp8_of(target_of(device).arch)}).pop()
    case = make(device, ((2, 9),), 4, kv_dtype=other)
    with pytest.raises(UnsupportedError, match="fp8 of"):
        case.call(lambda name, function, *args, **options: function(*args, backend="triton", **options), None)


def test_an_empty_batch(device, run):
    case = make(device, ((2, 9),), 4)
    empty = dataclasses.replace(case, q=case.q[:0], qo_indptr=case.qo_indptr * 0, lengths=((0, 0),))
    out, lse = empty.call(lambda name, function, *args, **options: function(*args, **options), None)
    assert out.shape == (0, 4, 128) and lse.shape == (0, 4)
    assert UNUSED in case.kv_indices  # what every test relies on


BENCH = ((1, 4096, 128), (16, 4096, 128), (64, 4096, 128), (64, 4096, 16), (8, 32768, 16))  # batch, keys, heads


def bench() -> None:
    """Times decoding, 512 + 64 columns of bf16 over pages of 64 and 1: each kernel of backend "triton", torch's
    products over latents gathered beforehand, and with --peers FlashInfer and FlashMLA.
    """
    import benching

    device = torch.device("cuda")
    for page_size in (64, 1):
        benching.table(f"mla_decode_fwd, pages of {page_size}",
                       (benching.rotating(functools.partial(_bench_case, device, page_size, *shape))
                        for shape in BENCH))


def _bench_case(device, page_size: int, batch: int, keys: int, heads: int, seed: int):
    import bench_peers
    import benching

    key = {"batch": batch, "seqlen_q": 1, "seqlen_k": keys, "num_heads": heads, "head_dim": 576, "head_dim_v": 512,
           "page_size": page_size, "features": "none", "dtype": "bf16", "kv_dtype": "bf16"}
    call = mla_decode_op.tuning.case(key, device, seed)
    moved, flops = mla_decode_op.tuning.needs(call)

    def ours(kernel):
        Launcher(functools.partial(mla_decode.mla_decode, kernel=kernel))(call)
        return call.out

    def check(out):
        """Of the first sequence."""
        latent = call.kv[call.kv_indices[:keys // page_size].long()].view(keys, -1).double()
        p = torch.softmax(call.q[0].double() @ latent.t() * call.softmax_scale, -1)
        expected = p @ latent[:, :512]
        limit = 2**-8 * (p @ latent[:, :512].abs() + expected.abs()) + 1e-5
        error = ((out[0].double() - expected).abs() / limit).max().item()
        assert error <= 1, f"{error} of the limit"
        return error

    calls = {f"triton, {kernel}": functools.partial(ours, kernel)
             for kernel in triton_kernels(target_of(device), call)}
    calls |= {"products": bench_peers.mla_products(call), **bench_peers.calls("mla_decode", call)}
    return benching.Case(f"{batch} x {keys}, {heads}", moved, calls, check, flops=flops)
