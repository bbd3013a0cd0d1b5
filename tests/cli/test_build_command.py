# SPDX-License-Identifier: MIT
"""`aiter-like build` and `aiter-like cache`, on stubs over the fake compiler."""

import argparse
import importlib

import pytest
from jit_project import Project

from aiter_like.cli import build
from aiter_like.modules.recipe import ModuleSpec

pytestmark = pytest.mark.usefixtures("jit_folders")


@pytest.fixture
def modules(fake, project: Project, monkeypatch) -> list[ModuleSpec]:
    """What the package declares, replaced: an operator of one module, one of two instances, and the simulator."""

    class Function:
        def __init__(self, name: str, instances: tuple[str, ...] = ("",), platforms=("hip", "cuda")):
            self.module, self.function_name = f"op/{name}.cpp", name
            self._instances, self.platforms = instances, platforms

        def instances(self):
            return self._instances

        def instance_spec(self, instance, platform, arch):
            return project.spec(name=f"op/{self.function_name}{instance}", arch=arch, defines={"PLATFORM": platform})

    functions = [Function("add"), Function("mul", ("-d64", "-d128"), ("hip",))]
    simulator = project.spec(name="sim")
    monkeypatch.setattr(importlib.import_module("aiter_like.jit.compile_ops"), "registered", lambda: functions)
    monkeypatch.setattr(build, "_of_simulator", lambda: {"sim": lambda: simulator})
    return functions


def _run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    build.add_commands(parser.add_subparsers())
    args = parser.parse_args(words)
    return args.run(args)


def test_build_all(modules, tmp_path, capsys):
    assert _run("build", "--all", "-j", "2") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert sorted(line[3] for line in lines[:3]) == ["op/add", "op/mul-d128", "op/mul-d64"], "no simulator"
    assert [line[:3] for line in lines[:3]] == [[f"{count}", "of", "3"] for count in (1, 2, 3)]
    assert all(line[6:] == ["s", "ok"] and float(line[5]) >= 0 for line in lines[:3])
    assert lines[3][:4] == ["3", "of", "3", "modules"]
    assert len(list((tmp_path / "cache").glob("*/*/module.so"))) == 3


@pytest.mark.parametrize("names, built", [
    (["add"], {"op.add"}), (["op/mul", "sim"], {"op.mul-d64", "op.mul-d128", "sim"}), (["op/add.cpp"], {"op.add"})])
def test_build_by_name(modules, tmp_path, names, built):
    assert _run("build", *names) == 0
    assert {path.parents[1].name for path in (tmp_path / "cache").glob("*/*/module.so")} == built


def test_build_for_nvidia_makes_what_is_portable(modules, tmp_path):
    assert _run("build", "--arch", "sm_90") == 0
    assert {path.parents[1].name for path in (tmp_path / "cache").glob("*/*/module.so")} == {"op.add"}


def test_unknown_name(modules):
    with pytest.raises(ValueError, match="no module nope; there are: add, mul, op/add, op/add.cpp, .*, sim"):
        _run("build", "nope")


def test_output_is_a_prebuilt_directory(modules, fake, project, tmp_path, monkeypatch):
    assert _run("build", "add", "--output", str(tmp_path / "prebuilt")) == 0
    runs = fake.runs()
    monkeypatch.setenv("AITER_LIKE_PREBUILT_DIR", str(tmp_path / "prebuilt"))
    from aiter_like.modules.build import load_or_build

    assert tmp_path / "prebuilt" in load_or_build(modules[0].instance_spec("", "hip", "gfx942")).parents
    assert fake.runs() == runs


def test_failure_is_reported_and_the_rest_built(modules, project, capsys, monkeypatch):
    (project.root / "op" / "bad.cpp").write_text("#error bad\n")
    monkeypatch.setattr(modules[0], "instance_spec", lambda *_: project.spec(name="op/add", sources=("op/bad.cpp",)))
    assert _run("build") == 1
    out = capsys.readouterr().out
    assert "FAILED" in out and "op/add: the build for" in out and "#error bad" in out and "2 of 3 modules" in out


def test_cache_commands(modules, tmp_path, capsys):
    assert _run("build", "add", "mul") == 0
    capsys.readouterr()
    assert _run("cache", "list") == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == str(tmp_path / "cache")
    assert "op/add  gfx942  " in out and "by clang 22.0.0" in out
    assert _run("cache", "verify") == 0
    assert capsys.readouterr().out.startswith("3 of 3 modules intact")

    damaged = next((tmp_path / "cache" / "op.add").glob("*/module.so"))
    damaged.write_bytes(b"x")
    next((tmp_path / "cache" / "op.mul-d64").glob("*/meta.json")).write_text("{")
    assert _run("cache", "verify") == 1
    out = capsys.readouterr().out
    assert f"{damaged.parent}: module.so does not have its recorded SHA-256" in out and "no readable meta.json" in out
    assert "1 of 3 modules intact" in out
    assert _run("cache", "list") == 0 and "damaged: no readable meta.json" in capsys.readouterr().out

    assert _run("cache", "prune") == 0 and "removed 0 directories" in capsys.readouterr().out
    assert _run("cache", "prune", "--all") == 0 and "removed 3 directories" in capsys.readouterr().out
    assert _run("cache", "list") == 0 and len(capsys.readouterr().out.splitlines()) == 1
