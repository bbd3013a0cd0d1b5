# SPDX-License-Identifier: MIT
"""Shared by the samplers: arguments with an element per row, seeds and draws, their random numbers in torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from aiter_like import check
from aiter_like.device import Target
from aiter_like.jit import Instance
from aiter_like.ops.common import elements, philox

MOST_ROWS = 65535
"""Most rows of a call: the second dimension of a launch on NVIDIA's GPUs."""

_MASK = 0xFFFFFFFF
_LEAST_BYTES, _MOST_REQUESTS = 8192, 1024


def check_columns(op: str, name: str, matrix: Tensor) -> None:
    """There is at least one column."""
    if matrix.shape[-1] == 0:
        raise ValueError(f"{op}: {name} must have at least one column, got shape {tuple(matrix.shape)}")


def check_per_row(op: str, rows: int, **tensors: Tensor | None) -> None:
    """Those that are there have an element, or a row, for each of `rows`: where annotations cannot say whose they are.
    """
    for name, tensor in tensors.items():
        if tensor is not None:
            check.tensor(op, name, tensor, shape=(rows, *tensor.shape[1:]))


def check_offset(op: str, offset: int) -> None:
    """Draws are numbered with 63 bits."""
    check.integer(op, "offset", offset, low=0, high=2**63 - 1)


def matrix_of(call: Any) -> tuple[str, Tensor]:
    """Name and value of the matrix whose rows a call is about."""
    name = next(name for name in ("input", "probs", "logits", "out") if name in call._fields)
    return name, getattr(call, name)


def too_many_rows(rows: int) -> str | None:
    """Why a launch cannot take so many rows."""
    return f"at most {MOST_ROWS} rows fit one launch, got {rows}" if rows > MOST_ROWS else None


def refusal(target: Target, call: Any) -> str | None:
    """Says why the kernels do not take a call's matrix."""
    name, matrix = matrix_of(call)
    rows, columns = matrix.shape
    if columns >= 2**31 - 4:
        return f"rows of less than {2**31 - 4} elements, got {columns} in {name}"
    if name == "logits" and rows > 1 and matrix.stride(0) < columns:  # logits are read and written
        return "the rows of logits overlap"
    return too_many_rows(rows)


def instance(call: Any, *, groups: int = 0) -> Instance:
    """A build of a kernel of rows for the dtype of a call's matrix."""
    return build_of(groups, ELEMENT=matrix_of(call)[1].dtype)


def build_of(groups: int, **elements_of: torch.dtype) -> Instance:
    """A build of a kernel of rows: `groups` workgroups share a row; 0: as many as suit the call and the device.

    Args:
        elements_of: macro → dtype of the elements that it names.
    """
    name = [*map(elements.short, elements_of.values()), *([f"g{groups}"] if groups else [])]
    types = {macro: elements.CPP[dtype] for macro, dtype in elements_of.items()}
    return Instance("_".join(name), {**types, "GROUPS": groups})


def group_space(target: Target, call: Any) -> list[dict[str, int]]:
    """A hip backend's `space`: workgroups that share a row, none with less than 8 KB; on sm_90 they are a cluster."""
    _, matrix = matrix_of(call)
    row_bytes = matrix.shape[1] * matrix.element_size()
    most = 8 if target.platform == "cuda" else 32
    counts = (count for count in (1, 2, 4, 8, 16, 32) if count <= most)
    return [{"groups": count} for count in counts if count == 1 or row_bytes >= count * _LEAST_BYTES]


def logits(model: Any, tokens: int) -> Iterator[tuple[int, int]]:
    """(rows, columns) of a decode step's logits; longer passes are prefills, whose last rows alone are sampled."""
    if tokens <= _MOST_REQUESTS:
        yield tokens, model.vocab_size


def seeds(op: str, seed: int | Tensor | None, offset: int | Tensor | None, generator: Generator | None,
          device: torch.device, rows: int) -> dict[str, Any]:
    """The fields `seed`, `offset`, `seeds` and `offsets` of a call, from what a public function was given.

    Without a seed they come from a generator of torch: its seed and its offset, which is moved on by a draw for each
    row; nothing is copied from the device. A generator of the CPU has no offset: its next number is the seed.
    """
    fields: dict[str, Any] = {"seed": 0, "offset": 0, "seeds": None, "offsets": None}
    if seed is None:
        if offset is not None:
            raise ValueError(f"{op}: offset must not be given without a seed")
        fields["seed"], fields["offset"] = _from_generator(generator, device, rows)
        return fields
    for name, value in (("seed", seed), ("offset", 0 if offset is None else offset)):
        fields[f"{name}s" if isinstance(value, Tensor) else name] = value
    return fields


def _from_generator(generator: Generator | None, device: torch.device, rows: int) -> tuple[int, int]:
    if generator is None and device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generator = torch.cuda.default_generators[index]
    if generator is not None and generator.device.type == "cuda":
        offset = generator.get_offset()
        generator.set_offset(offset + (rows + 3) // 4 * 4)
        seed = generator.initial_seed()
        return (seed - 2**64 if seed >= 2**63 else seed), offset
    return int(torch.randint(2**62, (1,), generator=generator, device="cpu")), 0


def words(call: Any, rows: int, columns: int, device: torch.device) -> Tensor:
    """The random words of a call, int64 [rows, columns], by the rule of csrc/sampling/draws.h."""
    row = torch.arange(rows, device=device)
    seed = torch.full_like(row, call.seed) if call.seeds is None else call.seeds
    draw = torch.full_like(row, call.offset) if call.offsets is None else call.offsets
    if call.seeds is None:
        draw = draw + row
    quads = torch.arange((columns + 3) // 4, device=device)[None]
    zero = torch.zeros_like(quads)
    found = philox.words(seed[:, None], quads, (draw & _MASK)[:, None], zero, zero)
    return found.flatten(1)[:, :columns]


def exponentials(call: Any, rows: int, columns: int, device: torch.device) -> Tensor:
    """Exponentials of rate 1, float64 [rows, columns]: -ln(1 - u) of u = (word + 1/2) / 2^32."""
    return -torch.log1p(-(words(call, rows, columns, device).double() + 0.5) * 2.0**-32)


def share(total: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """floor(number / 2^64 · total), int64, of number = high · 2^32 + low, as csrc/sampling/draws.h has it."""
    above, below = torch.zeros_like(total), torch.zeros_like(total)  # above · 2^32 + below: of the digits so far
    for digit in (low & 0xFFFF, low >> 16, high & 0xFFFF, high >> 16):
        below = below + (total & _MASK) * digit
        above = above + (total >> 32) * digit + (below >> 32)
        below = (below & _MASK) >> 16 | (above & 0xFFFF) << 16
        above = above >> 16
    return above << 32 | below


def best_column(score: Tensor) -> Tensor:
    """The column of each row's largest element, the lowest of equal ones; a NaN loses to every number."""
    low = torch.where(score.isnan(), -torch.inf, score)
    is_best = (low == low.amax(-1, keepdim=True)) & ~(score.isnan() & (~score.isnan()).any(-1, keepdim=True))
    return is_best.to(torch.uint8).argmax(-1).to(torch.int32)
