# SPDX-License-Identifier: MIT
"""The command line: help, doctor, explain, errors. The other commands have their own tests."""

import contextlib
import importlib.util
import json
import logging

import pytest
import torch
from toys import SIMULATED, FakeJit, make_op

import aiter_like
from aiter_like import cli, device, dispatch, env, paths
from aiter_like.dispatch import Backend
from aiter_like.dispatch.table import columns, modelled_origin
from aiter_like.errors import BuildError
from aiter_like.sim import modelling


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """A CPU with the simulated device, without environment variables of ours and with the logger as it was."""
    monkeypatch.setattr(device, "_targets", {torch.device("cpu"): SIMULATED})
    for name in env.VARIABLES:
        if name != "AITER_LIKE_CACHE_DIR":
            monkeypatch.delenv(name, raising=False)
    logger = logging.getLogger("aiter_like")
    monkeypatch.setattr(logger, "handlers", [])
    level = logger.level
    yield
    logger.setLevel(level)


def run(capsys, *argv):
    try:
        status = cli.main(argv)
    except SystemExit as end:
        status = end.code
    return status, *capsys.readouterr()


class TestHelp:
    def test_lists_every_command_without_importing_it(self, capsys, monkeypatch):
        def refuse(name):
            raise AssertionError(f"imported {name}")

        monkeypatch.setattr(cli.importlib, "import_module", refuse)
        status, out, _ = run(capsys, "--help")
        assert status == 0
        assert all(command in out for command in ("demo", "doctor", "build", "cache", "sim", "explain", "verify"))

    @pytest.mark.parametrize("command", cli._COMMANDS)
    def test_of_each_command(self, capsys, command):
        status, out, _ = run(capsys, command, "--help")
        assert status == 0 and f"aiter-like {command}" in out

    def test_no_or_unknown_command(self, capsys):
        assert run(capsys)[0] == 2
        assert run(capsys, "fly")[0] == 2


class TestExplain:
    def test_tensor_and_scalar_arguments(self, capsys):
        status, out, _ = run(capsys, "explain", "rms_norm", "input=bf16[32,4096]", "weight=bf16[4096]", "epsilon=1e-6",
                             "backend=torch")
        assert status == 0
        assert "rows=32 hidden=4096 dtype=bf16" in out and "forced: backend='torch'" in out

    @pytest.mark.parametrize(("arguments", "text"), [
        (["rms_norm", "input"], "an argument must be name=value, got 'input'"),
        (["no_such"], "no public function 'no_such'"),
        (["__version__"], "no public function '__version__'"),
        (["rms_norm", "input=bf16[a]"], "input must be dtype[sizes], got 'bf16[a]'"),
        (["rms_norm", "input=bf16[4,8]", "weight=bf16[9]", "epsilon=1e-6"], "weight must have shape (8,), got (9,)"),
    ])
    def test_mistakes_are_one_line(self, capsys, arguments, text):
        status, out, err = run(capsys, "explain", *arguments)
        assert status == 1 and out == "" and err.startswith("aiter-like explain: ") and text in err
        assert err.count("\n") == 1


class TestDoctor:
    @pytest.fixture(autouse=True)
    def toolchains(self, monkeypatch):
        from aiter_like.modules import toolchain

        clang = toolchain.Candidate("clang", toolchain.Toolchain("clang", "/usr/bin/clang++", (22, 1), "id", ""), "")
        monkeypatch.setattr(toolchain, "report", lambda: [clang, toolchain.Candidate("nvcc", None, "not found")])
        monkeypatch.setattr(toolchain, "find", lambda platform: clang.toolchain)

    @staticmethod
    def forget_tables():
        for op in dispatch.OPS.values():
            op.reset()

    @pytest.fixture
    def no_tables(self, monkeypatch, tmp_path):
        """Neither packaged rows, some of which may be stale, nor the user's own."""
        for name in ("tuned_csv", "user_tuned"):
            monkeypatch.setattr(paths, name, lambda: tmp_path / "absent")
        self.forget_tables()
        yield
        self.forget_tables()

    def test_healthy(self, capsys, no_tables):
        status, out, _ = run(capsys, "doctor")
        assert status == 0, out
        for text in (*env.VARIABLES, "clang 22.1", "nvcc         not found", "the simulated MI300X: gfx942 (hip)",
                     "rms_norm", "no problems found", aiter_like.__version__):
            assert text in out

    def test_problems(self, capsys, monkeypatch, tmp_path):
        bad = tmp_path / "rms_norm.csv"
        bad.write_text("wrong\n")
        (tmp_path / "rmsnorm.csv").write_text("")
        monkeypatch.setenv("AITER_LIKE_TUNED", str(tmp_path))
        monkeypatch.setenv("AITER_LIKE_JOBS", "many")
        monkeypatch.setenv("AITER_LIKE_BACKEND", "hip")
        monkeypatch.setenv("AITER_LIKE_SIM", "chek")
        self.forget_tables()
        status, out, _ = run(capsys, "doctor")
        self.forget_tables()
        assert status == 1
        for text in (f"PROBLEM  {bad}:1: columns must be", "PROBLEM  AITER_LIKE_JOBS='many'",
                     "PROBLEM  AITER_LIKE_BACKEND is not a variable",
                     f"PROBLEM  {tmp_path / 'rmsnorm.csv'}:0: no operator is named rmsnorm",
                     "PROBLEM  AITER_LIKE_SIM: 'chek' is not one of check, ", "5 problem(s)"):
            assert text in out

    def test_stale_rows_break_nothing_and_are_not_passed_over(self, capsys, no_tables, monkeypatch, tmp_path):
        table = tmp_path / "rms_norm.csv"
        op = dispatch.OPS["rms_norm"]
        rows = [f"gfx942,304,{size},256,bf16,0,hip,rms_norm[bf16_l512_v1x8],,1.5,0,clang,{revision},measured:me"
                for size, revision in ((1, "0123456789ab"), (2, "0123456789ab"), (3, op.backends[0].revision("hip")))]
        table.write_text("\n".join([",".join(columns(op.tune_fields)), *rows]) + "\n")
        monkeypatch.setenv("AITER_LIKE_TUNED", str(table))
        status, out, _ = run(capsys, "doctor")
        assert status == 0 and "no problems" not in out and out.endswith("nothing is broken; 1 note(s)\n"), out
        assert (f"NOTE     rms_norm: 2 of 3 tuned rows are stale and not used, the first: {table}:2: it timed revision "
                "0123456789ab of the kernel") in out
        assert f"aiter-like tune rms_norm --shapes {table}\n" in out

    def test_modelled_rows_are_told_apart(self, capsys, no_tables, monkeypatch, tmp_path):
        path = tmp_path / "rms_norm.csv"
        op, version = dispatch.OPS["rms_norm"], modelling.version()
        rows = [f"gfx942,304,{size},256,bf16,0,hip,rms_norm[bf16_l512_v1x8],,1.5,0,clang,,{origin}" for size, origin in
                ((1, "measured:me"), (2, modelled_origin(version, 2100)), (3, modelled_origin("0", 2100)))]
        path.write_text("\n".join([",".join(columns(op.tune_fields)), *rows]) + "\n")
        monkeypatch.setenv("AITER_LIKE_TUNED", str(path))
        status, out, _ = run(capsys, "doctor")
        assert status == 0 and f"AITER_LIKE_TUNED {path}, measured: 1 rows, 1 for devices here; " \
            f"AITER_LIKE_TUNED {path}, modelled: 2 rows, 2" in out
        assert f"here version {version}; nothing of them is measured." in out
        assert (f"NOTE     rms_norm: 1 of 2 modelled rows are stale and not used, the first: {path}:4: version 0 of "
                f"the cycle model timed it, this is version {version}; model again: aiter-like tune rms_norm --device "
                f"sim --shapes {path}\n") in out

    def test_no_compiler(self, capsys, monkeypatch):
        from aiter_like.modules import toolchain

        def find(platform):
            raise BuildError("no compiler")

        monkeypatch.setattr(toolchain, "find", find)
        status, out, _ = run(capsys, "doctor")
        assert status == 1 and "kernels for hip cannot be built: no compiler" in out

    def test_no_triton(self, capsys, monkeypatch):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        assert "triton       absent (an extra)" in run(capsys, "doctor")[1]


class TestVerify:
    @pytest.fixture(autouse=True)
    def toys(self, monkeypatch):
        monkeypatch.setattr(dispatch.OPS, "declared", {})
        monkeypatch.setattr(dispatch.OPS, "index", {})
        monkeypatch.setattr(paths, "tuned_csv", lambda: paths.data_root() / "absent")

    def test_report(self, capsys, tmp_path):
        def wrong(out, x, factor, flag):
            out.copy_(x * factor + 1)

        op = make_op(Backend("hip", FakeJit()), Backend("asm", FakeJit(wrong)),
                     Backend("ck", FakeJit(), refusal=lambda target, *args: "odd"))
        report = tmp_path / "report.json"
        status, out, _ = run(capsys, "verify", "--device", "sim", "--output", str(report))
        assert status == 1
        results = json.loads(report.read_text())["results"]
        assert [(record["backend"], record["status"]) for record in results] == [
            ("hip", "passed"), ("asm", "failed"), ("ck", "refused")]
        assert results[1]["error"] > results[1]["tolerance"] and results[2]["detail"] == "odd"
        text = report.with_suffix(".txt").read_text()
        assert f"PASSED | {op.name} | hip | scale | 3x4 3x4" in text and "1 passed, 1 failed, 1 refused" in text
        assert "1 passed, 1 failed, 1 refused" in out

    def test_what_is_known_stays_where_it_is_interrupted(self, capsys, tmp_path, monkeypatch):
        from aiter_like.cli import verify

        record = {"op": "toy", "backend": "hip", "kernel": "", "status": "passed", "detail": "", "shapes": []}

        def interrupted(*_):
            yield record
            raise KeyboardInterrupt

        monkeypatch.setattr(verify, "report", interrupted)
        with contextlib.suppress(KeyboardInterrupt):
            run(capsys, "verify", "--device", "sim", "--output", str(tmp_path / "report.json"))
        found = json.loads((tmp_path / "report.json").read_text())
        assert found["results"] == [record] and not found["is_complete"]

    def test_unknown_operator(self, capsys):
        op = make_op()
        status, _, err = run(capsys, "verify", "no_such")
        assert status == 1 and err == f"aiter-like verify: no operator no_such; known: {op.name}\n"
