# SPDX-License-Identifier: MIT
"""moe_gemm: the operator's own formula and every backend in every format, against float64; refusals."""

import functools
import math

import benching
import pytest
import torch
from experts import BACKENDS, FORMATS, UNTOUCHED, check, few_order, multiply, random_call, sorted_order

from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.dispatch import OPS
from aiter_like.ops.moe import moe_gemm_tuning
from aiter_like.ops.moe.moe_gemm_call import MoeGemmCall, block_for
from aiter_like.testing import strided_like

ACTIVATIONS = ("none", "silu", "gelu", "gelu_tanh", "silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul",
               "swiglu_and_mul")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("activation", ("none", "silu_and_mul", "swiglu_and_mul"))
def test_reference(device, form, activation):
    order, weights = sorted_order(device, 9, 2, 4, 8)
    check(multiply("torch", random_call(device, form, order, 9, 4, 36, 160, activation, weights=weights)))


def test_reference_of_pairs_that_are_not_sorted(device):
    ids = torch.tensor([0, 3, -1, 2, 4, 1], dtype=torch.int32, device=device)
    call = random_call(device, "bf16", {"experts": ids, "slots": 2}, 3, 4, 20, 96, is_of_pairs=True, sums_slots=True,
                       weights=torch.rand(6, device=device))
    check(multiply("torch", call))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_sorted", (True, False), ids=("sorted", "few"))
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("form", FORMATS)
def test_formats(device, backend, form, activation, is_sorted):
    """Columns and a depth that fill no block, and one expert without pairs."""
    order, weights = (sorted_order(device, 19, 2, 5, 16) if is_sorted else few_order(device, 5, 3, 4))
    call = random_call(device, form, order, 19 if is_sorted else 5, 5 if is_sorted else 4, 76, 208, activation,
                       weights=weights, limit=0.75 if activation.endswith("_and_mul") else 0.0)
    bias = torch.randn(call.b.shape[:2], generator=torch.Generator().manual_seed(1)).to(device)
    check(multiply(backend, call._replace(bias=bias.bfloat16() if is_sorted else bias)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("tokens, slots, experts, block", (
    (1, 1, 1, 1), (1, 4, 6, 4), (7, 2, 3, 24), (40, 2, 3, 32), (33, 3, 4, 64), (300, 2, 2, 128), (70, 1, 1, 256),
    (5, 4, 40, 16), (29, 2, 4, 12), (90, 2, 3, 48)))
def test_blocks(device, backend, tokens, slots, experts, block):
    """Blocks that no tile divides, those of several tiles, and more experts than pairs."""
    order, weights = sorted_order(device, tokens, slots, experts, block)
    check(multiply(backend, random_call(device, "bf16", order, tokens, experts, 40, 72, weights=weights)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_sorted", (True, False), ids=("sorted", "few"))
@pytest.mark.parametrize("form, group_size", (
    ("int8 weights", 0), ("int8 weights", 32), ("int8 weights", 64), ("int8 weights", 128), ("int4 weights", 0),
    ("int4 weights", 64), ("int4 weights", 128), ("int4_words weights", 0), ("int4_words weights", 32),
    ("int4_words weights", 128), ("fp8 weights", 0), ("fp8 weights", 128)))
def test_groups(device, backend, form, group_size, is_sorted):
    """Scales of the activations' dtype and of fp32, and a last group that is a part."""
    order, _ = sorted_order(device, 20, 2, 3, 16) if is_sorted else few_order(device, 4, 2, 3)
    k = 184 if "words" in form else 178
    call = random_call(device, form, order, 20 if is_sorted else 4, 3, 140, k, group_size=group_size)
    if group_size != 64:
        call = call._replace(b_scale=call.b_scale.bfloat16())
    check(multiply(backend, call))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_sorted", (True, False), ids=("sorted", "few"))
@pytest.mark.parametrize("form", ("int8 weights", "fp8 weights", "int4 weights", "mxfp4 weights"))
def test_fp16_activations(device, backend, form, is_sorted):
    """Where a weight of mxfp4 with its scale has no fp16."""
    order, _ = sorted_order(device, 20, 2, 3, 16) if is_sorted else few_order(device, 4, 2, 3)
    call = random_call(device, form, order, 20 if is_sorted else 4, 3, 48, 160, "silu_and_mul")
    scale = call.b_scale
    if form == "mxfp4 weights":
        scale = torch.where(torch.rand(scale.shape, device=device) < 0.1, scale - 70, scale)
    check(multiply(backend, call._replace(a=call.a.half(), b_scale=scale)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_sorted", (True, False), ids=("sorted", "few"))
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("is_interleaved", (False, True), ids=("halves", "interleaved"))
def test_shuffled_and_interleaved(device, backend, form, is_interleaved, is_sorted):
    order, weights = sorted_order(device, 20, 2, 3, 16) if is_sorted else few_order(device, 4, 2, 3)
    call = random_call(device, form, order, 20 if is_sorted else 4, 3, 48, 192, "swiglu_and_mul", weights=weights,
                       is_interleaved=is_interleaved, shuffled=True, limit=7.0)
    check(multiply(backend, call))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", FORMATS)
def test_interleaved_gates(device, backend, form):
    order, _ = sorted_order(device, 20, 2, 3, 16)
    check(multiply(backend, random_call(device, form, order, 20, 3, 52, 160, "silu_and_mul", is_interleaved=True)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", ("bf16", "fp8", "blocks", "int8"))
def test_rows_of_pairs(device, backend, form):
    """The second product of a layer, with the weights of the pairs, in fp32."""
    order, weights = sorted_order(device, 13, 3, 4, 16)
    call = random_call(device, form, order, 13, 4, 68, 144, is_of_pairs=True, out_dtype=torch.float32, weights=weights)
    check(multiply(backend, call))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", FORMATS)
def test_sums_of_slots(device, backend, form):
    """Zeros, and no NaN of an expert's rows, where a token has no expert that is here."""
    order, weights = few_order(device, 5, 4, 3)
    order["experts"][4:8] = torch.tensor([-1, 3, 2**31 - 1, -2**31])
    call = random_call(device, form, order, 5, 3, 44, 160, is_of_pairs=True, sums_slots=True, weights=weights)
    if call.a.dtype == torch.bfloat16:
        call.a[4:8] = math.nan
    check(multiply(backend, call))
    assert (call.out[1] == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_sums_are_in_a_fixed_order(device, backend):
    """1 + 2^-24 · 3 in fp32 depends on the order: that of the slots, in Triton another one."""
    tiny = 2.0**-24
    for values in ((1.0, tiny, tiny, tiny), (tiny, tiny, tiny, 1.0), (tiny, 1.0, tiny, tiny)):
        a = torch.zeros(4, 32, device=device).bfloat16()
        a[:, 0] = torch.tensor(values)
        b = torch.zeros(1, 16, 32, device=device).bfloat16()
        b[:, :, 0] = 1
        out = torch.full((1, 16), UNTOUCHED, device=device)
        ids = torch.zeros(4, dtype=torch.int32, device=device)
        multiply(backend, MoeGemmCall(out, a, b, ids, slots=4, sums_slots=True))
        wanted = torch.tensor(0.0)
        for value in values:
            wanted = wanted + torch.tensor(value)
        assert (out == wanted.to(device)).all() or backend == "triton" and (out - 1 <= 2.0**-22).all()
        assert (out == out[0, 0]).all()  # whichever program it comes from


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", ("bf16", "fp8", "blocks", "fp8 weights", "int4 weights", "mxfp4 weights"))
@pytest.mark.parametrize("is_sorted", (True, False), ids=("sorted", "few"))
def test_strides(device, backend, form, is_sorted):
    """Rows, matrices and scales apart; between the rows of `out` nothing is written."""
    order, _ = sorted_order(device, 20, 2, 3, 16) if is_sorted else few_order(device, 4, 2, 3)
    call = random_call(device, form, order, 20 if is_sorted else 4, 3, 40, 160, "silu_and_mul")
    base = torch.full((len(call.out), 30), UNTOUCHED, dtype=torch.bfloat16, device=device)
    scales = {name: strided_like(scale, (3,) * (scale.ndim - 1) + (5,))
              for name in ("a_scale", "b_scale") if (scale := getattr(call, name)) is not None}
    wide = call._replace(out=base[:, 4:24], a=strided_like(call.a, (16, 0)), b=strided_like(call.b, (16, 32, 0)),
                         **scales)
    check(multiply(backend, wide))
    assert (base[:, :4] == UNTOUCHED).all() and (base[:, 24:] == UNTOUCHED).all()


@pytest.mark.parametrize("is_sorted", (True, False), ids=("sorted", "few"))
def test_transposed_matrices(device, is_sorted):
    """What the derivative of a product by its rows multiplies with."""
    order, _ = sorted_order(device, 20, 2, 3, 16) if is_sorted else few_order(device, 4, 2, 3)
    call = random_call(device, "bf16", order, 20 if is_sorted else 4, 3, 37, 83)
    check(multiply("triton", call._replace(b=call.b.mT.contiguous().mT)))


def test_bad_input_is_named(device):
    order, weights = sorted_order(device, 9, 2, 3, 16)
    good = random_call(device, "bf16", order, 9, 3, 32, 64, weights=weights)
    int8 = random_call(device, "int8", order, 9, 3, 32, 64)
    four = random_call(device, "int4 weights", order, 9, 3, 32, 64)
    for error, match, call in (
            (ValueError, "moe_gemm: a must have 18 rows, one for each pair, or 9", good._replace(a=good.a[:5])),
            (ValueError, "moe_gemm: b must have shape", good._replace(b=good.b[:, :8])),
            (TypeError, "moe_gemm: b must have dtype", good._replace(b=good.b.half())),
            (ValueError, "moe_gemm: activation must be 'none'", good._replace(activation="relu")),
            (ValueError, "moe_gemm: b_scale must be a tensor", int8._replace(b_scale=None)),
            (ValueError, "moe_gemm: a_scale must be None", good._replace(a_scale=weights[:9])),
            (ValueError, "moe_gemm: group_size must be 0", four._replace(group_size=48)),
            (ValueError, "moe_gemm: shuffled, b must be contiguous", good._replace(b=good.b.mT.contiguous().mT,
                                                                                   is_shuffled=True)),
            (ValueError, "moe_gemm: is_interleaved must be False", good._replace(is_interleaved=True)),
            (ValueError, "moe_gemm: sums_slots must be False", good._replace(sums_slots=True, out=good.out[:9])),
            (ValueError, "moe_gemm: weights must have at least", good._replace(weights=weights[:3])),
            (TypeError, "moe_gemm: valid must be a tensor", good._replace(valid=None)),
            (ValueError, "moe_gemm: without sorted_ids block must be 1", good._replace(sorted_ids=None)),
            (ValueError, "moe_gemm: block must be", good._replace(block=257))):
        with pytest.raises(error, match=match):
            OPS["moe_gemm"].run(*call)


MODELS = {"Mixtral 8x7B": (8, 2, 4096, 14336), "Qwen3 30B-A3B": (128, 8, 2048, 768),
          "Qwen3 235B-A22B": (128, 8, 4096, 1536), "DeepSeek-V3": (256, 8, 7168, 2048),
          "GPT-OSS 120B": (128, 4, 2880, 2880)}
"""Experts, those of a token, columns of a token's row, and of a row between the products."""


def _loop(call: MoeGemmCall, counts: torch.Tensor) -> torch.Tensor:
    """What a loop over experts in torch computes of the same rows, whose sorting is not timed."""
    parts = []
    for expert, count in enumerate(counts.tolist()):
        if count:
            parts.append(call.a[:count] @ call.b[expert].t())
    return torch.cat(parts)


def bench() -> None:
    """Gates and down of layers, beside a loop over experts in torch; whole layers, also of vLLM: test_fused_moe.py."""
    device = torch.device("cuda")

    def case(model: str, form: str, tokens: int, is_down: bool, seed: int) -> benching.Case:
        experts, slots, k, inner = MODELS[model]
        n, k = (k, inner) if is_down else (2 * inner, k)
        dtype, b_format, group_size = {
            "bf16": (torch.bfloat16, "same", 0), "fp8 blocks": (dtypes.fp8_of(target_of(device).arch), "same", 128),
            "mxfp4": (torch.bfloat16, "mxfp4", 32)}[form]
        arch = "" if form == "mxfp4" else target_of(device).arch
        block = 1 if tokens == 1 else block_for(tokens * slots, experts, arch)
        call = OPS["moe_gemm"].tuning.case(
            {"pairs": tokens * slots, "experts": experts, "n": n, "k": k, "slots": slots, "block": block,
             "dtype": dtypes.name(dtype), "b_dtype": b_format, "group_size": group_size, "is_gated": int(not is_down),
             "is_of_pairs": int(is_down), "is_shuffled": 0}, device, seed)
        reference = call._replace(out=torch.empty_like(call.out))
        OPS["moe_gemm"].run(*reference, backend="torch")
        calls = {"triton": functools.partial(OPS["moe_gemm"].run, *call, backend="triton")}
        if form == "bf16":
            live = call.experts if call.sorted_ids is None else call.experts[:int(call.valid[0]) // block]
            counts = torch.bincount(live.long(), minlength=experts).cpu() * block
            calls["torch loop"] = functools.partial(_loop, call, counts.clamp(max=len(call.a)))

        def checked(result: object) -> float:
            if result is not None:
                return 0.0  # of torch's loop, which has no activation
            torch.testing.assert_close(call.out, reference.out, rtol=2e-2, atol=2e-2 * reference.out.abs().max().item())
            return 0.0

        moved, flops = moe_gemm_tuning.traffic(call)
        return benching.Case(f"{model} {'down' if is_down else 'gates'} {form}, {tokens}", moved, calls, checked,
                             flops=flops)

    shapes = [(model, form, tokens, is_down) for form in ("bf16", "fp8 blocks", "mxfp4") for model in MODELS
              for tokens in (1, 16, 256, 4096, 16384) for is_down in (False, True)]
    benching.table("moe_gemm", (case(*shape, 0) for shape in shapes))
