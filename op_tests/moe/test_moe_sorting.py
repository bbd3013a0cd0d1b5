# SPDX-License-Identifier: MIT
"""Sorting for experts: the whole result against lists sorted in Python, masks, bad numbers, chunks."""

import functools

import benching
import pytest
import torch

import aiter_like
from aiter_like.errors import UnsupportedError
from aiter_like.testing import strided_like

I32, F32 = torch.int32, torch.float32
POISON = -123


def pairs_of(device, tokens, experts, k, seed=0):
    """Distinct experts of each token, rows further apart than they are long."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.rand(tokens, experts, generator=generator).topk(k, 1).indices.to(device, I32)
    weights = torch.rand(tokens, k, generator=generator).to(device)
    return strided_like(ids, (3, 0)), strided_like(weights, (5, 0))


def expected(ids, weights, experts, block, mask=None, local=None):
    """(numbers, weights, experts of blocks), as far as they are defined."""
    tokens, k = ids.shape
    rows, values, local_expert = ids.tolist(), weights.tolist(), -1
    numbers, sorted_weights, of_blocks = [], [], []
    for expert in range(experts):
        if mask is not None and not mask[expert]:
            continue
        local_expert += 1
        mine = [(token, slot) for token in range(tokens if local is None else local) for slot in range(k)
                if rows[token][slot] == expert]
        blocks = -(-len(mine) // block)
        padding = blocks * block - len(mine)
        numbers += [slot << 24 | token for token, slot in mine] + [k << 24 | tokens] * padding
        sorted_weights += [values[token][slot] for token, slot in mine] + [0.0] * padding
        of_blocks += [local_expert] * blocks
    return numbers, sorted_weights, of_blocks


def check(result, ids, weights, experts, block, mask=None, local=None):
    numbers, values, of_blocks = expected(ids, weights, experts, block, mask, local)
    sorted_ids, sorted_weights, sorted_experts, valid = (tensor.tolist() for tensor in result[:4])
    assert valid[:2] == [len(numbers), len(ids) if local is None else local]
    assert sorted_ids[:len(numbers)] == numbers
    assert sorted_weights[:len(values)] == pytest.approx(values)
    assert sorted_experts[:len(of_blocks)] == of_blocks


@pytest.mark.parametrize("tokens, experts, k, block", ((1, 8, 2, 32), (64, 256, 8, 32), (33, 5, 5, 16),
                                                       (400, 60, 6, 128), (7, 1000, 16, 3), (1200, 16, 4, 64),
                                                       (255, 700, 8, 1), (2600, 40, 1, 8)))
def test_whole_result(device, run, tokens, experts, k, block):
    ids, weights = pairs_of(device, tokens, experts, k)
    result = run("hip", aiter_like.moe_sorting, ids, weights, experts, 24, torch.bfloat16, block)
    check(result, ids, weights, experts, block)
    assert result[0].shape == (tokens * k + experts * block - k,)
    assert result[4].shape == (tokens, 24) and not result[4].any()


def test_all_tokens_to_one_expert_and_experts_with_none(device, run):
    ids = torch.full((300, 1), 6, dtype=I32, device=device)
    weights = torch.rand(300, 1, device=device)
    check(run("hip", aiter_like.moe_sorting, ids, weights, 9, 8, F32, 32), ids, weights, 9, 32)


@pytest.mark.parametrize("local", (None, 0, 1, 450))
def test_experts_of_other_devices_and_tokens_that_do_not_count(device, run, local):
    ids, weights = pairs_of(device, 500, 40, 6)
    mask = (torch.arange(40) % 3 != 1).to(device, I32)
    tokens = None if local is None else torch.tensor([local], dtype=I32, device=device)
    result = run("hip", aiter_like.moe_sorting, ids, weights, 40, 16, torch.float16, 32, mask, tokens)
    check(result, ids, weights, 40, 32, mask.tolist(), local)


@pytest.mark.parametrize("tokens", (3, 500))
@pytest.mark.parametrize("has_mask", (False, True))
def test_local_experts_of_pairs(device, run, tokens, has_mask):
    ids, weights = pairs_of(device, tokens, 40, 6)
    ids[1, 2:4] = torch.tensor([-1, 40], dtype=I32, device=device)
    mask = (torch.arange(40) % 3 != 1).to(device, I32) if has_mask else None
    local = torch.tensor([tokens - 1], dtype=I32, device=device)
    result = run("hip", aiter_like.moe_sorting, ids, weights, 40, 16, torch.float16, 32, mask, local,
                 return_local_topk_ids=True)
    check(result, ids, weights, 40, 32, None if mask is None else mask.tolist(), tokens - 1)
    here = [True] * 40 if mask is None else mask.tolist()
    number = [sum(map(bool, here[:one])) if here[one] else -1 for one in range(40)]
    wanted = [[number[one] if 0 <= one < 40 else -1 for one in row] for row in ids.tolist()[:-1]] + [[-1] * 6]
    assert result[5].tolist() == wanted


@pytest.mark.parametrize("tokens", (9, 600))
def test_fewer_weights_than_tokens(device, run, tokens, unseen):
    """Tokens without weights do not count, whatever the number of those that count says; the others are not read. A
    number that there is not, nobody sees on a GPU.
    """
    ids, weights = pairs_of(device, tokens, 20, 4)
    for count, counted in ((tokens - 3, tokens - 3), (2, 2), (tokens, tokens - 2), (2**31 - 1, tokens - 2), (-1, 0)):
        local = torch.tensor([count], dtype=I32, device=device)
        result = run("hip", aiter_like.moe_sorting, ids, weights[:-2].clone(), 20, 8, F32, 16, None, local)
        check(result, ids, weights, 20, 16, None, counted)
    with pytest.raises(ValueError, match="moe_sorting: topk_weights must have shape"):
        aiter_like.moe_sorting(ids, weights[:-2], 20, 8, F32, 16)
    with pytest.raises(ValueError, match="moe_sorting: topk_weights must have shape"):
        aiter_like.moe_sorting(ids[:-2], weights, 20, 8, F32, 16, None, local)


@pytest.mark.parametrize("backend", ("hip", "torch"))
@pytest.mark.parametrize("tokens", (9, 600))
def test_numbers_of_tokens_that_there_are_not(device, run, backend, tokens, unseen):
    """What a GPU holds nobody sees: less than none is none, more than all is all."""
    ids, weights = pairs_of(device, tokens, 20, 4)
    for count in (-2**31, -1, tokens + 1, 2**31 - 1):
        local = torch.tensor([count], dtype=I32, device=device)
        counted = min(max(count, 0), tokens)
        result = run(backend, aiter_like.moe_sorting, ids, weights, 20, 8, F32, 16, None, local, 0, True)
        check(result, ids, weights, 20, 16, None, counted)
        assert torch.equal(result[5], torch.cat((ids[:counted], torch.full_like(ids[counted:], -1))))


def test_numbers_that_are_no_experts_vanish(device, run):
    ids, weights = pairs_of(device, 50, 8, 3)
    ids[::7, 1] = torch.tensor([-1, 8, 2**31 - 1, -2**31, 9, -7, 100, 8], dtype=I32, device=device)
    check(run("hip", aiter_like.moe_sorting, ids, weights, 8, 4, F32, 16), ids, weights, 8, 16)


def test_given_tensors_and_nothing_beyond_them(device, run):
    """Without a buffer, with outputs of the least size; what is beyond the valid rows stays as it is."""
    ids, weights = pairs_of(device, 20, 4, 2)
    places = 40 + 4 * 15
    outputs = [torch.full((places,), POISON, dtype=dtype, device=device) for dtype in (I32, F32, I32)]
    valid = torch.full((4,), POISON, dtype=I32, device=device)
    run("hip", aiter_like.moe_sorting_fwd, ids, weights, *outputs, valid, None, 4, 16)
    check([*outputs, valid], ids, weights, 4, 16)
    end = valid[0].item()
    assert (outputs[0][end:] == POISON).all() and (outputs[2][end // 16:] == POISON).all()
    assert valid[2:].tolist() == [POISON] * 2
    buffer = torch.full((3, 5, 2), 7.0, device=device)
    run("hip", aiter_like.moe_sorting_fwd, ids, weights, *outputs, valid, buffer, 4, 16)
    assert not buffer.any()


def test_no_tokens(device, run):
    ids, weights = torch.empty(0, 2, dtype=I32, device=device), torch.empty(0, 2, device=device)
    result = run("hip", aiter_like.moe_sorting, ids, weights, 4, 16, F32)
    assert result[3].tolist() == [0, 0] and result[4].shape == (0, 16)


def test_buffer_only_where_it_is_added_to(device):
    ids, weights = pairs_of(device, 4, 8, 2)
    mask = torch.ones(8, dtype=I32, device=device)
    assert aiter_like.moe_sorting(ids, weights, 8, 16, F32, accumulate=False)[4].shape == (0, 0)
    assert not aiter_like.moe_sorting(ids, weights, 8, 16, F32, 32, mask, accumulate=False)[4].any()


def test_repeats_bit_for_bit(device, run):
    ids, weights = pairs_of(device, 900, 64, 8)
    first, second = (run("hip", aiter_like.moe_sorting, ids, weights, 64, 2, F32, 32) for _ in range(2))
    end = first[3][0].item()
    assert torch.equal(first[0][:end], second[0][:end]) and torch.equal(first[1][:end], second[1][:end])


def test_bad_input_is_named(device):
    ids, weights = pairs_of(device, 4, 8, 2)
    with pytest.raises(ValueError, match="topk_weights must have shape"):
        aiter_like.moe_sorting(ids, weights[:2], 8, 16, F32)
    with pytest.raises(ValueError, match="expert_mask must have shape"):
        aiter_like.moe_sorting(ids, weights, 8, 16, F32, 32, ids[0])
    with pytest.raises(UnsupportedError, match="flat is not served"):
        aiter_like.moe_sorting(ids, weights, 8, 16, F32, flat=True)
    with pytest.raises(UnsupportedError, match="at most 1024 experts, got 2000"):
        aiter_like.moe_sorting(ids, weights, 2000, 16, F32, backend="hip")
    short = torch.full((10,), POISON, dtype=I32, device=device)
    with pytest.raises(ValueError, match="sorted_token_ids must have at least 256 elements, got 10"):
        aiter_like.moe_sorting_fwd(ids, weights, short, short.float(), short, short, None, 8, 32)
    assert (short == POISON).all()
    check(aiter_like.moe_sorting(ids, weights, 2000, 16, F32), ids, weights, 2000, 32)


def bench() -> None:
    device = torch.device("cuda")

    def case(tokens: int, experts: int, k: int, seed: int) -> benching.Case:
        ids, weights = pairs_of(device, tokens, experts, k, seed)
        given = (ids, weights, experts, 7168, torch.bfloat16)
        calls = benching.by_backend(aiter_like.moe_sorting, *given, backends=("hip",))
        calls["torch.sort"] = functools.partial(torch.sort, ids.flatten(), stable=True)
        rows = int(((ids.flatten().bincount(minlength=experts) + 31) // 32 * 32).sum())

        def check_valid(result: tuple[torch.Tensor, ...]) -> float:
            """Of ours the rows with padding; of torch the values."""
            if len(result) == 2:
                return float((result[0].diff() < 0).any())
            return abs(result[3][0].item() - rows)

        return benching.Case(f"{tokens} tokens, {k} of {experts}", tokens * (7168 * 2 + 16 * k), calls, check_valid)

    shapes = ((1, 256, 8), (64, 256, 8), (64, 128, 8), (4096, 256, 8), (16384, 128, 8))
    benching.table("moe_sorting", (benching.rotating(functools.partial(case, *shape)) for shape in shapes))
