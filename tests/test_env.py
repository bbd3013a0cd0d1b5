# SPDX-License-Identifier: MIT
"""The registry of environment variables, and the logging that follows one of them."""

import logging
import os
import re
from pathlib import Path

import pytest

from aiter_like import env, log

PACKAGE = Path(env.__file__).parent


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in os.environ:
        if name.startswith("AITER_LIKE"):
            monkeypatch.delenv(name)


def test_few_named_and_explained():
    assert len(env.VARIABLES) <= 12
    for name, variable in env.VARIABLES.items():
        assert re.fullmatch(r"AITER_LIKE(_[A-Z]+)*", name) and variable.help and variable.read


def test_every_variable_is_read_through_the_registry():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        for name in re.findall(r"""env\.get\(["'](\w+)["']\)""", text):
            assert name in env.VARIABLES, f"{path}: {name}"
        assert not re.search(r"""(environ(\.get)?|getenv)[\[(]["']AITER_LIKE""", text), path


@pytest.mark.parametrize(("name", "text", "value"), [
    ("AITER_LIKE_DISABLE", "rms_norm, flash_attn_fwd,", ("rms_norm", "flash_attn_fwd")),
    ("AITER_LIKE_TUNED", f"/a{os.pathsep}/b", ("/a", "/b")), ("AITER_LIKE_JOBS", "3", 3)])
def test_parsed(monkeypatch, name, text, value):
    monkeypatch.setenv(name, text)
    assert env.get(name) == value


@pytest.mark.parametrize("name", env.VARIABLES)
def test_default(name):
    assert env.get(name) == env.VARIABLES[name].default


@pytest.mark.parametrize(("name", "text"), [
    ("AITER_LIKE_JOBS", "-1"), ("AITER_LIKE_JOBS", "x")])
def test_wrong_value_names_the_variable(monkeypatch, name, text):
    monkeypatch.setenv(name, text)
    with pytest.raises(ValueError, match=f"^{name}='{text}': "):
        env.get(name)


def test_unknown_names(monkeypatch):
    monkeypatch.setenv("AITER_LIKE_BACKEND", "hip")
    monkeypatch.setenv("AITER_LOG_LEVEL", "x")
    assert env.unknown() == ["AITER_LIKE_BACKEND"]
    with pytest.raises(KeyError):
        env.get("AITER_LIKE_BACKEND")


class TestLog:
    @pytest.fixture(autouse=True)
    def logger(self, monkeypatch):
        logger = logging.getLogger("aiter_like")
        monkeypatch.setattr(logger, "handlers", [])
        level = logger.level
        yield logger
        logger.setLevel(level)

    def test_unset_changes_nothing(self, logger):
        level = logger.level
        log.configure()
        assert logger.level == level and not logger.handlers

    def test_variable_goes_before_the_default(self, logger, monkeypatch):
        monkeypatch.setenv("AITER_LIKE_LOG", "Debug")
        log.configure("warning")
        assert logger.level == logging.DEBUG

    def test_no_level(self, monkeypatch):
        monkeypatch.setenv("AITER_LIKE_LOG", "loud")
        with pytest.raises(ValueError, match="AITER_LIKE_LOG must be one of debug, info, warning, error, got 'loud'"):
            log.configure()

    def test_misspelt_variables_are_told_at_first_use(self, monkeypatch, caplog):
        monkeypatch.setenv("AITER_LIKE_BACKEND", "hip")
        log.first_use.cache_clear()
        log.first_use()
        log.first_use()
        assert len(caplog.records) == 1 and "AITER_LIKE_BACKEND is not a variable" in caplog.text
