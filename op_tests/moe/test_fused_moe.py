# SPDX-License-Identifier: MIT
"""fused_moe: every form of weights on every backend against float64; masks, few tokens, refusals."""

import functools

import bench_peers
import benching
import pytest
import torch
from layers import FORMS, check, expected, layer

import aiter_like
from aiter_like import dtypes, explain
from aiter_like.device import target_of
from aiter_like.enums import ActivationType, QuantType
from aiter_like.errors import UnsupportedError
from aiter_like.testing import strided_like

BACKENDS = ("hip", "ck", "triton")
I32 = torch.int32


def tokens_of(device, tokens, experts, slots, k, seed=0, dtype=torch.bfloat16):
    """hidden_states, weights and distinct experts of each token, rows further apart than they are long."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, k, generator=generator).to(device, dtype)
    ids = torch.rand(tokens, experts, generator=generator).topk(slots, 1).indices.to(device, I32)
    weights = torch.rand(tokens, slots, generator=generator).to(device)
    return tuple(strided_like(one, (8, 0)) for one in (hidden, weights, ids))


def dtype_of(form):
    return torch.float16 if form == "fp16" else torch.bfloat16


def served(backend, *args, **kwargs):
    """fused_moe with a backend forced, both of whose products that backend serves; skips where it does not take the
    form, or does not run on this device."""
    try:
        found = explain(aiter_like.fused_moe, *args, backend=backend, **kwargs)
    except UnsupportedError as error:
        pytest.skip(str(error))
    products = [one for one in found if one.op == "moe_gemm"]
    if any(one.backend != backend for one in products):
        pytest.skip(str(next(one for one in products if one.backend != backend).rejected.get(backend)))
    assert len(products) == 2
    return aiter_like.fused_moe(*args, backend=backend, **kwargs)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("tokens", (1, 3, 40))
@pytest.mark.parametrize("form", FORMS)
def test_form(device, backend, tokens, form):
    one = layer(device, form)
    hidden, weights, ids = tokens_of(device, tokens, 6, 2, 128, tokens, dtype_of(form))
    out = served(backend, hidden, one.w1, one.w2, weights, ids, **one.options)
    check(out, *expected(one, hidden, weights, ids), one.eight_bits)


@pytest.mark.parametrize("form", FORMS)
def test_what_the_dispatcher_takes(device, form):
    one = layer(device, form, shuffled=form in ("bf16", "fp8 blocks", "int8 token", "int4 groups"))
    hidden, weights, ids = tokens_of(device, 19, 6, 3, 128, 5, dtype_of(form))
    out = aiter_like.fused_moe(hidden, one.w1, one.w2, weights, ids, **one.options)
    check(out, *expected(one, hidden, weights, ids), one.eight_bits)
    products = [e.backend for e in explain(aiter_like.fused_moe, hidden, one.w1, one.w2, weights, ids, **one.options)
                if e.op == "moe_gemm"]
    assert "torch" not in products, products


@pytest.mark.parametrize("backend", ("hip", "torch"))
def test_results_of_pairs_are_added_before_they_are_rounded(device, backend):
    """To bf16: one rounding is 0.16 % in the mean square, three, of two pairs and of their sum, are 0.24 %."""
    one = layer(device, "bf16")
    hidden, weights, ids = tokens_of(device, 13, 6, 2, 128, 7)
    out = aiter_like.fused_moe(hidden, one.w1, one.w2, weights, ids, backend=backend)
    gates = torch.einsum("tk,tsnk->tsn", hidden.double(), one.wide1.to(device)[ids.long()])
    inner = (torch.nn.functional.silu(gates[..., :gates.shape[2] // 2]) * gates[..., gates.shape[2] // 2:]).bfloat16()
    wanted = torch.einsum("tsk,tsnk,ts->tn", inner.double(), one.wide2.to(device)[ids.long()], weights.double())
    assert (out.double() - wanted).square().mean().sqrt() < 0.002 * wanted.square().mean().sqrt()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("local", (None, 0, 7, -1, 12, 2**31 - 1))
def test_experts_of_other_devices_and_tokens_that_do_not_count(device, backend, local, unseen):
    """Nobody sees on a GPU that there are no -1 or 12 tokens."""
    one = layer(device, "bf16")
    mask = torch.tensor([1, 0, 1, 1, 0, 1, 1, 1, 0], dtype=I32, device=device)
    hidden, weights, ids = tokens_of(device, 11, 9, 3, 128, 3)
    count = None if local is None else torch.tensor([local], dtype=I32, device=device)
    out = served(backend, hidden, one.w1, one.w2, weights, ids, mask, num_local_tokens=count)
    counted = None if local is None else min(max(local, 0), 11)
    wanted, sizes = expected(one, hidden, weights, ids, mask=mask, local=counted)
    check(out, wanted, sizes)
    assert (out[wanted.abs().sum(1) == 0] == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_masks_of_more_experts_than_there_are(device, backend, unseen):
    """Tokens that go to none of those beyond have what they have with a right mask."""
    one = layer(device, "bf16")
    mask = torch.tensor([1, 0, 1, 1, 0, 1, 1, 1, 1, 1], dtype=I32, device=device)
    hidden, weights, ids = tokens_of(device, 11, 8, 3, 128, 3)
    ids[4, 1], ids[7] = 9, torch.tensor([8, 9, 0], dtype=I32)
    out = served(backend, hidden, one.w1, one.w2, weights, ids, mask)
    wanted, sizes = expected(one, hidden, weights, ids, mask=mask * (torch.arange(10, device=device) < 8))
    right = (ids < 8).all(1)
    check(out[right], wanted[right], sizes[right])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("tokens", (1, 9))
@pytest.mark.parametrize("mask", (None, (1, 0, 1, 1, 1, 1, 1)), ids=("all", "mask"))
def test_ids_out_of_range_have_no_part(device, backend, tokens, mask):
    one, experts = layer(device, "bf16"), 6 if mask is None else 7
    mask = None if mask is None else torch.tensor(mask, dtype=I32, device=device)
    hidden, weights, ids = tokens_of(device, tokens, experts, 3, 128, 3)
    ids[0] = torch.tensor([-1, experts, 2**30], dtype=I32)
    if tokens > 1:
        ids[3, 1:], ids[4, 0] = torch.tensor([-2**31, experts - 1], dtype=I32), 2**31 - 1
    out = served(backend, hidden, one.w1, one.w2, weights, ids, mask)
    check(out, *expected(one, hidden, weights, ids, mask=mask))
    assert not out[0].any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", (ActivationType.Gelu, ActivationType.Swiglu, ActivationType.Silu), ids=str)
@pytest.mark.parametrize("tokens", (1, 12))
def test_activations_limits_and_biases(device, backend, kind, tokens):
    one = layer(device, "bf16", seed=4)
    hidden, weights, ids = tokens_of(device, tokens, 6, 2, 128, 6)
    biases = {"bias1": torch.randn(6, 128, device=device), "bias2": torch.randn(6, 128, device=device).bfloat16()}
    limit = 1.5 if kind is not ActivationType.Gelu else None
    out = served(backend, hidden, one.w1, one.w2, weights, ids, activation=kind, swiglu_limit=limit, **biases)
    check(out, *expected(one, hidden, weights, ids, kind, limit, **biases))


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_gates(device, backend):
    one = layer(device, "bf16", is_gated=False)
    hidden, weights, ids = tokens_of(device, 10, 6, 2, 128, 8)
    out = served(backend, hidden, one.w1, one.w2, weights, ids, activation=ActivationType.Gelu)
    check(out, *expected(one, hidden, weights, ids, ActivationType.Gelu))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", ("bf16", "mxfp4"))
def test_interleaved_gates(device, backend, form):
    one = layer(device, form)
    hidden, weights, ids = tokens_of(device, 10, 6, 2, 128, 8)
    out = served(backend, hidden, one.w1, one.w2, weights, ids, gate_mode="interleave",
                 activation=ActivationType.Swiglu, **one.options)
    check(out, *expected(one, hidden, weights, ids, ActivationType.Swiglu, is_interleaved=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_before_the_activation(device, backend):
    one = layer(device, "bf16")
    hidden, weights, ids = tokens_of(device, 10, 6, 1, 128, 8)
    out = served(backend, hidden, one.w1, one.w2, weights, ids, doweight_stage1=True)
    check(out, *expected(one, hidden, weights, ids, weighs_first=True))


@pytest.mark.parametrize("block", (5, 16, 64, 256))
def test_blocks_that_are_asked_for(device, block):
    one = layer(device, "bf16", experts=3)
    hidden, weights, ids = tokens_of(device, 70, 3, 3, 128, 8)
    out = aiter_like.fused_moe(hidden, one.w1, one.w2, weights, ids, block_size_M=block)
    check(out, *expected(one, hidden, weights, ids))


def test_hidden_states_of_8_bits(device):
    one = layer(device, "fp8 token")
    hidden, weights, ids = tokens_of(device, 9, 6, 2, 128, 2)
    narrow, scale = aiter_like.per_token_quant_hip(hidden.contiguous(), quant_dtype=one.w1.dtype)
    given = (narrow, one.w1, one.w2, weights, ids)
    out = aiter_like.fused_moe(*given, dtype=torch.bfloat16, a1_scale=scale, **one.options)
    check(out, *expected(one, hidden, weights, ids), one.eight_bits)
    same = aiter_like.fused_moe(hidden.contiguous(), *given[1:], **one.options)
    assert torch.equal(out, same)


@pytest.mark.parametrize("form", ("int4 row", "int4 words"))
@pytest.mark.parametrize("tokens", (2, 21))
def test_hidden_states_of_fp8_beside_int4(device, form, tokens):
    """A kernel serves both products, whose activations are fp8; those between them become so."""
    one = layer(device, form, shuffled=form == "int4 row" and tokens > 2)
    hidden, weights, ids = tokens_of(device, tokens, 6, 2, 128, 2)
    fp8 = dtypes.fp8_of(target_of(device).arch)
    narrow, scale = aiter_like.per_token_quant_hip(hidden.contiguous(), quant_dtype=fp8)
    given, options = (narrow, one.w1, one.w2, weights, ids), {"dtype": torch.bfloat16, "a1_scale": scale, **one.options}
    out = aiter_like.fused_moe(*given, **options)
    check(out, *expected(one, hidden, weights, ids), fp8)
    products = [e.backend for e in explain(aiter_like.fused_moe, *given, **options) if e.op == "moe_gemm"]
    assert products == ["triton", "triton"]
    if form == "int4 words":
        wide = {name: value for name, value in options.items() if name != "a1_scale"}
        assert torch.equal(out, aiter_like.fused_moe(hidden.contiguous(), *given[1:], **wide))


def test_nothing_to_do(device):
    one = layer(device, "bf16")
    hidden, weights, ids = tokens_of(device, 0, 6, 2, 128)
    assert aiter_like.fused_moe(hidden, one.w1, one.w2, weights, ids).shape == (0, 128)


def test_nan_stays_in_its_token(device):
    one = layer(device, "bf16")
    hidden, weights, ids = tokens_of(device, 9, 6, 2, 128, 2)
    hidden[4, 7] = float("nan")
    out = aiter_like.fused_moe(hidden, one.w1, one.w2, weights, ids)
    assert out[4].isnan().all()
    others = [token for token in range(9) if token != 4]
    wanted, sizes = expected(one, hidden, weights, ids)
    check(out[others], wanted[others], sizes[others])


def test_refusals(device):
    one = layer(device, "bf16")
    hidden, weights, ids = tokens_of(device, 4, 6, 2, 128)
    given = (hidden, one.w1, one.w2, weights, ids)
    with pytest.raises(ValueError, match="fused_moe: w1 must have shape"):
        aiter_like.fused_moe(hidden, one.w1[:, :100], *given[2:])
    with pytest.raises(TypeError, match="fused_moe: topk_ids must have dtype torch.int32"):
        aiter_like.fused_moe(*given[:4], ids.long())
    with pytest.raises(UnsupportedError, match="fused_moe: shared_w1 is not served"):
        aiter_like.fused_moe(*given, shared_w1=one.w1)
    with pytest.raises(UnsupportedError, match="fused_moe: activation ActivationType.Situv2"):
        aiter_like.fused_moe(*given, activation=ActivationType.Situv2)
    with pytest.raises(ValueError, match="fused_moe: quant_type must be QuantType.No"):
        aiter_like.fused_moe(*given, quant_type=QuantType.per_Token)
    four = layer(device, "int4 row", shuffled=True)
    with pytest.raises(UnsupportedError, match="w1 of int4 .* is served with gate_mode 'separated'"):
        aiter_like.fused_moe(hidden, four.w1, four.w2, weights, ids, gate_mode="interleave", **four.options)
    four = layer(device, "int4 row")
    for w in (four.w1, four.w2):
        w.is_shuffled, w.shuffle_layout = True, (32, 16)
    with pytest.raises(UnsupportedError, match=r"w1 of int4 in the order of shuffle_weight with layout \(32, 16\)"):
        aiter_like.fused_moe(hidden, four.w1, four.w2, weights, ids, **four.options)
    four, narrow = layer(device, "int4 groups"), hidden.to(dtypes.fp8_of(target_of(device).arch))
    rows = {"dtype": torch.bfloat16, "a1_scale": torch.ones(4, device=device)}
    with pytest.raises(UnsupportedError, match="w1_scale must have a scale for each row of int4 beside fp8"):
        aiter_like.fused_moe(narrow, four.w1, four.w2, weights, ids, **rows, **four.options)
    four = layer(device, "int4 words")
    with pytest.raises(TypeError, match="w1_scale must have dtype torch.float32"):
        aiter_like.fused_moe(hidden, four.w1, four.w2, weights, ids,
                             **four.options | {"w1_scale": four.options["w1_scale"].bfloat16()})
    with pytest.raises(UnsupportedError, match="w1 of torch.uint32, .* is not served"):
        aiter_like.fused_moe(hidden, four.w1, four.w2, weights, ids, **four.options | {"quant_type": 3})
    with pytest.raises(UnsupportedError, match="w1 of int4 .* is served with gate_mode 'separated'"):
        aiter_like.fused_moe(hidden, four.w1, four.w2, weights, ids, gate_mode="interleave", **four.options)
    eight = layer(device, "fp8 blocks")
    with pytest.raises(TypeError, match="fused_moe: w1_scale must be a tensor"):
        aiter_like.fused_moe(hidden, eight.w1, eight.w2, weights, ids, quant_type=QuantType.per_1x128)


MODELS = {"Mixtral 8x7B": (8, 2, 4096, 14336), "Qwen3 30B-A3B": (128, 8, 2048, 768),
          "Qwen3 235B-A22B, TP 8": (128, 8, 4096, 192), "DeepSeek V3, TP 8": (256, 8, 7168, 256),
          "GPT-OSS 120B": (128, 4, 2880, 2880)}
"""Experts, slots, k and inner of a layer."""


def bench() -> None:
    """Beside products of dense matrices with as many rows, by our own kernels, and what vLLM has where it is found."""
    device = torch.device("cuda")

    def case(model: str, form: str, tokens: int, seed: int) -> benching.Case:
        experts, slots, k, inner = MODELS[model]
        generator = torch.Generator(device).manual_seed(seed)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16) * shape[-1]**-0.5

        w1, w2, options = random(experts, 2 * inner, k), random(experts, k, inner), {}
        if form == "fp8 blocks":
            fp8 = dtypes.fp8_of(target_of(device).arch)
            options = {"quant_type": QuantType.per_1x128} | {
                name: torch.full((experts, -(-w.shape[1] // 128), -(-w.shape[2] // 128)), w.shape[2]**-0.5 / 64,
                                 device=device) for name, w in (("w1_scale", w1), ("w2_scale", w2))}
            w1, w2 = ((w * w.shape[2]**0.5 * 64).to(fp8) for w in (w1, w2))
        hidden = random(tokens, k) * k**0.5
        ids = torch.rand(tokens, experts, generator=generator, device=device).topk(slots, 1).indices.int()
        weights = torch.rand(tokens, slots, generator=generator, device=device)
        given = (hidden, w1, w2, weights, ids)
        calls = benching.by_backend(aiter_like.fused_moe, *given, backends=("triton",), **options)
        calls["chosen"] = functools.partial(aiter_like.fused_moe, *given, **options)
        if not options:
            rows = [hidden.new_empty(tokens * slots, size).normal_() for size in (k, inner)]
            calls["dense"] = lambda: (aiter_like.gemm_a16w16(rows[0], w1[0]), aiter_like.gemm_a16w16(rows[1], w2[0]))
            calls |= bench_peers.calls("fused_moe", *given)
        touched = len(ids.unique())
        moved = touched * (w1[0].nbytes + w2[0].nbytes) + 2 * hidden.nbytes
        flops = 2 * tokens * slots * 3 * k * inner

        def check(out: object) -> float:
            assert isinstance(out, tuple) or out.isfinite().all()
            return 0.0

        return benching.Case(f"{model}, {form}, {tokens}", moved, calls, check, flops=flops)

    shapes = [(model, form, tokens) for form in ("bf16", "fp8 blocks") for model in MODELS
              for tokens in (1, 16, 64, 512, 4096, 16384) if form == "bf16" or MODELS[model][3] % 128 == 0]
    benching.table("fused_moe", (case(*shape, 0) for shape in shapes))
