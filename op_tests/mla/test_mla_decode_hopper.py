# SPDX-License-Identifier: MIT
"""mla_decode_hopper.py, a kernel of backend "triton" for sm_90, against float64; what its code is like."""

import dataclasses
import functools
import math

import pytest
import torch
from mla_cases import BF16, check, compare, expect, make, starts_of
from test_mla_decode import plan_of

import aiter_like
from aiter_like.device import Target
from aiter_like.jit.triton_launch import Launcher
from aiter_like.ops.mla.hopper import HOPPER, PORTABLE, triton_kernels
from aiter_like.ops.mla.mla_decode import decode_call
from aiter_like.ops.mla.triton import mla_decode
from aiter_like.testing import assert_within

pytestmark = [pytest.mark.rotating, pytest.mark.usefixtures("only_on_hopper")]

DIMS = {"v_dim": 512, "rope_dim": 64}
RAGGED = ((1, 70), (3, 33), (1, 1), (2, 50), (1, 0), (0, 9), (2, 1), (4, 200), (1, 64), (1, 129))
SETTINGS = tuple({"LATE": late, "TMA": tma} for late in (0, 1) for tma in (0, 1))


def run(backend, function, *args, **options):
    """As the fixture of that name, and the kernel is the one for Hopper."""
    explanation = aiter_like.explain(function, *args, backend=backend, **options)
    assert (explanation.backend, explanation.kernel) == ("triton", HOPPER), str(explanation)
    return function(*args, backend=backend, **options)


@pytest.mark.parametrize("page_size", (1, 16, 64, 13, 128))
def test_pages(device, page_size):
    """Ragged lengths, empty sequences among them, over shuffled pages; NaN where no key is stored."""
    case = make(device, RAGGED, heads=4, page_size=page_size, shared=2 if page_size == 16 else 0, **DIMS)
    out, lse = check(run, "triton", case)
    assert (out[7] == 0).all() and (lse[7] == -math.inf).all()  # a token without keys
    assert (out[8] == 0).all() and (out[9] != 0).any()  # two tokens of one key: the first sees none


@pytest.mark.parametrize("dtype", (BF16, torch.float16))
@pytest.mark.parametrize("heads", (1, 7, 16, 24, 64, 65, 128))
def test_heads(device, heads, dtype):
    """Tiles that are full and not, with one query token: no mask among tokens."""
    for page_size in (1, 64):
        check(run, "triton", make(device, ((1, 150), (1, 40), (1, 0), (1, 1), (1, 640)), heads, page_size, dtype,
                                  **DIMS))


@pytest.mark.parametrize("tokens, heads", ((2, 4), (3, 24), (4, 16), (4, 128), (8, 16)))
def test_query_tokens(device, tokens, heads):
    """Causal among the tokens, and without a mask."""
    case = make(device, ((tokens, 190), (tokens, tokens), (max(tokens - 1, 1), 40)), heads, 16, **DIMS)
    check(run, "triton", case)
    check(run, "triton", case, causal=False)


@pytest.mark.parametrize("heads", (16, 128))
def test_long_sequences(device, heads):
    check(run, "triton", make(device, ((1, 4096), (1, 3001), (1, 20), (1, 777)), heads, 64, **DIMS))
    check(run, "triton", make(device, (*[(1, 3)] * 6, (1, 2600), *[(1, 40)] * 6), heads, 1, **DIMS))


def test_splits(device):
    """However the keys are cut: the same within rounding, and the same bits when cut the same way again."""
    case = make(device, ((2, 700), (2, 90), (1, 5), (2, 1500)), 4, **DIMS)
    for splits in (None, 1, 2, 7):
        first, lse = check(run, "triton", case, num_kv_splits=splits)
        again, lse_again = case.call(run, "triton", num_kv_splits=splits)
        assert torch.equal(first, again) and torch.equal(lse, lse_again)


@pytest.mark.parametrize("params", SETTINGS, ids=str)
def test_settings(device, params):
    """What the tuner may choose gives the same bits."""
    for heads, page_size in ((16, 1), (128, 64)):
        case = make(device, ((1, 900), (1, 65), (1, 0), (1, 2000)), heads, page_size, **DIMS)
        lse = torch.empty(case.q.shape[:2], device=device)
        results = []
        for each in ({}, params):
            out = case.new_out()
            Launcher(functools.partial(mla_decode.mla_decode, kernel=HOPPER, **each))(decode_call(
                case.q, case.kv, out, lse.fill_(math.nan), *case.tables, softmax_scale=576**-0.5))
            compare(case, out, lse)
            results.append(out)
        assert torch.equal(*results)


def test_scores(device):
    """A cap; a scale with which some scores are far from all others; scores beyond 2^31."""
    case = make(device, ((2, 70), (1, 140)), 4, **DIMS)
    check(run, "triton", case, sm_scale=3.0)
    check(run, "triton", case, logit_cap=2.0)
    far = dataclasses.replace(case, q=case.q * 2.0**14, kv=case.kv * 2.0**14)
    check(run, "triton", far, sm_scale=8.0)


def test_strides(device):
    """Pages inside of wider storage, heads apart in q and out; nothing beside them is written."""
    case = make(device, ((2, 70), (1, 40)), 4, **DIMS)
    expected, _ = check(run, "triton", case)
    storage = torch.full((len(case.kv), 2, 20, 1, 584), math.nan, dtype=BF16, device=device)
    wide, target = (torch.full((3, 9, 584), 3.0, dtype=BF16, device=device) for _ in range(2))
    views = dataclasses.replace(case, kv=storage[:, 1, 2:18, :, :576].copy_(case.kv),
                                q=wide[:, 2:6, :576].copy_(case.q))
    out, _ = views.call(run, "triton", out=target[:, 1:5, :512])
    assert torch.equal(out, expected)
    assert (target[:, 0] == 3).all() and (target[:, 5:] == 3).all() and (target[..., 512:] == 3).all()


def test_addresses(device):
    """Another address of the same metadata, not aligned, is left to the other kernel."""
    case = make(device, ((2, 70), (1, 40)), 4, **DIMS)
    for offset in (0, 4, 0):
        memory = torch.empty(case.kv.numel() + offset, dtype=BF16, device=device)
        check(run, "triton", dataclasses.replace(case, kv=memory[offset:].view_as(case.kv).copy_(case.kv)))


def test_nan(device):
    """A NaN in a key reaches all tokens that see it, and no other sequence."""
    case = make(device, ((2, 40), (1, 40)), 4, **DIMS)
    case.kv[case.kv_indices[1], 7] = math.nan
    out, lse = case.call(run, "triton")
    assert out[:2].isnan().all() and lse[:2].isnan().all() and not out[2].isnan().any()


@pytest.mark.parametrize("tokens", (1, 2))
def test_sparse(device, tokens):
    """A list of chosen tokens for each query token, padded with −1 anywhere, some of them wholly."""
    generator = torch.Generator().manual_seed(3)
    case = make(device, ((1, 160),) * (2 * tokens), 16, page_size=1, **DIMS)
    lists = case.kv_indices[:-2].view(2 * tokens, 160)
    lists[torch.rand(lists.shape, generator=generator).to(device) < 0.4] = -1
    lists[0, 50:] = -1
    lists[-1] = -1
    out, lse = check(run, "triton", case, causal=tokens == 1)
    assert (out[-1] == 0).all() and (lse[-1] == -math.inf).all()


def test_context_parallel(device):
    """Keys dealt out to ranks in turn: each rank's result, added up by its log-sum-exp, is that of all keys."""
    case, world = make(device, ((3, 270), (2, 33), (4, 4)), 4, page_size=1, **DIMS), 3
    expected, weighted, sums = expect(case)
    bounds, parts = case.kv_indptr.tolist(), []
    for rank in range(world):
        mine = [case.kv_indices[start:end][rank::world] for start, end in zip(bounds, bounds[1:])]
        share = dataclasses.replace(case, kv_indices=torch.cat(mine),
                                    kv_indptr=starts_of([len(one) for one in mine]).to(device))
        parts.append(share.call(run, "triton", g_kv_indptr=case.kv_indptr, cp_world_size=world, cp_rank=rank))
    lse = torch.stack([one for _, one in parts]).double().cpu()
    total = lse.logsumexp(0)
    out = sum(torch.exp(each - total)[..., None] * one.double().cpu() for each, (one, _) in zip(lse, parts))
    assert_within("lse", total, sums, torch.full_like(sums, 1e-5))
    assert_within("sum of ranks", out, expected, 2**-7 * weighted + 2**-7 * expected.abs())


def test_a_plan_of_the_caller(device):
    case = make(device, ((2, 700), (1, 3), (3, 0), (2, 900)), 4, **DIMS)
    plan = plan_of(device, case, 4, "triton", kv_granularity=1, max_seqlen_qo=3)
    check(run, "triton", case, **plan)


def test_graph(device):
    """One capture serves other lengths in the same memory."""
    lengths = ((1, 900), (1, 3), (1, 0), (1, 2500)), ((1, 2500), (1, 900), (1, 3), (1, 0))
    first, second = (make(device, each, 16, 64, seed=seed, **DIMS) for seed, each in enumerate(lengths))
    case = dataclasses.replace(first, **{name: getattr(first, name).clone() for name in (
        "q", "kv", "kv_indptr", "kv_indices", "last_page_lens")})
    out, _ = case.call(run, "triton")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _, lse = case.call(run, "triton", out=out)
    for other in (second, first):
        for name in ("q", "kv", "kv_indptr", "kv_indices", "last_page_lens"):
            getattr(case, name).copy_(getattr(other, name))
        out.fill_(math.nan)
        graph.replay()
        compare(other, out, lse)


SM_90 = Target("cuda", "sm_90", 132, 32, False, 0)


def meta_call(rows=1, heads=128, page_size=64, dtype=BF16, dims=(576, 512), **options):
    def integers(*shape):
        return torch.empty(shape, dtype=torch.int32, device="meta")

    q, kv = (torch.empty(*shape, dims[0], dtype=dtype, device="meta") for shape in ((4 * rows, heads),
                                                                                   (256, page_size, 1)))
    return decode_call(q, kv, torch.empty(4 * rows, heads, dims[1], dtype=dtype, device="meta"),
                       torch.empty(4 * rows, heads, device="meta"), integers(5), integers(5), integers(256),
                       integers(4), max_seqlen_q=rows, softmax_scale=0.04, **options)


def test_which_kernel():
    """By the call, or by the parameters of a tuned row."""
    call = meta_call()
    assert triton_kernels(SM_90, call) == [HOPPER, PORTABLE]
    assert triton_kernels(SM_90, call, LATE=1) == [HOPPER] and triton_kernels(SM_90, call, BLOCK_N=32) == [PORTABLE]
    assert triton_kernels(Target("cuda", "sm_80", 108, 32, False, 0), call) == [PORTABLE]
    for other in (meta_call(dims=(160, 128)), call._replace(kv=call.kv.to(torch.float8_e4m3fn)),
                  call._replace(q=torch.empty(4, 128, 580, dtype=BF16, device="meta")[..., :576])):
        assert triton_kernels(SM_90, other) == [PORTABLE] and triton_kernels(SM_90, other, LATE=1) == []


@pytest.mark.parametrize("spills, params, options", (
    (0, {"LATE": 0, "TMA": 1}, {}), (0, {"LATE": 1, "TMA": 0}, {"page_size": 16, "softcap": 3.0}),
    (80, {"LATE": 1, "TMA": 1}, {"rows": 3, "page_size": 128, "dtype": torch.float16}),
    (80, {"LATE": 0, "TMA": 1}, {"rows": 3, "page_size": 1})), ids=str)
def test_code(monkeypatch, tmp_path, spills, params, options):
    """Registers hold all sums and scores, products run on while others are issued, copies have 16 bytes. Some versions
    of Triton spill addresses and numbers of rows, a register each, where tokens are masked."""
    from hopper_code import compiled_for_hopper, disassembled

    import aiter_like.ops.mla.mla_decode as operator
    from aiter_like.ops.mla.triton import mla_decode_hopper

    monkeypatch.setattr(operator, "target_of", lambda _: SM_90)
    with compiled_for_hopper(monkeypatch, mla_decode_hopper) as built:
        call = meta_call(**options)
        mla_decode_hopper.attend(call, params)
    (kernel,) = built
    sass = disassembled(kernel, tmp_path)
    assert sass.count("HGMMA") == 2 * 36 + 3 * 4 and "USETMAXREG" in sass and "LDGSTS.E.BYPASS.128" in sass
    assert sass.count("WARPGROUP.ARRIVE") == 12 and sass.count("WARPGROUP.DEPBAR") <= 6  # else ptxas waits after each
    assert sass.count("UTMALDG") == (3 if params["TMA"] and call.page_size % 64 == 0 else 0)
    assert sass.count("STL") + sass.count("LDL") <= spills
    assert kernel.metadata.shared <= 227 << 10
