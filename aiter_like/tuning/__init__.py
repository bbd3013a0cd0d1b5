# SPDX-License-Identifier: MIT
"""Tuned tables: table.py reads and validates them, record.py collects the shapes that a program uses."""
