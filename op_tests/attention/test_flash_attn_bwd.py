# SPDX-License-Identifier: MIT
"""flash_attn_bwd and autograd through attention: against float64, features, strides, determinism, bad input.
"""

import functools
import itertools
import math

import pytest
import torch
from attention_bwd_cases import BF16, FEATURES, SHARED, again, make, rare

import aiter_like
from aiter_like import sim
from aiter_like.errors import UnsupportedError
from aiter_like.ops.attention import reference
from aiter_like.ops.attention.call import AttentionBackwardCall, backward_call, dense_call
from aiter_like.ops.attention.flash_attn_bwd import attend, flash_attn_bwd, flash_attn_bwd_ref
from aiter_like.ops.common import philox
from aiter_like.testing import assert_within, strided_like
from aiter_like.testing.attention_bwd import attention_gradients_float64, check_attention_gradients, fill_forward

BACKENDS = ("ck", "triton", "torch")
LENGTHS = (1, 15, 63, 65, 127, 200)


def check(run, backend, call):
    run(backend, flash_attn_bwd, call)
    check_attention_gradients(call)
    return call


@pytest.mark.parametrize("features", [name if name in SHARED else rare(name) for name in FEATURES])
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_float64(device, run, backend, features):
    check(run, backend, make(device, **FEATURES[features]))


@pytest.mark.parametrize("window", ((-1, 0), rare((40, 0))), ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_pair_of_lengths(device, run, backend, window):
    """As the sequences of one packed call."""
    packed = list(zip(*itertools.product(LENGTHS, LENGTHS)))
    check(run, backend, make(device, packed=packed, heads=(2, 1), head_dims=(32, 32), window=window, sink_size=3))


@pytest.mark.parametrize("head_dims", ((8, 8), rare((80, 80)), (192, 128), rare((256, 256))), ids=str)
@pytest.mark.parametrize("backend", ("ck", "triton"))
def test_head_dims(device, run, backend, head_dims):
    check(run, backend, make(device, lengths=(33, 70), heads=(2, 1), head_dims=head_dims, window=(-1, 0)))


@pytest.mark.parametrize("most_scores", (1 << 27, 2000))
def test_reference_is_exact(device, monkeypatch, most_scores):
    """In float64 what is left is float64's own rounding, also where the scores of all rows are too many at once."""
    monkeypatch.setattr(reference, "_MOST_SCORES", most_scores)
    for features in FEATURES.values():
        call = make(device, **features)
        wide = AttentionBackwardCall(*(
            arg.double() if isinstance(arg, torch.Tensor) and arg.is_floating_point() else arg for arg in call))
        flash_attn_bwd_ref(fill_forward(wide))
        for name, gradient in attention_gradients_float64(call).items():
            assert torch.allclose(getattr(wide, name).cpu(), gradient.expected, rtol=1e-9, atol=1e-11), (features, name)


def strided(call, paddings, offset=0):
    """The call with every tensor of rows in strided storage."""
    names = ("dq", "dk", "dv", "dout", "q", "k", "v", "out")
    return call._replace(**{name: strided_like(getattr(call, name), paddings, offset) for name in names})


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides(device, run, backend):
    call = check(run, backend, make(device, lengths=(37, 70), heads=(4, 2), batch=2, window=(-1, 0)))
    uneven = ((0, 1, 1, 8), 8) if backend == "ck" else ((0, 1, 1, 3), 1)  # it refuses what is not aligned
    for view in (strided(call, (1, 2, 1, 8)), strided(call, *uneven),
                 call._replace(**{name: getattr(call, name).transpose(1, 2).contiguous().transpose(1, 2)
                                  for name in ("dq", "dk", "dv", "q", "k", "v")})):
        for gradient in view.gradients:
            gradient.fill_(math.nan)
        run(backend, flash_attn_bwd, view)
        assert all(torch.equal(got, expected) for got, expected in zip(view.gradients, call.gradients))
    shared = make(device, lengths=(37, 70), heads=(4, 2), batch=2)
    shared = shared._replace(k=shared.k[:1].expand(2, -1, -1, -1), v=shared.v[:, :, :1].expand(-1, -1, 2, -1))
    check(run, backend, fill_forward(shared))


def test_heads_more_than_2_31_elements_apart(device, run):
    """Addresses need 64 bits; only the pages in use are ever touched."""
    far = 2**31 + 64
    for names in (("q", "dout", "dq"), ("k", "v", "dk")):
        call = make(device, lengths=(3, 5), heads=(2, 2), head_dims=(32, 32))
        for name in names:
            tensor = getattr(call, name)
            storage = torch.empty(far + tensor.shape[1] * 32, dtype=BF16, device=device)
            call = call._replace(**{name: storage.as_strided(tensor.shape, (1, 32, far, 1)).copy_(tensor)})
        for backend in ("ck", "triton"):
            check(run, backend, call)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_that_see_nothing(device, run, backend):
    """Their derivative is zero, whatever dout holds."""
    call = check(run, backend, make(device, lengths=(150, 20), heads=(2, 1), window=(-1, 0)))
    assert not call.dq[:, :130].any() and call.dq[:, 130:].any()
    call.dout[:, :130] = math.nan
    run(backend, flash_attn_bwd, call)
    assert not call.dq[:, :130].any() and call.dq[:, 130:].isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_to_do(device, run, backend):
    call = make(device, packed=((5, 0), (0, 9)), sink=True)
    run(backend, flash_attn_bwd, call)
    assert not any(gradient.any() for gradient in call.results)
    for lengths, batch, heads in (((5, 0), 2, 2), ((0, 5), 2, 2), ((5, 7), 0, 2), ((5, 7), 1, 0)):
        call = make(device, lengths=lengths, batch=batch, heads=(heads, heads), sink=True)
        flash_attn_bwd(call, backend=backend)
        assert not any(gradient.any() for gradient in call.results)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_no_sequence_get_zeros(device, run, backend):
    call = make(device, packed=((9, 20), (11, 30)), heads=(2, 1))
    starts = (torch.tensor([9, 25], dtype=torch.int32, device=device),
              torch.tensor([11, 31], dtype=torch.int32, device=device))
    run(backend, flash_attn_bwd, fill_forward(call._replace(cu_seqlens_q=starts[0], cu_seqlens_k=starts[1])))
    for gradient, (start, end) in zip(call.gradients, ((9, 25), (11, 31), (11, 31))):
        assert not gradient[:start].any() and not gradient[end:].any() and gradient[start:end].any()


@pytest.mark.parametrize("features", ("learned sink", "packed"))
@pytest.mark.parametrize("backend", ("ck", "triton"))
def test_repeats_bit_for_bit(device, run, backend, features):
    """Also when waves and workgroups take turns in another order."""
    first = make(device, **FEATURES[features])
    run(backend, flash_attn_bwd, first)
    for seed in (0, 1, 2):
        repeat = again(first)
        if device.type == "cpu":
            with sim.enabled("strict", fuzz=seed):
                run(backend, flash_attn_bwd, repeat)
        else:
            run(backend, flash_attn_bwd, repeat)
        assert all(torch.equal(got, expected) for got, expected in zip(repeat.results, first.results))


@pytest.mark.parametrize("backend", (rare("ck"), "triton"))
def test_forward_and_backward_drop_the_same(device, run, backend):
    """All scores are equal: with v = 1 on the diagonal `out` is P · mask, with such a dout dv is its transpose."""
    call = make(device, lengths=(64, 64), heads=(4, 2), batch=2, dropout_p=0.4)
    identity = torch.eye(64, device=device, dtype=BF16)[:, None]
    call = call._replace(k=torch.zeros_like(call.k), v=identity.expand(2, 64, 2, 64).contiguous())
    kept = philox.attention_kept(call.rng_state.cpu(), 0.4, torch.arange(8).view(2, 4, 1), torch.arange(64), 64)
    out, lse = run("triton", attend, call.forward)
    assert torch.equal(out.cpu().transpose(1, 2) != 0, kept)  # [batch, heads, rows, keys]
    for head in range(4):  # one head at a time: a KV head's dv is the sum of its group
        dout = torch.zeros_like(call.dout)
        dout[:, :, head] = identity[:, 0]
        one = again(call)._replace(dout=dout, out=out, lse=lse)
        run(backend, flash_attn_bwd, one)
        assert torch.equal(one.dv[:, :, head // 2].cpu() != 0, kept[:, head].transpose(1, 2))


@pytest.mark.parametrize("starts", ((0, 2000, 40), (-5, 20, 40), (0, 30, 10), (2**31 - 1, -2**31, 7), (39, 40, 41)))
@pytest.mark.parametrize("backend", ("ck", "triton"))
def test_any_cu_seqlens_stay_inside(device, run, backend, starts):
    """The bounds checker reports what lies outside; results are finite."""
    call = make(device, packed=((20, 20), (20, 20)), window=(-1, 0), bias="shared", alibi=2, dropout_p=0.2)
    broken = torch.tensor(starts, dtype=torch.int64).to(device, torch.int32)
    for q_starts, k_starts in ((broken, call.cu_seqlens_k), (call.cu_seqlens_q, broken), (broken, broken)):
        for gradient in call.gradients:
            gradient.fill_(math.nan)
        run(backend, flash_attn_bwd, call._replace(cu_seqlens_q=q_starts, cu_seqlens_k=k_starts))
        assert all(gradient.isfinite().all() for gradient in call.gradients)


def bad_calls(device):
    call = make(device, lengths=(5, 7), heads=(4, 2), sink=True, bias="heads", alibi=1, dropout_p=0.1)
    packed = make(device, packed=((5,), (7,)))
    for change, kind, message in (
            ({"q": call.q[0]}, ValueError, "q must have 4"),
            ({"q": call.q[:, :, :3]}, ValueError, "must be a multiple of the heads"),
            ({"dq": call.dq[:, :4]}, ValueError, "dq must have"), ({"dout": call.dout[:, :4]}, ValueError, "dout m"),
            ({"bias": call.bias[:, :3]}, ValueError, "bias must have shape .1 or 1, 1 or 4, 5, 7"),
            ({"dlse": call.lse[0]}, ValueError, "dlse must have"),
            ({"dsink": call.sink[:3]}, ValueError, "dsink must have shape"),
            ({"bias": call.bias[..., :6]}, ValueError, "bias must have shape"),
            ({"alibi_slopes": call.alibi_slopes[:3]}, ValueError, "alibi_slopes must have shape"),
            ({"sink": None}, ValueError, "dsink must be None"), ({"sink": call.sink[:3]}, ValueError, "sink must have"),
            ({"rng_state": None}, TypeError, "rng_state must be a tensor"),
            ({"dropout_p": 1.0}, ValueError, "dropout_p must be below 1"),
            ({"softcap": -1.0}, ValueError, "softcap must be at least 0"),
            ({"softmax_scale": math.nan}, ValueError, "softmax_scale must be finite")):
        yield call._replace(**change), kind, message
    yield packed._replace(cu_seqlens_k=None), TypeError, "cu_seqlens_k must be a tensor"


def test_bad_input_is_named(device):
    for call, kind, message in bad_calls(device):
        with pytest.raises(kind, match=f"flash_attn_[bf]wd: .*{message}"):
            flash_attn_bwd(call)


def test_what_triton_refuses(device):
    call = make(device, lengths=(5, 7), head_dims=(264, 264))
    with pytest.raises(UnsupportedError, match="head dimension at most 256, got 264"):
        flash_attn_bwd(call, backend="triton")


def forward_call(call, **changes):
    """The forward of a call, its inputs requiring grad."""
    inputs = {name: getattr(call, name).clone().requires_grad_() for name in ("q", "k", "v", "sink")
              if getattr(call, name) is not None}
    return call.forward._replace(**{**inputs, **changes})


@pytest.mark.parametrize("forward", ("hip", "triton", "torch"))
def test_autograd_after_every_forward(device, run, forward):
    call = make(device, lengths=(65, 127), heads=(4, 2), window=(-1, 0), dlse=True)
    inputs = forward_call(call)
    out, lse = run(forward, attend, inputs)
    torch.autograd.backward((out, lse), (call.dout, call.dlse))
    assert inputs.q.grad.dtype == BF16
    check_attention_gradients(call._replace(dq=inputs.q.grad, dk=inputs.k.grad, dv=inputs.v.grad))


def test_autograd_of_the_public_functions(device, run):
    options = {"heads": (4, 2), "window": (9, 0), "sink_size": 2, "softcap": 3.0, "alibi": 1, "sink": True}
    for call in (make(device, lengths=(20, 33), **options), make(device, packed=((5, 20), (9, 13)), **options)):
        inputs = forward_call(call)
        common = {"window_size": (9, 0, 2), "logits_soft_cap": 3.0, "alibi_slopes": call.alibi_slopes,
                  "sink_ptr": inputs.sink}
        if call.cu_seqlens_q is None:
            out = run("triton", aiter_like.flash_attn_func, *inputs[2:5], **common)
        else:
            out = run("triton", aiter_like.flash_attn_varlen_func, *inputs[2:7], *inputs[16:18], **common)
        out.backward(call.dout)
        gradients = {f"d{name}": getattr(inputs, name).grad for name in ("q", "k", "v", "sink")}
        check_attention_gradients(call._replace(**gradients), "rtna")  # AITER's default rounding of P


def test_autograd_of_one_result_or_one_input(device):
    call = make(device, lengths=(33, 40), heads=(2, 1), window=(-1, 0))
    inputs = forward_call(call)
    out, lse = attend(inputs)
    gradients = torch.autograd.grad(out.sum(), (inputs.q, inputs.k, inputs.v), retain_graph=True)
    ones = call._replace(dout=torch.ones_like(call.dout))
    check_attention_gradients(ones._replace(dq=gradients[0], dk=gradients[1], dv=gradients[2]))
    (dq,) = torch.autograd.grad(lse.sum(), inputs.q)
    expected = attention_gradients_float64(call._replace(dout=torch.zeros_like(call.dout),
                                                         dlse=torch.ones_like(call.lse)))
    assert torch.allclose(dq.cpu().double(), expected["dq"].expected, atol=1e-3, rtol=1e-2)
    only = forward_call(call, k=call.k, v=call.v)
    out, _ = attend(only)
    out.backward(call.dout)
    assert (only.q.grad.cpu().double() - attention_gradients_float64(call)["dq"].expected).abs().max() < 1e-2
    with torch.no_grad():
        assert not attend(inputs)[0].requires_grad


def test_what_has_no_derivative_says_so(device):
    call = make(device, lengths=(9, 12), window=(-1, 0), alibi=1)
    inputs = forward_call(call, alibi_slopes=None)
    with pytest.raises(UnsupportedError, match="no derivative: take backend='torch'"):
        torch.autograd.grad(attend(inputs)[0].sum(), inputs.q, create_graph=True)
    with pytest.raises(UnsupportedError, match="no derivative with respect to alibi_slopes"):
        attend(inputs._replace(alibi_slopes=call.alibi_slopes.clone().requires_grad_()))
    with pytest.raises(UnsupportedError, match="KV cache"):
        attend(inputs._replace(seqlens_k=torch.tensor([12], dtype=torch.int32, device=device)))


def test_compiled_training_step(device):
    """No graph break, and the same bits."""
    call = make(device, lengths=(33, 40), heads=(2, 1), window=(-1, 0))
    inputs = forward_call(call)
    tensors = (inputs.q, inputs.k, inputs.v)

    def step(q, k, v):
        out, lse = attend(inputs._replace(q=q * 2, k=k, v=v))
        return out, lse

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for results, used in ((lambda pair: pair[:1], (call.dout,)), (lambda pair: pair, (call.dout, call.lse))):
        got = torch.autograd.grad(results(compiled(*tensors)), tensors, used)
        expected = torch.autograd.grad(results(step(*tensors)), tensors, used)
        assert all(torch.equal(one, other) for one, other in zip(got, expected))


@pytest.mark.exhaustive
@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_everything(device, run, backend, features):
    """Each feature with every pair of lengths; masks, head dimensions, groups, dtypes and strides take turns."""
    base = {name: value for name, value in FEATURES[features].items() if name not in ("lengths", "packed", "window")}
    for index, lengths in enumerate(itertools.product(LENGTHS, LENGTHS)):
        varied = {"heads": ((2, 2), (4, 1), (6, 2))[index % 3], "dtype": (BF16, torch.float16)[index // 3 % 2],
                  "head_dims": ((64, 64), (128, 128), (32, 96), (64, 128))[index // 6 % 4],
                  "window": ((-1, -1), (-1, 0), (30, 4), (0, 0), (-1, 7))[index % 5]}
        call = make(device, **{**base, **varied}, lengths=lengths, seed=index)
        check(run, backend, strided(call, (0, index % 2, index // 2 % 2, 8 * (index // 4 % 2))))


def check_last_rows(call, gradients):
    """dq of the last rows of the first heads and, causal, dk and dv of the keys that no other row sees; error/limit."""
    heads = call.q.shape[2] // call.k.shape[2]
    part = call._replace(
        **{name: getattr(call, name)[:1, -64:, :heads] for name in ("q", "dout", "out")}, k=call.k[:1, :, :1],
        v=call.v[:1, :, :1], lse=call.lse[:1, :heads, -64:], dq=gradients[0][:1, -64:, :heads],
        dk=gradients[1][:1, :, :1], dv=gradients[2][:1, :, :1], max_seqlen_q=64)
    found = attention_gradients_float64(part)
    names = ("dq", "dk", "dv") if call.window_right == 0 else ("dq",)
    return max(assert_within(name, getattr(part, name)[:, -64:], found[name].expected[:, -64:],
                             found[name].limit[:, -64:]) for name in names)


def bench() -> None:
    """Backward alone beside PyTorch's: cuDNN, FlashAttention 2, FlexAttention."""
    import benching
    from attention_cases import BENCH_SHAPES
    from held_out_calls import CALLS

    device = torch.device("cuda")

    def peers(call):
        """Their gradients have heads before tokens."""
        return {name: lambda peer=peer: tuple(gradient.transpose(1, 2) for gradient in peer())
                for name, peer in CALLS["flash_attn_bwd"](call, benching.compiled).peers.items()}

    def case(shape, causal):
        batch, heads, kv_heads, seqlen, head_dim = shape
        generator = torch.Generator(device).manual_seed(0)
        q, k, v, dout = (torch.randn(batch, seqlen, count, head_dim, dtype=BF16, device=device, generator=generator)
                         for count in (heads, kv_heads, kv_heads, heads))
        forward = dense_call(None, None, q, k, v, window_right=0 if causal else -1)
        out, lse = attend(forward)
        call = backward_call(forward._replace(out=out, lse=lse), dout)

        def ours():
            flash_attn_bwd(call, backend="triton")
            return call.gradients

        flops = 10 * batch * heads * seqlen**2 * head_dim // (2 if causal else 1)
        return benching.Case(f"{','.join(map(str, shape))}{' causal' if causal else ''}", sum(
            x.numel() * 2 for x in (q, q, q, q, k, k, v, v)), {"triton": ours, **peers(call)},
            functools.partial(check_last_rows, call), flops=flops, is_eager=True)

    short = (((1, 32, 8, 900, 128), True), ((1, 32, 8, 900, 128), False), ((16, 16, 16, 512, 64), False))
    benching.table("flash_attn_bwd", (case(*arguments) for arguments in (*BENCH_SHAPES, *short)))
