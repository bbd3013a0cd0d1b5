# SPDX-License-Identifier: MIT
"""Group normalisation. Kernels: csrc/norm/group_norm.hip, ops/norm/triton/group_norm.py."""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, STRIDED, Backend, Op, torch_ops
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, rows, slices, tune_shapes
from aiter_like.ops.norm import parts

__all__ = ["group_norm"]

_OP = "group_norm"
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_INTEGERS = (int, torch.SymInt)
_MAX_SIZE = 2**30 - 1  # elements of a group
_LANE_BYTES, _MOST_LANES = 64, 512  # Long groups give a lane four accesses, a workgroup at most 512 lanes.


class GroupNormCall(NamedTuple):
    """One call of group_norm. `out` and `input` are [samples, channels, ...], both contiguous or both channels-last.

    Attributes:
        parts: memory for kernels that cut long groups into slices: fp32 [groups of all samples, slices, 2], or
            [samples, slices + 1, channels, 2] of channels last; None: the groups are not cut.
        weight: [channels]; None: 1.
        bias: [channels], dtype of `weight`; None: 0.
        silu: the result goes through SiLU before it is rounded.
    """

    out: Annotated[Tensor, "*shape", "input", STRIDED]
    parts: Annotated[Tensor | None, "*parts", torch.float32]
    input: Annotated[Tensor, "*shape", elements.FLOATS, STRIDED]
    weight: Annotated[Tensor | None, "_", ("input", torch.float32)]
    bias: Annotated[Tensor | None, "_", ("input", torch.float32)]
    num_groups: int
    epsilon: float
    silu: bool = False

    @property
    def groups(self) -> Tensor:
        """A row as long as each group has elements; of channels last, rows have other elements than groups."""
        input = self.input
        dense = input.permute(0, *range(2, input.ndim), 1) if self.is_channels_last else input
        return dense.view(input.shape[0] * self.num_groups, -1)

    @property
    def is_channels_last(self) -> bool:
        """Whether `input`, which is contiguous in one way or the other, has its channels innermost in memory."""
        return not self.input.is_contiguous()

    @property
    def slices_positions(self) -> bool:
        """Whether the slices are of a sample's positions, with all channels: `parts` of channels last says so."""
        return self.is_channels_last and self.parts is not None


def group_norm_ref(call: GroupNormCall) -> None:
    """The formula in torch, in fp32 (fp64 for fp64 input), differentiable; writes `out`."""
    x = call.input.to(torch.promote_types(call.input.dtype, torch.float32))
    grouped = x.reshape(x.shape[0], call.num_groups, -1)
    deviation = grouped - grouped.mean(-1, keepdim=True)
    y = (deviation * torch.rsqrt(deviation.square().mean(-1, keepdim=True) + call.epsilon)).view(x.shape)
    per_channel = (-1, *[1] * (x.ndim - 2))
    if call.weight is not None:
        y = y * call.weight.to(x.dtype).view(per_channel)
    if call.bias is not None:
        y = y + call.bias.to(x.dtype).view(per_channel)
    call.out.copy_(torch.nn.functional.silu(y) if call.silu else y)


def _instance(call: GroupNormCall, *, lanes: int | None = None, slice: int | None = None) -> Instance:
    input, weight, bias = call.input, call.weight, call.bias
    factors = next((tensor.dtype for tensor in (weight, bias) if tensor is not None), input.dtype)
    if call.slices_positions:
        vec = math.gcd(input.shape[1], 16 // input.element_size())
        row_layout, is_sliced = rows.RowLayout(lanes or 256, 4, vec, is_whole=True), True
    else:
        row_layout, is_sliced = _row_layout(target_of(input.device), call, lanes, slice)
    flags = {"w": weight is not None, "b": bias is not None, "nhwc": call.is_channels_last, "sliced": is_sliced}
    name = [*parts.dtype_names(input.dtype, factors), *(flag for flag, is_on in flags.items() if is_on)]
    return row_layout.instance("_".join(name), {
        "ELEMENT": elements.CPP[input.dtype], "WEIGHT": elements.CPP[factors], "HAS_WEIGHT": int(weight is not None),
        "HAS_BIAS": int(bias is not None), "IS_CHANNELS_LAST": int(call.is_channels_last), "IS_SLICED": int(is_sliced)})


def _row_layout(target: Target, call: GroupNormCall, lanes: int | None,
                slice: int | None) -> tuple[rows.RowLayout, bool]:
    """How lanes share a group or, second, slices of it. Accesses are no wider than the run of elements of one channel
    or position; where those are of odd number, the kernel's form for single elements has the same columns per lane.

    Raises:
        ValueError: `lanes` cannot keep so many elements, or `slice` has fewer than there is room for in `parts`.
    """
    groups, channels = call.groups, call.input.shape[1] // call.num_groups
    count, size = groups.shape
    element_size = groups.element_size()
    slice = slice or slices.of_cluster(target, size, element_size) or slices.default(target, count, size, element_size)
    is_sliced = slice < size
    if is_sliced:
        if slice * element_size < slices.LEAST_BYTES:
            raise ValueError(f"{_OP}: slice must be at least {slices.LEAST_BYTES // element_size}, got {slice}")
        groups = groups[:, :slice]
        lanes = lanes or min(slice * element_size // _LANE_BYTES, _MOST_LANES)
    elif target.wave_size == 32 and size * element_size > _LANE_BYTES * _MOST_LANES:
        lanes = lanes or _MOST_LANES
    vec = math.gcd(channels if call.is_channels_last else size // channels, 16 // element_size)
    row_layout = rows.row_layout(target, groups, lanes=lanes, vec=vec if vec > 1 else None, takes_unaligned=True)
    if not row_layout.is_whole:
        raise ValueError(f"{_OP}: {row_layout.lanes} lanes cannot keep {groups.shape[-1]} elements")
    return row_layout, is_sliced


@compile_ops("norm/group_norm.hip", gen_func=_instance)
def _group_norm_hip(call: GroupNormCall) -> None: ...


def _check(call: GroupNormCall) -> object:
    input = call.input
    if input.ndim < 2:
        raise ValueError(f"{_OP}: input must have at least 2 dimensions, got {input.ndim}")
    channels = input.shape[1]
    check.integer(_OP, "num_groups", call.num_groups, low=1)
    if channels % call.num_groups:
        raise ValueError(f"{_OP}: num_groups must divide the {channels} channels, got {call.num_groups}")
    for name, tensor in (("weight", call.weight), ("bias", call.bias)):
        if tensor is not None:
            dtype = tensor.dtype if call.weight is None else call.weight.dtype
            check.tensor(_OP, name, tensor, dtypes=(dtype,), shape=(channels,))
    check.real(_OP, "eps", call.epsilon, low=0.0)
    return SKIP if input.numel() == 0 else None


def _kernel_refusal(target: Target, call: GroupNormCall) -> str | None:
    """Says why no kernel takes a call."""
    input = call.input
    memory_format = torch.contiguous_format if input.is_contiguous() else _LAST.get(input.ndim)
    for name, tensor in (("input", input), ("out", call.out)):
        if memory_format is None or not tensor.is_contiguous(memory_format=memory_format):
            return f"input and out must both be contiguous, or channels-last; {name} has strides {tensor.stride()}"
    count = input.shape[0] * call.num_groups
    if count > rows.MAX_ROWS or input.numel() // count > _MAX_SIZE:
        return f"at most {rows.MAX_ROWS} groups of {_MAX_SIZE} elements"
    return None


class GroupNormKey(NamedTuple):
    """The fields that a tuned row of group_norm is chosen by."""

    samples: int
    channels: int
    positions: int
    num_groups: int
    dtype: str
    channels_last: bool

    @classmethod
    def of(cls, call: GroupNormCall) -> GroupNormKey:
        samples, channels = call.input.shape[:2]
        return cls(samples, channels, call.input.numel() // (samples * channels), call.num_groups,
                   dtypes.name(call.input.dtype), call.is_channels_last)

    def make(self, device: torch.device, seed: int, silu: bool = False) -> GroupNormCall:
        """With weight and bias, as models have them."""
        random = tune_shapes.normal(device, seed, self.dtype)
        x = random(self.samples, self.channels, self.positions, 1)
        if self.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        return GroupNormCall(torch.empty_like(x), _parts(x, self.num_groups), x, random(self.channels),
                             bias=random(self.channels), num_groups=self.num_groups, epsilon=1e-5, silu=silu)


def _hip_space(target: Target, call: GroupNormCall) -> list[dict[str, int]]:
    """Whole groups on all lanes that keep them; slices on the lanes that keep 64 or 128 bytes each."""
    groups = call.groups
    size, element_size = groups.shape[-1], groups.element_size()
    if call.slices_positions:
        return [{"lanes": count} for count in (128, 256, 512)]
    is_short = size * element_size <= slices.MOST_BYTES
    found = rows.lane_space(target, groups, takes_pieces=False) if is_short else []
    for slice in _slice_space(call):
        lanes = slice * element_size // _LANE_BYTES
        found += [{"lanes": count, "slice": slice} for count in (lanes // 2, lanes) if 128 <= count <= _MOST_LANES]
    return found


def _triton_space(target: Target, call: GroupNormCall) -> list[dict[str, int]]:
    """Whole groups on all waves; slices on the waves that leave each lane 16 or 32 elements."""
    if call.slices_positions:
        return [{"num_warps": count} for count in (2, 4, 8)]
    size, most = call.groups.shape[-1], slices.MOST_BYTES // call.input.element_size()
    found = tune_shapes.wave_space(target, size, most) if size <= most else []
    return found + [{"num_warps": slice // kept // target.wave_size, "slice": slice}
                    for slice in _slice_space(call) for kept in (32, 16) if slice // kept // target.wave_size <= 16]


def _slice_space(call: GroupNormCall) -> list[int]:
    """The lengths of slices to try; none where there is no memory for their moments."""
    return [] if call.parts is None else slices.space(call.groups.shape[-1], call.input.element_size())


_group_norm = Op(
    _OP, call=GroupNormCall, reference=group_norm_ref, check=_check, key=GroupNormKey, scratch=("parts",),
    writes=("out", "parts"), in_place={"out": ("input",)},
    cases={"whole": (GroupNormKey(2, 64, 64, 8, "bf16", False), {"silu": True}),
           "channels last": (GroupNormKey(2, 64, 36, 4, "bf16", True), {"silu": True}),
           "slices": GroupNormKey(2, 4, 12000, 1, "bf16", False),
           "slices, channels last": GroupNormKey(2, 16, 3000, 1, "bf16", True)},
    backends=(Backend("hip", _group_norm_hip, refusal=_kernel_refusal, space=_hip_space),
              Backend("triton", "ops.norm.triton.group_norm:group_norm", refusal=_kernel_refusal, space=_triton_space),
              Backend("torch", group_norm_ref, differentiable=True)))


def _parts(input: Tensor, num_groups: int) -> Tensor | None:
    """Memory for the moments of slices where groups are long enough to be cut; None too where _check refuses."""
    total, element_size = input.numel(), input.element_size()
    if total * element_size <= slices.model().whole_bytes or input.ndim < 2:
        return None
    if not isinstance(num_groups, _INTEGERS) or num_groups < 1:
        return None
    samples, channels = input.shape[:2]
    size = total // (samples * num_groups)
    shape = (samples * num_groups, slices.most(size, element_size), 2)
    if not input.is_contiguous():
        if size * element_size <= slices.MOST_BYTES:
            return None
        positions = total // (samples * channels)
        count = slices.of_positions(target_of(input.device), samples, positions, channels * element_size)
        shape = (samples, count + 1, channels, 2)
    return None if shape[1] == 1 else torch.empty(shape, dtype=torch.float32, device=input.device)


def group_norm(input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
               eps: float = 1e-5, *, silu: bool = False, out: Tensor | None = None,
               backend: str | None = None) -> Tensor:
    """Normalisation over groups of channels of each sample, with SiLU if asked for.

    `out = (x - mean) / sqrt(var + eps) · weight + bias`, of a sample's `channels / num_groups` neighbouring channels
    at all positions; with `silu` that value y becomes `y / (1 + exp(-y))`.

    Args:
        input: [samples, channels, ...] bf16|fp16|fp32, contiguous or channels-last.
        num_groups: divides the channels.
        weight: [channels], dtype of `input` or fp32, contiguous; None: 1.
        bias: [channels], dtype of `weight`, contiguous; None: 0.
        eps: added to the variance; finite, ≥ 0.
        silu: the result goes through SiLU before it is rounded.
        out: tensor to write, shape, dtype and layout of `input`; default: a new one. It may be `input` itself.

    Notes:
        In fp32, the variance as exact as from the deviations themselves, rounded to nearest even once; deterministic
        on one device. A group of more than 64 KB is shared out among workgroups, which read
        it twice (on sm_90 up to 512 KB once), and takes a workspace: 8 bytes for each 8 KB, or channels last of each
        channel for each 16 KB of a sample; a shorter one is read once. Only "torch" has a derivative.

    Source: Wu and He, Group Normalization (2018); torch.nn.functional.group_norm.
    """
    out = torch.empty_like(input) if out is None else out
    _group_norm.run(out, _parts(input, num_groups), input, weight, bias=bias, num_groups=num_groups, epsilon=eps,
                    silu=silu, backend=backend)
    return out


torch_ops.register(_group_norm, group_norm)
