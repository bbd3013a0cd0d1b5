# SPDX-License-Identifier: MIT
"""A launch is data: what a class of calls launches for a size that it has not seen is what the launcher launches."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from aiter_like import sim
from aiter_like.dispatch import Backend, Op
from aiter_like.dispatch.registry import OPS

pytest.importorskip("triton")
import triton
import triton.language as tl

from aiter_like.ops.common.triton.launch import launch, scratch

# One launch; views; results in place; memory of the call and a second kernel; tuples; scales that lie at any address.
CASES = [("rms_norm", "rows", 48), ("row_quant", "rows", 48), ("rope", "tokens", 48), ("gemm_a16w16", "m", 112),
         ("merge_attn_states", "rows", 48), ("flash_attn_fwd", "seqlen_k", 208), ("mla_decode", "seqlen_k", 208),
         ("paged_attention", "seqlen_k", 208), ("moe_sum", "tokens", 48), ("tensor_quant", "rows", 48)]


def _made(op, key, seed):
    """A call; what it writes begins as zeros, of which some operators leave a part."""
    call = op.tuning.case(key, torch.device("cpu"), seed)
    for index in op.write_indices:
        if call[index] is not None:
            call[index].zero_()
    return call


@pytest.mark.parametrize(("name", "field", "size"), CASES)
def test_sizes_that_a_class_has_not_seen(name, field, size):
    op, on = OPS[name], torch.device("cpu")
    for case in op.cases(on).values():
        key = op.tune_key(*case)
        try:
            calls = [_made(op, key | {field: each}, seed)
                     for seed, each in enumerate((size, size + 16, size + 48, size + 32))]
        except (ValueError, TypeError, KeyError, RuntimeError):  # a case that the tuner cannot make
            continue
        break
    op.reset()
    with torch.no_grad(), sim.enabled(checks=False):
        for one in calls[:3]:
            op(one, backend="triton")
        made = len(op._classes)
        op(calls[3], backend="triton")
        assert len(op._classes) == made, "sizes of one class"
        assert not any("function(" in line for each in op._classes._last for line in each._body)
    again = _made(op, key | {field: size + 32}, 3)
    op.reset()
    with torch.no_grad(), sim.enabled():
        op(again, backend="triton")
    for index in op.write_indices:
        if again[index] is not None:
            got, expected = (one[index].view(torch.uint8) for one in (calls[3], again))
            assert torch.equal(got, expected), op.call._fields[index]


@triton.jit
def _put(out, value, memory):
    tl.store(memory + tl.program_id(0), value)
    tl.store(out + tl.program_id(0), tl.load(memory + tl.program_id(0)))


class PutCall(NamedTuple):
    out: Tensor
    values: Tensor
    number: int = 0


def _put_ref(call: PutCall) -> None:
    call.out.fill_(int(call.values[0]) + call.number)


def _reads(call: PutCall):
    value = int(call.values.tolist()[0]) + call.number
    memory = scratch(call.out.shape, torch.int32, call.out)
    return launch(_put, (call.out.shape[0],), call.out, value, memory, options={})


def _passes(call: PutCall):
    return launch(_put, (call.out.shape[0],), call.out, call.number, scratch(call.out.shape, torch.int32, call.out),
                  options={})


@pytest.mark.parametrize(("launcher", "is_read"), ((_reads, True), (_passes, False)))
def test_values_arrive(monkeypatch, launcher, is_read):
    """Numbers of a tensor on the host are read anew by every call, as its integers are."""
    monkeypatch.setattr(OPS, "declared", dict(OPS.declared))
    op = Op(f"put{launcher.__name__}", call=PutCall, reference=_put_ref,
            backends=(Backend("triton", launcher), Backend("torch", _put_ref)))
    with sim.enabled(checks=False):
        for value in range(1, 9):
            out = torch.zeros(3 + value, dtype=torch.int32)
            op.run(out, torch.tensor([value * is_read]), value * (not is_read), backend="triton")
            assert out.tolist() == [value] * len(out)
        launches = [not any("function(" in line for line in each._body) for each in op._classes._last]
        assert launches and all(is_launched != is_read for is_launched in launches)
