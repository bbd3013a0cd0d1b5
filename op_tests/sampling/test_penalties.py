# SPDX-License-Identifier: MIT
"""penalties: every backend against the formula in Python's floats."""

import math
from collections import Counter

import pytest
import torch
from sampling_cases import BACKENDS, DTYPES, logits_like

import aiter_like

ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-22}


def exact(x, prompt, output, presence, frequency, repetition):
    """Row by row, token by token."""
    y = x.cpu().double()
    for r in range(y.shape[0]):
        counts = Counter(token for token in output[r].tolist() if 0 <= token < y.shape[1])
        seen = set(counts) | {token for token in prompt[r].tolist() if 0 <= token < y.shape[1]}
        for token in seen:
            value = y[r, token].item()
            value = value / repetition[r].item() if value > 0 else value * repetition[r].item()
            if token in counts:
                value -= frequency[r].item() * counts[token] + presence[r].item()
            y[r, token] = value
    return y


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns, kinds", ((33, (torch.int32, torch.int64)), (16500, (torch.int64, torch.int32))))
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_python(device, run, backend, dtype, columns, kinds):
    random = torch.Generator().manual_seed(columns)
    x = logits_like(device, 4, columns, dtype, stride=columns + 7)
    x[0, 3], x[1, 4] = -math.inf, 0.0
    prompt = torch.randint(-2, columns + 3, (4, 61), generator=random).to(kinds[0])
    output = torch.randint(0, 40, (4, 500), generator=random).to(kinds[1])
    output[:, 400:] = columns  # padding
    numbers = [torch.tensor(each) for each in ([0.0, 0.7, -0.4, 2.0], [0.0, 0.3, 0.1, -0.2], [1.0, 1.2, 0.7, 1.0])]
    wanted = exact(x, prompt, output, *numbers)
    got = run(backend, aiter_like.apply_penalties, x, prompt.to(device), output.to(device),
              *(number.to(device) for number in numbers))
    assert got is x
    torch.testing.assert_close(x.cpu().double(), wanted, rtol=2 * ROUNDING[dtype], atol=1e-5)
    rest = torch.as_strided(x, (3, 7), (columns + 7, 1), x.storage_offset() + columns)
    assert rest.isnan().all(), "nothing between the rows"


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_tokens(device, run, backend):
    x = logits_like(device, 2, 100)
    before, ones = x.clone(), torch.ones(2, device=device)
    run(backend, aiter_like.apply_penalties, x, None, torch.empty(2, 0, dtype=torch.int64, device=device), ones, ones,
        2 * ones)
    assert torch.equal(x, before)
    prompt = torch.tensor([[5], [100]], device=device)
    run(backend, aiter_like.apply_penalties, x, prompt, None, ones, ones, 2 * ones)
    assert (x != before).nonzero().tolist() == [[0, 5]]


def test_empty_and_bad_input(device):
    x, ones, tokens = logits_like(device, 2, 64), torch.ones(2, device=device), torch.zeros(2, 3).long().to(device)
    aiter_like.apply_penalties(x[:0], None, None, ones[:0], ones[:0], ones[:0])
    for message, kind, args in (
            ("output_tokens must have shape", ValueError, (x, None, tokens[:1], ones, ones, ones)),
            ("repetition_penalties must have shape", ValueError, (x, None, tokens, ones, ones, ones[:1]))):
        with pytest.raises(kind, match=message):
            aiter_like.apply_penalties(*args)


def bench() -> None:
    """Beside counts in torch; V = 128256, 1000 tokens each."""
    import functools

    import benching

    device = torch.device("cuda")

    def case(rows, seed):
        x = torch.randn(rows, 128256, device=device)
        tokens = torch.randint(0, 128256, (2, rows, 1000), device=device)
        ones = torch.ones(rows, device=device)
        calls = benching.by_backend(aiter_like.apply_penalties, x, *tokens, ones, ones, ones)
        return benching.Case(f"{rows}", rows * 2000 * 16, calls, lambda got: 0.0)

    benching.table("penalties", (benching.rotating(functools.partial(case, rows)) for rows in (1, 16, 128, 512)))
