# SPDX-License-Identifier: MIT
"""Tuned rows steer the choice; explain and is_tuned tell of it; what an operator's declaration must satisfy."""

import pytest
import torch
from toys import SIMULATED, FakeJit, ScaleKey, make_op, public, run, scale_ref

from aiter_like import device, dispatch
from aiter_like.dispatch import Backend, explain, is_tuned, table, use_backend
from aiter_like.errors import BuildError
from aiter_like.sim import modelling

pytestmark = pytest.mark.usefixtures("machine")


def write_rows(path, *rows):
    path.write_text("\n".join([",".join(table.columns(ScaleKey._fields)), *rows]) + "\n")


def stale_rows(op):
    return [row.source for row in op.table.rows() if op.staleness(row) is not None]


class TestPreference:
    def test_an_operator_prefers_a_backend_by_the_call(self):
        hip, ck = FakeJit(), FakeJit()
        op = make_op(Backend("hip", hip), Backend("ck", ck), prefers=lambda _, out, *__: len(out) > 2 and "ck")
        run(op, torch.randn(2, 4))
        assert (hip.calls, ck.calls) == (1, 0)
        run(op, torch.randn(3, 4))
        assert (hip.calls, ck.calls) == (1, 1)

    def test_the_vendors_library_needs_a_gpu(self, monkeypatch):
        op = make_op(Backend("vendor", lambda *args: None), Backend("hip", FakeJit()), prefers=lambda *_: "vendor")
        assert explain(public(op), torch.randn(2, 4)).backend == "vendor"
        monkeypatch.setattr(device, "_targets", {torch.device("cpu"): SIMULATED})
        found = explain(public(op), torch.randn(2, 4))
        assert (found.backend, found.rejected["vendor"]) == ("hip", "the vendor's library needs a GPU")


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
        op = make_op(Backend("hip", FakeJit()), Backend("asm", FakeJit(), refusal=lambda target, *args: "no"))
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
        revision = op.backends[1].revision("hip")
        path = self.rows(monkeypatch, tmp_path, op,
                         "gfx942,304,2,4,float32,asm,scale,,1.5,0,clang,0123456789ab,measured:me",
                         f"gfx942,304,3,4,float32,asm,scale,,1.5,0,clang,{revision},measured:me")
        assert explain(public(op), torch.randn(2, 4)).backend == "hip"
        assert explain(public(op), torch.randn(3, 4)).backend == "asm"
        assert is_tuned(op, rows=3, hidden=4, dtype="float32") and not is_tuned(op, rows=2, hidden=4, dtype="float32")
        assert stale_rows(op) == [f"{path}:2"] and "revision 0123456789ab" in caplog.text

    def test_row_of_another_cycle_model(self, monkeypatch, tmp_path, caplog):
        op = make_op(Backend("hip", FakeJit()), Backend("asm", FakeJit()))
        before, now = (table.modelled_origin(version, 900) for version in "67")
        path = self.rows(monkeypatch, tmp_path, op,
                         f"gfx942,304,2,4,float32,asm,scale,,1.5,0,clang,,{before}",
                         f"gfx942,304,3,4,float32,asm,scale,,1.5,0,clang,,{now}",
                         f"gfx942,304,4,4,float32,asm,scale,,1.5,0,clang,0123456789ab,{now}")
        monkeypatch.setattr(modelling, "version", lambda: "7")
        stale, used, older = (explain(public(op), torch.randn(rows, 4)) for rows in (2, 3, 4))
        assert (stale.backend, used.backend, older.backend) == ("hip", "asm", "hip")
        assert used.source == f"tuned, modelled: {path}:3"
        assert str(used.rows[0]) == (f"used: {path}:3: asm scale; 1.5 us, modelled, not measured (version 7 of the "
                                     "cycle model, at 900 MHz)")
        assert stale.rows[0].state == "stale"
        assert stale.rows[0].text.endswith("; version 6 of the cycle model timed it, this is version 7")
        assert "it timed revision 0123456789ab" in older.rows[0].text
        assert stale_rows(op) == [f"{path}:2", f"{path}:4"] and "version 6 of the cycle model" in caplog.text

    def test_several_kernels_of_one_backend(self, monkeypatch, tmp_path):
        asm = FakeJit(instance=lambda *args, kernel: kernel)
        op = make_op(Backend("asm", asm, kernels=lambda target, *args, **params: ["wide", "narrow"]))
        self.rows(monkeypatch, tmp_path, op, "gfx942,304,2,4,float32,asm,narrow,,1.5,0,clang,,measured:me")
        run(op)
        run(op, torch.randn(3, 4))
        assert asm.binds == [{"kernel": "narrow"}, {"kernel": "wide"}]

    def test_explain_says_what_became_of_each_row(self, monkeypatch, tmp_path):
        asm = FakeJit(instance=lambda *args, tile=1: f"t{tile}")
        op = make_op(Backend("hip", FakeJit()), Backend("asm", asm),
                     Backend("ck", FakeJit(), refusal=lambda target, *args: "odd"))
        path = self.rows(monkeypatch, tmp_path, op,
                         "gfx942,304,2,4,float32,ck,scale,,1.0,0,clang,,measured:me",
                         "gfx942,304,2,4,float32,hip,scale,,1.1,0,clang,0123456789ab,measured:me",
                         "gfx942,304,2,4,float32,asm,wrong,,1.2,0,clang,,measured:me",
                         "gfx942,304,2,4,float32,asm,scale[t8],tile=8,1.5,0,clang,,measured:me",
                         "gfx942,304,2,4,float32,asm,scale[t1],,1.6,0,clang,,measured:me",
                         "gfx942,304,64,4,float32,hip,scale,,1.6,0,clang,,measured:me",
                         "gfx942,304,65,4,bfloat16,hip,scale,,1.6,0,clang,,measured:me",
                         "gfx950,256,65,4,float32,hip,scale,,1.6,0,clang,,measured:me")
        rows = explain(public(op), torch.randn(2, 4)).rows
        assert [(row.source, row.state) for row in rows] == [
            (f"{path}:2", "ignored"), (f"{path}:3", "stale"), (f"{path}:4", "ignored"), (f"{path}:5", "used"),
            (f"{path}:6", "behind")]
        texts = ("ck scale; 1 us, measured on me; ck: odd",
                 "hip scale; 1.1 us, measured on me; it timed revision 0123456789ab",
                 "asm wrong; 1.2 us, measured on me; kernel must be one of scale[t1]",
                 "asm scale[t8] tile=8; 1.5 us, measured on me", "asm scale[t1]; 1.6 us, measured on me; another row")
        for row, text in zip(rows, texts):
            assert row.text.startswith(text), row.text
        found = explain(public(op), torch.randn(65, 4))
        assert [str(row) for row in found.rows] == [
            f"nearest: {path}:7: hip scale; 1.6 us, measured on me; rows=64 for 65"]
        assert str(found).splitlines()[-1] == f"  row      {found.rows[0]}"

    def test_explain_where_no_row_is_near(self, monkeypatch, tmp_path):
        op = make_op(Backend("hip", FakeJit()))
        self.rows(monkeypatch, tmp_path, op, "gfx950,256,2,4,float32,hip,scale,,1.6,0,clang,,measured:me")
        assert str(explain(public(op), torch.randn(2, 4))).endswith("\n  row      none for gfx942 with 304 CUs")

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
        op = make_op(Backend("hip", hip, refusal=lambda target, *args: "odd"), Backend("asm", asm))
        found = explain(public(op), torch.randn(2, 4))
        assert (found.backend, found.kernel) == ("asm", "scale")
        assert found.source == "heuristic: first of hip, asm, torch to accept"
        assert found.rejected == {"hip": "odd", "torch": "it comes after asm"}
        assert asm.binds == [] and asm.calls == 0
        assert str(found).splitlines()[:2] == [f"{op.name} on gfx942 (hip, 304 CUs)",
                                               "  key      rows=2 hidden=4 dtype=float32"]

    def test_every_backend_says_whether_it_would_accept(self):
        """Also those behind the chosen one, and those that somebody else's wish leaves out."""
        def refuses(reason):
            return lambda target, *args: reason

        op = make_op(Backend("asm", FakeJit(), refusal=refuses("odd")), Backend("hip", FakeJit()),
                     Backend("ck", FakeJit(), refusal=refuses("narrow")), Backend("triton", FakeJit()))
        accepts = {"asm": "odd", "hip": None, "ck": "narrow", "triton": None, "torch": None}
        plain = explain(public(op), torch.randn(2, 4))
        forced = explain(public(op), torch.randn(2, 4), backend="torch")
        assert dict(plain.accepts) == dict(forced.accepts) == accepts
        assert str(plain).splitlines()[6:11] == [
            "    asm    cannot serve it: odd", "    hip    serves the call", "    ck     cannot serve it: narrow",
            "    triton would serve it, but it comes after hip", "    torch  would serve it, but it comes after hip"]
        assert "    hip    would serve it, but not asked for: backend='torch'" in str(forced)

    def test_a_kernel_that_failed_would_not_serve(self):
        op = make_op(Backend("hip", FakeJit(error=BuildError("clang says no"))), Backend("asm", FakeJit()))
        run(op)
        found = explain(public(op), torch.randn(2, 4))
        assert found.backend == "asm" and "clang says no" in found.accepts["hip"] and found.accepts["asm"] is None

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
            dispatch.Op(op.name, call=op.call, reference=scale_ref, backends=())

    def test_rounds_no_field_of_the_key(self):
        with pytest.raises(ValueError, match="its key has no field tokens to round"):
            make_op(round_field="tokens")

    def test_is_tuned_of_a_stranger(self):
        with pytest.raises(ValueError, match="abs is no operator"):
            is_tuned(torch.abs, rows=1)

    def test_unknown_backend_kind(self):
        with pytest.raises(ValueError, match="backend must be one of"):
            Backend("cuda", scale_ref)
