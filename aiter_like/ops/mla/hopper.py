# SPDX-License-Identifier: MIT
"""Selects the calls of mla_decode that the kernel of triton/mla_decode_hopper.py takes, and what the tuner may choose
there."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from torch import Tensor

from aiter_like.device import Target
from aiter_like.ops.attention.call import FLOATS
from aiter_like.ops.mla.call import MlaDecodeCall

HOPPER, PORTABLE = "mla_decode_hopper", "mla_decode"

ROWS = 64  # rows of a tile: an SM's registers hold all its sums
_DIMS = 576, 512
_RUN = 8  # elements of 16 bytes, which a lane copies at once


def hopper_fits(q: Tensor, kv: Tensor, v_dim: int) -> bool:
    """Whether the kernel takes such tensors: 16 bits, the dimensions of DeepSeek, rows 16 bytes apart."""
    if q.dtype not in FLOATS or kv.dtype != q.dtype or (q.shape[-1], v_dim) != _DIMS:
        return False
    return not any(step % _RUN for tensor in (q, kv) for size, step in zip(tensor.shape[:2], tensor.stride())
                   if size > 1)


def has_aligned_rows(call: MlaDecodeCall) -> bool:
    """Whether the addresses, too, are such as copies of 16 bytes can have."""
    return not (call.q.data_ptr() | call.kv.data_ptr()) % 16


def triton_kernels(target: Target, call: MlaDecodeCall, **params: int) -> list[str]:
    """The one for Hopper comes first where it serves; only it has the parameter LATE."""
    serves = target.arch == "sm_90" and hopper_fits(call.q, call.kv, call.out.shape[2])
    if params:
        return ([HOPPER] if serves else []) if "LATE" in params else [PORTABLE]
    return [HOPPER, PORTABLE] if serves else [PORTABLE]


def triton_space(target: Target, call: MlaDecodeCall) -> Iterator[dict[str, int]]:
    """Settings of the kernel for Hopper, when half of the sums are made and what copies keys; tiles, warps and stages
    of the other one."""
    if HOPPER in triton_kernels(target, call):
        for late, tma in itertools.product((0, 1), (0, 1)):
            yield {"LATE": late, "TMA": tma}
        return
    for block_n, num_warps, num_stages in itertools.product((16, 32, 64), (4, 8), (1, 2, 3)):
        yield {"BLOCK_N": block_n, "num_warps": num_warps, "num_stages": num_stages}
