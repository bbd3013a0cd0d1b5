# SPDX-License-Identifier: MIT
"""Calls of the attention functions that are wrong, refused or random: each is right or says by name what does not fit.
"""

import functools
import inspect
import math

import attention_cases as cases
import pytest
import torch
from attention_cases import BACKENDS, BF16
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import aiter_like
from aiter_like.errors import UnsupportedError
from aiter_like.testing import strided_like
from aiter_like.testing.attention import check_attention

DENSE, VARLEN = aiter_like.flash_attn_func, aiter_like.flash_attn_varlen_func


def bad_dense(device):
    q, k, v = cases.dense(device, 2, 8, 9, 4, 2, 64, BF16)
    yield "q must have 4 dimensions", ValueError, (q[0], k, v), {}
    yield "q must have dtype", TypeError, (q.float(), k.float(), v.float()), {}
    yield "k must have shape", ValueError, (q, k[:1], v[:1]), {}
    yield "must be a multiple of the heads of k and v, got 3 and 2", ValueError, (q[:, :, :3], k, v), {}
    yield "must be a multiple of the heads of k and v, got 4 and 0", ValueError, (q, k[:, :, :0], v[:, :, :0]), {}
    yield "head dimension of at least 1", ValueError, (q[..., :0], k[..., :0], v[..., :0]), {}
    if device.type == "cpu":  # the simulated MI300X
        for starts in ((1, 3, 8), (0, 5, 3), (0, 3, 19)):
            yield "cu_seqlens_kv must start at 0, never fall and end at 18 at most", ValueError, (q, k, v), {
                "cu_seqlens_kv": torch.tensor(starts, dtype=torch.int32)}
        wrong = [tensor.to(torch.float8_e4m3fn) for tensor in (q, k, v)]
        yield "q must have dtype torch.float8_e4m3fnuz", TypeError, wrong, {}
    for name, value, kind, message in (
            ("softmax_scale", math.nan, ValueError, "must be finite"),
            ("softmax_scale", -math.inf, ValueError, "must be finite"),
            ("softmax_scale", 0.0, ValueError, "must be at least 1e-08"), ("softmax_scale", q, TypeError, "a number"),
            ("causal", 1, TypeError, "must be True or False"), ("return_lse", 1, TypeError, "must be True or False"),
            ("return_attn_probs", 1, TypeError, "must be True or False"),
            ("how_v3_bf16_cvt", 3, ValueError, "must be 0, 1 or 2"), ("round_mode", "up", ValueError, "must be 'rtne'"),
            ("layout", "sbhd", ValueError, "must be 'bshd' or 'bhsd'"), ("backend", "cuda", ValueError, "one of"),
            ("out", q[:1], ValueError, "must have shape"), ("out", q.float(), TypeError, "must have dtype"),
            ("window_size", 3, TypeError, "2 or 3 integers"), ("window_size", (1,), ValueError, "must be .left"),
            ("window_size", (-2, 0), ValueError, "must be .left"), ("window_size", (1, 1, -1), ValueError, "left"),
            ("bias", q, ValueError, r"must have shape \(1 or 2, 1 or 4, 8, 9\)"), ("bias", 1.0, TypeError, "a tensor"),
            ("alibi_slopes", torch.ones(3), ValueError, "must have shape"),
            ("alibi_slopes", torch.ones(4).double(), TypeError, "must have dtype"),
            ("sink_ptr", torch.ones(2), ValueError, "sink_ptr must have shape"),
            ("sink_ptr", 1.0, TypeError, "a tensor"),
            ("dropout_p", -0.1, ValueError, "at least 0"), ("dropout_p", 1.0, ValueError, "below 1"),
            ("dropout_p", "no", TypeError, "a number"), ("num_splits", -1, ValueError, "between 0"),
            ("logits_soft_cap", -1.0, ValueError, "logits_soft_cap must be at least 0"),
            ("workspace", q, TypeError, "must have dtype torch.uint8"),
            ("workspace", q.view(torch.uint8), ValueError, "must have 1 dimensions"),
            ("cu_seqlens_kv", torch.ones(3), TypeError, "must have dtype torch.int32"),
            ("cu_seqlens_kv", torch.zeros(2).int(), ValueError, "seqlens_k must have shape")):
        moved = value.to(device) if isinstance(value, torch.Tensor) else value
        yield message, kind, (q, k, v), {name: moved}
    yield "must agree, got 'rtz' and 0", ValueError, (q, k, v), {"round_mode": "rtz", "how_v3_bf16_cvt": 0}
    yield "'rtna' is for bfloat16", ValueError, (q.half(), k.half(), v.half()), {"round_mode": "rtna"}
    lengths = torch.tensor((0, 3, 8), dtype=torch.int32, device=device)
    yield "bias beside cu_seqlens_q", UnsupportedError, (q, k, v), {"cu_seqlens_q": lengths, "bias": q[0, :, 0]}
    yield "out must have its sequences one behind the other", ValueError, (q, k, v), {
        "cu_seqlens_q": lengths, "out": torch.empty(2, 9, 4, 64, dtype=BF16, device=device)[:, :8]}
    yield "cu_seqlens_q must have dtype", TypeError, (q, k, v), {"cu_seqlens_q": lengths.float()}
    yield "return_attn_probs must be True or False", TypeError, (q, k, v), {"return_attn_probs": 1}


def bad_varlen(device):
    q, k, v, starts_q, starts_k, longest_q, longest_k = good = cases.packed(device, (3, 5), (6, 2), 4, 2, 64, BF16)

    def changed(**arguments):
        names = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
        return [arguments.get(name, value) for name, value in zip(names, good)]

    def starts(*values):
        return torch.tensor(values, dtype=torch.int32, device=device)

    yield "q must have 3 dimensions", ValueError, changed(q=q[None]), {}
    yield "k must have shape", ValueError, changed(k=k[..., :32]), {}
    yield "max_seqlen_k must be", ValueError, changed(max_seqlen_k=-1, cu_seqlens_k=starts(0, 0, 0)), {}
    if device.type == "cpu":  # elsewhere looking at them would wait for the GPU
        for wrong in ((1, 3, 8), (0, 5, 3), (0, 3, 9), ()):
            yield "cu_seqlens_q must start at 0", ValueError, changed(cu_seqlens_q=starts(*wrong)), {}
        yield ("cu_seqlens_k must start at 0, never fall and end at 8", ValueError,
               changed(cu_seqlens_k=starts(0, 9, 8)), {})
        yield "max_seqlen_q must be at least 5", ValueError, changed(max_seqlen_q=4), {}
        yield "max_seqlen_k must be at least 6", ValueError, changed(max_seqlen_k=5), {}
    yield "bias must have shape", ValueError, good, {"bias": q[:, :, 0]}
    yield "out must have shape", ValueError, good, {"out": q[:1]}
    yield "round_mode and how_v3_bf16_cvt must agree", ValueError, good, {"round_mode": "rtne", "how_v3_bf16_cvt": 2}
    yield "bias beside block_table", UnsupportedError, good, {"block_table": starts(0, 1)[None], "bias": q}
    yield "cu_seqlens_q_padded beside block_table", UnsupportedError, good, {"block_table": starts(0, 1)[None],
                                                                             "cu_seqlens_q_padded": starts(0, 4, 9)}
    yield "cu_seqlens_q_padded must have dtype", TypeError, good, {"cu_seqlens_q_padded": starts_q.long()}


@pytest.mark.parametrize(("function", "calls"), ((DENSE, bad_dense), (VARLEN, bad_varlen)), ids=("dense", "varlen"))
def test_bad_input_is_named(device, function, calls):
    for message, kind, args, kwargs in calls(device):
        with pytest.raises(kind, match=message) as caught:
            function(*args, **kwargs)
        assert "flash_attn" in str(caught.value) or "backend" in str(caught.value)


def test_sizes_beyond_a_launch_are_refused(device):
    q = torch.empty(1, 1, 1, 32, dtype=BF16, device=device)
    for shape, reason in (((70_000, 1, 1, 32), "batch at most 65535, got 70000"),
                          ((1, 1, 70_000, 32), "number of heads at most 65535"),
                          ((1, 2**30, 1, 32), "length of k at most")):
        k = q.expand(shape)
        with pytest.raises(UnsupportedError, match=reason):
            DENSE(k if shape[1] == 1 else q, k, k, out=q.expand(k.shape) if shape[1] == 1 else q, backend="triton")
    q = torch.empty(1, 1, 1, 64, dtype=BF16, device=device)
    far = torch.empty(2**24 + 64, dtype=BF16, device=device).as_strided((1, 2, 1, 64), (0, 2**24, 0, 1))
    with pytest.raises(UnsupportedError, match="row stride of k|gfx942"):
        DENSE(q, far, far, backend="hip")


def drawn(data, device, kv_heads, heads, head_dim, dtype, batch):
    """q, k, v of drawn lengths and strides."""
    lengths = data.draw(st.integers(0, 140)), data.draw(st.integers(0, 140))
    return [strided_like(tensor, [data.draw(st.integers(0, 2)) for _ in range(3)] + [data.draw(st.integers(0, 9))],
                         data.draw(st.integers(0, 9)))
            for tensor in cases.dense(device, batch, *lengths, heads, kv_heads, head_dim, dtype)]


CALLS = {"data": st.data(), "backend": st.sampled_from(BACKENDS),
         "dtype": st.sampled_from((*cases.DTYPES, torch.float32)), "causal": st.booleans(),
         "scale": st.sampled_from((None, None, 0.5, 1e-8, -1.0, math.nan)), "rounding": st.sampled_from((0, 1, 2, 7)),
         "window": st.sampled_from(((-1, -1), (-1, -1), (3, 40), (20, 0, 2), (-3, 0)))}
QUIETLY = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


@settings(max_examples=60, **QUIETLY)
@given(**CALLS)
def test_any_call_is_right_or_refused(device, **call):
    check_any_call(device, **call)


@pytest.mark.exhaustive
@settings(max_examples=600, **QUIETLY)
@given(**CALLS)
def test_many_calls_are_right_or_refused(device, **call):
    check_any_call(device, **call)


def check_any_call(device, data, backend, dtype, causal, scale, rounding, window):
    batch, kv_heads = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))
    heads = kv_heads * data.draw(st.integers(1, 3)) + (data.draw(st.integers(0, 9)) == 0)
    tensors = drawn(data, device, kv_heads, heads, data.draw(st.sampled_from((64, 128, 16, 1, 33))), dtype, batch)
    call = functools.partial(DENSE, *tensors, softmax_scale=scale, causal=causal, return_lse=True, window_size=window,
                             how_v3_bf16_cvt=rounding, backend=backend)
    try:
        out, lse = call()
    except (ValueError, TypeError, UnsupportedError) as error:
        assert "flash_attn_f" in str(error)
        return
    check_attention(out, lse, *tensors, scale, causal, cases.rounding_of(backend, dtype, rounding), window_size=window)


AITER = {  # names and defaults in AITER's order; ours may only add keywords
    "flash_attn_func": "q k v dropout_p=0.0 softmax_scale=None causal=False window_size=(-1,-1,0) bias=None "
        "alibi_slopes=None deterministic=True return_lse=False return_attn_probs=False how_v3_bf16_cvt=1 "
        "cu_seqlens_q=None cu_seqlens_kv=None sink_ptr=None num_splits=0",
    "flash_attn_varlen_func": "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k min_seqlen_q=0 dropout_p=0.0 "
        "softmax_scale=None logits_soft_cap=0.0 causal=False window_size=(-1,-1,0) bias=None alibi_slopes=None "
        "deterministic=False return_lse=False return_attn_probs=False how_v3_bf16_cvt=1 block_table=None out=None "
        "cu_seqlens_q_padded=None cu_seqlens_k_padded=None sink_ptr=None",
    "flash_attn_fp8_pertensor_func": "q k v q_descale k_descale v_descale causal=False window_size=(-1,-1,0) "
        "softmax_scale=None sink_ptr=None",
    "flash_attn_varlen_fp8_pertensor_func": "q k v q_descale k_descale v_descale cu_seqlens_q cu_seqlens_k "
        "max_seqlen_q max_seqlen_k min_seqlen_q=0 logits_soft_cap=0.0 causal=False window_size=(-1,-1,0) "
        "softmax_scale=None sink_ptr=None",
    "flash_attn_with_kvcache": "q k_cache v_cache k=None v=None qv=None cache_seqlens=None softmax_scale=None "
        "causal=True window_size=(-1,-1) attention_chunk=0 softcap=0.0 num_splits=0 pack_gqa=None sm_margin=0 "
        "q_descale=None k_descale=None v_descale=None max_seqlen_q=None return_softmax_lse=False page_table=None "
        "cache_batch_idx=None cache_leftpad=None rotary_cos=None rotary_sin=None rotary_seqlens=None "
        "cu_seqlens_q=None cu_seqlens_k_new=None",
}


@pytest.mark.parametrize("name", AITER)
def test_signature_is_aiters(name):
    positional, keywords = [], []
    for parameter in inspect.signature(getattr(aiter_like, name)).parameters.values():
        default = "" if parameter.default is parameter.empty else f"={parameter.default}".replace(" ", "")
        (keywords if parameter.kind is parameter.KEYWORD_ONLY else positional).append(f"{parameter.name}{default}")
    assert " ".join(positional) == AITER[name]
    assert {"out=None", "backend=None"} <= {*keywords, *positional}
