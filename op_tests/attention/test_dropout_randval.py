# SPDX-License-Identifier: MIT
"""dropout_randval against the bits that attention compares, and what attention returns of it: the mask that follows
must be the one that the forward and its derivative applied, which float64 with that mask shows.
"""

import math

import pytest
import torch
from attention_cases import BF16, dense, packed

import aiter_like
from aiter_like.dispatch import explain
from aiter_like.errors import UnsupportedError
from aiter_like.ops.attention.dropout_randval import DropoutRandvalCall, dropout_randval_op
from aiter_like.ops.common import philox
from aiter_like.testing import assert_within, relative_l2

BACKENDS = ("hip", "triton", "torch")
FORWARDS = ("triton", "torch")  # that have dropout
STATE = (-0x123456789ABCDEF, 2**40 + 2**31 + 7)
SHAPES = {"dense": ((2, 3, 5, 264), None), "odd": ((3, 2, 7, 67), None), "one key": ((1, 4, 3, 1), None),
          "several turns": ((1, 1, 3, 1503), None), "packed": ((2, 9, 20), (0, 3, 3, 8)),
          "packed, odd": ((3, 12, 33), (0, 0, 5, 6, 6, 12)), "one sequence": ((2, 5, 9), (0, 4)),
          "no sequence": ((2, 5, 9), (0,))}


def is_kept(randval, p):
    """AITER's rule."""
    return math.floor(255.0 * (1 - p)) - randval.float() >= 0


def integers(device, *values):
    return torch.tensor(values, dtype=torch.int32, device=device)


def expected(shape, starts, p, state=STATE):
    """(words, whether they are kept) of `shape`, or None for rows of no sequence, row by row."""
    heads, columns = shape[-3], shape[-1]
    starts = range(0, (shape[0] + 1) * shape[2], shape[2]) if starts is None else starts
    rows = shape[-2] * (shape[0] if len(shape) == 4 else 1)
    for row in range(rows):
        own = [index for index in range(len(starts) - 1) if starts[index] <= row < starts[index + 1]]
        for head in range(heads):
            place = (row // shape[2], head, row % shape[2]) if len(shape) == 4 else (head, row)
            if not own:
                yield place, None, None
                continue
            position, number = torch.tensor(row - starts[own[0]]), torch.tensor(own[0] * heads + head)
            words = philox.words(state[0], torch.arange((columns + 3) // 4), position, number,
                                 torch.tensor(state[1] & 0xFFFFFFFF))
            yield place, words.flatten()[:columns], philox.attention_kept(torch.tensor(state), p, number, position,
                                                                          columns)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SHAPES)
def test_bytes(device, run, backend, name):
    """The upper byte of each word, turned round, on the side of the limit that attention is on."""
    shape, starts = SHAPES[name]
    found = run(backend, aiter_like.dropout_randval, torch.tensor(STATE, device=device), 0.17, shape,
                None if starts is None else integers(device, *starts)).cpu()
    assert found.dtype == torch.uint8 and found.shape == shape
    for place, words, kept in expected(shape, starts, 0.17):
        if words is None:
            assert not found[place].any()
        else:
            assert torch.equal(is_kept(found[place], 0.17), kept)
            assert ((found[place].int() - (255 - (words >> 24))).abs() <= 1).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_limit_of_every_share(device, run, backend):
    """Shares at which floor(255 · (1 − p)) changes, and those at the ends."""
    near = [value for k in (1, 2, 43, 44, 127, 128, 200, 253, 254)
            for value in (k / 255, math.nextafter(k / 255, 0), math.nextafter(k / 255, 1), k / 256)]
    heads, position = torch.arange(2)[:, None], torch.arange(2)
    for p in (0.0, 2.0**-60, 2.0**-25, 2.0**-24, 1 - 2.0**-24, math.nextafter(1.0, 0), *near):
        found = run(backend, aiter_like.dropout_randval, torch.tensor(STATE, device=device), p, (1, 2, 2, 2000))
        kept = philox.attention_kept(torch.tensor(STATE), p, heads, position, 2000)
        assert torch.equal(is_kept(found[0].cpu(), p), kept), p


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_apart(device, run, backend):
    """Strides of all dimensions but the last, rows that words of four bytes do not fit; nothing between is touched."""
    state, wide = torch.tensor(STATE, device=device), torch.full((2, 6, 3, 40), 9, dtype=torch.uint8, device=device)
    out = wide[:, ::2, :, 1:38].transpose(1, 2)  # [2, 3, 3, 37], heads beside rows
    assert run(backend, aiter_like.dropout_randval, state, 0.4, (2, 3, 3, 37), out=out) is out
    assert torch.equal(out, aiter_like.dropout_randval(state, 0.4, (2, 3, 3, 37), backend="torch"))
    assert (wide[:, 1::2] == 9).all() and (wide[..., 0] == 9).all() and (wide[..., 38:] == 9).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_lengths_that_lie_touch_nothing_outside(device, run, backend):
    """The bounds checker knows the tensors; what comes out is not specified."""
    out, state = torch.empty(2, 9, 20, dtype=torch.uint8, device=device), torch.tensor(STATE, device=device)
    for starts in ((0, 500, 100), (0, -7, 100), (90, 20, 3), (2**31 - 1, -(2**31), 2**31 - 1)):
        run(backend, dropout_randval_op, DropoutRandvalCall(out, state, integers(device, *starts), 0.3))
    if device.type == "cpu":  # elsewhere looking at them would wait for the GPU
        with pytest.raises(ValueError, match="dropout_randval: cu_seqlens_q must start at 0"):
            aiter_like.dropout_randval(state, 0.3, out.shape, integers(device, 0, 9, 3), backend=backend)



def attention64(q, k, v, kept, p, left=-1, right=-1):
    """[rows, heads, dim] of one sequence in float64 by a given mask [heads, rows, keys], with its derivatives."""
    q, k, v = (tensor.detach().cpu().double().requires_grad_() for tensor in (q, k, v))
    group = q.shape[1] // k.shape[1]
    keys, values = (tensor.repeat_interleave(group, 1) for tensor in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, keys) * q.shape[-1] ** -0.5
    distance = torch.arange(len(q))[:, None] + len(k) - len(q) - torch.arange(len(k))
    hidden = (distance < -right if right >= 0 else distance > 10**9) | (distance > left if left >= 0 else False)
    attention = scores.masked_fill(hidden, -math.inf).softmax(-1).masked_fill(hidden.all(-1, keepdim=True), 0.0)
    attention = attention * kept.cpu() / (1 - p)
    out = torch.einsum("hqk,khd->qhd", attention, values)
    return out, torch.einsum("hqk,khd->qhd", attention.detach(), values.detach().abs()), (q, k, v)


def check_sequence(tensors, out, dout, gradients, randval, p, **window):
    """Forward and derivative of one sequence by the mask of `randval` [heads, rows, keys]."""
    values, weighted, leaves = attention64(*tensors, is_kept(randval, p), p, **window)
    assert_within("out", out, values.detach(), 2**-7 * weighted + 2**-8 * values.detach().abs() + 1e-6)
    expected_gradients = torch.autograd.grad(values, leaves, dout.cpu().double()) if gradients else ()
    for mine, exact in zip(gradients, expected_gradients, strict=True):
        assert relative_l2(mine.cpu().double(), exact) < 2e-2


WINDOWS = {"all": ({}, {}), "causal": ({"causal": True}, {"right": 0}),
           "window": ({"window_size": (9, 4)}, {"left": 9, "right": 4})}


@pytest.mark.parametrize("backend", FORWARDS)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("p", (0.17, 0.5))
def test_the_mask_of_flash_attn_func(device, backend, window, p):
    """Grouped heads, odd lengths; both operators that serve the call are named by explain."""
    options, sides = WINDOWS[window]
    q, k, v = (tensor.requires_grad_() for tensor in dense(device, 2, 21, 30, 4, 2, 64, BF16))
    call = {"dropout_p": p, "return_lse": True, "return_attn_probs": True, "backend": backend, **options}
    told = explain(aiter_like.flash_attn_func, q, k, v, **call)
    assert [(one.op, one.backend) for one in told] == [("flash_attn_fwd", backend), ("dropout_randval", backend)]
    out, _, randval = aiter_like.flash_attn_func(q, k, v, **call)
    assert randval.shape == (2, 4, 21, 30) and randval.dtype == torch.uint8 and not randval.requires_grad
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(out)
    gradients = torch.autograd.grad(out, (q, k, v), dout)
    for index in range(2):
        own = [tensor[index] for tensor in (q, k, v)]
        check_sequence(own, out[index].detach(), dout[index], [one[index] for one in gradients], randval[index], p,
                       **sides)


@pytest.mark.parametrize("backend", FORWARDS)
@pytest.mark.parametrize("is_padded", (False, True), ids=("packed", "padded"))
def test_the_mask_of_flash_attn_varlen_func(device, backend, is_padded):
    """Of ragged sequences, an empty one among them, also with padding between them."""
    lengths, keys, p = (5, 0, 17, 3), (9, 4, 30, 21), 0.25
    q, k, v, starts_q, starts_k, _, most_k = packed(device, lengths, keys, 4, 2, 64, BF16)
    options, places = {}, starts_q.tolist()
    if is_padded:
        places = [0, 6, 8, 27, 30]
        padded = torch.zeros(30, 4, 64, dtype=BF16, device=device)
        for index, length in enumerate(lengths):
            padded[places[index]:places[index] + length] = q[starts_q[index]:starts_q[index + 1]]
        q, options = padded, {"cu_seqlens_q_padded": integers(device, *places), "cu_seqlens_k_padded": starts_k}
    q, k, v = (tensor.requires_grad_() for tensor in (q, k, v))
    out, randval = aiter_like.flash_attn_varlen_func(
        q, k, v, starts_q, starts_k, max(lengths), most_k, dropout_p=p, causal=True, return_attn_probs=True,
        backend=backend, **options)
    assert randval.shape == (4, len(q), most_k) and randval.dtype == torch.uint8
    dout = torch.zeros_like(out)
    for index, length in enumerate(lengths):
        dout[places[index]:places[index] + length] = torch.randn(length, 4, 64).to(out)
    gradients = torch.autograd.grad(out, (q, k, v), dout)
    for index, (length, count) in enumerate(zip(lengths, keys)):
        rows, own = slice(places[index], places[index] + length), slice(starts_k[index], starts_k[index + 1])
        if length:
            check_sequence((q[rows], k[own], v[own]), out[rows].detach(), dout[rows],
                           (gradients[0][rows], gradients[1][own], gradients[2][own]),
                           randval[:, rows, :count], p, right=0)


@pytest.mark.parametrize("layout", ("bshd", "bhsd"))
def test_lengths_of_dense_sequences(device, layout):
    """cu_seqlens_q beside dense tensors, and cu_seqlens_kv alone."""
    q, k, v = dense(device, 2, 12, 20, 2, 2, 64, BF16)
    lengths, keys = (12, 7), (13, 20)
    starts = integers(device, 0, 12, 19), integers(device, 0, 13, 33)
    given = [tensor.transpose(1, 2).contiguous() if layout == "bhsd" else tensor for tensor in (q, k, v)]
    for of_q in (starts[0], None):
        out, lse, randval = aiter_like.flash_attn_func(
            *given, 0.3, return_lse=True, return_attn_probs=True, cu_seqlens_q=of_q, cu_seqlens_kv=starts[1],
            layout=layout)
        out = out.transpose(1, 2) if layout == "bhsd" else out
        assert randval.shape == (2, 2, 12, 20) and lse.shape == (2, 2, 12)
        for index, (rows, count) in enumerate(zip(lengths if of_q is not None else (12, 12), keys)):
            check_sequence((q[index, :rows], k[index, :count], v[index, :count]), out[index, :rows], None, (),
                           randval[index, :, :rows, :count], 0.3)


def test_nothing_to_draw(device):
    """Without dropout there is no element; without queries or keys there is none either."""
    q, k, v = dense(device, 1, 3, 4, 2, 2, 64, BF16)
    assert aiter_like.flash_attn_func(q, k, v, return_attn_probs=True)[1].shape == (0,)
    for tensors, shape in (((q[:, :0], k, v), (1, 2, 0, 4)), ((q, k[:, :0], v[:, :0]), (1, 2, 3, 0))):
        assert aiter_like.flash_attn_func(*tensors, 0.5, return_attn_probs=True)[1].shape == shape


def test_bad_input(device):
    state = torch.tensor(STATE, device=device)
    for message, kind, args, options in (
            ("rng_state must have memory", ValueError, (state.to("meta"), 0.1, (1, 1, 1, 4)), {}),
            ("dropout_p must be below 1, got 1.0", ValueError, (state, 1.0, (1, 1, 1, 4)), {}),
            ("dropout_p must be at least 0", ValueError, (state, -0.5, (1, 1, 1, 4)), {}),
            ("dropout_p must be", ValueError, (state, math.nan, (1, 1, 1, 4)), {}),
            ("shape must be an integer", TypeError, (state, 0.1, (1, 1.0, 1, 4)), {}),
            ("out must have 4 dimensions", ValueError, (state, 0.1, (1, 1, 4)), {}),
            ("out must have 3 dimensions", ValueError, (state, 0.1, (1, 1, 1, 4), integers(device, 0, 1)), {}),
            ("cu_seqlens_q must have dtype torch.int32", TypeError, (state, 0.1, (1, 1, 4), state), {}),
            ("cu_seqlens_q must (start at 0|have one element more)", ValueError,
             (state, 0.1, (1, 1, 4), integers(device)), {}),
            ("out must have shape", ValueError, (state, 0.1, (1, 1, 1, 2)),
             {"out": torch.zeros(1, 1, 2, 2, dtype=torch.uint8, device=device)})):
        with pytest.raises(kind, match=f"dropout_randval: .*({message})"):
            aiter_like.dropout_randval(*args, **options)


def test_sizes_beyond_a_launch_are_refused(device):
    state, one = torch.tensor(STATE, device=device), torch.zeros(1, dtype=torch.uint8, device=device)
    out = one.expand(1, 70_000, 1, 1)
    with pytest.raises(UnsupportedError, match="at most 65535 heads, got 70000"):
        aiter_like.dropout_randval(state, 0.1, out.shape, out=out, backend="hip")
    assert explain(aiter_like.dropout_randval, state, 0.1, out.shape, out=out).backend == "torch"
