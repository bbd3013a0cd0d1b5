# SPDX-License-Identifier: MIT
"""Launches of Triton kernels that are repeated without their launcher (jit/repeat.py) write what it had them write."""

from __future__ import annotations

import pytest
import torch

from aiter_like import sim
from aiter_like.dispatch.registry import OPS
from aiter_like.jit.repeat import Repeated

pytest.importorskip("triton")

# One launch; views; results in place; memory of the call and a second kernel; tuples; scales that lie at any address.
CASES = [("rms_norm", "residual"), ("row_quant", "group"), ("rope", None), ("group_norm", "slices"),
         ("gemm_a16w16", "bias, activation, residual"), ("merge_attn_states", "odd"), ("flash_attn_fwd", None),
         ("mla_decode", None)]


def _copied(call, seed):
    """`call` with other memory and, where numbers are free, other numbers; tensors that are one stay one."""
    random, copies = torch.Generator().manual_seed(seed), {}

    def copy(value):
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in copies:
            other = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
            is_free = value.is_floating_point() and value.element_size() > 1
            copies[id(value)] = other.copy_(torch.rand(value.shape, generator=random) + 0.5 if is_free else value)
        return copies[id(value)]

    return type(call)(*map(copy, call))


@pytest.mark.parametrize(("name", "case"), CASES)
def test_repeated_launches_write_the_same(monkeypatch, name, case):
    op = OPS[name]
    cases = op.cases(torch.device("cpu"))
    call = next(iter(cases.values())) if case is None else cases[case]
    launched = []
    original = Repeated._recorded

    def recorded(self, *args):
        original(self, *args)
        launched.append(self._serve is not self.unrepeated)

    monkeypatch.setattr(Repeated, "_recorded", recorded)
    kept = [_copied(call, seed) for seed in (0, 1, 2)]
    op.reset()
    with torch.no_grad(), sim.enabled(checks=False):
        for one in kept:
            op(one, backend="triton")
    assert launched == [True], "the second call was recorded, the third repeats it"
    again = _copied(call, 2)
    op.reset()
    with torch.no_grad(), sim.enabled():
        op(again, backend="triton")
    for index in op.write_indices:
        if again[index] is not None:
            assert torch.equal(kept[2][index].view(torch.uint8), again[index].view(torch.uint8)), op.call._fields[index]
