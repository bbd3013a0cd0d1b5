# SPDX-License-Identifier: MIT
"""AITER's causal convolutions. That of prefill is ops/conv/causal_conv1d.py; that of decoding is made of torch's
functions, for there is no kernel of it here. Named by names.txt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.ops.common import elements
from aiter_like.ops.common.contents import as_int32, check_distinct
from aiter_like.ops.conv.causal_conv1d import causal_conv1d_split_qkv

_NAME, _PREFILL, _METADATA = "causal_conv1d_update", "causal_conv1d", "build_causal_conv_prefill_metadata"
_INT32 = (torch.int32,)


def causal_conv1d_update(x: Tensor, conv_state: Tensor, weight: Tensor, bias: Tensor, out: Tensor, use_silu: bool,
                         cache_seqlens: Tensor, conv_state_indices: Tensor, pad_slot_id: int) -> None:
    """`out[b, c, t] = bias[c] + Σ weight[c, j] · (state ‖ x)[b, c, t + j]`, in fp32, rounded once; the state then ends
    with the new tokens.

    Args:
        x: [batch, dim, seqlen] bf16|fp16|fp32, of any strides.
        conv_state: [slots, dim, state_len], dtype of `x`, state_len ≥ width − 1; written.
        weight: [dim, width], dtype of `x`.
        bias: [dim], dtype of `x`; without elements: there is none.
        out: as `x`; written, but for the rows of `pad_slot_id`.
        use_silu: the results become out · sigmoid(out).
        cache_seqlens: [batch] int32: a state is a ring in which this token of it comes next; without elements: a state
            has its newest tokens last.
        conv_state_indices: [batch] int32: the slot of each sequence, different ones as `cache_indices` of
            causal_conv1d_split_qkv; without elements: its number.
        pad_slot_id: a sequence with this slot, or with one that is not there, changes nothing.
    """
    check.tensor(_NAME, "x", x, rank=3, dtypes=elements.FLOATS, last_contiguous=False)
    batch, dim, length = x.shape
    check.tensor(_NAME, "weight", weight, dtypes=(x.dtype,), shape=(dim, None), device=x.device, last_contiguous=False)
    check.tensor(_NAME, "conv_state", conv_state, dtypes=(x.dtype,), shape=(None, dim, None), device=x.device,
                 last_contiguous=False)
    kept, state_len = weight.shape[1] - 1, conv_state.shape[2]
    if kept < 0 or state_len < kept:
        raise ValueError(f"{_NAME}: conv_state must have at least {kept} tokens, one less than weight has columns, got "
                         f"shape {tuple(conv_state.shape)}")
    check.tensor(_NAME, "out", out, dtypes=(x.dtype,), shape=x.shape, device=x.device, last_contiguous=False)
    check.flag(_NAME, "use_silu", use_silu)
    check.integer(_NAME, "pad_slot_id", pad_slot_id)
    for name, tensor, kinds, size in (("bias", bias, (x.dtype,), dim), ("cache_seqlens", cache_seqlens, _INT32, batch),
                                      ("conv_state_indices", conv_state_indices, _INT32, batch)):
        check.tensor(_NAME, name, tensor, rank=1, device=x.device)
        if tensor.numel():
            check.tensor(_NAME, name, tensor, dtypes=kinds, shape=(size,))
    check_distinct(_NAME, "conv_state_indices", conv_state_indices, len(conv_state), "slot", pad_slot_id)
    if not x.numel():
        return
    slots = torch.arange(batch, device=x.device) if not conv_state_indices.numel() else conv_state_indices.long()
    is_there = (slots >= 0) & (slots < len(conv_state)) & (slots != pad_slot_id)
    before = conv_state[slots.where(is_there, 0)] if len(conv_state) else x.new_zeros(batch, dim, state_len)
    if cache_seqlens.numel():
        first = cache_seqlens.long()[:, None, None]
        window = before.gather(2, ((first + torch.arange(-kept, 0, device=x.device)) % max(state_len, 1)).expand(
            -1, dim, -1))
        newest = torch.arange(max(length - state_len, 0), length, device=x.device)
        after = before.scatter(2, ((first + newest) % max(state_len, 1)).expand(-1, dim, -1), x[:, :, newest])
    else:
        window = before[:, :, state_len - kept:]
        after = torch.cat((before, x), 2)[:, :, length:]
    whole = torch.cat((window, x), 2).float()
    found = sum(whole[:, :, j:j + length] * weight[:, j, None].float() for j in range(kept + 1))
    found = found + bias.float()[:, None] if bias.numel() else found
    found = torch.nn.functional.silu(found) if use_silu else found
    out.copy_(torch.where(is_there[:, None, None], found.to(x.dtype), out))
    _write(conv_state, slots, after, is_there)


def _write(conv_state: Tensor, slots: Tensor, after: Tensor, is_there: Tensor) -> None:
    """The states of sequences that are there; the others repeat one of them, or slot 0 as it is, so that the host need
    not look.
    """
    if not len(conv_state):
        return
    some = is_there.int().argmax()
    source = torch.where(is_there, torch.arange(len(slots), device=slots.device), some)
    value = torch.where(is_there.any(), after[source], conv_state[:1])
    conv_state.index_put_((torch.where(is_there.any(), slots[source], 0),), value)


class CausalConvPrefillMetadata(NamedTuple):
    """The lengths of a batch's sequences, and the tensor of their starts; the kernels here need no list of chunks."""

    seq_lens_cpu: tuple[int, ...]
    query_start_loc: Tensor

    def validate(self, query_start_loc: Tensor, *, total_tokens: int, num_sequences: int) -> None:
        """The metadata is of this batch.

        Raises:
            ValueError: it is of another one.
        """
        if query_start_loc is not self.query_start_loc:
            raise ValueError(f"{_PREFILL}: metadata must be made of the same tensor query_start_loc, got another")
        if (total_tokens, num_sequences) != (sum(self.seq_lens_cpu), len(self.seq_lens_cpu)):
            raise ValueError(f"{_PREFILL}: metadata must be of {total_tokens} tokens in {num_sequences} sequences, got "
                             f"{sum(self.seq_lens_cpu)} in {len(self.seq_lens_cpu)}")


def build_causal_conv_prefill_metadata(
        seq_lens_cpu: Sequence[int], *, query_start_loc: Tensor, block_sizes: Sequence[int] = (8, 16, 32, 64),
        shared_chunk_grids: Mapping[int, Any] | None = None) -> CausalConvPrefillMetadata:
    """What `causal_conv1d_split_qkv_hip_fn` takes as `metadata`; `block_sizes` and `shared_chunk_grids` are of no
    meaning, for its kernels find a token's sequence themselves.
    """
    check.tensor(_METADATA, "query_start_loc", query_start_loc, rank=1)
    lengths = tuple(seq_lens_cpu)
    for length in lengths:
        check.integer(_METADATA, "seq_lens_cpu", length, 0)
    if not lengths or len(lengths) + 1 != len(query_start_loc):
        raise ValueError(f"{_METADATA}: seq_lens_cpu must have a length for each sequence of query_start_loc, got "
                         f"{len(lengths)} for {len(query_start_loc) - 1}")
    if check.is_on_host(query_start_loc) and query_start_loc.diff().tolist() != list(lengths):
        raise ValueError(f"{_METADATA}: seq_lens_cpu must be the lengths that query_start_loc has, got others")
    return CausalConvPrefillMetadata(lengths, query_start_loc)


def causal_conv1d_split_qkv_hip_fn(
        x: Tensor, weight: Tensor, bias: Tensor | None, conv_states: Tensor | None, query_start_loc: Tensor, k_dim: int,
        v_dim: int, cache_indices: Tensor | None = None, has_initial_state: Tensor | None = None,
        activation: str | None = "silu", pad_slot_id: int | None = -1, block_m: int | None = None,
        metadata: Any = None) -> tuple[Tensor, Tensor, Tensor]:
    """`causal_conv1d_split_qkv`, of integers and flags of any type; `block_m`, AITER's tile, is of no meaning.

    Args:
        v_dim: the channels of `x` but for two times `k_dim`.
        metadata: of `build_causal_conv_prefill_metadata`, and for this batch; no lists of it are used.
    """
    check.tensor(_PREFILL, "query_start_loc", query_start_loc, rank=1)
    check.tensor(_PREFILL, "x", x, rank=2, last_contiguous=False)
    if hasattr(metadata, "validate"):
        metadata.validate(query_start_loc, total_tokens=x.shape[1], num_sequences=len(query_start_loc) - 1)
    check.integer(_PREFILL, "k_dim", k_dim, 0, x.shape[0] // 2)
    if v_dim != x.shape[0] - 2 * k_dim:
        raise ValueError(f"{_PREFILL}: v_dim must be {x.shape[0] - 2 * k_dim}, the channels of x beside q and k, got "
                         f"{v_dim}")
    if has_initial_state is not None and conv_states is not None:
        check.tensor(_PREFILL, "has_initial_state", has_initial_state)
        has_initial_state = has_initial_state.bool()
    if cache_indices is not None:
        check.tensor(_PREFILL, "cache_indices", cache_indices)
        cache_indices = as_int32(cache_indices)
    return causal_conv1d_split_qkv(
        x, weight, bias, conv_states, as_int32(query_start_loc), k_dim, cache_indices=cache_indices,
        has_initial_state=has_initial_state if conv_states is not None else None, activation=activation,
        pad_slot_id=-1 if pad_slot_id is None else pad_slot_id)


def causal_conv1d_split_qkv_triton_fn(
        x: Tensor, weight: Tensor, bias: Tensor | None, conv_states: Tensor | None, query_start_loc: Tensor,
        seq_lens_cpu: Sequence[int], k_dim: int, v_dim: int, cache_indices: Tensor | None = None,
        has_initial_state: Tensor | None = None, activation: str | None = "silu",
        pad_slot_id: int | None = -1) -> tuple[Tensor, Tensor, Tensor]:
    """`causal_conv1d_split_qkv_hip_fn`; `seq_lens_cpu` is what AITER's grid is made of, and of no meaning."""
    return causal_conv1d_split_qkv_hip_fn(x, weight, bias, conv_states, query_start_loc, k_dim, v_dim, cache_indices,
                                          has_initial_state, activation, pad_slot_id)


def causal_conv1d_split_qkv_triton_tile_fn(
        x: Tensor, weight: Tensor, bias: Tensor | None, conv_states: Tensor | None, query_start_loc: Tensor, k_dim: int,
        v_dim: int, cache_indices: Tensor | None = None, has_initial_state: Tensor | None = None,
        activation: str | None = "silu", pad_slot_id: int | None = -1, block_m: int = 64, block_n: int = 32,
        num_warps: int = 4, metadata: Any = None) -> tuple[Tensor, Tensor, Tensor]:
    """`causal_conv1d_split_qkv_hip_fn`; `block_m`, `block_n` and `num_warps` are of no meaning."""
    return causal_conv1d_split_qkv_hip_fn(x, weight, bias, conv_states, query_start_loc, k_dim, v_dim, cache_indices,
                                          has_initial_state, activation, pad_slot_id, metadata=metadata)
