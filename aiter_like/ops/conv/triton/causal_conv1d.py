# SPDX-License-Identifier: MIT
"""causal_conv1d in Triton: body and launcher, named by ops/conv/causal_conv1d.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2
from aiter_like.ops.conv.causal_conv1d import CausalConv1dCall


@triton.jit(do_not_specialize=["tokens", "num_sequences", "lines"])
def _causal_conv1d_kernel(q, k, v, states, x, weight, bias, starts, line_of, has_initial, out_strides, x_strides,
                          weight_strides, state_strides, tokens, num_sequences, lines, dim, k_dim, pad_slot_id,
                          WIDTH: tl.constexpr, STATE_LEN: tl.constexpr, STATE_BLOCK: tl.constexpr,
                          IS_SILU: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                          OVERLAPS: tl.constexpr):
    """BLOCK_M tokens of one sequence × BLOCK_N channels; bound: memory.

    Chunk number s + starts[s] // BLOCK_M is the first one of sequence s, whatever the lengths are.
    """
    await_stream(OVERLAPS)
    index = tl.program_id(0)
    low, high = -1, num_sequences
    while high - low > 1:
        middle = (low + high) // 2
        is_before = tl.minimum(tl.maximum(tl.load(starts + middle), 0), tokens) // BLOCK_M + middle <= index
        low, high = tl.where(is_before, middle, low), tl.where(is_before, high, middle)
    if low >= 0:
        start = tl.minimum(tl.maximum(tl.load(starts + low), 0), tokens)
        length = tl.minimum(tl.maximum(tl.load(starts + low + 1), start), tokens) - start
        chunk = index - low - start // BLOCK_M
        if (chunk * BLOCK_M < length) | (chunk == 0):
            line = low
            if line_of is not None:
                line = tl.load(line_of + low)
            is_there = (line != pad_slot_id) & (line >= 0)
            if states is not None:
                is_there = is_there & (line < lines)
            has_state = low < 0  # no
            if has_initial is not None:
                has_state = is_there & (tl.load(has_initial + low) != 0)
            channel = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
            _convolve(q, k, v, states, x, weight, bias, out_strides, x_strides, weight_strides, state_strides, dim,
                      k_dim, line.to(tl.int64), is_there, has_state, start.to(tl.int64), length, chunk * BLOCK_M,
                      channel.to(tl.int64), WIDTH, STATE_LEN, IS_SILU, BLOCK_M, BLOCK_N)
            if states is not None:
                if (chunk == 0) & is_there:
                    _store_state(states, x, x_strides, state_strides, dim, line.to(tl.int64), has_state,
                                 start.to(tl.int64), length, channel.to(tl.int64), STATE_LEN, STATE_BLOCK)


@triton.jit
def _convolve(q, k, v, states, x, weight, bias, out_strides, x_strides, weight_strides, state_strides, dim, k_dim, line,
              is_there, has_state, start, length, first, channel, WIDTH: tl.constexpr, STATE_LEN: tl.constexpr,
              IS_SILU: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The results of a chunk that begins with token `first` of its sequence."""
    is_channel = channel < dim
    token = first + tl.arange(0, BLOCK_M)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    if bias is not None:
        acc += tl.load(bias + channel, mask=is_channel, other=0.0).to(tl.float32)[None, :]
    for j in tl.static_range(WIDTH):
        factor = tl.load(weight + channel * weight_strides[0] + j * weight_strides[1], mask=is_channel, other=0.0)
        at = token - (WIDTH - 1) + j
        mask = (at >= 0) & (at < length)
        taps = tl.load(x + channel[None, :] * x_strides[0] + (start + at)[:, None] * x_strides[1],
                       mask=mask[:, None] & is_channel[None, :], other=0.0).to(tl.float32)
        if states is not None:
            if j < WIDTH - 1:
                is_old = (at < 0) & (at < length) & has_state
                old = tl.load(states + line * state_strides[0] + channel[None, :] * state_strides[1]
                              + (STATE_LEN + at)[:, None].to(tl.int64) * state_strides[2],
                              mask=is_old[:, None] & is_channel[None, :], other=0.0).to(tl.float32)
                taps = tl.where(is_old[:, None], old, taps)
        acc = tl.fma(factor.to(tl.float32)[None, :] + tl.zeros_like(acc), taps, acc)
    if IS_SILU:
        acc = acc * tl.sigmoid(acc)
    acc = tl.where(is_there, acc, 0.0)
    found = acc.to(q.dtype.element_ty)
    row = (start + token)[:, None]
    inside = (token < length)[:, None] & is_channel[None, :]
    to_k, to_v = channel - k_dim, channel - 2 * k_dim
    tl.store(q + row * out_strides[0] + channel[None, :], found, mask=inside & (to_k < 0)[None, :])
    tl.store(k + row * out_strides[1] + to_k[None, :], found, mask=inside & ((to_k >= 0) & (to_v < 0))[None, :])
    tl.store(v + row * out_strides[2] + to_v[None, :], found, mask=inside & (to_v >= 0)[None, :])


@triton.jit
def _store_state(states, x, x_strides, state_strides, dim, line, has_state, start, length, channel,
                 STATE_LEN: tl.constexpr, STATE_BLOCK: tl.constexpr):
    """The last STATE_LEN tokens of state ‖ x."""
    place = tl.arange(0, STATE_BLOCK)
    at = length - STATE_LEN + place
    mask = (channel < dim)[None, :] & (place < STATE_LEN)[:, None]
    new = tl.load(x + channel[None, :] * x_strides[0] + (start + at)[:, None] * x_strides[1],
                  mask=mask & (at >= 0)[:, None], other=0.0)
    base = states + line * state_strides[0] + channel[None, :] * state_strides[1]
    is_old = (at < 0) & has_state
    old = tl.load(base + (place + length)[:, None].to(tl.int64) * state_strides[2], mask=mask & is_old[:, None],
                  other=0.0)
    tl.debug_barrier()  # a wave may still load what another one is about to store
    tl.store(base + place[:, None].to(tl.int64) * state_strides[2], tl.where(is_old[:, None], old, new), mask=mask)


def causal_conv1d(call: CausalConv1dCall, num_warps: int = 4, BLOCK_M: int = 32, BLOCK_N: int = 64) -> Launch:
    """The launch that writes q, k, v and the states, with Triton's `num_warps`, for BLOCK_M tokens and BLOCK_N channels
    a program.
    """
    dim, tokens = call.x.shape
    states, count = call.conv_states, call.query_start_loc.shape[0] - 1
    lines, _, state_len = (0, 0, 0) if states is None else states.shape
    grid = (tokens // BLOCK_M + count, triton.cdiv(dim, BLOCK_N))
    return launch(_causal_conv1d_kernel, grid, call.q, call.k, call.v, states, call.x, call.weight, call.bias,
                  call.query_start_loc, call.cache_indices,
                  None if call.has_initial_state is None else call.has_initial_state.view(torch.uint8),
                  (call.q.stride(0), call.k.stride(0), call.v.stride(0)), call.x.stride(), call.weight.stride(),
                  (0, 0, 0) if states is None else states.stride(), tokens, count, lines, dim, call.k.shape[1],
                  call.pad_slot_id, WIDTH=call.weight.shape[1], STATE_LEN=state_len,
                  STATE_BLOCK=power_of_2(max(state_len, 1)), IS_SILU=call.is_silu, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N,
                  options={"num_warps": num_warps})
