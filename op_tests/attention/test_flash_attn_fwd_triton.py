# SPDX-License-Identifier: MIT
"""Backend "triton" of flash_attn_fwd: every feature against float64, memory safety, each way to lay out the work."""

import functools
import math

import pytest
import torch
import triton
from attention_cases import check_dense, check_varlen, dense, features, packed
from covering import covering
from hopper_code import Hopper, compiled_for_hopper, disassembled

import aiter_like
from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.jit.triton_launch import Launcher
from aiter_like.ops.attention.call import AttentionCall, dense_call
from aiter_like.ops.attention.flash_attn_fwd import flash_attn_fwd, triton_kernels
from aiter_like.testing import strided_like
from aiter_like.testing.attention import check_attention

BF16, F16 = torch.bfloat16, torch.float16
WINDOWS = ((0, 0), (17, 5), (-1, 40), (64, -1), (100, 0, 3), (30, 70, 70), (20, 0, 300))
SEQUENCES = ((5, 70, 0, 130, 1), (40, 70, 9, 0, 200))  # lengths of queries and keys
FEATURES = ("softcap", "sink", "alibi per sequence", "bias per head")


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_windows(device, run, window):
    """Tiles outside the window are left out, those of sink tokens are not; with more queries than keys too."""
    for lengths in ((140, 300), (150, 70)):
        check_dense(run, "triton", *dense(device, 1, *lengths, 1, 1, 64, BF16), window_size=window)


@pytest.mark.parametrize("name", FEATURES)
def test_features(device, run, name):
    batch, heads, rows, keys = 2, 4, 140, 200
    options = features(device, BF16, heads, rows, keys, batch)[name]
    check_dense(run, "triton", *dense(device, batch, rows, keys, heads, 2, 64, BF16), causal=True, **options)


@pytest.mark.parametrize("head_dim, head_dim_v", ((192, 128), (96, 40), (33, 65)))
def test_head_dimensions(device, run, head_dim, head_dim_v):
    q, k, v = dense(device, 1, 70, 140, 2, 1, head_dim, F16, head_dim_v=head_dim_v)
    check_dense(run, "triton", q, k, v, rounding=2 if head_dim == 96 else 0, causal=True)


def test_packed_sequences(device, run):
    """Empty ones among them: rows without keys, keys without rows."""
    for rounding, options in ((1, {"causal": True}), (0, {"window_size": (20, 3, 5)})):
        check_varlen(run, "triton", *packed(device, *SEQUENCES, 4, 2, 64, BF16), rounding=rounding, **options)


@pytest.mark.parametrize("name", ("all", "few rows"))
def test_all_features_at_once(device, run, name):
    """Packed sequences with slopes, bias, sink, softcap, window and sink tokens; "few rows": a group shares a tile."""
    lengths = SEQUENCES if name == "all" else ((5, 30, 0, 9, 1), SEQUENCES[1])
    found = features(device, torch.float32, 4, sum(lengths[0]), max(lengths[1]))
    options = found["softcap"] | found["sink"] | found["alibi"] | found["bias"] | {"window_size": (100, 20, 3)}
    check_varlen(run, "triton", *packed(device, *lengths, 4, 2, 64, F16), **options)


def test_lengths_of_a_cache(device, run):
    """Keys beyond a sequence's length are NaN; one query: the keys are split, and the parts added up."""
    for queries, splits in ((20, 0), (1, 0), (1, 3)):
        q, k, v = dense(device, 3, queries, 700, 4, 2, 64, BF16)
        lengths = torch.tensor([700, 0, 70], dtype=torch.int32, device=device)
        for cache in (k, v):
            for sequence, length in enumerate(lengths.tolist()):
                cache[sequence, length:] = math.nan
        call = functools.partial(run, "triton", aiter_like.flash_attn_with_kvcache, q, k, v, cache_seqlens=lengths,
                                 return_softmax_lse=True, num_splits=splits, window_size=(600, 0))
        out, lse = call()
        check_attention(out, lse, q, k, v, None, True, seqlens_k=lengths, window_size=(600, 0))
        assert torch.equal(out, call()[0])


def test_dropout(device, run):
    """The mask of philox.py, the same whatever the tiles; the log-sum-exp knows nothing of it."""
    q, k, v = dense(device, 2, 140, 200, 2, 1, 64, BF16)
    rng_state = torch.tensor([0x123456789, 2**33 + 5], device=device)
    for backend in ("triton", "torch"):
        out, lse = torch.empty_like(q), torch.empty(2, 2, 140, device=device)
        run(backend, flash_attn_fwd, dense_call(out, lse, q, k, v, rng_state=rng_state, window_right=0, dropout_p=0.3))
        check_attention(out, lse, q, k, v, None, True, dropout_p=0.3, rng_state=rng_state)


@pytest.mark.parametrize("head_dim, options", ((128, {"causal": True}), (80, {"window_size": (60, 30, 4)})), ids=str)
def test_fp8(device, run, head_dim, options):
    fp8 = dtypes.fp8_of(target_of(device).arch)
    q, k, v = (tensor.to(fp8) for tensor in dense(device, 1, 100, 200, 4, 2, head_dim, BF16))
    descales = [torch.tensor([value], device=device) for value in (0.5, 1.5, 3.0)]
    out = run("triton", aiter_like.flash_attn_fp8_pertensor_func, q, k, v, *descales, **options)
    check_attention(out, None, q, k, v, descales=[value.item() for value in descales], **options)


def test_lengths_that_lie_touch_nothing_outside(device, run):
    """The bounds checker knows the tensors; what comes out is not specified."""
    q, k, v, *_ = packed(device, (70, 30), (60, 90), 2, 2, 64, BF16)
    out, lse = torch.full_like(q, math.nan), torch.full((2, 100), math.nan, device=device)
    bias = torch.zeros(100, 50, device=device)
    for starts in ([0, 500, 100], [0, -7, 100], [90, 20, 3], [2**31 - 1, -(2**31), 2**31 - 1]):
        lying = torch.tensor(starts, dtype=torch.int32, device=device)
        for longest in (1, 50, 10**6):
            run("triton", flash_attn_fwd, AttentionCall(
                out, lse, q, k, v, cu_seqlens_q=lying, cu_seqlens_k=lying, bias=bias if longest == 50 else None,
                max_seqlen_q=longest, max_seqlen_k=longest, softmax_scale=0.125, window_right=0))
    lengths = torch.tensor([10**9, -5], dtype=torch.int32, device=device)
    q, k, v = dense(device, 2, 3, 70, 2, 2, 64, BF16)
    flash_attn_fwd(dense_call(torch.empty_like(q), None, q, k, v, seqlens_k=lengths, window_right=0), backend="triton")


@pytest.mark.parametrize("params", ({"TMA": 1}, {"XCDS": 8}, {"TMA": 1, "XCDS": 3, "BLOCK_M": 64, "BLOCK_N": 32}),
                         ids=str)
def test_ways_to_lay_out_the_work(device, params):
    """What the tuner may choose changes no value but by the order of sums; descriptors only where addresses allow."""
    from aiter_like.ops.attention.triton import flash_attn_fwd

    for tensors in (dense(device, 2, 200, 300, 3, 3, 64, BF16), dense(device, 1, 200, 300, 3, 3, 60, BF16)):
        q, k, v = tensors
        out, lse = torch.empty_like(q), torch.empty(len(q), 3, 200, device=device)
        call = dense_call(out, lse, q, k, v, window_right=0)
        Launcher(functools.partial(flash_attn_fwd.flash_attn_fwd, **params))(call)
        check_attention(out, lse, q, k, v, None, True)


@pytest.mark.parametrize("rows, launches", ((300, 1), (1, 2)), ids=("whole", "split"))
def test_repeated_calls(device, run, monkeypatch, rows, launches):
    """Of the same sizes: other numbers, other addresses. Launches are planned once per alignment."""
    from aiter_like.jit.triton_launch import Launch

    planned, original = [], Launch.planned
    monkeypatch.setattr(Launch, "planned", lambda self, trace: planned.append(self.kernel) or original(self, trace))
    q, k, v = dense(device, 1, rows, 700, 4, 2, 64, BF16)
    for count, offset in enumerate((0, 3, 8, 1, 0)):
        memory = torch.empty(k.numel() + offset, dtype=BF16, device=device)
        keys = memory[offset:].view_as(k).copy_(k * (1 + count))
        out, lse = run("triton", aiter_like.flash_attn_func, q, keys, v, return_lse=True, round_mode="rtne")
        check_attention(out, lse, q, keys, v)
    assert len(planned) == 2 * launches


@pytest.fixture
def hopper(device, monkeypatch):
    """hopper(call): compiles what the call launches for sm_90, and gives it; nothing runs."""
    if device.type != "cpu":
        pytest.skip("static: the code for sm_90 is the same wherever the tests run")
    from aiter_like.ops.attention.triton import flash_attn_fwd

    with compiled_for_hopper(monkeypatch, flash_attn_fwd) as built:
        def compile_call(call, **params):
            built.clear()
            kernel = triton_kernels(flash_attn_fwd.target_of(None), call, **params)[0]
            flash_attn_fwd.flash_attn_fwd(call, kernel=kernel, **params)
            return built

        yield compile_call


@pytest.mark.parametrize("causal", (False, True), ids=("full", "causal"))
def test_products_on_hopper_are_asynchronous(hopper, tmp_path, causal):
    """Several wgmma between two waits: ptxas can give that up, and says so only to who asks for its messages."""
    q = torch.empty(1, 4096, 24, 128, dtype=BF16, device="meta")
    (kernel,) = hopper(dense_call(q, None, q, q, q, window_right=0 if causal else -1, num_splits=1), TMA=0)
    sass = disassembled(kernel, tmp_path)
    assert sass.count("HGMMA") >= 32 and sass.count("WARPGROUP.ARRIVE") <= 4


@pytest.mark.parametrize("head_dim, spills", ((64, 24), (80, 24), (128, 24), (256, 64)))
def test_specialised_warps_on_hopper(hopper, tmp_path, head_dim, spills):
    """Registers move from the warp that loads to those that attend, which spill no sums (128 registers at 256): a few
    addresses at most."""
    q = torch.empty(2, 4096, 24, head_dim, dtype=BF16, device="meta")
    (kernel,) = hopper(dense_call(q, torch.empty(2, 24, 4096, device="meta"), q, q, q, window_right=0, num_splits=1,
                                  how_v3_bf16_cvt=1))
    sass = disassembled(kernel, tmp_path)
    assert sass.count("HGMMA") >= 24 and "USETMAXREG" in sass and "UTMALDG" in sass
    assert sass.count("STL") + sass.count("LDL") <= spills


VARIANTS = {name: (BF16, 64, 64, name) for name in ("softcap", "alibi", "bias", "sink", "dropout", "all")} | {
    f"fp8 {dim}, {dim_v}": (torch.float8_e4m3fn, dim, dim_v, "") for dim, dim_v in ((8, 8), (80, 80), (96, 40))}


@pytest.mark.parametrize("variant", VARIANTS)
def test_hopper_takes_every_product_and_feature(hopper, monkeypatch, tmp_path, variant):
    """As far as Triton's first dialect, where operands that NVIDIA cannot multiply are refused."""
    from triton.backends.nvidia.compiler import CUDABackend

    def stages(self, stages, options, language=None):
        stages["ttir"] = lambda module, metadata: metadata.update(name="", shared=0) or module
        stages["cubin"] = lambda module, metadata: b""

    monkeypatch.setattr(CUDABackend, "add_stages", stages)
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    monkeypatch.setattr(Hopper, "get_current_device", lambda self: 1)  # Triton keeps what it compiled by device
    dtype, dim, dim_v, feature = VARIANTS[variant]
    q, k, v = (torch.empty(1, rows, 4, width, dtype=dtype, device="meta")
               for rows, width in ((140, dim), (200, dim), (200, dim_v)))
    found = features(torch.device("meta"), BF16, 4, 140, 200)
    terms = {"alibi": {"alibi_slopes": found["alibi"]["alibi_slopes"]}, "bias": {"bias": found["bias"]["bias"]},
             "sink": {"sink": found["sink"]["sink_ptr"]}, "softcap": {"softcap": 2.0},
             "dropout": {"dropout_p": 0.3, "rng_state": torch.empty(2, dtype=torch.int64, device="meta")}}
    options = {name: value for part, fields in terms.items() if feature in (part, "all")
               for name, value in fields.items()}
    call = dense_call(torch.empty(1, 140, 4, dim_v, dtype=BF16, device="meta"), None, q, k, v, window_right=0,
                      num_splits=1, **options)
    assert "tt.dot" in hopper(call)[0].asm["ttir"]


def check_terms(device, run, *, shape, terms, window, few_rows, kv_heads, is_packed, rounding):
    """One row of test_grid_of_terms."""
    (dtype, dim), heads = shape, 4
    lengths = ((5, 30, 0, 9, 1), SEQUENCES[1]) if few_rows else SEQUENCES
    found = features(device, torch.float32 if is_packed else dtype, heads, sum(lengths[0]), max(lengths[1]))
    options = {"window_size": window, "rounding": rounding}
    for bit, name in enumerate(("softcap", "alibi", "bias", "sink")):
        options |= found[name] if terms >> bit & 1 else {}
    if is_packed:
        check_varlen(run, "triton", *packed(device, *lengths, heads, kv_heads, dim, dtype), **options)
    else:
        tensors = dense(device, 1, sum(lengths[0]), max(lengths[1]), heads, kv_heads, dim, dtype)
        check_dense(run, "triton", *tensors, **options)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(8))
def test_grid_of_terms(device, run, seed, part):
    """Sets of softcap, ALiBi, bias and sink, windows, rows, layouts: not all 20,736 combinations, but a covering design
    of 144, new in each run (--seed repeats one). Each value occurs with each of every other factor: each set of
    terms under each window, with each head dimension and so on.
    """
    factors = {"shape": ((BF16, 32), (BF16, 128), (F16, 96), (F16, 256)), "terms": range(16),
               "window": ((-1, -1), (-1, 0), *WINDOWS), "few_rows": (False, True), "kv_heads": (1, 2, 4),
               "is_packed": (False, True), "rounding": (0, 1, 2)}
    for row in covering(factors, seed)[part::8]:
        check_terms(device, run, **row)


def check_lengths(device, run, *, seqlen_q, seqlen_k, dims, dtype, heads, batch, causal, rounding, padding, offset):
    """One row of test_grid_of_lengths."""
    tensors = dense(device, batch, seqlen_q, seqlen_k, *heads, dims[0], dtype, seqlen_k, dims[1])
    views = [strided_like(tensor, padding, offset) for tensor in tensors]
    check_dense(run, "triton", *views, rounding=rounding, causal=causal)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(4))
def test_grid_of_lengths(device, run, seed, part):
    """Lengths, head dimensions, types, head groups, masks, roundings, strides: a covering design of about 100 of the
    403,200 combinations, new in each run (--seed repeats one). Each value occurs with each of every other factor: every
    pair of lengths, each of them with each head dimension, with and without a causal mask and so on.
    """
    lengths = (1, 15, 63, 64, 65, 127, 200, 383, 385, 1000)
    factors = {"seqlen_q": lengths, "seqlen_k": lengths,
               "dims": ((32, 32), (64, 64), (72, 40), (96, 96), (128, 128), (192, 128), (256, 256)),
               "dtype": (BF16, F16), "heads": ((1, 1), (2, 2), (4, 1), (6, 2)), "batch": (1, 2),
               "causal": (False, True), "rounding": (0, 1, 2),
               "padding": ((0, 0, 0, 0), (1, 1, 0, 8), (0, 2, 1, 3)), "offset": (0, 1)}
    for row in covering(factors, seed)[part::4]:
        check_lengths(device, run, **row)
