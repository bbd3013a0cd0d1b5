# SPDX-License-Identifier: MIT
"""Backend ck of moe_gemm against float64: every tile, element and order of the weights, routings of all kinds, numbers
that lead nowhere, strides, and what it does not serve.
"""

import pytest
import torch
from experts import UNTOUCHED, check, random_call
from test_moe_gemm import sorted_order

from aiter_like.dispatch import OPS, explain
from aiter_like.ops.layout.shuffle_weight import shuffle_weight
from aiter_like.ops.moe import moe_gemm_ck
from aiter_like.ops.moe.moe_gemm_call import MoeGemmCall
from aiter_like.ops.moe.moe_gemm_cases import cases
from aiter_like.testing import strided_like

pytestmark = pytest.mark.rotating

GATES = ("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul", "swiglu_and_mul")


@pytest.fixture
def multiply(run, monkeypatch):
    """multiply(call, tile=None): runs it by the backend, and in a tile, after explain() has said that it serves."""
    def one(call: MoeGemmCall, tile: str | None = None) -> MoeGemmCall:
        if tile is not None:
            monkeypatch.setattr(moe_gemm_ck, "cheapest", lambda call: tile)
            OPS["moe_gemm"].reset()
        run("ck", OPS["moe_gemm"].run, *call)
        return call

    yield one
    OPS["moe_gemm"].reset()


def routed(device, ids: torch.Tensor, experts: int, block: int, seed: int = 0) -> tuple[dict, torch.Tensor]:
    """As sorted_order, of given experts [tokens, slots]: those that are no number of an expert have blocks, too."""
    (tokens, slots), blocks, places = ids.shape, [], []
    padding = slots << 24 | tokens
    for expert in sorted(set(ids.flatten().tolist())):
        token, slot = (ids == expert).nonzero(as_tuple=True)
        mine = (slot << 24 | token).tolist()
        mine += [padding] * (-len(mine) % block)
        places += mine
        blocks += [expert] * (len(mine) // block)
    valid = len(places)
    places, blocks = places + [0] * 2 * block, blocks + [0, 0]  # which valid leaves out
    numbers, of_blocks, end = (torch.tensor(one, dtype=torch.int32, device=device) for one in (places, blocks, [valid]))
    weights = torch.rand(len(places), generator=torch.Generator().manual_seed(seed)).to(device)
    return {"experts": of_blocks, "sorted_ids": numbers, "valid": end, "slots": slots, "block": block}, weights


PLAIN = tuple((tile, 256 if tile.startswith("t256") else 128) for tile in moe_gemm_ck.PLAIN)
SCALED, SCALED_SHUFFLED = (tuple((tile, 128) for tile in names)
                           for names in (moe_gemm_ck.SCALED, moe_gemm_ck.SCALED_SHUFFLED))


@pytest.mark.parametrize("form, tile, block, shuffled, activation", (
    *(("bf16", *tile, True, GATES[i % 4]) for i, tile in enumerate(PLAIN)),
    *(("bf16", *tile, False, "none") for tile in PLAIN[::2]),
    *(("fp8", *tile, bool(i % 2), GATES[(i + 1) % 4]) for i, tile in enumerate(PLAIN[1::2])),
    *(("int8", *tile, bool(i % 2), "none") for i, tile in enumerate(PLAIN[::2])),
    *(("fp16", *tile, True, "gelu") for tile in PLAIN[2:3]),
    *(("blocks", *tile, True, "silu_and_mul") for tile in SCALED_SHUFFLED),
    *(("blocks", *tile, False, ("none", "swiglu_and_mul")[i % 2]) for i, tile in enumerate(SCALED[::2])),
    *(("blocks", *tile, True, "none") for tile in SCALED_SHUFFLED[::4])), ids=str)
def test_every_tile(device, multiply, form, tile, block, shuffled, activation):
    """Tiles of parts of a block, columns that fill no tile and a depth that fills no step."""
    order, weights = sorted_order(device, 77, 2, 3, block)
    k = 224 if form == "blocks" else 160
    call = random_call(device, form, order, 77, 3, 320, k, activation, shuffled=shuffled, weights=weights)
    check(multiply(call, tile))


@pytest.mark.parametrize("form, shuffled, activation", (("bf16", True, "silu_and_mul"), ("blocks", True, "none")))
def test_routings(device, multiply, form, shuffled, activation):
    """One expert has all or none, some are no number of an expert; from one token on. Rows of those stay."""
    generator = torch.Generator().manual_seed(3)
    random = torch.randint(0, 5, (37, 3), generator=generator)
    for ids in (random, random[:1], torch.zeros_like(random), torch.full_like(random, 4), random % 2 * 3,
                torch.where(random == 1, -1, random), torch.where(random < 3, random + 4, random),
                torch.where(random == 2, 2**31 - 1, random), torch.full_like(random, -2**31)):
        order, weights = routed(device, ids, 5, 32)
        call = random_call(device, form, order, len(ids), 5, 192, 256, activation, weights=weights, shuffled=shuffled)
        check(multiply(call))


def test_no_number_leads_outside(device, multiply):
    """Values that no caller may give: nothing is read or written outside of the tensors: the checkers look."""
    order, weights = sorted_order(device, 21, 2, 3, 32)
    call = random_call(device, "bf16", order, 21, 3, 192, 256, "silu_and_mul", weights=weights, shuffled=True)
    numbers, experts, valid = (call.sorted_ids.clone(), call.experts.clone(), call.valid.clone())
    for generator in (torch.Generator().manual_seed(seed) for seed in range(3)):
        call.sorted_ids.copy_(torch.randint(-2**31, 2**31, numbers.shape, generator=generator))
        call.sorted_ids[::3] &= 0x0100001F
        call.experts.copy_(torch.randint(-2, 5, experts.shape, generator=generator))
        for end in (-2**31, 0, 1, 45, 2**31 - 1):
            call.valid.fill_(end)
            call.out.fill_(UNTOUCHED)
            multiply(call)
            assert call.out.isfinite().all()
    call.sorted_ids.copy_(numbers), call.experts.copy_(experts), call.valid.copy_(valid), call.out.fill_(UNTOUCHED)
    check(multiply(call))


def test_fewer_blocks_than_places(device, multiply):
    """The last block is a part of one; and more places than blocks have an expert."""
    order, weights = sorted_order(device, 21, 2, 3, 32)
    end = int(order["valid"][0])
    for cut, blocks in ((end - 5, None), (end, end // 32 - 1)):
        mine = {**order, "sorted_ids": order["sorted_ids"][:cut], "experts": order["experts"][:blocks]}
        mine["valid"] = torch.tensor([min(cut, len(mine["experts"]) * 32)], dtype=torch.int32, device=device)
        call = random_call(device, "bf16", mine, 21, 3, 192, 256, "silu_and_mul", weights=weights, shuffled=True)
        mine["valid"].fill_(end) if blocks else None
        expected = call._replace(valid=torch.tensor([min(cut, len(mine["experts"]) * 32)], device=device))
        multiply(call)
        check(expected)


@pytest.mark.parametrize("form, out_dtype", (("bf16", torch.float32), ("blocks", torch.float16)), ids=str)
def test_down_with_bias(device, multiply, form, out_dtype):
    """Rows of pairs, a bias of another dtype and a weight, as the second product of a layer has them; strides."""
    order, weights = sorted_order(device, 45, 2, 4, 64)
    call = random_call(device, form, order, 45, 4, 196, 272, is_of_pairs=True, out_dtype=out_dtype, weights=weights)
    bias = torch.randn(4, 200, generator=torch.Generator().manual_seed(1)).to(device)[:, 3:199]
    call = call._replace(bias=bias if out_dtype == torch.float32 else bias.half())
    base = torch.full((90, 210), UNTOUCHED, dtype=out_dtype, device=device)
    call = call._replace(out=base[:, 5:201], a=strided_like(call.a, (16, 0)), b=strided_like(call.b, (48, 16, 0)))
    if call.a_scale is not None:
        pads = (1,) * call.a_scale.ndim, (1,) * call.b_scale.ndim
        call = call._replace(a_scale=strided_like(call.a_scale, pads[0]), b_scale=strided_like(call.b_scale, pads[1]))
    check(multiply(call))
    assert (base[:, :5] == UNTOUCHED).all() and (base[:, 201:] == UNTOUCHED).all()


@pytest.mark.parametrize("form, shuffled", (("bf16", False), ("blocks", True)))
def test_interleaved_gates(device, multiply, form, shuffled):
    """Gates in even rows, a limit, a bias; columns that fill no band."""
    order, weights = sorted_order(device, 45, 2, 4, 32)
    n, k = (80 if shuffled else 72), 192 if form == "bf16" else 320
    call = random_call(device, form, order, 45, 4, n, k, "swiglu_and_mul", weights=weights, shuffled=shuffled,
                       is_interleaved=True, limit=0.75)
    check(multiply(call._replace(bias=torch.randn(4, n, device=device).to(torch.bfloat16))))


def test_halves_that_no_band_divides(device, multiply):
    """40 gates: those of the other half begin within a band of the shuffled weights."""
    order, _ = sorted_order(device, 45, 2, 4, 32)
    for n in (80, 112):
        check(multiply(random_call(device, "bf16", order, 45, 4, n, 128, "silu_and_mul", shuffled=True, limit=0.5)))


def test_nan_stays_in_its_row(device, multiply):
    order, weights = sorted_order(device, 21, 2, 3, 32)
    call = random_call(device, "bf16", order, 21, 3, 192, 256, "silu_and_mul", weights=weights, shuffled=True)
    clean = multiply(call).out.clone()
    call.a[4, 7], call.a[9, 0] = torch.nan, torch.inf
    multiply(call)
    touched = torch.tensor([8, 9, 18, 19], device=device)
    rest = torch.ones(42, dtype=torch.bool, device=device).index_fill(0, touched, False)
    assert call.out[8:10].isnan().all() and not call.out[18:20].isfinite().all()
    assert torch.equal(call.out[rest], clean[rest])


def test_the_operators_cases(device, multiply):
    """Those that this backend can serve, it serves."""
    found = set()
    for name, call in cases(device).items():
        if moe_gemm_ck.form_refusal(call) is None:
            out = torch.full_like(call.out, UNTOUCHED)
            check(multiply(call._replace(out=out)))
            found.add(name)
    assert {"gates", "down", "shuffled", "fp8", "int8", "fp8, blocks"} <= found


def changed(call: MoeGemmCall, name: str, device: torch.device) -> MoeGemmCall:
    wide = torch.zeros(call.out.shape[0], 6, dtype=call.out.dtype, device=device)
    return {
        "pairs must be sorted": call._replace(sorted_ids=None, valid=None, weights=None, block=1, bias=None,
                                              experts=torch.zeros(42, dtype=torch.int32, device=device)),
        "b must have the dtype of a": call._replace(
            b=torch.zeros(3, 96, 256, dtype=torch.int8, device=device), b_format="int8",
            b_scale=torch.ones(3, 96, device=device)),
        "block must be a multiple of 16": call._replace(block=24),
        "k must be a multiple of 8 and n of 4": call._replace(out=wide, b=call.b[:, :6]),
        "rows of b must be contiguous": call._replace(b=call.b.mT.contiguous().mT),
    }[name]


@pytest.mark.parametrize("reason", ("pairs must be sorted", "b must have the dtype of a",
                                    "block must be a multiple of 16", "k must be a multiple of 8 and n of 4",
                                    "rows of b must be contiguous"))
def test_refusals(device, reason):
    order, weights = sorted_order(device, 21, 2, 3, 32)
    call = random_call(device, "bf16", order, 21, 3, 96, 256, weights=weights)
    told = explain(OPS["moe_gemm"].run, *changed(call, reason, device))
    assert told.backend != "ck"
    if told.target.platform == "hip":
        assert reason in told.rejected["ck"]


def test_columns_between_blocks_of_scales_are_refused(device):
    order, _ = sorted_order(device, 21, 2, 3, 32)
    call = random_call(device, "blocks", order, 21, 3, 72, 256, "silu_and_mul")
    told = explain(OPS["moe_gemm"].run, *call)
    assert told.backend != "ck"
    if told.target.platform == "hip":
        assert "columns of out must be a multiple of 16" in told.rejected["ck"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("form", ("bf16", "fp16", "fp8", "int8", "blocks"))
def test_random_calls(device, multiply, form, seed):
    generator = torch.Generator().manual_seed(seed)

    def pick(*values):
        return values[int(torch.randint(len(values), (1,), generator=generator))]

    tokens, slots, experts, block = pick(1, 3, 65, 130), pick(1, 2, 5), pick(5, 9), pick(16, 32, 64, 128, 256)
    activation, shuffled = pick("none", "silu", *GATES), pick(False, True)
    n, k = 64 * pick(1, 3, 5, 8), 32 * pick(2, 5, 9, 16)
    order, weights = sorted_order(device, tokens, slots, experts, block, seed)
    call = random_call(device, form, order, tokens, experts, n, k, activation, seed, shuffled=shuffled,
                       is_of_pairs=pick(False, True), weights=pick(weights, None), limit=pick(0.0, 0.5),
                       out_dtype=pick(torch.bfloat16, torch.float16, torch.float32))
    names = moe_gemm_ck.tile_names(call)
    check(multiply(call, names[int(torch.randint(len(names), (1,), generator=generator))]))


def test_shuffled_is_another_order(device, multiply):
    """The same weights give the same numbers in both orders."""
    order, weights = sorted_order(device, 21, 2, 3, 32)
    call = random_call(device, "bf16", order, 21, 3, 192, 256, "silu_and_mul", weights=weights)
    plain = multiply(call).out.clone()
    other = call._replace(b=shuffle_weight(call.b), is_shuffled=True, out=torch.full_like(call.out, UNTOUCHED))
    assert not torch.equal(other.b, call.b) and torch.equal(multiply(other).out, plain)


@pytest.mark.parametrize("block, activation, backend", ((16, "none", "hip"), (32, "none", "ck"), (64, "none", "ck"),
                                                        (32, "silu_and_mul", "hip"), (64, "silu_and_mul", "ck")))
def test_what_goes_first(device, block, activation, backend):
    """By the rows of a block, and whether there are gates; ck takes no packed weights, which go to the others."""
    if device.type == "cuda" and torch.version.cuda:
        pytest.skip("Triton goes first on NVIDIA")
    order, _ = sorted_order(device, 40, 2, 4, block)
    call = random_call(device, "bf16", order, 40, 4, 64, 128, activation)
    assert explain(OPS["moe_gemm"].run, *call).backend == backend
    packed = random_call(device, "int4 weights", order, 40, 4, 64, 128, activation)
    assert explain(OPS["moe_gemm"].run, *packed).backend == ("hip" if block < 64 else "triton")
