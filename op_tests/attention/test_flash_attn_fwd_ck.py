# SPDX-License-Identifier: MIT
"""Backend "ck" of flash_attn_fwd: its instances' names and registers, and every feature against float64."""

import functools
import itertools
import math

import pytest
import torch
from attention_cases import check_dense, check_varlen, dense, far_scores, features, packed
from covering import covering

import aiter_like
from aiter_like import dtypes, sim
from aiter_like.device import target_of
from aiter_like.dispatch import self_check
from aiter_like.errors import UnsupportedError
from aiter_like.modules import build
from aiter_like.ops.attention.call import AttentionCall, dense_call
from aiter_like.ops.attention.checks import check_call
from aiter_like.ops.attention.flash_attn_fwd import flash_attn_fwd
from aiter_like.ops.attention.flash_attn_fwd_ck import (
    TileInstance,
    ck_self_check,
    ck_space,
    flash_attn_fwd_ck,
    tile_instance,
)
from aiter_like.testing import strided_like
from aiter_like.testing.attention import check_attention

BF16, F16 = torch.bfloat16, torch.float16
# dtype, head dimension, causal, rounding: the instances that the tests of values share
PLAIN = [(BF16, 32, True, 0), (BF16, 64, False, 2), (BF16, 64, True, 0), (F16, 96, True, 0), (BF16, 128, True, 0),
         (BF16, 128, False, 1), (F16, 256, True, 2)]
WINDOWS = ((0, 0), (17, 5), (-1, 40), (64, -1), (100, 0, 3), (30, 70, 70), (20, 0, 300))
SEQUENCES = ((5, 70, 0, 130, 1), (40, 70, 9, 0, 200))  # lengths of queries and keys


def need_gfx942(device):
    """For tests that go past the dispatcher, which otherwise says it."""
    if (arch := target_of(device).arch) != "gfx942":
        pytest.skip(f"ck: an MFMA kernel for gfx942, not for {arch}")


@pytest.mark.parametrize("dtype, head_dim, causal, rounding", PLAIN)
def test_plain(device, run, dtype, head_dim, causal, rounding):
    """One key, fewer keys than rows, none; grouped heads; blocks of rows and of keys that are not full."""
    for lengths, heads in (((1, 1), (1, 1)), ((70, 33), (2, 2)), ((140, 200), (4, 2)), ((3, 0), (1, 1))):
        check_dense(run, "ck", *dense(device, 1 + lengths[0] % 2, *lengths, *heads, head_dim, dtype),
                    rounding=rounding, causal=causal)


@pytest.mark.parametrize("scale", (1e5, 3e7, 1e20))
def test_scores_far_from_zero(device, run, scale):
    for options in ({"causal": True}, {"window_size": (30, 20)}):
        q, k, v = far_scores(device, 90, 70, 64, BF16)
        check_dense(run, "ck", q, k, v, softmax_scale=scale, **options)
        check_dense(run, "ck", -q.abs(), k.abs() + 1, v, softmax_scale=scale, **options)
    check_dense(run, "ck", *far_scores(device, 70, 330, 128, F16), softmax_scale=scale, causal=True)


def test_head_dimensions_of_latent_attention(device, run):
    check_dense(run, "ck", *dense(device, 1, 70, 140, 2, 1, 192, BF16, head_dim_v=128), causal=True)


def test_head_dims_between_are_padded(device, run):
    """80 in a module for 96: columns beyond are zeros in q, k, v and left alone in out."""
    q, k, v = dense(device, 1, 40, 70, 2, 1, 80, F16)
    out = strided_like(torch.zeros_like(q), (0, 0, 3, 21))
    check_dense(run, "ck", q, k, v, causal=True, out=out)
    assert out.as_strided((40, 2, 21), (5 * 101, 101, 1), 80).isnan().all()


def test_strides_are_free(device, run):
    """Padding between all dimensions and a base that is aligned to nothing: NaN around, and in no result."""
    q, k, v = dense(device, 2, 70, 100, 4, 2, 64, BF16)
    views = (strided_like(tensor, (0, 1, 3, 5), offset=3) for tensor in (q, k, v))
    expected, _ = check_dense(run, "ck", q, k, v, rounding=2)
    assert torch.equal(check_dense(run, "ck", *views, rounding=2)[0], expected)
    swapped = (tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (q, k, v))  # [batch, heads, rows, dim]
    assert torch.equal(check_dense(run, "ck", *swapped, rounding=2)[0], expected)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_windows(device, run, window):
    """Blocks before and behind the window are left out, those of sink tokens are not; with more queries than keys too.
    """
    for lengths in ((140, 300), (150, 70)):
        check_dense(run, "ck", *dense(device, 1, *lengths, 1, 1, 64, BF16), window_size=window)


FEATURES = ("softcap", "sink", "alibi", "alibi per sequence", "bias", "bias per head")


@pytest.mark.parametrize("name", FEATURES)
def test_features(device, run, name):
    batch, heads, rows, keys = 2, 4, 70, 130
    options = features(device, BF16, heads, rows, keys, batch)[name]
    check_dense(run, "ck", *dense(device, batch, rows, keys, heads, 2, 64, BF16), causal=True, **options)


@pytest.mark.parametrize("dtype", (BF16, torch.float32), ids=str)
def test_bias_that_hides_by_its_size(device, run, dtype):
    """torch.finfo(dtype).min hides beside other keys; where all keys have it, none: their mean. -inf hides always, and
    NaN stays NaN.
    """
    q, k, v = dense(device, 1, 70, 130, 2, 1, 64, BF16)
    lowest = torch.finfo(dtype).min
    bias = torch.zeros(70, 130, dtype=dtype, device=device)
    bias[:20, 50:], bias[20], bias[21, :100], bias[21, 100:] = lowest, lowest, -math.inf, lowest
    bias[22] = -math.inf
    bias[23:, :60], bias[23:, 60:] = lowest, -math.inf
    out = run("ck", aiter_like.flash_attn_func, q, k, v, bias=bias, how_v3_bf16_cvt=0)
    check_attention(out[:, :20], None, q[:, :20], k[:, :50], v[:, :50])
    for rows, keys in ((slice(20, 21), slice(0, 130)), (slice(21, 22), slice(100, 130)), (slice(23, 70), slice(0, 60))):
        check_attention(out[:, rows], None, q[:, rows] * 0, k[:, keys], v[:, keys])
    assert (out[:, 22] == 0).all()
    bias[5, 7] = math.nan
    out = run("ck", aiter_like.flash_attn_func, q, k, v, bias=bias, how_v3_bf16_cvt=0)
    assert out[0, 5].isnan().all() and not out[0, :5].isnan().any() and not out[0, 6:].isnan().any()


def test_packed_sequences(device, run):
    """Empty ones among them: rows without keys, keys without rows."""
    for rounding, options in ((0, {"causal": True}), (2, {}), (0, {"window_size": (20, 3, 5)})):
        check_varlen(run, "ck", *packed(device, *SEQUENCES, 4, 2, 64, BF16), rounding=rounding, **options)


def test_all_features_at_once(device, run):
    """Packed, fp32 bias: slopes, sink, softcap, window, sink tokens."""
    heads, total, longest = 4, sum(SEQUENCES[0]), max(SEQUENCES[1])
    found = features(device, torch.float32, heads, total, longest)
    options = found["softcap"] | found["sink"] | found["alibi"] | found["bias"] | {"window_size": (100, 20, 3)}
    check_varlen(run, "ck", *packed(device, *SEQUENCES, heads, 2, 128, F16), **options)


def test_lengths_of_a_cache(device, run):
    """Keys beyond a sequence's length are NaN."""
    q, k, v = dense(device, 3, 20, 150, 4, 2, 64, BF16)
    lengths = torch.tensor([150, 0, 70], dtype=torch.int32, device=device)
    for cache in (k, v):
        for sequence, length in enumerate(lengths.tolist()):
            cache[sequence, length:] = math.nan
    out, lse = run("ck", aiter_like.flash_attn_with_kvcache, q, k, v, cache_seqlens=lengths, return_softmax_lse=True)
    check_attention(out, lse, q, k, v, None, True, seqlens_k=lengths)


@pytest.mark.parametrize("head_dim, options", ((128, {"causal": True}), (80, {"window_size": (60, 30, 4)})), ids=str)
def test_fp8(device, run, head_dim, options):
    """The bound's unit is that of e4m3, 2^-4, since P is rounded to it, in steps of 2^-18 where it is small."""
    fp8 = dtypes.fp8_of(target_of(device).arch)
    q, k, v = (tensor.to(fp8) for tensor in dense(device, 1, 100, 200, 4, 2, head_dim, BF16))
    descales = [torch.tensor([value], device=device) for value in (0.5, 1.5, 3.0)]
    sink = torch.tensor([0.0, 1.0, -1.0, 4.0], device=device)
    out = run("ck", aiter_like.flash_attn_fp8_pertensor_func, q, k, v, *descales, sink_ptr=sink, **options)
    check_attention(out, None, q, k, v, sink=sink, descales=[value.item() for value in descales], **options)
    plain = run("ck", aiter_like.flash_attn_fp8_pertensor_func, q, k, v, None, None, None, **options)
    check_attention(plain, None, q, k, v, **options)


@pytest.mark.parametrize("scale", (1e-8, 1e-3, 5.0))
def test_scales(device, run, scale):
    check_dense(run, "ck", *dense(device, 1, 70, 130, 2, 2, 64, BF16), softmax_scale=scale, causal=True)


def test_growing_scores_rescale(device, run):
    """The largest score comes last, so every block of keys raises the running maximum."""
    q, k, v = dense(device, 1, 40, 300, 2, 2, 64, BF16)
    growth = torch.linspace(0.1, 3, 300, device=device).view(1, 300, 1, 1).bfloat16()
    check_dense(run, "ck", q.abs(), k.abs() * growth, v, causal=True)


def test_nan_reaches_the_rows_that_see_it(device, run):
    for name in range(3):
        tensors = dense(device, 1, 130, 130, 1, 1, 64, BF16)
        tensors[name][0, 100, 0, 7] = math.nan
        out, lse = run("ck", aiter_like.flash_attn_func, *tensors, causal=True, return_lse=True, how_v3_bf16_cvt=0)
        is_nan = out[0, :, 0].isnan()
        rows = torch.arange(130, device=device)
        sees = rows == 100 if name == 0 else rows >= 100
        assert is_nan[sees, 7].all() and torch.equal(lse[0, 0].isnan(), sees & (name < 2))
        assert torch.equal(is_nan.all(1), sees & (name < 2))  # 0 · NaN of a key that is hidden: only in its column of v


def test_lengths_that_lie_touch_nothing_outside(device, run):
    """The bounds checker knows the tensors; what comes out is not specified."""
    q, k, v, *_ = packed(device, (70, 30), (60, 90), 2, 2, 64, BF16)
    out, lse = torch.full_like(q, math.nan), torch.full((2, 100), math.nan, device=device)
    for starts in ([0, 500, 100], [0, -7, 100], [90, 20, 3], [2**31 - 1, -(2**31), 2**31 - 1]):
        lying = torch.tensor(starts, dtype=torch.int32, device=device)
        for longest in (0, 50, 10**6):
            run("ck", flash_attn_fwd, AttentionCall(
                out, lse, q, k, v, cu_seqlens_q=lying, cu_seqlens_k=lying, max_seqlen_q=longest, max_seqlen_k=longest,
                softmax_scale=0.125, window_right=0))


def calls(device):
    """Every kind of instance."""
    for dtype, dim, dim_v in ((BF16, 64, 64), (F16, 80, 40), (BF16, 192, 128), (torch.float8_e4m3fnuz, 128, 128)):
        q, k, v = (torch.zeros(1, 5, 4, size, device=device).to(dtype) for size in (dim, dim, dim_v))
        out = torch.zeros(1, 5, 4, dim_v, dtype=BF16 if dtype.itemsize == 1 else dtype, device=device)
        bias, slopes = torch.zeros(1, 1, 5, 5, device=device), torch.zeros(4, device=device)
        for masked, terms, rounding in itertools.product((False, True), range(8), range(3)):
            yield dense_call(
                out, None, q, k, v, bias=bias if terms & 1 else None, alibi_slopes=slopes if terms & 2 else None,
                window_right=0 if masked else -1, softcap=8.0 if terms & 4 else 0.0, how_v3_bf16_cvt=rounding)


def test_self_check_takes_the_instance_of_the_call(device):
    need_gfx942(device)
    for call in calls(device):
        case = ck_self_check(device, call)
        assert tile_instance(case) == tile_instance(call)
        check_call("flash_attn_fwd", case)


def test_self_check_passes(device, run):
    """With the instances of other tests: masked, no term or one of them."""
    for call in calls(device):
        terms = (call.bias is not None) + (call.alibi_slopes is not None) + (call.softcap > 0)
        if call.head_dim == 64 and call.mask == "causal" and call.how_v3_bf16_cvt == 0 and terms < 2:
            call = call._replace(bias=None if call.bias is None else call.bias.to(BF16))
            error, tolerance = self_check.compare(flash_attn_fwd, functools.partial(run, "ck", flash_attn_fwd.run),
                                                  ck_self_check(device, call))
            assert error <= tolerance


def test_repeats_exactly(device, run):
    """Whatever the order of the waves."""
    inputs = dense(device, 1, 140, 200, 2, 1, 64, BF16)
    expected = run("ck", aiter_like.flash_attn_func, *inputs, causal=True, how_v3_bf16_cvt=0)
    for seed in range(3):
        if device.type == "cpu":
            with sim.enabled("strict", fuzz=seed) as session:
                out = run("ck", aiter_like.flash_attn_func, *inputs, causal=True, how_v3_bf16_cvt=0)
            (counts,) = session.counters.values()
            assert "flat" not in counts["by_class"]  # the compiler knows every pointer's address space
        else:
            out = run("ck", aiter_like.flash_attn_func, *inputs, causal=True, how_v3_bf16_cvt=0)
        assert torch.equal(out, expected)


@functools.cache
def instances_and_lengths(seed):
    """Rows of test_grid. element: and rounding."""
    lengths = (1, 15, 63, 64, 65, 127, 200, 385)
    return covering({
        "element": (("bf16", 0), ("bf16", 1), ("bf16", 2), ("fp16", 0), ("fp16", 2), ("fp8", 0)),
        "dims": ((32, 32), (64, 64), (72, 40), (96, 96), (128, 128), (192, 128), (256, 256), (64, 256)),
        "causal": (False, True), "heads": ((1, 1), (4, 1), (6, 2)), "batch": (1, 2), "seqlen_q": lengths,
        "seqlen_k": lengths}, seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(8))
def test_grid(device, run, seed, part):
    """Instances without further terms, lengths, groups of heads: not all 36,864 combinations, but a covering design of
    about 70, new in each run (--seed repeats one). Each value occurs with each of every other factor: every two
    lengths, each element and rounding with each of the head dimensions, each of those with either mask and any length.
    """
    for index, row in enumerate(instances_and_lengths(seed)[part::8]):
        (element, rounding), (dim, dim_v), causal = row["element"], row["dims"], row["causal"]
        if element == "fp8":
            dim, dim_v = (-(-size // 16) * 16 for size in (dim, dim_v))  # 16 bytes
        tensors = dense(device, row["batch"], row["seqlen_q"], row["seqlen_k"], *row["heads"], dim, BF16, index, dim_v)
        dtype = dtypes.fp8_of(target_of(device).arch) if element == "fp8" else dtypes.DTYPES[element]
        q, k, v = (tensor.to(dtype) for tensor in tensors)
        if element == "fp8":
            out = run("ck", aiter_like.flash_attn_fp8_pertensor_func, q, k, v, None, None, None, causal=causal)
            check_attention(out, None, q, k, v, None, causal)
        else:
            check_dense(run, "ck", q, k, v, rounding=rounding, causal=causal)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(8))
def test_grid_of_terms(device, run, seed, part):
    """Sets of softcap, ALiBi and bias (of q's type, or fp32 where packed), with a sink: not all 448 combinations with
    head dimensions, windows and layouts, but a covering design of about 60, new in each run (--seed repeats one). Each
    set occurs under each window and with each head dimension and layout, each of those with each other.
    """
    heads, rows, keys = 4, sum(SEQUENCES[0]), max(SEQUENCES[1])
    factors = {"shape": ((BF16, 32), (BF16, 128), (F16, 96), (F16, 256)), "terms": range(8), "window": WINDOWS,
               "is_packed": (False, True)}
    for row in covering(factors, seed)[part::8]:
        dtype, dim = row["shape"]
        found = features(device, torch.float32 if row["is_packed"] else dtype, heads, rows, keys)
        options = {"window_size": row["window"], **found["sink"]}
        for bit, name in enumerate(("softcap", "alibi", "bias")):
            options |= found[name] if row["terms"] >> bit & 1 else {}
        if row["is_packed"]:
            check_varlen(run, "ck", *packed(device, *SEQUENCES, heads, 2, dim, dtype), **options)
        else:
            check_dense(run, "ck", *dense(device, 1, rows, keys, heads, 2, dim, dtype), **options)


@pytest.mark.parametrize("window", ((-1, 0, 0), (40, 3, 20)), ids=str)
@pytest.mark.parametrize("is_packed", (False, True), ids=("dense", "packed"))
def test_async_pipeline(device, is_packed, window):
    """The tuner's alternative, over blocks that are skipped and blocks that some waves skip."""
    need_gfx942(device)
    q, k, v = dense(device, 2, 140, 300, 4, 2, 64, BF16)
    starts = None
    if is_packed:
        q, k, v, starts, *_ = packed(device, (70, 0, 70), (70, 0, 70), 4, 2, 64, BF16)
    out, lse = torch.full_like(q, math.nan), torch.full((*q.shape[:-3], 4, q.shape[-3]), math.nan, device=device)
    call = AttentionCall(
        out, lse, q, k, v, cu_seqlens_q=starts, cu_seqlens_k=starts, max_seqlen_q=q.shape[-3],
        max_seqlen_k=k.shape[-3], softmax_scale=0.125, window_left=window[0], window_right=window[1],
        sink_size=window[2])
    assert list(ck_space(target_of(device), call)) == [{"pipeline": "qrasync"}]
    function = flash_attn_fwd_ck.bind(target_of(device), call, pipeline="qrasync")
    if device.type == "cpu":
        sim.checked_call("qrasync", function, call, flash_attn_fwd.write_indices)
    else:
        function(*call)
    check_attention(out, lse, q, k, v, 0.125, cu_seqlens_q=starts, cu_seqlens_k=starts, window_size=window)


def test_pipelines_that_do_not_fit_are_refused(device):
    q, k, v = dense(device, 1, 8, 8, 1, 1, 192, BF16)
    call = dense_call(q, None, q, k, v)
    assert not list(ck_space(target_of(device), call))
    for name in ("qrasync", "qr"):
        with pytest.raises(ValueError, match="pipeline must be one of qrksvs, qrasync"):
            tile_instance(call, name)


def test_names_say_everything():
    """The name gives the instance back; two instances never share a name."""
    choices = (("bf16", "f16", "fp8"), ("bf16", "f16", "float"), (32, 192), (64, 128), (4, 8), ("qrksvs", "qrasync"),
               (False, True), ("", "bf16", "f16", "float"), (False, True), (False, True), (0, 1, 2))
    instances = [TileInstance(*fields) for fields in itertools.product(*choices)]
    assert all(TileInstance.parse(instance.name) == instance for instance in instances)
    assert len({instance.name for instance in instances}) == len(instances)
    assert instances[0].name == "bf16_obf16_d32x64_b128x64_w4_qrksvs_nmask_nbias_nalibi_ncap_rtne"
    with pytest.raises(ValueError, match="no name of an instance"):
        TileInstance.parse("bf16_obf16_d32x64_b128x64_w4_qrksvs_nmask_nbias_nalibi_rtne")


def test_explain_names_the_instance(device):
    q, k, v = dense(device, 1, 8, 8, 1, 1, 96, BF16)
    explanation = aiter_like.explain(aiter_like.flash_attn_func, q, k, v, causal=True)
    if explanation.target.arch == "gfx942":
        assert explanation.kernel == "flash_attn_fwd[bf16_obf16_d96x96_b128x64_w4_qrksvs_mask_nbias_nalibi_ncap_rtna]"


def test_what_it_refuses(device):
    for head_dim in (12, 264):
        q, k, v = dense(device, 1, 8, 8, 1, 1, head_dim, BF16)
        with pytest.raises(UnsupportedError, match="head dimensions must be multiples of 8, at most 256|MFMA"):
            aiter_like.flash_attn_func(q, k, v, backend="ck")
    q, k, v = dense(device, 1, 8, 8, 1, 1, 64, BF16)
    with pytest.raises(UnsupportedError, match="row stride of k from 64|MFMA"):
        aiter_like.flash_attn_func(q, k[:, :1].expand(1, 8, 1, 64), v, backend="ck")


# instance → VGPRs that it may have: 128 let four waves share a SIMD's 512, 168 three, 256 two
REGISTERS = {
    "bf16_obf16_d32x32_b128x64_w4_qrksvs_mask_nbias_nalibi_ncap_rtne": 128,
    "bf16_obf16_d64x64_b128x64_w4_qrksvs_nmask_nbias_nalibi_ncap_rtz": 168,
    "f16_of16_d96x96_b128x64_w4_qrksvs_mask_nbias_nalibi_ncap_rtne": 256,
    "bf16_obf16_d128x128_b128x64_w4_qrksvs_mask_nbias_nalibi_ncap_rtne": 256,
    "bf16_obf16_d128x128_b128x64_w4_qrksvs_nmask_nbias_nalibi_ncap_rtna": 256,
    "bf16_obf16_d192x128_b128x64_w8_qrksvs_mask_nbias_nalibi_ncap_rtne": 256,
    "f16_of16_d256x256_b128x64_w8_qrksvs_mask_nbias_nalibi_ncap_rtz": 256,
    "f16_of16_d128x128_b128x64_w8_qrksvs_mask_biasfloat_alibi_cap_rtne": 256,
    "bf16_obf16_d64x64_b128x64_w8_qrasync_mask_nbias_nalibi_ncap_rtne": 128,
}


@pytest.mark.parametrize("name", REGISTERS)
def test_instances_keep_their_registers(device, name):
    """No spills, no scratch; LDS for the workgroups that the registers allow."""
    if device.type != "cpu":
        pytest.skip("static: the code for gfx942 is the same wherever the tests run")
    tile = TileInstance.parse(name)
    library = build.ensure(flash_attn_fwd_ck.instance_spec(tile.instance(), "hip", "gfx942")).path.read_bytes()
    (kernel,) = sim.inspect(library[library.index(b"__CLANG_OFFLOAD_BUNDLE__"):]).values()
    assert kernel["vgprs"] <= REGISTERS[name]
    assert not any(kernel[nothing] for nothing in ("agprs", "vgpr_spills", "private_bytes"))
    # Into lanes of a VGPR.
    assert kernel["sgpr_spills"] <= (11 if tile.has_alibi and tile.has_softcap and tile.bias else 0)
    waves_per_simd = 512 // REGISTERS[name]
    assert kernel["lds_bytes"] * waves_per_simd * 4 // tile.waves <= 65536
