# SPDX-License-Identifier: MIT
"""Tensors that begin one element behind a multiple of 64 bytes, as views of larger ones do: a backend serves them."""

from __future__ import annotations

import pytest
import torch

from aiter_like import device
from aiter_like.dispatch import OPS
from aiter_like.dispatch.self_check import TOLERANCE

QUICK = {"fused_qk_rope_concat_and_cache_mla", "fused_qk_norm_rope_group_quant"}


@pytest.fixture(autouse=True)
def simulated():
    device.use_simulator(True)
    yield
    device.reset()


def shifted(tensor):
    extent = tensor.element_size() * (1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride())))
    memory = torch.zeros(extent + 128, dtype=torch.uint8)
    begin = -memory.data_ptr() % 64 + tensor.element_size()
    return memory[begin:begin + extent].view(tensor.dtype).as_strided(tensor.shape, tensor.stride()).copy_(tensor)


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.exhaustive)
                                  for name in sorted(OPS)])
def test_each_tensor_one_element_behind(name):
    op = OPS[name]
    case = next(iter(op.cases(torch.device("cpu")).values()))
    expected = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in case]
    op(expected, backend="torch")
    for index, arg in enumerate(case):
        if not isinstance(arg, torch.Tensor) or not arg.numel():
            continue
        given = [one.clone() if isinstance(one, torch.Tensor) else one for one in case]
        given[index] = shifted(arg)
        op(given)
        for written in op.result_indices:
            if isinstance(given[written], torch.Tensor):
                eps = torch.finfo(arg.dtype).eps if arg.is_floating_point() else 0.0
                out = given[written].dtype
                eps = max(eps, torch.finfo(out).eps if out.is_floating_point else 0.0)
                limit = TOLERANCE * eps * max(1.0, expected[written].double().nan_to_num().abs().max().item())
                torch.testing.assert_close(given[written].double(), expected[written].double(), rtol=0, atol=limit,
                                           equal_nan=True, msg=op.call._fields[index])
