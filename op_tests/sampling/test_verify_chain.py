# SPDX-License-Identifier: MIT
"""verify_chain: tokens that are emitted are distributed as the target's own; every backend takes the same decisions."""

import math

import pytest
import torch
from sampling_cases import BACKENDS, BIG, assert_distribution, probs_like

import aiter_like

I32 = torch.int32


def inputs(device, requests, drafted, columns, seed=0):
    """Drafted tokens drawn from the draft's probabilities, which are near the target's."""
    target = probs_like("cpu", "peaked", requests * (drafted + 1), columns, seed=seed).view(requests, drafted + 1, -1)
    flat = probs_like("cpu", "flat", requests * drafted, columns).view(requests, drafted, columns)
    draft = 0.5 * target[:, :-1] + 0.5 * flat
    tokens = torch.multinomial(draft.flatten(0, 1), 1, generator=torch.Generator().manual_seed(seed)).view(requests, -1)
    return [each.contiguous().to(device) for each in (draft, tokens.int(), target)]


@pytest.mark.parametrize("columns", (3, 300, 5003))
def test_decisions_are_those_of_the_reference(device, run, unseen, columns):
    draft, tokens, target = inputs(device, 6, 4, columns)
    lengths = torch.tensor([4, 4, 0, 2, 9, -1], dtype=I32, device=device)
    seeds, draws = torch.tensor([1, -2, 3, BIG, 5, 6], device=device), torch.arange(6, device=device)
    seen = set()
    for options in ({"seed": 7}, {"seed": seeds, "offset": draws, "num_drafted": lengths}):
        for probabilities in (draft, None):
            args = (probabilities, tokens, target)
            got = run("hip", aiter_like.chain_speculative_sampling, *args, **options)
            wanted = run("torch", aiter_like.chain_speculative_sampling, *args, **options)
            assert all(map(torch.equal, got, wanted)), (got, wanted)
            seen |= set(got[2].tolist())
    assert len(seen) > 2, "chains of several lengths"


@pytest.mark.exhaustive
@pytest.mark.parametrize("is_sure", (False, True))
def test_distribution(device, run, is_sure):
    """The first token of a chain, and the second after each first one, are the target's: drafts leave no trace."""
    count, columns = 800, 9
    target = probs_like(device, "peaked", 3, columns, seed=3)[None].expand(count, -1, -1).contiguous()
    draft = probs_like(device, "peaked", 2, columns, seed=4)[None].expand(count, -1, -1).contiguous()
    random = torch.Generator().manual_seed(5)
    tokens = torch.multinomial(draft.cpu().flatten(0, 1), 1, generator=random).view(count, 2).int().to(device)
    if is_sure:
        tokens[:], draft = target[0, :2].argmax(-1), None
    emitted, accepted, length = run("hip", aiter_like.chain_speculative_sampling, draft, tokens, target, seed=BIG)
    assert_distribution(emitted[:, 0], target[0, 0] / target[0, 0].double().sum())
    assert_distribution(emitted[length >= 1, 1], target[0, 1] / target[0, 1].double().sum())
    assert (accepted >= length).all() and set(length.tolist()) == {0, 1, 2}


@pytest.mark.parametrize("backend", BACKENDS)
def test_sure_cases(device, run, backend):
    """All accepted, none accepted, tokens that are no column, NaN, and rows without any mass."""
    one = torch.eye(8, device=device)
    target = torch.stack((one[[1, 2, 3]], one[[1, 5, 6]], one[[7, 2, 3]], one[[4, 4, 4]], one[[4, 4, 4]], 0 * one[:3]))
    target[4, 0, 2] = math.nan
    tokens = torch.tensor([[1, 2], [1, 2], [1, 2], [-1, 8], [2, 4], [0, 0]], dtype=I32, device=device)
    got, accepted, emitted = run(backend, aiter_like.chain_speculative_sampling, None, tokens, target, seed=1)
    assert got.tolist() == [[1, 2, 3], [1, 5, -1], [7, -1, -1], [4, -1, -1], [4, -1, -1], [0, -1, -1]]
    assert accepted.tolist() == [2, 1, 1, 0, 1, 0] and emitted.tolist() == [2, 1, 0, 0, 0, 0]


def test_counts_are_added(device):
    draft, tokens, target = inputs(device, 3, 2, 50)
    first = aiter_like.chain_speculative_sampling(draft, tokens, target, seed=1)
    sums = [torch.full((3,), 10, dtype=I32, device=device) for _ in range(2)]
    again = aiter_like.chain_speculative_sampling(draft, tokens, target, *sums, seed=1)
    assert again[1] is sums[0] and torch.equal(sums[0], first[1] + 10) and torch.equal(sums[1], first[2] + 10)
    store = torch.full((5,), 10, dtype=I32, device=device)
    for pair in ((store[:3], store[:3]), (store[:3], store[2:]), (store[2:], store[:3])):
        with pytest.raises(ValueError, match="emitted_draft_token_num must not overlap maybe_output_accepted"):
            aiter_like.chain_speculative_sampling(draft, tokens, target, *pair, seed=1)
    assert (store == 10).all()
    with pytest.raises(TypeError, match="maybe_output_emitted_draft_token_num must be a"):
        aiter_like.chain_speculative_sampling(draft, tokens, target, sums[0], 2, seed=1)


def test_empty_and_bad_input(device):
    draft, tokens, target = inputs(device, 2, 3, 20)
    chain = aiter_like.chain_speculative_sampling
    assert chain(draft[:0], tokens[:0], target[:0])[0].shape == (0, 4)
    assert chain(draft[:, :0], tokens[:, :0], target[:, :1].contiguous())[0].shape == (2, 1)
    with pytest.raises(ValueError, match="target_probs must have shape"):
        chain(draft, tokens, target[:, :3])
    with pytest.raises(ValueError, match="num_drafted must have shape"):
        chain(draft, tokens, target, num_drafted=tokens[0])
    for number in (-1, tokens.shape[1] + 1, -2**31, 2**31 - 1):
        if device.type == "cpu":
            with pytest.raises(ValueError, match="num_drafted must hold numbers from 0 to"):
                chain(draft, tokens, target, num_drafted=torch.full_like(tokens[:, 0], number))


def bench() -> None:
    """Beside FlashInfer where it can be imported; V = 128256, 4 drafted tokens."""
    import functools

    import benching

    device = torch.device("cuda")
    try:
        from flashinfer.sampling import chain_speculative_sampling as peer
    except ImportError:
        peer = None

    def case(requests, seed):
        target = torch.softmax(3 * torch.randn(requests, 5, 128256, device=device), -1)
        draft = target[:, :4].contiguous()
        tokens = draft.argmax(-1).int()
        calls = {"hip": lambda: aiter_like.chain_speculative_sampling(draft, tokens, target, seed=1, backend="hip")}
        if peer is not None:
            calls["flashinfer"] = lambda: peer(draft, tokens, target)
        return benching.Case(f"{requests}", requests * 128256 * 4, calls, lambda got: 0.0)

    counts = (1, 8, 32)
    benching.table("verify_chain", (benching.rotating(functools.partial(case, count)) for count in counts))
