# SPDX-License-Identifier: MIT
"""The key that a tuned row is chosen by, and what else the tuner and `bench` need: `Op(..., key=MyOpKey)`.

`MyOpKey` is a NamedTuple: what makes one call slower than another, as text and numbers, in the order of the columns of
tuned_csv/. rms_norm (ops/norm/rms_norm.py) is the model. It has
- `of(call)`, a class method: the key of a call;
- `make(device, seed, **options)`: a call with that key, outputs included, on `device`, with random data that `seed`
  determines, made there (a shape of 1 GB is common); `options` say what cases have beyond a key;
- `of_model(model, tp, tokens)`, a class method, if models have such calls: the keys of one forward pass with that many
  tokens on one of `tp` GPUs (configs/models/, models.Model);
- `smaller()`, if less work for a simulator is more than fewer rows, tokens or other pieces (tuning/candidates.py): keys
  of calls that run the same kernels on less work, the mildest first.
Then `aiter-like tune` and `aiter-like bench` work, choosing between its backends as they are. `Backend(..., space=fn)`
gives the values of its parameters that are worth a trial, as dicts that a tuned row can hold; `Backend(..., cost=fn)`
where most of them can be told hopeless without one; `Op(..., traffic=fn)` where tensors are not read or written just
once, or arithmetic counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.dispatch.surroundings import with_defaults


@dataclass(frozen=True)
class Tuning:
    """The declaration.

    Attributes:
        case: of (key, device, seed): the positional arguments of a call whose tune key is `key`, outputs included,
            on `device`, with random data that `seed` determines, made there (a shape of 1 GB is common).
        traffic: of (*args): (bytes, flops) that the operation needs; default: each tensor argument once, no flops.
        shapes: of (model, tp, tokens): the keys of one forward pass with that many tokens on one of `tp` GPUs
            (models.Model); empty where the model has no such operator.
        smaller: of (key): keys of calls that run the same kernels on less work, the mildest first: what is judged in
            place of a call that the simulator would take too long for. Default: fewer pieces (tuning/candidates.py).
        scratch: names of written arguments that are memory for the kernels, and no result.
    """

    case: Callable[..., tuple]
    traffic: Callable[..., tuple[int, int]] | None = None
    shapes: Callable[..., Iterable[Mapping[str, Any]]] | None = None
    smaller: Callable[..., Iterable[Mapping[str, Any]]] | None = None
    scratch: tuple[str, ...] = ()

    def needs(self, args: tuple) -> tuple[int, int]:
        """(bytes, flops) of a call."""
        if self.traffic is not None:
            return self.traffic(*args)
        return sum(arg.numel() * arg.element_size() for arg in args if isinstance(arg, Tensor)), 0


def columns_of(key: Any) -> dict[str, int | str]:
    """A key as tuned rows have it: flags are 0 or 1."""
    return {name: int(value) if isinstance(value, bool) else value for name, value in key._asdict().items()}


def tuning_of(key: type, traffic: Callable[..., tuple[int, int]] | None, scratch: Sequence[str]) -> Tuning:
    """The methods of a key as functions of dicts, which tuned rows and the tuner have."""

    @with_defaults
    def case(named: Mapping[str, Any], device: torch.device, seed: int) -> tuple:
        return key(**named).make(device, seed)

    def shapes(model: Any, tp: int, tokens: int) -> Iterable[Mapping[str, Any]]:
        return map(columns_of, key.of_model(model, tp, tokens))

    def smaller(named: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
        return map(columns_of, key(**named).smaller())

    return Tuning(case, traffic, shapes if getattr(key, "of_model", None) else None,
                  smaller if hasattr(key, "smaller") else None, tuple(scratch))


def calls_of(cases: Mapping[str, Any]) -> Callable[[torch.device], dict[str, tuple]]:
    """Cases that are data, as a function of the device: name → key, or (key, options of its `make`). A dtype "fp8" of
    such a key is the device's own."""

    def calls(device: torch.device) -> dict[str, tuple]:
        fp8, made = dtypes.name(dtypes.fp8_of(target_of(device).arch)), {}
        for name, case in cases.items():
            key, options = (case, {}) if hasattr(case, "make") else case
            made[name] = type(key)(*(fp8 if value == "fp8" else value for value in key)).make(device, 0, **options)
        return made

    return calls
