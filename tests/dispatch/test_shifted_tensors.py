# SPDX-License-Identifier: MIT
"""Tensors that begin one element behind a multiple of 64 bytes, as views of larger ones do: each backend serves them
or leaves them to the next one, and says why.
"""

import pytest
import torch

from aiter_like.dispatch import OPS, explain
from aiter_like.dispatch.self_check import TOLERANCE
from aiter_like.errors import UnsupportedError

pytestmark = pytest.mark.usefixtures("simulated")

QUICK = {"fused_qk_rope_concat_and_cache_mla", "fused_qk_norm_rope_group_quant", "fused_qk_rope_cache",
         "indexer_k_quant_and_cache", "cp_gather_indexer_k_quant_cache", "mla_decode"}


def placed(tensor, behind):
    """A copy, gaps included, that begins so many elements behind a multiple of 64 bytes."""
    extent = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride())) if tensor.numel() else 0
    memory = torch.zeros(tensor.element_size() * (extent + behind) + 128, dtype=torch.uint8)
    begin = -memory.data_ptr() % 64 + tensor.element_size() * behind
    elements = memory[begin:begin + tensor.element_size() * extent].view(tensor.dtype)
    return elements.copy_(tensor.as_strided((extent,), (1,))).as_strided(tensor.shape, tensor.stride())


def copies(case):
    return [placed(arg, 0) if isinstance(arg, torch.Tensor) else arg for arg in case]


def moved(case):
    """(name, the tensor, copies of a call's arguments with that one shifted) of each of its tensors."""
    for index, (name, arg) in enumerate(case._asdict().items()):
        if isinstance(arg, torch.Tensor) and arg.numel():
            given = copies(case)
            given[index] = placed(arg, 1)
            yield name, arg, given


def refused(backend, given):
    return backend.address_refusal(*given) if backend.address_refusal is not None else None


def compare(op, given, expected, moved, name):
    for written in op.result_indices:
        if isinstance(given[written], torch.Tensor):
            eps = torch.finfo(moved.dtype).eps if moved.is_floating_point() else 0.0
            out = given[written].dtype
            eps = max(eps, torch.finfo(out).eps if out.is_floating_point else 0.0)
            limit = TOLERANCE * eps * max(1.0, expected[written].double().nan_to_num().abs().max().item())
            torch.testing.assert_close(given[written].double(), expected[written].double(), rtol=0, atol=limit,
                                       equal_nan=True, msg=f"{name} is shifted")


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.exhaustive)
                                  for name in sorted(OPS)])
def test_each_tensor_one_element_behind(name):
    op = OPS[name]
    case = next(iter(op.cases(torch.device("cpu")).values()))
    expected = copies(case)
    op(expected, backend="torch")
    for field, arg, given in moved(case):
        op(given)
        compare(op, given, expected, arg, field)
        left = {backend.name for backend in op.backends if refused(backend, given) is not None}
        assert not left or left <= explain(op.run, *given).rejected.keys()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(OPS))
def test_each_backend_takes_it_or_says_why(name):
    """Of every case, before and behind a call with tensors that it takes."""
    op = OPS[name]
    left = set()
    for case in op.cases(torch.device("cpu")).values():
        for backend in op.backends:
            if backend.name in ("torch", "vendor") or backend.name not in {
                    one.backend.name for one in op.select(tuple(case), backend.name).candidates}:
                continue
            expected = copies(case)
            op(expected, backend=backend.name)
            for is_behind in (False, True):
                op.reset()
                if is_behind:
                    op(copies(case), backend=backend.name)
                for field, arg, given in moved(case):
                    reason = refused(backend, given)
                    try:
                        op(given, backend=backend.name)
                    except UnsupportedError as error:
                        assert reason is not None and error.reasons[backend.name] == reason and field in reason
                        left.add(backend.name)
                    else:
                        assert reason is None
                        compare(op, given, expected, arg, field)
    assert left == {backend.name for backend in op.backends if backend.address_refusal is not None}
