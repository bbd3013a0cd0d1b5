# SPDX-License-Identifier: MIT
"""Choice of backends: order, reasons, forcing, failures, tuned rows, plans, explain."""

from __future__ import annotations

import logging
import sys
import threading

import pytest
import torch
from toys import FIELDS, HARDWARE, HOST, SIMULATED, FakeJit, make_op, scale_ref

from aiter_like import device, dispatch, plans, verify
from aiter_like.dispatch import Backend, explain, is_tuned, use_backend
from aiter_like.errors import BuildError, SimulatorError, UnsupportedError
from aiter_like.tuning import table


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """A hip target that runs plain Python functions; no packaged rows; operators of other tests are out of sight."""
    monkeypatch.setattr(dispatch, "OPS", {})
    monkeypatch.setattr(device, "_targets", {torch.device("cpu"): HARDWARE})
    monkeypatch.setattr(verify, "applies", lambda backend, target: False)
    monkeypatch.setattr(table.paths, "tuned_csv", lambda: tmp_path / "packaged")
    for name in ("AITER_LIKE_DISABLE", "AITER_LIKE_BACKENDS", "AITER_LIKE_TUNED", "AITER_LIKE_RECORD"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=["guards", "dictionary"])
def cache_kind(request, monkeypatch):
    """Both ways to find a plan: torch's guards, and the dictionary alone."""
    if request.param == "dictionary":
        monkeypatch.setattr(plans, "TensorGuards", None)


def run(op, x=None, factor=3.0, flag=0, **options):
    x = torch.randn(2, 4) if x is None else x
    out = torch.empty_like(x)
    op(out, x, factor, flag, **options)
    return out


def public(op):
    """A public function around a toy operator."""

    def scale(x, factor=3.0, flag=0, *, out=None, backend=None):
        out = torch.empty_like(x) if out is None else out
        op(out, x, factor, flag, backend=backend)
        return out

    return scale


def write_rows(path, *rows):
    path.write_text("\n".join([",".join(table.columns(FIELDS)), *rows]) + "\n")


class TestOrder:
    def test_first_backend_that_accepts_serves(self):
        hip, triton = FakeJit(), FakeJit()
        op = make_op(Backend("hip", hip, unsupported=lambda target, *args: "no"), Backend("ck", triton))
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
        with pytest.raises(ValueError, match="AITER_LIKE_BACKENDS must list hip, ck, asm, triton, torch, got cuda"):
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
        op = make_op(Backend("hip", FakeJit(), unsupported=lambda target, *args: "hip says no"))
        op.backends = op.backends[:1]
        with pytest.raises(UnsupportedError, match="hip says no") as caught:
            run(op)
        assert caught.value.op == op.name and caught.value.reasons == {"hip": "hip says no"}

    def test_torch_fallback_is_told_once(self, caplog):
        op = make_op(Backend("hip", FakeJit(), unsupported=lambda target, *args: "too wide"))
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
        with pytest.raises(ValueError, match="name must be one of hip, ck, asm, triton, torch, got 'cuda'"), \
                use_backend("cuda"):
            pass

    def test_refusal_is_raised_with_its_reason_only(self):
        op = make_op(Backend("hip", FakeJit(), unsupported=lambda target, *args: "odd rows"))
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
        assert len(op._plans) == 1

    @pytest.mark.parametrize("change", [
        lambda x: x.double(), lambda x: x.t(), lambda x: x[:, :3], lambda x: x.to("meta"), lambda x: x[0],
        lambda x: x.to_sparse(), lambda x: None, lambda x: [1.0]],
        ids=["dtype", "transposed", "sliced", "device", "rank", "sparse", "none", "list"])
    def test_other_metadata_is_checked_again(self, cache_kind, change):
        op = make_op()
        x = torch.randn(2, 4)
        out = torch.empty_like(x)
        for _ in range(3):
            op(out, x, 2.0, 0)
        with pytest.raises((TypeError, ValueError), match="scale: "):
            op(out, change(x), 2.0, 0)

    def test_a_tensor_that_comes_twice(self, monkeypatch):
        op = make_op(Backend("hip", FakeJit()))
        x = torch.ones(2, 4)
        finds = []
        find = op._plans.find
        monkeypatch.setattr(op._plans, "find", lambda *args: finds.append(1) or find(*args))
        for _ in range(5):
            op(x, x, 2.0, 0)
        if plans.TensorGuards is not None:
            assert len(finds) == 2  # the first call, and the one that made it a recent one
        assert torch.equal(x, torch.full((2, 4), 32.0))
        assert torch.equal(run(op, x), x * 3)

    def test_grad_mode_is_in_the_key(self, cache_kind):
        hip = FakeJit()
        op = make_op(Backend("hip", hip))
        x, out = torch.randn(2, 4, requires_grad=True), torch.empty(2, 4)
        for _ in range(3):
            with torch.no_grad():
                op(out, x, 2.0, 0)
        calls = hip.calls
        op(torch.empty(2, 4), x, 2.0, 0)
        assert calls == hip.calls == 3

    def test_bounded(self, monkeypatch):
        op = make_op()
        op._plans.limit = 8
        for rows in range(1, 30):
            run(op, torch.randn(rows, 2))
        assert len(op._plans) == 8

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

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


class TestSimulated:
    def test_checkers_see_every_call_and_errors_are_the_simulators(self, monkeypatch):
        monkeypatch.setattr(device, "_targets", {torch.device("cpu"): SIMULATED})
        seen = []

        class Sim:
            on = False
            checking = staticmethod(lambda: Sim.on)

            @staticmethod
            def checked_call(name, function, args, writes):
                seen.append((name, writes))
                function(*args)

            @staticmethod
            def as_simulator_error(name, error):
                return SimulatorError(f"{name}: {error}") if "launch" in str(error) else error

        monkeypatch.setitem(sys.modules, "aiter_like.sim", Sim)
        monkeypatch.setattr("aiter_like.sim", Sim, raising=False)
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


class TestTunedRows:
    def rows(self, monkeypatch, tmp_path, op, *rows):
        path = tmp_path / f"{op.name}.csv"
        write_rows(path, *rows)
        monkeypatch.setenv("AITER_LIKE_TUNED", str(path))
        return path

    def test_row_steers_backend_and_parameters(self, monkeypatch, tmp_path):
        hip, asm = FakeJit(), FakeJit(instance=lambda *args, tile=1: f"t{tile}")
        op = make_op(Backend("hip", hip), Backend("asm", asm))
        path = self.rows(monkeypatch, tmp_path, op,
                         "gfx942,304,2,4,float32,asm,scale[t8],tile=8,1.5,0,clang,,measured:me")
        run(op)
        assert asm.binds == [{"tile": 8}]
        found = explain(public(op), torch.randn(2, 4))
        assert (found.backend, found.kernel, found.params) == ("asm", "scale[t8]", {"tile": 8})
        assert found.source == f"tuned: {path}:2"
        assert is_tuned(op, rows=2, hidden=4, dtype="float32") and is_tuned(op.name, rows=2, hidden=4, dtype="float32")
        assert not is_tuned(op, rows=2, hidden=5, dtype="float32")
        run(op, torch.randn(3, 4))
        assert hip.calls == 1

    def test_row_of_a_refusing_backend_is_passed_over(self, monkeypatch, tmp_path):
        op = make_op(Backend("hip", FakeJit()), Backend("asm", FakeJit(), unsupported=lambda target, *args: "no"))
        self.rows(monkeypatch, tmp_path, op, "gfx942,304,2,4,float32,asm,scale,,1.5,0,clang,,measured:me")
        assert explain(public(op), torch.randn(2, 4)).backend == "hip"

    def test_row_of_unknown_kernel_is_reported_and_dropped(self, monkeypatch, tmp_path, caplog):
        op = make_op(Backend("hip", FakeJit()))
        path = self.rows(monkeypatch, tmp_path, op, "gfx942,304,2,4,float32,hip,scaly,,1.5,0,clang,,measured:me")
        run(op)
        run(op, torch.randn(2, 4))
        assert [str(problem) for problem in op.table.problems] == [
            f"{path}:2: kernel must be one of scale for this call, got 'scaly'"]
        assert len(caplog.records) == 1

    def test_row_whose_parameters_do_not_fit(self, monkeypatch, tmp_path):
        op = make_op(Backend("hip", FakeJit(instance=lambda *args: "x")))
        path = self.rows(monkeypatch, tmp_path, op,
                         "gfx942,304,2,4,float32,hip,scale[x],tile=8,1.5,0,clang,,measured:me")
        run(op)
        assert str(op.table.problems[0]).startswith(f"{path}:2: params do not fit scale[x]")

    def test_row_of_another_kernel_revision(self, monkeypatch, tmp_path, caplog):
        op = make_op(Backend("hip", FakeJit()), Backend("asm", FakeJit()))
        revision = op.backends[1].revision
        path = self.rows(monkeypatch, tmp_path, op,
                         "gfx942,304,2,4,float32,asm,scale,,1.5,0,clang,0123456789ab,measured:me",
                         f"gfx942,304,3,4,float32,asm,scale,,1.5,0,clang,{revision},measured:me")
        assert explain(public(op), torch.randn(2, 4)).backend == "hip"
        assert explain(public(op), torch.randn(3, 4)).backend == "asm"
        assert is_tuned(op, rows=3, hidden=4, dtype="float32") and not is_tuned(op, rows=2, hidden=4, dtype="float32")
        assert op.stale_rows() == [f"{path}:2"] and "revision 0123456789ab" in caplog.text

    def test_several_kernels_of_one_backend(self, monkeypatch, tmp_path):
        asm = FakeJit(instance=lambda *args, kernel: kernel)
        op = make_op(Backend("asm", asm, kernels=lambda target, *args: ["wide", "narrow"]))
        self.rows(monkeypatch, tmp_path, op, "gfx942,304,2,4,float32,asm,narrow,,1.5,0,clang,,measured:me")
        run(op)
        run(op, torch.randn(3, 4))
        assert asm.binds == [{"kernel": "narrow"}, {"kernel": "wide"}]

    def test_shapes_are_recorded_once(self, monkeypatch, tmp_path):
        op = make_op(Backend("hip", FakeJit()))
        monkeypatch.setenv("AITER_LIKE_RECORD", str(tmp_path / "shapes"))
        for rows in (2, 3, 2):
            run(op, torch.randn(rows, 4), float(rows))
        (path,) = (tmp_path / "shapes").iterdir()
        assert path.name.startswith(f"{op.name}.")
        assert path.read_text() == "arch,cu_num,rows,hidden,dtype\ngfx942,304,2,4,float32\ngfx942,304,3,4,float32\n"


class TestExplain:
    def test_nothing_runs_and_everything_has_a_reason(self):
        hip, asm = FakeJit(), FakeJit()
        op = make_op(Backend("hip", hip, unsupported=lambda target, *args: "odd"), Backend("asm", asm))
        found = explain(public(op), torch.randn(2, 4))
        assert (found.backend, found.kernel) == ("asm", "scale")
        assert found.source == "heuristic: first of hip, asm, torch to accept"
        assert found.rejected == {"hip": "odd", "torch": "comes after asm"}
        assert asm.binds == [] and asm.calls == 0
        assert str(found).splitlines()[:2] == [f"{op.name} on gfx942 (hip, 304 CUs)",
                                               "  key      rows=2 hidden=4 dtype=float32"]

    def test_forced(self):
        op = make_op(Backend("hip", FakeJit()))
        with use_backend("torch"):
            found = explain(public(op), torch.randn(2, 4))
            assert (found.backend, found.source) == ("torch", "forced: use_backend('torch')")
        found = explain(public(op), torch.randn(2, 4), backend="hip")
        assert (found.backend, found.source) == ("hip", "forced: backend='hip'")

    def test_bad_arguments_raise_as_the_call_does(self):
        with pytest.raises(TypeError, match="x must have dtype"):
            explain(public(make_op()), torch.randn(2, 4).double())

    def test_several_operators(self):
        first, second = make_op(), make_op()
        found = explain(lambda x: public(second)(public(first)(x)), torch.randn(2, 4))
        assert [one.op for one in found] == [first.name, second.name]

    def test_no_operator(self):
        with pytest.raises(ValueError, match="reached no operator"):
            explain(torch.abs, torch.randn(2))

    def test_no_compiler_is_a_reason(self, monkeypatch):
        monkeypatch.setenv("AITER_LIKE_TOOLCHAIN", "/nonexistent/clang")
        op = make_op(Backend("hip", FakeJit()))
        found = explain(public(op), torch.randn(2, 4))
        assert found.backend == "torch" and "/nonexistent/clang" in found.rejected["hip"]


class TestDeclaration:
    def test_duplicate_name(self):
        op = make_op()
        with pytest.raises(ValueError, match=f"operator {op.name} exists already"):
            dispatch.Op(op.name, reference=scale_ref, backends=())

    def test_fields_without_key(self):
        with pytest.raises(ValueError, match="do not fit together"):
            make_op(tune_key=None)

    def test_key_with_other_fields(self):
        op = make_op(tune_key=lambda *args: {"rows": 1})
        with pytest.raises(ValueError, match="tune key must have the fields rows, hidden, dtype, got rows"):
            run(op)

    def test_is_tuned_of_a_stranger(self):
        with pytest.raises(ValueError, match="abs is no operator"):
            is_tuned(torch.abs, rows=1)

    def test_unknown_backend_kind(self):
        with pytest.raises(ValueError, match="backend must be one of"):
            Backend("cuda", scale_ref)
