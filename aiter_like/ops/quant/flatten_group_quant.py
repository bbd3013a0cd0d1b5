# SPDX-License-Identifier: MIT
"""Flattening of heads and quantisation by group. Kernels: csrc/quant/, ops/quant/triton/."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, STRIDED, Backend, Op, torch_ops
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, quant_rule, rows, tune_shapes
from aiter_like.ops.quant import parts

__all__ = ["fused_flatten_fp8_group_quant"]

_OP = "flatten_group_quant"


class FlattenGroupQuantCall(NamedTuple):
    """One call of flatten_group_quant; `group_size` columns of `out` have a scale of their own."""

    out: Annotated[Tensor, "tokens flat", quant_rule.DTYPES]
    scale: Annotated[Tensor, "tokens groups", torch.float32, STRIDED]
    input: Annotated[Tensor, "tokens heads columns", elements.FLOATS]
    group_size: int = 128


def flatten_group_quant_ref(call: FlattenGroupQuantCall) -> None:
    """The rule of ops/common/quant_rule.py."""
    quant_rule.store_quantised(call.out, call.scale, call.input.flatten(1).float(), call.group_size)


def _instance(call: FlattenGroupQuantCall, *, lanes: int | None = None) -> Instance:
    name, macros = parts.kinds(call)
    row_layout = rows.row_layout(target_of(call.input.device), call.input, lanes=lanes, takes_unaligned=True)
    return row_layout.instance(f"{name}_g{call.group_size}", {**macros, "GROUP": call.group_size})


@compile_ops("quant/flatten_group_quant.hip", gen_func=_instance)
def _flatten_group_quant_hip(call: FlattenGroupQuantCall) -> None: ...


def _check(call: FlattenGroupQuantCall) -> object:
    tokens, heads, columns = call.input.shape
    _check_groups(columns, call.group_size)
    check.tensor(_OP, "out", call.out, shape=(tokens, heads * columns))
    check.tensor(_OP, "scale", call.scale, shape=(tokens, heads * columns // call.group_size), last_contiguous=False)
    return SKIP if call.input.numel() == 0 else None


def _check_groups(columns: int, group_size: int) -> None:
    """`group_size` is one that the kernels take, and divides a head's row."""
    check.choice(_OP, "group_size", group_size, quant_rule.GROUPS)
    quant_rule.check_group(_OP, columns, group_size)


def _refusal(target: Target, call: FlattenGroupQuantCall) -> str | None:
    count = call.input.shape[0] * call.input.shape[1]
    if count > rows.MAX_ROWS:
        return f"at most {rows.MAX_ROWS} heads of all tokens, got {count}"
    return quant_rule.refusal(target, call.out.dtype) or rows.refusal(out=call.out)


class FlattenGroupQuantKey(NamedTuple):
    """The fields that a tuned row of flatten_group_quant is chosen by."""

    tokens: int
    heads: int
    columns: int
    group_size: int
    dtype: str
    out_dtype: str

    @classmethod
    def of(cls, call: FlattenGroupQuantCall) -> FlattenGroupQuantKey:
        return cls(*call.input.shape, call.group_size, *parts.names(call))

    def make(self, device: torch.device, seed: int) -> FlattenGroupQuantCall:
        """Heads outermost in memory, as a batched product leaves them."""
        x = tune_shapes.normal(device, seed, self.dtype)(self.heads, self.tokens, self.columns).transpose(0, 1)
        return FlattenGroupQuantCall(*_outputs(x, self.group_size, tune_shapes.dtype_on(device, self.out_dtype)), x,
                                     self.group_size)

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[FlattenGroupQuantKey]:
        """The results of latent attention, of a GPU's own heads, on their way into the output projection."""
        if model.kv_lora_rank:
            yield cls(tokens, model.num_heads // tp, model.v_head_dim, 128, model.dtype, tune_shapes.fp8_name())


def _outputs(x: Tensor, group_size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    tokens, heads, columns = x.shape
    return (x.new_empty(tokens, heads * columns, dtype=dtype),
            x.new_empty(tokens, heads * columns // group_size, dtype=torch.float32))


_flatten_group_quant = Op(
    _OP, call=FlattenGroupQuantCall, reference=flatten_group_quant_ref, check=_check, key=FlattenGroupQuantKey,
    round_field="tokens", writes=("out", "scale"),
    cases={"int8": FlattenGroupQuantKey(5, 3, 256, 128, "bf16", "i8"),
           "fp8": FlattenGroupQuantKey(5, 3, 256, 32, "bf16", "fp8")},
    backends=(Backend("hip", _flatten_group_quant_hip, refusal=_refusal, space=rows.lanes_of("input")),
              Backend("triton", "ops.quant.triton.flatten_group_quant:flatten_group_quant", refusal=_refusal,
                      space=tune_shapes.every(num_warps=(1, 2, 4, 8))),
              Backend("torch", flatten_group_quant_ref)))


def fused_flatten_fp8_group_quant(x: Tensor, group_size: int, dtype_quant: torch.dtype | None = None,
                                  transpose_scale: bool = False, *,
                                  backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Flattens the heads of each token and quantises by group of columns.
    `q · scale` is x.flatten(1) up to the rounding of q, which is that of `per_token_quant_hip`.

    Args:
        x: [tokens, heads, columns] bf16|fp16|fp32, last dimension contiguous, any other strides, as those of a batched
            product with heads outermost in memory.
        group_size: 32, 64 or 128, which divides columns.
        dtype_quant: the hardware's fp8, or int8; None: the hardware's fp8.
        transpose_scale: the scales have strides (1, tokens): groups outermost in memory.

    Returns: q [tokens, heads · columns] and the scales [tokens, heads · columns / group_size] fp32.
    """
    check.tensor(_OP, "x", x, rank=3, last_contiguous=False)
    _check_groups(x.shape[2], group_size)
    dtype = dtypes.fp8_of(target_of(x.device).arch) if dtype_quant is None else dtype_quant
    check.choice(_OP, "dtype_quant", dtype, quant_rule.DTYPES)
    out, scale = _outputs(x, group_size, dtype)
    scale = quant_rule.group_major(scale, transpose_scale)
    _flatten_group_quant.run(out, scale, x, group_size, backend=backend)
    return out, scale


torch_ops.register(_flatten_group_quant, fused_flatten_fp8_group_quant)
