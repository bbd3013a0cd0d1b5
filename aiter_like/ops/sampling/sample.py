# SPDX-License-Identifier: MIT
"""A token of each row of logits: greedy, random, mixed. Kernels: csrc/sampling/sample.hip."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.dispatch.tuning import Tuning
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, tune_shapes
from aiter_like.ops.sampling import parts

__all__ = ["greedy_sample", "mixed_sample", "mixed_sample_outer_exponential", "random_sample",
           "random_sample_outer_exponential"]

_OP = "sample"
_LEAST_TEMPERATURE = 1e-5


class SampleCall(NamedTuple):
    """One call of sample.

    Attributes:
        out: [rows] int32, written.
        input: [rows, columns] logits, bf16|fp16|fp32, rows evenly spaced.
        temperatures: [rows] fp32; None: the largest logit of each row.
        exponentials: [rows, columns] fp32, rows evenly spaced; None: made by the kernel from the seeds.
        is_mixed: a temperature of 0 means the largest logit.
        lambd: rate of the exponentials that the kernel makes.
        epsilon: added to each exponential.
        seed, offset: of the random numbers of all rows: row r takes draw offset + r.
        seeds, offsets: [rows] int64: of each row by itself, which then takes draw offsets[r].
    """

    out: Tensor
    input: Tensor
    temperatures: Tensor | None = None
    exponentials: Tensor | None = None
    is_mixed: bool = False
    lambd: float = 1.0
    epsilon: float = 1e-10
    seed: int = 0
    offset: int = 0
    seeds: Tensor | None = None
    offsets: Tensor | None = None


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


def _instance(call: SampleCall, *, groups: int = 0) -> Instance:
    dtype = call.input.dtype
    return parts.instance((elements.short(dtype),), groups, {"ELEMENT": elements.CPP[dtype]})


@compile_ops("sampling/sample.hip", gen_func=_instance)
def _sample_hip(call: SampleCall) -> None: ...


def _check(call: SampleCall) -> object:
    input = call.input
    parts.check_rows(_OP, "input", input)
    check.tensor(_OP, "out", call.out, dtypes=(torch.int32,), shape=input.shape[:1], device=input.device)
    parts.check_per_row(_OP, "temperatures", call.temperatures, input, (torch.float32,))
    if call.exponentials is not None:
        check.tensor(_OP, "exponentials", call.exponentials, dtypes=(torch.float32,), shape=input.shape,
                     device=input.device)
        if call.temperatures is None:
            raise ValueError(f"{_OP}: exponentials must come with temperatures")
    check.flag(_OP, "is_mixed", call.is_mixed)
    check.real(_OP, "lambd", call.lambd, above=0.0)
    check.real(_OP, "eps", call.epsilon, low=0.0)
    parts.check_seeds(_OP, call, input)
    return SKIP if input.numel() == 0 else None


def _refusal(target: Target, call: SampleCall) -> str | None:
    return parts.refusal(input=call.input)


def _tune_key(call: SampleCall) -> dict[str, int | str]:
    rows, columns = call.input.shape
    features = "none" if call.temperatures is None else "made" if call.exponentials is None else "given"
    return {"rows": rows, "columns": columns, "dtype": dtypes.name(call.input.dtype), "features": features}


def _hip_space(target: Target, call: SampleCall) -> list[dict[str, int]]:
    return parts.group_space(target, call.input)


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> SampleCall:
    rows = key["rows"]
    x = tune_shapes.normal(device, seed, key["dtype"])(rows, key["columns"])
    out = torch.empty(rows, dtype=torch.int32, device=device)
    if key["features"] == "none":
        return SampleCall(out, x)
    ones = torch.ones(rows, device=device)
    if key["features"] == "made":
        return SampleCall(out, x, ones, seed=seed)
    noise = torch.empty(x.shape, device=device).exponential_(generator=torch.Generator(device).manual_seed(seed))
    return SampleCall(out, x, ones, noise)


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[Mapping[str, Any]]:
    for features in ("none", "made"):
        yield from parts.logit_keys(model, tokens, dtype=model.dtype, features=features)


def _cases(device: torch.device) -> dict[str, SampleCall]:
    """Greedy, random and mixed; whole rows, and rows that are cut into slices, of odd length."""
    random = torch.Generator().manual_seed(0)
    calls = {}
    for name, rows, columns in (("whole", 4, 256), ("slices", 2, 20001)):
        x = torch.randn(rows, columns, generator=random).bfloat16().to(device)
        noise = torch.empty(rows, columns).exponential_(generator=random).to(device)
        temperatures = torch.tensor([0.0, 1.0, 0.5, 2.0][:rows], device=device)
        out = torch.empty(rows, dtype=torch.int32, device=device)
        calls[f"greedy, {name}"] = SampleCall(out, x)
        calls[f"given, {name}"] = SampleCall(out, x, temperatures, noise, is_mixed=True)
        calls[f"made, {name}"] = SampleCall(out, x, temperatures, is_mixed=True, seed=7, offset=3)
    return calls


_sample = Op(
    _OP, call=SampleCall, reference=sample_ref, check=_check, tune_key=_tune_key,
    tune_fields=("rows", "columns", "dtype", "features"), round_field="rows", cases=_cases,
    tuning=Tuning(_tune_case, shapes=_tune_shapes),
    backends=(Backend("hip", _sample_hip, refusal=_refusal, space=_hip_space), Backend("torch", sample_ref)))


def greedy_sample(out: Tensor, input: Tensor, *, backend: str | None = None) -> None:
    """The column of the largest logit of each row.

    `out[r] = argmax(input[r])`, the lowest column of equal ones.

    Args:
        out: [rows] int32, written.
        input: [rows, columns] bf16|fp16|fp32, rows contiguous, at any distance.
        backend: "hip" or "torch" instead of the automatic choice.

    Returns:
        Nothing; `out` is written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        A NaN never wins over a number; a row of NaNs gives column 0, and so does one of -inf. Each row is read once;
        the result does not depend on how many workgroups read it. Can be captured in a graph.

    Source: AITER's `greedy_sample`.
    """
    _sample.run(out, input, backend=backend)


def random_sample(out: Tensor, input: Tensor, temperatures: Tensor, lambd: float = 1.0,
                  generator: Generator | None = None, eps: float = 1e-10, *, seed: int | Tensor | None = None,
                  offset: int | Tensor | None = None, backend: str | None = None) -> None:
    """A token of each row, drawn with the probabilities softmax(input / temperature).

    `out[r] = argmax(softmax(input[r] / T[r]) / (E[r] + eps))`, E exponential numbers of rate `lambd`, made by the
    kernel: those that `exponential` gives for the same seed.

    Args:
        out: [rows] int32, written.
        input: [rows, columns] logits, bf16|fp16|fp32, rows contiguous, at any distance.
        temperatures: [rows] fp32; less than 1e-5 counts as 1e-5.
        lambd: rate of the exponentials, > 0.
        generator: of torch, whose seed and offset are taken where `seed` is None; default: the device's.
        eps: added to the exponentials, ≥ 0.
        seed: of all rows; or [rows] int64, a seed of each.
        offset: number of the draw of row 0, row r takes draw offset + r; or [rows] int64. With seeds of their own all
            rows take draw `offset`: a request's token then does not depend on its place in the batch. Default: 0.
        backend: "hip" or "torch" instead of the automatic choice.

    Returns:
        Nothing; `out` is written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or values do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        A NaN is never drawn while its row has a number; +inf is drawn always. A temperature of NaN gives column 0, an
        infinite one equal chances to all but -inf. The result is a function of seed, draw
        and logits alone, on any grid. Nothing is copied to the host; a captured graph needs `seed` and `offset` as
        tensors to draw anew when it is replayed.

    Source: AITER's `random_sample`; Philox4x32-10, Salmon et al. (2011).
    """
    _run(out, input, temperatures, False, lambd, generator, eps, seed, offset, backend)


def mixed_sample(out: Tensor, input: Tensor, temperature: Tensor, lambd: float = 1.0,
                 generator: Generator | None = None, eps: float = 1e-10, *, seed: int | Tensor | None = None,
                 offset: int | Tensor | None = None, backend: str | None = None) -> None:
    """`random_sample`, but a row whose temperature is 0 gives the column of its largest logit.

    `out[r] = argmax(input[r])` where `T[r] = 0`, else `argmax(softmax(input[r] / T[r]) / (E[r] + eps))`.

    Args:
        out: [rows] int32, written.
        input: [rows, columns] logits, bf16|fp16|fp32, rows contiguous, at any distance.
        temperature: [rows] fp32; 0: greedy; any other below 1e-5 counts as 1e-5.
        lambd: rate of the exponentials, > 0.
        generator: of torch, whose seed and offset are taken where `seed` is None; default: the device's.
        eps: added to the exponentials, ≥ 0.
        seed: of all rows; or [rows] int64, a seed of each.
        offset: number of the draw, as `random_sample` has it.
        backend: "hip" or "torch" instead of the automatic choice.

    Returns:
        Nothing; `out` is written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or values do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        As `random_sample`; a greedy row is as `greedy_sample` gives it.

    Source: AITER's `mixed_sample`.
    """
    _run(out, input, temperature, True, lambd, generator, eps, seed, offset, backend)


def random_sample_outer_exponential(out: Tensor, input: Tensor, exponentials: Tensor, temperatures: Tensor,
                                    eps: float = 1e-10, *, backend: str | None = None) -> None:
    """`random_sample` with exponential numbers that the caller made.

    `out[r] = argmax(softmax(input[r] / T[r]) / (exponentials[r] + eps))`.

    Args:
        out: [rows] int32, written.
        input: [rows, columns] logits, bf16|fp16|fp32, rows contiguous, at any distance.
        exponentials: [rows, columns] fp32, ≥ 0, rows contiguous, at any distance (0: one row for all).
        temperatures: [rows] fp32; less than 1e-5 counts as 1e-5.
        eps: added to the exponentials, ≥ 0.
        backend: "hip" or "torch" instead of the automatic choice.

    Returns:
        Nothing; `out` is written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or values do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        As `random_sample`. Can be captured in a graph.

    Source: AITER's `random_sample_outer_exponential`.
    """
    _sample.run(out, input, temperatures, exponentials, epsilon=eps, backend=backend)


def mixed_sample_outer_exponential(out: Tensor, input: Tensor, exponentials: Tensor, temperature: Tensor,
                                   eps: float = 1e-10, *, backend: str | None = None) -> None:
    """`mixed_sample` with exponential numbers that the caller made.

    `out[r] = argmax(input[r])` where `T[r] = 0`, else `argmax(softmax(input[r] / T[r]) / (exponentials[r] + eps))`.

    Args:
        out: [rows] int32, written.
        input: [rows, columns] logits, bf16|fp16|fp32, rows contiguous, at any distance.
        exponentials: [rows, columns] fp32, ≥ 0, rows contiguous, at any distance (0: one row for all).
        temperature: [rows] fp32; 0: greedy; any other below 1e-5 counts as 1e-5.
        eps: added to the exponentials, ≥ 0.
        backend: "hip" or "torch" instead of the automatic choice.

    Returns:
        Nothing; `out` is written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or values do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        As `mixed_sample`. Can be captured in a graph.

    Source: AITER's `mixed_sample_outer_exponential`.
    """
    _sample.run(out, input, temperature, exponentials, is_mixed=True, epsilon=eps, backend=backend)


def _run(out: Tensor, input: Tensor, temperatures: Tensor, is_mixed: bool, lambd: float, generator: Generator | None,
         eps: float, seed: int | Tensor | None, offset: int | Tensor | None, backend: str | None) -> None:
    for name, value in (("out", out), ("input", input), ("temperatures", temperatures)):
        check.tensor(_OP, name, value)
    fields = parts.seeds(_OP, seed, offset, generator, input.device, input.shape[0] if input.ndim else 0)
    _sample.run(out, input, temperatures, is_mixed=is_mixed, lambd=lambd, epsilon=eps, backend=backend, **fields)


_sample.public += [greedy_sample, random_sample, mixed_sample, random_sample_outer_exponential,
                   mixed_sample_outer_exponential]
