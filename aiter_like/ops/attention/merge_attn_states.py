# SPDX-License-Identifier: MIT
"""Attention over two sets of keys becomes attention over both: merge_attn_states, and engines' names for it.

Kernels: csrc/attention/merge_attn_states.hip, ops/attention/triton/merge_attn_states.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.dispatch.tuning import Tuning
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, tune_shapes

__all__ = ["merge_attn_states", "merge_state", "merge_state_v2"]

_OP = "merge_attn_states"
_MOST_ELEMENTS = 2**31 - 257
_MOST_COLUMNS = 8192


class MergeAttnStatesCall(NamedTuple):
    """One call of merge_attn_states: its arguments in the order of the function that merge_attn_states.hip exports.

    Attributes:
        out: [tokens, heads, columns], written; dtype of `a`.
        out_lse: fp32 [tokens, heads], written; None: not wanted.
        a, b: [tokens, heads, columns], attention over each set of keys, rows contiguous.
        a_lse, b_lse: fp32 [tokens, heads] of any strides, natural logarithms; infinite where no key was seen.
    """

    out: Tensor
    out_lse: Tensor | None
    a: Tensor
    a_lse: Tensor
    b: Tensor
    b_lse: Tensor


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
    a = call.a
    check.tensor(_OP, "a", a, rank=3, dtypes=elements.FLOATS)
    for name, tensor in (("b", call.b), ("out", call.out)):
        check.tensor(_OP, name, tensor, dtypes=(a.dtype,), shape=a.shape, device=a.device)
    for name, tensor in (("a_lse", call.a_lse), ("b_lse", call.b_lse), ("out_lse", call.out_lse)):
        if tensor is not None or name != "out_lse":
            check.tensor(_OP, name, tensor, dtypes=(torch.float32,), shape=a.shape[:2], device=a.device,
                         last_contiguous=False)
    return SKIP if a.numel() == 0 else None


def _refusal(target: Target, call: MergeAttnStatesCall) -> str | None:
    """What no kernel takes, and torch does."""
    if call.a.numel() > _MOST_ELEMENTS or call.a.shape[2] > _MOST_COLUMNS:
        return f"at most {_MOST_ELEMENTS} elements in rows of at most {_MOST_COLUMNS}, got {tuple(call.a.shape)}"
    return None


def _tune_key(call: MergeAttnStatesCall) -> dict[str, int | str]:
    tokens, heads, columns = call.a.shape
    return {"rows": tokens * heads, "columns": columns, "dtype": dtypes.name(call.a.dtype)}


def _call(device: torch.device, seed: int, tokens: int, heads: int, columns: int, dtype: str) -> MergeAttnStatesCall:
    random = tune_shapes.normal(device, seed, dtype)
    a, b = (random(tokens, heads, columns) for _ in range(2))
    lses = torch.randn(2, tokens, heads, generator=torch.Generator(device).manual_seed(seed), device=device) * 3
    return MergeAttnStatesCall(torch.empty_like(a), torch.empty_like(lses[0]), a, lses[0], b, lses[1])


def _cases(device: torch.device) -> dict[str, MergeAttnStatesCall]:
    """Each dtype; rows that vectors do not fit."""
    names = map(dtypes.name, elements.FLOATS)
    return {**{name: _call(device, 0, 5, 3, 72, name) for name in names}, "odd": _call(device, 1, 4, 3, 37, "bf16")}


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> MergeAttnStatesCall:
    return _call(device, seed, key["rows"], 1, key["columns"], key["dtype"])


_merge_attn_states = Op(
    _OP, call=MergeAttnStatesCall, reference=merge_attn_states_ref, check=_check, tune_key=_tune_key,
    tune_fields=("rows", "columns", "dtype"), round_field="rows", writes=("out", "out_lse"), cases=_cases,
    tuning=Tuning(_tune_case),
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
        suffix_output: as `prefix_output`.
        suffix_lse: as `prefix_lse`.
        output_lse: [heads, tokens] fp32, written; None: not wanted.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        None; `output` and `output_lse` are written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call.

    Notes:
        In fp32, rounded once. A side that saw no key has the log-sum-exp -inf, or +inf as some kernels write it, and
        does not count, whatever its output holds; where both are so the result is 0 and -inf. Can be captured.

    Source: vLLM's `merge_attn_states`; section 2.2 of Juravsky et al., Hydragen (2024).
    """
    check.tensor(_OP, "prefix_output", prefix_output, rank=3)
    tokens, heads, _ = prefix_output.shape
    for name, lse in (("prefix_lse", prefix_lse), ("suffix_lse", suffix_lse), ("output_lse", output_lse)):
        if lse is not None or name != "output_lse":
            check.tensor(_OP, name, lse, dtypes=(torch.float32,), shape=(heads, tokens), device=prefix_output.device,
                         last_contiguous=False)
    output_lse = None if output_lse is None else output_lse.t()
    _merge_attn_states.run(output, output_lse, prefix_output, prefix_lse.t(), suffix_output, suffix_lse.t(),
                           backend=backend)


def merge_state_v2(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor, v_merged: Tensor | None = None,
                   s_merged: Tensor | None = None, *, backend: str | None = None) -> tuple[Tensor, Tensor]:
    """`merge_attn_states` with log-sum-exps that have tokens first, into new tensors.

    `v = (e^s_a · v_a + e^s_b · v_b) / (e^s_a + e^s_b)`, `s = log(e^s_a + e^s_b)`.

    Args:
        v_a: [tokens, heads, head_dim] bf16|fp16|fp32, rows contiguous.
        s_a: [tokens, heads] fp32, natural logarithm.
        v_b: as `v_a`.
        s_b: as `s_a`.
        v_merged: tensor to write; default: a new one.
        s_merged: tensor to write; default: a new one.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        `v_merged` and `s_merged`.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call.

    Notes:
        As of `merge_attn_states`.

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
    """As `merge_state_v2`: `v = (e^s_a · v_a + e^s_b · v_b) / (e^s_a + e^s_b)`.

    Args:
        v_a: [tokens, heads, head_dim] bf16|fp16|fp32, rows contiguous.
        s_a: [tokens, heads] fp32, natural logarithm.
        v_b: as `v_a`.
        s_b: as `s_a`.
        v_merged: tensor to write; default: a new one.
        s_merged: tensor to write; default: a new one.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        `v_merged` and `s_merged`.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call.

    Notes:
        As of `merge_attn_states`. FlashInfer's function of this name has logarithms to the base 2: this one has not.

    Source: SGLang's `merge_state`.
    """
    return merge_state_v2(v_a, s_a, v_b, s_b, v_merged, s_merged, backend=backend)


_merge_attn_states.public += [merge_attn_states, merge_state, merge_state_v2]
