# SPDX-License-Identifier: MIT
"""Checks the contents of tensors of integers where the host can look at them without waiting: starts of sequences,
lengths, pages. Kernels keep within their tensors whatever those on a GPU hold, but an error is better where it is free.
Public functions ask before anything is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from aiter_like import check

INTEGERS = (torch.int32, torch.int64)


def as_int32(values: Tensor) -> Tensor:
    """int64 as int32; what 32 bits do not hold becomes the nearest that they do, and so is no page or length either."""
    return (values.clamp(-check.INT32_MAX - 1, check.INT32_MAX) if values.dtype == torch.int64 else values).int()


def are_on_host(*tensors: Any, rank: int = 1) -> bool:
    """Whether all are tensors of integers and of `rank` dimensions whose values can be looked at. Another kind is what
    the operator refuses.
    """
    return all(check.is_on_host(each) and each.dtype in INTEGERS and each.ndim == rank for each in tensors)


def check_values(op: str, name: str, values: Tensor, low: int, high: int, what: str = "hold numbers") -> None:
    """All are between `low` and `high`."""
    if not check.is_on_host(values) or values.dtype not in INTEGERS:
        return
    wrong = values[(values < low) | (values > high)]
    if wrong.numel():
        raise ValueError(f"{op}: {name} must {what} from {low} to {high}, got {wrong[0].item()}")


def check_distinct(op: str, name: str, values: Tensor, count: int, what: str, besides: int = -1) -> None:
    """Those from 0 to `count` - 1 differ, but for `besides`: two that write `what` at once would leave anything there.
    """
    if not check.is_on_host(values) or values.dtype not in INTEGERS:
        return
    found, times = values[(values >= 0) & (values < count) & (values != besides)].unique(return_counts=True)
    if (twice := found[times > 1]).numel():
        raise ValueError(f"{op}: {name} must name each {what} once at most, got {twice[0].item()} more than once")


def check_lengths(op: str, name: str, starts: Tensor, total: int, longest: int | None, bound: str = "") -> None:
    """Cumulative lengths: from 0 on, never falling, within the tensor and its longest sequence, which is the argument
    `bound`, of the queries or keys that `name` ends with where it is not given.
    """
    check.sequence_starts(op, name, starts)
    if not are_on_host(starts):
        return
    values = starts.tolist()
    lengths = [end - start for start, end in zip(values, values[1:])]
    if not values or values[0] != 0 or values[-1] > total or min(lengths, default=0) < 0:
        raise ValueError(f"{op}: {name} must start at 0, never fall and end at {total} at most, got {_short(values)}")
    if isinstance(longest, int) and max(lengths, default=0) > longest:
        raise ValueError(f"{op}: {bound or 'max_seqlen_' + name[-1]} must be at least {max(lengths)}, the longest "
                         f"sequence in {name}, got {longest}")


def check_starts(op: str, name: str, starts: Tensor, total: int, what: str) -> None:
    """Starts from 0 or more, which never fall, of ranges within `what`, of which there are `total`."""
    check.sequence_starts(op, name, starts)
    if not are_on_host(starts) or not len(starts):
        return
    if starts[0] < 0 or starts[-1] > total or (starts[1:] < starts[:-1]).any():
        raise ValueError(f"{op}: {name} must rise from 0 or more to at most the {total} {what}, got "
                         f"{_short(starts.tolist())}")


def _short(values: list[int]) -> str:
    return str(values if len(values) <= 12 else [*values[:5], "…", *values[-5:]])


def check_pages(op: str, table: Tensor, lengths: Tensor, k: Tensor, longest: int | None,
                names: Sequence[str] = ("block_table", "max_seqlen_k")) -> None:
    """Lengths and pages are within the table and the cache.

    Args:
        table: [batch, pages].
        lengths: [batch].
        k: [num_pages, page_size, …].
        longest: not less than the longest; None: as long as the table.
        names: of `table` and `longest`.
    """
    if not (are_on_host(table, rank=2) and are_on_host(lengths) and lengths.shape == table.shape[:1] and k.shape[1]
            and (longest is None or isinstance(longest, int))):
        return  # the operator says what else does not fit
    most = table.shape[1] * k.shape[1]
    said = f"the pages in {names[0]} have"
    if longest is not None:
        most, said = min(most, longest), f"{names[1]} and {said}"
    if ((lengths < 0) | (lengths > most)).any():
        raise ValueError(f"{op}: the keys of a sequence must be between 0 and {most}, as {said} it, got "
                         f"{_short(lengths.tolist())}")
    used = table[torch.arange(table.shape[1], device="cpu") * k.shape[1] < lengths[:, None]]
    check_values(op, names[0], used, 0, k.shape[0] - 1, "name pages")


def check_page_list(op: str, starts: Tensor, pages: Tensor, last: Tensor | None, k: Tensor, longest: int | None,
                    names: Sequence[str] = ("kv_indptr", "kv_page_indices", "kv_last_page_lens", "max_seqlen_k"),
                    has_holes: bool = False) -> None:
    """Pages that are listed one sequence after the other are within their list and the cache.

    Args:
        starts: [batch + 1]: where those of a sequence begin.
        pages: [entries].
        last: [batch]: keys in the last page of a sequence that has pages; None: all.
        k: [num_pages, page_size, …].
        longest: not less than the longest sequence of keys; None: as long as the list.
        names: of `starts`, `pages`, `last` and `longest`.
        has_holes: a page outside the cache has no keys.
    """
    check_lengths(op, names[0], starts, len(pages), None)
    if not are_on_host(starts, pages) or not len(starts):
        return
    if not has_holes:
        check_values(op, names[1], pages[:starts[-1]], 0, k.shape[0] - 1, "name pages")
    counts = starts.diff().long()
    keys = counts * k.shape[1]
    if last is not None:
        if not are_on_host(last) or last.shape != counts.shape:
            return
        check_values(op, names[2], last[counts > 0], 0, k.shape[1], "hold numbers of keys")
        keys = (keys - k.shape[1] + last).where(counts > 0, 0)
    if isinstance(longest, int) and keys.numel() and keys.max() > longest:
        raise ValueError(f"{op}: {names[3]} must be at least {keys.max()}, the keys of the longest sequence, got "
                         f"{longest}")
