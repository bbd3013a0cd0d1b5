# SPDX-License-Identifier: MIT
"""Every argument of every operator and public function is asked for what its annotation says: the kind of the value,
the dtype, the dimensions and their sizes, contiguous rows, the device. Tests of an operator are about what it checks
beyond that; test_damaged_calls.py shows that nothing is written where a call is refused.
"""

from __future__ import annotations

import inspect
import re
import typing
from typing import Annotated, NamedTuple

import pytest
import torch
from damages import TENSORS
from public_calls import call_of, called_by_tensors
from torch import Tensor

from aiter_like import use_backend
from aiter_like.call import signature
from aiter_like.dispatch import OPS, STRIDED
from aiter_like.dispatch.kinds import kind_of

UNREAD = {  # tensors that a function takes for AITER's sake, or of which it reads no number: memory, shapes
    "fused_qk_norm_rope_cache_pts_quant_shuffle": ("per_tensor_k_scale", "per_tensor_v_scale"),
    "fused_topk": ("hidden_states",), "get_mla_metadata_v1": ("kv_last_page_lens",),
    "get_ps_metadata_v1": ("seqlens_qo_indptr", "pages_kv_indptr", "context_lens"), "moe_sorting_fwd": ("moe_buf",),
    "paged_attention_ragged": ("workspace_buffer",), "paged_attention_v1": ("workspace_buffer",),
}


class Declared(NamedTuple):
    """What the annotation of a tensor says: names of dimensions, dtypes, and whether the last may be strided."""

    sizes: list[str]
    dtypes: object
    is_strided: bool

    def places(self, rank):
        """(dimension, its name) of a tensor of this rank; of several dimensions under one name the first."""
        leading = [name for name in self.sizes if name.startswith("*")]
        others = [name for name in self.sizes if name not in leading]
        return [*((0, name) for name in leading if rank > len(others)),
                *((rank - len(others) + index, name) for index, name in enumerate(others))]


def declared(call):
    """Field → Declared."""
    found = {}
    for name, hint in typing.get_type_hints(call, include_extras=True).items():
        hints = [each for each in (hint, *typing.get_args(hint)) if typing.get_origin(each) is Annotated]
        if hints:
            sizes, *others = hints[0].__metadata__
            dtypes = [each for each in others if each is not STRIDED]
            found[name] = Declared(sizes.split(), dtypes[0] if dtypes else None, STRIDED in others)
    return found


def named(fields):
    return f"({'|'.join(fields)})"


def damages(case, field, fields):
    """(kind of error, its text, wrong value) for a tensor of a case."""
    tensor, own = getattr(case, field), fields[field]
    yield TypeError, f"{field} must be a dense tensor", TENSORS["sparse"](tensor)
    if own.dtypes is not None:
        same = [name for name, other in fields.items() if other.dtypes == field]
        yield TypeError, f"{named([field, *same])} must have dtype", TENSORS["complex"](tensor)
    if not any(name.startswith("*") for name in own.sizes):
        yield ValueError, f"{field} must have (shape|{len(own.sizes)} dimensions)", tensor[None]
    elif len(own.sizes) > 1:
        yield ValueError, f"{field} must have at least {len(own.sizes) - 1} dimension", tensor.new_zeros(())
    if not own.is_strided and tensor.ndim and tensor.shape[-1] > 1:
        yield ValueError, f"{field} must be contiguous in its last dimension", TENSORS["every other column"](tensor)
    given = {name: each for name, each in fields.items() if getattr(case, name) is not None}
    if len(given) > 1:
        yield ValueError, f"{named(given)} must (be on|have memory)", tensor.to("meta")
    for dimension, name in own.places(tensor.ndim):
        sharing = [other for other, each in given.items() if name in each.sizes and name != "_"]
        if (len(sharing) > 1 or name.isdecimal()) and tensor.shape[dimension]:
            yield (ValueError, f"{named({*sharing, field})} must have (shape|. dimensions)",
                   tensor.narrow(dimension, 0, tensor.shape[dimension] - 1))


def with_tensor(case, field, fields):
    """The case with a tensor for an argument that no case has, of sizes and a dtype that fit the others."""
    sizes = {}
    for other, each in fields.items():
        value = getattr(case, other)
        if value is not None:
            sizes |= {name: value.shape[dimension] for dimension, name in each.places(value.ndim)}
    own = fields[field]
    dtype = own.dtypes[0] if isinstance(own.dtypes, tuple) else own.dtypes
    dtype = getattr(case, dtype).dtype if isinstance(dtype, str) else dtype
    shape = [int(name) if name.isdecimal() else 3 if name == "_" else sizes.get(name, 3) for name in own.sizes]
    return case._replace(**{field: torch.zeros(shape, dtype=dtype)})


@pytest.mark.parametrize("name", sorted(OPS))
def test_tensors_of_operators(name):
    op = OPS[name]
    cases, fields = [*op.cases(torch.device("cpu")).values()], declared(op.call)
    for field in fields:
        case = next((case for case in cases if isinstance(getattr(case, field), Tensor)), None)
        case = with_tensor(cases[0], field, fields) if case is None else case
        for kind, message, value in damages(case, field, fields):
            with pytest.raises(kind, match=rf"^{name}: {message}"):
                op(case._replace(**{field: value}), backend="torch")


@pytest.mark.parametrize("name", sorted(OPS))
def test_kinds_of_operators(name):
    op = OPS[name]
    case = next(iter(op.cases(torch.device("cpu")).values()))
    for field, parameter in signature(op.call).parameters.items():
        _, wanted = kind_of(str(getattr(parameter.annotation, "__name__", parameter.annotation)))
        message = f"{field} must be {re.escape(wanted)}, got object|no tensor among the arguments"
        with pytest.raises(TypeError, match=f"^{name}: ({message})"):
            op(case._replace(**{field: object()}), backend="torch")


@pytest.mark.parametrize("name", called_by_tensors())
def test_tensors_of_public_functions(name, simulated):
    function, args = call_of(name)
    for place, (arg, parameter) in enumerate(zip(args, inspect.signature(function).parameters)):
        if not isinstance(arg, Tensor) or parameter in UNREAD.get(name, ()):
            continue
        for message, wrong in ((f"{parameter} must be a tensor.*, got list", [1.0]),
                               (".* must (have (the )?dtype|be floating point)", TENSORS["complex"](arg))):
            _, given = call_of(name)
            given[place] = wrong
            with pytest.raises((TypeError, ValueError), match=rf"^{name}: {message}"), use_backend("torch"):
                function(*given)
