# SPDX-License-Identifier: MIT
"""A plan's backend that cannot take an address: the call takes another, the plan stays."""

import logging

import pytest
import torch
from toys import FakeJit, make_op, public, run

from aiter_like.dispatch import Backend, explain
from aiter_like.errors import UnsupportedError

pytestmark = pytest.mark.usefixtures("machine")


def make():
    """Its hip kernel takes tensors that begin at a multiple of 16 bytes."""

    def address_refusal(out, x, *_):
        return f"x is at {x.data_ptr() % 16} beyond a multiple of 16" if x.data_ptr() % 16 else None

    hip = FakeJit()
    return make_op(Backend("hip", hip, address_refusal=address_refusal), Backend("ck", ck := FakeJit())), hip, ck


@pytest.mark.parametrize("odd_first", (False, True))
def test_such_a_call_takes_the_next_backend(caplog, odd_first):
    op, hip, ck = make()
    even, odd = torch.randn(2, 4), torch.randn(9)[1:].view(2, 4)
    for _ in range(3):
        for x in (odd, even) if odd_first else (even, odd):
            assert torch.equal(run(op, x), 3 * x)
    assert (hip.calls, ck.calls, len(hip.binds), len(ck.binds)) == (3, 3, 1, 1)
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert told == [f"{op.name}: not hip but the next backend serves calls where x is at 4 beyond a multiple of 16"]
    found = explain(public(op), odd)
    assert found.backend == "ck" and found.rejected["hip"] == "x is at 4 beyond a multiple of 16"
    assert explain(public(op), even).backend == "hip"


def test_each_address_leaves_its_own_backends():
    """Those that one address leaves do not serve another which they refuse."""

    def refusing(*residues):
        return lambda out, x, *_: "x is odd" if x.data_ptr() % 16 in residues else None

    op = make_op(Backend("hip", hip := FakeJit(), address_refusal=refusing(4, 8)),
                 Backend("ck", ck := FakeJit(), address_refusal=refusing(8)))
    for _ in range(2):
        for begin in range(3):
            x = torch.randn(11)[begin:begin + 8].view(2, 4)
            assert torch.equal(run(op, x), 3 * x)
    assert (hip.calls, ck.calls) == (2, 2)


def test_prepared():
    op, hip, ck = make()
    x = torch.randn(9)[1:].view(2, 4)
    op.prepare(torch.empty(2, 4), x, 3.0)
    op.prepare(torch.empty(2, 4), x[:], 3.0)
    assert (len(hip.binds), len(ck.binds), ck.calls) == (0, 1, 0)
    with pytest.raises(UnsupportedError, match="hip: x is at 4 beyond"):
        op.prepare(torch.empty(2, 4), x, 3.0, backend="hip")


def test_a_forced_backend_raises():
    op, _, ck = make()
    with pytest.raises(UnsupportedError, match="hip: x is at 4 beyond"):
        run(op, torch.randn(9)[1:].view(2, 4), backend="hip")
    assert ck.calls == 0


def test_through_torch_library():
    op, _, ck = make()
    x = torch.randn(9)[1:].view(2, 4)
    out = torch.empty(2, 4)
    op._eager(out, x, 3.0, 0)
    assert torch.equal(out, 3 * x) and ck.calls == 1


def test_addresses_that_come_again_are_not_asked_about():
    asked = []
    op = make_op(Backend("hip", hip := FakeJit(), address_refusal=lambda *args: asked.append(args)))
    x, out = torch.randn(2, 4), torch.empty(2, 4)
    for _ in range(5):
        op.run(out, x, 3.0)
    assert hip.calls == 5 and len(asked) == 1
