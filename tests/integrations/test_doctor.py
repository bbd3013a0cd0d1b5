# SPDX-License-Identifier: MIT
"""`aiter-like doctor --engine`: what it says of an engine that is absent, too new, switched off, kept out or served."""

import importlib.machinery
import importlib.metadata
import sys
import types

import pytest
import torch

from aiter_like import cli, integrations
from aiter_like.integrations import doctor, takeover, versions

POINT = importlib.metadata.EntryPoint("aiter_like", "aiter_like.integrations:install", "vllm.general_plugins")


@pytest.fixture
def vllm(monkeypatch):
    """A loaded module `vllm` of a served version, an adapter that takes one of its functions, and our plugin."""
    engine = types.ModuleType("vllm")
    engine.__version__, engine.run = versions.SUPPORTED["vllm"].seen[-1], len
    adapter = types.ModuleType(f"{integrations.__name__}.vllm")
    adapter.__spec__ = importlib.machinery.ModuleSpec(adapter.__name__, None)
    adapter.install = lambda: takeover.replace_attribute(
        engine, "run", takeover.take("vllm.run", sum, engine.run, announce=False), owner="vllm")
    adapter.uninstall = lambda: None
    monkeypatch.setitem(sys.modules, "vllm", engine)
    monkeypatch.setitem(sys.modules, adapter.__name__, adapter)
    monkeypatch.setattr(integrations, "_ADAPTERS", {"aiter": "aiter.overlay", "vllm": "vllm"})
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [POINT] if group == POINT.group else [])
    monkeypatch.setenv("AITER_LIKE", "1")
    for name in ("AITER_LIKE_DISABLE", "VLLM_PLUGINS"):
        monkeypatch.delenv(name, raising=False)
    takeover.forget()  # what another test of this process has taken would stand among the names
    yield engine
    integrations.uninstall()
    takeover.forget()


def run(capsys) -> tuple[int, str]:
    status = cli.main(["doctor", "--engine", "vllm"])
    return status, capsys.readouterr().out


def test_served(vllm, capsys):
    status, out = run(capsys)
    assert status == 0 and "no problems found" in out
    for line in (f"vllm         {vllm.__version__}; served: 0.32 to before 0.34", "AITER_LIKE is on",
                 "vllm.general_plugins: aiter_like.integrations:install", "vllm: on", "taken        vllm.run",
                 "denied       nothing", "replaced     vllm.run"):
        assert line in out


def test_denied(vllm, capsys, monkeypatch):
    monkeypatch.setenv("AITER_LIKE_DISABLE", "run")
    status, out = run(capsys)
    assert status == 0 and "denied       vllm.run" in out and "taken        nothing yet" in out


def test_switched_off_is_no_problem(vllm, capsys, monkeypatch):
    monkeypatch.setenv("AITER_LIKE", "0")
    status, out = run(capsys)
    assert status == 0 and "off: the engine keeps its own operators" in out and vllm.run is len


def test_adapter_that_fails(vllm, capsys, monkeypatch):
    def broken():
        raise ImportError("no such registry")

    monkeypatch.setattr(sys.modules[f"{integrations.__name__}.vllm"], "install", broken)
    status, out = run(capsys)
    assert status == 1 and "PROBLEM  vllm is off: ImportError: no such registry" in out


@pytest.mark.parametrize(("line", "problem"), [
    ("import no_such_package", "no_such_package is missing: pip install no_such_package"),
    ("import vllm.no_such_part", "ModuleNotFoundError: No module named 'vllm.no_such_part'"),
    ("raise RuntimeError('operator torchvision::nms does not exist')",
     f"torchvision was built for another torch than {torch.__version__}: pip install --force-reinstall --no-deps "
     f"torchvision --index-url https://download.pytorch.org/whl/{torch.__version__.partition('+')[2] or 'cpu'}"),
    ("raise OSError('libsomething.so: cannot open shared object file')",
     "OSError: libsomething.so: cannot open shared object file")])
def test_what_to_install_where_the_engine_does_not_import(vllm, capsys, monkeypatch, tmp_path, line, problem):
    """An engine whose packages do not fit is a line that says which, whatever it raises."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text(line)
    monkeypatch.delitem(sys.modules, "vllm")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(versions, "installed", lambda engine: versions.SUPPORTED[engine].seen[-1])
    status, out = run(capsys)
    assert status == 1 and f"PROBLEM  vllm does not import: {problem}\n" in out


@pytest.mark.parametrize(("name", "value", "problem"), [
    ("VLLM_PLUGINS", "other,another", "VLLM_PLUGINS='other,another' keeps the plugin aiter_like out"),
    ("VLLM_PLUGINS", "", "keeps the plugin aiter_like out"),
    ("AITER_LIKE", "maybe", "AITER_LIKE='maybe': expected 0 or 1")])
def test_variables_that_keep_it_out(vllm, capsys, monkeypatch, name, value, problem):
    monkeypatch.setenv(name, value)
    status, out = run(capsys)
    assert status == 1 and problem in out and vllm.run is len


def test_plugin_among_those_allowed(vllm, capsys, monkeypatch):
    monkeypatch.setenv("VLLM_PLUGINS", "other, aiter_like")
    assert run(capsys)[0] == 0


def test_too_new(vllm, capsys):
    vllm.__version__ = "0.34.0"
    status, out = run(capsys)
    assert status == 1 and "vllm 0.34.0 is not served" in out and vllm.run is len


def test_no_plugin(vllm, capsys, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [])
    status, out = run(capsys)
    assert status == 1 and "vllm.general_plugins: not registered" in out and "with pip" in out


def test_absent(vllm, capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "vllm")
    monkeypatch.setattr(versions, "installed", lambda engine: None)
    status, out = run(capsys)
    assert status == 1 and "vllm is not installed" in out


def test_engines_are_those_of_the_table(capsys):
    assert set(doctor.ENGINES) == set(doctor._GROUPS) == {"vllm", "sglang", "transformers"}
    with pytest.raises(SystemExit):
        cli.main(["doctor", "--engine", "llama.cpp"])


@pytest.fixture
def transformers(monkeypatch):
    """transformers itself, in an interpreter whose start read our line."""
    pytest.importorskip("transformers")
    monkeypatch.setenv("AITER_LIKE", "1")
    monkeypatch.delenv("AITER_LIKE_DISABLE", raising=False)
    monkeypatch.setattr(integrations, "_ADAPTERS", {"aiter": "aiter.overlay", "transformers": "transformers"})
    monkeypatch.setitem(sys.modules, "aiter_like_startup", types.ModuleType("aiter_like_startup"))
    takeover.forget()
    yield
    integrations.uninstall()
    takeover.forget()


def run_transformers(capsys) -> tuple[int, str]:
    return cli.main(["doctor", "--engine", "transformers"]), capsys.readouterr().out


def test_served_models_of_transformers(transformers, capsys):
    status, out = run_transformers(capsys)
    assert status == 0, out
    assert 'registered   attn_implementation="aiter_like"' in out
    assert "served       a new LlamaForCausalLM: attention, 3 RMS norms, 1 gated activations, rotary embedding" in out


def test_transformers_where_only_the_name_is_registered(transformers, capsys, monkeypatch):
    """The name serves nobody who does not ask for it: that is not called served."""
    from aiter_like.integrations import transformers as adapter

    monkeypatch.setattr(adapter, "install", adapter.register)
    status, out = run_transformers(capsys)
    assert status == 1 and "registered   attn_impl" in out and "served       nothing of a new model" in out
    assert "PROBLEM  transformers: the name is registered, but new models are not served" in out


@pytest.mark.parametrize("value", ["0", "1"])
def test_transformers_without_the_line_at_start_up(transformers, capsys, monkeypatch, tmp_path, value):
    monkeypatch.setenv("AITER_LIKE", value)
    monkeypatch.delitem(sys.modules, "aiter_like_startup")
    monkeypatch.setattr(doctor.site, "getsitepackages", lambda: [str(tmp_path)])
    monkeypatch.setattr(doctor.site, "getusersitepackages", lambda: str(tmp_path))
    status, out = run_transformers(capsys)
    assert status == 1 and "plugin       aiter_like_startup.pth: not installed" in out
    assert "PROBLEM  no aiter_like_startup.pth was read" in out
    (tmp_path / "aiter_like_startup.pth").touch()
    assert run_transformers(capsys)[0] == int(value), "with the switch on, it was not read by this interpreter"
