# SPDX-License-Identifier: MIT
"""moe_gemm: experts that are not here, padding, numbers that no caller may give, special and exact values, empty sizes;
calls for the tuner. Every backend.
"""

import functools
import math

import pytest
import torch
from experts import BACKENDS, FORMATS, UNTOUCHED, check, expected, few_order, multiply, random_call, sorted_order

from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.dispatch import OPS
from aiter_like.ops.moe import moe_gemm_tuning
from aiter_like.ops.moe.moe_gemm_call import MoeGemmCall
from aiter_like.ops.moe.moe_gemm_cases import sorted_case


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_expert_has_all_pairs_or_none(device, backend):
    for block in (16, 64):
        numbers = torch.arange(70, dtype=torch.int32)
        padded = torch.nn.functional.pad(numbers, (0, -70 % block), value=70)
        order = {"experts": torch.full((len(padded) // block,), 2, dtype=torch.int32, device=device),
                 "sorted_ids": padded.to(device), "slots": 1, "block": block,
                 "valid": torch.tensor([len(padded)], dtype=torch.int32, device=device)}
        call = random_call(device, "bf16", order, 70, 4, 40, 64)
        check(multiply(backend, call))
        order["valid"].zero_()
        call.out.fill_(UNTOUCHED)
        multiply(backend, call)
        assert (call.out == UNTOUCHED).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_number_leads_outside(device, backend):
    """Experts, places and counts that no caller may give: the kernels read and write nothing outside of the tensors
    (the checkers look), and rows of pairs that are not named stay."""
    order, weights = sorted_order(device, 21, 3, 4, 16)
    call = random_call(device, "bf16", order, 21, 4, 40, 64, weights=weights)
    ids, experts, valid = order["sorted_ids"], order["experts"], order["valid"]
    good = ids.clone(), experts.clone(), valid.clone()
    extremes = torch.tensor([-1, -2**31, 2**31 - 1, 3 << 24, 21, 0xFFFFFF, 1 << 30], dtype=torch.int32, device=device)
    wrong = (("valid", 2**31 - 1), ("valid", -5), ("experts", 4), ("experts", 2**31 - 1), ("experts", -2**31),
             ("ids", 0))
    for number, (where, value) in enumerate(wrong):
        for tensor, kept in zip((ids, experts, valid), good):
            tensor.copy_(kept)
        if where == "valid":
            valid[0] = value
        elif where == "experts":
            experts[number % len(experts)] = value
        else:
            ids[:len(extremes)] = extremes
        call.out.fill_(UNTOUCHED)
        if value == 2**31 - 1 and where == "valid":  # padding behind the pairs has experts, too
            experts.clamp_(0, 3)
        multiply(backend, call)
        if where != "valid":
            check(call)
        assert call.out.isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_are_read_on_the_device(device, backend):
    """One plan serves other orders: what a replayed graph does."""
    order, weights = sorted_order(device, 21, 3, 4, 16)
    call = random_call(device, "bf16", order, 21, 4, 40, 64, "silu_and_mul")
    for seed in (0, 1, 2):
        numbers, _, of_blocks, valid = sorted_case(device, 21, 3, 4, 16, seed)
        for name, value in (("sorted_ids", numbers), ("experts", of_blocks), ("valid", valid)):
            order[name].copy_(value)
        call.out.fill_(UNTOUCHED)
        check(multiply(backend, call))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_sorted", (True, False), ids=("sorted", "few"))
@pytest.mark.parametrize("activation", ("none", "silu_and_mul"))
def test_special_values(device, backend, is_sorted, activation):
    """Infinities and NaN stay in their own rows, columns and experts."""
    order, _ = sorted_order(device, 20, 2, 3, 16) if is_sorted else few_order(device, 6, 2, 3, 4)
    call = random_call(device, "bf16", order, 20 if is_sorted else 6, 3, 40, 64, activation)
    call.a[0, 3], call.a[1, 5], call.b[0, 2, 5], call.b[1, 7, 9] = math.inf, math.nan, -math.inf, math.nan
    multiply(backend, call)
    clean = random_call(device, "bf16", order, 20 if is_sorted else 6, 3, 40, 64, activation)
    wanted, _ = expected(call)
    multiply(backend, clean)
    is_bad, is_left = ~wanted.isfinite(), call.out == UNTOUCHED
    assert torch.equal(is_left, clean.out == UNTOUCHED)
    assert torch.equal(~call.out.isfinite(), is_bad & ~is_left)
    assert torch.equal(call.out[~is_bad], clean.out[~is_bad])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_sorted", (True, False), ids=("sorted", "few"))
def test_extreme_scales_of_mxfp4(device, backend, is_sorted):
    """2^-127, whose products are denormal, 2^127, whose products may be infinite, and NaN."""
    order, _ = sorted_order(device, 20, 2, 3, 16) if is_sorted else few_order(device, 4, 2, 3)
    call = random_call(device, "mxfp4 weights", order, 20 if is_sorted else 4, 3, 16, 64, out_dtype=torch.float32)
    call.b_scale[:, 0], call.b_scale[:, 1], call.b_scale[:, 2], call.b_scale[:, 3] = 0, 1, 255, 240
    multiply(backend, call)
    wanted, _ = expected(call)
    is_left = wanted.isnan().all(1)
    assert call.out[~is_left, 2].isnan().all() and (call.out[is_left] == UNTOUCHED).all()
    for column in (0, 1, 3):
        one = wanted[~is_left, column]
        assert ((call.out[~is_left, column].double() - one).abs() <= 1e-4 * one.abs().max()).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_sorted", (True, False), ids=("sorted", "few"))
def test_sums_of_int8_are_exact(device, backend, is_sorted):
    order, _ = sorted_order(device, 17, 1, 1, 16) if is_sorted else ({"experts": torch.zeros(
        3, dtype=torch.int32, device=device), "slots": 1}, None)
    tokens = 17 if is_sorted else 3
    low = torch.full((1, 16, 4112), -128, dtype=torch.int8, device=device)
    out = torch.zeros(tokens, 16, device=device)
    call = MoeGemmCall(out, low[0, :1].expand(tokens, -1).contiguous(), low, **order,
                       a_scale=torch.ones(tokens, device=device), b_scale=torch.ones(1, 16, device=device))
    multiply(backend, call)
    assert (out == 4112 * 2.0**14).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_sizes(device, backend):
    order, _ = sorted_order(device, 9, 2, 3, 16)
    call = random_call(device, "bf16", order, 9, 3, 20, 32)
    bias = torch.randn(3, 20, device=device)
    multiply(backend, call._replace(a=call.a[:, :0], b=call.b[:, :, :0], bias=bias))
    wanted, _ = expected(call._replace(a=call.a * 0, bias=bias))
    torch.testing.assert_close(call.out, wanted.bfloat16(), rtol=0, atol=0)
    for other in (call._replace(out=call.out[:, :0], b=call.b[:, :0]), call._replace(b=call.b[:0]),
                  call._replace(sorted_ids=call.sorted_ids[:0])):
        other.out.fill_(UNTOUCHED)
        multiply(backend, other)
        assert (other.out == UNTOUCHED).all()


def test_equal_calls_give_equal_results(device):
    order, _ = sorted_order(device, 33, 2, 3, 32)
    call = random_call(device, "bf16", order, 33, 3, 72, 520)
    first = multiply("triton", call).out.clone()
    assert torch.equal(multiply("triton", call).out, first)


@pytest.mark.parametrize("form", ("bf16", "fp8", "blocks", "int8", "mxfp4 weights"))
@pytest.mark.parametrize("is_few", (False, True), ids=("sorted", "few"))
def test_calls_for_the_tuner_have_their_keys(device, form, is_few):
    dtype = {"fp8": dtypes.fp8_of(target_of(device).arch), "blocks": dtypes.fp8_of(target_of(device).arch),
             "int8": torch.int8}.get(form, torch.bfloat16)
    key = {"pairs": 24, "experts": 5, "n": 64, "k": 256, "slots": 3, "block": 1 if is_few else 16,
           "dtype": dtypes.name(dtype), "b_dtype": "mxfp4" if form.endswith("weights") else "same",
           "group_size": {"blocks": 128, "mxfp4 weights": 32}.get(form, 0), "is_gated": 1, "is_of_pairs": 0,
           "is_shuffled": 0}
    call = OPS["moe_gemm"].tuning.case(key, device, 3)
    assert OPS["moe_gemm"].tune_key(*call) == key
    multiply("triton", call)
    assert call.out.isfinite().all()
    for smaller in OPS["moe_gemm"].tuning.smaller(key):
        assert OPS["moe_gemm"].tune_key(*OPS["moe_gemm"].tuning.case(smaller, device, 0)) == smaller


def test_traffic_counts_experts_once(device):
    """16 tokens of one expert of four: its matrix, not theirs."""
    ids = torch.full((16,), 2, dtype=torch.int32, device=device)
    call = random_call(device, "bf16", {"experts": ids, "slots": 1}, 16, 4, 32, 64)
    moved, flops = moe_gemm_tuning.traffic(call)
    assert moved == 2 * (32 * 64 + 16 * 64 + 16 * 32) + 4 * 16 and flops == 2 * 16 * 32 * 64


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("activation", ("none", "silu_and_mul"))
def test_weights_by_descriptor(device, form, activation):
    """The kernel for Hopper, which the simulated device runs with ordinary loads: sizes that no block divides."""
    from aiter_like.jit.triton_launch import Launcher
    from aiter_like.ops.moe.triton import moe_gemm

    order, weights = sorted_order(device, 19, 2, 4, 16)
    call = random_call(device, form, order, 19, 4, 76, 160, activation, weights=weights)
    Launcher(functools.partial(moe_gemm.moe_gemm, kernel="moe_gemm_moved", moved=1))(call)
    check(call)


@pytest.mark.parametrize("form", ("bf16", "fp8", "blocks", "int8", "mxfp4 weights", "a8 int4 weights"))
@pytest.mark.parametrize("rows", (16, 128))
@pytest.mark.parametrize("kernel", ("moe_gemm", "moe_gemm_moved"))
def test_code_for_hopper(monkeypatch, tmp_path, form, rows, kernel):
    """The matrix unit, weights by TMA or by copies that do not wait; nothing in local memory."""
    from hopper_code import compiled_for_hopper, disassembled

    from aiter_like.ops.moe.triton import moe_gemm

    others = {"bf16": torch.bfloat16, "mxfp4 weights": torch.bfloat16, "int8": torch.int8}
    dtype = others.get(form, torch.float8_e4m3fn)
    key = {"pairs": 4 * rows, "experts": 4, "n": 256, "k": 512, "slots": 1, "block": rows, "dtype": dtypes.name(dtype),
           "b_dtype": form.split()[-2] if form.endswith("weights") else "same", "is_gated": 1, "is_of_pairs": 1,
           "is_shuffled": 0, "group_size": {"blocks": 128, "mxfp4 weights": 32}.get(form, 0)}
    call = OPS["moe_gemm"].tuning.case(key, torch.device("cpu"), 0)
    with compiled_for_hopper(monkeypatch, moe_gemm) as built:
        moe_gemm.moe_gemm(call, kernel)
    code = disassembled(built[0], tmp_path)
    assert "GMMA" in code and "LDL" not in code and "STL" not in code
    assert ("UTMALDG" in code) == (kernel == "moe_gemm_moved") and "LDGSTS" in code
