# SPDX-License-Identifier: MIT
"""AITER's calls below flash_attn_func against flash_attn_func, its autograd and the formulas in float64."""

import pytest
import torch
from seeded import numbers

import aiter_like as aiter
from aiter_like import sim
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.attention import mha, mha_backward
from aiter_like.integrations.aiter.attention import mha_raw as raw

BF16, F32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fnuz
SCALE = 32**-0.5
pytestmark = pytest.mark.usefixtures("in_torch")


def dense():
    return numbers(2, 9, 4, 32), numbers(2, 13, 2, 32, seed=1), numbers(2, 13, 2, 32, seed=2)


def forward(q, k, v, causal=True, **options):
    scales = options.pop("scales", [None] * 3)
    return mha.flash_attn_forward(q, k, v, 0.0, SCALE, causal, -1, -1, 0, None, None, *scales,
                                  options.pop("return_lse", True), False, **options)


def test_forward():
    q, k, v = dense()
    out, lse, mask, state = forward(q, k, v)
    expected, expected_lse = aiter.flash_attn_func(q, k, v, softmax_scale=SCALE, causal=True, return_lse=True)
    assert torch.equal(out, expected) and torch.equal(lse, expected_lse)
    assert mask.numel() == 0 and state.shape == (2,) and state.dtype == torch.int64
    given = torch.empty_like(q)
    assert forward(q, k, v, out=given, return_lse=False)[0] is given and torch.equal(given, out)
    assert torch.equal(mha.mha_fwd(q, k, v, 0.0, SCALE, True, -1, 0, 0, True, False)[1], lse)
    assert torch.equal(mha.fmha_fwd_bf16_opus_fwd(q, k, v, SCALE, True), out)
    lengths = torch.tensor([0, 9, 14], dtype=torch.int32)
    found = forward(q, k, v, cu_seqlens_q=lengths)
    assert torch.equal(found[0][1, :5], aiter.flash_attn_func(
        q[1:, :5], k[1:], v[1:], softmax_scale=SCALE, causal=True)[0])


def test_forward_of_fp8():
    q, k, v = (x.to(FP8) for x in dense())
    scales = [torch.tensor([value]) for value in (0.5, 2.0, 0.25)]
    out, lse, _, _ = forward(q, k, v, scales=scales)
    expected, expected_lse = aiter.flash_attn_func(*(x.float().mul(one).to(BF16) for x, one in zip((q, k, v), scales)),
                                                   softmax_scale=SCALE, causal=True, return_lse=True)
    assert out.dtype == BF16
    torch.testing.assert_close(out, expected, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(lse, expected_lse, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("is_padded", (False, True))
def test_packed(is_padded):
    q, k, v = numbers(12, 4, 32), numbers(16, 2, 32, seed=1), numbers(16, 2, 32, seed=2)
    starts = [torch.tensor(values, dtype=torch.int32) for values in ([0, 5, 9], [0, 7, 13])]
    padded = [None] * 2
    if is_padded:
        padded = [torch.tensor(values, dtype=torch.int32) for values in ([0, 6, 12], [0, 8, 16])]
    found = mha.flash_attn_varlen_forward(q, k, v, *starts, *padded, 6, 8, 0, 0.0, SCALE, True, return_lse=True,
                                          zero_tensors=not is_padded)
    expected, lse = aiter.flash_attn_varlen_func(
        q, k, v, *starts, 6, 8, softmax_scale=SCALE, causal=True, return_lse=True, cu_seqlens_q_padded=padded[0],
        cu_seqlens_k_padded=padded[1])
    rows = [*range(5), *range(6, 10)] if is_padded else range(9)
    assert torch.equal(found[0][rows], expected[rows]) and torch.equal(found[1][:, rows], lse[:, rows])
    assert is_padded or not found[0][9:].any()
    again = mha.mha_varlen_fwd(q, k, v, *starts, 6, 8, 0, 0.0, SCALE, 0.0, False, True, -1, 0, 0, True, False,
                               cu_seqlens_q_padded=padded[0], cu_seqlens_k_padded=padded[1])
    assert torch.equal(again[0][rows], found[0][rows])

    leaves, dout = [x.clone().requires_grad_() for x in (q, k, v)], numbers(12, 4, 32, seed=3)
    dout[[row for row in range(12) if row not in rows]] = 0
    result = aiter.flash_attn_varlen_func(*leaves, *starts, 6, 8, softmax_scale=SCALE, causal=True,
                                          cu_seqlens_q_padded=padded[0], cu_seqlens_k_padded=padded[1])
    result.backward(dout)
    *grads, sums = mha_backward.mha_varlen_bwd(
        dout, q, k, v, found[0], found[1], *starts, 6, 8, 0.0, SCALE, False, True, -1, 0, False,
        cu_seqlens_q_padded=padded[0], cu_seqlens_k_padded=padded[1])
    keys = [*range(7), *range(8, 14)] if is_padded else range(13)
    for mine, leaf, where in zip(grads, leaves, (rows, keys, keys)):
        torch.testing.assert_close(mine[where], leaf.grad[where], rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(sums[:, rows].T, (dout.float() * found[0].float()).sum(-1)[rows])


def test_pages():
    q, k, v = numbers(6, 4, 32), numbers(4, 16, 2, 32, seed=1), numbers(4, 16, 2, 32, seed=2)
    starts = [torch.tensor(values, dtype=torch.int32) for values in ([0, 2, 6], [0, 20, 50])]
    table = torch.tensor([[3, 1], [0, 2]], dtype=torch.int32)
    found = mha.flash_attn_varlen_forward(q, k, v, *starts, None, None, 4, 30, 0, 0.0, SCALE, True, return_lse=True,
                                          block_table=table)
    expected = aiter.flash_attn_varlen_func(q, k, v, *starts, 4, 30, softmax_scale=SCALE, causal=True,
                                            return_lse=True, block_table=table)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


@pytest.mark.parametrize("sinks", ("none", "of heads", "of sequences"))
def test_backward(sinks):
    q, k, v = dense()
    out, lse, _, _ = forward(q, k, v)
    dout, sink = numbers(2, 9, 4, 32, seed=3), numbers(2, 4, seed=4, dtype=F32)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    aiter.flash_attn_func(*leaves, softmax_scale=SCALE, causal=True).backward(dout)
    sink = {"none": None, "of heads": sink[0], "of sequences": sink}[sinks]
    d_sink = None if sink is None else torch.ones(4)
    *grads, sums = mha_backward.mha_bwd(
        dout, q, k, v, out, lse, 0.0, SCALE, True, -1, 0, True, sink=sink, d_sink=d_sink)
    for mine, leaf in zip(grads, leaves):
        torch.testing.assert_close(mine, leaf.grad, rtol=2e-2, atol=2e-2)
    rows = (dout.double() * out.double()).sum(-1).transpose(1, 2)
    torch.testing.assert_close(sums.double(), rows, rtol=1e-5, atol=1e-5)
    if sink is not None:
        expected = 1 - (torch.exp(sink.double().expand(2, 4)[..., None] - lse) * rows).sum((0, 2))
        torch.testing.assert_close(d_sink.double(), expected, rtol=1e-4, atol=1e-4)


def test_dropout():
    """The derivative drops what the forward dropped."""
    q, k, v = dense()
    out, lse, _, state = mha.flash_attn_forward(q, k, v, 0.25, SCALE, False, -1, -1, 0, None, None, None, None, None,
                                                True, False)
    other = forward(q, k, v, causal=False)
    assert torch.equal(lse, other[1]) and not torch.equal(out, other[0])
    dout = numbers(2, 9, 4, 32, seed=3)
    *_, dv, sums = mha_backward.mha_bwd(dout, q, k, v, out, lse, 0.25, SCALE, False, -1, -1, True, rng_state=state)
    torch.testing.assert_close((dv.double() * v.double()).sum(), (dout.double() * out.double()).sum(), rtol=3e-2,
                               atol=0.5)  # both are Σ dout · P v
    torch.testing.assert_close(sums, 0.75 * (dout.float() * out.float()).sum(-1).transpose(1, 2))


def dropped(q, k, v, randval):
    """Attention in float64 with a mask of the bytes [batch, heads, queries, keys], of which 0.25 are dropped."""
    k, v = (x.double().repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    p = torch.einsum("bqhd,bkhd->bhqk", q.double(), k).mul(SCALE).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", p * (randval <= 191) / 0.75, v)  # floor(255 · 0.75)


@pytest.mark.parametrize("name", ("_flash_attn_forward", "mha_fwd", "fmha_v3_fwd"))
def test_what_dropout_drew(name):
    q, k, v = dense()
    first, last = (0.25, SCALE, False, -1, -1), {"return_softmax_lse": True, "return_dropout_randval": True}
    out, _, randval, state = {
        "_flash_attn_forward": lambda: mha.flash_attn_forward(q, k, v, *first, 0, *[None] * 5, True, True),
        "mha_fwd": lambda: mha.mha_fwd(q, k, v, *first, 0, **last),
        "fmha_v3_fwd": lambda: raw.fmha_v3_fwd(q, k, v, *first, how_v3_bf16_cvt=1, **last)}[name]()
    assert randval.shape == (2, 4, 9, k.shape[1]) and randval.dtype == torch.uint8
    assert torch.equal(randval, aiter.dropout_randval(state, 0.25, randval.shape))
    torch.testing.assert_close(out.double(), dropped(q, k, v, randval), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", ("_flash_attn_varlen_forward", "mha_varlen_fwd", "fmha_v3_varlen_fwd"))
def test_what_dropout_drew_of_packed_sequences(name):
    """[heads, tokens, longest], and zeros for tokens of no sequence."""
    q, k, v = numbers(8, 4, 32), numbers(14, 2, 32, seed=1), numbers(14, 2, 32, seed=2)
    starts = [torch.tensor(values, dtype=torch.int32) for values in ([0, 2, 7], [0, 9, 14])]
    drop = {"dropout_p": 0.25, "softmax_scale": SCALE}
    window = {"window_size_left": -1, "window_size_right": -1}
    last = {"return_softmax_lse": True, "return_dropout_randval": True, "zero_tensors": True, "min_seqlen_q": 0,
            "logits_soft_cap": 0.0, "is_causal": False, **drop, **window}
    out, _, randval, state = {
        "_flash_attn_varlen_forward": lambda: mha.flash_attn_varlen_forward(
            q, k, v, *starts, None, None, 5, 9, 0, causal=False, return_softmax=True, zero_tensors=True, **drop),
        "mha_varlen_fwd": lambda: mha.mha_varlen_fwd(q, k, v, *starts, 5, 9, sink_size=0, **last),
        "fmha_v3_varlen_fwd": lambda: raw.fmha_v3_varlen_fwd(q, k, v, *starts, 5, 9, how_v3_bf16_cvt=1, **last)}[name]()
    assert randval.shape == (4, 8, 9) and not randval[:, 7].any() and not out[7].any()
    assert torch.equal(randval, aiter.dropout_randval(state, 0.25, randval.shape, starts[0]))
    for rows, keys in ((slice(0, 2), slice(0, 9)), (slice(2, 7), slice(9, 14))):
        expected = dropped(q[None, rows], k[None, keys], v[None, keys], randval[None, :, rows, :keys.stop - keys.start])
        torch.testing.assert_close(out[rows].double(), expected[0], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", ("cu_seqlens_q", "cu_seqlens_k"))
@pytest.mark.parametrize("is_paged", (False, True))
def test_packed_sequences_need_their_starts(is_paged, name):
    """AITER may be given None for those of keys; nothing says then where a sequence ends."""
    q, k, starts = numbers(5, 2, 32), numbers(*((7, 16) if is_paged else (7,)), 2, 32), torch.tensor([0, 5]).int()
    call = {"cu_seqlens_q": starts, "cu_seqlens_k": starts, name: None}
    table = torch.zeros(1, 1, dtype=torch.int32) if is_paged else None
    with pytest.raises(TypeError, match=f"^mha_varlen_fwd: {name} must be a tensor, got NoneType"):
        mha.mha_varlen_fwd(q, k, k, *call.values(), 5, 7, 0, 0.0, SCALE, 0.0, False, False, -1, -1, 0, True, False,
                           block_table=table)


def test_refusals():
    q, k, v = dense()
    out, lse, _, _ = forward(q, k, v)
    options = (0.0, SCALE, True, -1, 0, True)
    for message, kind, call in (
            ("_flash_attn_forward: q must have 4 dimensions", ValueError, lambda: forward(q[0], k, v)),
            ("_flash_attn_forward: return_softmax must be False where dropout_p is 0", ValueError,
             lambda: mha.flash_attn_forward(q, k, v, 0.0, SCALE, True, -1, -1, 0, *[None] * 5, True, True)),
            ("mha_fwd: no backend supports gen", UnsupportedError, lambda: mha.mha_fwd(
                q, k, v, 0.0, SCALE, True, -1, 0, 0, True, False, gen=torch.Generator())),
            ("mha_bwd: bias must be a tensor", TypeError,
             lambda: mha_backward.mha_bwd(q, q, k, v, out, lse, *options, dbias=q)),
            ("mha_bwd: dout must have shape", ValueError, lambda: mha_backward.mha_bwd(k, q, k, v, out, lse, *options)),
            ("mha_bwd: sink must be a tensor", TypeError,
             lambda: mha_backward.mha_bwd(q, q, k, v, out, lse, *options, d_sink=torch.zeros(4))),
            ("mha_bwd: sink must have shape", ValueError, lambda: mha_backward.mha_bwd(
                q, q, k, v, out, lse, *options, sink=torch.zeros(3, 4), d_sink=torch.zeros(4)))):
        with pytest.raises(kind, match=message):
            call()


@pytest.mark.parametrize("backend", (
    "hip", pytest.param("ck", marks=pytest.mark.exhaustive), pytest.param("triton", marks=pytest.mark.exhaustive)))
def test_by_kernels(backend):
    """On the simulated device, each backend is as torch's is; the automatic choice is one of them."""
    q, k, v = (numbers(1, 9, heads, 64, seed=heads) for heads in (4, 2, 2))
    expected, dout = forward(q, k, v), numbers(1, 9, 4, 64, seed=3)
    wanted = mha_backward.mha_bwd(dout, q, k, v, *expected[:2], 0.0, SCALE, True, -1, 0, True)
    with sim.enabled(), aiter.use_backend(backend):
        explanation = aiter.explain(mha.flash_attn_forward, q, k, v, 0.0, SCALE, True, -1, -1, 0, None, None, None,
                                    None, None, True, False)
        assert explanation.backend == backend, str(explanation)
        found = forward(q, k, v)
        torch.testing.assert_close(found[0], expected[0], rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(found[1], expected[1], rtol=1e-3, atol=1e-3)
        grads = mha_backward.mha_bwd(dout, q, k, v, *found[:2], 0.0, SCALE, True, -1, 0, True)
    for mine, one in zip(grads, wanted):
        torch.testing.assert_close(mine, one, rtol=2e-2, atol=3e-2)
