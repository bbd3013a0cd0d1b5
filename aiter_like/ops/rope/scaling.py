# SPDX-License-Identifier: MIT
"""Frequencies of rotary position embeddings as public models define them: linear, dynamic, llama3, yarn, longrope.

Computed in fp32 like the models' own code, so that tables have the bits that the models were evaluated with. Read by
ops/rope/rotary.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Frequencies:
    """A piece of a table: row p has cos(p · step · inverse) · scale.

    Attributes:
        inverse: [rotary_dim / 2] fp32, radians per position.
        rows: the number of positions.
        scale: what cosines and sines are multiplied by (yarn, longrope).
        divisor: what positions are divided by (linear).
    """

    inverse: Tensor
    rows: int
    scale: float = 1.0
    divisor: float = 1.0

    def table(self) -> tuple[Tensor, Tensor]:
        """Cosines and sines, [rows, rotary_dim / 2] fp32."""
        angles = torch.outer(torch.arange(self.rows, dtype=torch.float32) / self.divisor, self.inverse)
        return angles.cos() * self.scale, angles.sin() * self.scale


def frequencies(kind: str, rotary_dim: int, max_position: int, base: float,
                scaling: Mapping[str, Any]) -> list[Frequencies]:
    """The pieces of a model's table, one after the other: two for longrope (short, long), else one.

    Args:
        kind: rope_type of the model's configuration.
        scaling: its other entries.

    Raises:
        ValueError: an unknown kind, or an entry is missing.
    """
    if kind not in _KINDS:
        raise ValueError(f"get_rope: rope_scaling must have a rope_type among {', '.join(_KINDS)}, got {kind!r}")
    return _KINDS[kind](rotary_dim, max_position, base, scaling)


def plain(rotary_dim: int, base: float, factors: Sequence[float] | float = 1.0) -> Tensor:
    """1 / (factors · base^(2i / rotary_dim))."""
    powers = base ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)
    return 1.0 / (torch.as_tensor(factors, dtype=torch.float32) * powers)


def _default(rotary_dim: int, max_position: int, base: float, scaling: Mapping[str, Any]) -> list[Frequencies]:
    return [Frequencies(plain(rotary_dim, base), max_position)]


def _linear(rotary_dim: int, max_position: int, base: float, scaling: Mapping[str, Any]) -> list[Frequencies]:
    factor = _entry(scaling, "factor")
    return [Frequencies(plain(rotary_dim, base), int(max_position * factor), divisor=factor)]


def _dynamic(rotary_dim: int, max_position: int, base: float, scaling: Mapping[str, Any]) -> list[Frequencies]:
    """NTK-aware: the base grows with the longest sequence that the table is for, or with a given alpha."""
    if "alpha" in scaling:
        growth, rows = scaling["alpha"], max_position
    else:
        factor = _entry(scaling, "factor")
        rows = int(max_position * factor)
        growth = factor * rows / max_position - (factor - 1)
    return [Frequencies(plain(rotary_dim, base * growth ** (rotary_dim / (rotary_dim - 2))), rows)]


def _llama3(rotary_dim: int, max_position: int, base: float, scaling: Mapping[str, Any]) -> list[Frequencies]:
    """Long waves are stretched by the factor, short ones kept, those between blended."""
    factor, low, high = (_entry(scaling, name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    original = _entry(scaling, "original_max_position_embeddings")
    inverse = plain(rotary_dim, base)
    turns = original * inverse / (2 * math.pi)  # within the original context
    kept = ((turns - low) / (high - low)).clamp(0, 1) if high != low else (turns >= low).float()
    return [Frequencies((1 - kept) * inverse / factor + kept * inverse, max_position)]


def _yarn(rotary_dim: int, max_position: int, base: float, scaling: Mapping[str, Any]) -> list[Frequencies]:
    """Peng et al., YaRN (2023): blended by the number of turns; cosines and sines scaled instead of the attention."""
    factor = _entry(scaling, "factor")
    original = scaling.get("original_max_position_embeddings", max_position)

    def element(turns: float) -> float:
        """The element whose wave makes `turns` turns within the original context."""
        return rotary_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    first, last = element(scaling.get("beta_fast", 32)), element(scaling.get("beta_slow", 1))
    if scaling.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rotary_dim - 1)
    ramp = (torch.arange(rotary_dim // 2, dtype=torch.float32) - first) / (last - first or 0.001)
    kept = (1 - ramp.clamp(0, 1)) * scaling.get("extrapolation_factor", 1)
    inverse = plain(rotary_dim, base, factor) * (1 - kept) + plain(rotary_dim, base) * kept
    return [Frequencies(inverse, max(int(original * factor), max_position), _yarn_scale(factor, scaling))]


def _yarn_scale(factor: float, scaling: Mapping[str, Any]) -> float:
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    first, second = scaling.get("mscale"), scaling.get("mscale_all_dim")

    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    quotient = magnitude(first) / magnitude(second) if first and second else magnitude(1.0)
    return quotient * scaling.get("attn_factor", 1.0)


def _longrope(rotary_dim: int, max_position: int, base: float, scaling: Mapping[str, Any]) -> list[Frequencies]:
    """Ding et al., LongRoPE (2024): factors per frequency, another list of them beyond the original length."""
    original = int(_entry(scaling, "original_max_position_embeddings"))
    lists = [_entry(scaling, name) for name in ("short_factor", "long_factor")]
    for name, factors in zip(("short_factor", "long_factor"), lists):
        if len(factors) != rotary_dim // 2:
            raise ValueError(f"get_rope: rope_scaling[{name!r}] must have {rotary_dim // 2} entries, "
                             f"got {len(factors)}")
    factor, scale = max_position / original, scaling.get("attention_factor")
    if scale is None:
        scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    scales = [scaling.get(name, scale) for name in ("short_mscale", "long_mscale")]
    return [Frequencies(plain(rotary_dim, base, factors), rows, each)
            for factors, rows, each in zip(lists, (original, max_position), scales)]


_KINDS = {"default": _default, "mrope": _default, "linear": _linear, "dynamic": _dynamic, "llama3": _llama3,
          "yarn": _yarn, "deepseek_yarn": _yarn, "longrope": _longrope, "su": _longrope}


def _entry(scaling: Mapping[str, Any], name: str) -> Any:
    if name not in scaling:
        raise ValueError(f"get_rope: rope_scaling must have an entry {name!r}, got {', '.join(map(repr, scaling))}")
    return scaling[name]
