# SPDX-License-Identifier: MIT
"""flash_attn_func: every backend against float64, over dtypes, sizes, masks, strides; bad input; `--bench`: a table."""

from __future__ import annotations

import argparse
import functools
import itertools
import math

import attention_cases as cases
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import aiter_like
from aiter_like import sim
from aiter_like.errors import UnsupportedError
from aiter_like.jit import build
from aiter_like.ops.attention_fwd import _flash_attn_fwd_hip
from aiter_like.testing import (
    LENGTHS,
    ROUNDINGS,
    relative_l2,
    strided_like,
    time_us,
)
from aiter_like.testing_attention import attention_float64, check_attention

BACKENDS = ("hip", "triton", "torch")
KERNELS = ("hip", "triton")
HEAD_DIMS = (32, 64, 128)
DTYPES = (torch.bfloat16, torch.float16)
PAIRS = ((1, 1), (15, 16), (16, 15), (63, 65), (65, 257), (127, 63), (257, 127), (1, 1000), (257, 257))


def make(device, batch, seqlen_q, seqlen_k, heads, kv_heads, head_dim, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, seqlen_q, heads, head_dim, generator=generator)
    k, v = torch.randn(2, batch, seqlen_k, kv_heads, head_dim, generator=generator)
    return q.to(device, dtype), k.to(device, dtype), v.to(device, dtype)


def check(run, backend, q, k, v, scale=None, causal=False, rounding=0):
    """Runs the backend, with and without LSE, and compares with float64."""
    call = functools.partial(run, backend, aiter_like.flash_attn_func, q, k, v, softmax_scale=scale, causal=causal,
                             how_v3_bf16_cvt=rounding)
    out, lse = call(return_lse=True)
    name = ROUNDINGS[rounding] if q.dtype == torch.bfloat16 and backend != "torch" else "rtne"
    check_attention(out, lse, q, k, v, scale, causal, name)
    return out, lse


@pytest.mark.parametrize("causal", (False, True), ids=("full", "causal"))
@pytest.mark.parametrize("lengths", PAIRS, ids=str)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_float64(device, run, backend, head_dim, lengths, causal):
    heads = ((2, 2), (4, 1), (6, 2))[sum(lengths) % 3]
    check(run, backend, *make(device, 1 + lengths[0] % 2, *lengths, *heads, head_dim, torch.bfloat16), causal=causal)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_float16(device, run, backend, head_dim):
    for lengths, causal in (((65, 130), False), ((130, 65), True), ((1, 200), True)):
        check(run, backend, *make(device, 2, *lengths, 4, 2, head_dim, torch.float16), causal=causal)


def test_reference_has_every_feature(device, run):
    """The torch backend against float64, each feature alone, then all at once, dense and packed."""
    q, k, v = cases.dense(device, 2, 37, 70, 4, 2, 32, torch.bfloat16, head_dim_v=16)
    options = cases.features(device, torch.bfloat16, 4, 37, 70, batch=2)
    everything = {name: value for feature in options.values() for name, value in feature.items()}
    for chosen in (*options.values(), everything):
        cases.check_dense(run, "torch", q, k, v, **chosen)
    args = cases.packed(device, (5, 0, 40, 1), (9, 3, 0, 33), 4, 2, 32, torch.float16)
    options = cases.features(device, torch.float16, 4, 46, 33)
    everything = {name: value for feature in options.values() for name, value in feature.items()}
    for chosen in ({"causal": True}, *options.values(), everything):
        cases.check_varlen(run, "torch", *args, **chosen)


@pytest.mark.parametrize("backend", BACKENDS)
def test_long_causal(device, run, backend):
    check(run, backend, *make(device, 1, 1000, 1000, 2, 1, 64, torch.bfloat16), causal=True)


@pytest.mark.parametrize("head_dim", (8, 16, 80, 96, 256))
def test_other_head_dims(device, run, head_dim):
    check(run, "triton", *make(device, 1, 70, 90, 2, 1, head_dim, torch.bfloat16), causal=True)


@pytest.mark.parametrize("rounding", (0, 1, 2))
@pytest.mark.parametrize("backend", KERNELS)
def test_rounding_modes(device, run, backend, rounding):
    q, k, v = make(device, 1, 128, 256, 4, 4, 64, torch.bfloat16)
    out, _ = check(run, backend, q, k, v, rounding=rounding)
    expected = attention_float64(q, k, v).out
    bias = ((out.cpu().double().abs() - expected.abs()).sum() / expected.abs().sum()).item()
    if rounding == 2:  # truncation of P and out only ever shrinks: -0.34 to -0.57 % in an exact emulation
        assert -8e-3 < bias < -2e-3
    else:
        assert abs(bias) < 3e-4


def test_rounding_of_a_copy_shows_each_mode(device, run):
    """One key: P is 1 and out is v exactly; two equal keys with v, v': out is (v + v') / 2, exactly between or not."""
    unit = 2.0**-7  # of bf16 at 1
    pairs = torch.tensor([[1.0, 1.0 + unit], [1.0 + unit, 1.0 + 2 * unit], [-1.0, -1.0 - unit]])  # ties
    v = pairs.t().reshape(1, 2, 1, 3).repeat(1, 1, 1, 11)[..., :32].to(device, torch.bfloat16)
    q = torch.zeros(1, 1, 1, 32, dtype=torch.bfloat16, device=device)
    k = torch.zeros(1, 2, 1, 32, dtype=torch.bfloat16, device=device)
    expected = ((1.0, 1.0 + 2 * unit, -1.0), (1.0 + unit, 1.0 + 2 * unit, -1.0 - unit), (1.0, 1.0 + unit, -1.0))
    for backend, rounding in itertools.product(KERNELS, (0, 1, 2)):
        if backend == "hip" and device.type == "cuda" and torch.version.hip is None:
            continue
        out = run(backend, aiter_like.flash_attn_func, q, k, v, how_v3_bf16_cvt=rounding)
        assert out[0, 0, 0, :3].tolist() == list(expected[rounding]), (backend, rounding)


@pytest.mark.parametrize("instance", _flash_attn_fwd_hip.instances(), ids=lambda instance: instance.name)
def test_hip_instances_keep_their_registers(device, instance):
    """No spills, no scratch; 4, 3, 2 waves per SIMD of 512 registers."""
    if device.type != "cpu":
        pytest.skip("static: the code for gfx942 is the same wherever the tests run")
    library = build.ensure(_flash_attn_fwd_hip.instance_spec(instance, "hip", "gfx942")).path.read_bytes()
    (kernel,) = sim.inspect(library[library.index(b"__CLANG_OFFLOAD_BUNDLE__"):]).values()
    head_dim = instance.defines["HEAD_DIM"]
    assert kernel["vgprs"] <= {32: 128, 64: 168, 128: 256}[head_dim]
    assert kernel["lds_bytes"] == 256 * head_dim
    assert not any(kernel[nothing] for nothing in ("agprs", "vgpr_spills", "sgpr_spills", "private_bytes"))


@pytest.mark.parametrize("scale", (1e-8, 1e-3, 0.2, 5.0))
@pytest.mark.parametrize("backend", BACKENDS)
def test_scales(device, run, backend, scale):
    check(run, backend, *make(device, 1, 70, 130, 2, 2, 64, torch.bfloat16), scale=scale, causal=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_growing_scores_rescale(device, run, backend):
    """The largest score comes last, so every key block raises the running maximum."""
    q, k, v = make(device, 1, 40, 300, 2, 2, 64, torch.bfloat16)
    check(run, backend, q.abs(), k.abs() * torch.linspace(0.1, 3, 300, device=device).view(1, 300, 1, 1).bfloat16(), v)


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides(device, run, backend):
    q, k, v = make(device, 2, 37, 70, 4, 2, 64, torch.bfloat16)
    bhsd = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (q, k, v)]
    padded = [strided_like(tensor, (1, 2, 1, 8)) for tensor in (q, k, v)]
    odd = [strided_like(tensor, (0, 1, 1, 3), offset=1) for tensor in (q, k, v)]
    shared = [q, k[:1].expand(2, -1, -1, -1), v[:, :, :1].expand(-1, -1, 2, -1)]
    for views in (bhsd, padded, odd, shared):
        out, lse = check(run, backend, *views, causal=True)
        for target in (strided_like(torch.zeros_like(out), (1, 1, 1, 8)), strided_like(out, (0, 0, 2, 5), offset=3)):
            returned = run(backend, aiter_like.flash_attn_func, *views, causal=True, out=target, how_v3_bf16_cvt=0)
            assert returned is target and torch.equal(target, out)


@pytest.mark.parametrize("backend", KERNELS)
def test_heads_more_than_2_31_elements_apart(device, run, backend):
    """Addresses need 64 bits; only the pages in use are ever touched."""
    q, k, v = make(device, 1, 3, 5, 2, 2, 32, torch.bfloat16)
    far = 2**31 + 64
    storage = torch.empty(far + 5 * 32, dtype=torch.bfloat16, device=device)
    apart = storage.as_strided((1, 5, 2, 32), (1, 32, far, 1)).copy_(k)
    check(run, backend, q, apart, v)
    check(run, backend, q, k, storage.as_strided((1, 5, 2, 32), (1, 32, far, 1)).copy_(v))


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_that_see_nothing(device, run, backend):
    q, k, v = make(device, 2, 150, 20, 2, 1, 64, torch.bfloat16)
    out, lse = check(run, backend, q, k, v, causal=True)
    assert (out[:, :130] == 0).all() and (lse[:, :, :130] == -math.inf).all()
    assert (lse[:, :, 130:] > -math.inf).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_keys(device, run, backend):
    q, k, v = make(device, 2, 5, 0, 2, 1, 64, torch.bfloat16)
    for causal in (False, True):
        out, lse = run(backend, aiter_like.flash_attn_func, q, k, v, causal=causal, return_lse=True)
        assert (out == 0).all() and (lse == -math.inf).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty(device, backend):
    for batch, seqlen, heads in ((0, 5, 2), (2, 0, 2), (2, 5, 0)):
        q, k, v = make(device, batch, seqlen, 7, heads, min(heads, 1), 64, torch.bfloat16)
        out, lse = aiter_like.flash_attn_func(q, k, v, return_lse=True, backend=backend)
        assert out.shape == q.shape and lse.shape == (batch, heads, seqlen)


@pytest.mark.parametrize("bits", (0x7FC0, 0x7FFF, -1, 0x7F81))  # quiet, all payload, negative, signalling
@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_reaches_every_row_that_sees_it(device, run, backend, bits):
    nan = torch.tensor([bits], dtype=torch.int16).view(torch.bfloat16).to(device)
    for rounding in (0, 1, 2):
        call = functools.partial(run, backend, aiter_like.flash_attn_func, causal=True, how_v3_bf16_cvt=rounding)
        q, k, v = make(device, 1, 70, 70, 2, 1, 64, torch.bfloat16)
        q[0, 40, 1, 3] = nan[0]
        out = call(q, k, v)
        assert out[0, 40, 1].isnan().all()
        assert not out[0, :, 0].isnan().any() and not out[0, :40, 1].isnan().any() and not out[0, 41:, 1].isnan().any()
        q, k, v = make(device, 1, 70, 70, 2, 1, 64, torch.bfloat16)
        k[0, 30, 0, 5] = nan[0]
        out = call(q, k, v)
        assert out[0, 30:].isnan().all() and not out[0, :30].isnan().any()
        q, k, v = make(device, 1, 70, 70, 2, 1, 64, torch.bfloat16)
        v[0, 30, 0, 5] = nan[0]
        out = call(q, k, v)
        assert out[0, 30:, :, 5].isnan().all() and not out[..., :5].isnan().any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_infinite_value_stays_in_its_column(device, run, backend):
    q, k, v = make(device, 1, 20, 70, 2, 1, 64, torch.bfloat16)
    v[0, 69, 0, 5] = math.inf
    out = run(backend, aiter_like.flash_attn_func, q, k, v)
    assert (out[..., 5] == math.inf).all() and out[..., :5].isfinite().all() and out[..., 6:].isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_repeats_bit_for_bit(device, run, backend):
    q, k, v = make(device, 2, 100, 200, 4, 2, 64, torch.bfloat16)
    first = run(backend, aiter_like.flash_attn_func, q, k, v, return_lse=True)
    for _ in range(2):
        again = run(backend, aiter_like.flash_attn_func, q, k, v, return_lse=True)
        assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])


def test_options_that_mean_nothing_are_accepted(device, run):
    q, k, v = make(device, 1, 20, 30, 2, 1, 64, torch.bfloat16)
    plain, causal = (run("triton", aiter_like.flash_attn_func, q, k, v, causal=c) for c in (False, True))
    for options in ({"window_size": (-1, -1)}, {"window_size": [-1, -1, 0]}, {"window_size": None}, {"dropout_p": 0},
                    {"num_splits": 3}, {"deterministic": False}):
        assert torch.equal(plain, run("triton", aiter_like.flash_attn_func, q, k, v, **options))
    assert torch.equal(causal, run("triton", aiter_like.flash_attn_func, q, k, v, window_size=(-1, 0)))


def test_gradient_comes_from_the_reference_only(device):
    q, k, v = (tensor.requires_grad_() for tensor in make(device, 1, 20, 9, 4, 2, 32, torch.bfloat16))
    aiter_like.flash_attn_func(q, k, v, causal=True).float().square().sum().backward()
    assert all(tensor.grad.isfinite().all() and tensor.grad.any() for tensor in (q, k, v))
    assert not q.grad[:, :11].any()  # rows that see nothing
    for backend in KERNELS:
        with pytest.raises(UnsupportedError, match="forward only"):
            aiter_like.flash_attn_func(q, k, v, backend=backend)


def bad_calls(device):
    q, k, v = make(device, 2, 8, 9, 4, 2, 64, torch.bfloat16)
    yield "q must be a tensor", TypeError, (None, k, v), {}
    yield "k must be a tensor", TypeError, (q, 1.0, v), {}
    yield "q must have 4 dimensions", ValueError, (q[0], k, v), {}
    yield "k must have shape", ValueError, (q, k[0], v), {}
    yield "q must have dtype", TypeError, (q.float(), k.float(), v.float()), {}
    yield "k must have dtype torch.bfloat16, got torch.float16", TypeError, (q, k.half(), v), {}
    yield r"k must have shape \(2, \*, \*, 64\), got \(2, 9, 2, 32\)", ValueError, (q, k[..., :32], v), {}
    yield "v must have shape", ValueError, (q, k, v[:, :8]), {}
    yield "k must have shape", ValueError, (q, k[:1], v[:1]), {}
    yield "must be a multiple of the heads of k and v, got 3 and 2", ValueError, (q[:, :, :3], k, v), {}
    yield "must be a multiple of the heads of k and v, got 4 and 0", ValueError, (q, k[:, :, :0], v[:, :, :0]), {}
    yield "head dimension of at least 1", ValueError, (q[..., :0], k[..., :0], v[..., :0]), {}
    yield "k must be on", ValueError, (q, k.to("meta"), v), {}
    strided = v.transpose(1, 3).contiguous().transpose(1, 3)
    yield "v must be contiguous in its last dimension", ValueError, (q, k, strided), {}
    for scale in (math.nan, math.inf, -math.inf):
        yield "softmax_scale must be finite", ValueError, (q, k, v), {"softmax_scale": scale}
    yield "softmax_scale must be at least 1e-08", ValueError, (q, k, v), {"softmax_scale": 0.0}
    yield "softmax_scale must be a number", TypeError, (q, k, v), {"softmax_scale": torch.ones(1)}
    yield "causal must be True or False", TypeError, (q, k, v), {"causal": 1}
    yield "return_lse must be True or False", TypeError, (q, k, v), {"return_lse": 1}
    yield "how_v3_bf16_cvt must be 0, 1 or 2", ValueError, (q, k, v), {"how_v3_bf16_cvt": 3}
    yield "out must have shape", ValueError, (q, k, v), {"out": q[:1]}
    yield "out must have dtype", TypeError, (q, k, v), {"out": q.float()}
    yield "backend must be one of", ValueError, (q, k, v), {"backend": "cuda"}
    yield "window_size must be 2 or 3 integers", TypeError, (q, k, v), {"window_size": 3}
    yield "window_size must be .left", ValueError, (q, k, v), {"window_size": (1,)}
    for options in ({"cu_seqlens_q": torch.ones(3)}, {"dropout_p": 0.1, "return_attn_probs": True}):
        yield f"no backend supports {list(options)[-1]}", UnsupportedError, (q, k, v), options


def test_bad_input_is_named(device):
    for message, kind, args, kwargs in bad_calls(device):
        with pytest.raises(kind, match=message):
            aiter_like.flash_attn_func(*args, **kwargs)


def test_sizes_beyond_a_launch_are_refused(device):
    q = torch.empty(1, 1, 1, 32, dtype=torch.bfloat16, device=device)
    for shape, reason in (((70_000, 1, 1, 32), "batch at most 65535, got 70000"),
                          ((1, 1, 70_000, 32), "number of heads at most 65535"),
                          ((1, 2**30, 1, 32), "length of k at most")):
        k = q.expand(shape)
        with pytest.raises(UnsupportedError, match=reason):
            aiter_like.flash_attn_func(k if shape[1] == 1 else q, k, k, out=q.expand(k.shape) if shape[1] == 1 else q,
                                       backend="triton")
    far = torch.empty(2**24 + 64, dtype=torch.bfloat16, device=device).as_strided((1, 2, 1, 32), (0, 2**24, 0, 1))
    with pytest.raises(UnsupportedError, match="row stride of k at most|gfx942"):
        aiter_like.flash_attn_func(q, far, far, backend="hip")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), backend=st.sampled_from(BACKENDS), dtype=st.sampled_from((*DTYPES, torch.float32)),
       causal=st.booleans(), scale=st.sampled_from((None, None, 0.5, 1e-8, -1.0, math.nan)),
       rounding=st.sampled_from((0, 1, 2, 7)))
def test_any_call_is_right_or_refused(device, data, backend, dtype, causal, scale, rounding):
    batch, kv_heads = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))
    heads = kv_heads * data.draw(st.integers(1, 3)) + (data.draw(st.integers(0, 9)) == 0)
    head_dim = data.draw(st.sampled_from((*HEAD_DIMS, 16, 1, 33)))
    seqlen_q, seqlen_k = data.draw(st.integers(0, 140)), data.draw(st.integers(0, 140))
    tensors = [strided_like(tensor, [data.draw(st.integers(0, 2)) for _ in range(3)] + [data.draw(st.integers(0, 9))],
                            data.draw(st.integers(0, 9)))
               for tensor in make(device, batch, seqlen_q, seqlen_k, heads, kv_heads, head_dim, dtype)]
    try:
        out, lse = aiter_like.flash_attn_func(*tensors, softmax_scale=scale, causal=causal, return_lse=True,
                                              how_v3_bf16_cvt=rounding, backend=backend)
    except (ValueError, TypeError, UnsupportedError) as error:
        assert "flash_attn_f" in str(error)
        return
    name = ROUNDINGS[rounding] if dtype == torch.bfloat16 and backend != "torch" else "rtne"
    check_attention(out, lse, *tensors, scale, causal, name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_everything(device, run, backend, dtype, head_dim):
    """Every pair of lengths, mask and head grouping; roundings, strides, batch sizes and seeds take turns."""
    grid = itertools.product(LENGTHS, LENGTHS, (False, True), ((1, 1), (4, 4), (4, 1), (6, 2)))
    for index, (seqlen_q, seqlen_k, causal, heads) in enumerate(grid):
        tensors = make(device, 1 + index % 2, seqlen_q, seqlen_k, *heads, head_dim, dtype, seed=index)
        paddings = ((0, 0, 0, 0), (1, 1, 0, 8), (0, 2, 1, 3))[index // 3 % 3]
        views = [strided_like(tensor, paddings, index % 2) for tensor in tensors]
        check(run, backend, *views, causal=causal, rounding=index % 3)


def bench() -> None:
    """Checks, then times each backend; needs a GPU. Causal counts half the work."""
    device = torch.device("cuda")
    print(f"flash_attn_func on {torch.cuda.get_device_name()}, torch {torch.__version__}, bf16")
    print(f"{'B,H,HK,S,D':>20} {'mask':>7} {'backend':>8} {'us':>9} {'TFLOP/s':>8} {'rel. L2':>9}")
    for batch, heads, kv_heads, seqlen, head_dim in ((2, 24, 24, 8192, 128), (4, 32, 8, 4096, 128),
                                                     (8, 16, 16, 2048, 64), (32, 12, 12, 512, 32)):
        sets = [make(device, batch, seqlen, seqlen, heads, kv_heads, head_dim, torch.bfloat16, seed) for seed in (0, 1)]
        for causal, backend in itertools.product((False, True), KERNELS):
            try:
                small = [tensor[:1, :512, :kv_heads] for tensor in sets[0]]
                out = aiter_like.flash_attn_func(*small, causal=causal, how_v3_bf16_cvt=0, backend=backend)
            except UnsupportedError:
                continue
            error = relative_l2(out, attention_float64(*small, causal=causal).out)
            us = time_us(functools.partial(aiter_like.flash_attn_func, causal=causal, backend=backend,
                                           how_v3_bf16_cvt=0), sets)
            flop = 4 * batch * heads * seqlen**2 * head_dim / (2 if causal else 1)
            print(f"{f'{batch},{heads},{kv_heads},{seqlen},{head_dim}':>20} {'causal' if causal else 'none':>7} "
                  f"{backend:>8} {us:9.1f} {flop / us * 1e-6:8.1f} {error:9.2e}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", action="store_true", required=True, help="print a table of times")
    parser.parse_args()
    bench()
