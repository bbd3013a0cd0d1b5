# SPDX-License-Identifier: MIT
"""Backend "ck" of flash_attn_fwd: which build of csrc/attention/flash_attn_fwd_tile.hip serves a call, and its name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from aiter_like import dtypes
from aiter_like.device import Target
from aiter_like.dtypes import ROUNDINGS
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.attention.call import AttentionCall, dense_call
from aiter_like.ops.attention.checks import launch_refusal, mfma_refusal, scale_refusal

_ELEMENTS = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float8_e4m3fnuz: "fp8", torch.float32: "float"}
_HEAD_DIMS = {"bf16": (32, 64, 96, 128, 192, 256), "f16": (32, 64, 96, 128, 192, 256), "fp8": (64, 128, 192, 256)}
_PIPELINES = {"qrksvs": "QrKsVs", "qrasync": "QrAsync"}  # name → type in the kernel
_BLOCK = "b128x64"  # rows and keys of a workgroup's tile, as in the kernel
_MAX_ROW_STRIDE = 2**23 - 1  # 64 rows within 31 bits of bytes
_MAX_ASYNC_DIMS = 256  # two LDS tiles of 64 rows of K and of V in 64 KiB
_MAX_BIAS_STRIDE = 2**24  # 32 rows of fp32 within 32 bits of bytes


@dataclass(frozen=True)
class TileInstance:
    """One build of the kernel. What is not here is an argument of every build: lengths, packed or dense, strides,
    grouped heads, the window's size, sink tokens, a learned sink, the log-sum-exp.

    Attributes:
        element, out_element: "bf16", "f16", "fp8" of q, k and v; of out the same, for fp8 "bf16", "f16" or "float".
        head_dim, head_dim_v: of q and k, of v and out; a call's are padded with zeros to them.
        waves: of a workgroup, that share 128 rows.
        pipeline: "qrksvs", K then V through one LDS tile each, or "qrasync", two of each and no registers between.
        is_masked: causal or window.
        bias: element of an added bias, "" for none.
        has_alibi, has_softcap: further terms of a score.
        rounding: of P and out, a value of how_v3_bf16_cvt.
    """

    element: str
    out_element: str
    head_dim: int
    head_dim_v: int
    waves: int
    pipeline: str
    is_masked: bool
    bias: str
    has_alibi: bool
    has_softcap: bool
    rounding: int

    @property
    def name(self) -> str:
        """bf16_obf16_d128x128_b128x64_w4_qrksvs_nmask_nbias_nalibi_ncap_rtna: what is absent is spelled, with an n."""
        return "_".join((
            self.element, f"o{self.out_element}", f"d{self.head_dim}x{self.head_dim_v}",
            _BLOCK, f"w{self.waves}", self.pipeline,
            "mask" if self.is_masked else "nmask", f"bias{self.bias}" if self.bias else "nbias",
            "alibi" if self.has_alibi else "nalibi", "cap" if self.has_softcap else "ncap", ROUNDINGS[self.rounding]))

    @staticmethod
    def parse(name: str) -> TileInstance:
        """The instance of a name.

        Raises:
            ValueError: not such a name.
        """
        found = _NAME.fullmatch(name)
        if found is None:
            raise ValueError(f"flash_attn_fwd: {name!r} is no name of an instance of backend ck")
        part = found.groupdict()
        return TileInstance(part["element"], part["out"], int(part["dim"]), int(part["dim_v"]),
                            int(part["waves"]), part["pipeline"], part["mask"] == "mask", part["bias"] or "",
                            part["alibi"] == "alibi", part["cap"] == "cap", ROUNDINGS.index(part["rounding"]))

    def instance(self) -> Instance:
        """For the JIT."""
        return Instance(self.name, {
            "ELEMENT": self.element, "OUT_ELEMENT": self.out_element, "HEAD_DIM": self.head_dim,
            "HEAD_DIM_V": self.head_dim_v, "NUM_WAVES": self.waves, "PIPELINE": _PIPELINES[self.pipeline],
            "IS_MASKED": self.is_masked, "BIAS": self.bias or "void", "HAS_ALIBI": self.has_alibi,
            "HAS_SOFTCAP": self.has_softcap, "ROUNDING": self.rounding})


_NAME = re.compile(
    rf"(?P<element>bf16|f16|fp8)_o(?P<out>bf16|f16|float)_d(?P<dim>\d+)x(?P<dim_v>\d+)_{_BLOCK}_w(?P<waves>[48])"
    rf"_(?P<pipeline>qrksvs|qrasync)_(?P<mask>n?mask)_(?:nbias|bias(?P<bias>bf16|f16|float))_(?P<alibi>n?alibi)"
    rf"_(?P<cap>n?cap)_(?P<rounding>{'|'.join(ROUNDINGS)})")


def _waves(head_dim: int, head_dim_v: int, num_terms: int) -> int:
    """4 where Q, O and the scores of 32 rows fit half of a SIMD's registers, with what a score's further terms need,
    and K and V half of LDS; else 8, with 16 rows each.
    """
    return 4 if head_dim + head_dim_v <= 256 and num_terms < 3 else 8


def tile_instance(call: AttentionCall, pipeline: str = "qrksvs") -> TileInstance:
    """The build that serves a call.

    Raises:
        ValueError: no such pipeline, or one that these head dimensions do not fit.
    """
    element, out_element = _ELEMENTS[call.q.dtype], _ELEMENTS[call.out.dtype]
    head_dim, head_dim_v = (next(size for size in _HEAD_DIMS[element] if size >= dim)
                            for dim in (call.head_dim, call.head_dim_v))
    if pipeline not in _PIPELINES or (pipeline == "qrasync" and head_dim + head_dim_v > _MAX_ASYNC_DIMS):
        raise ValueError(f"flash_attn_fwd: pipeline must be one of {', '.join(_PIPELINES)}, the last one for head "
                         f"dimensions of {_MAX_ASYNC_DIMS} together at most, got {pipeline!r}")
    has_bias, has_alibi, has_softcap = call.bias is not None, call.alibi_slopes is not None, call.softcap > 0
    waves = _waves(head_dim, head_dim_v, has_bias + has_alibi + has_softcap)
    return TileInstance(element, out_element, head_dim, head_dim_v, 8 if pipeline == "qrasync" else waves, pipeline,
                        is_masked=call.mask != "none", bias=_ELEMENTS[call.bias.dtype] if has_bias else "",
                        has_alibi=has_alibi, has_softcap=has_softcap, rounding=call.rounding)


def _instance(call: AttentionCall, pipeline: str = "qrksvs") -> Instance:
    return tile_instance(call, pipeline).instance()


def _prebuild() -> list[Instance]:
    """Plain and masked, without further terms, for the default rounding."""
    return [TileInstance(element, element, dim, dim_v, _waves(dim, dim_v, 0), "qrksvs", is_masked, "", False, False,
                         1 if element == "bf16" else 0).instance()
            for element in ("bf16", "f16") for is_masked in (False, True)
            for dim, dim_v in ((32, 32), (64, 64), (96, 96), (128, 128), (192, 128), (256, 256))]


@compile_ops("attention/flash_attn_fwd_tile.hip", gen_func=_instance, platforms=("hip",), prebuild=_prebuild)
def flash_attn_fwd_ck(call: AttentionCall) -> None: ...


def ck_refusal(target: Target, call: AttentionCall) -> str | None:
    """Says what the kernel does not take."""
    if call.dropout_p > 0:
        return "no dropout"
    return mfma_refusal(target) or _dtypes_refusal(call) or _shapes_refusal(call)


def _dtypes_refusal(call: AttentionCall) -> str | None:
    element = _ELEMENTS.get(call.q.dtype)
    if element not in _HEAD_DIMS or call.k.dtype != call.q.dtype or call.v.dtype != call.q.dtype:
        names = ", ".join(dtypes.name(tensor.dtype) for tensor in (call.q, call.k, call.v))
        return f"q, k, v of bf16, fp16 or {dtypes.name(dtypes.fp8_of('gfx942'))}, got {names}"
    outs = (torch.bfloat16, torch.float16, torch.float32) if element == "fp8" else (call.q.dtype,)
    if call.out.dtype not in outs:
        return f"out of {' or '.join(map(dtypes.name, outs))}, got {dtypes.name(call.out.dtype)}"
    if call.bias is not None and _ELEMENTS.get(call.bias.dtype) not in ("bf16", "f16", "float"):
        return f"bias of bf16, fp16 or fp32, got {dtypes.name(call.bias.dtype)}"
    return None


def _shapes_refusal(call: AttentionCall) -> str | None:
    multiple, largest = 16 // call.q.element_size(), _HEAD_DIMS[_ELEMENTS[call.q.dtype]][-1]
    for dim in (call.head_dim, call.head_dim_v):
        if dim % multiple or dim > largest:
            return f"head dimensions must be multiples of {multiple}, at most {largest}, got {dim}"
    rows = 0 if call.is_varlen else 1
    reason = scale_refusal(call.softmax_scale) or launch_refusal(call, call.q.shape[rows], call.k.shape[rows])
    if reason:
        return reason
    for name, tensor in (("q", call.q), ("k", call.k), ("v", call.v), ("out", call.out)):
        least, stride = tensor.shape[-1], tensor.stride(rows)
        if tensor.shape[rows] > 1 and not least <= stride <= _MAX_ROW_STRIDE:
            return f"row stride of {name} from {least} to {_MAX_ROW_STRIDE} elements, got {stride}"
    return None if call.bias is None else _bias_refusal(call.bias)


def _bias_refusal(bias: Tensor) -> str | None:
    columns = bias.shape[-1]
    if columns > 1 and bias.stride(-1) != 1:
        return "bias must be contiguous in its last dimension"
    row_stride = bias.stride(-2) if bias.shape[-2] > 1 else 0
    if columns > _MAX_BIAS_STRIDE or row_stride > _MAX_BIAS_STRIDE:
        return f"bias of at most {_MAX_BIAS_STRIDE} columns and such a row stride, got {columns} and {row_stride}"
    return None


def ck_self_check(device: torch.device, call: AttentionCall) -> AttentionCall:
    """A small dense call that takes the same instance as `call`."""
    generator = torch.Generator().manual_seed(0)
    batch, rows, keys, heads, kv_heads = 1, 130, 200, 4, 2

    def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    q = random(batch, rows, heads, call.head_dim, dtype=call.q.dtype)
    k = random(batch, keys, kv_heads, call.head_dim, dtype=call.q.dtype)
    v = random(batch, keys, kv_heads, call.head_dim_v, dtype=call.q.dtype)
    out = torch.empty(batch, rows, heads, call.head_dim_v, dtype=call.out.dtype, device=device)
    options = {"sink_size": 3, "how_v3_bf16_cvt": call.how_v3_bf16_cvt}
    if call.bias is not None:
        options["bias"] = random(1, heads, rows, keys, dtype=call.bias.dtype)
    if call.alibi_slopes is not None:
        options["alibi_slopes"] = random(heads).abs()
    if call.is_fp8:
        options |= dict.fromkeys(("q_descale", "k_descale", "v_descale"), random(1).abs())
    if call.mask != "none":
        options |= {"window_left": 100, "window_right": 0}
    if call.softcap > 0:
        options["softcap"] = 2.0
    return dense_call(out, torch.empty(batch, heads, rows, device=device), q, k, v, sink=random(heads), **options)


def ck_space(target: Target, call: AttentionCall) -> Iterator[dict[str, str]]:
    """The other pipeline, where LDS holds it."""
    instance = tile_instance(call)
    if instance.head_dim + instance.head_dim_v <= _MAX_ASYNC_DIMS:
        yield {"pipeline": "qrasync"}
