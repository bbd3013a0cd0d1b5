# SPDX-License-Identifier: MIT
"""What an operator declares so that it can be tuned: `Op(..., tuning=Tuning(...))`. Read by the tuner and `bench`.

An operator gets there in three steps, of which rms_norm (ops/norm/rms_norm.py) is the model:
1. `Tuning(case=fn)`: from a tune key alone, the arguments of a call with that key. Then `aiter-like tune` and
   `aiter-like bench` work, choosing between its backends as they are.
2. `Backend(..., space=fn)`: the values of its parameters that are worth a trial, as dicts that a tuned row can hold;
   `Backend(..., cost=fn)` where most of them can be told hopeless without a trial.
3. `Tuning(traffic=fn)` where tensors are not read or written just once, or arithmetic counts;
   `Tuning(shapes=fn)` for the keys that it has in a model (configs/models/); `Tuning(smaller=fn)` where less work for a
   simulator is more than fewer rows, tokens or other pieces (tuning/candidates.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor


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
