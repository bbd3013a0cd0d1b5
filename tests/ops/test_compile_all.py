# SPDX-License-Identifier: MIT
"""Every public function under torch.compile: no graph break, and what eager gives. On the torch backend: how functions
reach their operator is the same for all.
"""

import pytest
import torch
from public_calls import call_of, public_names, tensors

from aiter_like import device, use_backend


@pytest.fixture(autouse=True)
def simulated():
    device.use_simulator(True)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    device.reset()


@pytest.mark.parametrize("name", public_names())
def test_compiles_whole(name):
    function, args = call_of(name)
    _, compiled_args = call_of(name)
    with torch.no_grad(), use_backend("torch"):
        torch.manual_seed(0)
        expected = function(*args)
        torch.manual_seed(0)
        got = torch.compile(lambda *given: function(*given), fullgraph=True, backend="eager")(*compiled_args)
    pairs = list(zip(tensors([got, compiled_args]), tensors([expected, args]), strict=True))
    assert pairs
    for mine, theirs in pairs:
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        assert torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))
