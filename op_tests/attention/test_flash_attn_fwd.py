# SPDX-License-Identifier: MIT
"""flash_attn_func: every backend against float64, over dtypes, sizes, masks, features, strides.

Packed sequences, caches and fp8: test_flash_attn_varlen.py; wrong calls: test_flash_attn_calls.py.
"""

import functools
import itertools
import math

import attention_cases as cases
import pytest
import torch
from attention_cases import BACKENDS, BF16, KERNELS, check_dense, dense, far_scores
from covering import covering

import aiter_like
from aiter_like.ops.attention import reference
from aiter_like.testing import strided_like
from aiter_like.testing.attention import attention_float64, check_attention

PAIRS = ((1, 1), (15, 64), (64, 15), (63, 65), (127, 63), (1, 1000), (383, 127), (384, 64), (385, 385))
HEADS = ((2, 2), (4, 1), (6, 2))


@pytest.mark.parametrize("causal", (False, True), ids=("full", "causal"))
@pytest.mark.parametrize("lengths", PAIRS, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_float64(device, run, backend, lengths, causal):
    """Head dimension, grouping and batch size take turns."""
    index = PAIRS.index(lengths) + causal
    q, k, v = dense(device, 1 + index % 2, *lengths, *HEADS[index % 3], (64, 128)[index % 2], BF16)
    check_dense(run, backend, q, k, v, causal=causal)


@pytest.mark.parametrize("backend", BACKENDS)
def test_float16(device, run, backend):
    """AITER's default, ties away, is for bf16: fp16 goes to nearest even then, too."""
    for head_dim, lengths, causal, rounding in ((64, (65, 130), False, 0), (64, (1, 200), True, 1),
                                                (128, (130, 65), True, 2)):
        check_dense(run, backend, *dense(device, 2, *lengths, 4, 2, head_dim, torch.float16), causal=causal,
                    rounding=rounding)


@pytest.mark.parametrize("backend", BACKENDS)
def test_long_causal(device, run, backend):
    check_dense(run, backend, *dense(device, 1, 1000, 1000, 2, 1, 64, BF16), causal=True)


@pytest.mark.parametrize("head_dims", ((8, 8), (32, 32), (80, 80), (96, 96), (256, 256), (192, 128), (16, 40)), ids=str)
def test_other_head_dims(device, run, head_dims):
    for backend in ("triton", "torch"):
        check_dense(run, backend, *dense(device, 1, 70, 90, 2, 1, head_dims[0], BF16, 0, head_dims[1]), causal=True)


@pytest.mark.parametrize("most_scores", (1 << 27, 2500))
def test_reference_has_every_feature(device, run, monkeypatch, most_scores):
    """The torch backend against float64, each feature alone, then all at once, dense and packed, in one or more blocks
    of rows.
    """
    monkeypatch.setattr(reference, "_MOST_SCORES", most_scores)
    q, k, v = dense(device, 2, 37, 70, 4, 2, 32, BF16, head_dim_v=16)
    options = cases.features(device, BF16, 4, 37, 70, batch=2)
    for chosen in (*options.values(), cases.together(options)):
        check_dense(run, "torch", q, k, v, **chosen)
    args = cases.packed(device, (5, 0, 40, 1), (9, 3, 0, 33), 4, 2, 32, torch.float16)
    options = cases.features(device, torch.float16, 4, 46, 33)
    for chosen in ({"causal": True}, *options.values(), cases.together(options)):
        cases.check_varlen(run, "torch", *args, **chosen)


@pytest.mark.parametrize("feature", (*cases.FEATURES, "all"))
def test_features(device, run, feature):
    """What Triton serves besides masks: each alone, some with a causal mask, then all at once."""
    q, k, v = dense(device, 2, 150, 200, 4, 2, 64, BF16)
    options = cases.features(device, BF16, 4, 150, 200, batch=2)
    chosen = cases.together(options) if feature == "all" else options[feature]
    check_dense(run, "triton", q, k, v, causal=feature in ("softcap", "bias", "alibi per sequence"), **chosen)


def test_leading_keys_of_a_cache(device, run):
    """cu_seqlens_kv: as many keys of each sequence count; what is stored behind them, NaN too, does not."""
    q, k, v = dense(device, 3, 20, 130, 4, 2, 64, BF16)
    lengths = torch.tensor((130, 7, 0), dtype=torch.int32, device=device)
    for tensor in (k, v):
        tensor[1, 7:], tensor[2] = math.nan, math.nan
    starts = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    for backend, options in itertools.product(("triton", "torch"), ({}, {"window_size": (9, 0, 2)})):
        out, lse = run(backend, aiter_like.flash_attn_func, q, k, v, cu_seqlens_kv=starts, return_lse=True,
                       how_v3_bf16_cvt=0, **options)
        check_attention(out, lse, q, k, v, seqlens_k=lengths, **options)


@pytest.mark.parametrize("backend", ("triton", "torch"))
def test_dropout_follows_torchs_generator(device, backend):
    q, k, v = dense(device, 2, 70, 90, 4, 2, 64, BF16)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        state = torch.randint(-2**63, 2**63 - 1, (2,), dtype=torch.int64, device=device)
        torch.manual_seed(seed)
        out, lse = aiter_like.flash_attn_func(q, k, v, dropout_p=0.3, causal=True, return_lse=True, how_v3_bf16_cvt=0,
                                              backend=backend)
        check_attention(out, lse, q, k, v, causal=True, dropout_p=0.3, rng_state=state)
        results.append(out)
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])


@pytest.mark.parametrize("rounding", (0, 1, 2))
@pytest.mark.parametrize("backend", KERNELS)
def test_rounding_modes(device, run, backend, rounding):
    q, k, v = dense(device, 1, 128, 256, 4, 4, 64, BF16)
    out, _ = check_dense(run, backend, q, k, v, rounding=rounding)
    expected = attention_float64(q, k, v).out
    bias = ((out.cpu().double().abs() - expected.abs()).sum() / expected.abs().sum()).item()
    if rounding == 2:  # truncation of P and out only ever shrinks: -0.34 to -0.57 % in an exact emulation
        assert -8e-3 < bias < -2e-3
    else:
        assert abs(bias) < 3e-4
    mode = run(backend, aiter_like.flash_attn_func, q, k, v, round_mode=("rtne", "rtna", "rtz")[rounding])
    assert torch.equal(mode, out)


@pytest.mark.parametrize("backend", KERNELS)
def test_rounding_of_a_copy_shows_each_mode(device, run, backend):
    """One key: P is 1 and out is v exactly; two equal keys with v, v': out is (v + v') / 2, exactly between or not."""
    unit = 2.0**-7  # of bf16 at 1
    pairs = torch.tensor([[1.0, 1.0 + unit], [1.0 + unit, 1.0 + 2 * unit], [-1.0, -1.0 - unit]])  # ties
    v = pairs.t().reshape(1, 2, 1, 3).repeat(1, 1, 1, 22)[..., :64].to(device, BF16)
    q, k = torch.zeros(1, 1, 1, 64, dtype=BF16, device=device), torch.zeros(1, 2, 1, 64, dtype=BF16, device=device)
    expected = ((1.0, 1.0 + 2 * unit, -1.0), (1.0 + unit, 1.0 + 2 * unit, -1.0 - unit), (1.0, 1.0 + unit, -1.0))
    for rounding in (0, 1, 2):
        out = run(backend, aiter_like.flash_attn_func, q, k, v, how_v3_bf16_cvt=rounding)
        assert out[0, 0, 0, :3].tolist() == list(expected[rounding]), rounding


@pytest.mark.parametrize("scale", (1e-8, 1e-3, 0.2, 5.0))
@pytest.mark.parametrize("backend", BACKENDS)
def test_scales(device, run, backend, scale):
    check_dense(run, backend, *dense(device, 1, 70, 130, 2, 2, 64, BF16), softmax_scale=scale, causal=True)


@pytest.mark.parametrize("scale", (1e5, 3e7, 1e20))
@pytest.mark.parametrize("backend", BACKENDS)
def test_scores_far_from_zero(device, run, backend, scale):
    """Where fp32 steps over the next integers, beyond 2^24, and beyond 2^31, where a rounding would be 2^128; rows that
    see nothing, rows whose highest score rises with every block, and negative scores only.
    """
    for head_dim, lengths, options in ((64, (90, 70), {"causal": True}), (128, (70, 330), {"causal": True}),
                                       (128, (40, 200), {}), (64, (40, 200), {"window_size": (30, 20)})):
        q, k, v = far_scores(device, *lengths, head_dim, BF16)
        check_dense(run, backend, q, k, v, softmax_scale=scale, **options)
        check_dense(run, backend, -q.abs(), k.abs() + 1, v, softmax_scale=scale, **options)


@pytest.mark.parametrize("backend", BACKENDS)
def test_large_inputs(device, run, backend):
    """Of fp16: scores near 10^11 with the usual scale."""
    if backend == "triton" and device.type == "cuda":
        pytest.skip("the kernel for Hopper takes scores up to 1.4e9, as flash_attn_func says")
    q, k, v = far_scores(device, 70, 130, 128, torch.float16)
    check_dense(run, backend, q * 8000, k * 8000, v)


@pytest.mark.parametrize("backend", BACKENDS)
def test_growing_scores_rescale(device, run, backend):
    """The largest score comes last, so every key block raises the running maximum."""
    q, k, v = dense(device, 1, 40, 300, 2, 2, 64, BF16)
    growing = k.abs() * torch.linspace(0.1, 3, 300, device=device).view(1, 300, 1, 1).bfloat16()
    check_dense(run, backend, q.abs(), growing, v)


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides(device, run, backend):
    """Any outer strides of whole 16 bytes everywhere; of any element where the backend takes them."""
    q, k, v = dense(device, 2, 37, 70, 4, 2, 64, BF16)
    bhsd = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (q, k, v)]
    padded = [strided_like(tensor, (1, 2, 1, 8)) for tensor in (q, k, v)]
    odd = [strided_like(tensor, (0, 1, 1, 3), offset=1) for tensor in (q, k, v)]
    shared = [q, k[:1].expand(2, -1, -1, -1), v[:, :, :1].expand(-1, -1, 2, -1)]
    for views in (bhsd, padded, shared, *[odd] * (backend != "hip")):
        out, _ = check_dense(run, backend, *views, causal=True)
        paddings, offset = ((0, 0, 2, 8), 8) if backend == "hip" else ((0, 0, 2, 5), 3)
        for target in (strided_like(torch.zeros_like(out), (1, 1, 1, 8)), strided_like(out, paddings, offset)):
            around = torch.empty(0, dtype=BF16, device=device).set_(target.untyped_storage()).isnan().sum()
            returned = run(backend, aiter_like.flash_attn_func, *views, causal=True, out=target, how_v3_bf16_cvt=0)
            assert returned is target and torch.equal(target, out)
            assert torch.empty(0, dtype=BF16, device=device).set_(target.untyped_storage()).isnan().sum() == around


@pytest.mark.parametrize("backend", BACKENDS)
def test_layout_bhsd_is_a_view(device, run, backend):
    q, k, v = dense(device, 2, 37, 70, 4, 2, 64, BF16)
    swapped = [tensor.transpose(1, 2).contiguous() for tensor in (q, k, v)]
    expected, lse = check_dense(run, backend, q, k, v, causal=True)
    call = functools.partial(run, backend, aiter_like.flash_attn_func, *swapped, causal=True, layout="bhsd",
                             how_v3_bf16_cvt=0, return_lse=True)
    target = torch.empty(2, 4, 37, 64, dtype=BF16, device=device)
    for out, returned in ((None, call()), (target, call(out=target))):
        assert out is None or returned[0] is out
        assert returned[0].is_contiguous() and torch.equal(returned[0].transpose(1, 2), expected)
        assert torch.equal(returned[1], lse)


@pytest.mark.parametrize("backend", KERNELS)
def test_heads_more_than_2_31_elements_apart(device, run, backend):
    """Addresses need 64 bits; only the pages in use are ever touched."""
    q, k, v = dense(device, 1, 3, 5, 2, 2, 64, BF16)
    far = 2**31 + 64
    storage = torch.empty(far + 5 * 64, dtype=BF16, device=device)
    check_dense(run, backend, q, storage.as_strided((1, 5, 2, 64), (1, 64, far, 1)).copy_(k), v)
    check_dense(run, backend, q, k, storage.as_strided((1, 5, 2, 64), (1, 64, far, 1)).copy_(v))


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_that_see_nothing(device, run, backend):
    q, k, v = dense(device, 2, 150, 20, 2, 1, 64, BF16)
    out, lse = check_dense(run, backend, q, k, v, causal=True)
    assert (out[:, :130] == 0).all() and (lse[:, :, :130] == -math.inf).all()
    assert (lse[:, :, 130:] > -math.inf).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_keys(device, run, backend):
    q, k, v = dense(device, 2, 5, 0, 2, 1, 64, BF16)
    for causal in (False, True):
        out, lse = run(backend, aiter_like.flash_attn_func, q, k, v, causal=causal, return_lse=True)
        assert (out == 0).all() and (lse == -math.inf).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty(device, backend):
    for batch, seqlen, heads in ((0, 5, 2), (2, 0, 2), (2, 5, 0)):
        q, k, v = dense(device, batch, seqlen, 7, heads, min(heads, 1), 64, BF16)
        out, lse = aiter_like.flash_attn_func(q, k, v, return_lse=True, backend=backend)
        assert out.shape == q.shape and lse.shape == (batch, heads, seqlen)


@pytest.mark.parametrize("bits", (0x7FC0, 0x7FFF, -1, 0x7F81))  # quiet, all payload, negative, signalling
@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_reaches_every_row_that_sees_it(device, run, backend, bits):
    nan = torch.tensor([bits], dtype=torch.int16).view(BF16).to(device)[0]
    for rounding in (0, 1, 2):
        call = functools.partial(run, backend, aiter_like.flash_attn_func, causal=True, how_v3_bf16_cvt=rounding)
        q, k, v = dense(device, 1, 70, 70, 2, 1, 64, BF16)
        wrong = q.clone()
        wrong[0, 40, 1, 3] = nan
        out = call(wrong, k, v)
        assert out[0, 40, 1].isnan().all()
        assert not out[0, :, 0].isnan().any() and not out[0, :40, 1].isnan().any() and not out[0, 41:, 1].isnan().any()
        wrong = k.clone()
        wrong[0, 30, 0, 5] = nan
        out = call(q, wrong, v)
        assert out[0, 30:].isnan().all() and not out[0, :30].isnan().any()
        wrong = v.clone()
        wrong[0, 30, 0, 5] = nan
        out = call(q, k, wrong)
        assert out[0, 30:, :, 5].isnan().all() and not out[..., :5].isnan().any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_infinite_value_stays_in_its_column(device, run, backend):
    q, k, v = dense(device, 1, 20, 70, 2, 1, 64, BF16)
    v[0, 69, 0, 5] = math.inf
    out = run(backend, aiter_like.flash_attn_func, q, k, v)
    assert (out[..., 5] == math.inf).all() and out[..., :5].isfinite().all() and out[..., 6:].isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_repeats_bit_for_bit(device, run, backend):
    q, k, v = dense(device, 2, 100, 200, 4, 2, 64, BF16)
    first = run(backend, aiter_like.flash_attn_func, q, k, v, return_lse=True)
    for _ in range(2):
        again = run(backend, aiter_like.flash_attn_func, q, k, v, return_lse=True)
        assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])


def test_options_that_mean_nothing_are_accepted(device, run):
    q, k, v = dense(device, 1, 20, 30, 2, 1, 64, BF16)
    plain, causal = (run("triton", aiter_like.flash_attn_func, q, k, v, causal=c) for c in (False, True))
    for options in ({"window_size": (-1, -1)}, {"window_size": [-1, -1, 0]}, {"window_size": None}, {"dropout_p": 0},
                    {"num_splits": 3}, {"deterministic": False}, {"window_size": (-1, -1, 7)},
                    {"round_mode": "rtna", "how_v3_bf16_cvt": 1}):
        assert torch.equal(plain, run("triton", aiter_like.flash_attn_func, q, k, v, **options))
    assert torch.equal(causal, run("triton", aiter_like.flash_attn_func, q, k, v, window_size=(-1, 0)))
    out, probabilities = run("triton", aiter_like.flash_attn_func, q, k, v, return_attn_probs=True)
    assert torch.equal(out, plain) and probabilities.numel() == 0


@pytest.mark.parametrize("backend", KERNELS)
def test_gradient(device, run, backend):
    """After every forward, also of swapped layout; as by torch alone."""
    tensors = dense(device, 1, 20, 9, 4, 2, 64, BF16)
    sink = cases.random(device, (4,), torch.float32)

    def gradients(backend, options, tensors):
        leaves = [tensor.detach().requires_grad_() for tensor in tensors]
        out, lse = run(backend, aiter_like.flash_attn_func, *leaves, return_lse=True, causal=True, **options)
        (out.float().square().sum() + lse[:, :, 11:].sum()).backward()
        return [leaf.grad for leaf in leaves]

    expected = gradients("torch", {}, tensors)
    assert not expected[0][:, :11].any()  # rows that see nothing
    swapped = [tensor.transpose(1, 2) for tensor in tensors]
    for found in (gradients(backend, {}, tensors),
                  [grad.transpose(1, 2) for grad in gradients(backend, {"layout": "bhsd"}, swapped)]):
        for got, want in zip(found, expected, strict=True):
            torch.testing.assert_close(got.float(), want.float(), rtol=2e-2, atol=2e-2)
    bias = cases.random(device, (20, 9), torch.float32).requires_grad_()
    aiter_like.flash_attn_func(*tensors, bias=bias, sink_ptr=sink).float().square().sum().backward()
    assert bias.grad.isfinite().all() and bias.grad.any()
    with pytest.raises(ValueError, match="out must be None"):
        gradients(backend, {"out": torch.empty_like(tensors[0])}, tensors)


@functools.cache
def everything(seed):
    """Rows of test_everything. strides: elements between dimensions, and of the base where the backend takes any."""
    return covering({
        "seqlen_q": cases.LENGTHS, "seqlen_k": cases.LENGTHS, "causal": (False, True), "heads": HEADS,
        "dtype": cases.DTYPES, "head_dim": (64, 128), "rounding": (0, 1, 2), "batch": (1, 2),
        "strides": (((0, 0, 0, 0), 0), ((1, 1, 0, 8), 1), ((0, 2, 1, 3), 0))}, seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(8))
@pytest.mark.parametrize("backend", ("hip", "ck", "torch"))
def test_everything(device, run, seed, backend, part):
    """Not all 43,200 combinations, but a covering design of about 110, new in each run (--seed repeats one): each value
    occurs with each of every other factor, so every two lengths with one another, and each with either mask, every
    grouping of heads, every rounding, all strides, each dtype, head dimension and batch size.

    Triton's, whose compilations take longer: test_grid_of_lengths of test_flash_attn_fwd_triton.py.
    """
    for index, row in enumerate(everything(seed)[part::8]):
        tensors = dense(device, row["batch"], row["seqlen_q"], row["seqlen_k"], *row["heads"], row["head_dim"],
                        row["dtype"], seed=index)
        padding, offset = row["strides"]
        if backend == "hip":  # whose rows begin at multiples of 16 bytes
            padding, offset = (*padding[:3], 8 if padding[3] else 0), 0
        views = [strided_like(tensor, padding, offset) for tensor in tensors]
        check_dense(run, backend, *views, causal=row["causal"], rounding=row["rounding"])


def bench() -> None:
    """Forward beside PyTorch's: cuDNN, FlashAttention 2, FlexAttention."""
    import bench_peers
    import benching

    device = torch.device("cuda")

    def peers(q, k, v, causal):
        calls = bench_peers.torch_attention(*(tensor.transpose(1, 2).contiguous() for tensor in (q, k, v)), causal)
        return {name: lambda call=call: call().transpose(1, 2) for name, call in calls.items()}

    def case(shape, causal, seed):
        batch, heads, kv_heads, seqlen, head_dim = shape
        generator = torch.Generator(device).manual_seed(seed)
        q, k, v = (torch.randn(batch, seqlen, count, head_dim, dtype=BF16, device=device, generator=generator)
                   for count in (heads, kv_heads, kv_heads))
        calls = benching.by_backend(aiter_like.flash_attn_func, q, k, v, causal=causal, how_v3_bf16_cvt=0)

        def check(out):
            """The last rows of the first heads, which the lengths' difference leaves where they are."""
            count = heads // kv_heads
            return check_attention(out[:1, -64:, :count], None, q[:1, -64:, :count], k[:1, :, :1], v[:1, :, :1],
                                   causal=causal)

        flops = 4 * batch * heads * seqlen**2 * head_dim // (2 if causal else 1)
        return benching.Case(f"{','.join(map(str, shape))}{' causal' if causal else ''}", sum(
            x.numel() * 2 for x in (q, q, k, v)), {**calls, **peers(q, k, v, causal)}, check, flops=flops)

    def all_cases():
        a, b = (torch.randn(8192, 8192, dtype=BF16, device=device) for _ in range(2))
        yield benching.Case("8192³", 6 * 8192**2, {"matmul": lambda: a @ b}, lambda out: 0.0, flops=2 * 8192**3)
        for shape, causal in cases.BENCH_SHAPES:
            yield benching.rotating(functools.partial(case, shape, causal))

    benching.table("flash_attn_func", all_cases())
