# SPDX-License-Identifier: MIT
"""Names and macros of the builds of products of linear layers: what their sources in csrc/gemm have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiter_like import dtypes
from aiter_like.jit import Instance
from aiter_like.ops.common import elements
from aiter_like.ops.gemm.parts import activation_of


def of(call: Any, block: str, macros: Mapping[str, Any]) -> Instance:
    """The build of a block, for the elements of a call of gemm_a16w16 or gemm_weight_only and for what happens to a sum
    there."""
    bias_dtype = call.a.dtype if call.bias is None else call.bias.dtype
    activation, _ = activation_of(call.activation)
    parts = [dtypes.name(call.a.dtype), block,
             *([] if call.out.dtype == call.a.dtype else [f"o{dtypes.name(call.out.dtype)}"]),
             *([] if call.activation == "none" else [call.activation]),
             *([] if call.bias is None else [f"bias_{dtypes.name(bias_dtype)}"]),
             *([] if call.residual is None else ["residual"]),
             *(["shuffled"] if macros.get("IS_SHUFFLED") else [])]
    return Instance("_".join(parts), {
        "ELEMENT": elements.CPP[call.a.dtype], "OUT_ELEMENT": elements.CPP[call.out.dtype],
        "BIAS_ELEMENT": elements.CPP[bias_dtype], **macros,
        "HAS_BIAS": int(call.bias is not None), "HAS_RESIDUAL": int(call.residual is not None),
        "HAS_ACTIVATION": int(activation != "none"), "ACTIVATION": "silu" if activation == "none" else activation})
