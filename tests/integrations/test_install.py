# SPDX-License-Identifier: MIT
"""install(): the switch, one adapter per loaded engine, one warning when something is wrong, and everything undone."""

import importlib.machinery
import importlib.util
import logging
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from aiter_like import integrations
from aiter_like.errors import UnsupportedError
from aiter_like.integrations import takeover, versions

ROOT = Path(__file__).resolve().parent.parent.parent
REAL_ADAPTERS = dict(integrations._ADAPTERS)
STOCK = len


@pytest.fixture(autouse=True)
def clean(monkeypatch, caplog):
    for name in ("AITER_LIKE_DISABLE", "AITER_LIKE_LOG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AITER_LIKE", "1")
    monkeypatch.setattr(integrations, "_ADAPTERS", {})
    caplog.set_level(logging.INFO, "aiter_like")
    yield
    integrations.uninstall()


@pytest.fixture
def toy(monkeypatch):
    """Makes an engine with a function `run`, and the adapter that takes it; the adapter may fail half-way."""

    def make(name: str, error: Exception | None = None) -> types.ModuleType:
        engine, adapter = types.ModuleType(name), types.ModuleType(f"{integrations.__name__}.{name}")
        engine.run, adapter.undone = STOCK, 0

        def install():
            takeover.replace_attribute(engine, "run", takeover.take(f"{name}.run", sum, engine.run), owner=name)
            if error is not None:
                raise error

        def uninstall():
            adapter.undone += 1

        adapter.install, adapter.uninstall, engine.adapter = install, uninstall, adapter
        adapter.__spec__ = importlib.machinery.ModuleSpec(adapter.__name__, None)
        monkeypatch.setitem(sys.modules, name, engine)
        monkeypatch.setitem(sys.modules, adapter.__name__, adapter)
        monkeypatch.setitem(integrations._ADAPTERS, name, name)
        return engine

    return make


@pytest.mark.parametrize("value", ["0", "", None])
def test_inert_without_the_switch(toy, monkeypatch, caplog, value):
    if value is None:
        monkeypatch.delenv("AITER_LIKE")
    else:
        monkeypatch.setenv("AITER_LIKE", value)
    engine = toy("toy_engine")
    assert not integrations.install() and engine.run is STOCK and not caplog.records
    assert not integrations.status().enabled


def test_installs_once_and_undoes(toy, caplog):
    engine = toy("toy_engine")
    assert integrations.install()
    taken = engine.run
    assert taken([1, 2]) == 3 and integrations.install() and engine.run is taken
    assert caplog.messages == ["toy_engine.run: taken"]
    status = integrations.status()
    assert status.enabled and status.engines == {"toy_engine": "on"}
    assert status.taken == {"toy_engine.run": takeover.Counts(1, 0)}
    integrations.uninstall()
    assert engine.run is STOCK and engine.adapter.undone == 1
    assert integrations.status().engines == {"toy_engine": "off"} and not integrations.status().taken
    assert integrations.install() and engine.run is not STOCK


def test_an_engine_loaded_later_is_served_by_the_next_call(toy, monkeypatch):
    first, second = toy("toy_first"), toy("toy_second")
    monkeypatch.delitem(sys.modules, "toy_second")
    assert integrations.install() and second.run is STOCK
    assert integrations.status().engines == {"toy_first": "on", "toy_second": "not loaded"}
    monkeypatch.setitem(sys.modules, "toy_second", second)
    assert integrations.install() and second.run is not STOCK and first.adapter.undone == 0


@pytest.mark.parametrize("error", [ImportError("no hook_registry"), KeyError("CPU_ATTN"), AttributeError("register")])
def test_a_failing_adapter_leaves_its_engine_as_it_was(toy, caplog, error):
    good, bad = toy("toy_good"), toy("toy_bad", error)
    for _ in range(3):
        assert integrations.install()
    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1 and "toy_bad" in warnings[0] and str(error) in warnings[0]
    assert bad.run is STOCK and bad.adapter.undone == 1 and good.run is not STOCK
    assert integrations.status().engines["toy_bad"].startswith(f"off: {type(error).__name__}")


def test_an_unsupported_version_is_left_alone(toy, monkeypatch, caplog):
    engine = toy("toy_engine")
    engine.__version__ = "0.34.0"
    monkeypatch.setitem(versions.SUPPORTED, "toy_engine", versions.SUPPORTED["vllm"])
    assert not integrations.install() and not integrations.install()
    assert engine.run is STOCK and len(caplog.records) == 1
    assert "toy_engine 0.34.0: served are versions from 0.32 to before 0.34" in caplog.text


@pytest.mark.parametrize(("name", "value"), [("AITER_LIKE", "yes"), ("AITER_LIKE_LOG", "loud")])
def test_a_mistake_in_a_variable_is_one_warning(toy, monkeypatch, caplog, name, value):
    engine = toy("toy_engine")
    monkeypatch.setenv(name, value)
    for _ in range(3):
        assert not integrations.install()
    assert engine.run is STOCK and len(caplog.records) == 1 and value in caplog.text


def test_messages_are_shown_unless_the_level_was_chosen(toy, monkeypatch):
    toy("toy_engine")
    logger = logging.getLogger("aiter_like")
    for chosen, seen in ((logging.NOTSET, logging.INFO), (logging.ERROR, logging.ERROR)):
        logger.setLevel(chosen)
        integrations.install()
        assert logger.level == seen
        integrations.uninstall()
        assert logger.level == chosen


@pytest.mark.parametrize(("version", "supported"), [
    ("0.32.0", True), ("0.33.1.dev3+g12ab", True), ("0.34.0", False), ("0.31.9", False), ("1.0", False),
    ("dev", False)])
def test_ranges_of_versions(version, supported):
    assert versions.is_supported("vllm", version) is supported


@pytest.mark.parametrize("engine", sorted(versions.SUPPORTED))
def test_versions_seen_lie_in_the_range(engine):
    assert all(versions.is_supported(engine, version) for version in versions.SUPPORTED[engine].seen)


def test_an_engine_without_a_version_is_refused(monkeypatch):
    monkeypatch.setitem(versions.SUPPORTED, "no_such_engine", versions.Versions("1", "2", (), ("no-such-engine",)))
    with pytest.raises(UnsupportedError, match="of unknown version"):
        versions.check("no_such_engine")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "transformers", "aiter"])
def test_an_engine_of_another_kind_degrades_to_one_warning(tmp_path, engine):
    """Of a served version by its number, but with nothing inside, in a process of its own with the real adapters."""
    if importlib.util.find_spec(f"aiter_like.integrations.{REAL_ADAPTERS[engine]}") is None:
        pytest.skip("no adapter")
    for name in {engine, "vllm"} if engine == "aiter" else {engine}:
        (tmp_path / name).mkdir()
        version = versions.SUPPORTED[name].seen[0] if name in versions.SUPPORTED and engine != "aiter" else "0"
        (tmp_path / name / "__init__.py").write_text(f"__version__ = {version!r}\n")
    code = f"""
import {engine if engine != "aiter" else "vllm"} as engine
before = dict(vars(engine))
from aiter_like import integrations
for _ in range(2):
    assert not integrations.install()
assert vars(engine) == before
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False,
                         env=os.environ | {"AITER_LIKE": "1", "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"})
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("\n") == 1 and "WARNING: these keep their own operators" in run.stderr
    assert f"{engine} (" in run.stderr


def test_installing_imports_no_engine():
    """With the switch on and no engine loaded, as when somebody else's plugin loader calls it."""
    code = """
import sys
from aiter_like import integrations
assert not integrations.install()
assert not {"vllm", "sglang", "transformers", "aiter", "triton"} & set(sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0 and not run.stderr, run.stderr
