# SPDX-License-Identifier: MIT
"""The causal convolution of prefill, channel by channel, over sequences of any lengths; q, k and v are its results.

Kernels: csrc/conv/causal_conv1d.hip, ops/conv/triton/causal_conv1d.py.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, STRIDED, Backend, Op
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, tune_shapes
from aiter_like.ops.common.contents import check_distinct, check_starts

__all__ = ["causal_conv1d_split_qkv"]

_OP = "causal_conv1d"
MOST_WIDTH = 8  # The kernels keep a weight of no more columns in registers.
_MOST_STATE = 128  # A Triton program keeps a state of no more tokens.
_MOST_GROUPS = 65535  # A grid's second dimension has no more.
_CHANNELS = 64  # A workgroup takes at least so many.
_MOST_TOKENS = 2**30


class CausalConv1dCall(NamedTuple):
    """One call of causal_conv1d: its arguments in the order of the function that causal_conv1d.hip exports.

    Attributes:
        q, k, v: written where a token has a sequence.
        x: its channels are those of q, k and v, one behind the other.
        query_start_loc: [sequences + 1]: where the tokens of a sequence begin.
        conv_states: the newest token last. None: there are none.
        cache_indices: [sequences]: the line of a sequence; None: its number.
        has_initial_state: [sequences]: its line holds the tokens before the first one; None: no sequence's does.
        is_silu: the results become out · sigmoid(out).
        pad_slot_id: a sequence with this line, or with one that is not there, has zeros for results and no state.
    """

    q: Annotated[Tensor, "tokens k_dim", "x"]
    k: Annotated[Tensor, "tokens k_dim", "x"]
    v: Annotated[Tensor, "tokens _", "x"]
    x: Annotated[Tensor, "dim tokens", elements.FLOATS, STRIDED]
    weight: Annotated[Tensor, "dim width", "x", STRIDED]
    bias: Annotated[Tensor | None, "dim", "x"]
    query_start_loc: Annotated[Tensor, "_", torch.int32]
    conv_states: Annotated[Tensor | None, "lines dim state_len", "x", STRIDED] = None
    cache_indices: Annotated[Tensor | None, "_", torch.int32] = None
    has_initial_state: Annotated[Tensor | None, "_", torch.bool] = None
    is_silu: bool = True
    pad_slot_id: int = -1


def causal_conv1d_ref(call: CausalConv1dCall) -> None:
    """The formula in torch, sequence by sequence, in fp32; reads the starts and lines on the host."""
    x, states, kept = call.x, call.conv_states, call.weight.shape[1] - 1
    starts = call.query_start_loc.clamp(0, x.shape[1]).tolist()
    lines = range(len(starts) - 1) if call.cache_indices is None else call.cache_indices.tolist()
    flags = [False] * len(lines) if call.has_initial_state is None else call.has_initial_state.tolist()
    state_len = kept if states is None else states.shape[2]
    for start, end, line, has_state in zip(starts, starts[1:], lines, flags):
        is_there = line != call.pad_slot_id and line >= 0 and (states is None or line < len(states))
        outs = [out[start:end] for out in (call.q, call.k, call.v)]
        if not is_there:
            for out in outs:
                out.zero_()
            continue
        before = x.new_zeros(x.shape[0], state_len)
        if states is not None and has_state:
            before = states[line].clone()
        window = torch.cat((before, x[:, start:end]), 1)
        if states is not None:
            states[line] = window[:, window.shape[1] - state_len:]
        if end <= start:
            continue
        taps = window[:, state_len - kept:].float().unfold(1, kept + 1, 1)  # [dim, tokens, width]
        found = (taps * call.weight.float()[:, None]).sum(2)
        found = found if call.bias is None else found + call.bias.float()[:, None]
        found = torch.nn.functional.silu(found) if call.is_silu else found
        for out, part in zip(outs, found.t().split([out.shape[1] for out in outs], 1)):
            out.copy_(part.to(x.dtype))


def _instance(call: CausalConv1dCall) -> Instance:
    """One build per dtype, width and whether the channels of a token lie side by side."""
    is_channel_last = int(call.x.stride(0) == 1)
    width = call.weight.shape[1]
    return Instance(f"{dtypes.name(call.x.dtype)}_w{width}" + "_channel_last" * is_channel_last,
                    {"ELEMENT": elements.CPP[call.x.dtype], "WIDTH": width, "IS_CHANNEL_LAST": is_channel_last})


@compile_ops("conv/causal_conv1d.hip", gen_func=_instance)
def _causal_conv1d_hip(call: CausalConv1dCall) -> None: ...


def _check(call: CausalConv1dCall) -> object:
    (dim, tokens), states, kept = call.x.shape, call.conv_states, call.weight.shape[1] - 1
    if kept < 0:
        raise ValueError(f"{_OP}: weight must have at least 1 column, got shape {tuple(call.weight.shape)}")
    check.tensor(_OP, "v", call.v, shape=(tokens, dim - 2 * call.k.shape[1]))
    check.sequence_starts(_OP, "query_start_loc", call.query_start_loc)
    count = call.query_start_loc.shape[0] - 1
    if count < 0:
        raise ValueError(f"{_OP}: query_start_loc must have one element more than there are sequences, got none")
    check.integer(_OP, "pad_slot_id", call.pad_slot_id)
    for name, each in (("cache_indices", call.cache_indices), ("has_initial_state", call.has_initial_state)):
        if each is not None:
            check.tensor(_OP, name, each, shape=(count,))
    if states is None and call.has_initial_state is not None:
        raise ValueError(f"{_OP}: has_initial_state is for conv_states, which are None")
    if states is not None and states.shape[2] < kept:
        raise ValueError(f"{_OP}: conv_states must have at least {kept} tokens, one less than weight has columns, got "
                         f"shape {tuple(states.shape)}")
    if states is not None and any(step == 0 and size > 1 for step, size in zip(states.stride(), states.shape)):
        raise ValueError(f"{_OP}: conv_states must not be expanded, got strides {states.stride()}")
    return SKIP if dim == 0 or count == 0 else None


def _refusal(target: Target, call: CausalConv1dCall) -> str | None:
    """Says why no kernel takes a call that torch serves."""
    dim, tokens = call.x.shape
    if call.weight.shape[1] > MOST_WIDTH:
        return f"at most {MOST_WIDTH} columns of weight, got {call.weight.shape[1]}"
    if tokens >= _MOST_TOKENS or dim > _MOST_GROUPS * _CHANNELS:
        return f"fewer than 2^30 tokens and at most {_MOST_GROUPS * _CHANNELS} channels, got {tokens} and {dim}"
    if any(out.shape[0] > 1 and out.stride(0) < out.shape[1] for out in (call.q, call.k, call.v)):
        return "the rows of q, k or v overlap"
    return None


def _triton_refusal(target: Target, call: CausalConv1dCall) -> str | None:
    if call.conv_states is not None and call.conv_states.shape[2] > _MOST_STATE:
        return f"states of at most {_MOST_STATE} tokens, got {call.conv_states.shape[2]}"
    return _refusal(target, call)


class CausalConv1dKey(NamedTuple):
    """The fields that a tuned row of causal_conv1d is chosen by."""

    tokens: int
    sequences: int
    channels: int
    width: int
    is_channel_last: int
    dtype: str

    @classmethod
    def of(cls, call: CausalConv1dCall) -> CausalConv1dKey:
        return cls(call.x.shape[1], call.query_start_loc.shape[0] - 1, *call.weight.shape,
                   int(call.x.stride(0) == 1), dtypes.name(call.x.dtype))

    def make(self, device: torch.device, seed: int) -> CausalConv1dCall:
        """Sequences of nearly equal lengths, each with a state; q and k have a quarter of the channels each."""
        normal = tune_shapes.normal(device, seed, self.dtype)
        dim, tokens, count = self.channels, self.tokens, self.sequences
        x = normal(tokens, dim).t() if self.is_channel_last else normal(dim, tokens)
        starts = (torch.arange(count + 1, device=device) * tokens // max(count, 1)).int()
        sizes = (dim // 4, dim // 4, dim - 2 * (dim // 4))
        return CausalConv1dCall(*(torch.empty(tokens, size, dtype=x.dtype, device=device) for size in sizes), x,
                                normal(dim, self.width), normal(dim), starts,
                                normal(count, self.width - 1, dim).transpose(1, 2), None,
                                torch.ones(count, dtype=torch.bool, device=device))


def _cases(device: torch.device) -> dict[str, CausalConv1dCall]:
    """Both orders of channels and tokens; lines in another order and one that is padding; neither state nor bias."""
    plain, last, other = (CausalConv1dKey(150, 3, 136, *form).make(device, 0)
                          for form in ((4, 0, "bf16"), (4, 1, "bf16"), (2, 0, "fp16")))
    lines = torch.tensor([2, -1, 0], dtype=torch.int32, device=device)
    return {"tokens side by side": plain._replace(cache_indices=lines), "channels side by side": last,
            "no state": other._replace(bias=None, conv_states=None, has_initial_state=None, is_silu=False)}


def _triton_space(target: Target, call: CausalConv1dCall) -> list[dict[str, int]]:
    return [{"num_warps": warps, "BLOCK_M": tokens, "BLOCK_N": channels} for warps in (2, 4, 8)
            for tokens in (8, 16, 32, 64) for channels in (32, 64, 128, 256) if 512 <= tokens * channels <= 8192]


_causal_conv1d = Op(
    _OP, call=CausalConv1dCall, reference=causal_conv1d_ref, check=_check, key=CausalConv1dKey,
    round_field="tokens", writes=("q", "k", "v", "conv_states"), cases=_cases, sums_in_fp32=True,
    backends=(Backend("hip", _causal_conv1d_hip, refusal=_refusal),
              Backend("triton", "ops.conv.triton.causal_conv1d:causal_conv1d", refusal=_triton_refusal,
                      space=_triton_space),
              Backend("torch", causal_conv1d_ref)))


def causal_conv1d_split_qkv(x: Tensor, weight: Tensor, bias: Tensor | None, conv_states: Tensor | None,
                            query_start_loc: Tensor, k_dim: int, *, cache_indices: Tensor | None = None,
                            has_initial_state: Tensor | None = None, activation: str | None = "silu",
                            pad_slot_id: int = -1, backend: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The causal convolution before linear attention, channel by channel, over packed sequences, split in q, k and v.

    `out[c, t] = act(bias[c] + Σ weight[c, j] · (state ‖ x)[c, t + j])` with `j < width`; then a sequence's state is the
    end of `state ‖ x`.

    Args:
        x: [dim, tokens] bf16|fp16|fp32, of any strides: the channels of q, of k and of v, one behind the other.
        weight: [dim, width], dtype of `x`, of any strides.
        bias: [dim], dtype of `x`; None: zeros.
        conv_states: [lines, dim, state_len], dtype of `x`, of any strides, state_len ≥ width − 1, the newest token
            last; written. None: sequences begin with zeros, and no state is kept.
        query_start_loc: [sequences + 1] int32, from 0 to the number of tokens: where each sequence begins.
        k_dim: channels of q, and of k; v has the others.
        cache_indices: [sequences] int32: the line of each sequence, different ones: where nobody looks, as on a GPU,
            one that several sequences have holds any of their tokens. None: its number.
        has_initial_state: [sequences] bool: the line holds the tokens before this call's; None: none does, and
            sequences begin with zeros.
        activation: "silu", "swish" (the same) or None.
        pad_slot_id: a sequence with this line, or with one that is not there, has zeros for results and no state.

    Returns:
        q and k [tokens, k_dim], and v [tokens, dim − 2 · k_dim], contiguous, dtype of `x`; tokens of no sequence are
        not written.

    Raises:
        ValueError: on the CPU, starts do not rise, or lines repeat.

    Notes:
        Sums in fp32, rounded to nearest even once. A sequence without tokens keeps its state, or has zeros for one
        without an initial state.

    Source: AITER's `causal_conv1d_split_qkv_hip_fn`; Gu and Dao, Mamba (2023).
    """
    check.tensor(_OP, "x", x, rank=2, last_contiguous=False)
    check.integer(_OP, "k_dim", k_dim, 0, x.shape[0] // 2)
    check.choice(_OP, "activation", activation, (None, "silu", "swish"))
    check_starts("causal_conv1d_split_qkv", "query_start_loc", query_start_loc, x.shape[1], "tokens of x")
    if conv_states is not None and cache_indices is not None:
        check_distinct("causal_conv1d_split_qkv", "cache_indices", cache_indices, len(conv_states), "line", pad_slot_id)
    sizes = (k_dim, k_dim, x.shape[0] - 2 * k_dim)
    q, k, v = (x.new_empty(x.shape[1], size) for size in sizes)
    _causal_conv1d.run(q, k, v, x, weight, bias=bias, query_start_loc=query_start_loc, conv_states=conv_states,
                       cache_indices=cache_indices, has_initial_state=has_initial_state,
                       is_silu=activation is not None, pad_slot_id=pad_slot_id, backend=backend)
    return q, k, v


_causal_conv1d.public.append(causal_conv1d_split_qkv)
