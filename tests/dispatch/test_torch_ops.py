# SPDX-License-Identifier: MIT
"""Operators in torch.library: schema, opcheck, torch.compile without graph breaks, refusal of autograd."""

import pickle
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from toys import HARDWARE, FakeJit, make_op

from aiter_like import device, dispatch
from aiter_like.dispatch import Backend, Op, self_check, torch_ops, use_backend
from aiter_like.errors import UnsupportedError


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """A hip target that runs plain Python functions; operators of other tests are out of sight."""
    monkeypatch.setattr(dispatch.OPS, "declared", {})
    monkeypatch.setattr(dispatch.OPS, "index", {})
    monkeypatch.setattr(device, "_targets", {torch.device("cpu"): HARDWARE})
    monkeypatch.setattr(self_check, "applies", lambda backend, target: False)
    torch._dynamo.reset()


@pytest.fixture
def op() -> Op:
    return make_op(Backend("hip", FakeJit()))


@pytest.fixture
def scale(op):
    """The public function of a toy operator, registered."""

    def scale(x: Tensor, factor: float, flag: int = 0, *, out: Tensor | None = None,
              backend: str | None = None) -> Tensor:
        if out is None:
            out = torch.empty_like(x)
        op.run(out, x, factor, flag, backend=backend)
        return out

    torch_ops.register(op, scale)
    return scale


def registered(op, suffix=""):
    return getattr(torch.ops.aiter_like, op.name + suffix).default


class TestSchema:
    def test_of_an_operator(self, op):
        assert str(registered(op, "_out")._schema) == (
            f"aiter_like::{op.name}_out(Tensor(a!) out, Tensor x, float factor, SymInt flag=0, *, "
            "str? backend=None) -> ()")

    def test_of_a_public_function(self, op, scale):
        assert str(registered(op)._schema) == (
            f"aiter_like::{op.name}(Tensor x, float factor, SymInt flag=0, *, str? backend=None) -> Tensor")

    def test_all_types(self):
        def function(out: Tensor, lse: Tensor | None, q: torch.Tensor, scale: float | None = None, causal: bool = False,
                     window: tuple[int, int] = (-1, -1), kind: str = "auto", dtype: torch.dtype | None = None) -> None:
            """Every type that has a schema spelling."""

        assert torch_ops.parameters(function, ("out", "lse")) == (
            "Tensor(a!) out, Tensor(b!)? lse, Tensor q, float? scale=None, bool causal=False, "
            'SymInt[2] window=[-1, -1], str kind="auto", ScalarType? dtype=None, *, str? backend=None')

    def test_several_tensors(self):
        def function(out: tuple[Tensor, ...], x: Sequence[Tensor], others: tuple[Tensor, ...] | None) -> None:
            """Lists of tensors, written or not."""

        assert torch_ops.parameters(function, ("out", "others")) == (
            "Tensor(a!)[] out, Tensor[] x, Tensor(c!)[]? others, *, str? backend=None")

    def test_unknown_type(self):
        def function(x: dict) -> None:
            """Not a schema type."""

        with pytest.raises(TypeError, match="parameter x must be annotated with one of Tensor, .*, got 'dict'"):
            torch_ops.parameters(function)

    def test_taken_name(self, op):
        with pytest.raises(ValueError, match="exists already"):
            torch_ops.define(f"{op.name}_out", lambda: None, kernel=print, fake=print)

    def test_return_type(self, op):
        def function(x: Tensor) -> int:
            """Not a tensor."""

        with pytest.raises(TypeError, match="must return Tensor"):
            torch_ops.register(op, function)

    def test_two_results(self, op):
        def both(x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
            first, second = torch.empty_like(x), torch.empty_like(x)
            op.run(first, x, factor, 0)
            op.run(second, x, -factor, 0)
            return first, second

        torch_ops.register(op, both)
        assert str(registered(op)._schema).endswith("-> (Tensor, Tensor)")
        torch.library.opcheck(registered(op), (torch.randn(2, 4), 2.0))


class TestRegistered:
    def test_opcheck(self, op, scale):
        x = torch.randn(3, 5)
        torch.library.opcheck(registered(op), (x, 2.0), {"backend": "torch"})
        torch.library.opcheck(registered(op), (torch.empty(0, 5), 2.0))
        torch.library.opcheck(registered(op, "_out"), (torch.empty_like(x), x, 2.0))

    def test_same_result_as_eager(self, op, scale):
        x = torch.randn(3, 5)
        assert torch.equal(registered(op)(x, 2.0), x * 2)
        out = torch.empty_like(x)
        registered(op, "_out")(out, x, 3.0)
        assert torch.equal(out, x * 3)

    def test_argument_errors(self, op, scale):
        with pytest.raises(TypeError, match="scale: x must have dtype"):
            registered(op)(torch.randn(2, 3).double(), 2.0)

    def test_requires_grad_is_refused(self, op, scale):
        x = torch.randn(3, 5, requires_grad=True)
        with pytest.raises(UnsupportedError, match=f"{op.name} is forward only"):
            registered(op)(x, 2.0)
        with torch.no_grad():
            assert torch.equal(registered(op)(x, 2.0), x * 2)


class TestCompile:
    @pytest.mark.parametrize("backend", ["eager", "aot_eager"])
    def test_no_graph_break(self, op, scale, backend):
        def model(x):
            y = scale(x + 1, 2.0)
            return scale(y, 3.0, out=torch.empty_like(y)) - 1

        compiled = torch.compile(model, fullgraph=True, backend=backend)
        for rows in (3, 4, 7):  # the second size recompiles with a symbolic one
            x = torch.randn(rows, 5)
            torch.testing.assert_close(compiled(x), model(x))

    def test_the_graph_holds_the_operator(self, op, scale):
        seen = []

        def keep(graph, inputs):
            seen.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
            return graph

        torch.compile(lambda x: scale(x, 2.0), fullgraph=True, backend=keep)(torch.randn(2, 4))
        assert registered(op, "_out") in seen

    def test_forced_backend_reaches_the_operator(self, op, scale):
        hip = op.backends[0].function
        compiled = torch.compile(lambda x: scale(x, 2.0, backend="torch"), fullgraph=True, backend="eager")
        compiled(torch.randn(2, 4))
        assert hip.calls == 0

    def test_use_backend_around_a_compiled_function(self, op, scale):
        hip = op.backends[0].function
        compiled = torch.compile(lambda x: scale(x, 2.0), fullgraph=True, backend="aot_eager")
        with use_backend("torch"):
            compiled(torch.randn(2, 4))
        assert hip.calls == 0
        compiled(torch.randn(2, 4))
        assert hip.calls == 1

    def test_training_is_refused(self, op, scale):
        compiled = torch.compile(lambda x: scale(x, 2.0), fullgraph=True, backend="aot_eager")
        with pytest.raises(Exception, match="forward only"):
            compiled(torch.randn(2, 4, requires_grad=True))

    def test_export(self, op, scale):
        class Model(torch.nn.Module):
            def forward(self, x):
                return scale(x, 2.0)

        x = torch.randn(2, 4)
        program = torch.export.export(Model(), (x,))
        assert torch.equal(program.module()(x), x * 2)


class TestIntercepted:
    def test_fake_tensors(self, op, scale):
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode() as mode:
            y = scale(mode.from_tensor(torch.randn(2, 4)), 2.0)
        assert y.shape == (2, 4) and op.backends[0].function.binds == []

    def test_dispatch_mode_sees_the_operator(self, op, scale):
        class Record(TorchDispatchMode):
            def __init__(self):
                super().__init__()
                self.seen = []

            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                self.seen.append(function)
                return function(*args, **(kwargs or {}))

        x = torch.randn(2, 4)
        for _ in range(3):  # also once the plan is among the recent ones
            scale(x, 2.0)
        with Record() as record:
            assert torch.equal(scale(x, 2.0), x * 2)
        assert registered(op, "_out") in record.seen

    def test_make_fx(self, op, scale):
        from torch.fx.experimental.proxy_tensor import make_fx

        x = torch.randn(2, 4)
        scale(x, 2.0)
        graph = make_fx(lambda x: scale(x, 2.0))(x)
        assert registered(op, "_out") in [node.target for node in graph.graph.nodes]
        assert torch.equal(graph(x + 1), (x + 1) * 2)

    def test_subclass(self, op, scale):
        class Tagged(Tensor):
            pass

        x = torch.randn(2, 4)
        assert torch.equal(scale(x.as_subclass(Tagged), 2.0), x * 2)

    def test_vmap_is_not_silently_wrong(self, op, scale):
        x = torch.randn(3, 2, 4)
        try:
            y = torch.vmap(lambda t: registered(op)(t, 2.0))(x)
        except RuntimeError:
            return  # torch has no batching rule for the operator
        assert torch.equal(y, x * 2)


def test_graphs_with_an_operator_can_be_kept(op, scale):
    """Inductor keys its cache by such bytes: a graph that cannot be written as source text does not compile at all."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(registered(op), (x, 2.0)))
    kept = pickle.loads(pickle.dumps(torch.fx.GraphModule({}, graph)))
    assert torch.equal(kept(torch.ones(3, 2)), torch.full((3, 2), 2.0))
