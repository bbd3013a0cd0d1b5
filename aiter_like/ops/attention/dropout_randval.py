# SPDX-License-Identifier: MIT
"""dropout_randval: the bytes that attention's dropout drew for each score. They follow from seed, offset and position
alone, so that a launch of its own writes them and the kernels of attention need not.

Kernels: csrc/attention/dropout_randval.hip, ops/attention/triton/dropout_randval.py. Called by flash_attn.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.jit import compile_ops
from aiter_like.ops.common import philox
from aiter_like.ops.common.contents import check_lengths

__all__ = ["dropout_randval"]

_OP = "dropout_randval"
_MOST_HEADS = 2**16 - 1  # A grid's second dimension has no more.
_MOST_ROWS = 2**26 - 4  # A grid's first dimension has less than 2³² work-items, of which a row has 64.
_MOST_AT_ONCE = 2**22  # bytes that the reference has its words of


class DropoutRandvalCall(NamedTuple):
    """One call of dropout_randval: its arguments in the order of the function that dropout_randval.hip exports.

    Attributes:
        out: [batch, num_heads, seqlen_q, seqlen_k], of packed sequences [num_heads, total_q, seqlen_k].
        rng_state: seed and offset.
        cu_seqlens_q: where packed sequences begin; None: `out` is dense.
        dropout_p: share of the scores that is dropped.
    """

    out: Annotated[Tensor, "*batch heads rows keys", torch.uint8]
    rng_state: Annotated[Tensor, "2", torch.int64]
    cu_seqlens_q: Annotated[Tensor | None, "starts", torch.int32] = None
    dropout_p: float = 0.0

    @property
    def num_heads(self) -> int:
        return self.out.shape[-3]

    @property
    def num_rows(self) -> int:
        """Rows of a head, of all sequences."""
        return self.out.shape[-2] * (1 if self.cu_seqlens_q is not None else self.out.shape[0])


def last_kept(dropout_p: float) -> int:
    """The largest byte of a score that is kept, as AITER's tests reckon it."""
    return math.floor(255.0 * (1 - dropout_p))


def dropout_randval_ref(call: DropoutRandvalCall) -> None:
    """The bytes in torch; seed, offset and lengths are read on the host."""
    seed, offset = call.rng_state.tolist()
    columns, heads = call.out.shape[-1], torch.arange(call.num_heads, device=call.out.device)
    quads = torch.arange((columns + 3) // 4, device=call.out.device)
    for sequence, own in _sequences(call):
        step = max(_MOST_AT_ONCE // max(call.num_heads * columns, 1), 1)
        for first in range(0, own.shape[1], step):
            rows = torch.arange(first, min(first + step, own.shape[1]), device=call.out.device)
            counters = (quads, rows[:, None], (sequence * call.num_heads + heads)[:, None, None],
                        torch.full_like(quads, offset & 0xFFFFFFFF))
            words = philox.words(seed, *counters).flatten(-2)[..., :columns]
            own[:, first:first + step] = _byte_of(words, call.dropout_p).to(torch.uint8)


def _byte_of(words: Tensor, dropout_p: float) -> Tensor:
    """255 minus a word's upper byte, moved to the right side of `last_kept` where the two scales differ."""
    byte, last = 255 - (words >> 24), last_kept(dropout_p)
    return torch.where(words >> 8 >= philox.threshold(dropout_p), byte.clamp(max=last), byte.clamp(min=last + 1))


def _sequences(call: DropoutRandvalCall) -> Iterator[tuple[int, Tensor]]:
    """(number, its part [num_heads, rows, columns] of `out`) of each sequence; rows of none become 0."""
    if call.cu_seqlens_q is None:
        yield from enumerate(call.out)
        return
    call.out.zero_()
    starts = list(itertools.accumulate((min(max(start, 0), call.num_rows) for start in call.cu_seqlens_q.tolist()),
                                       max))
    yield from ((index, call.out[:, slice(*pair)]) for index, pair in enumerate(itertools.pairwise(starts)))


@compile_ops("attention/dropout_randval.hip")
def _dropout_randval_hip(call: DropoutRandvalCall) -> None: ...


def _check(call: DropoutRandvalCall) -> object:
    check.tensor(_OP, "out", call.out, rank=4 if call.cu_seqlens_q is None else 3)
    check.real(_OP, "dropout_p", call.dropout_p, low=0.0)
    if call.dropout_p >= 1:
        raise ValueError(f"{_OP}: dropout_p must be below 1, got {call.dropout_p}")
    if call.cu_seqlens_q is not None and call.cu_seqlens_q.shape[0] == 0:
        raise ValueError(f"{_OP}: cu_seqlens_q must have one element more than there are sequences, got none")
    return SKIP if call.out.numel() == 0 else None


def _refusal(target: Target, call: DropoutRandvalCall) -> str | None:
    for name, size, limit in (("heads", call.num_heads, _MOST_HEADS), ("rows of a head", call.num_rows, _MOST_ROWS),
                              ("keys", call.out.shape[-1], 2**31 - 2**12)):
        if size > limit:
            return f"at most {limit} {name}, got {size}"
    return None


def _cases(device: torch.device) -> dict[str, DropoutRandvalCall]:
    """Rows that words of four bytes fit, rows that they do not, and packed ones."""
    starts, state = (torch.tensor(values, device=device) for values in ((0, 3, 3, 8), (77 << 33, 5)))
    return {name: DropoutRandvalCall(torch.full(shape, 7, dtype=torch.uint8, device=device), state, begin, 0.17)
            for name, shape, begin in (("dense", (2, 3, 5, 264), None), ("odd", (1, 2, 7, 67), None),
                                       ("packed", (2, 9, 20), starts.int()))}


dropout_randval_op = Op(
    _OP, call=DropoutRandvalCall, reference=dropout_randval_ref, check=_check, cases=_cases,
    backends=(Backend("hip", _dropout_randval_hip, refusal=_refusal),
              Backend("triton", "ops.attention.triton.dropout_randval:dropout_randval", refusal=_refusal),
              Backend("torch", dropout_randval_ref)))


def dropout_randval(rng_state: Tensor, dropout_p: float, shape: Sequence[int], cu_seqlens_q: Tensor | None = None, *,
                    out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """The random value of each score of an attention with dropout, from which follows what was dropped.

    A score is kept if and only if its byte is at most `floor(255 · (1 − dropout_p))`.

    Args:
        rng_state: [2] int64: seed and offset of the attention, which AITER's `mha_fwd` returns.
        dropout_p: the share that the attention drops.
        shape: of the result: (batch, num_heads, seqlen_q, seqlen_k), or (num_heads, total_q, max_seqlen_k).
        cu_seqlens_q: [batch + 1] int32 of packed sequences; None: they are dense.
        out: uint8 tensor to write, last dimension contiguous; default: a new one.

    Returns:
        `out`: uint8 of `shape`. Rows of no sequence are 0; what stands at keys that a row does not see has no meaning.

    Notes:
        The upper 8 of the 24 bits that attention compares, turned round; where 255 · (1 − dropout_p) and those bits
        part a value differently, it is moved by one. The same bytes from every backend.

    Source: AITER's `mha_fwd` with `return_dropout_randval`.
    """
    check.tensor(_OP, "rng_state", rng_state, rank=1)
    if rng_state.is_meta:
        raise ValueError(f"{_OP}: rng_state must have memory, got a tensor on the meta device")
    for size in shape:
        check.integer(_OP, "shape", size, low=0)
    if out is None:
        out = rng_state.new_empty(tuple(shape), dtype=torch.uint8)
    else:
        check.tensor(_OP, "out", out, shape=tuple(shape))
    if cu_seqlens_q is not None and out.ndim == 3:
        check.tensor(_OP, "cu_seqlens_q", cu_seqlens_q, rank=1, dtypes=(torch.int32,))
        check_lengths(_OP, "cu_seqlens_q", cu_seqlens_q, out.shape[1], None)
    dropout_randval_op.run(out, rng_state, cu_seqlens_q=cu_seqlens_q, dropout_p=dropout_p, backend=backend)
    return out


dropout_randval_op.public.append(dropout_randval)
