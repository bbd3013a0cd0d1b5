# SPDX-License-Identifier: MIT
"""Adapters to inference engines: the only files that import an engine, each when it is asked for."""
