# SPDX-License-Identifier: MIT
"""AITER's causal convolution of decoding, against a loop in float64."""

import pytest
import torch
from seeded import numbers

from aiter_like.integrations.aiter.others.causal_conv import causal_conv1d_update

BATCH, DIM, SLOTS, PAD = 4, 6, 7, -1
NONE = torch.zeros(0, dtype=torch.int32)


def expect(x, state, weight, bias, use_silu, lengths, slots):
    """Results and states, one token after the other."""
    out, state = torch.full(x.shape, 7.0, dtype=torch.float64), state.double()
    size, width = state.shape[2], weight.shape[1]
    for b, slot in enumerate(slots):
        if slot == PAD:
            continue
        for t in range(x.shape[2]):
            if lengths is None:
                seen = torch.cat((state[slot], x[b, :, t:t + 1].double()), 1)[:, -width:]
                state[slot] = torch.cat((state[slot], x[b, :, t:t + 1].double()), 1)[:, -size:] if size else state[slot]
            else:
                past = [state[slot][:, (lengths[b] + t - j) % size] for j in range(width - 1, 0, -1)]
                seen = torch.stack((*past, x[b, :, t].double()), 1)
                state[slot][:, (lengths[b] + t) % size] = x[b, :, t].double()
            found = (seen * weight.double()).sum(1) + (0 if bias is None else bias.double())
            out[b, :, t] = torch.nn.functional.silu(found) if use_silu else found
    return out, state


@pytest.mark.parametrize(("width", "size", "length"), [(4, 3, 1), (3, 6, 2), (2, 1, 3)])
@pytest.mark.parametrize("is_ring", (False, True))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float32))
def test_updates(width, size, length, is_ring, dtype):
    if is_ring:
        size += length  # A ring holds what a token sees and the new ones.
    x, state = numbers(BATCH, DIM, length, dtype=dtype), numbers(SLOTS, DIM, size, seed=1, dtype=dtype)
    weight, bias = numbers(DIM, width, seed=2, dtype=dtype), numbers(DIM, seed=3, dtype=dtype)
    slots = [5, PAD, 0, 3]
    lengths = [9, 0, 2, 31] if is_ring else None
    for use_silu, given in ((True, bias), (False, NONE.to(dtype))):
        out, own = torch.full(x.shape, 7.0, dtype=dtype), state.clone()
        causal_conv1d_update(x, own, weight, given, out, use_silu,
                             torch.tensor(lengths, dtype=torch.int32) if is_ring else NONE,
                             torch.tensor(slots, dtype=torch.int32), PAD)
        expected = expect(x, state, weight, given if given.numel() else None, use_silu, lengths, slots)
        for got, one in zip((out, own), expected, strict=True):
            torch.testing.assert_close(got.double(), one, rtol=0.01, atol=0.01)


def test_slots_by_number_and_nobody_there():
    x, state, weight = numbers(3, DIM, 1), numbers(3, DIM, 3, seed=1), numbers(DIM, 4, seed=2)
    out, own = torch.empty_like(x), state.clone()
    causal_conv1d_update(x, own, weight, NONE.bfloat16(), out, False, NONE, NONE, PAD)
    expected = expect(x, state, weight, None, False, None, range(3))
    torch.testing.assert_close(out.double(), expected[0], rtol=0.01, atol=0.01)
    assert torch.equal(own.double(), expected[1])
    out, own = torch.full_like(x, 7.0), state.clone()
    causal_conv1d_update(x, own, weight, NONE.bfloat16(), out, False, NONE, torch.full((3,), PAD).int(), PAD)
    assert (out == 7).all() and torch.equal(own, state)


@pytest.mark.parametrize(("index", "value", "message"), [
    (1, numbers(SLOTS, DIM, 2), "conv_state must have at least 3 tokens"), (2, numbers(5, 4), "weight must have shape"),
    (3, numbers(5), "bias must have shape"), (4, numbers(BATCH, DIM, 2), "out must have shape"),
    (6, torch.zeros(2, dtype=torch.int32), "cache_seqlens must have shape"),
    (7, torch.zeros(BATCH, dtype=torch.int64), "conv_state_indices must have dtype"),
    (7, torch.ones(BATCH, dtype=torch.int32), "conv_state_indices must name each slot once at most, got 1")])
def test_bad_arguments(index, value, message):
    call = [numbers(BATCH, DIM, 1), numbers(SLOTS, DIM, 3), numbers(DIM, 4), NONE.bfloat16(), numbers(BATCH, DIM, 1),
            False, NONE, NONE, PAD]
    call[index] = value
    with pytest.raises((TypeError, ValueError), match=f"causal_conv1d_update: {message}"):
        causal_conv1d_update(*call)
