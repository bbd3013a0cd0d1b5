# SPDX-License-Identifier: MIT
"""A token of each row of logits: greedy, random, mixed. Kernels: csrc/sampling/sample.hip."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Generator, Tensor

from aiter_like import check, dtypes
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.jit import compile_ops
from aiter_like.ops.common import elements, tune_shapes
from aiter_like.ops.sampling import parts

__all__ = ["greedy_sample", "mixed_sample", "mixed_sample_outer_exponential", "random_sample",
           "random_sample_outer_exponential"]

_OP = "sample"
_LEAST_TEMPERATURE = 1e-5


class SampleCall(NamedTuple):
    """One call of sample. Rows are evenly spaced.

    Attributes:
        temperatures: None: the largest logit of each row.
        exponentials: None: made by the kernel from the seeds.
        is_mixed: a temperature of 0 means the largest logit.
        lambd: rate of the exponentials that the kernel makes.
        epsilon: added to each exponential.
        seed, offset, seeds, offsets: of the random numbers, as exponential has them.
    """

    out: Annotated[Tensor, "rows", torch.int32]
    input: Annotated[Tensor, "rows columns", elements.FLOATS]
    temperatures: Annotated[Tensor | None, "rows", torch.float32] = None
    exponentials: Annotated[Tensor | None, "rows columns", torch.float32] = None
    is_mixed: bool = False
    lambd: float = 1.0
    epsilon: float = 1e-10
    seed: int = 0
    offset: int = 0
    seeds: Annotated[Tensor | None, "rows", torch.int64] = None
    offsets: Annotated[Tensor | None, "rows", torch.int64] = None


def sample_ref(call: SampleCall) -> None:
    """The race in torch, in float64 and in logarithms; writes `out`."""
    x = call.input.double()
    if call.temperatures is None:
        call.out.copy_(parts.best_column(x))
        return
    noise = call.exponentials
    if noise is None:
        noise = parts.exponentials(call, *x.shape, x.device) / call.lambd
    temperature = call.temperatures.double()[:, None]
    scale = (1 / temperature.clamp(min=_LEAST_TEMPERATURE)).clamp(min=2.0**-126)  # -inf must stay -inf
    score = x * scale - torch.log(noise.double() + call.epsilon)
    if call.is_mixed:
        score = torch.where(temperature == 0, x, score)
    call.out.copy_(parts.best_column(score))


@compile_ops("sampling/sample.hip", gen_func=parts.instance)
def _sample_hip(call: SampleCall) -> None: ...


def _check(call: SampleCall) -> object:
    parts.check_columns(_OP, "input", call.input)
    if call.exponentials is not None and call.temperatures is None:
        raise ValueError(f"{_OP}: exponentials must come with temperatures")
    check.real(_OP, "lambd", call.lambd, above=0.0)
    check.real(_OP, "eps", call.epsilon, low=0.0)
    parts.check_offset(_OP, call.offset)
    return SKIP if call.input.numel() == 0 else None


class SampleKey(NamedTuple):
    """The fields that a tuned row of sample is chosen by.

    Attributes:
        features: the exponentials: "made", "given", or "none" where the largest logits are asked for.
    """

    rows: int
    columns: int
    dtype: str
    features: str

    @classmethod
    def of(cls, call: SampleCall) -> SampleKey:
        features = "none" if call.temperatures is None else "made" if call.exponentials is None else "given"
        return cls(*call.input.shape, dtypes.name(call.input.dtype), features)

    def make(self, device: torch.device, seed: int, is_mixed: bool = False, offset: int = 0) -> SampleCall:
        x = tune_shapes.normal(device, seed, self.dtype)(self.rows, self.columns)
        call = SampleCall(torch.empty(self.rows, dtype=torch.int32, device=device), x)
        if self.features == "none":
            return call
        temperatures = torch.linspace(2.0, 0.0 if is_mixed else 1.0, self.rows, device=device)
        call = call._replace(temperatures=temperatures, is_mixed=is_mixed)
        if self.features == "made":
            return call._replace(seed=seed, offset=offset)
        generator = torch.Generator(device).manual_seed(seed)
        return call._replace(exponentials=torch.empty(x.shape, device=device).exponential_(generator=generator))

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[SampleKey]:
        return (cls(*size, model.dtype, features) for features in ("none", "made")
                for size in parts.logits(model, tokens))


_sample = Op(
    _OP, call=SampleCall, reference=sample_ref, check=_check, key=SampleKey, round_field="rows",
    # Whole rows, and rows that are cut into slices, of odd length.
    cases={"greedy, whole": SampleKey(4, 256, "bf16", "none"),
           "given, whole": (SampleKey(4, 256, "bf16", "given"), {"is_mixed": True}),
           "made, whole": (SampleKey(4, 256, "bf16", "made"), {"is_mixed": True, "offset": 3}),
           "greedy, slices": SampleKey(2, 20001, "bf16", "none"),
           "given, slices": (SampleKey(2, 20001, "bf16", "given"), {"is_mixed": True}),
           "made, slices": (SampleKey(2, 20001, "bf16", "made"), {"is_mixed": True, "offset": 3})},
    backends=(Backend("hip", _sample_hip, refusal=parts.refusal, space=parts.group_space),
              Backend("torch", sample_ref)))


def greedy_sample(out: Tensor, input: Tensor, *, backend: str | None = None) -> None:
    """The column of the largest logit of each row.

    `out[r] = argmax(input[r])`, the lowest column of equal ones.

    Args:
        out: [rows] int32, written.
        input: [rows, columns] bf16|fp16|fp32, rows contiguous, at any distance.

    Notes:
        A NaN never wins over a number; a row of NaNs gives column 0, and so does one of -inf. Each row is read once;
        the result does not depend on how many workgroups read it.
    """
    _sample.run(out, input, backend=backend)


def random_sample(out: Tensor, input: Tensor, temperatures: Tensor, lambd: float = 1.0,
                  generator: Generator | None = None, eps: float = 1e-10, *, seed: int | Tensor | None = None,
                  offset: int | Tensor | None = None, backend: str | None = None) -> None:
    """A token of each row, drawn with the probabilities softmax(input / temperature).

    `out[r] = argmax(softmax(input[r] / T[r]) / (E[r] + eps))`, E exponential numbers of rate `lambd`. Like
    `exponential`, the kernel makes them from seed and draw, and they are the same.

    Args:
        out: [rows] int32, written.
        input: [rows, columns] logits, bf16|fp16|fp32, rows contiguous, at any distance.
        temperatures: [rows] fp32; less than 1e-5 counts as 1e-5.

    Notes:
        A NaN is never drawn while its row has a number; +inf is drawn always. A temperature of NaN gives column 0, an
        infinite one equal chances to all but -inf. The result is a function of seed, draw and logits alone, on any
        grid: with seeds of their own a request's token does not depend on its place in the batch. Nothing is copied to
        the host; a captured graph needs `seed` and `offset` as tensors to draw anew when it is replayed.

    Source: AITER's `random_sample`; Philox4x32-10, Salmon et al. (2011).
    """
    _run(out, input, temperatures, False, lambd, generator, eps, seed, offset, backend)


def mixed_sample(out: Tensor, input: Tensor, temperature: Tensor, lambd: float = 1.0,
                 generator: Generator | None = None, eps: float = 1e-10, *, seed: int | Tensor | None = None,
                 offset: int | Tensor | None = None, backend: str | None = None) -> None:
    """A token of each row, that of `greedy_sample` where its temperature is 0. Like `random_sample` otherwise.

    Args:
        temperature: [rows] fp32; 0: greedy; any other below 1e-5 counts as 1e-5.
    """
    _run(out, input, temperature, True, lambd, generator, eps, seed, offset, backend)


def random_sample_outer_exponential(out: Tensor, input: Tensor, exponentials: Tensor, temperatures: Tensor,
                                    eps: float = 1e-10, *, backend: str | None = None) -> None:
    """A token of each row, drawn with exponential numbers that the caller made. Like `random_sample` otherwise.

    Args:
        exponentials: [rows, columns] fp32, ≥ 0, rows contiguous, at any distance (0: one row for all).

    Notes:
        A NaN is never drawn while its row has a number; +inf is drawn always. A temperature of NaN gives column 0, an
        infinite one equal chances to all but -inf.
    """
    _sample.run(out, input, temperatures, exponentials, epsilon=eps, backend=backend)


def mixed_sample_outer_exponential(out: Tensor, input: Tensor, exponentials: Tensor, temperature: Tensor,
                                   eps: float = 1e-10, *, backend: str | None = None) -> None:
    """A token of each row, that of `greedy_sample` where its temperature is 0. Like `random_sample_outer_exponential`.

    Args:
        temperature: [rows] fp32; 0: greedy; any other below 1e-5 counts as 1e-5.
    """
    _sample.run(out, input, temperature, exponentials, is_mixed=True, epsilon=eps, backend=backend)


def _run(out: Tensor, input: Tensor, temperatures: Tensor, is_mixed: bool, lambd: float, generator: Generator | None,
         eps: float, seed: int | Tensor | None, offset: int | Tensor | None, backend: str | None) -> None:
    for name, value in (("input", input), ("temperatures", temperatures)):
        check.tensor(_OP, name, value)
    fields = parts.seeds(_OP, seed, offset, generator, input.device, input.shape[0] if input.ndim else 0)
    _sample.run(out, input, temperatures, is_mixed=is_mixed, lambd=lambd, epsilon=eps, backend=backend, **fields)


_sample.public += [greedy_sample, random_sample, mixed_sample, random_sample_outer_exponential,
                   mixed_sample_outer_exponential]
