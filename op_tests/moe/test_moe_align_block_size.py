# SPDX-License-Identifier: MIT
"""Flat numbers of pairs in whole blocks: the whole result against lists of Python, bad numbers, chunks."""

import functools

import benching
import pytest
import torch

import aiter_like
from aiter_like.errors import UnsupportedError
from aiter_like.testing import strided_like

I32, I64 = torch.int32, torch.int64
POISON = -123


def expected(ids, experts, block):
    """(pairs with padding, experts of blocks, pairs from each block on)."""
    flat = ids.flatten().tolist()
    pairs, of_blocks, remaining = [], [], []
    for expert in range(experts):
        mine = [pair for pair, one in enumerate(flat) if one == expert]
        blocks = -(-len(mine) // block)
        pairs += mine + [len(flat)] * (blocks * block - len(mine))
        of_blocks += [expert] * blocks
        remaining += [len(mine) - block * index for index in range(blocks)]
    return pairs, of_blocks, remaining


def aligned(run, ids, experts, block, extra=0, has_counts=True):
    """The outputs of the kernel, of the least size and `extra` more, checked in whole."""
    pairs = ids.numel()
    places = pairs + min(pairs, experts) * (block - 1)
    outputs = [torch.full((size + extra,), POISON, dtype=I32, device=ids.device)
               for size in (places, places // block, places // block, 1)]
    counts = outputs[2] if has_counts else None
    assert run("hip", aiter_like.moe_align_block_size, ids, experts, block, *outputs[:2], counts, outputs[3]) is None
    wanted = expected(ids, experts, block)
    assert outputs[3].tolist() == [len(wanted[0])] + [POISON] * extra
    for output, values in zip(outputs, wanted if has_counts else wanted[:2]):
        assert output.tolist() == values + [POISON] * (len(output) - len(values))
    return outputs


def distinct(device, tokens, experts, k, dtype=I32):
    """Distinct experts of each token, rows further apart than they are long."""
    generator = torch.Generator().manual_seed(tokens)
    return strided_like(torch.rand(tokens, experts, generator=generator).topk(k, 1).indices.to(device, dtype), (3, 0))


@pytest.mark.parametrize("dtype", (I32, I64), ids=str)
@pytest.mark.parametrize("tokens, experts, k, block", ((1, 8, 2, 16), (64, 256, 8, 32), (33, 5, 5, 1),
                                                       (400, 60, 6, 128)))
def test_whole_result(device, run, dtype, tokens, experts, k, block):
    aligned(run, distinct(device, tokens, experts, k, dtype), experts, block)


@pytest.mark.parametrize("tokens, experts, k, block", ((7, 1000, 16, 3), (600, 300, 8, 16)))
def test_many_experts(device, run, tokens, experts, k, block):
    aligned(run, distinct(device, tokens, experts, k), experts, block, extra=5)


def test_all_tokens_to_one_expert_and_experts_with_none(device, run):
    aligned(run, torch.full((300, 1), 6, dtype=I32, device=device), 9, 32)


@pytest.mark.parametrize("dtype", (I32, I64), ids=str)
def test_numbers_that_are_no_experts_vanish(device, run, dtype):
    """In chunks, too; of 64 bits also some whose lower half is an expert."""
    ids = distinct(device, 700, 8, 3, dtype)
    odd = [-1, 8, 2**31 - 1, -2**31, 9, -7] + ([2**32, 2**40 + 3, -2**63, 2**63 - 1] if dtype is I64 else [])
    ids[:len(odd), 1] = torch.tensor(odd, dtype=dtype, device=device)
    aligned(run, ids, 8, 16, extra=3)
    aligned(run, ids[:20], 8, 16)


def test_no_tokens_no_counts_and_one_dimension(device, run):
    aligned(run, torch.empty(0, 2, dtype=I32, device=device), 4, 16, extra=2)
    aligned(run, distinct(device, 9, 4, 2), 4, 16, has_counts=False)
    aligned(run, distinct(device, 9, 4, 2).reshape(-1), 4, 16)


def test_every_expert_is_no_expert(device, run):
    aligned(run, torch.full((40, 2), -1, dtype=I32, device=device), 4, 16)


def test_repeats_bit_for_bit(device, run):
    ids = distinct(device, 900, 64, 8)
    first, second = aligned(run, ids, 64, 32), aligned(run, ids, 64, 32)
    assert all(map(torch.equal, first, second))


def test_bad_input_is_named(device):
    ids = distinct(device, 4, 8, 2)
    outputs = [torch.full((size,), POISON, dtype=I32, device=device) for size in (256, 8, 8, 1)]
    call = aiter_like.moe_align_block_size
    with pytest.raises(ValueError, match="num_experts must be between 1 and"):
        call(ids, 0, 32, *outputs)
    with pytest.raises(ValueError, match="block_size must be between 1 and"):
        call(ids, 8, 0, *outputs)
    with pytest.raises(ValueError, match="sorted_token_ids must have at least 256 elements, got 255"):
        call(ids, 8, 32, outputs[0][1:], *outputs[1:])
    with pytest.raises(ValueError, match="experts_ids must have at least 8 elements, got 7"):
        call(ids, 8, 32, outputs[0], outputs[1][1:], *outputs[2:])
    with pytest.raises(ValueError, match="token_nums must have at least 8 elements, got 7"):
        call(ids, 8, 32, *outputs[:2], outputs[2][1:], outputs[3])
    with pytest.raises(ValueError, match="num_tokens_post_pad must have at least 1 elements, got 0"):
        call(ids, 8, 32, *outputs[:3], outputs[3][1:])
    with pytest.raises(UnsupportedError, match="at most 1024 experts, got 2000"):
        call(ids, 2000, 32, *outputs, backend="hip")
    assert all((output == POISON).all() for output in outputs), "nothing was written"
    call(ids, 2000, 32, *outputs)
    assert outputs[3].item() == len(expected(ids, 2000, 32)[0])


def bench() -> None:
    device = torch.device("cuda")

    def case(tokens: int, experts: int, k: int, seed: int) -> benching.Case:
        generator = torch.Generator(device).manual_seed(seed)
        ids = torch.rand(tokens, experts, generator=generator, device=device).topk(k, 1).indices.int()
        places = ids.numel() + experts * 31
        outputs = [torch.empty(size, dtype=I32, device=device) for size in (places, places // 32, places // 32, 1)]
        calls = benching.by_backend(aiter_like.moe_align_block_size, ids, experts, 32, *outputs, backends=("hip",))
        calls["torch.sort"] = functools.partial(torch.sort, ids.flatten(), stable=True)
        rows = int(((ids.flatten().bincount(minlength=experts) + 31) // 32 * 32).sum())

        def check_valid(result: tuple[torch.Tensor, ...] | None) -> float:
            return abs(outputs[3].item() - rows) if result is None else float((result[0].diff() < 0).any())

        return benching.Case(f"{tokens} tokens, {k} of {experts}", 8 * ids.numel(), calls, check_valid)

    shapes = ((1, 256, 8), (64, 256, 8), (4096, 256, 8), (16384, 128, 8))
    benching.table("moe_align_block_size", (benching.rotating(functools.partial(case, *shape)) for shape in shapes))
