# SPDX-License-Identifier: MIT
"""sampling_from_probs: what is drawn under top-k, top-p and min-p, by chi-square, and by the same draw in torch."""

import functools
import math

import pytest
import torch
from sampling_cases import BACKENDS, BIG, assert_distribution, kept64, probs_like

import aiter_like
from aiter_like.dispatch import OPS
from aiter_like.dispatch.backend import Candidate
from aiter_like.tuning import harness

BF16, F32 = torch.bfloat16, torch.float32
DRAWS = 1200
# name → the function, its limits, and the positional arguments that say them.
FORMS = {
    "all": (aiter_like.sampling_from_probs, {}, ()),
    "top_k": (aiter_like.top_k_sampling_from_probs, {"top_k": 5}, (None, 5)),
    "top_p": (aiter_like.top_p_sampling_from_probs, {"top_p": 0.8}, (None, 0.8)),
    "min_p": (aiter_like.min_p_sampling_from_probs, {"min_p": 0.1}, (None, 0.1)),
    "top_k_top_p": (aiter_like.top_k_top_p_sampling_from_probs, {"top_k": 8, "top_p": 0.7}, (None, 8, None, 0.7)),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", FORMS)
def test_distribution(device, run, form):
    """Draws from one row, which a workgroup takes whole; its exact probabilities are those kept, over their sum."""
    function, limits, args = FORMS[form]
    probs = probs_like(device, "peaked", 1, 37, seed=5)
    probs[0, 3], probs[0, 4] = 0.0, math.nan
    kept = kept64(probs, **{name: [limit] for name, limit in limits.items()})
    exact = torch.where(kept, probs.cpu().double(), 0.0)[0]
    got = run("hip", function, probs.expand(DRAWS, -1), None, *args, seed=BIG, offset=9)
    assert_distribution(got, exact / exact.sum())


@pytest.mark.exhaustive
def test_distribution_of_slices(device, run):
    """A row that is cut into slices, its mass in a few columns of each."""
    probs = torch.full((1, 8200), 1e-7, device=device)
    probs[0, ::500] = torch.linspace(0.01, 0.1, 17, device=device)
    probs /= probs.sum()
    count = 300
    got = torch.cat([run("hip", aiter_like.top_p_sampling_from_probs, probs.expand(100, -1), None, None, 0.9, seed=draw)
                     for draw in range(count // 100)])
    exact = torch.where(kept64(probs, top_p=[0.9]), probs.cpu().double(), 0.0)[0]
    assert_distribution(got, exact / exact.sum())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("columns", (129, 8200))
def test_the_draw_of_the_reference(device, run, form, columns):
    """The same tokens as torch draws, for each row's own limits, seeds and draws, in any place."""
    function, limits, _ = FORMS[form]
    probs = probs_like(device, "peaked", 5, columns, seed=6)
    scales = torch.tensor([1.0, 0.5, 0.0, 2.0, 0.1], device=device)
    args = []
    for name, limit in limits.items():
        numbers = scales * limit
        args += [numbers.long() if name == "top_k" else numbers, 0]
    seeds, draws = torch.tensor([5, -7, BIG, 5, 0], device=device), torch.tensor([0, 1, 2**40, 1, 7], device=device)
    got = run("hip", function, probs, None, *args, seed=seeds, offset=draws)
    assert torch.equal(got, run("torch", function, probs, None, *args, seed=seeds, offset=draws))
    order = torch.tensor([3, 0, 4, 1, 2], device=device)
    args = [arg[order] if isinstance(arg, torch.Tensor) else arg for arg in args]
    moved = run("hip", function, probs, order.int(), *args, seed=seeds[order], offset=draws[order])
    assert torch.equal(moved, got[order])


def test_results_do_not_depend_on_the_grid(device, run):
    probs = probs_like(device, "peaked", 1, 8209, seed=3)
    seeds = torch.arange(153, device=device)
    for form in ("all", "top_k_top_p", "min_p"):
        function, _, args = FORMS[form]
        many = run("hip", function, probs.expand(153, -1), None, *args, seed=seeds)
        assert torch.equal(many[:4], run("hip", function, probs.expand(4, -1), None, *args, seed=seeds[:4]))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("groups", (1, 2, 4, 8))
def test_workgroups_of_a_row(device, form, groups):
    """Tokens of as many workgroups as a tuned row may ask for, in slices or a cluster: of rows whose masses are in all
    chunks, in few columns, in none, and in more elements than any list holds.
    """
    columns = 16413
    probs = torch.cat((probs_like(device, "peaked", 3, columns, seed=4), probs_like(device, "flat", 2, columns, seed=4),
                       probs_like(device, "equal", 1, columns), torch.zeros(4, columns, device=device)))
    probs[6, 4099], probs[6, 16412], probs[7, 8208] = 0.5, 0.5, 1e-30
    probs[8, 1], probs[9] = -1.0, math.nan
    assert_draw(device, groups, probs, FORMS[form][1])


@pytest.mark.parametrize("form", ("all", "top_p"))
@pytest.mark.parametrize("groups", (1, 32))
def test_long_rows(device, form, groups):
    """Chunks of which waves have several turns."""
    probs = torch.stack((probs_like(device, "peaked", 1, 2**20 + 5)[0], probs_like(device, "equal", 1, 2**20 + 5)[0]))
    assert_draw(device, groups, probs, FORMS[form][1])


def assert_draw(device, groups, probs, limits):
    """Tokens of `groups` workgroups for each row are those of the reference."""
    op = OPS["sampling_from_probs"]
    call = op.call(torch.empty(len(probs), dtype=torch.int32, device=device), probs, seed=BIG, offset=3, **limits)
    (hip,) = (backend for backend in op.backends if backend.name == "hip")
    place = harness.sim(0) if device.type == "cpu" else harness.gpu(device.index)
    place.guarded(op, hip.bind(place.target, tuple(call), Candidate(hip, "", {"groups": groups}, "test")))(*call)
    wanted = torch.empty_like(call.out)
    op(call._replace(out=wanted), backend="torch")
    assert torch.equal(call.out, wanted)


@pytest.mark.parametrize("columns", (4097, 300001))
def test_where_the_sum_passes(device, run, columns):
    """Each of a few elements of equal mass, at the ends of what lanes and waves sum, for its share of the numbers."""
    places = [column for column in (0, 1, 255, 256, 1023, 1024, 2047, 4095, 4096, columns - 1) if column < columns]
    probs = torch.zeros(1, columns + 3, device=device)[:, 3:]  # which no access of 16 bytes begins with
    probs[0, places] = 0.1
    seeds = torch.arange(60, device=device)
    got = run("hip", aiter_like.sampling_from_probs, probs.expand(60, -1), seed=seeds)
    assert torch.equal(got, run("torch", aiter_like.sampling_from_probs, probs.expand(60, -1), seed=seeds))
    assert set(got.tolist()) == set(places)


@pytest.mark.parametrize("columns", (20, 8200))
@pytest.mark.parametrize("backend", BACKENDS)
def test_special_rows(device, run, backend, columns):
    """Nothing to draw gives column 0; NaN and negative numbers are never drawn; a row that is none gives -1."""
    probs = torch.zeros(6, columns, device=device)
    probs[1] = math.nan
    probs[2, 11], probs[2, 12] = math.nan, 0.5
    probs[3] = -1.0
    probs[3, columns - 1] = 1e-30
    probs[4, 4] = math.inf
    probs[5, 9] = 1.0
    for form, (function, _, args) in FORMS.items():
        got = run(backend, function, probs, None, *args, seed=1).tolist()
        assert got == [0, 0, 12, columns - 1, 4, 9], (form, got)
    rows = torch.tensor([5, -1, 2, 6, 5, 2**31 - 1], dtype=torch.int32, device=device)
    for form in ("all", "top_k_top_p"):
        function, _, args = FORMS[form]
        assert run(backend, function, probs, rows, *args, seed=1).tolist() == [9, -1, 12, -1, 9, -1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_half_types_and_strides(device, run, backend):
    probs = probs_like(device, "peaked", 4, 1001, BF16, seed=8)
    padded = torch.full((4, 1009), 7.0, dtype=BF16, device=device)
    padded[:, :1001] = probs
    joint = aiter_like.top_k_top_p_sampling_from_probs
    got = run(backend, joint, padded[:, :1001], None, None, 30, None, 0.9, seed=2)
    assert torch.equal(got, run("torch", joint, probs, None, None, 30, None, 0.9, seed=2))
    with_min_p = run(backend, joint, probs, None, None, 30, None, 0.9, min_p=1.0, seed=2)
    assert torch.equal(probs.gather(1, with_min_p.long()[:, None])[:, 0], probs.amax(-1))


def test_generator_moves_on(device):
    probs = probs_like(device, "peaked", 8, 500, seed=9)
    torch.manual_seed(5)
    first, second = (aiter_like.sampling_from_probs(probs) for _ in range(2))
    torch.manual_seed(5)
    assert torch.equal(first, aiter_like.sampling_from_probs(probs)) and not torch.equal(first, second)


def test_empty_and_bad_input(device):
    probs = probs_like(device, "peaked", 2, 64)
    sample, joint = aiter_like.sampling_from_probs, aiter_like.top_k_top_p_sampling_from_probs
    assert sample(probs[:0]).shape == (0,)
    assert sample(probs, torch.empty(0, dtype=torch.int32, device=device)).shape == (0,)
    for message, kind, call in (
            ("probs must have 2 dimensions", ValueError, lambda: sample(probs[0])),
            ("probs must have a row", ValueError,
             lambda: sample(probs[:0], torch.zeros(2, dtype=torch.int32, device=device))),
            ("must have shape", ValueError, lambda: joint(probs, None, None, 5, probs[0], 0.5)),
            ("min_p must have shape", ValueError, lambda: joint(probs, None, None, 5, None, 0.5, min_p=probs[0])),
            ("seed must have shape", ValueError, lambda: sample(probs, seed=torch.zeros(3).long().to(device)))):
        with pytest.raises(kind, match=message):
            call()


def bench() -> None:
    """Beside FlashInfer where it can be imported; V = 128256."""
    import benching

    device = torch.device("cuda")
    try:
        import flashinfer.sampling as peer
    except ImportError:
        peer = None
    limits = {"all": ((), ()), "top_k": ((None, 50), (50,)), "top_p": ((None, 0.9), (0.9,)),
              "min_p": ((None, 0.1), (0.1,)), "top_k_top_p": ((None, 50, None, 0.9), (50, 0.9))}

    def case(rows, form, seed):
        random = torch.Generator(device).manual_seed(seed)
        probs = torch.softmax(3 * torch.randn(rows, 128256, device=device, generator=random), -1)
        ours, theirs = limits[form]
        calls = {"hip": lambda: FORMS[form][0](probs, None, *ours, seed=seed, backend="hip")}
        other = getattr(peer, FORMS[form][0].__name__, None)
        if other is not None:
            more = {"filter_apply_order": "joint"} if form == "top_k_top_p" else {}
            calls["flashinfer"] = lambda: other(probs, *theirs, **more)
        return benching.Case(f"{form} {rows}", probs.nbytes, calls,
                             lambda got: float(((got < 0) | (got >= probs.shape[1])).sum()))

    for form in limits:
        benching.table(FORMS[form][0].__name__, (benching.rotating(functools.partial(case, rows, form))
                                                 for rows in (1, 16, 64, 128, 512)))
