# SPDX-License-Identifier: MIT
"""causal_conv1d: every backend against float64, lengths around its chunks, both layouts, lines, padding, bad input.
"""

import functools
import itertools

import benching
import pytest
import torch

import aiter_like
from aiter_like.testing import strided_like

KERNELS = ("hip", "triton")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
BF16 = torch.bfloat16
INT_MIN, INT_MAX = -2**31, 2**31 - 1


def exact(x, weight, bias, states, starts, lines, flags, activation):
    """(results [tokens, dim], states) in float64, token by token, written apart from the operator's reference."""
    dim, tokens = x.shape
    width, out = weight.shape[1], torch.zeros(tokens, dim, dtype=torch.float64)
    x, weight, after = x.double(), weight.double(), states.double().clone()
    for sequence, line in enumerate(lines):
        start, end = starts[sequence], starts[sequence + 1]
        if not 0 <= line < len(states):
            continue
        before = states[line].double() if flags[sequence] else torch.zeros_like(states[line], dtype=torch.float64)
        stream = [before[:, i] for i in range(before.shape[1])] + [x[:, t] for t in range(start, end)]
        for t in range(start, end):
            total = torch.zeros(dim, dtype=torch.float64) if bias is None else bias.double().clone()
            for j in range(width):
                total += weight[:, j] * stream[before.shape[1] + t - start - (width - 1) + j]
            out[t] = total * torch.sigmoid(total) if activation else total
        if before.shape[1]:
            after[line] = torch.stack(stream[len(stream) - before.shape[1]:], 1)
    return out, after


def inputs(device, lengths, dim=136, width=4, state_len=3, dtype=BF16, is_channel_last=False, has_bias=True):
    """x, weight, bias, states [lines = sequences + 1], starts; on `device`."""
    generator = torch.Generator().manual_seed(sum(lengths) + dim)
    tokens = sum(lengths)

    def normal(*shape):
        return torch.randn(shape, generator=generator).to(device, dtype)

    x = normal(tokens, dim).t() if is_channel_last else normal(dim, tokens)
    starts = torch.tensor([0, *lengths], device=device).cumsum(0).int()
    return (x, normal(dim, width) * 0.5, normal(dim) if has_bias else None,
            normal(len(lengths) + 1, state_len, dim).transpose(1, 2), starts)


def verify(run, backend, tensors, k_dim, lines=None, flags=None, activation="silu"):
    x, weight, bias, states, starts = tensors
    count, device = len(starts) - 1, x.device
    numbers = list(range(count)) if lines is None else lines
    wanted, after = exact(*(None if each is None else each.cpu() for each in (x, weight, bias, states)),
                          starts.tolist(), numbers, [False] * count if flags is None else flags, activation)
    got = run(backend, aiter_like.causal_conv1d_split_qkv, x, weight, bias, states, starts, k_dim,
              cache_indices=None if lines is None else torch.tensor(lines, dtype=torch.int32, device=device),
              has_initial_state=None if flags is None else torch.tensor(flags, device=device), activation=activation)
    limits = {torch.bfloat16: (2**-8, 1e-5), torch.float16: (2**-11, 1e-5), torch.float32: (2e-6, 4e-6)}[x.dtype]
    sizes = (k_dim, k_dim, x.shape[0] - 2 * k_dim)
    for out, part in zip(got, wanted.split(sizes, 1)):
        assert out.is_contiguous() and out.dtype == x.dtype
        torch.testing.assert_close(out.cpu().double(), part, rtol=limits[0], atol=limits[1], equal_nan=True)
    assert torch.equal(states.cpu().double(), after)  # states are copies


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("is_channel_last", (False, True), ids=("tokens", "channels"))
def test_every_backend(device, run, backend, dtype, is_channel_last):
    tensors = inputs(device, (1, 70, 2, 130, 61), dtype=dtype, is_channel_last=is_channel_last)
    verify(run, backend, tensors, 34, flags=[True, False, True, True, False])


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("lengths", ((1,), (3,), (60,), (61,), (62,), (64,), (122, 1), (5, 0, 1, 1, 1, 33), (0,)),
                         ids=str)
def test_lengths_around_chunks(device, run, backend, lengths):
    """A chunk's last token, a sequence shorter than the width, and one without tokens."""
    flags = [index % 2 == 0 for index in range(len(lengths))]
    verify(run, backend, inputs(device, lengths, dim=66), 16, flags=flags)


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("width, state_len", ((1, 0), (1, 2), (2, 1), (3, 5), (8, 7), (4, 9)))
def test_widths_and_longer_states(device, run, backend, width, state_len):
    tensors = inputs(device, (2, 75, 4), width=width, state_len=state_len)
    verify(run, backend, tensors, 30, flags=[True, True, False])


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("dim, k_dim", ((1, 0), (5, 2), (131, 33), (256, 128), (300, 0)))
@pytest.mark.parametrize("is_channel_last", (False, True), ids=("tokens", "channels"))
def test_odd_channels(device, run, backend, dim, k_dim, is_channel_last):
    verify(run, backend, inputs(device, (3, 66), dim=dim, is_channel_last=is_channel_last), k_dim, flags=[True, True])


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("activation, has_bias", ((None, True), ("swish", False), (None, False)))
def test_without_bias_or_activation(device, run, backend, activation, has_bias):
    verify(run, backend, inputs(device, (7, 24, 59), has_bias=has_bias), 20, activation=activation)


@pytest.mark.parametrize("backend", KERNELS)
def test_lines_and_padding(device, run, backend):
    """One sequence is padding, one has a line that is not there: zeros, and no state is touched."""
    tensors = inputs(device, (5, 7, 9, 64), dim=40)
    verify(run, backend, tensors, 10, lines=[3, -1, 0, 99], flags=[True, True, False, True])


@pytest.mark.parametrize("backend", KERNELS)
def test_no_states(device, run, backend):
    x, weight, bias, _, starts = inputs(device, (5, 70))
    got = run(backend, aiter_like.causal_conv1d_split_qkv, x, weight, bias, None, starts, 20)
    zeros = torch.zeros(2, len(x), 3, dtype=BF16)
    wanted, _ = exact(x.cpu(), weight.cpu(), bias.cpu(), zeros, starts.tolist(), [0, 1], [False] * 2, "silu")
    torch.testing.assert_close(torch.cat(got, 1).cpu().double(), wanted, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize("backend", KERNELS)
def test_strided(device, run, backend):
    x, weight, bias, states, starts = inputs(device, (9, 58))
    x = strided_like(x, (7, 0))
    weight = strided_like(weight.t().contiguous(), (3, 0)).t()
    states = strided_like(states.contiguous(), (5, 2, 0))
    verify(run, backend, (x, weight, bias, states, starts), 34, flags=[True, False])


@pytest.mark.parametrize("backend", KERNELS)
def test_special_values(device, run, backend):
    """NaN and infinity reach the tokens within the width, and no others."""
    x, weight, bias, states, starts = inputs(device, (20, 6), dim=8)
    x[1, 3], x[2, 17], x[3, 5], states[1, 4, 2] = torch.nan, torch.inf, -torch.inf, torch.nan
    verify(run, backend, (x, weight.abs(), bias, states, starts), 2, flags=[False, True], activation=None)


@pytest.mark.parametrize("backend", KERNELS)
def test_tokens_of_no_sequence_are_not_written(device, run, backend):
    """The first sequence begins behind the first token, the last one ends before the last token."""
    x, weight, bias, states, _ = inputs(device, (100,), dim=16)
    starts = torch.tensor([64, 70], dtype=torch.int32, device=device)
    wanted, _ = exact(x.cpu(), weight.cpu(), bias.cpu(), states.cpu(), [64, 70], [0], [False], "silu")
    outs = [torch.full((100, size), 7.0, dtype=BF16, device=device) for size in (4, 4, 8)]
    op = aiter_like.dispatch.OPS["causal_conv1d"]
    op.run(*outs, x, weight, bias, starts, states, backend=backend)
    got = torch.cat(outs, 1).cpu()
    torch.testing.assert_close(got[64:70].double(), wanted[64:70], rtol=2**-8, atol=1e-5)
    assert (got[:64] == 7).all() and (got[70:] == 7).all()


def check_starts(backend, device, starts):
    """One that nobody has looked at writes what its nearest ones within the tokens do, and nothing else."""
    x, weight, bias, states, _ = inputs(device, (140,), dim=16)
    count, outs = len(starts) - 1, [torch.full((140, size), 7.0, dtype=BF16, device=device) for size in (4, 4, 8)]
    states, flags = torch.cat((states, states))[:count], torch.ones(count, dtype=torch.bool, device=device)
    near = [min(max(start, 0), 140) for start in starts]
    wanted, _ = exact(x.cpu(), weight.cpu(), bias.cpu(), states.cpu(), near, range(count), [True] * count, "silu")
    run_conv = functools.partial(aiter_like.dispatch.OPS["causal_conv1d"].run, backend=backend)
    run_conv(*outs, x, weight, bias, torch.tensor(starts, dtype=torch.int32, device=device), states, None, flags)
    got, is_written = torch.cat(outs, 1).cpu(), torch.zeros(140, dtype=torch.bool)
    for start, end in zip(near, near[1:]):
        is_written[start:end] = True
    assert (got[~is_written] == 7).all()
    if near == sorted(near):
        torch.testing.assert_close(got[is_written].double(), wanted[is_written], rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize("backend", KERNELS)
def test_extreme_starts(device, backend):
    for starts in ((INT_MIN, 140), (INT_MIN, INT_MAX), (INT_MIN, -1, 70), (70, INT_MIN), (INT_MAX, INT_MIN),
                   (70, INT_MIN, INT_MAX), (-1, 141), (139, 140, 141)):
        check_starts(backend, device, starts)


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", KERNELS)
def test_all_extreme_starts(device, backend):
    for starts in itertools.product((INT_MIN, -1, 0, 70, 139, 140, 141, INT_MAX), repeat=3):
        check_starts(backend, device, starts)


def test_bad_input_is_named(device):
    x, weight, bias, states, starts = inputs(device, (5, 4), dim=8)

    def call(*changed, **named):
        given = (*changed, *(x, weight, bias, states, starts, 2)[len(changed):])
        return aiter_like.causal_conv1d_split_qkv(*given, **named)

    with pytest.raises(ValueError, match="causal_conv1d_split_qkv: conv_states must have at least 3 tokens"):
        call(x, weight, bias, states[..., :2])
    with pytest.raises(ValueError, match="causal_conv1d_split_qkv: conv_states must not be expanded"):
        call(x, weight, bias, states[:1].expand(3, -1, -1))
    with pytest.raises(ValueError, match="causal_conv1d_split_qkv: k_dim must be between 0 and 4, got 5"):
        call(x, weight, bias, states, starts, 5)
    with pytest.raises(ValueError, match="activation must be None, 'silu' or 'swish', got str 'relu'"):
        call(activation="relu")
    with pytest.raises(ValueError, match="causal_conv1d_split_qkv: has_initial_state is for conv_states"):
        call(x, weight, bias, None, has_initial_state=torch.ones(2, dtype=torch.bool, device=device))
    if device.type == "cpu":
        with pytest.raises(ValueError, match="query_start_loc must rise .* at most the 9 tokens of x, got "):
            call(x, weight, bias, states, starts + starts.clamp(max=1))
        with pytest.raises(ValueError, match="query_start_loc must rise from 0 or more"):
            call(x, weight, bias, states, starts[[0, 1, 0]])


def bench() -> None:
    """With the state of each sequence."""
    benching.of("causal_conv1d", "tokens channels sequences is_channel_last", itertools.chain.from_iterable(
        ((*shape, 0), (*shape, 1)) for shape in ((8192, 8192, 1), (8192, 8192, 16), (1024, 8192, 128), (64, 8192, 4))),
        beside=benching.alone, width=4, dtype="bf16")
