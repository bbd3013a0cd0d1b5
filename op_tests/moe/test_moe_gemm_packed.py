# SPDX-License-Identifier: MIT
"""moe_gemm with weights of 8 and 4 bits by its kernel for few rows (backend "hip", gfx942), against float64."""

from __future__ import annotations

import pytest
import torch
from experts import UNTOUCHED, random_call, sorted_order
from test_moe_gemm_skinny import multiply, pairs, sort  # noqa: F401  (multiply is a fixture)

from aiter_like import sim
from aiter_like.dispatch import OPS
from aiter_like.errors import UnsupportedError

pytestmark = pytest.mark.rotating

FORMATS = ("int8 weights", "int4 weights", "mxfp4 weights")
PAIRS = (0, 3, -1, 2, 4, 1)


@pytest.fixture(autouse=True)
def _has_mfma(device):
    if device.type == "cuda" and torch.version.cuda:
        pytest.skip("an MFMA kernel, which no NVIDIA GPU runs")


def by_rows(form: str) -> dict[str, int]:
    """The group size of the forms that this kernel takes."""
    return {"group_size": 32 if form == "mxfp4 weights" else 0}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("k", (64, 1120, 3072))
def test_pairs(device, multiply, form, k):  # noqa: F811
    """Less than a step, a step of which groups are missing, whole ones; columns that no unit divides."""
    is_sum = form == "mxfp4 weights"  # others take Triton less time
    multiply(random_call(device, form, pairs(device, *PAIRS), 3, 4, 74, k, "none" if is_sum else "silu_and_mul",
                         is_of_pairs=True, sums_slots=is_sum, weights=torch.rand(6, device=device), **by_rows(form)))


@pytest.mark.parametrize("form", FORMATS)
def test_sums_of_tokens(device, multiply, form):  # noqa: F811
    multiply(random_call(device, form, pairs(device, *PAIRS), 3, 4, 37, 1184, is_of_pairs=True, sums_slots=True,
                         weights=torch.rand(6, device=device), bias=torch.randn(4, 37, device=device), **by_rows(form)))


@pytest.mark.parametrize("form, block, k", (("mxfp4 weights", 16, 1120), ("int4 weights", 13, 672),
                                            ("int8 weights", 4, 336)))
def test_sorted(device, multiply, form, block, k):  # noqa: F811
    order, weights = sort(device, 37, 3, 5, block, seed=k)
    call = random_call(device, form, order, 37, 5, 96, k, "swiglu_and_mul", weights=weights, is_interleaved=True,
                       limit=7.0, bias=torch.randn(5, 96, device=device), **by_rows(form))
    first = multiply(call).clone()
    call.out.fill_(UNTOUCHED)
    assert torch.equal(multiply(call), first), "equal calls give equal bits"


@pytest.mark.parametrize("form", ("int8 weights", "int4 weights"))
def test_fp16_and_scales_of_16_bits(device, multiply, form):  # noqa: F811
    call = random_call(device, form, pairs(device, *PAIRS), 3, 4, 40, 544, "gelu", **by_rows(form))
    multiply(call._replace(a=call.a.half(), b_scale=call.b_scale.half()))


def summed(device, experts):
    """Tokens of two experts each, in mxfp4, of a depth that ends in a part of a step."""
    return random_call(device, "mxfp4 weights", pairs(device, *experts), len(experts) // 2, 4, 40, 736,
                       is_of_pairs=True, sums_slots=True)


@pytest.mark.parametrize("low, high, power", ((0, 6, 110), (247, 253, -120), (2, 253, 0)))
def test_powers_of_two(device, multiply, low, high, power):  # noqa: F811
    """Of groups of mxfp4: down to 2^-127, where bf16 has no exponents any more, up to where bf16 holds 6 of them."""
    call = summed(device, PAIRS)
    a = call.a * 2.0**power if power else call.a * 2.0**-10
    scale = torch.randint(low, high, call.b_scale.shape, dtype=torch.uint8, device=device)
    if not power:
        scale = torch.where(torch.rand(scale.shape, device=device) < 0.9, scale // 8 + 100, scale.clamp(max=140))
    multiply(call._replace(a=a, b_scale=scale))


def test_nan_of_a_group(device, multiply):  # noqa: F811
    """A power of two of 255 is NaN, for its row of b alone."""
    call = summed(device, (0, 1, 2, 3))
    call.b_scale[1, 7, 22] = 255
    out = multiply(call, is_checked=False)
    is_nan = torch.zeros(2, 40, dtype=torch.bool, device=device)
    is_nan[0, 7] = True
    assert torch.equal(out.isnan(), is_nan)


def test_strides(device, multiply):  # noqa: F811
    """Groups apart, and rows of b that begin anywhere."""
    call = summed(device, PAIRS)
    wide = torch.zeros(4, 42, 368 + 5, dtype=torch.uint8, device=device)
    wide[:, 1:41, 3:371] = call.b
    multiply(call._replace(b=wide[:, 1:41, 3:371], b_scale=call.b_scale.transpose(1, 2).contiguous().transpose(1, 2)))


REFUSALS = {
    "groups of int4": ("int4 weights", {"group_size": 32}, "a scale for each row"),
    "fp16 with mxfp4": ("mxfp4 weights", {"dtype": torch.float16}, "a scale for each row"),
    "many rows": ("int8 weights", {"block": 32}, "at most 16 rows"),
    "parts of a run": ("int4 weights", {"k": 80}, "a multiple of the 32"),
    "pairs": ("mxfp4 weights", {"block": 1}, "take the Triton kernel less time"),
    "shuffled": ("int8 weights", {"shuffled": True}, "must not be shuffled")}


@pytest.mark.parametrize("form, changes, words", REFUSALS.values(), ids=REFUSALS)
def test_refusals(device, form, changes, words):
    changes = {"block": 8, "k": 128, "dtype": torch.bfloat16, **by_rows(form), **changes}
    order = (pairs(device, *range(18)) if changes["block"] == 1
             else sorted_order(device, 9, 2, 4, changes["block"])[0])
    call = random_call(device, form, order, 9, 4, 32, changes["k"], group_size=changes["group_size"],
                       shuffled=changes.get("shuffled", False))
    with pytest.raises(UnsupportedError, match=words):
        OPS["moe_gemm"].run(*call._replace(a=call.a.to(changes["dtype"])), backend="hip")
    assert (call.out == UNTOUCHED).all()


@pytest.mark.parametrize("form", FORMATS)
def test_traffic(device, multiply, form):  # noqa: F811
    """Each weight of the experts that have a row is read once, 16 bytes at a time; nothing spills."""
    if device.type != "cpu":
        pytest.skip("counters of the simulator")
    order, _ = sorted_order(device, 2, 2, 4, 16, seed=2)
    call = random_call(device, form, order, 2, 4, 256, 2048, "silu_and_mul", **by_rows(form))
    with sim.enabled(counters=True) as session:
        multiply(call)
    (launch,) = session.launches
    used = order["experts"][:int(order["valid"][0]) // 16].tolist()
    needed = len({one for one in used if one >= 0}) * call.b[0].nbytes
    moved = sum(64 * one["segments_64"] for one in launch["instructions"] if "load_dwordx4" in one["text"])
    # All 16 rows of a for each 32 rows of b.
    again = needed * 16 / 32 * call.a.element_size() * 2048 / call.b[0, 0].nbytes
    assert needed <= moved <= 1.05 * needed + again, (moved, needed, again)
    assert launch["private_bytes"] == 0
