# SPDX-License-Identifier: MIT
"""Argument checks with one message format: `op: argument must …, got …`. Each op's `check` uses them.

A check, here or as check_… elsewhere, says what holds where it returns. Otherwise it raises: TypeError for a wrong kind
of object or dtype, ValueError for a wrong shape, layout, device or value.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from enum import Enum
from typing import Any

import torch
from torch import Tensor

INT32_MAX = 2**31 - 1
MOST_SEQUENCES = 1 << 20  # sequences of a packed batch
_NEGATED = (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8, torch.int32,
            torch.int64)  # dtypes of tensors that torch and operators (dispatch/op.py) negate when they read them
_MOST = sys.float_info.max
_LEAST_FP32, _MOST_FP32 = 2.0**-149, (2 - 2.0**-23) * 2.0**127


def tensor(op: str, name: str, value: Any, *, rank: int | None = None, dtypes: Collection[torch.dtype] | None = None,
           shape: Sequence[int | None] | None = None, device: torch.device | None = None,
           last_contiguous: bool = True) -> None:
    """`value` is a dense tensor, with the given properties; None in `shape` accepts any size.

    Raises:
        TypeError: not a dense tensor, or a dtype outside `dtypes`.
        ValueError: rank, shape, device, or a strided last dimension (checked unless `last_contiguous=False`).
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"{op}: {name} must be a tensor, got {type(value).__name__}")
    # torch.compile cannot trace the questions about views; what it passes on is asked again when it runs.
    if value.layout is not torch.strided:
        raise TypeError(f"{op}: {name} must be a dense tensor, got {value.layout}")
    if not torch.compiler.is_compiling() and (value.is_conj() or value.is_neg() and value.dtype not in _NEGATED):
        raise TypeError(f"{op}: {name} must be a dense tensor, got a conjugate or negative view of {value.dtype}")
    if dtypes is not None and value.dtype not in dtypes:
        raise TypeError(f"{op}: {name} must have dtype {_either(dtypes)}, got {value.dtype}")
    if rank is not None and value.ndim != rank:
        raise ValueError(f"{op}: {name} must have {rank} dimensions, got shape {tuple(value.shape)}")
    if shape is not None:
        _shape(op, name, value, shape)
    if device is not None and value.device != device:
        raise ValueError(f"{op}: {name} must be on {device} like the other tensors, got {value.device}")
    if last_contiguous and value.ndim and value.shape[-1] > 1 and value.stride(-1) != 1:
        raise ValueError(f"{op}: {name} must be contiguous in its last dimension, got stride {value.stride(-1)} there")


def real(op: str, name: str, value: Any, *, low: float | None = None, above: float | None = None) -> None:
    """`value` is a finite int or float, ≥ `low` and > `above` where given. Kernels get it in fp32, where it must not
    become 0, which often means that there is none, or infinite.

    Raises:
        TypeError: not a number (a bool is none).
        ValueError: infinite, NaN, out of range or out of that of fp32.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{op}: {name} must be a number, got {_show(value)}")
    if not -_MOST <= value <= _MOST:  # an integer may be beyond the largest float
        raise ValueError(f"{op}: {name} must be finite, got {_number(value)}")
    if low is not None and value < low:
        raise ValueError(f"{op}: {name} must be at least {low}, got {_number(value)}")
    if above is not None and value <= above:
        raise ValueError(f"{op}: {name} must be greater than {above}, got {value}")
    if not (_LEAST_FP32 <= value <= _MOST_FP32 or -_MOST_FP32 <= value <= -_LEAST_FP32 or value == 0):
        raise ValueError(f"{op}: {name} must be 0 or from {_LEAST_FP32:.1e} to {_MOST_FP32:.1e} in size, which fp32 "
                         f"holds, got {_number(value)}")


def integer(op: str, name: str, value: Any, low: int = -INT32_MAX - 1, high: int = INT32_MAX) -> None:
    """`value` is an int in [`low`, `high`].

    Raises:
        TypeError: not an int (a bool is none).
        ValueError: out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{op}: {name} must be an integer, got {_show(value)}")
    if not low <= value <= high:
        raise ValueError(f"{op}: {name} must be between {low} and {high}, got {_number(value)}")


def floating(op: str, name: str, value: Any) -> None:
    """`value` is a floating-point dtype."""
    if not isinstance(value, torch.dtype) or not value.is_floating_point:
        raise TypeError(f"{op}: {name} must be a floating-point dtype, got {_show(value)}")


def flag(op: str, name: str, value: Any) -> None:
    """`value` is a bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{op}: {name} must be True or False, got {_show(value)}")


def choice(op: str, name: str, value: Any, accepted: Collection[Any]) -> None:
    """`value` is one of `accepted`; a member of an IntEnum stands for its number, as AITER's callers pass them."""
    kind = value.__class__  # not `type`: stand-ins of traced/ answer to that
    if isinstance(value, Enum) and isinstance(value, (int, str)):
        kind = int if isinstance(value, int) else str
    if not any(kind is type(option) and value == option for option in accepted):
        raise ValueError(f"{op}: {name} must be {_either(map(repr, accepted))}, got {_show(value)}")


def together(op: str, **given: Any) -> None:
    """All of these arguments are given, or none."""
    if len({value is None for value in given.values()}) > 1:
        *first, last = given
        raise ValueError(f"{op}: {', '.join(first)} and {last} must come together, got "
                         f"{'one' if len(given) == 2 else 'some'} of them")


def is_on_host(value: Any) -> bool:
    """Whether the values of a tensor can be looked at without waiting: one on the CPU, and no tracing."""
    return not torch.compiler.is_compiling() and type(value) is Tensor and value.device.type == "cpu"


def dense(op: str, name: str, value: Any) -> None:
    """`value` is a tensor whose elements lie in memory one by one, of any strides."""
    if not isinstance(value, Tensor) or value.is_nested or value.layout is not torch.strided or value.is_quantized:
        refuse_kind(op, name, value, "a tensor")


def sequence_starts(op: str, name: str, value: Any) -> None:
    """`value`, where it is a tensor of one dimension, has the starts of no more than MOST_SEQUENCES sequences. To be
    asked before the values are looked at: an expanded tensor of any length takes no memory, but for ever to read.
    """
    if type(value) is Tensor and value.ndim == 1 and value.shape[0] > MOST_SEQUENCES + 1:
        raise ValueError(f"{op}: {name} must have at most {MOST_SEQUENCES + 1} elements, got {value.shape[0]}")


def refuse_kind(op: str, name: str, value: Any, wanted: str) -> None:
    """The refusal of a value that is not `wanted`.

    Raises:
        TypeError: always.
    """
    if isinstance(value, Tensor):
        raise TypeError(f"{op}: {name} must be {wanted.replace('tensor', 'dense tensor')}, got {_sort(value)}")
    raise TypeError(f"{op}: {name} must be {wanted}, got {_show(value)}")


def _sort(value: Tensor) -> str:
    if value.is_nested:
        return "a nested tensor"
    if value.layout is not torch.strided:
        return f"a tensor with layout {value.layout}"
    return "a quantised tensor" if value.is_quantized else f"a tensor of shape {tuple(value.shape)}"


def _shape(op: str, name: str, value: Tensor, shape: Sequence[int | None]) -> None:
    got = tuple(value.shape)
    if len(got) == len(shape) and all(want is None or want == size for want, size in zip(shape, got)):
        return
    sizes = ["*" if want is None else str(want) for want in shape]
    wanted = f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"
    raise ValueError(f"{op}: {name} must have shape {wanted}, got {got}")


def _either(options: Any) -> str:
    names = [str(option) for option in options]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _number(value: float) -> str:
    if isinstance(value, int) and value.bit_length() > 200:  # Python refuses to write out the longest
        return f"an integer of {value.bit_length()} bits"
    return str(value)


def _show(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, int):
        return f"{type(value).__name__} {_number(value)}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
