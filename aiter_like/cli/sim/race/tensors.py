# SPDX-License-Identifier: MIT
"""The tensors of a race's row: made from their descriptions, the same for both sides, each beginning on a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from aiter_like.cli.sim import described, spec
from aiter_like.cli.sim.race import arithmetic

if TYPE_CHECKING:
    from torch import Tensor

    from aiter_like.cli.sim.race.rows import Family

_MADE = {"dtype", "shape", "fill", "seed", "times", "checked"}
_DERIVED = {"from", "by", "view", "permute", "checked"}
_ENTRY_KEYS = _MADE | _DERIVED | {"of", "layout"}


def of(family: Family, sizes: Mapping[str, Any], is_checked: bool) -> dict[str, Tensor]:
    """Name → tensor, at these sizes.

    Args:
        is_checked: results will be compared. Else what only they depend on, as another kernel's results that this one
            takes, is random.
    """
    found: dict[str, Tensor] = {}
    for name, entry in family.tensors.items():
        place = f"{family.place}: tensors.{name}"
        described.require_keys(entry, _ENTRY_KEYS, place)
        made = _derived(entry, sizes, found, place) if "from" in entry else _filled(entry, sizes, place)
        if is_checked and "checked" in entry:
            made.copy_(described.one_of(entry["checked"], _CHECKED, f"{place}.checked")(found, sizes))
        found[name] = made
    return found


def _filled(entry: Mapping[str, Any], sizes: Mapping[str, Any], place: str) -> Tensor:
    shape = entry.get("shape")
    if not isinstance(shape, list):
        raise ValueError(f"{place}.shape must be a list of sizes, got {described.GOT.repr(shape)}")
    shape = [arithmetic.integer(size, sizes, f"{place}.shape") for size in shape]
    fill, times = entry.get("fill", "random"), arithmetic.number(entry.get("times", 1), sizes, f"{place}.times")
    given = {"dtype": entry.get("dtype"), "shape": shape, "seed": entry.get("seed", 0)}
    if fill in _FILLS:
        made = spec.filled({**given, "fill": "zeros"}, place)
        return made.copy_(_FILLS[fill](made, given["seed"], times))
    fill = fill if fill in ("random", "zeros") else arithmetic.number(fill, sizes, f"{place}.fill")
    if times != 1 and fill == "random":
        made = spec.filled({**given, "fill": "zeros"}, place)
        return made.copy_(spec.filled({**given, "dtype": "fp32", "fill": "random"}, place) * times)
    return spec.filled({**given, "fill": fill}, place)


def _derived(entry: Mapping[str, Any], sizes: Mapping[str, Any], found: Mapping[str, Tensor], place: str) -> Tensor:
    """Another order of a tensor that is there."""
    source = described.one_of(entry["from"], found, f"{place}.from")
    if "by" in entry:
        return _paged(described.one_of(entry["by"], _ORDERS, f"{place}.by")(source, entry))
    try:
        seen = source.view([arithmetic.integer(size, sizes, f"{place}.view") for size in entry["view"]])
        return _paged(seen.permute(entry["permute"]).contiguous() if "permute" in entry else seen)
    except (KeyError, RuntimeError, TypeError) as error:
        raise ValueError(f"{place}: {tuple(source.shape)} has no such view: {error}") from error


def _paged(tensor: Tensor) -> Tensor:
    """A copy that begins on a page, and bears the mark of shuffled weights if the tensor does."""
    from aiter_like.ops.common import marks

    made, layout = spec.zeros(tensor.shape, tensor.dtype).copy_(tensor), marks.layout_of(tensor)
    return marks.mark(made, layout) if layout else made


def on_device(tensors: Mapping[str, Tensor], place: Any) -> dict[str, Tensor]:
    """The same tensors on a device, marks included."""
    from aiter_like.ops.common import marks

    moved = {name: tensor.to(place) for name, tensor in tensors.items()}
    return {name: marks.mark(moved[name], layout) if (layout := marks.layout_of(tensor)) else moved[name]
            for name, tensor in tensors.items()}


def _range(made: Tensor, _: int, times: float) -> Tensor:
    import torch

    return (torch.arange(made.numel()) * times).view(made.shape)


def _permutation(made: Tensor, seed: int, _: float) -> Tensor:
    import torch

    return torch.randperm(made.numel(), generator=torch.Generator().manual_seed(seed)).view(made.shape)


def _distinct(made: Tensor, seed: int, times: float) -> Tensor:
    """Different numbers below `times` in each row, as the experts of tokens."""
    import torch

    rows, columns = made.shape
    return torch.rand(rows, int(times), generator=torch.Generator().manual_seed(seed)).topk(columns).indices


def _shares(made: Tensor, seed: int, _: float) -> Tensor:
    """Rows that add up to 1."""
    import torch

    return torch.rand(made.shape, generator=torch.Generator().manual_seed(seed)).add(0.1).softmax(-1)


_FILLS: dict[str, Callable[[Tensor, int, float], Tensor]] = {
    "range": _range, "permutation": _permutation, "distinct": _distinct, "shares": _shares}


def _shuffled(source: Tensor, entry: Mapping[str, Any]) -> Tensor:
    import aiter_like

    return aiter_like.shuffle_weight(source, layout=tuple(entry.get("layout", (16, 16))))


_ORDERS: dict[str, Callable[[Tensor, Mapping[str, Any]], Tensor]] = {"shuffle_weight": _shuffled}


def _scores(found: Mapping[str, Tensor], sizes: Mapping[str, Any]) -> Tensor:
    """[batch, heads, queries, keys] in fp32, masked, of `q` and `k` in [batch, length, heads, dim]."""
    import torch

    q, k = (found[name].float().transpose(1, 2) for name in ("q", "k"))
    scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(2, 3) * q.shape[-1] ** -0.5
    hidden = torch.ones(scores.shape[2:], dtype=torch.bool).triu(1 + scores.shape[3] - scores.shape[2])
    return scores.masked_fill(hidden, -torch.inf) if sizes.get("causal") else scores


def _attention(found: Mapping[str, Tensor], sizes: Mapping[str, Any]) -> Tensor:
    v = found["v"].float().transpose(1, 2)
    v = v.repeat_interleave(found["q"].shape[2] // v.shape[1], 1)
    return (_scores(found, sizes).softmax(-1) @ v).transpose(1, 2)


def _attention_lse(found: Mapping[str, Tensor], sizes: Mapping[str, Any]) -> Tensor:
    return _scores(found, sizes).logsumexp(-1)


_CHECKED: dict[str, Callable[[Mapping[str, Tensor], Mapping[str, Any]], Tensor]] = {
    "attention": _attention, "attention_lse": _attention_lse}
