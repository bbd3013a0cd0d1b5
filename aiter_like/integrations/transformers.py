# SPDX-License-Identifier: MIT
"""Serves Hugging Face transformers models: `enable(model)`, and `disable(model)`; TRANSFORMERS.md beside it.

Attention goes through transformers' own registries, under the name "aiter_like". Norms, gated activations and rotary
embedding have a registry there only where the package `kernels` is installed; so layers get their forward function as
that package would set it, one by one, and the rotary function is replaced in the modelling file.
"""

from __future__ import annotations

import functools
import logging
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface

from aiter_like.integrations import takeover, transformers_layers
from aiter_like.integrations.transformers_attention import attention_forward, attention_mask, stock_attention

__all__ = ["NAME", "disable", "enable", "install", "register", "uninstall"]

NAME = "aiter_like"
"""`attn_implementation` of models that are served; with a compute dtype followed by its name."""

_ROTARY = "apply_rotary_pos_emb"
_log = logging.getLogger("aiter_like")


@dataclass
class _Enabled:
    """What `enable` changed in a model.

    Attributes:
        attention: configurations with the implementation they had.
        layers: modules that got a forward function.
    """

    attention: list[tuple[Any, str | None]] = field(default_factory=list)
    layers: list[nn.Module] = field(default_factory=list)


_enabled: weakref.WeakKeyDictionary[nn.Module, _Enabled] = weakref.WeakKeyDictionary()
_rotary_users: dict[str, weakref.WeakSet[nn.Module]] = {}  # modelling file whose rotary function is ours → for whom


def install() -> None:
    """Enters the attention in transformers' registries; models are served by `enable`, or by that name."""
    register()


def uninstall() -> None:
    """Gives back every model and every modelling file. The name stays registered, for models that have it."""
    for model in list(_enabled):
        disable(model)
    _give_rotary_back()


def register(compute_dtype: torch.dtype | None = None) -> str:
    """Enter this attention in transformers' registries, for `attn_implementation=register(…)`.

    Args:
        compute_dtype: dtype into which q, k and v are cast for the kernel, e.g. torch.bfloat16 in a float32 model;
            the result has the model's dtype. None casts nothing, and other dtypes fall back to transformers' sdpa.

    Returns:
        The name: "aiter_like", with a compute dtype followed by it.
    """
    name = NAME if compute_dtype is None else f"{NAME}_{str(compute_dtype).rpartition('.')[2]}"
    forward = takeover.take("transformers.attention", attention_forward, stock_attention, op="flash_attn_fwd")
    AttentionInterface.register(name, functools.partial(forward, compute_dtype=compute_dtype))
    AttentionMaskInterface.register(name, attention_mask)
    return name


def enable(model: transformers.PreTrainedModel, compute_dtype: torch.dtype | None = None) -> None:
    """Serve a model's attention, RMS norms, gated activations and rotary embedding by this package.

    Calls that an operator does not take go to transformers' own code, with one log line per reason. Layers whose
    formula is another one stay as they are. The rotary function belongs to the model's source file: while one model
    of a family is enabled, it serves all models of that family.

    Args:
        model: any transformers model, on its device; may be enabled already.
        compute_dtype: of attention in a float32 model, see `register`.
    """
    disable(model)
    record = _enabled[model] = _Enabled()
    name = register(compute_dtype)
    record.attention = [(config, config._attn_implementation_internal) for config in _configs(model)]
    model.set_attn_implementation(name)
    if model.config._attn_implementation != name:
        _log.warning("%s: its attention cannot be exchanged, and stays transformers' own", type(model).__name__)
    for module in model.modules():
        found = None if "forward" in module.__dict__ else _forward_of(module)
        if found is not None:
            module.forward = types.MethodType(found, module)
            record.layers.append(module)
    for file in {type(module).__module__ for module in model.modules()}:
        _take_rotary(file, model)


def disable(model: transformers.PreTrainedModel) -> None:
    """Give a model back to transformers; nothing happens to one that is not enabled."""
    record = _enabled.pop(model, None)
    if record is None:
        return
    for config, implementation in record.attention:
        config._attn_implementation_internal = implementation
    for module in record.layers:
        module.__dict__.pop("forward", None)
    for users in _rotary_users.values():
        users.discard(model)
    _give_rotary_back()


def _configs(model: nn.Module) -> Iterator[Any]:
    """The configurations of a model and of the models in it, each once."""
    seen, waiting = set(), [module.config for module in model.modules()
                            if isinstance(module, transformers.PreTrainedModel)]
    while waiting:
        config = waiting.pop()
        if config is None or id(config) in seen:
            continue
        seen.add(id(config))
        yield config
        waiting += [getattr(config, name, None) for name in config.sub_configs]


def _forward_of(module: nn.Module) -> Callable | None:
    """What serves a layer, with the layer's own code for what it does not take; None: not a layer of ours."""
    original = type(module).forward
    for name, op, find in (("transformers.rms_norm", "rms_norm", transformers_layers.norm_forward),
                           ("transformers.gated_mlp", "act_and_mul", transformers_layers.mlp_forward)):
        ours = find(module)
        if ours is not None:
            taken = takeover.take(name, ours, original, op)
            return None if taken is original else taken
    return None


def _take_rotary(file: str, model: nn.Module) -> None:
    """Puts our rotary function into a modelling file, once."""
    original = getattr(sys.modules.get(file), _ROTARY, None)
    if original is None or not all(map(_repeats_its_tables, _rotary_modules(model))):
        return
    if file not in _rotary_users:
        ours = transformers_layers.rotary_function(original)
        taken = original if ours is None else takeover.take("transformers.rotary", ours, original, "rope")
        if taken is original:
            return
        takeover.replace_attribute(sys.modules[file], _ROTARY, taken, _owner(file))
        _rotary_users[file] = weakref.WeakSet()
    _rotary_users[file].add(model)


def _give_rotary_back() -> None:
    """Restores the files of which no enabled model is left."""
    for file in [file for file, users in _rotary_users.items() if not users]:
        takeover.restore_attributes(_owner(file))
        del _rotary_users[file]


def _owner(file: str) -> str:
    return f"transformers.rotary of {file}"


def _rotary_modules(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if "inv_freq" in module._buffers]


@torch.no_grad()
def _repeats_its_tables(rotary: nn.Module) -> bool:
    """Whether tables that are as wide as a head have the first half again in the second: ours reads only one."""
    device = rotary.inv_freq.device
    try:
        tables = rotary(torch.zeros(1, 1, 1, device=device), torch.arange(3, device=device)[None])
    except (RuntimeError, TypeError, ValueError, AttributeError):
        return False
    if not isinstance(tables, tuple) or len(tables) != 2:
        return False
    width = rotary.inv_freq.shape[0]
    return all(table.shape[-1] == width or torch.equal(table[..., :width], table[..., width:]) for table in tables)
