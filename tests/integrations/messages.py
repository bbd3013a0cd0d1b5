# SPDX-License-Identifier: MIT
"""What the package logs, kept by the processes in which engines run."""

from __future__ import annotations

import logging


class Messages(logging.Handler):
    """Keeps (level, text) of the package's logger."""

    def __init__(self):
        super().__init__()
        self.found: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append((record.levelname, record.getMessage()))
