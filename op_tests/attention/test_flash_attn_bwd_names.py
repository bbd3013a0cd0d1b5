# SPDX-License-Identifier: MIT
"""AITER's names for the derivative of attention, on kernels, against float64: what each writes, adds and refuses."""

import inspect
import math

import pytest
import torch
from attention_bwd_cases import FP16, make, rare

from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.attention import mha_backward, mha_raw
from aiter_like.ops.attention.call import dbias_call
from aiter_like.testing import assert_within
from aiter_like.testing.attention_bwd import attention_gradients_float64, check_attention_gradients, fill_forward

DENSE = {"_flash_attn_backward": mha_backward.flash_attn_backward, "mha_bwd": mha_backward.mha_bwd,
         "fmha_v3_bwd": mha_raw.fmha_v3_bwd}
PACKED = {"_flash_attn_varlen_backward": mha_backward.flash_attn_varlen_backward,
          "mha_varlen_bwd": mha_backward.mha_varlen_bwd, "fmha_v3_varlen_bwd": mha_raw.fmha_v3_varlen_bwd}
NAMES = DENSE | PACKED
WITH_SINKS = [name for name, function in NAMES.items() if "d_sink" in inspect.signature(function).parameters]
WITH_BIAS = [name for name, function in NAMES.items() if "bias" in inspect.signature(function).parameters]
SEQUENCES = ((5, 63, 1, 0), (5, 70, 7, 9))
ROWS = ("dq", "dout", "q", "out")
KEYS = ("dk", "dv", "k", "v")


def call_of(device, name, **options):
    """A causal call with grouped heads, of the kind that `name` takes; its derivatives hold NaN."""
    kind = {"lengths": (65, 130), "batch": 2} if name in DENSE else {"packed": SEQUENCES}
    return make(device, heads=(4, 2), window=(-1, 0), **kind | options)


def with_dropout(device, name, **options):
    """Such a call with slopes and dropout, and with a bias where the name takes one."""
    return call_of(device, name, bias="shared" * (name in WITH_BIAS), alibi=2, dropout_p=0.3, **options)


def by_name(name, call, **changes):
    """Calls `name` with AITER's arguments for `call`, whose dq, dk and dv it writes; the result."""
    function = NAMES[name]
    known = call._asdict() | {
        "softmax_lse": call.lse, "causal": call.window_right == 0, "is_causal": call.window_right == 0,
        "window_size_left": call.window_left, "window_size_right": call.window_right, "deterministic": True,
        "zero_tensors": False, "is_v3_atomic_fp32": True, "how_v3_bf16_cvt": 1, "dbias": None}
    bias = known.pop("bias")
    known["bias"] = None if bias is None else bias[0, 0]
    known = {key: value for key, value in known.items() if key in inspect.signature(function).parameters}
    return function(**known | changes)


def row_sums(call):
    """(1 − dropout_p) · Σ dout · out, which every name returns."""
    sums = (call.dout.double() * call.out.double()).sum(-1).transpose(-1, -2)
    return sums.cpu() * (1 - call.dropout_p)


def check_sums(found, call):
    sums = found if isinstance(found, torch.Tensor) else found[3]
    assert sums.dtype == torch.float32 and sums.is_contiguous()
    torch.testing.assert_close(sums.cpu().double(), row_sums(call), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_against_float64(device, name):
    call = call_of(device, name)
    found = by_name(name, call)
    check_attention_gradients(call)
    check_sums(found, call)
    if isinstance(found, tuple):
        assert all(mine is given for mine, given in zip(found, call.gradients))
        new = by_name(name, call, dq=None, dk=None, dv=None)
        assert all(map(torch.equal, new[:3], call.gradients))


@pytest.mark.parametrize("name", NAMES)
def test_in_any_order(device, name):
    call = call_of(device, name, dtype=FP16)
    by_name(name, call, deterministic=False)
    check_attention_gradients(call)


@pytest.mark.parametrize("name", [name if name in WITH_BIAS else rare(name) for name in NAMES])
def test_bias_slopes_window_and_dropout(device, name):
    """The bias is a matrix for all sequences and heads, [seqlen_q, seqlen_k]; its derivative goes to strided memory."""
    call, changes = with_dropout(device, name)._replace(window_left=40), {}
    if call.bias is not None:
        changes["dbias"] = torch.full((131, 65), math.nan, dtype=call.bias.dtype, device=device).T[:, :130]
    check_sums(by_name(name, fill_forward(call), **changes), call)
    check_attention_gradients(call)
    for dbias in changes.values():
        check_attention_gradients(dbias_call(call, dbias[None, None]))


@pytest.mark.parametrize("name", NAMES)
def test_strided_tensors_are_written_in_place(device, name):
    """dq, dk and dv in one tensor of all heads, as a layer that projects them at once has them."""
    equal = {"lengths": (65, 65)} if name in DENSE else {"packed": (SEQUENCES[0], SEQUENCES[0])}
    call = call_of(device, name, **equal)
    rows = call.q.shape[:-2]
    whole = torch.full((*rows, 9, 64), math.nan, dtype=call.q.dtype, device=device)
    call = call._replace(**dict(zip(("dq", "dk", "dv"), whole.split([4, 2, 2, 1], -2))))
    by_name(name, call)
    check_attention_gradients(call)
    assert whole[..., 8, :].isnan().all()


@pytest.mark.parametrize("name", ["_flash_attn_backward", "_flash_attn_varlen_backward"])
def test_dout_of_any_strides(device, name):
    """As the derivative of a sum is."""
    call = call_of(device, name)
    call = call._replace(dout=torch.ones((), dtype=call.q.dtype, device=device).expand(call.out.shape))
    by_name(name, call)
    check_attention_gradients(call)


@pytest.mark.parametrize("name", WITH_SINKS)
def test_sinks_of_heads(device, name):
    """Their derivative is added to what `d_sink` holds."""
    call = call_of(device, name, sink=True)
    d_sink = torch.ones(4, device=device)
    by_name(name, call, d_sink=d_sink)
    check_attention_gradients(call._replace(dsink=d_sink - 1))
    expected = [gradient.clone() for gradient in call.gradients]
    by_name(name, call)
    assert all(map(torch.equal, expected, call.gradients))


def alone(call, sinks):
    """The sequences of a call, each as a call of its own with its own sinks, on views of the same memory."""
    parts = []
    for index, sink in enumerate(sinks):
        if call.forward.is_varlen:
            rows, keys = (slice(*starts[index:index + 2].tolist()) for starts in (call.cu_seqlens_q, call.cu_seqlens_k))
            own = {name: getattr(call, name)[rows][None] for name in ROWS}
            own |= {name: getattr(call, name)[keys][None] for name in KEYS}
            lse = call.lse[:, rows][None]
        else:
            own = {name: getattr(call, name)[index:index + 1] for name in (*ROWS, *KEYS)}
            lse = call.lse[index:index + 1]
        parts.append(call._replace(**own, lse=lse, cu_seqlens_q=None, cu_seqlens_k=None, sink=sink,
                                   dsink=torch.zeros_like(sink)))
    return parts


@pytest.mark.parametrize("name", WITH_SINKS)
def test_sinks_of_each_sequence(device, name):
    """[batch, num_heads], as AITER's own are."""
    call = call_of(device, name)
    sinks = torch.randn(call.forward.batch, 4, generator=torch.Generator().manual_seed(7)).to(device)
    parts = alone(call, sinks)
    for part in parts:
        fill_forward(part)
    d_sink = torch.zeros(4, device=device)
    by_name(name, call, sink=sinks, d_sink=d_sink)
    exact = [attention_gradients_float64(part)["dsink"] for part in parts]
    assert_within("d_sink", d_sink, sum(one.expected for one in exact), sum(one.limit for one in exact))
    for part in parts:
        check_attention_gradients(part._replace(dsink=None))


@pytest.mark.parametrize("name", [name if name in WITH_BIAS else rare(name) for name in WITH_SINKS])
def test_equal_sinks_of_each_sequence_beside_dropout(device, name):
    call = with_dropout(device, name, sink=True)
    d_sink = torch.zeros(4, device=device)
    by_name(name, call, sink=call.sink.expand(call.forward.batch, 4), d_sink=d_sink)
    check_attention_gradients(call._replace(dsink=d_sink))


def spread(tensor, places, starts, total):
    """The sequences that begin at `starts` moved to `places`, NaN between them."""
    moved = torch.full((total, *tensor.shape[1:]), math.nan, dtype=tensor.dtype, device=tensor.device)
    for place, begin, end in zip(places, starts, starts[1:]):
        moved[place:place + end - begin] = tensor[begin:end]
    return moved


@pytest.mark.parametrize("sinks", ["of heads", "of sequences"])
def test_padding_between_sequences(device, sinks):
    """What stands there counts for nothing: rows of sequences get the bits that they have without it."""
    call = call_of(device, "mha_varlen_bwd", sink=True)
    sink = call.sink if sinks == "of heads" else call.sink + torch.arange(4.0, device=device)[:, None]
    one_by_one = call._replace(**{name: torch.empty_like(getattr(call, name)) for name in ("dq", "dk", "dv")})
    expected, d_sink = torch.zeros(4, device=device), torch.zeros(4, device=device)
    by_name("mha_varlen_bwd", one_by_one, sink=sink, d_sink=expected)
    starts = [call.cu_seqlens_q.tolist(), call.cu_seqlens_k.tolist()]
    places = [[begin + 3 * index for index, begin in enumerate(each)] for each in starts]
    totals = [each[-1] for each in places]
    moved = {name: spread(getattr(call, name), places[side], starts[side], totals[side])
             for side, names in enumerate((ROWS, KEYS)) for name in names}
    moved["lse"] = spread(call.lse.T, places[0], starts[0], totals[0]).T.contiguous()
    padded = [torch.tensor(each, dtype=torch.int32, device=device) for each in places]
    found = by_name("mha_varlen_bwd", call._replace(**moved), sink=sink, d_sink=d_sink, zero_tensors=True,
                    cu_seqlens_q_padded=padded[0], cu_seqlens_k_padded=padded[1])
    for side, gradient, wanted in zip((0, 1, 1), found, one_by_one.gradients):
        for place, begin, end in zip(places[side], starts[side], starts[side][1:]):
            assert torch.equal(gradient[place:place + end - begin], wanted[begin:end])
    torch.testing.assert_close(d_sink, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_zero_tensors_and_rows_of_no_sequence(device, name):
    """Keys and rows of no sequence, and keys that nobody sees, get zeros."""
    if name in DENSE:
        call = call_of(device, name, lengths=(63, 130))._replace(window_left=10)
        by_name(name, fill_forward(call))
        assert not call.dk[:, :57].any() and not call.dv[:, :57].any() and call.dk[:, 57:].any()
        return
    call = call_of(device, name)
    shorter = call._replace(cu_seqlens_q=call.cu_seqlens_q[:3], cu_seqlens_k=call.cu_seqlens_k[:3])
    fill_forward(shorter).out[68:] = math.nan
    found = by_name(name, shorter, zero_tensors=True)
    sums = found if isinstance(found, torch.Tensor) else found[3]
    assert not shorter.dq[68:].any() and not shorter.dk[75:].any() and not shorter.dv[75:].any()
    assert not sums[:, 68:].any() and sums[:, :68].any()
    check_attention_gradients(shorter)


def wrong(device, name):
    """Changes of arguments, the parameter that the refusal names, and the kind of error."""
    call, parameters = call_of(device, name), inspect.signature(NAMES[name]).parameters
    yield {"q": call.q.float()}, "q", TypeError
    yield {"k": call.k[None]}, "k", ValueError
    yield {"dout": call.dout[..., :32]}, "dout", ValueError
    yield {"softmax_lse": call.lse[..., 1:]}, "softmax_lse", ValueError
    yield {"dv": call.dv.float()}, "dv", TypeError
    yield {"dk": call.dk[..., :32]}, "dk", ValueError
    yield {"alibi_slopes": torch.zeros(3, device=device)}, "alibi_slopes", ValueError
    yield {"dropout_p": 0.5}, "rng_state", TypeError
    yield {"softmax_scale": math.nan}, "softmax_scale", ValueError
    yield {"deterministic": 2}, "deterministic", TypeError
    if "gen" in parameters:
        yield {"gen": torch.Generator()}, "gen", UnsupportedError
    if "dbias" in parameters:
        bias = torch.zeros(65, 130, device=device)
        yield {"dbias": bias}, "bias", TypeError
        yield {"bias": bias, "dbias": bias.bfloat16()}, "dbias", TypeError
        yield {"bias": bias, "dbias": bias[:, 1:]}, "dbias", ValueError
    if "how_v3_bf16_cvt" in parameters:
        yield {"how_v3_bf16_cvt": 3}, "how_v3_bf16_cvt", ValueError
        yield {"is_v3_atomic_fp32": "yes"}, "is_v3_atomic_fp32", TypeError
    if "d_sink" in parameters:
        heads = torch.zeros(4, device=device)
        yield {"d_sink": heads}, "sink", TypeError
        yield {"sink": heads[:3], "d_sink": heads}, "sink", ValueError
        yield {"sink": heads, "d_sink": heads[:3]}, "d_sink", ValueError
        yield {"sink": heads.bfloat16()}, "sink", TypeError
    if "cu_seqlens_q" in parameters:
        yield {"cu_seqlens_q": None}, "cu_seqlens_q", TypeError
        yield {"cu_seqlens_k": call.cu_seqlens_k[:2]}, "cu_seqlens_k", ValueError
        yield {"max_seqlen_q": 62}, "max_seqlen_q", ValueError


@pytest.mark.parametrize("name", NAMES)
def test_wrong_arguments_are_named(device, name):
    """In the words of the function that was called, before anything is written."""
    call = call_of(device, name)
    for changes, parameter, kind in wrong(device, name):
        with pytest.raises(kind, match=rf"^{name}: (no backend supports )?{parameter}\b"):
            by_name(name, call, **changes)
    assert all(gradient.isnan().all() for gradient in call.gradients)
