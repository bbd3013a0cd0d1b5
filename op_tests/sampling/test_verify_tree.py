# SPDX-License-Identifier: MIT
"""verify_tree: paths of small trees by hand, random trees against the rule in torch, and the distribution."""

import pytest
import torch
from sampling_cases import BACKENDS, assert_distribution, probs_like

import aiter_like

I32 = torch.int32
# The root has children 1 and 2; 1 has 3; 2 has 4 and 5.
CHILD, SIBLING = [1, 3, 4, -1, -1, -1], [-1, 2, -1, -1, 5, -1]


def tree(device, requests):
    """retrive_index, retrive_next_token, retrive_next_sibling, and results that are poison."""
    places = torch.arange(6 * requests, device=device).view(requests, 6)
    links = [torch.tensor([each], device=device).repeat(requests, 1) for each in (CHILD, SIBLING)]
    outs = [torch.full(shape, -7, dtype=I32, device=device) for shape in ((6 * requests,), (requests, 3), (requests,))]
    return outs, [places, *links]


@pytest.mark.parametrize("integers", (torch.int64, I32), ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_greedy(device, run, backend, integers):
    """A path of two, one that ends after a child, and none; a tree with a circle and links to nowhere."""
    outs, links = tree(device, 4)
    links[1][3, 0], links[2][3, 1], links[2][3, 2] = 1, 2, 1
    tokens = torch.tensor([[0, 11, 12, 13, 14, 15]] * 4, device=device)
    wanted = torch.tensor([[12, 1, 15, 2, 3, 99], [11, 98, 1, 2, 3, 4], [97, 0, 0, 0, 0, 0], [96, 0, 0, 0, 0, 0]])
    run(backend, aiter_like.verify_tree_greedy, *outs, *(each.to(integers) for each in (tokens, *links)),
        wanted.to(device).to(integers))
    predicts, accepted, count = outs
    assert accepted.tolist() == [[0, 2, 5], [6, 7, -1], [12, -1, -1], [18, -1, -1]] and count.tolist() == [2, 1, 0, 0]
    assert predicts[[0, 2, 5]].tolist() == [12, 15, 99] and predicts[[6, 7]].tolist() == [11, 98]
    assert predicts[[12, 18]].tolist() == [97, 96] and (predicts == -7).sum() == 24 - 7


def by_chance(device, requests, columns, seed=0):
    random = torch.Generator().manual_seed(seed)
    target = probs_like(device, "peaked", 6 * requests, columns, seed=seed).view(requests, 6, columns)
    draft = torch.zeros_like(target)
    best = target.argsort(-1, descending=True)
    tokens = torch.stack((best[:, 0, 0], best[:, 0, 1], best[:, 0, 0], best[:, 1, 0], best[:, 2, 0], best[:, 2, 1]), 1)
    coins = torch.rand(requests, 6, generator=random).to(device), torch.rand(requests, generator=random).to(device)
    return tokens, coins, target, draft


@pytest.mark.parametrize("columns, thresholds", ((7, (1.0, 1.0)), (3000, (0.3, 0.8))))
def test_paths_are_those_of_the_reference(device, run, columns, thresholds):
    tokens, coins, target, draft = by_chance(device, 40, columns)
    tokens[3, 1], tokens[4, 2] = -1, columns
    results = []
    for backend in BACKENDS:
        outs, links = tree(device, 40)
        written = draft.clone()
        run(backend, aiter_like.tree_speculative_sampling_target_only, *outs, tokens, *links, *coins, target, written,
            *thresholds)
        results.append([*outs, written])
    assert all(map(torch.equal, *results))
    assert set(results[0][2].tolist()) == {0, 1, 2}, "paths of all lengths"


@pytest.mark.parametrize("backend", BACKENDS)
def test_coins_of_0(device, run, backend):
    """A child of probability 0, less or NaN is rejected by every coin, also behind one that was; the next is accepted.
    """
    outs, links = tree(device, 4)
    tokens = torch.tensor([[0, 1, 2, 3, 4, 5]] * 4, device=device)
    target = torch.zeros(4, 6, 9)
    target[:, :, 8] = 0.25
    target[0, 0, 2] = target[0, 2, 5] = 0.75
    target[2, 0, 1], target[3, 0, 1] = -0.5, torch.nan
    coins, final = torch.zeros(4, 6), torch.zeros(4)
    coins[1] = torch.nan
    run(backend, aiter_like.tree_speculative_sampling_target_only, *outs, tokens, *links, coins.to(device),
        final.to(device), target.to(device), torch.zeros(4, 6, 9, device=device))
    assert outs[1].tolist() == [[0, 2, 5], [6, -1, -1], [12, -1, -1], [18, -1, -1]]
    assert outs[0][[0, 2, 5, 6, 12, 18]].tolist() == [2, 5, 8, 8, 8, 8]


@pytest.mark.parametrize("backend", BACKENDS)
def test_final_coins_at_and_beyond_their_ends(device, run, backend):
    """Less than 0 and NaN count as 0, 1 and more, and the largest below, as the last column's."""
    coins = torch.tensor([0.0, -0.5, float("nan"), 1 - 2**-24, 1.0, float("inf")], device=device)
    outs, links = tree(device, len(coins))
    links[1][:] = -1  # nothing is drafted
    target = torch.full((len(coins), 6, 8), 0.125, device=device)
    run(backend, aiter_like.tree_speculative_sampling_target_only, *outs, torch.zeros_like(links[0]), *links,
        torch.zeros(len(coins), 6, device=device), coins, target, torch.zeros_like(target))
    assert outs[0].view(-1, 6)[:, 0].tolist() == [0, 0, 0, 7, 7, 7]


@pytest.mark.exhaustive
def test_distribution(device, run):
    """What follows the root is distributed as the target, whatever the children are."""
    count = 800
    tokens, _, target, draft = by_chance(device, 1, 9, seed=2)
    outs, links = tree(device, count)
    random = torch.Generator().manual_seed(3)
    coins = torch.rand(count, 6, generator=random).to(device), torch.rand(count, generator=random).to(device)
    run("hip", aiter_like.tree_speculative_sampling_target_only, *outs, tokens.repeat(count, 1), *links, *coins,
        target.repeat(count, 1, 1), draft.repeat(count, 1, 1))
    predicts = outs[0].view(count, 6)
    assert_distribution(predicts[:, 0], target[0, 0] / target[0, 0].double().sum())
    second = outs[2] >= 1
    after = predicts.gather(1, (outs[1][:, 1:2] % 6).clamp(min=0).long())[:, 0]
    for node in (1, 2):
        own = second & (outs[1][:, 1] % 6 == node)
        assert_distribution(after[own], target[0, node] / target[0, node].double().sum())


def test_empty_and_bad_input(device):
    tokens, coins, target, draft = by_chance(device, 2, 20)
    outs, links = tree(device, 2)
    aiter_like.verify_tree_greedy(outs[0], outs[1][:0], outs[2][:0], *([tokens[:0]] * 5))
    with pytest.raises(ValueError, match="threshold_acc must be greater than 0"):
        aiter_like.tree_speculative_sampling_target_only(*outs, tokens, *links, *coins, target, draft, 1.0, 0.0)


def bench() -> None:
    """V = 128256, six nodes."""
    import functools

    import benching

    device = torch.device("cuda")

    def case(requests, seed):
        tokens, coins, target, draft = by_chance(device, requests, 128256, seed)
        outs, links = tree(device, requests)

        def ours():
            aiter_like.tree_speculative_sampling_target_only(*outs, tokens, *links, *coins, target, draft,
                                                             backend="hip")
            return outs[0]

        return benching.Case(f"{requests}", requests * 128256 * 8, {"hip": ours}, lambda got: 0.0)

    counts = (1, 8, 32)
    benching.table("verify_tree", (benching.rotating(functools.partial(case, count)) for count in counts))
