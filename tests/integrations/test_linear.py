# SPDX-License-Identifier: MIT
"""Linear layers: ours where the dispatcher puts a kernel of ours first, else the engine's own; decided once per shape,
and inside graphs when they run."""

import pytest
import torch
from seeded import numbers
from torch.nn.functional import linear as own

from aiter_like import device, dispatch, sim
from aiter_like.integrations import linear, takeover
from aiter_like.integrations.takeover import LEFT, Counts
from aiter_like.testing import relative_l2

LIMIT = 2**-8

pytestmark = pytest.mark.usefixtures("fresh_takeover", "simulated")


@pytest.fixture
def toy():
    """An engine's linear layer with ours before it, as the adapters make it."""
    linear.announce("toy")
    return takeover.take("toy.linear", lambda x, weight, bias=None: linear.product(x, weight, bias, "toy"), own)


def operands(m: int = 3, n: int = 64, k: int = 128) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return numbers(m, k), numbers(n, k, seed=1), numbers(n, seed=2)


def counts() -> Counts:
    return takeover.counters()["toy.linear"]


def test_the_simulator_is_left_to_the_engine(toy):
    x, weight, bias = operands()
    assert torch.equal(toy(x, weight, bias), own(x, weight, bias)) and counts() == Counts(0, 0, 1)


@pytest.mark.parametrize("shape", [(3, 128), (2, 5, 128), (128,)], ids=str)
def test_our_kernel_serves_where_it_is_asked_for(asked, toy, shape):
    x, (_, weight, bias) = numbers(*shape), operands()
    with sim.enabled(checks=False) as session:
        for given in (bias, None):
            expected = own(x.double(), weight.double(), None if given is None else given.double())
            found = toy(x, weight, given)
            assert found.shape == expected.shape and found.dtype == x.dtype and relative_l2(found, expected) < LIMIT
    assert counts() == Counts(2, 0, 0)
    assert sum(count["launches"] for kernel, count in session.counters.items() if "gemm_a16w16" in kernel) == 2


@pytest.mark.parametrize("change", ["fp32", "grad", "empty", "subclass", "packed", "other depth"])
def test_what_is_not_ours_is_left(asked, toy, change):
    class Packed(torch.Tensor):
        """As torchao's: it says bf16 and holds something else."""

    x, weight, _ = operands()
    if change == "fp32":
        x, weight = x.float(), weight.float()
    elif change == "grad":
        weight = torch.nn.Parameter(weight)
    elif change == "empty":
        x = x[:0]
    elif change == "subclass":
        weight = weight.as_subclass(Packed)
    elif change == "packed":
        weight = torch.empty(0, dtype=weight.dtype)
    elif change == "other depth":
        x = x[:, :100]
    plain = linear.product(x, weight, None, "toy")
    assert plain is LEFT and counts() == Counts()


def test_a_subclass_does_not_get_the_answer_of_a_plain_weight(asked, toy):
    class Packed(torch.Tensor):
        pass

    x, weight, _ = operands()
    assert linear.product(x, weight, None, "toy") is not LEFT
    assert linear.product(x, weight.as_subclass(Packed), None, "toy") is LEFT


def test_a_parameter_of_the_engine_is_taken_by_what_it_holds(asked, toy):
    class Loaded(torch.nn.Parameter):
        pass

    x, weight, _ = operands()
    found = toy(x, Loaded(weight, requires_grad=False))
    assert counts() == Counts(1, 0, 0) and relative_l2(found, own(x.double(), weight.double())) < LIMIT


def test_a_denied_operator_is_not_ours(asked, monkeypatch, toy):
    monkeypatch.setenv("AITER_LIKE_DISABLE", "gemm_a16w16")
    dispatch.reset()
    x, weight, _ = operands()
    assert linear.product(x, weight, None, "toy") is LEFT
    assert takeover.take("toy.linear", linear.product, own, linear.OP) is own


@pytest.mark.parametrize(("arch", "m", "is_ours"), [
    ("gfx942", 1, True), ("gfx942", 127, True), ("gfx942", 128, False), ("gfx942", 4096, False),
    ("sm_90", 8, True), ("sm_90", 333, False), ("sm_80", 8, False), ("gfx90a", 8, False)])
def test_the_dispatcher_decides_by_the_number_of_rows(arch, m, is_ours):
    """hipBLASLt and cuBLAS, where they come first, are the engine's; so is all on devices that were never compared."""
    x, weight = (torch.empty(rows, 4104, dtype=torch.bfloat16) for rows in (m, 4100))  # no tuned row has these sizes
    with device.planning_for(arch):
        assert linear._is_ours(x, weight, None, None) == is_ours


def test_a_shape_is_decided_once_and_again_when_plans_are_forgotten(asked, monkeypatch, toy):
    x, weight, _ = operands()
    asked_for, decide = [], linear._decide
    monkeypatch.setattr(linear, "_decide", lambda *args: asked_for.append(args[0].shape[0]) or decide(*args))
    for rows in (3, 3, 2, 3, 2):
        toy(x[:rows], weight)
    assert asked_for == [3, 2] and counts() == Counts(5, 0, 0)
    dispatch.reset()
    toy(x, weight)
    assert asked_for == [3, 2, 3]


def test_products_are_written_into_strided_places(asked):
    x, weight, bias = operands()
    both = torch.zeros(3, 2 * 64, dtype=x.dtype)
    with sim.enabled(checks=False) as session:
        for half, given in zip(both.chunk(2, 1), (bias, None)):
            linear.write(half, x, weight, given)
    expected = torch.cat((own(x.double(), weight.double(), bias.double()), own(x.double(), weight.double())), 1)
    assert relative_l2(both, expected) < LIMIT
    assert sum(count["launches"] for kernel, count in session.counters.items() if "gemm_a16w16" in kernel) == 2


def test_products_are_written_by_torch_where_ours_is_not_first():
    x, weight, bias = operands()
    for given in (bias, None):
        out = torch.empty(3, 64, dtype=x.dtype)
        linear.write(out, x, weight, given)
        torch.testing.assert_close(out, own(x, weight, given), rtol=2e-2, atol=2e-2)


@pytest.mark.usefixtures("fresh_dynamo")
class TestCompiled:
    def test_one_graph_serves_every_number_of_rows(self, asked, toy, graphs):
        _, weight, bias = operands()
        compiled = torch.compile(lambda x: toy(x, weight, bias) * 1, fullgraph=True, dynamic=True, backend=graphs)
        with torch.no_grad():
            for m in (2, 3, 5):
                x = numbers(m, 128, seed=m)
                assert relative_l2(compiled(x), own(x.double(), weight.double(), bias.double())) < LIMIT
        assert graphs.targets("linear") == [["aiter_like.linear.default"]] and counts() == Counts(3, 0, 0)

    def test_an_engine_keeps_its_own_in_graphs_where_no_kernel_is_ours(self, toy, graphs):
        x, weight, bias = operands()
        compiled = torch.compile(lambda x: toy(x, weight, bias) * 1, fullgraph=True, backend=graphs)
        with torch.no_grad():
            assert torch.equal(compiled(x), own(x, weight, bias))
        assert graphs.targets("aiter_like") == [[]] and counts() == Counts()

    def test_what_ours_leaves_within_a_graph_is_the_engines_own(self, asked, monkeypatch):
        """The operator decides when it runs, and falls back to the product that the engine has announced."""
        linear.announce("toy", lambda x, weight, bias: own(x, weight, bias) * 2)
        x, weight, bias = operands()
        monkeypatch.setattr(linear, "_is_ours", lambda *args: False)
        assert torch.equal(torch.ops.aiter_like.linear(x, weight, bias, "toy"), own(x, weight, bias) * 2)
        assert counts() == Counts(0, 0, 1)

    def test_the_operator_is_one(self, asked, toy):
        x, weight, bias = operands()
        torch.library.opcheck(torch.ops.aiter_like.linear.default, (x, weight, bias, "toy"))
        found = torch.ops.aiter_like.linear(x, weight, bias, "toy", backend="torch")
        assert relative_l2(found, own(x.double(), weight.double(), bias.double())) < LIMIT
