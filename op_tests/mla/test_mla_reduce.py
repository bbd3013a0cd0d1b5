# SPDX-License-Identifier: MIT
"""mla_reduce_v1: each backend against float64, with parts that nobody wrote, maps of any order; bad input."""

import functools
import math

import benching
import pytest
import torch
from mla_cases import starts_of

import aiter_like
from aiter_like.jit.triton_launch import Launcher
from aiter_like.ops.mla.mla_reduce import MlaReduceCall, mla_reduce_op
from aiter_like.ops.mla.triton.mla_reduce import mla_reduce
from aiter_like.testing import TOLERANCES, assert_within

pytestmark = pytest.mark.rotating

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
BACKENDS = ("hip", "triton", "torch")


def make(device, parts=(2, 0, 5, 1, 20), rows=2, heads=3, width=96, dtype=BF16, seed=0):
    """Tiles with so many parts, whose places lie in random order between rows that nobody may read."""
    generator = torch.Generator().manual_seed(seed)
    count = sum(parts)
    places = torch.randperm(2 * count + 1, generator=generator)[:count].to(torch.int32) * rows
    partial = torch.full((rows * (2 * count + 1), heads, width), math.nan)
    lse = torch.full(partial.shape[:2], math.nan)
    for place in places.tolist():
        partial[place:place + rows] = torch.randn(rows, heads, width, generator=generator)
        lse[place:place + rows] = torch.randn(rows, heads, generator=generator) * 4
    starts = torch.arange(len(parts), dtype=torch.int32) * rows
    out = torch.full((rows * len(parts), heads, width), 7.0, dtype=dtype)
    return {"partial_output": partial.to(device), "partial_lse": lse.to(device),
            "reduce_indptr": starts_of(list(parts)).to(device),
            "reduce_final_map": torch.stack((starts, starts + rows), 1).to(device),
            "reduce_partial_map": places.to(device), "max_seqlen_q": rows, "num_kv_splits": 0,
            "final_output": out.to(device), "final_lse": torch.full(out.shape[:2], 7.0).to(device)}


def check(run, backend, call, parts):
    run(backend, aiter_like.mla_reduce_v1, **call)
    out, lse = call["final_output"], call["final_lse"]
    partial, sums = (call[name].cpu().double().reshape(-1, out.shape[1], *([out.shape[2]] if name == "partial_output"
                                                                             else [])) for name in
                     ("partial_output", "partial_lse"))
    bounds, places = call["reduce_indptr"].tolist(), call["reduce_partial_map"].tolist()
    tolerance = TOLERANCES[out.dtype, "rtne"].unit if out.dtype != F32 else 2.0**-22
    for tile, count in enumerate(parts):
        rows = slice(tile * call["max_seqlen_q"], (tile + 1) * call["max_seqlen_q"])
        if count == 0:
            assert (out[rows] == 7).all(), "a tile without parts is somebody else's"
            continue
        own = [slice(place, place + call["max_seqlen_q"]) for place in places[bounds[tile]:bounds[tile + 1]]]
        total = torch.stack([sums[one] for one in own]).logsumexp(0)
        safe = total.masked_fill(total == -math.inf, 0.0)
        weights = [torch.exp(sums[one] - safe)[..., None] for one in own]
        terms = [torch.where(weight > 0, weight * partial[one], 0.0) for weight, one in zip(weights, own)]
        expected, scale = sum(terms), sum(term.abs() for term in terms)
        assert_within("out", out[rows], expected, tolerance * expected.abs() + 2e-6 * scale + 1e-30)
        if lse is not None:
            assert_within("lse", lse[rows], total, 4e-6 * (1 + total.abs().nan_to_num(posinf=0.0)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_sums_far_from_zero(device, run, backend):
    """Weights sum up to 1 although fp32 has no log of the number of parts beside such log-sum-exps."""
    call = make(device, (2, 5, 3))
    call["partial_lse"] -= 1e9
    check(run, backend, call, (2, 5, 3))


@pytest.mark.parametrize("dtype, width, heads", ((BF16, 96, 3), (F16, 512, 1), (F32, 33, 5)), ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_sums(device, run, backend, dtype, width, heads):
    parts = (2, 0, 5, 1, 20)
    call = make(device, parts, heads=heads, width=width, dtype=dtype)
    check(run, backend, call, parts)
    first = call["final_output"].clone()
    run(backend, aiter_like.mla_reduce_v1, **call)
    assert torch.equal(first, call["final_output"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_parts_without_keys(device, run, backend):
    """A log-sum-exp of −inf: the part's memory may hold anything; rows of nothing else are 0."""
    parts = (3, 9)
    call = make(device, parts)
    for nth, place in enumerate(call["reduce_partial_map"].tolist()):
        if nth < 3 or nth % 2:
            call["partial_lse"][place:place + 2] = -math.inf
            call["partial_output"][place:place + 2] = math.nan
    check(run, backend, call, parts)
    assert (call["final_output"][:2] == 0).all() and (call["final_lse"][:2] == -math.inf).all()


@pytest.mark.parametrize("params", ({"HEADS": 1, "TOGETHER": 32, "num_warps": 8}, {"HEADS": 4, "TOGETHER": 2},
                                    {"HEADS": 8, "TOGETHER": 4}), ids=str)
def test_programs(device, params):
    """What backend "triton" and its tuner choose: some heads of a program, the last of which are not there."""
    def run(_, function, **fields):
        names = ("final_output", "final_lse", "partial_output", "partial_lse", "reduce_indptr", "reduce_final_map",
                 "reduce_partial_map", "max_seqlen_q")
        Launcher(functools.partial(mla_reduce, **params))(MlaReduceCall(*(fields[name] for name in names)))

    for heads in (3, 13):
        parts = (2, 0, 5, 1, 40)
        check(run, "triton", make(device, parts, heads=heads, width=160), parts)


@pytest.mark.parametrize("backend", BACKENDS)
def test_forms(device, run, backend):
    """AITER's dimensions of 1; no map of rows; no log-sum-exp; heads and rows apart."""
    parts = (2, 3)
    call = make(device, parts)
    call["reduce_final_map"] = None
    call["partial_output"] = call["partial_output"].unsqueeze(1)
    call["partial_lse"] = call["partial_lse"].unsqueeze(1).unsqueeze(-1)
    wide = torch.full((4, 5, 100), 7.0, dtype=BF16, device=device)
    call |= {"final_output": wide[:, 1:4, :96], "final_lse": None}
    check(run, backend, call, parts)
    assert (wide[:, 0] == 7).all() and (wide[:, 4] == 7).all() and (wide[..., 96:] == 7).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_whatever_maps_hold(device, run, backend):
    """Nothing outside the tensors is touched: the bounds checker would tell."""
    if device.type == "cuda" and backend == "torch":
        pytest.skip("torch ends the process over such indices")
    run(backend, aiter_like.mla_reduce_v1, **make(device, (2, 3)))
    big = 2**31 - 1
    for value in (-1, -big, big, 10**6):
        for name in ("reduce_indptr", "reduce_final_map", "reduce_partial_map"):
            call = make(device, (2, 3))
            call[name][1:] = value
            fields = [call[each] for each in ("final_output", "final_lse", "partial_output", "partial_lse",
                                              "reduce_indptr", "reduce_final_map", "reduce_partial_map")]
            mla_reduce_op.run(*fields, max_seqlen_q=2, backend=backend)  # the public function looks at the maps


def test_bad_input(device):
    call = make(device)
    for message, kind, changes in (
            ("partial_output must have shape", ValueError, {"partial_output": call["partial_output"][..., :5]}),
            ("reduce_final_map must have shape", ValueError, {"reduce_final_map": call["reduce_final_map"][:2]}),
            ("max_seqlen_q must be between", ValueError, {"max_seqlen_q": -1})):
        with pytest.raises(kind, match=message):
            aiter_like.mla_reduce_v1(**{**call, **changes})
    assert (call["final_output"] == 7).all()


def bench() -> None:
    """The sums of decoding, 512 columns."""
    benching.of("mla_reduce", "tiles parts num_heads", ((1, 64, 128), (16, 128, 128), (8, 128, 16), (64, 256, 128)),
                beside=benching.alone, seqlen_q=1, head_dim_v=512, dtype="bf16")
