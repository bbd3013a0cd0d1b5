# SPDX-License-Identifier: MIT
"""Every sampler in a CUDA graph: captured with some inputs, replayed with others, and no wait for the device."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from sampling_cases import logits_like, probs_like
from test_verify_chain import inputs as chain_inputs
from test_verify_tree import by_chance, tree

import aiter_like

I32 = torch.int32
ROWS = 4


class Inputs:
    """The arguments of a step of decoding, on the device, by seed."""

    def __init__(self, device: torch.device, columns: int, seed: int):
        random = torch.Generator().manual_seed(seed)
        self.logits = logits_like(device, ROWS, columns, seed=seed)
        self.probs = probs_like(device, "peaked", ROWS, columns, seed=seed)
        self.noise = torch.empty(ROWS, columns).exponential_(generator=random).to(device)
        self.ones = (torch.rand(ROWS, generator=random) + 0.5).to(device)
        self.numbers = torch.randint(1, 50, (ROWS,), generator=random).to(device)
        self.counts = self.numbers.to(I32)
        self.shares = (torch.rand(ROWS, generator=random) * 0.9).to(device)
        self.seen = torch.randint(columns, (ROWS, 7), generator=random).to(device)
        self.mask = torch.randint(-2**31, 2**31 - 1, (ROWS, (columns + 31) // 32), generator=random).to(device, I32)
        self.starts = torch.randint(columns // 2, (ROWS,), generator=random).to(device, I32)
        self.ends = self.starts + columns // 3
        self.draft, self.drafted, self.target = chain_inputs(device, ROWS, 2, min(columns, 900), seed)
        tokens, coins, target, draft = by_chance(device, ROWS, min(columns, 900), seed)
        self.tree = [tokens, *tree(device, ROWS)[1], *coins, target, draft]
        self.tokens = torch.full((ROWS,), -9, dtype=I32, device=device)
        self.picked = torch.full((ROWS, 8), -9, dtype=I32, device=device)
        self.values = torch.zeros(ROWS, 8, device=device)
        self.paths = tree(device, ROWS)[0]

    def tensors(self) -> Iterator[torch.Tensor]:
        for value in vars(self).values():
            yield from value if isinstance(value, list) else (value,)


def _written(function: Callable, out: str, *arguments: str) -> Callable[[Inputs], torch.Tensor]:
    """A call that writes its first argument."""
    def call(given: Inputs) -> torch.Tensor:
        function(getattr(given, out), *(getattr(given, name) for name in arguments), backend="hip")
        return getattr(given, out)

    return call


def _seeded(given: Inputs) -> dict:
    return {"seed": given.numbers, "offset": given.numbers + 1, "backend": "hip"}


def _greedy_path(given: Inputs) -> list[torch.Tensor]:
    tokens, places, child, sibling = given.tree[:4]
    aiter_like.verify_tree_greedy(*given.paths, tokens, places, child, sibling, tokens.flip(1), backend="hip")
    return given.paths


def _path_by_chance(given: Inputs) -> list[torch.Tensor]:
    aiter_like.tree_speculative_sampling_target_only(*given.paths, *given.tree, backend="hip")
    return [*given.paths, given.tree[-1]]


def _prefill(given: Inputs) -> list[torch.Tensor]:
    aiter_like.top_k_per_row_prefill(given.logits, given.starts, given.ends, given.picked, given.values, ROWS,
                                     *given.logits.stride(), k=8, backend="hip")
    return [given.picked, given.values]


def _decode(given: Inputs) -> torch.Tensor:
    aiter_like.top_k_per_row_decode(given.logits, 1, given.ends, given.picked, ROWS, *given.logits.stride(), k=8,
                                    backend="hip")
    return given.picked


def _random(function: Callable) -> Callable[[Inputs], torch.Tensor]:
    def call(given: Inputs) -> torch.Tensor:
        function(given.tokens, given.logits, given.ones, **_seeded(given))
        return given.tokens

    return call


def _exponential(given: Inputs) -> torch.Tensor:
    aiter_like.exponential(given.noise, **_seeded(given))
    return given.noise


FORMS: dict[str, Callable[[Inputs], torch.Tensor | list[torch.Tensor]]] = {
    "greedy_sample": _written(aiter_like.greedy_sample, "tokens", "logits"),
    "random_sample": _random(aiter_like.random_sample), "mixed_sample": _random(aiter_like.mixed_sample),
    "random_sample_outer_exponential": _written(aiter_like.random_sample_outer_exponential, "tokens", "logits", "noise",
                                                "ones"),
    "mixed_sample_outer_exponential": _written(aiter_like.mixed_sample_outer_exponential, "tokens", "logits", "noise",
                                               "ones"),
    "exponential": _exponential,
    "softmax": lambda given: aiter_like.softmax(given.logits, given.ones, backend="hip"),
    "top_k_renorm_probs": lambda given: aiter_like.top_k_renorm_probs(given.probs, given.counts, 0, backend="hip"),
    "top_p_renorm_probs": lambda given: aiter_like.top_p_renorm_probs(given.probs, given.shares, 0, backend="hip"),
    "min_p_renorm_probs": lambda given: aiter_like.min_p_renorm_probs(given.probs, given.shares, 0, backend="hip"),
    "sampling_from_probs": lambda given: aiter_like.sampling_from_probs(given.probs, **_seeded(given)),
    "top_k_sampling_from_probs": lambda given: aiter_like.top_k_sampling_from_probs(
        given.probs, None, given.counts, 0, **_seeded(given)),
    "top_p_sampling_from_probs": lambda given: aiter_like.top_p_sampling_from_probs(
        given.probs, None, given.shares, 0, **_seeded(given)),
    "min_p_sampling_from_probs": lambda given: aiter_like.min_p_sampling_from_probs(
        given.probs, None, given.shares, 0, **_seeded(given)),
    "top_k_top_p_sampling_from_probs": lambda given: aiter_like.top_k_top_p_sampling_from_probs(
        given.probs, None, given.counts, 0, given.shares, 0, **_seeded(given)),
    "topk": lambda given: list(aiter_like.topk(given.logits, 8, backend="hip")),
    "top_k_per_row_prefill": _prefill, "top_k_per_row_decode": _decode,
    "apply_penalties": _written(aiter_like.apply_penalties, "logits", "seen", "seen", "ones", "ones", "ones"),
    "apply_token_bitmask_inplace": _written(aiter_like.apply_token_bitmask_inplace, "logits", "mask"),
    "chain_speculative_sampling": lambda given: list(aiter_like.chain_speculative_sampling(
        given.draft, given.drafted, given.target, **_seeded(given))),
    "verify_tree_greedy": _greedy_path, "tree_speculative_sampling_target_only": _path_by_chance,
}


@contextmanager
def no_waiting() -> Iterator[None]:
    """Whatever makes the host wait for the device is an error."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def _copies(results: torch.Tensor | list[torch.Tensor]) -> list[torch.Tensor]:
    return [result.clone() for result in (results if isinstance(results, list) else [results])]


@pytest.mark.parametrize("columns", (300, 20001))
@pytest.mark.parametrize("name", FORMS)
def test_replayed_with_other_inputs(device, name, columns):
    if device.type != "cuda":
        pytest.skip("graphs are captured on a GPU")
    call = FORMS[name]
    wanted = _copies(call(Inputs(device, columns, 1)))
    held = Inputs(device, columns, 0)
    with no_waiting():
        call(held)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call(held)
    for _ in range(2):
        for mine, other in zip(held.tensors(), Inputs(device, columns, 1).tensors(), strict=True):
            mine.copy_(other)
        graph.replay()
        assert all(map(torch.equal, _copies(results), wanted))
