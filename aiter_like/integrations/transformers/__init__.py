# SPDX-License-Identifier: MIT
"""Serves Hugging Face transformers models: `enable(model)`, or `install()` for all new ones; see TRANSFORMERS.md.

Attention goes through transformers' own registries, under the name "aiter_like". Norms, linear layers, gated
activations and rotary embedding have a registry there only where the package `kernels` is installed; so layers get
their forward function as that package would set it, one by one, and the rotary function is replaced in the modelling
file.

Importing this loads no models' code of transformers: when that is loaded, aiter_like_startup.py calls `install`, which
must be there by then.
"""

import functools
import logging
import sys
import types
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import nn

from aiter_like.integrations import linear, takeover
from aiter_like.integrations.transformers import experts as transformers_experts
from aiter_like.integrations.transformers import layers as transformers_layers

__all__ = ["NAME", "disable", "enable", "install", "register", "uninstall"]

NAME = "aiter_like"
"""`attn_implementation` of models that are served; with a compute dtype followed by its name."""

_ROTARY = "apply_rotary_pos_emb"
_OWNER = "transformers"
_ENGINES = {"vllm", "sglang"}  # in their processes the engine decides which parts of which model are whose
_KINDS = {"transformers.rms_norm": "RMS norms", "transformers.gated_mlp": "gated activations",
          "transformers.experts": "layers of experts", "transformers.linear": "linear layers"}
logger = logging.getLogger("aiter_like")


@dataclass
class _Enabled:
    """The changes of `enable` in a model.

    Attributes:
        attention: configurations with the implementation they had.
        layers: modules that got a forward function.
        taken: what is served of it, in words.
    """

    attention: list[tuple[Any, str | None]] = field(default_factory=list)
    layers: list[nn.Module] = field(default_factory=list)
    taken: str = ""


_enabled: weakref.WeakKeyDictionary[nn.Module, _Enabled] = weakref.WeakKeyDictionary()
_rotary_users: dict[str, weakref.WeakSet[nn.Module]] = {}  # modelling file whose rotary function is ours → for whom
_is_loading: ContextVar[bool] = ContextVar("aiter_like_transformers_is_loading", default=False)


def install() -> None:
    """Serves every model that is made or loaded from now on, as `enable` does; attention only where nobody chose one.

    One INFO line per model says what is taken. Models of vLLM and SGLang are their own adapters' business.
    """
    register()
    base = transformers.PreTrainedModel
    make, load = vars(base)["post_init"], vars(base)["from_pretrained"].__func__

    @functools.wraps(make)
    def post_init(model: transformers.PreTrainedModel) -> None:
        make(model)
        if not _is_loading.get() and not any(weight.is_meta for weight in model.parameters()) and not _is_part(model):
            _serve(model)

    @functools.wraps(load)
    def from_pretrained(cls: type, *args: Any, **options: Any) -> Any:
        token = _is_loading.set(True)
        try:
            found = load(cls, *args, **options)
        finally:
            _is_loading.reset(token)
        if not _is_loading.get():
            _serve(found[0] if isinstance(found, tuple) else found)
        return found

    takeover.replace_attribute(base, "post_init", post_init, _OWNER)
    takeover.replace_attribute(base, "from_pretrained", classmethod(from_pretrained), _OWNER)


def uninstall() -> None:
    """Gives back every model and every modelling file. The name stays registered, for models that have it."""
    takeover.restore_attributes(_OWNER)
    for model in list(_enabled):
        disable(model)
    _give_rotary_back()


def trial() -> str:
    """Tells what is served of a small model that is made now, as a program would make it; "" where nothing is."""
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=64, num_hidden_layers=1, intermediate_size=64, vocab_size=8, num_attention_heads=2))
    return _enabled[model].taken if model in _enabled else ""


def register(compute_dtype: torch.dtype | None = None) -> str:
    """Enter this attention in transformers' registries, for `attn_implementation=register(…)`.

    Args:
        compute_dtype: dtype into which q, k and v are cast for the kernel, e.g. torch.bfloat16 in a float32 model;
            the result has the model's dtype. None casts nothing, and other dtypes fall back to transformers' sdpa.

    Returns:
        The name: "aiter_like", with a compute dtype followed by it.
    """
    registry, masks = transformers.AttentionInterface, transformers.AttentionMaskInterface  # loads what the next needs
    from aiter_like.integrations.transformers import paged as transformers_paged
    from aiter_like.integrations.transformers.attention import attention_forward, attention_mask, stock_attention

    name = NAME if compute_dtype is None else f"{NAME}_{str(compute_dtype).rpartition('.')[2]}"
    forward = takeover.take("transformers.attention", attention_forward, stock_attention, op="flash_attn_fwd",
                            announce=False)
    registry.register(name, functools.partial(forward, compute_dtype=compute_dtype))
    masks.register(name, attention_mask)
    # A paged cache has taken the keys by the time that a call is refused, so that no other function could serve it.
    paged = takeover.take("transformers.paged_attention", transformers_paged.attention_forward, None,
                          op="paged_attention", announce=False)
    registry.register(name + transformers_paged.SUFFIX,
                      functools.partial(paged, inner=forward, compute_dtype=compute_dtype))
    masks.register(name + transformers_paged.SUFFIX, attention_mask)
    transformers_paged.install(lambda found: str(found).startswith(NAME), _OWNER)
    return name


def enable(model: transformers.PreTrainedModel, compute_dtype: torch.dtype | None = None) -> None:
    """Serve a model's attention, RMS norms, linear layers, gated activations and rotary embedding by this package.

    Calls that an operator does not take go to transformers' own code, with one log line per reason. Layers whose
    formula is another one stay as they are. The rotary function belongs to the model's source file: while one model
    of a family is enabled, it serves all models of that family.

    Args:
        model: any transformers model, on its device; may be enabled already.
        compute_dtype: of attention in a float32 model, see `register`.
    """
    _enable(model, compute_dtype)


def disable(model: transformers.PreTrainedModel) -> None:
    """Give a model, or a copy of one, back to transformers; nothing happens to one that is not enabled."""
    record = _enabled.pop(model, None) or _copied(model)
    for config, implementation in record.attention:
        config._attn_implementation_internal = implementation
    for module in record.layers:
        module.__dict__.pop("forward", None)
    for users in _rotary_users.values():
        users.discard(model)
    _give_rotary_back()


def _enable(model: transformers.PreTrainedModel, compute_dtype: torch.dtype | None = None,
            keeps_choice: bool = False) -> None:
    """`enable`; with `keeps_choice` an attention other than transformers' default for the model stays."""
    for part in [model, *(part for part in model.modules() if part in _enabled)]:
        disable(part)
    linear.announce(_OWNER)
    record, taken = _Enabled(), Counter(dict.fromkeys(["attention", *_KINDS.values()], 0))
    _enabled[model] = record
    chosen = _chosen_attention(model) if keeps_choice else ""
    if not chosen:
        name = register(compute_dtype)
        record.attention = [(config, config._attn_implementation_internal) for config in _configs(model)]
        model.set_attn_implementation(name)
        if model.config._attn_implementation != name:
            logger.warning("%s: its attention cannot be exchanged, and stays transformers' own", type(model).__name__)
        elif "transformers.attention" not in takeover.denied():
            taken["attention"] = 1
    with torch.device("cpu"):  # probes are made there, whatever device models are being made on
        for module in model.modules():
            found = None if "forward" in module.__dict__ else _forward_of(module)
            if found is not None:
                module.forward = types.MethodType(found[1], module)
                record.layers.append(module)
                taken[_KINDS[found[0]]] += 1
        files = {type(module).__module__ for module in model.modules()}
        taken["rotary embedding"] = sum(_take_rotary(file, model) for file in files)
    record.taken = ", ".join(f"{count} {name}" if name in _KINDS.values() else name
                             for name, count in taken.items() if count)
    logger.info("%s is served: %s%s", type(model).__name__, record.taken or "nothing of it",
              f"; its attention stays {chosen!r}, as chosen" if chosen else "")


def _serve(model: transformers.PreTrainedModel) -> None:
    """Enables a new model; one that cannot be is transformers' own, with a warning."""
    if _ENGINES & sys.modules.keys():
        return
    try:
        _enable(model, keeps_choice=True)
    except Exception as error:
        disable(model)
        logger.debug("%s is not served", type(model).__name__, exc_info=True)
        logger.warning("%s stays transformers' own: %s: %s", type(model).__name__, type(error).__name__, error)


def _is_part(model: transformers.PreTrainedModel) -> bool:
    """Whether the constructor of another model, somewhere up the stack, is making this one: that will be served."""
    frame = sys._getframe(2)
    while frame is not None:
        owner = frame.f_locals.get("self") if frame.f_code.co_name == "__init__" else None
        if isinstance(owner, transformers.PreTrainedModel) and owner is not model:
            return True
        frame = frame.f_back
    return False


def _chosen_attention(model: transformers.PreTrainedModel) -> str:
    """An implementation that somebody has chosen for the model or a part of it, "" where all have the default."""
    for part in model.modules():
        if isinstance(part, transformers.PreTrainedModel):
            chosen = part.config._attn_implementation
            if chosen not in (None, part.get_correct_attn_implementation(None, is_init_check=True)):
                return chosen
    return ""


def _copied(model: nn.Module) -> _Enabled:
    """Finds what is ours in a model without a record, a copy of an enabled one, and gives it its default attention."""
    layers = [module for module in model.modules()
              if getattr(module.__dict__.get("forward"), "__func__", None) in transformers_layers.forwards]
    attention = [(part.config, part.get_correct_attn_implementation(None, is_init_check=True))
                 for part in model.modules() if isinstance(part, transformers.PreTrainedModel)
                 and str(part.config._attn_implementation_internal).startswith(NAME)]
    return _Enabled(attention, layers)


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


def _forward_of(module: nn.Module) -> tuple[str, Callable] | None:
    """The name of a layer's operator, and what serves the layer, with its own code for what that does not take; None:
    not a layer of ours.
    """
    original = type(module).forward
    for name, op, find in (("transformers.rms_norm", "rms_norm", transformers_layers.norm_forward),
                           ("transformers.gated_mlp", "act_and_mul", transformers_layers.mlp_forward),
                           ("transformers.experts", "moe_gemm", transformers_experts.experts_forward),
                           ("transformers.linear", linear.OP, transformers_layers.linear_forward)):
        ours = find(module)
        if ours is not None:
            taken = takeover.take(name, ours, original, op, announce=False)
            if taken is original:
                return None
            transformers_layers.forwards.add(taken)
            return name, taken
    return None


def _take_rotary(file: str, model: nn.Module) -> bool:
    """Puts our rotary function into a modelling file, once; whether it serves the model."""
    original = getattr(sys.modules.get(file), _ROTARY, None)
    if original is None or not all(map(_repeats_its_tables, _rotary_modules(model))):
        return False
    if file not in _rotary_users:
        ours = transformers_layers.rotary_function(original)
        taken = original if ours is None else takeover.take(
            "transformers.rotary", ours, original, "rope", announce=False)
        if taken is original:
            return False
        takeover.replace_attribute(sys.modules[file], _ROTARY, taken, _owner(file))
        _rotary_users[file] = weakref.WeakSet()
    _rotary_users[file].add(model)
    return True


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
        tables = rotary(torch.zeros(1, 1, 1, device=device, dtype=torch.float32), torch.arange(3, device=device)[None])
    except (RuntimeError, TypeError, ValueError, AttributeError):
        return False
    if not isinstance(tables, tuple) or len(tables) != 2:
        return False
    width = rotary.inv_freq.shape[0]
    return all(table.shape[-1] == width or torch.equal(table[..., :width], table[..., width:]) for table in tables)
