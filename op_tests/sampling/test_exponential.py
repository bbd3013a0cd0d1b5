# SPDX-License-Identifier: MIT
"""exponential: every backend against float64 and the known answer of Philox, and the statistics."""

import math

import pytest
import torch
from sampling_cases import BACKENDS, BIG

import aiter_like

WORDS = (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)  # Random123, key and counter 0


def numbers(run, backend, device, rows, columns, **options):
    out = torch.full((rows, columns + 3), math.nan, device=device)
    run(backend, aiter_like.exponential, out[:, :columns], **options)
    assert out[:, columns:].isnan().all(), "nothing beyond the row"
    return out[:, :columns].cpu()


@pytest.mark.parametrize("backend", BACKENDS)
def test_known_answer(device, run, backend):
    wanted = [-math.log1p(-(word + 0.5) / 2**32) / 2 + 0.25 for word in WORDS]
    got = numbers(run, backend, device, 1, 4, lambd=2.0, eps=0.25, seed=0)[0]
    torch.testing.assert_close(got.double(), torch.tensor(wanted, dtype=torch.float64), rtol=1e-5, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_against_the_reference(device, run, backend):
    got = numbers(run, backend, device, 3, 1003, eps=0.0, seed=-BIG, offset=2**32 - 2)
    torch.testing.assert_close(got, numbers(run, "torch", device, 3, 1003, eps=0.0, seed=-BIG, offset=2**32 - 2),
                               rtol=1e-5, atol=0)
    later = numbers(run, backend, device, 2, 1003, eps=0.0, seed=-BIG, offset=2**32 - 1)
    assert torch.equal(later, got[1:]), "row r takes draw offset + r"
    own = torch.full((2,), -BIG, device=device)
    each = numbers(run, backend, device, 2, 1003, eps=0.0, seed=own, offset=2**32 - 1)
    assert torch.equal(each[0], later[0]) and torch.equal(each[0], each[1]), "with seeds of their own all take one draw"


@pytest.mark.exhaustive
def test_statistics(device, run):
    x = numbers(run, "hip", device, 8, 4000, eps=0.0, seed=1).double()
    count = x.numel()
    assert abs(x.mean() - 1) < 5 / math.sqrt(count) and abs((x**2).mean() - 2) < 5 * math.sqrt(20 / count)
    for bound in (0.001, 0.03125, 0.7, 3.0):
        share = 1 - math.exp(-bound)
        assert abs((x < bound).double().mean() - share) < 5 * math.sqrt(share * (1 - share) / count)


def test_empty_and_bad_input(device):
    out = torch.empty(2, 8, device=device)
    aiter_like.exponential(out[:0])
    aiter_like.exponential(out[:, :0])
    for message, kind, call in (
            ("out must have 2 dimensions", ValueError, lambda: aiter_like.exponential(out[0])),
            ("lambd must be greater than 0", ValueError, lambda: aiter_like.exponential(out, 0.0))):
        with pytest.raises(kind, match=f"exponential: {message}"):
            call()


def bench() -> None:
    """Beside torch's exponential_."""
    import functools

    import benching

    device = torch.device("cuda")

    def case(rows, seed):
        out = torch.empty(rows, 128256, device=device)

        def ours():
            aiter_like.exponential(out, seed=seed, backend="hip")
            return out

        return benching.Case(f"{rows}", out.nbytes, {"hip": ours, "torch": lambda: out.exponential_(1)},
                             lambda got: float((got < 0).sum()))

    benching.table("exponential", (benching.rotating(functools.partial(case, rows)) for rows in (1, 64, 512)))
