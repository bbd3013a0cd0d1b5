# SPDX-License-Identifier: MIT
"""Shared by operators on rows for the tuner (dispatch/tuning.py): random operands, waves, a layer's sizes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from aiter_like import dtypes
from aiter_like.device import Target, simulated_target, target_of

_MAX_BLOCK = 8192  # elements of a row that a Triton program keeps


def normal(device: torch.device, seed: int, dtype: str) -> Callable[..., Tensor]:
    """A source of tensors of normal numbers: of (*shape), made on `device`. int8 holds 40 times as much."""
    generator, wanted = torch.Generator(device).manual_seed(seed), dtypes.DTYPES[dtype]
    if wanted.itemsize > 1:
        return lambda *shape: torch.randn(shape, generator=generator, device=device, dtype=wanted)
    factor = 40 if wanted == torch.int8 else 1
    return lambda *shape: (torch.randn(shape, generator=generator, device=device) * factor).to(wanted)


def page_table(device: torch.device, seed: int, batch: int, pages: int) -> Tensor:
    """[batch, pages] int32: pages of each sequence, of all pages there are in random order."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randperm(batch * pages, generator=generator, device=device, dtype=torch.int32).view(batch, pages)


def dtype_on(device: torch.device, name: str) -> torch.dtype:
    """The dtype of a short name; "fp8" is the device's own."""
    return dtypes.fp8_of(target_of(device).arch) if name == "fp8" else dtypes.DTYPES[name]


def row_sizes(x: Tensor) -> tuple[int, int, str]:
    """(rows, columns, dtype) of a tensor."""
    return x.numel() // max(x.shape[-1], 1), x.shape[-1], dtypes.name(x.dtype)


def every(**values: Sequence[int]) -> Callable[..., list[dict[str, int]]]:
    """A backend's `space` of all combinations of these values, whatever the call."""
    found = [dict(zip(values, each)) for each in itertools.product(*values.values())]
    return lambda *_: found


def wave_space(target: Target, hidden: int, block: int = _MAX_BLOCK) -> list[dict[str, int]]:
    """Waves that leave each lane 4 to 64 elements of a block, or of the row where that is shorter."""
    lanes = min(hidden, block) / target.wave_size
    return [{"num_warps": count} for count in (1, 2, 4, 8, 16) if 4 <= lanes / count <= 64 or count == 1 > lanes / 4]


def waves_of(name: str, block: int) -> Callable[[Target, Any], list[dict[str, int]]]:
    """A Triton backend's `space` where a program keeps a row of this tensor of a call, or blocks of it."""
    return lambda target, call: wave_space(target, getattr(call, name).shape[-1], block)


def row_space(target: Target, call: Any, *_: object) -> list[dict[str, int]]:
    """A Triton backend's `space` where a program takes a row of `out`."""
    out = call if isinstance(call, Tensor) else call.out
    return wave_space(target, out.shape[-1])


def linear_inputs(model: Any, tp: int, tokens: int) -> Iterator[tuple[int, int]]:
    """(rows, columns) of what a layer's linear layers read on one of `tp` GPUs, once each."""
    sizes = {(tokens, model.hidden_size): None, (tokens, model.num_heads // tp * _value_dim(model)): None}
    if model.q_lora_rank:
        sizes[tokens, model.q_lora_rank] = None
    for size in _dense_sizes(model, tp):
        sizes[tokens, size] = None
    if model.num_experts:
        sizes[tokens * model.experts_per_token, model.moe_intermediate_size // tp] = None
    return ((count, columns) for count, columns in sizes if columns)


def linear_weights(model: Any, tp: int) -> Iterator[tuple[int, int, int]]:
    """(matrices, rows, columns) of a layer's weights on one of `tp` GPUs, an output per row; experts are stacked."""
    hidden = model.hidden_size
    if model.kv_lora_rank:
        heads, query = model.num_heads // tp, model.qk_nope_head_dim + model.qk_rope_head_dim
        yield 1, model.q_lora_rank + model.kv_lora_rank + model.qk_rope_head_dim, hidden
        yield 1, heads * query, model.q_lora_rank
        yield 1, heads * (model.qk_nope_head_dim + model.v_head_dim), model.kv_lora_rank
    else:
        yield 1, (model.num_heads // tp + 2 * max(model.num_kv_heads // tp, 1)) * model.head_dim, hidden
    yield 1, hidden, model.num_heads // tp * _value_dim(model)
    sizes = [(1, size) for size in _dense_sizes(model, tp)]
    if model.num_experts:
        sizes.append((model.num_experts, model.moe_intermediate_size // tp))
    for count, size in sizes:
        if size:
            yield count, 2 * size, hidden  # gate and up
            yield count, hidden, size


def _dense_sizes(model: Any, tp: int) -> Iterator[int]:
    """A GPU's part of the MLPs that every token goes through: of dense layers, of shared experts."""
    if not model.num_experts or model.num_dense_layers:
        yield model.intermediate_size // tp
    if model.num_shared_experts:
        yield model.num_shared_experts * model.moe_intermediate_size // tp


def _value_dim(model: Any) -> int:
    return model.v_head_dim or model.head_dim


def fp8_name() -> str:
    """The fp8 of the GPU that is there, or of the simulated one."""
    target = target_of(torch.device("cuda", 0)) if torch.cuda.is_available() else simulated_target()
    return dtypes.name(dtypes.fp8_of(target.arch))
