# SPDX-License-Identifier: MIT
"""renorm_probs: top-k, top-p and min-p against sorting in float64, on every backend."""

import functools
import math

import pytest
import torch
from sampling_cases import BACKENDS, kept64, probs_like

import aiter_like

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
ROUNDING = {BF16: 2**-8, F16: 2**-11, F32: 2**-22}
FUNCTIONS = {"top_k": aiter_like.top_k_renorm_probs, "top_p": aiter_like.top_p_renorm_probs,
             "min_p": aiter_like.min_p_renorm_probs}


def check(got, probs, **limits):
    """Kept is what float64 keeps, where the sum is not within 2^-18 of p; each is its share of what is kept."""
    got, clean = got.cpu().double(), torch.where(probs > 0, probs, 0.0).cpu().double()
    kept = got > 0
    most, least = kept64(probs, **limits, slack=2**-18), kept64(probs, **limits, slack=-(2**-18))
    assert not (kept & ~most).any() and not (least & ~kept & (clean > 2**-24)).any()
    wanted = torch.where(kept, clean, 0.0)
    wanted /= wanted.sum(-1, keepdim=True).clamp(min=1e-300)
    smallest = 2**-25 if probs.dtype == F16 else 1e-12
    torch.testing.assert_close(got, wanted, rtol=2 * ROUNDING[probs.dtype], atol=smallest)


@pytest.mark.parametrize("name, limit", (("top_k", [1, 50, 4999]), ("top_p", [0.05, 0.5, 0.999]),
                                         ("min_p", [1.0, 0.1, 1e-4])))
@pytest.mark.parametrize("kind, columns", (("peaked", 5003), ("peaked", 9001), ("flat", 5000), ("flat", 9000)))
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_sorting(device, run, backend, kind, columns, name, limit):
    probs = probs_like(device, kind, 3, columns)
    numbers = torch.tensor(limit, device=device)
    check(run(backend, FUNCTIONS[name], probs, numbers, 0), probs, **{name: limit})
    check(run(backend, FUNCTIONS[name], probs, None, limit[1]), probs, **{name: limit[1:2] * 3})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_bins_with_several_elements(device, run, name):
    """Many rows of close probabilities: a few of them share 21 bits, and the cut is among these."""
    probs = probs_like(device, "flat", 100, 300, seed=6)
    probs[:, ::3] *= 1 + 2**-13 * torch.rand(probs[:, ::3].shape, generator=torch.Generator().manual_seed(1)).to(device)
    limit = {"top_k": 60, "top_p": 0.25, "min_p": 0.97}[name]
    check(run("hip", FUNCTIONS[name], probs, None, limit), probs, **{name: [limit] * 100})


@pytest.mark.parametrize("dtype", (BF16, F16), ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_types_and_strides(device, run, backend, dtype):
    probs = probs_like(device, "peaked", 3, 1003, dtype, seed=1)
    padded = torch.full((3, 1010), math.nan, dtype=dtype, device=device)
    padded[:, :1003] = probs
    for name, limit in (("top_k", 20), ("top_p", 0.75), ("min_p", 0.02)):
        out = torch.full_like(padded, math.nan)
        got = run(backend, FUNCTIONS[name], padded[:, :1003], None, limit, out=out[:, :1003])
        assert out[:, 1003:].isnan().all() and got.data_ptr() == out.data_ptr()
        check(got, probs, **{name: [limit] * 3})


@pytest.mark.parametrize("columns", (1, 7, 8200))
@pytest.mark.parametrize("backend", BACKENDS)
def test_edges(device, run, backend, columns):
    """Limits that keep all or only the largest, ties, zeros, NaN and negative numbers."""
    probs = probs_like(device, "peaked", 4, columns, seed=2)
    whole = probs.cpu().double() / probs.cpu().double().sum(-1, keepdim=True)
    for name, limits in (("top_k", (0, -3, columns, columns + 9)), ("top_p", (1.0, 2.0, 1.0, 1.0)),
                         ("min_p", (0.0, -1.0, 0.0, 0.0))):
        got = run(backend, FUNCTIONS[name], probs, torch.tensor(limits, device=device), 0)
        torch.testing.assert_close(got.cpu().double(), whole, rtol=2**-21, atol=0)
    for name, limit in (("top_k", 1), ("top_p", 0.0), ("top_p", -1.0), ("min_p", 1.0), ("min_p", 7.0)):
        got = run(backend, FUNCTIONS[name], probs, None, limit).cpu()
        assert torch.equal(got.argmax(-1), probs.cpu().argmax(-1)) and (got.sum(-1) - 1).abs().max() < 1e-6
        assert ((got > 0).sum(-1) == 1).all()
    equal = probs_like(device, "equal", 2, columns)
    for name, limit in (("top_k", 1), ("top_p", 0.3), ("min_p", 0.9)):
        torch.testing.assert_close(run(backend, FUNCTIONS[name], equal, None, limit), equal, rtol=2**-21, atol=0)
    odd = torch.zeros(4, max(columns, 7), device=device)
    odd[1, 2], odd[1, 3], odd[1, 5] = math.nan, 0.75, 0.25
    odd[2, 0], odd[2, 6], odd[2, 4] = -3.0, 0.5, 0.5
    odd[3] = math.nan
    got = run(backend, FUNCTIONS["top_k"], odd, None, 2).cpu()
    assert got[0].eq(0).all() and got[3].eq(0).all()
    assert got[1, [3, 5]].tolist() == [0.75, 0.25] and got[2, [6, 4]].tolist() == [0.5, 0.5]
    assert got.sum().item() == 2


def test_results_do_not_depend_on_the_grid(device, run):
    """Rows that are cut into slices, and the same ones among so many that a workgroup takes each."""
    probs = probs_like(device, "peaked", 1, 8209, seed=3)
    for name, limit in (("top_k", 77), ("top_p", 0.9), ("min_p", 0.01)):
        few = run("hip", FUNCTIONS[name], probs, None, limit)
        many = run("hip", FUNCTIONS[name], probs.expand(153, -1) if device.type == "cpu" else probs.expand(300, -1),
                   None, limit)
        assert torch.equal(few.expand(many.shape[0], -1), many)


@pytest.mark.parametrize("backend", BACKENDS)
def test_in_place(device, run, backend):
    probs = probs_like(device, "peaked", 2, 8200, seed=4)
    for name, limit in (("top_k", 9), ("top_p", 0.5)):
        x = probs.clone()
        assert run(backend, FUNCTIONS[name], x, None, limit, out=x) is x
        assert torch.equal(x, run(backend, FUNCTIONS[name], probs, None, limit))


def test_empty_and_bad_input(device):
    probs = probs_like(device, "peaked", 2, 64)
    assert aiter_like.top_k_renorm_probs(probs[:0], None, 3).shape == (0, 64)
    with pytest.raises(ValueError, match="must be finite"):
        aiter_like.top_p_renorm_probs(probs, None, math.nan)


def bench() -> None:
    """Beside torch.topk, and FlashInfer where it can be imported; V = 128256."""
    import benching

    device = torch.device("cuda")
    try:
        import flashinfer.sampling as peer
    except ImportError:
        peer = None

    def case(rows, name, limit, seed):
        random = torch.Generator(device).manual_seed(seed)
        probs = torch.softmax(3 * torch.randn(rows, 128256, device=device, generator=random), -1)
        calls = {"hip": lambda: FUNCTIONS[name](probs, None, limit, backend="hip")}
        if name == "top_k":
            def stock():
                kept = torch.where(probs >= probs.topk(limit).values[:, -1:], probs, 0.0)
                return kept / kept.sum(-1, keepdim=True)

            calls["torch.topk"] = stock
        other = getattr(peer, f"{name}_renorm_probs", None)
        if other is not None:
            calls["flashinfer"] = lambda: other(probs, limit)

        def verify(got):
            if got is not None and got.shape[0] <= 16:
                check(got, probs, **{name: [limit] * rows})
            return 0.0

        return benching.Case(f"{name} {rows}", 2 * probs.nbytes, calls, verify)

    for name, limit in (("top_k", 50), ("top_p", 0.9), ("min_p", 0.1)):
        benching.table(f"{name}_renorm_probs", (benching.rotating(functools.partial(case, rows, name, limit))
                                                for rows in (1, 16, 64, 128, 512)))
