# SPDX-License-Identifier: MIT
"""Attention over two sets of keys becomes attention over both: merge_attn_states, and engines' names for it.

Kernels: csrc/attention/merge_attn_states.hip, ops/attention/triton/merge_attn_states.py.
"""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, STRIDED, Backend, Op
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, tune_shapes

__all__ = ["merge_attn_states", "merge_state", "merge_state_v2"]

_OP = "merge_attn_states"
_MOST_ELEMENTS = 2**31 - 257
_MOST_COLUMNS = 8192


class MergeAttnStatesCall(NamedTuple):
    """One call of merge_attn_states: its arguments in the order of the function that merge_attn_states.hip exports.

    Attributes:
        a, b: attention over each set of keys.
        a_lse, b_lse: natural logarithms; infinite where no key was seen.
    """

    out: Annotated[Tensor, "tokens heads columns", "a"]
    out_lse: Annotated[Tensor | None, "tokens heads", torch.float32, STRIDED]
    a: Annotated[Tensor, "tokens heads columns", elements.FLOATS]
    a_lse: Annotated[Tensor, "tokens heads", torch.float32, STRIDED]
    b: Annotated[Tensor, "tokens heads columns", "a"]
    b_lse: Annotated[Tensor, "tokens heads", torch.float32, STRIDED]


def merge_attn_states_ref(call: MergeAttnStatesCall) -> None:
    """The formula in torch, in fp32; writes `out` and `out_lse`."""
    lses = torch.stack([lse.masked_fill(lse == math.inf, -math.inf) for lse in (call.a_lse, call.b_lse)])
    lse = torch.logsumexp(lses, 0)
    is_empty = lse == -math.inf
    weights = lses.masked_fill(is_empty, 0.0).softmax(0).masked_fill(is_empty, 0.0)[..., None]
    parts = [torch.where(weight == 0, 0.0, weight * one.float()) for weight, one in zip(weights, (call.a, call.b))]
    call.out.copy_(parts[0] + parts[1])
    if call.out_lse is not None:
        call.out_lse.copy_(lse)


def _instance(call: MergeAttnStatesCall) -> Instance:
    return Instance(dtypes.name(call.a.dtype), {"ELEMENT": elements.CPP[call.a.dtype]})


@compile_ops("attention/merge_attn_states.hip", gen_func=_instance)
def _merge_attn_states_hip(call: MergeAttnStatesCall) -> None: ...


def _check(call: MergeAttnStatesCall) -> object:
    return SKIP if call.a.numel() == 0 else None


def _refusal(target: Target, call: MergeAttnStatesCall) -> str | None:
    """Says why no kernel takes a call that torch serves."""
    if call.a.numel() > _MOST_ELEMENTS or call.a.shape[2] > _MOST_COLUMNS:
        return f"at most {_MOST_ELEMENTS} elements in rows of at most {_MOST_COLUMNS}, got {tuple(call.a.shape)}"
    return None


class MergeAttnStatesKey(NamedTuple):
    """The fields that a tuned row of merge_attn_states is chosen by."""

    rows: int
    columns: int
    dtype: str

    @classmethod
    def of(cls, call: MergeAttnStatesCall) -> MergeAttnStatesKey:
        tokens, heads, columns = call.a.shape
        return cls(tokens * heads, columns, dtypes.name(call.a.dtype))

    def make(self, device: torch.device, seed: int, heads: int = 1) -> MergeAttnStatesCall:
        random = tune_shapes.normal(device, seed, self.dtype)
        a, b = (random(self.rows // heads, heads, self.columns) for _ in range(2))
        a_lse, b_lse = tune_shapes.normal(device, seed, "fp32")(2, self.rows // heads, heads) * 3
        return MergeAttnStatesCall(torch.empty_like(a), torch.empty_like(a_lse), a, a_lse, b, b_lse)


_merge_attn_states = Op(
    _OP, call=MergeAttnStatesCall, reference=merge_attn_states_ref, check=_check, key=MergeAttnStatesKey,
    round_field="rows", writes=("out", "out_lse"),
    cases={name: (MergeAttnStatesKey(rows, columns, dtype), {"heads": 3}) for name, rows, columns, dtype in (
        ("bf16", 15, 72, "bf16"), ("fp16", 15, 72, "fp16"), ("fp32", 15, 72, "fp32"), ("odd", 12, 37, "bf16"))},
    in_place={"out": ("a", "b")},
    backends=(Backend("hip", _merge_attn_states_hip, refusal=_refusal),
              Backend("triton", "ops.attention.triton.merge_attn_states:merge_attn_states", refusal=_refusal,
                      space=lambda *_: [{"num_warps": count} for count in (2, 4, 8)]),
              Backend("torch", merge_attn_states_ref)))


def merge_attn_states(output: Tensor, prefix_output: Tensor, prefix_lse: Tensor, suffix_output: Tensor,
                      suffix_lse: Tensor, output_lse: Tensor | None = None, *, backend: str | None = None) -> None:
    """Attention over two sets of keys becomes attention over both.

    `output = (e^prefix_lse · prefix_output + e^suffix_lse · suffix_output) / (e^prefix_lse + e^suffix_lse)`.

    Args:
        output: [tokens, heads, head_dim], written; dtype of `prefix_output`, rows contiguous.
        prefix_output: [tokens, heads, head_dim] bf16|fp16|fp32, rows contiguous.
        prefix_lse: [heads, tokens] fp32, of any strides: natural log of the sum of exponentials of the scores.
        suffix_output, suffix_lse: as those of the prefix.
        output_lse: [heads, tokens] fp32, written; None: not wanted.

    Notes:
        In fp32, rounded once. A side that saw no key has the log-sum-exp -inf, or +inf as some kernels write it, and
        does not count, whatever its output holds; where both are so the result is 0 and -inf.

    Source: vLLM's `merge_attn_states`; section 2.2 of Juravsky et al., Hydragen (2024).
    """
    check.tensor(_OP, "prefix_output", prefix_output, rank=3)
    tokens, heads, _ = prefix_output.shape
    for name, lse in (("prefix_lse", prefix_lse), ("suffix_lse", suffix_lse), ("output_lse", output_lse)):
        if lse is not None or name != "output_lse":
            check.tensor(_OP, name, lse, shape=(heads, tokens), device=prefix_output.device, last_contiguous=False)
    output_lse = None if output_lse is None else output_lse.t()
    _merge_attn_states.run(output, output_lse, prefix_output, prefix_lse.t(), suffix_output, suffix_lse.t(),
                           backend=backend)


def merge_state_v2(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor, v_merged: Tensor | None = None,
                   s_merged: Tensor | None = None, *, backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Merges attention over two sets of keys; log-sum-exps have tokens first. Like `merge_attn_states` otherwise.

    `v = (e^s_a · v_a + e^s_b · v_b) / (e^s_a + e^s_b)`, `s = log(e^s_a + e^s_b)`.

    Args:
        v_a, v_b: [tokens, heads, head_dim] bf16|fp16|fp32, rows contiguous.
        s_a, s_b: [tokens, heads] fp32 of any strides, natural logarithm.
        v_merged, s_merged: tensors to write; default: new ones.

    Returns:
        `v_merged` and `s_merged`.

    Source: SGLang's `merge_state_v2`.
    """
    check.tensor("merge_state_v2", "v_a", v_a, rank=3)
    check.tensor("merge_state_v2", "s_a", s_a, rank=2, last_contiguous=False)
    v_merged = torch.empty_like(v_a, memory_format=torch.contiguous_format) if v_merged is None else v_merged
    s_merged = torch.empty(s_a.shape, dtype=torch.float32, device=v_a.device) if s_merged is None else s_merged
    _merge_attn_states.run(v_merged, s_merged, v_a, s_a, v_b, s_b, backend=backend)
    return v_merged, s_merged


def merge_state(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor, v_merged: Tensor | None = None,
                s_merged: Tensor | None = None, *, backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Merges two attentions; logarithms are natural, FlashInfer's are to the base 2. Like `merge_state_v2`.

    Source: SGLang's `merge_state`.
    """
    return merge_state_v2(v_a, s_a, v_b, s_b, v_merged, s_merged, backend=backend)


_merge_attn_states.public += [merge_attn_states, merge_state, merge_state_v2]
