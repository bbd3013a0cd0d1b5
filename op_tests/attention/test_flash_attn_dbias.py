# SPDX-License-Identifier: MIT
"""flash_attn_dbias, and autograd through attention with a trainable bias: against float64, features, bad input."""

import itertools
import math

import pytest
import torch
from attention_bwd_cases import BF16, FP16, make

import aiter_like
from aiter_like.errors import UnsupportedError
from aiter_like.ops.attention.call import AttentionDbiasCall, dbias_call
from aiter_like.ops.attention.flash_attn_bwd import attend, flash_attn_bwd
from aiter_like.ops.attention.flash_attn_dbias import flash_attn_dbias, flash_attn_dbias_ref
from aiter_like.testing import assert_within, strided_like
from aiter_like.testing.attention_bwd import attention_gradients_float64, check_attention_gradients, fill_forward

BACKENDS = ("triton", "torch")
FP32 = torch.float32
SHAPES = {"one for all": (0, 0), "of heads": (0, 1), "of sequences": (1, 0), "of both": (1, 1)}  # 0: broadcast
FEATURES = {
    "plain": {"lengths": (65, 130), "heads": (4, 2), "batch": 2},
    "causal": {"lengths": (65, 200), "heads": (2, 1), "window": (-1, 0), "head_dims": (128, 128), "dtype": FP16,
               "of": "of heads"},
    "causal, more rows than keys": {"lengths": (127, 63), "heads": (4, 1), "window": (-1, 0), "dlse": True},
    "window, sink tokens": {"lengths": (70, 120), "batch": 2, "window": (20, 3), "sink_size": 5, "of": "of sequences"},
    "softcap, ALiBi": {"lengths": (33, 127), "batch": 2, "heads": (4, 2), "softcap": 2.0, "alibi": 2, "of": "of both"},
    "learned sink": {"lengths": (40, 63), "heads": (4, 2), "sink": True, "dlse": True, "batch": 2, "bias_dtype": FP32},
    "dropout": {"lengths": (65, 127), "heads": (4, 2), "dropout_p": 0.3, "batch": 2},
    "two head dimensions": {"lengths": (40, 70), "head_dims": (96, 32), "window": (-1, 0), "dtype": FP16,
                            "bias_dtype": FP32},
    "packed": {"packed": ((5, 63, 1, 100, 0), (5, 130, 0, 65, 7)), "heads": (4, 2), "window": (-1, 0), "alibi": 2,
               "sink": True, "dropout_p": 0.2},
}


def call_of(device: torch.device, *, of: str = "one for all", bias_dtype: torch.dtype | None = None,
            **features) -> AttentionDbiasCall:
    """A call whose dbias holds NaN. of: of SHAPES, what has a bias of its own."""
    call = make(device, bias="shared", **features)
    if call.cu_seqlens_q is None:
        batch, heads = ((1, size)[is_own] for is_own, size in zip(SHAPES[of], (call.q.shape[0], call.q.shape[2])))
        generator = torch.Generator().manual_seed(features.get("seed", 0) + 1)
        bias = torch.randn(batch, heads, *call.bias.shape[:1:-1], generator=generator).mT
        call = fill_forward(call._replace(bias=bias.to(device, bias_dtype or call.q.dtype)))
    elif bias_dtype is not None:
        call = call._replace(bias=call.bias.to(bias_dtype))
    return again(dbias_call(call, call.bias))


def again(call: AttentionDbiasCall) -> AttentionDbiasCall:
    """The same call with a dbias of its own."""
    return call._replace(dbias=torch.full(call.bias.shape, math.nan, dtype=call.bias.dtype, device=call.bias.device))


def check(run, backend, call):
    run(backend, flash_attn_dbias, call)
    check_attention_gradients(call)
    return call


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_float64(device, run, backend, features):
    check(run, backend, call_of(device, **FEATURES[features]))


def test_reference_is_exact(device):
    """In float64 what is left is float64's own rounding."""
    for features in FEATURES.values():
        call = call_of(device, **features)
        wide = AttentionDbiasCall(*(
            arg.double() if isinstance(arg, torch.Tensor) and arg.is_floating_point() else arg for arg in call))
        flash_attn_dbias_ref(fill_forward(wide))
        expected = attention_gradients_float64(call)["dbias"].expected
        assert torch.allclose(wide.dbias.cpu(), expected, rtol=1e-9, atol=1e-11), features


@pytest.mark.parametrize("lengths", ((150, 140), (20, 140)), ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_positions_that_nobody_sees_are_exactly_zero(device, run, backend, lengths):
    """Whatever the rows hold that see nothing, and the keys that are not seen."""
    call = call_of(device, lengths=lengths, heads=(2, 1), batch=2, window=(30, 0))
    distance = torch.arange(lengths[0])[:, None] + lengths[1] - lengths[0] - torch.arange(lengths[1])
    seen = ((distance >= 0) & (distance <= 30)).to(device)
    check(run, backend, call)
    assert not call.dbias[..., ~seen].any() and (call.dbias[..., seen] != 0).float().mean() > 0.99
    for tensors, hidden in (((call.q, call.dout, call.out), ~seen.any(1)), ((call.k, call.v), ~seen.any(0))):
        for tensor in tensors:
            tensor[:, hidden] = math.nan
    found = again(call)
    run(backend, flash_attn_dbias, found)
    assert torch.equal(found.dbias, call.dbias)


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_and_repeats(device, run, backend):
    """The same bits from any memory, and from every call."""
    call = check(run, backend, call_of(device, lengths=(37, 70), heads=(4, 2), batch=2, window=(-1, 0), of="of heads"))
    nan = torch.full_like(call.dbias, math.nan)
    for dbias in (nan.clone(), nan.mT.contiguous().mT, strided_like(nan, (0, 3, 2, 5), 1),
                  torch.stack((nan, nan), -1)[..., 0]):
        run(backend, flash_attn_dbias, call._replace(dbias=dbias, **{
            name: strided_like(getattr(call, name), (0, 1, 1, 3), 1) for name in ("q", "k", "v", "dout", "out")}))
        assert torch.equal(dbias, call.dbias)
    bias = call.bias[:, :1].expand(-1, 4, -1, -1)  # one of each head, in the same memory
    check(run, backend, again(dbias_call(fill_forward(make(
        device, lengths=(37, 70), heads=(4, 2), batch=2, bias="heads")._replace(bias=bias)), bias)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_to_do_and_rows_of_no_sequence(device, run, backend):
    for lengths, batch, heads in (((5, 0), 2, 2), ((0, 5), 2, 2), ((5, 7), 0, 2), ((5, 7), 1, 0)):
        call = call_of(device, lengths=lengths, batch=batch, heads=(heads, heads))
        flash_attn_dbias(call, backend=backend)
        assert not call.dbias.any()
    call = call_of(device, packed=((9, 20), (11, 30)), heads=(2, 1))
    one = torch.tensor([[9, 25], [11, 31]], dtype=torch.int32, device=device)
    call = fill_forward(call._replace(cu_seqlens_q=one[0], cu_seqlens_k=one[1]))
    check(run, backend, call)
    assert call.dbias[9:25, :20].all() and not call.dbias[:9].any() and not call.dbias[25:].any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_reaches_what_depends_on_it(device, run, backend):
    call = call_of(device, lengths=(70, 70), batch=2, window=(-1, 0))
    call.q[1, 40, 1, 3] = math.nan
    run(backend, flash_attn_dbias, fill_forward(call))
    found = call.dbias[0, 0].isnan()
    assert found[40, :41].all() and found.sum() == 41


@pytest.mark.parametrize("backend", BACKENDS)
def test_biases_far_from_zero(device, run, backend):
    """There the fp32 log-sum-exp is rounded by more than 1: P comes from the maximum."""
    call = call_of(device, lengths=(9, 70), batch=2, bias_dtype=FP32)
    call.q[:, 1] = 0.0  # the scores of this row are equal, as fp32 has them beside 1e9 anyway
    call.bias[..., 1, :] = -1e9
    call.bias[..., 2, :40] = torch.finfo(FP32).min
    call.bias[..., 3, :] = -math.inf
    call.bias[..., 4, 5] = 1e30
    run(backend, flash_attn_dbias, fill_forward(call))
    expected = attention_gradients_float64(call)["dbias"].expected
    assert expected[0, 0, 1].any() and not call.dbias[0, 0, 3].any()
    assert_within("dbias", call.dbias, expected, torch.full_like(expected, 2**-5))


@pytest.mark.parametrize("starts", ((0, 2000, 40), (-5, 20, 40), (0, 30, 10), (2**31 - 1, -2**31, 7), (39, 40, 41)))
def test_any_cu_seqlens_stay_inside(device, run, starts):
    """The bounds checker reports what lies outside; results are finite."""
    call = call_of(device, packed=((20, 20), (20, 20)), window=(-1, 0))
    broken = torch.tensor(starts, dtype=torch.int64).to(device, torch.int32)
    for q_starts, k_starts in ((broken, call.cu_seqlens_k), (call.cu_seqlens_q, broken), (broken, broken)):
        found = again(call)
        run("triton", flash_attn_dbias, found._replace(cu_seqlens_q=q_starts, cu_seqlens_k=k_starts))
        assert found.dbias.isfinite().all()


def test_bad_input_is_named(device):
    call = call_of(device, lengths=(5, 7), heads=(4, 2), of="of heads")
    for change, kind, message in (
            ({"dbias": call.dbias[..., 1:]}, ValueError, "dbias must have shape"),
            ({"dbias": call.dbias.float()}, TypeError, "dbias must have dtype"),
            ({"bias": None}, TypeError, "bias must be a tensor"),
            ({"bias": call.bias[:, :3], "dbias": call.dbias[:, :3]}, ValueError, "bias must have shape .1 or 1, 1 or"),
            ({"dout": call.dout[:, :4]}, ValueError, "dout must have"), ({"lse": call.lse[0]}, ValueError, "lse must"),
            ({"dlse": call.lse.mT.contiguous().mT}, ValueError, "dlse must be contiguous")):
        with pytest.raises(kind, match=f"flash_attn_dbias: .*{message}"):
            flash_attn_dbias(call._replace(**change))
    with pytest.raises(UnsupportedError, match="head dimension at most 256, got 264"):
        flash_attn_dbias(call_of(device, lengths=(5, 7), head_dims=(264, 264)), backend="triton")


@pytest.mark.parametrize("forward", ("ck", "triton", "torch"))
def test_autograd_of_the_public_functions(device, run, forward):
    for features in ({"lengths": (20, 33), "batch": 2}, {"packed": ((5, 20), (9, 13))}):
        call = make(device, heads=(4, 2), window=(-1, 0), bias="shared", **features)
        bias = call.bias[0, 0] if call.cu_seqlens_q is None else call.bias
        leaves = [tensor.detach().contiguous().requires_grad_() for tensor in (call.q, call.k, call.v, bias)]
        if call.cu_seqlens_q is None:
            out = run(forward, aiter_like.flash_attn_func, *leaves[:3], causal=True, bias=leaves[3])
        else:
            out = run(forward, aiter_like.flash_attn_varlen_func, *leaves[:3], *call.forward[5:7],
                      *call.forward[16:18], causal=True, bias=leaves[3])
        dq, dk, dv, dbias = torch.autograd.grad(out, leaves, call.dout)
        check_attention_gradients(call._replace(dq=dq, dk=dk, dv=dv), "rtna")  # AITER's default rounding of P
        check_attention_gradients(dbias_call(call, dbias.view(call.bias.shape)), "rtna")


def test_autograd_of_the_bias_alone(device, monkeypatch):
    """Computes nothing else, and compiles without a graph break to the same bits."""
    call = make(device, lengths=(33, 40), heads=(2, 1), bias="heads")
    bias, calls = call.bias.clone().requires_grad_(), []
    monkeypatch.setattr(flash_attn_bwd, "run", lambda *_, **__: calls.append(1))

    def step(bias):
        return aiter_like.flash_attn_func(call.q, call.k, call.v, bias=bias * 2)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    got, expected = (torch.autograd.grad(one(bias), bias, call.dout)[0] for one in (compiled, step))
    assert torch.equal(got, expected) and not calls
    doubled = fill_forward(call._replace(bias=call.bias * 2))
    check_attention_gradients(dbias_call(doubled, expected / 2), "rtna")
    with torch.no_grad():
        assert not attend(call.forward._replace(bias=bias))[0].requires_grad


@pytest.mark.exhaustive
@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_everything(device, run, backend, features):
    """Each feature with every pair of lengths; shapes, masks, head dimensions, groups and dtypes take turns."""
    base = {name: value for name, value in FEATURES[features].items() if name not in ("lengths", "packed", "window")}
    for index, lengths in enumerate(itertools.product((1, 15, 63, 65, 127, 200), repeat=2)):
        varied = {"heads": ((2, 2), (4, 1), (6, 2))[index % 3], "dtype": (BF16, FP16)[index // 3 % 2], "batch": 2,
                  "head_dims": ((64, 64), (128, 128), (32, 96), (256, 256))[index // 6 % 4], "of": [*SHAPES][index % 4],
                  "window": ((-1, -1), (-1, 0), (30, 4), (0, 0), (-1, 7))[index % 5]}
        check(run, backend, call_of(device, **{**base, **varied}, lengths=lengths, seed=index))
