# SPDX-License-Identifier: MIT
"""Makes the public functions of rope and rope_2d: AITER has 40 of them, which differ in a few parameters.

Here each gets its signature, its docstring and its arguments in order; the operator's own file gives what it runs.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from aiter_like.call import with_parameters

_ABOUT = {
    "input": "{shape} bf16|fp16|fp32, last dimension contiguous, any other strides.",
    "input_x": "[s, b, heads, head_dim] bf16|fp16|fp32, last dimension contiguous, any other strides.",
    "input_y": "as `input_x`, with a number of heads of its own.",
    "output_grads": "gradient of the forward function's result, like its input.",
    "output_grads_x": "gradient of the forward function's first result, like its input.",
    "output_grads_y": "gradient of the second.",
    "freqs": "[≥ s, 1, 1, width] bf16|fp16|fp32: angles, whose sines and cosines are taken in fp32.",
    "cos": "[≥ s, 1, 1, width] bf16|fp16|fp32: cosines; with positions a row for each position.",
    "sin": "sines, like `cos`.",
    "positions": "[s, b] int32|int64: rows of `cos` and `sin`.",
    "offsets": "[s, b] int32|int64: added to `positions`.",
    "cu_seqlens": "[sequences + 1] int32|int64: starts of the packed sequences, and the end of the last.",
    "cos_h": "[1, ≥ img_height, 1, width] bf16|fp16|fp32: cosines for the patch rows.",
    "sin_h": "sines, like `cos_h`.",
    "cos_w": "[1, ≥ img_width, 1, width]: cosines for the patch columns.",
    "sin_w": "sines, like `cos_w`.",
    "img_height": "rows of patches.",
    "img_width": "columns of patches.",
    "rotate_style": "0: the pairs are elements i and i + rotary/2 (NeoX); 1: elements 2i and 2i + 1 (GPT-J).",
    "reuse_freqs_front_part": "True: a table row has a value per pair; False: per rotated element.",
    "nope_first": "the rotated part is the head's last, not its first; all of it where `width` covers the head.",
    "transpose_output": "True: the result lies in memory as [b, s, heads, head_dim].",
    "backend": '"hip", "triton" or "torch" instead of the automatic choice.',
}
_SHAPES = {"cu_seqlens": "[tokens, heads, head_dim]", "img_height": "[b, img_height · img_width, heads, head_dim]"}
"""The parameter that a function has → the shape of its input, which others have as [s, b, heads, head_dim]."""


def four(runner: Callable[..., Callable], stem: str, tables: Sequence[str], how: str, *,
         transposes: bool = True) -> list[Callable]:
    """The functions _fwd, _fwd_inplace, _bwd and _bwd_inplace of one way to find angles. `runner` makes what one runs:
    of its name, its tensors, the tables, whether it is backward and whether in place.
    """
    made = []
    for is_backward, is_in_place in itertools.product((False, True), repeat=2):
        first, is_two = "output_grads" if is_backward else "input", "_2c" in stem
        tensors = (f"{first}_x", f"{first}_y") if is_two else (first,)
        name = f"{stem}_{'bwd' if is_backward else 'fwd'}{'_inplace' * is_in_place}"
        names = [*tensors, *tables, "rotate_style", "reuse_freqs_front_part", "nope_first",
                 *["transpose_output"] * (transposes and not is_in_place)]
        what = "The gradient of rotary position embedding" if is_backward else "Rotary position embedding"
        result = "The two tensors" if is_two else "The tensor"
        if is_in_place:
            result += ", which are written" if is_two else ", which is written"
        made.append(_public(name, names, runner(name, tensors, tables, is_backward, is_in_place),
                            f"{what}{' of two tensors' * is_two} {how}{', in place' * is_in_place}.", f"{result}."))
    return made


def _public(name: str, names: Sequence[str], run: Callable[[Sequence[Any], str | None], Any], summary: str,
           returns: str) -> Callable:
    """The function `name`, with these parameters by position or keyword and `backend`; `run` gets them in order."""
    kinds = {"rotate_style": "int", "img_height": "int", "img_width": "int", "reuse_freqs_front_part": "bool",
             "nope_first": "bool", "transpose_output": "bool"}
    empty = inspect.Parameter.empty
    given = {each: False if each == "transpose_output" else empty for each in names}
    function = with_parameters(name, run, given, {"backend": None})
    parameters = [inspect.Parameter(each, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default,
                                    annotation=kinds.get(each, "Tensor")) for each, default in given.items()]
    parameters.append(inspect.Parameter("backend", inspect.Parameter.KEYWORD_ONLY, default=None,
                                        annotation="str | None"))
    is_two = "_2c_" in name
    function.__signature__ = inspect.Signature(
        parameters, return_annotation="tuple[Tensor, Tensor]" if is_two else "Tensor")
    function.__module__, function.__qualname__ = "aiter_like", name
    shape = next((_SHAPES[each] for each in names if each in _SHAPES), "[s, b, heads, head_dim]")
    arguments = "\n".join(f"    {each}: {_ABOUT[each].format(shape=shape)}" for each in (*names, "backend"))
    function.__doc__ = _TEXT.format(summary=summary, arguments=arguments, returns=returns, name=name)
    return function


_TEXT = """{summary}

`first' = first · cos - second · sin`, `second' = second · cos + first · sin` for each pair of a head's rotated part;
the backward functions multiply by the transposed matrix.

Args:
{arguments}

Returns:
    {returns}

Raises:
    ValueError: tables on the host lack a row that is asked for.

Notes:
    Rotated in fp32, rounded to nearest even once; the rest of a head is copied bit for bit; deterministic. On a GPU,
    which is not waited for, heads whose row is not in the tables become NaN. Only "torch" has a derivative: an input
    that requires grad selects it.

Source: Su et al., RoFormer (2021); AITER's `{name}`.
"""
