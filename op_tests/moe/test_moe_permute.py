# SPDX-License-Identifier: MIT
"""Packing for experts and back: the whole result against lists of Python, maps, blocks, scales."""

import functools
import math

import benching
import pytest
import torch

import aiter_like
from aiter_like import sim
from aiter_like.errors import UnsupportedError
from aiter_like.testing import strided_like

BACKENDS = ("hip", "triton")
BF16, F16, F32, I32, I64 = torch.bfloat16, torch.float16, torch.float32, torch.int32, torch.int64
FP8 = torch.float8_e4m3fnuz
POISON = 77


def routing(device, tokens, experts, k, dtype=I32, seed=0):
    """Distinct experts of each token, rows further apart than they are long."""
    generator = torch.Generator().manual_seed(seed)
    return strided_like(torch.rand(tokens, experts, generator=generator).topk(k, 1).indices.to(device, dtype), (3, 0))


def matrix(device, dtype, *shape):
    return (torch.randn(shape, device=device) * 4).to(dtype)


def poisoned(x, rows):
    """Rows of the dtype of x, further apart than they are long."""
    return torch.full((rows, x.shape[1] + 16), POISON, device=x.device).to(x.dtype)[:, :x.shape[1]]


def expected(ids, experts, expert_map=None, block=1):
    """(pair of each row up to their end, first row of each expert and the end)."""
    where = list(range(experts)) if expert_map is None else expert_map.tolist()
    flat = [where[one] if 0 <= one < len(where) else -1 for one in ids.flatten().tolist()]
    rows, first = [], [0]
    for expert in range(experts):
        mine = [pair for pair, one in enumerate(flat) if one == expert]
        rows += mine + [len(flat)] * (-len(mine) % block)
        first.append(len(rows))
    return rows, first


def packed(run, backend, x, ids, n_expert, *, scales=None, local=-1, expert_map=None, block=None, extra=3):
    """The results, with every number of each checked; the rows that hold no pair are left as they are."""
    experts, step = n_expert if local == -1 else local, block or 1
    pairs, k = ids.numel(), ids.shape[1]
    rows = pairs + min(pairs, experts) * (step - 1) + extra
    output = poisoned(x, rows)
    before = output.clone()
    result = run(backend, aiter_like.moe_permute, x, scales, ids, n_expert, local, expert_map, output,
                 align_block_size=block)
    wanted, first = expected(ids, experts, expert_map, step)
    assert result[0] is output and result[2].dtype == I64
    assert result[2].tolist() == first
    wanted += [pairs] * (rows - len(wanted))
    assert result[4].tolist() == wanted
    inverse = [-1] * pairs
    for row, pair in enumerate(wanted):
        if pair < pairs:
            inverse[pair] = row
    assert result[3].shape == (pairs,) and result[3].tolist() == inverse
    token = torch.tensor([pair // max(k, 1) for pair in wanted], dtype=I64, device=x.device)
    is_pair = (torch.tensor(wanted, device=x.device) < pairs)[:, None]
    copies = x.float()[token.clamp(max=max(len(x) - 1, 0))] if len(x) else before.float()
    assert torch.equal(output.float(), torch.where(is_pair, copies, before.float()))
    if scales is not None:
        held = is_pair[:, 0]
        assert torch.equal(result[1][held], scales[token[held]])
    return result


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", (BF16, F32, FP8, torch.int8, torch.uint8), ids=str)
@pytest.mark.parametrize("columns", (1056, 263))
def test_rows_of_every_type(device, run, backend, dtype, columns):
    """Whole accesses and single elements, rows further apart than they are long."""
    x = matrix(device, dtype if dtype is not torch.uint8 else torch.int8, 9, columns)
    x = strided_like(x.view(torch.uint8) if dtype is torch.uint8 else x, (16, 0))
    packed(run, backend, x, routing(device, 9, 16, 4), 16)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("tokens, experts, k, block", ((1, 8, 2, None), (64, 256, 8, 32), (400, 60, 6, 128),
                                                       (33, 5, 5, 3), (7, 1000, 16, 4), (5, 1, 1, 16)))
def test_whole_result(device, run, backend, tokens, experts, k, block):
    ids = routing(device, tokens, experts, k, I64 if tokens % 2 else I32)
    packed(run, backend, matrix(device, F16, tokens, 40), ids, experts, block=block)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("groups", (1, 3, 130))
@pytest.mark.parametrize("is_transposed", (False, True))
def test_scales_go_with_the_rows(device, run, backend, groups, is_transposed):
    scales = torch.rand(groups, 20, device=device).T if is_transposed else torch.rand(20, groups, device=device)
    packed(run, backend, matrix(device, FP8, 20, 64), routing(device, 20, 12, 3), 12, scales=scales, block=8)


def test_one_scale_stays_as_it_is(device, run):
    x, ids = matrix(device, FP8, 4, 64), routing(device, 4, 8, 2)
    for scale in (torch.rand(1, device=device), torch.rand((), device=device)):
        assert run("hip", aiter_like.moe_permute, x, scale, ids, 8)[1] is scale


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("tokens, block", ((6, None), (500, 16)))
def test_experts_of_other_devices(device, run, backend, tokens, block):
    """By a map in any order, whose numbers may be anything, and without one."""
    ids = routing(device, tokens, 40, 6)
    expert_map = torch.full((40,), -1, dtype=I32)
    expert_map[torch.tensor([3, 39, 17, 0, 22])] = torch.arange(5, dtype=I32)
    expert_map[5], expert_map[6] = 2**31 - 1, -2**31
    x = matrix(device, BF16, tokens, 32)
    packed(run, backend, x, ids, 40, local=5, expert_map=expert_map.to(device), block=block)
    packed(run, backend, x, ids, 40, local=10, block=block)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", (I32, I64), ids=str)
def test_numbers_that_are_no_experts_do_not_count(device, run, backend, dtype):
    """Rows of tokens without an expert are not read; of 64 bits also numbers whose lower half is an expert."""
    ids = routing(device, 30, 8, 3, dtype)
    odd = [-1, 8, 2**31 - 1, -2**31, 9, -7] + ([2**32, 2**40 + 3, -2**63, 2**63 - 1] if dtype is I64 else [])
    ids[:len(odd), 1] = torch.tensor(odd, dtype=dtype, device=device)
    ids[20] = -1
    expert_map = torch.arange(8, dtype=I32).flip(0).to(device)
    x = matrix(device, BF16, 30, 24)
    packed(run, backend, x, ids, 8)
    packed(run, backend, x, ids, 8, expert_map=expert_map, block=4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_tokens_to_one_expert(device, run, backend):
    packed(run, backend, matrix(device, BF16, 300, 8), torch.full((300, 1), 6, dtype=I32, device=device), 9, block=32)
    packed(run, backend, matrix(device, BF16, 5, 8), torch.full((5, 2), -1, dtype=I32, device=device), 9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing(device, run, backend):
    """No tokens, no slots, no columns: the numbers are there all the same."""
    packed(run, backend, matrix(device, BF16, 0, 8), torch.empty(0, 2, dtype=I32, device=device), 4, block=16)
    packed(run, backend, matrix(device, BF16, 3, 8), torch.empty(3, 0, dtype=I32, device=device), 4)
    packed(run, backend, matrix(device, BF16, 3, 0), routing(device, 3, 4, 2), 4)


def test_new_results_have_whole_blocks(device):
    x, ids = matrix(device, BF16, 5, 24), routing(device, 5, 8, 3)
    results = aiter_like.moe_permute(x, torch.rand(5, 2, device=device), ids, 8, align_block_size=16)
    assert [tuple(one.shape) for one in results] == [(144, 24), (144, 2), (9,), (15,), (144,)]
    assert aiter_like.moe_permute(x, None, ids, 8)[0].shape == (15, 24)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", (BF16, F32), ids=str)
@pytest.mark.parametrize("block", (None, 16))
def test_there_and_back(device, run, backend, dtype, block):
    """Each expert multiplies by its number; what experts elsewhere would add is missing; rows without pairs are NaN."""
    tokens, k, columns = 21, 4, 136
    ids, x = routing(device, tokens, 12, k), matrix(device, dtype, tokens, columns)
    weights = strided_like(torch.rand(tokens, k, device=device), (2, 0))
    expert_map = torch.where(torch.arange(12) % 3 > 0, torch.arange(12), -1).int()
    expert_map[expert_map >= 0] = torch.arange(8, dtype=I32)
    rows = tokens * k + 8 * ((block or 1) - 1)
    output = torch.full((rows, columns), math.nan, dtype=dtype, device=device)
    results = run(backend, aiter_like.moe_permute, x, None, ids, 12, 8, expert_map.to(device), output,
                  align_block_size=block)
    factor = torch.full((rows,), math.nan, dtype=torch.float64, device=device)
    for expert in range(8):
        factor[results[2][expert]:results[2][expert + 1]] = expert + 1
    done = (output.double() * factor[:, None]).to(dtype)
    here = expert_map.to(device)[ids.long()]
    exact = torch.where(here < 0, 0, weights.double() * (here + 1))[..., None] * x[:, None].double()
    out = torch.full((tokens, columns), math.nan, dtype=dtype, device=device)
    for offsets, inverse in ((results[2], results[3]), (None, results[3].view(tokens, k))):
        assert run(backend, aiter_like.moe_unpermute, out, done, weights, inverse, offsets) is None
        bound = exact.abs().sum(1) * (2.0**-22 + torch.finfo(dtype).eps) + 1e-30
        assert ((out.double() - exact.sum(1)).abs() <= bound).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_behind_the_end_do_not_count(device, run, backend):
    """As of a map of pairs that puts those of other experts there."""
    x = matrix(device, BF16, 10, 64)
    x[6:] = math.nan
    inverse = torch.tensor([[0, 9], [6, 5], [-1, 10], [7, 8]], dtype=I32, device=device)
    first = torch.tensor([0, 2, 6], device=device)
    out = torch.full((4, 64), math.nan, dtype=F32, device=device)
    run(backend, aiter_like.moe_unpermute, out, x, torch.full((4, 2), 0.5, device=device), inverse.flatten(), first)
    wanted = torch.stack([x[0].float() / 2, x[5].float() / 2, torch.zeros(64, device=device),
                          torch.zeros(64, device=device)])
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_repeats_bit_for_bit(device, run, backend):
    x, ids = matrix(device, BF16, 600, 8), routing(device, 600, 64, 8)
    first, second = (packed(run, backend, x, ids, 64, extra=0) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second) if one is not None)


def test_each_row_is_read_once(device):
    """By the copies' kernel, in whole accesses; sorting, before it, has numbers of pairs alone."""
    if device.type != "cpu":
        pytest.skip("counters of the simulator")
    x, ids = matrix(device, BF16, 32, 2048), routing(device, 32, 16, 4)
    with sim.enabled(checks=False) as session:
        aiter_like.moe_permute(x, None, ids, 16, backend="hip")
    (counts,) = (counts for kernel, counts in session.counters.items() if "moe_permute_kernel" in kernel)
    moved = {name: 64 * 16 * count for name, count in counts["accesses"].items() if "dwordx4" in name}
    assert sorted(moved.values()) == [x.nbytes, 4 * x.nbytes], moved


def test_bad_input_is_named(device):
    x, ids = matrix(device, BF16, 4, 16), routing(device, 4, 8, 2)
    call = aiter_like.moe_permute
    with pytest.raises(ValueError, match="moe_permute: n_local_expert must be between"):
        call(x, None, ids, 8, 9)
    with pytest.raises(ValueError, match="moe_permute: n_local_expert must be between"):
        call(x, None, ids, 8, 0)
    with pytest.raises(ValueError, match=r"moe_permute: expert_map must have shape \(8,\)"):
        call(x, None, ids, 8, 4, torch.zeros(4, dtype=I32, device=device))
    with pytest.raises(TypeError, match="moe_permute: a1q_scale must have dtype torch.float32"):
        call(x, torch.rand(4, 2, device=device).bfloat16(), ids, 8)
    output = torch.full((8, 16), POISON, device=device).bfloat16()
    with pytest.raises(ValueError, match="moe_permute: permuted_hidden_states must have at least 8 rows"):
        call(x, None, ids, 8, -1, None, output[:7])
    with pytest.raises(UnsupportedError, match="at most 1024 experts here, got 2000"):
        call(x, None, ids, 2000, backend="hip")
    assert (output == POISON).all(), "nothing was written"
    assert call(x, None, ids, 2000)[2][-1] == 8
    weights, inverse, out = torch.ones(4, 2, device=device), torch.zeros(8, dtype=I32, device=device), output[:4]
    back = aiter_like.moe_unpermute
    with pytest.raises(ValueError, match=r"moe_unpermute: inv_permuted_idx must have shape \(8,\), got \(7,\)"):
        back(out, x, weights, inverse[1:])
    with pytest.raises(ValueError, match=r"moe_unpermute: out must have shape \(4, 16\), got \(8, 16\)"):
        back(output, x, weights, inverse)
    with pytest.raises(ValueError, match="moe_unpermute: expert_first_token_offset must have at least 1 element"):
        back(out, x, weights, inverse, torch.empty(0, dtype=I64, device=device))
    assert (output == POISON).all(), "nothing was written"


def bench() -> None:
    device = torch.device("cuda")

    def case(tokens: int, experts: int, k: int, seed: int) -> benching.Case:
        generator = torch.Generator(device).manual_seed(seed)
        x = torch.randn(tokens, 7168, device=device, generator=generator, dtype=BF16)
        ids = torch.rand(tokens, experts, generator=generator, device=device).topk(k, 1).indices.int()
        calls = benching.by_backend(aiter_like.moe_permute, x, None, ids, experts)
        calls["torch"] = functools.partial(lambda: x[ids.flatten().argsort(stable=True) // k])
        wanted = x[ids.flatten().argsort(stable=True) // k]

        def check(result: tuple[torch.Tensor, ...] | torch.Tensor) -> float:
            return float(not torch.equal(result[0] if isinstance(result, tuple) else result, wanted))

        return benching.Case(f"{tokens} tokens, {k} of {experts}", (k + 1) * x.nbytes, calls, check)

    shapes = ((1, 256, 8), (64, 256, 8), (4096, 256, 8), (16384, 128, 8))
    benching.table("moe_permute", (benching.rotating(functools.partial(case, *shape)) for shape in shapes))
