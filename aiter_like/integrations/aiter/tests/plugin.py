# SPDX-License-Identifier: MIT
"""The plugin of pytest by which `aiter-like aiter-tests` counts the tests of a file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from aiter_like.integrations.aiter.checks import Journal

_OTHER_ARCH = re.compile(r"\bgfx\d|\bMI\d{3}|\bsm_\d|\bROCm\b|\bHIP\b")  # in the reason of a skip


class Counter:
    """Enters each test into a journal.

    Attributes:
        is_skipped: the whole file was.
        ended: what kept the file from its end; "" for nothing.
    """

    def __init__(self, journal: Journal):
        self.journal, self.is_skipped, self.ended = journal, False, ""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """A function that takes arguments which nobody gives is a part of a script, not a test."""
        items[:] = [item for item in items if not hasattr(item, "_fixtureinfo") or set(item._fixtureinfo.argnames) <= {
            *item._fixtureinfo.name2fixturedefs, *getattr(getattr(item, "callspec", None), "params", ()), "request"}]

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: Any) -> Iterator[None]:
        """A file that does not import, or says that it is not for this machine."""
        report = yield
        error = report.call.excinfo.value if getattr(report, "call", None) and report.call.excinfo else None
        if isinstance(error, pytest.skip.Exception):
            self.is_skipped = True
            self._skipped(str(error))
        elif error is not None:
            self.ended = self.journal.add_error(error.__cause__ or error)
        return report

    def pytest_runtest_setup(self) -> None:
        """A test begins."""
        self.journal.begin()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Iterator[None]:
        """One phase of one test."""
        report = yield
        error = call.excinfo.value if call.excinfo else None
        if report.skipped:
            self._skipped(str(error))
        elif report.failed:
            self.journal.add(*self._classified(error), part=item.name)
        elif report.when == "call":
            self.journal.add("passed", part=item.name)
        return report

    def _classified(self, error: BaseException | None) -> tuple[str, str]:
        """A test that passes although it is marked to fail has no exception; `pytest.fail` has one of its own."""
        if error is None or isinstance(error, pytest.fail.Exception):
            return "failed", str(error or "passes, though it is marked to fail")
        return self.journal.classified(error)

    def _skipped(self, reason: str) -> None:
        self.journal.add("other_arch" if _OTHER_ARCH.search(reason) else "skipped", reason)
