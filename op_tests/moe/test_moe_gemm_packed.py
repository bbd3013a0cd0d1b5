# SPDX-License-Identifier: MIT
"""moe_gemm with weights of 8 and 4 bits by its kernel for few rows (backend "hip", gfx942), against float64."""

import pytest
import torch
from experts import UNTOUCHED, random_call, sorted_order
from test_moe_gemm_skinny import multiply, pairs, sort  # noqa: F401  (multiply is a fixture)

from aiter_like import sim
from aiter_like.dispatch import OPS
from aiter_like.errors import UnsupportedError

pytestmark = pytest.mark.rotating

FORMATS = ("int8 weights", "fp8 weights", "int4 weights", "mxfp4 weights")
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
    multiply(random_call(device, form, pairs(device, *PAIRS), 3, 4, 74, k, "silu_and_mul", is_of_pairs=True,
                         weights=torch.rand(6, device=device), **by_rows(form)))


@pytest.mark.parametrize("form, group_size, k, is_sum", (
    ("int4 weights", 32, 1120, False), ("int4 weights", 64, 96, True), ("int4 weights", 128, 1312, True),
    ("int8 weights", 32, 48, True), ("int8 weights", 64, 592, False), ("int8 weights", 128, 272, True),
    ("fp8 weights", 128, 272, True), ("fp8 weights", 128, 592, False)))
def test_groups_of_pairs(device, multiply, form, group_size, k, is_sum):  # noqa: F811
    """Of a depth that ends in a part of a group, or of a step."""
    multiply(random_call(device, form, pairs(device, *PAIRS), 3, 4, 74, k, "none" if is_sum else "silu_and_mul",
                         is_of_pairs=True, sums_slots=is_sum, weights=torch.rand(6, device=device),
                         group_size=group_size))


@pytest.mark.parametrize("form, group_size, block, k", (
    ("int4 weights", 32, 16, 544), ("int4 weights", 128, 32, 1120), ("int8 weights", 64, 8, 1104),
    ("int8 weights", 128, 32, 336), ("fp8 weights", 128, 16, 336)))
def test_groups_of_sorted_pairs(device, multiply, form, group_size, block, k):  # noqa: F811
    order, weights = sort(device, 37, 3, 5, block, seed=k)
    call = random_call(device, form, order, 37, 5, 96, k, "silu_and_mul", weights=weights, group_size=group_size)
    first = multiply(call).clone()
    call.out.fill_(UNTOUCHED)
    assert torch.equal(multiply(call), first), "equal calls give equal bits"


@pytest.mark.parametrize("form, group_size, block, k", (
    ("int4 weights", 0, 16, 1088), ("int4 weights", 64, 1, 576), ("int8 weights", 128, 8, 352),
    ("mxfp4 weights", 32, 16, 1152), ("fp8 weights", 128, 16, 352), ("fp8 weights", 0, 1, 576)))
def test_shuffled(device, multiply, form, group_size, block, k):  # noqa: F811
    """Rows of 32 bytes, as many as there are whole or half steps of."""
    order, _ = (pairs(device, 3, -1, 1, 0, 2, 1), None) if block == 1 else sort(device, 9, 2, 4, block, seed=1)
    tokens = 3 if block == 1 else 9
    multiply(random_call(device, form, order, tokens, 4, 96, k, "swiglu_and_mul", shuffled=True, is_interleaved=True,
                         limit=0.75, group_size=group_size))


def test_scales_by_groups_first(device, multiply):  # noqa: F811
    """As AITER has those of int4: rows of the weights follow one another, and scales have 16 bits."""
    order, _ = sort(device, 9, 2, 4, 16, seed=2)
    call = random_call(device, "int4 weights", order, 9, 4, 64, 416, group_size=32)
    turned = call.b_scale.bfloat16().mT.contiguous().mT
    multiply(call._replace(b_scale=turned))


def test_nan_of_a_group_of_sums(device, multiply):  # noqa: F811
    """Of its row of b alone, though the four lanes of an instruction share scales."""
    call = random_call(device, "int4 weights", pairs(device, 0, 1, 2, 3), 2, 4, 40, 736, is_of_pairs=True,
                       sums_slots=True, group_size=32)
    call.b_scale[1, 7, 22] = torch.nan
    out = multiply(call, is_checked=False)
    is_nan = torch.zeros(2, 40, dtype=torch.bool, device=device)
    is_nan[0, 7] = True
    assert torch.equal(out.isnan(), is_nan)


@pytest.mark.parametrize("form", FORMATS)
def test_sums_of_tokens(device, multiply, form):  # noqa: F811
    multiply(random_call(device, form, pairs(device, *PAIRS), 3, 4, 37, 1184, is_of_pairs=True, sums_slots=True,
                         weights=torch.rand(6, device=device), bias=torch.randn(4, 37, device=device), **by_rows(form)))


@pytest.mark.parametrize("form, block, k", (("mxfp4 weights", 16, 1120), ("int4 weights", 13, 672),
                                            ("int8 weights", 4, 336), ("fp8 weights", 8, 336)))
def test_sorted(device, multiply, form, block, k):  # noqa: F811
    order, weights = sort(device, 37, 3, 5, block, seed=k)
    call = random_call(device, form, order, 37, 5, 96, k, "swiglu_and_mul", weights=weights, is_interleaved=True,
                       limit=7.0, bias=torch.randn(5, 96, device=device), **by_rows(form))
    first = multiply(call).clone()
    call.out.fill_(UNTOUCHED)
    assert torch.equal(multiply(call), first), "equal calls give equal bits"


@pytest.mark.parametrize("form", ("int8 weights", "fp8 weights", "int4 weights"))
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
    "fp16 with mxfp4": ("mxfp4 weights", {"dtype": torch.float16}, "a of bf16"),
    "many rows": ("int8 weights", {"block": 64}, "at most 32 rows"),
    "words": ("int4_words weights", {}, "in the order of pack_int4"),
    "parts of a run": ("int4 weights", {"k": 80}, "a multiple of the 32")}


@pytest.mark.parametrize("form, changes, words", REFUSALS.values(), ids=REFUSALS)
def test_refusals(device, form, changes, words):
    changes = {"block": 8, "k": 128, "dtype": torch.bfloat16, **by_rows(form), **changes}
    order = sorted_order(device, 9, 2, 4, changes["block"])[0]
    call = random_call(device, form, order, 9, 4, 32, changes["k"], group_size=changes["group_size"])
    with pytest.raises(UnsupportedError, match=words):
        OPS["moe_gemm"].run(*call._replace(a=call.a.to(changes["dtype"])), backend="hip")
    assert (call.out == UNTOUCHED).all()


@pytest.mark.parametrize("form, group_size, block", (
    ("int8 weights", 0, 16), ("int4 weights", 0, 32), ("mxfp4 weights", 32, 32), ("int4 weights", 32, 32),
    ("int4 weights", 128, 16), ("int8 weights", 128, 32), ("fp8 weights", 128, 32)))
def test_traffic(device, multiply, form, group_size, block):  # noqa: F811
    """Each weight of the experts that have a row is read once, 16 bytes at a time; nothing spills."""
    if device.type != "cpu":
        pytest.skip("counters of the simulator")
    order, _ = sorted_order(device, 2, 2, 4, block, seed=2)
    call = random_call(device, form, order, 2, 4, 256, 2048, "silu_and_mul", group_size=group_size)
    with sim.enabled(counters=True) as session:
        multiply(call)
    (launch,) = session.launches
    used = order["experts"][:int(order["valid"][0]) // block].tolist()
    needed = len({one for one in used if one >= 0}) * call.b[0].nbytes
    moved = sum(64 * one["segments_64"] for one in launch["instructions"] if "load_dwordx4" in one["text"])
    # All rows of a block of a for each 32 rows of b.
    again = needed * block / 32 * call.a.element_size() * 2048 / call.b[0, 0].nbytes
    assert needed <= moved <= 1.05 * needed + again, (moved, needed, again)
    assert launch["private_bytes"] == 0
