# SPDX-License-Identifier: MIT
"""Choice of backends: order, reasons, forcing, failures, plans."""

import logging
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from toys import HOST, SIMULATED, FakeJit, make_op, public, run

from aiter_like import device, sim
from aiter_like.dispatch import Backend, Op, classes, explain, use_backend
from aiter_like.errors import BuildError, SimulatorError, UnsupportedError

pytestmark = pytest.mark.usefixtures("machine")


class SumCall(NamedTuple):
    out: Tensor
    others: tuple[Tensor, ...] | None


@pytest.fixture(params=["guards", "python"])
def cache_kind(request, monkeypatch):
    """Both ways to compare metadata: torch's guards, and in Python."""
    if request.param == "python":
        monkeypatch.setattr(classes, "TensorGuards", None)


class TestOrder:
    def test_first_backend_that_accepts_serves(self):
        hip, triton = FakeJit(), FakeJit()
        op = make_op(Backend("hip", hip, refusal=lambda target, *args: "no"), Backend("ck", triton))
        x = torch.randn(2, 4)
        assert torch.equal(run(op, x), x * 3)
        assert (hip.calls, triton.calls) == (0, 1)

    def test_bound_once_per_metadata(self, cache_kind):
        hip = FakeJit()
        op = make_op(Backend("hip", hip))
        for _ in range(3):
            run(op)
        assert (len(hip.binds), hip.calls) == (1, 3)

    def test_environment_order(self, monkeypatch):
        hip, asm = FakeJit(), FakeJit()
        op = make_op(Backend("hip", hip), Backend("asm", asm))
        monkeypatch.setenv("AITER_LIKE_BACKENDS", "asm,torch")
        run(op)
        assert (hip.calls, asm.calls) == (0, 1)

    def test_environment_order_with_unknown_name(self, monkeypatch):
        monkeypatch.setenv("AITER_LIKE_BACKENDS", "cuda")
        with pytest.raises(ValueError, match="must list hip, ck, asm, triton, vendor, torch, got cuda"):
            run(make_op())

    def test_disabled_operator_runs_as_torch(self, monkeypatch):
        hip = FakeJit()
        op = make_op(Backend("hip", hip))
        monkeypatch.setenv("AITER_LIKE_DISABLE", f"other,{op.name}")
        run(op)
        assert hip.calls == 0
        with pytest.raises(UnsupportedError, match="AITER_LIKE_DISABLE"):
            run(op, backend="hip")

    def test_cpu_without_simulator_runs_as_torch(self, monkeypatch):
        monkeypatch.setattr(device, "_targets", {torch.device("cpu"): HOST})
        op = make_op(Backend("hip", FakeJit()))
        assert explain(public(op), torch.randn(2, 4)).rejected == {"hip": "needs a GPU or the simulated MI300X"}

    def test_all_refuse(self):
        op = make_op(Backend("hip", FakeJit(), refusal=lambda target, *args: "hip says no"))
        op.backends = op.backends[:1]
        with pytest.raises(UnsupportedError, match="hip says no") as caught:
            run(op)
        assert caught.value.op == op.name and caught.value.reasons == {"hip": "hip says no"}

    def test_torch_fallback_is_told_once(self, caplog):
        op = make_op(Backend("hip", FakeJit(), refusal=lambda target, *args: "too wide"))
        for rows in (2, 3, 4):
            run(op, torch.randn(rows, 4))
        told = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert [record.getMessage() for record in told] == [
            f"{op.name} runs as torch reference on gfx942: hip: too wide"]

    def test_missing_triton_is_a_reason(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "triton", None)
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        op = make_op(Backend("triton", "norm:rms_norm"))
        found = explain(public(op), torch.randn(2, 4))
        assert found.rejected == {"triton": "triton is not installed (pip install aiter_like[triton])"}

    def test_requires_grad_goes_to_a_differentiable_backend(self):
        hip = FakeJit()
        op = make_op(Backend("hip", hip))
        x = torch.randn(2, 4, requires_grad=True)
        run(op, x.detach())
        out = public(op)(x)
        out.sum().backward()
        assert hip.calls == 1 and torch.equal(x.grad, torch.full((2, 4), 3.0))
        with torch.no_grad():
            public(op)(x)
        assert hip.calls == 2
        with pytest.raises(UnsupportedError, match="forward only, and an argument requires grad"):
            run(op, x, backend="hip")


class TestForced:
    def test_backend_argument(self):
        hip, asm = FakeJit(), FakeJit()
        op = make_op(Backend("hip", hip), Backend("asm", asm))
        run(op, backend="asm")
        assert (hip.calls, asm.calls) == (0, 1)

    def test_unknown_backend(self):
        with pytest.raises(ValueError, match="backend must be one of hip, torch, got 'cuda'"):
            run(make_op(Backend("hip", FakeJit())), backend="cuda")
        with pytest.raises(ValueError, match="name must be one of hip, ck, asm, triton, vendor, torch, got 'cuda'"), \
                use_backend("cuda"):
            pass

    def test_refusal_is_raised_with_its_reason_only(self):
        op = make_op(Backend("hip", FakeJit(), refusal=lambda target, *args: "odd rows"))
        with pytest.raises(UnsupportedError, match="hip: odd rows"):
            run(op, backend="hip")

    def test_use_backend_goes_behind_an_argument_and_ends(self):
        hip, asm = FakeJit(), FakeJit()
        op = make_op(Backend("hip", hip), Backend("asm", asm))
        with use_backend("asm"):
            run(op)
            run(op, backend="hip")
            with use_backend("torch"):
                run(op)
        run(op)
        assert (hip.calls, asm.calls) == (2, 1)
        with use_backend("ck"), pytest.raises(UnsupportedError):
            run(op)

    def test_use_backend_is_per_thread(self):
        hip, asm = FakeJit(), FakeJit()
        op = make_op(Backend("hip", hip), Backend("asm", asm))
        with use_backend("asm"):
            thread = threading.Thread(target=run, args=(op,))
            thread.start()
            thread.join()
        assert (hip.calls, asm.calls) == (1, 0)


class TestBuildFailure:
    def test_automatic_backend_warns_once_and_the_next_serves(self, caplog):
        op = make_op(Backend("hip", FakeJit(error=BuildError("clang says no"))), Backend("asm", asm := FakeJit()))
        for rows in (2, 3):
            run(op, torch.randn(rows, 4))
        warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert len(warnings) == 1
        assert "hip (scale) is out of use on gfx942: does not build: clang says no" in warnings[0]
        assert asm.calls == 2
        assert "clang says no" in explain(public(op), torch.randn(9, 4)).rejected["hip"]

    def test_forced_backend_raises_every_time(self):
        op = make_op(Backend("hip", FakeJit(error=BuildError("clang says no"))))
        run(op)
        for _ in range(2):
            with pytest.raises(BuildError, match="clang says no"):
                run(op, backend="hip")

    def test_another_instance_is_still_tried(self):
        broken = FakeJit(instance=lambda out, x, factor, flag: f"d{x.shape[1]}")
        op = make_op(Backend("hip", broken))
        broken.error = BuildError("no")
        run(op, torch.randn(2, 4))
        broken.error = None
        run(op, torch.randn(3, 4))
        run(op, torch.randn(2, 8))
        assert broken.calls == 1

    def test_unsupported_in_bind_is_a_reason(self):
        op = make_op(Backend("hip", FakeJit(error=UnsupportedError("not portable"))))
        run(op)
        with pytest.raises(UnsupportedError, match="not portable"):
            run(op, backend="hip")


class TestPlans:
    def test_scalars_differ_by_type(self, cache_kind):
        op = make_op()
        x = torch.randn(2, 4)
        run(op, x, 1.0, 1)
        run(op, x, 1.0, 1)
        for flag in (1.0, True):
            with pytest.raises(TypeError, match="flag must be an integer"):
                run(op, x, 1.0, flag)

    @pytest.mark.parametrize("factor", [float("nan"), float("inf")])
    def test_non_finite_scalar_is_rejected_each_time(self, cache_kind, factor):
        op = make_op()
        run(op, factor=1.0)
        for _ in range(3):
            with pytest.raises(ValueError, match="factor must be finite"):
                run(op, factor=factor)
        assert len(op._classes) == 1

    @pytest.mark.parametrize("change", [
        lambda x: x.double(), lambda x: x.t(), lambda x: x[:, :3], lambda x: x.to("meta"), lambda x: x[0],
        lambda x: x.to_sparse(), lambda x: None, lambda x: [1.0]],
        ids=["dtype", "transposed", "sliced", "device", "rank", "sparse", "none", "list"])
    def test_other_metadata_is_checked_again(self, cache_kind, change):
        op = make_op()
        x = torch.randn(2, 4)
        out = torch.empty_like(x)
        for _ in range(3):
            op.run(out, x, 2.0, 0)
        with pytest.raises((TypeError, ValueError), match=rf"^(scale|{op.name}): (x|out) "):
            op.run(out, change(x), 2.0, 0)

    def test_tensors_in_a_tuple_are_in_the_key(self, cache_kind):
        def first_ref(call: SumCall) -> None:
            """Sums up."""
            call.out.copy_(sum(call.others))

        checked = []
        op = Op(f"sum_up_{classes.TensorGuards is None}", call=SumCall, reference=first_ref,
                check=lambda call: checked.append(len(call.others)), backends=(Backend("torch", first_ref),))
        out, x = torch.empty(2, 4), torch.ones(2, 4)
        for others, plans_made in (((x, x), 1), ((x, 2 * x), 1), ([x, x], 1), ((x, x, x), 2), ((x, x.half()), 3),
                                   ((x, torch.ones(4, 2).t()), 4), ((x, x[:1]), 5)):
            for _ in range(3):
                op.run(out, others)
            assert len(op._classes) == len(checked) == plans_made
            assert torch.equal(out, sum(others))

    def test_a_tensor_that_comes_twice(self, monkeypatch):
        op = make_op(Backend("hip", FakeJit()))
        x = torch.ones(2, 4)
        finds = []
        find = op._classes.find
        monkeypatch.setattr(op._classes, "find", lambda *args, **named: finds.append(1) or find(*args, **named))
        for _ in range(5):
            op.run(x, x, 2.0, 0)
        if classes.TensorGuards is not None:
            assert len(finds) == 2  # the first call, and the one that made it a recent one
        assert torch.equal(x, torch.full((2, 4), 32.0))
        assert torch.equal(run(op, x), x * 3)

    def test_grad_mode_is_in_the_key(self, cache_kind):
        hip = FakeJit()
        op = make_op(Backend("hip", hip))
        x, out = torch.randn(2, 4, requires_grad=True), torch.empty(2, 4)
        for _ in range(3):
            with torch.no_grad():
                op.run(out, x, 2.0, 0)
        calls = hip.calls
        op.run(torch.empty(2, 4), x, 2.0, 0)
        assert calls == hip.calls == 3

    def test_bounded(self, monkeypatch):
        monkeypatch.setattr(classes, "_OF_A_KIND", 8)
        op = make_op(Backend("hip", FakeJit(), refusal=lambda target, out, x, *_: {x.shape[0]: None}[x.shape[0]]))
        for rows in range(1, 30):
            run(op, torch.randn(rows, 2))
        assert len(op._classes) == 8
        monkeypatch.setattr(classes, "_KINDS", 2)
        for dtype in (torch.bfloat16, torch.float32, torch.bfloat16):
            for kind in (torch.Tensor, torch.nn.Parameter):
                with torch.no_grad():
                    run(op, torch.randn(2, 4).to(dtype).as_subclass(kind))
        assert len(op._classes._kinds) == 2

    def test_new_targets_are_noticed(self, cache_kind):
        hip = FakeJit()
        op = make_op(Backend("hip", hip))
        run(op)
        device.use_simulator(False)
        if torch.cuda.is_available():
            pytest.skip("CPU tensors have no target on a machine with a GPU")
        device._targets[torch.device("cpu")] = HOST
        run(op)
        assert hip.calls == 1

    def test_empty_call_does_nothing(self, cache_kind):
        hip = FakeJit()
        op = make_op(Backend("hip", hip))
        for _ in range(3):
            assert run(op, torch.empty(0, 4)).shape == (0, 4)
        assert hip.binds == [] and explain(public(op), torch.empty(0, 4)).backend is None

    def test_inference_mode_and_autocast(self, cache_kind):
        op = make_op(Backend("hip", hip := FakeJit()))
        x = torch.randn(2, 4)
        for _ in range(3):
            run(op, x)
            with torch.inference_mode():
                assert torch.equal(run(op, x), x * 3)
            with torch.autocast("cpu", torch.bfloat16):
                assert torch.equal(run(op, x), x * 3)
        assert hip.calls == 9

    def test_threads(self, cache_kind):
        op = make_op(Backend("hip", FakeJit()))
        wrong = []

        def work(seed):
            for step in range(60):
                x = torch.full((1 + (seed * step) % 13, 4), float(seed))
                if not torch.equal(run(op, x), x * 3):
                    wrong.append((seed, step))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(1, 5)))
        assert not wrong


class TestSimulated:
    def test_checkers_see_every_call_and_errors_are_the_simulators(self, monkeypatch):
        monkeypatch.setattr(device, "_targets", {torch.device("cpu"): SIMULATED})
        seen = []

        class Sim:
            on = False
            checking = staticmethod(lambda: Sim.on)
            load = staticmethod(lambda: None)

            @staticmethod
            def checked_call(name, function, args, writes):
                seen.append((name, writes))
                function(*args)

            @staticmethod
            def as_error(name, error):
                return SimulatorError(f"{name}: {error}") if "launch" in str(error) else error

        monkeypatch.setattr(sim, "seam", Sim, raising=False)
        op = make_op(Backend("hip", hip := FakeJit()))
        run(op)
        Sim.on = True
        run(op)
        run(op, backend="torch")
        assert hip.calls == 2 and seen == [(op.name, (0,))]

        def fail(message):
            raise RuntimeError(message)

        Sim.on = False
        hip.function = lambda *args: fail("launch failed")
        with pytest.raises(SimulatorError, match=f"{op.name}: launch failed"):
            run(op)
        hip.function = lambda *args: fail("something else")
        with pytest.raises(RuntimeError, match="^something else$"):
            run(op)
