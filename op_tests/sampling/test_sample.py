# SPDX-License-Identifier: MIT
"""sample: greedy, random and mixed, every backend against float64, and the distribution of what is drawn."""

import math

import pytest
import torch
from sampling_cases import BACKENDS, BIG, DTYPES, assert_distribution, logits_like

import aiter_like


def greedy(run, backend, x):
    out = torch.full(x.shape[:1], -7, dtype=torch.int32, device=x.device)
    run(backend, aiter_like.greedy_sample, out, x)
    return out.cpu()


def drawn(run, backend, x, temperatures, function=aiter_like.random_sample, **options):
    out = torch.full(x.shape[:1], -7, dtype=torch.int32, device=x.device)
    run(backend, function, out, x, temperatures, **options)
    return out.cpu()


@pytest.mark.parametrize("columns, stride", ((1, None), (127, 131), (256, None), (20001, 20011)))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_greedy(device, run, backend, dtype, columns, stride):
    x = logits_like(device, 3, columns, dtype, stride=stride)
    assert torch.equal(greedy(run, backend, x), x.cpu().double().argmax(-1).int())


@pytest.mark.parametrize("backend", BACKENDS)
def test_greedy_of_ties_and_special_values(device, run, backend):
    inf, nan = math.inf, math.nan
    x = torch.full((7, 20000), -inf)
    x[1, [7, 9000, 19999]] = 3.0
    x[2, 4] = nan
    x[2, 15000] = -5.0
    x[3] = nan
    x[4, [5, 18000]] = inf
    x[5, 19999] = -1e38
    x[6, :] = -0.0
    x[6, 11000] = 0.0
    assert greedy(run, backend, x.to(device)).tolist() == [0, 7, 15000, 0, 5, 19999, 0]


@pytest.mark.parametrize("columns", (101, 20001))
@pytest.mark.parametrize("backend", BACKENDS)
def test_given_exponentials(device, run, backend, columns):
    """argmax of softmax(x / T) / (E + eps) in float64; temperature 0 is greedy in the mixed form."""
    x = logits_like(device, 4, columns, torch.bfloat16, seed=1, stride=columns + 3)
    noise = torch.empty(4, columns).exponential_(generator=torch.Generator().manual_seed(5)).to(device)
    temperatures = torch.tensor([1.0, 0.0, 0.25, 3.0], device=device)
    scaled = x.cpu().double() / temperatures.cpu().double().clamp(min=1e-5)[:, None]
    wanted = (torch.softmax(scaled, -1) / (noise.cpu().double() + 1e-6)).argmax(-1).int()
    wanted[1] = x[1].cpu().double().argmax()
    out = torch.empty(4, dtype=torch.int32, device=device)
    run(backend, aiter_like.mixed_sample_outer_exponential, out, x, noise, temperatures, 1e-6)
    assert torch.equal(out.cpu(), wanted)
    run(backend, aiter_like.random_sample_outer_exponential, out, x, noise, temperatures, 1e-6)
    assert torch.equal(out.cpu(), wanted), "a temperature of 1e-5 finds the largest logit too"
    run(backend, aiter_like.random_sample_outer_exponential, out, x, noise[:1].expand(4, -1), temperatures, 1e-6)
    again = (torch.softmax(scaled, -1) / (noise[:1].cpu().double() + 1e-6)).argmax(-1).int()
    assert out.cpu()[0] == again[0] and out.cpu()[3] == again[3]


@pytest.mark.parametrize("columns", (101, 20001))
@pytest.mark.parametrize("backend", BACKENDS)
def test_extreme_temperatures(device, run, backend, columns):
    """NaN gives column 0, as a row of NaNs does; an infinite one chances that are equal, none to -inf; negative ones
    are not 0: the largest logit wins their race.
    """
    x = logits_like(device, 5, columns, seed=6)
    x[:2, ::2], x[:, 0] = -math.inf, -math.inf
    noise = torch.empty(5, columns).exponential_(generator=torch.Generator().manual_seed(7)).to(device)
    noise[:, :20] *= 0.1
    noise[0, 2] = 1e-9
    temperatures = torch.tensor([math.inf, 3e38, math.nan, -math.inf, -1.0], device=device)
    wanted = torch.where(x > -math.inf, noise, math.inf).argmin(-1).cpu().int()
    wanted[2], wanted[3:] = 0, x[3:].argmax(-1).cpu()
    for function in (aiter_like.mixed_sample, aiter_like.random_sample):
        outer = getattr(aiter_like, f"{function.__name__}_outer_exponential")
        out = torch.empty(5, dtype=torch.int32, device=device)
        run(backend, outer, out, x, noise, temperatures)
        assert torch.equal(out.cpu(), wanted)
        made = drawn(run, backend, x, temperatures, function, seed=8)
        assert made[2:].tolist() == wanted[2:].tolist() and (x.cpu()[range(2), made[:2].long()] > -math.inf).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_own_exponentials_are_those_of_exponential(device, run, backend):
    x = logits_like(device, 3, 1003, torch.float16, seed=2)
    temperatures = torch.tensor([0.7, 1.0, 1.3], device=device)
    noise = torch.empty(3, 1003, device=device)
    aiter_like.exponential(noise, 2.0, eps=0.0, seed=BIG, offset=2**32 - 2, backend=backend)
    out = torch.empty(3, dtype=torch.int32, device=device)
    run(backend, aiter_like.random_sample_outer_exponential, out, x, noise, temperatures, 1e-5)
    made = drawn(run, backend, x, temperatures, lambd=2.0, eps=1e-5, seed=BIG, offset=2**32 - 2)
    assert torch.equal(made, out.cpu())


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_distribution(device, run, dtype):
    """A row of 40 logits, 3000 draws, at two temperatures in turn; -inf and NaN are never drawn."""
    x = logits_like(device, 1, 41, dtype, seed=3)
    x[0, 5], x[0, 7] = -math.inf, math.nan
    rows = x.expand(3000, -1)
    temperatures = torch.tensor([0.5, 1.5], device=device).repeat(1500)
    out = drawn(run, "hip", rows, temperatures, seed=11)
    for first, temperature in ((0, 0.5), (1, 1.5)):
        clean = torch.where(x.isnan(), -math.inf, x)[0].cpu().double()
        assert_distribution(out[first::2], torch.softmax(clean / temperature, -1))


@pytest.mark.parametrize("backend", BACKENDS)
def test_seeds(device, run, backend):
    """A token is a function of the row's seed and draw, not of its place; the same on every backend."""
    x = logits_like(device, 1, 5000, seed=4).expand(6, -1)
    ones = torch.ones(6, device=device)
    seeds, draws = torch.tensor([3, -9, 3, BIG, 3, -9]), torch.tensor([0, 5, 0, 1, 1, 5])
    out = drawn(run, backend, x, ones, seed=seeds.to(device), offset=draws.to(device))
    assert out[0] == out[2] and out[1] == out[5] and out[0] != out[4], out
    assert torch.equal(out, drawn(run, "torch", x, ones, seed=seeds.to(device), offset=draws.to(device)))
    turn = torch.tensor([4, 0, 1, 3, 5, 2])
    moved = drawn(run, backend, x, ones, seed=seeds[turn].to(device), offset=draws[turn].to(device))
    assert torch.equal(moved, out[turn])
    one = drawn(run, backend, x, ones, seed=3, offset=8)
    each = drawn(run, backend, x, ones, seed=torch.full((6,), 3, device=device), offset=torch.arange(8, 14).to(device))
    assert torch.equal(one, each), "draws of one seed follow the rows"


def test_generators(device):
    x, ones = logits_like(device, 4, 1000, seed=5), torch.ones(4, device=device)

    def both(generator):
        outs = [torch.empty(4, dtype=torch.int32, device=device) for _ in range(2)]
        for out in outs:
            aiter_like.mixed_sample(out, x, ones, generator=generator)
        return outs

    first, second = both(torch.Generator(device).manual_seed(1))
    assert torch.equal(first, both(torch.Generator(device).manual_seed(1))[0]) and not torch.equal(first, second)


def test_bad_input(device):
    x, out, ones = logits_like(device, 2, 64), torch.empty(2, dtype=torch.int32, device=device), torch.ones(2)
    ones = ones.to(device)
    aiter_like.greedy_sample(out[:0], x[:0])
    for message, kind, call in (
            ("input must have at least one column", ValueError, lambda: aiter_like.greedy_sample(out, x[:, :0])),
            ("lambd must be greater than 0", ValueError, lambda: aiter_like.random_sample(out, x, ones, lambd=0.0)),
            ("offset must not be given", ValueError, lambda: aiter_like.random_sample(out, x, ones, offset=1))):
        with pytest.raises(kind, match=message):
            call()


def bench() -> None:
    """Beside torch; V = 128256."""
    import benching

    def stock(call):
        def drawn():
            probs = torch.softmax(call.input.float() / call.temperatures[:, None], -1)
            return (probs / torch.empty_like(probs).exponential_(1)).argmax(-1)

        return {"softmax, exponential_": drawn}

    for features, beside in (("none", None), ("made", stock)):
        benching.of("sample", "rows", ((1,), (16,), (64,), (128,), (512,)), beside=beside, columns=128256, dtype="bf16",
                    features=features)
